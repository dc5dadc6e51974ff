//! Where the schemas of a document are, and what their references mean. Nothing is fetched: what is not in the document is unknown.

use std::collections::HashMap;

use serde_json::{Map, Value};

/// A version of the standard. Keywords that only one of them has are read in all; these differ in what a keyword means.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Draft {
    Four,
    UpToSeven,
    Later,
}

impl Draft {
    /// That of a `$schema`; unknown ones leave it as it is.
    fn of(uri: &str) -> Option<Self> {
        let uri = uri.trim_end_matches('#');
        let (_, version) = uri.split_once("://json-schema.org/draft")?;
        match version {
            "-04/schema" => Some(Self::Four),
            "-06/schema" | "-07/schema" => Some(Self::UpToSeven),
            "/2019-09/schema" | "/2020-12/schema" => Some(Self::Later),
            _ => None,
        }
    }
}

/// What holds at a schema.
#[derive(Debug, Clone)]
pub(super) struct Spot {
    pub(super) draft: Draft,
    base: String,    // what its references are relative to
    document: usize, // of those that stand in one another: it knows nothing of what is named in others
}

/// A schema with this says nothing of what it stands in, and nothing there of it: as if it stood alone.
pub(super) const EMBEDDED: &str = "$pelton:embedded";

/// A document with its schemas by their places, which are JSON pointers.
pub(super) struct Document<'a> {
    root: &'a Value,
    spots: HashMap<String, Spot>,
    documents: usize,                                  // within it, each with names of its own
    resources: HashMap<(usize, String), String>,       // places by their URIs
    anchors: HashMap<(usize, String, String), String>, // places by the URI and a name
    dynamic_anchors: HashMap<(usize, String), usize>,  // how many there are of a name
    recursive_anchors: HashMap<usize, usize>,
}

impl<'a> Document<'a> {
    pub(super) fn new(root: &'a Value) -> Self {
        let mut document = Self {
            root,
            spots: HashMap::new(),
            documents: 0,
            resources: HashMap::from([((0, String::new()), String::new())]),
            anchors: HashMap::new(),
            dynamic_anchors: HashMap::new(),
            recursive_anchors: HashMap::new(),
        };
        document.enter(root, String::new(), Spot { draft: Draft::Later, base: String::new(), document: 0 });
        document
    }

