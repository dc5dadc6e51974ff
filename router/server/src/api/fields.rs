//! A JSON object that is read field by field, so that every error names the field, what it got and what is allowed.
//!
//! Values stay raw text until somebody asks for them by a type; what nobody asked for is unknown. So the list of known
//! names is the code that reads them, and cannot differ from it. `null` means absent, as for OpenAI.

use std::{borrow::Cow, collections::HashSet, fmt};

use pelton_engine::TokenId;
use serde::{
    Deserialize,
    de::{DeserializeOwned, Deserializer, MapAccess, Visitor},
};
use serde_json::value::RawValue;

use crate::{
    error::{ApiError, shortened},
    nearest::nearest,
};

/// Lists and objects within each other at most. Tool schemas are the deepest that clients mean; this bounds recursion.
const NESTING_MAX: usize = 64;

/// What a list of tokens is to hold.
pub(crate) const TOKEN_IDS: &str = "a list of token ids, integers from 0 to 4294967295";

/// An object's fields, and which of them have been asked for.
pub(crate) struct Fields<'a> {
    /// Path of the object within the body, with a dot at its end; empty for the body itself.
    path: String,
    members: Vec<(Cow<'a, str>, &'a RawValue)>,
    asked: Vec<&'static str>,
}

impl<'a> Fields<'a> {
    /// A whole body.
    pub(crate) fn of_body(body: &'a [u8]) -> Result<Self, ApiError> {
        check_nesting(body)?;
        let bad = |error: serde_json::Error| ApiError::BadBody { reason: error.to_string() };
        let raw: &RawValue = serde_json::from_slice(body).map_err(bad)?;
        let members: Members<'a> = serde_json::from_str(raw.get()).map_err(|error| {
            let reason = if raw.get().starts_with('{') { error.to_string() } else { format!("it is {}", shown(raw)) };
            ApiError::BadBody { reason }
        })?;
        Self::new(String::new(), members)
    }

    /// An object within a body; `path` as errors show it.
    pub(crate) fn of_value(path: String, raw: &'a RawValue) -> Result<Self, ApiError> {
        match serde_json::from_str::<Members<'a>>(raw.get()) {
            Ok(members) => Self::new(format!("{path}."), members),
            Err(_) => Err(ApiError::invalid(path, shown(raw), "an object")),
        }
    }

    fn new(path: String, Members(members): Members<'a>) -> Result<Self, ApiError> {
        let mut seen = HashSet::with_capacity(members.len());
        if let Some((name, _)) = members.iter().find(|(name, _)| !seen.insert(name.as_ref())) {
            let param = format!("{path}{}", shortened(name));
            return Err(ApiError::Conflict { param, reason: "is given twice".to_owned() });
        }
        Ok(Self { path, members, asked: Vec::new() })
    }

    /// A field's path, as errors show it.
    pub(crate) fn at(&self, name: &str) -> String {
        format!("{}{name}", self.path)
    }

    /// A field as raw text.
    pub(crate) fn raw(&mut self, name: &'static str) -> Option<&'a RawValue> {
        self.asked.push(name);
        self.members.iter().find(|(member, _)| member == name).map(|(_, raw)| *raw).filter(|raw| raw.get() != "null")
    }

    /// A field of a plain type. `allowed` says in words what that type means.
    pub(crate) fn read<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        match serde_json::from_str(raw.get()) {
            Ok(value) => Ok(Some(value)),
            Err(_) => Err(self.wrong(name, raw, allowed)),
        }
    }

    /// The same for a field that must be there.
    pub(crate) fn need<T: Deserialize<'a>>(
        &mut self,
        name: &'static str,
        allowed: &'static str,
    ) -> Result<T, ApiError> {
        self.read(name, allowed)?.ok_or_else(|| ApiError::Missing { param: self.at(name), allowed })
    }

    pub(crate) fn flag(&mut self, name: &'static str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false")
    }

    pub(crate) fn text(&mut self, name: &'static str) -> Result<Option<String>, ApiError> {
        self.read(name, "a text")
    }

    /// A field that is one of a few words.
    pub(crate) fn one_of(
        &mut self,
        name: &'static str,
        words: &[&'static str],
        allowed: &'static str,
    ) -> Result<Option<&'static str>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let got = serde_json::from_str::<String>(raw.get()).ok();
        let word = words.iter().copied().find(|word| got.as_deref() == Some(*word));
        word.map(Some).ok_or_else(|| self.wrong(name, raw, allowed))
    }

    pub(crate) fn count(&mut self, name: &'static str) -> Result<Option<u32>, ApiError> {
        self.read(name, "an integer, 0 or above")
    }

    /// A list of token ids. It may be long: items are looked at one by one only to name a wrong one.
    pub(crate) fn token_ids(&mut self, name: &'static str) -> Result<Option<Vec<TokenId>>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| {
            let got = shown_item::<TokenId>(raw).unwrap_or_else(|| shown(raw));
            ApiError::invalid(self.at(name), got, TOKEN_IDS)
        })
    }

    pub(crate) fn number(&mut self, name: &'static str) -> Result<Option<f32>, ApiError> {
        self.read(name, "a number")
    }

    /// A field that is an object, to be read field by field.
    pub(crate) fn object(&mut self, name: &'static str) -> Result<Option<Fields<'a>>, ApiError> {
        self.raw(name).map(|raw| Fields::of_value(self.at(name), raw)).transpose()
    }

    /// A field that is a list of objects, to be read field by field.
    pub(crate) fn objects(&mut self, name: &'static str) -> Result<Option<Vec<Fields<'a>>>, ApiError> {
        let Some(items) = self.read::<Vec<&'a RawValue>>(name, "a list of objects")? else { return Ok(None) };
        let path = self.at(name);
        let fields =
            items.into_iter().enumerate().map(|(index, raw)| Fields::of_value(format!("{path}[{index}]"), raw));
        fields.collect::<Result<_, _>>().map(Some)
    }

    /// The error for a field that is something else than allowed.
    pub(crate) fn wrong(&self, name: &str, raw: &RawValue, allowed: impl Into<Cow<'static, str>>) -> ApiError {
        ApiError::invalid(self.at(name), shown(raw), allowed)
    }

    /// Every field must have been asked for by now.
    pub(crate) fn finish(self) -> Result<(), ApiError> {
        let unknown = self.members.iter().find(|(name, _)| !self.asked.iter().any(|asked| asked == name));
        let Some((name, _)) = unknown else { return Ok(()) };
        // Shortened before it is compared: a name may be as long as a body.
        let name = shortened(name);
        let nearest = nearest(&name, self.asked.iter().copied()).map(str::to_owned);
        Err(ApiError::Unknown { param: self.at(&name), nearest })
    }
}

/// The members of an object in their order, values raw.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::new();
                while let Some(Name(name)) = map.next_key::<Name<'de>>()? {
                    members.push((name, map.next_value::<&'de RawValue>()?));
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

/// A member's name, borrowed unless it has escapes. (`Cow` alone always copies.)
#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

/// A value as an error repeats it: lists and objects in a word, the rest shortened.
pub(crate) fn shown(raw: &RawValue) -> String {
    let text = raw.get();
    match text.as_bytes().first() {
        Some(b'[') if text.trim_matches(['[', ']']).trim().is_empty() => "an empty list".to_owned(),
        Some(b'[') => "a list".to_owned(),
        Some(b'{') => "an object".to_owned(),
        Some(b'"') => format!("the text {}", shortened(text)),
        _ => shortened(text),
    }
}

/// A list whose items are not all of a type: the first one that is not.
pub(crate) fn shown_item<T: DeserializeOwned>(raw: &RawValue) -> Option<String> {
    let items: Vec<&RawValue> = serde_json::from_str(raw.get()).ok()?;
    let wrong = |item: &RawValue| serde_json::from_str::<T>(item.get()).is_err();
    let (index, item) = items.iter().enumerate().find(|(_, item)| wrong(item))?;
    Some(format!("a list whose item {index} is {}", shown_item::<TokenId>(item).unwrap_or_else(|| shown(item))))
}

/// A text within a sentence: in quotes, shortened.
pub(crate) fn quoted(text: &str) -> String {
    format!("{:?}", shortened(text))
}

/// Bounds how deep lists and objects nest.
pub(crate) fn check_nesting(json: &[u8]) -> Result<(), ApiError> {
    if nesting(json) <= NESTING_MAX {
        return Ok(());
    }
    Err(ApiError::BadBody { reason: format!("lists and objects nest deeper than {NESTING_MAX}") })
}

/// How deep lists and objects nest, seen before anything recursive reads them.
fn nesting(body: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let (mut is_text, mut is_escaped) = (false, false);
    for &byte in body {
        if is_text {
            match byte {
                _ if is_escaped => is_escaped = false,
                b'\\' => is_escaped = true,
                b'"' => is_text = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => is_text = true,
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error(body: &str) -> String {
        let read = |body: &str| -> Result<(), ApiError> {
            let mut fields = Fields::of_body(body.as_bytes())?;
            fields.count("max_tokens")?;
            fields.flag("stream")?;
            fields.token_ids("tokens")?;
            if let Some(mut inner) = fields.object("stream_options")? {
                inner.flag("include_usage")?;
                inner.finish()?;
            }
            for mut item in fields.objects("messages")?.unwrap_or_default() {
                item.need::<String>("role", "a text")?;
                item.finish()?;
            }
            fields.finish()
        };
        read(body).map_or_else(|error| error.to_string(), |()| String::new())
    }

    #[test]
    fn what_is_known_and_right_is_read() {
        assert_eq!(error(r#"{}"#), "");
        assert_eq!(error(r#" {"max_tokens": 5, "stream": null, "messages": [{"role": "user"}]} "#), "");
    }

    #[test]
    fn a_wrong_value_is_named_shown_and_corrected() {
        for (body, expected) in [
            (r#"{"max_tokens": "5"}"#, "`max_tokens` is the text \"5\"; allowed: an integer, 0 or above"),
            (r#"{"max_tokens": 1.5}"#, "`max_tokens` is 1.5; allowed: an integer, 0 or above"),
            (r#"{"max_tokens": -1}"#, "`max_tokens` is -1; allowed: an integer, 0 or above"),
            (r#"{"stream": 1}"#, "`stream` is 1; allowed: true or false"),
            (r#"{"stream_options": [1]}"#, "`stream_options` is a list; allowed: an object"),
            (
                r#"{"stream_options": {"include_usage": "yes"}}"#,
                "`stream_options.include_usage` is the text \"yes\"; allowed: true or false",
            ),
            (r#"{"messages": {"role": "user"}}"#, "`messages` is an object; allowed: a list of objects"),
            (r#"{"messages": [{"role": "user"}, {}]}"#, "`messages[1].role` is missing; it must be a text"),
            (
                r#"{"tokens": [5, -1]}"#,
                "`tokens` is a list whose item 1 is -1; allowed: a list of token ids, integers from 0 to 4294967295",
            ),
            (r#"{"tokens": 5}"#, "`tokens` is 5; allowed: a list of token ids, integers from 0 to 4294967295"),
            (r#"{"messages": [3]}"#, "`messages[0]` is 3; allowed: an object"),
        ] {
            assert_eq!(error(body), expected, "{body}");
        }
    }

    #[test]
    fn an_unknown_field_is_refused_with_the_nearest_name() {
        for (body, expected) in [
            (r#"{"max_token": 5}"#, "`max_token` is not a parameter of this request; did you mean `max_tokens`?"),
            (
                r#"{"stream_options": {"include_usages": true}}"#,
                "`stream_options.include_usages` is not a parameter of this request; did you mean `include_usage`?",
            ),
            (r#"{"zzz": 5}"#, "`zzz` is not a parameter of this request"),
            (r#"{"zzz": null}"#, "`zzz` is not a parameter of this request"),
            (r#"{"stream": true, "stream": false}"#, "`stream` is given twice"),
        ] {
            assert_eq!(error(body), expected, "{body}");
        }
    }

    #[test]
    fn what_is_no_object_is_no_request() {
        for body in ["", "{", "[1]", "5", "{\"a\":}", "\u{feff}{}", "{} {}", "{\"a\":1,}", "nul"] {
            assert!(error(body).starts_with("the body is not a JSON object"), "{body}: {}", error(body));
        }
        assert!(Fields::of_body(b"{\"a\": \"\xff\"}").is_err(), "not UTF-8");
    }

    #[test]
    fn nesting_is_bounded_before_it_is_followed() {
        let nested = |depth: usize| format!("{{\"a\": {}{}}}", "[".repeat(depth - 1), "]".repeat(depth - 1));
        assert!(error(&nested(64)).contains("`a` is not"));
        assert!(error(&nested(65)).contains("nest deeper than 64"));
        assert!(error(&"[".repeat(1_000_000)).contains("nest deeper than 64"));
        assert!(error(r#"{"a": "[[[[\"[[[[[["}"#).contains("`a` is not"), "brackets in texts are text");
    }

    #[test]
    fn a_long_value_is_shortened_in_the_error() {
        let message = error(&format!(r#"{{"max_tokens": "{}"}}"#, "é".repeat(10_000)));
        assert!(message.len() < 250, "{message}");
    }

    #[test]
    fn names_are_bounded_in_time_and_in_the_error() {
        let many: Vec<String> = (0..200_000).map(|number| format!("\"n{number}\": 1")).collect();
        assert!(error(&format!("{{{}}}", many.join(","))).starts_with("`n0` is not a parameter"));
        let message = error(&format!("{{\"{}\": 1}}", "x".repeat(10_000_000)));
        assert!(message.len() < 200, "{message}");
    }
}