    pub(super) fn at(&self, place: &str) -> Option<&'a Value> {
        self.root.pointer(place)
    }

    pub(super) fn spot(&self, place: &str) -> Spot {
        self.spots[place].clone()
    }

    fn enter(&mut self, schema: &Value, place: String, mut spot: Spot) {
        if let Value::Object(members) = schema {
            self.name(members, &place, &mut spot);
        }
        for (below, part) in parts(schema) {
            self.enter(part, format!("{place}{below}"), spot.clone());
        }
        self.spots.insert(place, spot);
    }

    fn name(&mut self, members: &Map<String, Value>, place: &str, spot: &mut Spot) {
        let text = |name: &str| members.get(name).and_then(Value::as_str);
        let is_root = place.is_empty() || members.contains_key(EMBEDDED);
        if is_root && !place.is_empty() {
            self.documents += 1;
            *spot = Spot { draft: Draft::Later, base: String::new(), document: self.documents };
            self.resources.insert((spot.document, String::new()), place.to_owned());
        }
        if let Some(draft) = text("$schema").and_then(Draft::of) {
            spot.draft = draft;
        }
        let is_overridden = spot.draft < Draft::Later && members.contains_key("$ref");
        let id = if spot.draft == Draft::Four { text("id") } else { text("$id") };
        if let Some(id) = id.filter(|_| !is_overridden) {
            match id.split_once('#') {
                // Later drafts have `$anchor` for that.
                Some(("", _)) if spot.draft == Draft::Later => {}
                Some(("", name)) => self.anchor(spot, name, place),
                split => {
                    let uri = split.map_or(id, |(uri, _)| uri);
                    spot.base = joined(&spot.base, uri);
                    self.resources.insert((spot.document, spot.base.clone()), place.to_owned());
                }
            }
        }
        if is_root {
            self.resources.insert((spot.document, spot.base.clone()), place.to_owned());
        }
        for name in ["$anchor", "$dynamicAnchor"].into_iter().filter_map(text) {
            self.anchor(spot, name, place);
        }
        if let Some(name) = text("$dynamicAnchor") {
            *self.dynamic_anchors.entry((spot.document, name.to_owned())).or_default() += 1;
        }
        if members.get("$recursiveAnchor") == Some(&Value::Bool(true)) {
            *self.recursive_anchors.entry(spot.document).or_default() += 1;
        }
    }

    fn anchor(&mut self, spot: &Spot, name: &str, place: &str) {
        self.anchors.insert((spot.document, spot.base.clone(), name.to_owned()), place.to_owned());
    }

    /// The place of what a schema refers to.
    pub(super) fn target(&mut self, reference: &str, from: &str) -> Result<String, String> {
        let (uri, fragment) = reference.split_once('#').unwrap_or((reference, ""));
        let Spot { base, document, .. } = self.spot(from);
        let key = (document, joined(&base, uri));
        let unknown = || format!("{reference:?} is not in the schema, and nothing is fetched");
        let resource = self.resources.get(&key).ok_or_else(unknown)?;
        let fragment = percent_decoded(fragment).ok_or_else(unknown)?;
        if !fragment.is_empty() && !fragment.starts_with('/') {
            return self.anchors.get(&(document, key.1, fragment)).cloned().ok_or_else(unknown);
        }
        let place = format!("{resource}{fragment}");
        let target = self.at(&place).ok_or_else(unknown)?;
        if !self.spots.contains_key(&place) {
            // Where no keyword has a schema. It belongs to what it stands in.
            let around = (0..place.len()).rev().find_map(|end| self.spots.get(place.get(..end)?)).cloned();
            self.enter(target, place.clone(), around.expect("the root has a spot"));
        }
        Ok(place)
    }

    /// The same of a `$dynamicRef`, where it can mean one thing only.
    pub(super) fn dynamic_target(&mut self, reference: &str, from: &str) -> Result<String, String> {
        let target = self.target(reference, from)?;
        let name = self.at(&target).and_then(|schema| schema.get("$dynamicAnchor")).and_then(Value::as_str);
        let document = self.spot(from).document;
        match name.map(|name| self.dynamic_anchors[&(document, name.to_owned())]) {
            Some(2..) => Err(format!("{reference:?} may mean several schemas; a `$ref` means one")),
            _ => Ok(target),
        }
    }

    /// The same of a `$recursiveRef`.
    pub(super) fn recursive_target(&mut self, reference: &str, from: &str) -> Result<String, String> {
        if self.recursive_anchors.get(&self.spot(from).document).is_some_and(|&count| count > 1) {
            return Err(format!("{reference:?} may mean several schemas; a `$ref` means one"));
        }
        self.target(reference, from)
    }
}

/// The schemas within a schema, each with its way down from it.
pub(super) fn parts(schema: &Value) -> Vec<(String, &Value)> {
    let Value::Object(members) = schema else { return Vec::new() };
    let mut parts = Vec::new();
    for (name, value) in members {
        match (name.as_str(), value) {
            (
                "properties" | "patternProperties" | "$defs" | "definitions" | "dependentSchemas" | "dependencies",
                Value::Object(inner),
            ) => {
                let schemas = inner.iter().filter(|(_, value)| !value.is_array());
                parts.extend(schemas.map(|(key, value)| (format!("/{name}/{}", escaped(key)), value)));
            }
            ("anyOf" | "allOf" | "oneOf" | "prefixItems" | "items", Value::Array(inner)) => {
                parts.extend(inner.iter().enumerate().map(|(at, value)| (format!("/{name}/{at}"), value)));
            }
            (
                "items"
                | "additionalProperties"
                | "additionalItems"
                | "not"
                | "if"
                | "then"
                | "else"
                | "contains"
                | "propertyNames"
                | "unevaluatedItems"
                | "unevaluatedProperties",
                Value::Object(_) | Value::Bool(_),
            ) => parts.push((format!("/{name}"), value)),
            _ => {}
        }
    }
    parts
}

/// A name as a step of a JSON pointer.
pub(super) fn escaped(name: &str) -> String {
    name.replace('~', "~0").replace('/', "~1")
}

/// A URI relative to another one.
fn joined(base: &str, uri: &str) -> String {
    let has_scheme = |uri: &str| {
        let scheme = uri.split(':').next().unwrap_or_default();
        scheme.len() < uri.len()
            && scheme.starts_with(|c: char| c.is_ascii_alphabetic())
            && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c))
    };
    if uri.is_empty() {
        return base.to_owned();
    }
    if has_scheme(uri) {
        return uri.to_owned();
    }
    let path = match base.find("://").map(|at| at + 3) {
        Some(authority) => base[authority..].find('/').map_or(base.len(), |at| authority + at),
        None if has_scheme(base) => base.len(),
        None => 0,
    };
    let (front, path) = if uri.starts_with('/') {
        (&base[..path], uri.to_owned())
    } else {
        let folder = base[path..].rfind('/').map_or(0, |at| at + 1);
        (&base[..path], format!("{}{uri}", &base[path..path + folder]))
    };
    let mut steps: Vec<&str> = Vec::new();
    for step in path.split('/') {
        match step {
            "." => {}
            ".." => {
                steps.pop();
            }
            step => steps.push(step),
        }
    }
    let path = steps.join("/");
    let slash = if front.contains("://") && !path.starts_with('/') { "/" } else { "" };
    format!("{front}{slash}{path}")
}

fn percent_decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        match byte {
            b'%' => {
                let digit = |byte: Option<u8>| (byte? as char).to_digit(16);
                bytes.push((digit(rest.next())? * 16 + digit(rest.next())?) as u8);
            }
            byte => bytes.push(byte),
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_embedded_has_names_of_its_own() {
        let inner =
            |x: &str| json!({ EMBEDDED: true, "$id": "same", "$defs": { "x": { "$dynamicAnchor": "x", "const": x } } });
        let root = json!({ "$defs": { "x": { "$id": "#/is/no/name" } }, "items": [inner("a"), inner("b")] });
        let mut document = Document::new(&root);
        for at in 0..2 {
            let from = format!("/items/{at}");
            let x = format!("{from}/$defs/x");
            for reference in ["#/$defs/x", "#x", "same#x"] {
                assert_eq!(document.target(reference, &from).as_ref(), Ok(&x), "{reference}");
            }
            assert_eq!(document.dynamic_target("#x", &from), Ok(x));
        }
        assert_eq!(document.target("#/$defs/x", "").as_deref(), Ok("/$defs/x"));
        assert!(document.target("same#x", "").is_err() && document.target("#x", "").is_err());
    }

    #[test]
    fn uris_are_joined() {
        for (base, uri, whole) in [
            ("", "a.json", "a.json"),
            ("a.json", "b.json", "b.json"),
            ("a/b.json", "c.json", "a/c.json"),
            ("http://x.org/a/b.json", "", "http://x.org/a/b.json"),
            ("http://x.org/a/b.json", "c.json", "http://x.org/a/c.json"),
            ("http://x.org/a/b.json", "../c/./d.json", "http://x.org/c/d.json"),
            ("http://x.org/a/b.json", "/c.json", "http://x.org/c.json"),
            ("http://x.org", "c.json", "http://x.org/c.json"),
            ("http://x.org/a", "urn:x:y", "urn:x:y"),
        ] {
            assert_eq!(joined(base, uri), whole);
        }
    }
}
