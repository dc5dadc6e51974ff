//! Structural tags, in both forms that clients send: `structures` with `triggers`, and `format`, a tree of parts.

mod described;

use pelton_grammar::{Constraint, Form, Tag, Times};
use serde_json::value::RawValue;

use super::{
    constrained::schema_value,
    fields::{Fields, shown},
    json::why_no_json,
    shape::Shape,
};
use crate::{error::ApiError, generate::Constrained, json_size::check_size};
pub(super) use described::TAG_OR_TEXT;
pub(super) use described::{FORMAT_BY_PARTS, FORMAT_BY_STRUCTURES};

const KINDS: &str = "\"const_string\", \"json_schema\", \"regex\", \"grammar\", \"any_text\", \"sequence\", \"or\", \"tag\", \"triggered_tags\" or \
                     \"tags_with_separator\"";

/// An object, or the text of one, as a field of its own.
pub(super) fn read_text_or_object(param: String, raw: &RawValue) -> Result<Constrained, ApiError> {
    match serde_json::from_str::<String>(raw.get()) {
        Ok(text) => read_text(param, text),
        Err(_) => read_object(param, raw),
    }
}

/// An object as JSON.
pub(crate) fn read_text(param: String, text: String) -> Result<Constrained, ApiError> {
    check_size(&param, &text)?;
    let raw = RawValue::from_string(text)
        .map_err(|error| format!("no JSON ({})", why_no_json(&error)))
        .map_err(|got| ApiError::invalid(&param, got, "a structural tag as JSON"))?;
    read_object(param, &raw)
}

fn read_object(param: String, raw: &RawValue) -> Result<Constrained, ApiError> {
    let mut fields = Fields::of_value(param.clone(), raw)?;
    fields.one_of("type", &["structural_tag"], "\"structural_tag\"")?;
    let (constrained, told) = read(&mut fields, param)?;
    fields.finish(if told == Told::ByParts { &described::TAG_BY_PARTS } else { &described::TAG_BY_STRUCTURES })?;
    Ok(constrained)
}

/// In which of the two forms a structural tag came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Told {
    ByParts,
    ByStructures,
}

/// The fields of a structural tag, but for its `type`. `param` holds them.
pub(super) fn read(fields: &mut Fields<'_>, param: String) -> Result<(Constrained, Told), ApiError> {
    let (form, told) = match fields.object("format")? {
        Some(format) => (part(format, &param)?, Told::ByParts),
        None => {
            let structures = need(fields, "structures", Fields::objects, "a list of tags, or a `format` in its place")?;
            let tags = structures.into_iter().map(|fields| structure(fields, &param)).collect::<Result<_, _>>()?;
            let triggers = need(fields, "triggers", texts, "a list of texts")?;
            (Form::Triggered { triggers, tags, times: Times::default() }, Told::ByStructures)
        }
    };
    Ok((Constrained { constraint: Constraint::Tags(form), param }, told))
}

fn texts(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
    fields.read(name, "a list of texts")
}

fn need<'a, T>(
    fields: &mut Fields<'a>,
    name: &'static str,
    read: impl FnOnce(&mut Fields<'a>, &'static str) -> Result<Option<T>, ApiError>,
    allowed: &'static str,
) -> Result<T, ApiError> {
    read(fields, name)?.ok_or_else(|| ApiError::Missing { param: fields.at(name), allowed })
}

/// A tag of the older form.
fn structure(mut fields: Fields<'_>, root: &str) -> Result<Tag, ApiError> {
    let begin = need(&mut fields, "begin", Fields::text, "a text")?;
    let content = Box::new(schema(&mut fields, "schema", root)?);
    let end = need(&mut fields, "end", Fields::text, "a text")?;
    fields.finish(&described::STRUCTURE)?;
    Ok(Tag { begin, content, end })
}

fn schema(fields: &mut Fields<'_>, name: &'static str, root: &str) -> Result<Form, ApiError> {
    let raw = fields.raw(name);
    let at = fields.at(name);
    let Some(raw) = raw else { return Err(ApiError::Missing { param: at, allowed: "a JSON schema" }) };
    Ok(Form::Schema { schema: schema_value(&at, raw)?, place: place(fields, name, root) })
}

/// Where a field stands, from `root` on.
fn place(fields: &Fields<'_>, name: &'static str, root: &str) -> String {
    let at = fields.at(name);
    at.strip_prefix(root).unwrap_or(&at).to_owned()
}

/// A part of a `format`.
fn part(mut fields: Fields<'_>, root: &str) -> Result<Form, ApiError> {
    let Some(kind) = fields.raw("type") else {
        return Err(ApiError::Missing { param: fields.at("type"), allowed: KINDS });
    };
    let (form, shape): (Form, &Shape) = match kind.get().trim_matches('"') {
        "const_string" => (Form::Exactly(need(&mut fields, "value", Fields::text, "a text")?), &described::EXACTLY),
        "json_schema" => (schema(&mut fields, "json_schema", root)?, &described::SCHEMA),
        "regex" => {
            let regex = need(&mut fields, "pattern", Fields::text, "a regular expression")?;
            (Form::Regex { regex, place: place(&fields, "pattern", root) }, &described::REGEX)
        }
        "grammar" => {
            let text = need(&mut fields, "grammar", Fields::text, "a grammar")?;
            (Form::Grammar { text, place: place(&fields, "grammar", root) }, &described::GRAMMAR)
        }
        "any_text" => {
            refuse_excludes(&mut fields)?;
            (Form::Anything, &described::ANYTHING)
        }
        "sequence" => (Form::Sequence(parts(&mut fields, root)?), &described::SEQUENCE),
        "or" => (Form::Either(parts(&mut fields, root)?), &described::EITHER),
        "tag" => (Form::Tag(tag(&mut fields, root)?), &described::TAG),
        "triggered_tags" => {
            refuse_excludes(&mut fields)?;
            let triggers = need(&mut fields, "triggers", texts, "a list of texts")?;
            let (tags, times) = (tags(&mut fields, root)?, times(&mut fields)?);
            (Form::Triggered { triggers, tags, times }, &described::TRIGGERED)
        }
        "tags_with_separator" => {
            let separator = need(&mut fields, "separator", Fields::text, "a text")?;
            let (tags, times) = (tags(&mut fields, root)?, times(&mut fields)?);
            (Form::Separated { tags, separator, times }, &described::SEPARATED)
        }
        "qwen_xml_parameter" => {
            return Err(ApiError::not_served(fields.at("type"), shown(kind), KINDS, "parameters in Qwen's XML"));
        }
        _ => return Err(fields.wrong("type", kind, KINDS)),
    };
    fields.finish(shape)?;
    Ok(form)
}

/// A list of texts that free text must not hold: beside triggers there is no way to say that yet.
fn refuse_excludes(fields: &mut Fields<'_>) -> Result<(), ApiError> {
    match texts(fields, "excludes")? {
        Some(excluded) if !excluded.is_empty() => {
            Err(ApiError::not_served(fields.at("excludes"), "a list of some", "an empty list", "excluding texts"))
        }
        _ => Ok(()),
    }
}

fn parts(fields: &mut Fields<'_>, root: &str) -> Result<Vec<Form>, ApiError> {
    let elements = need(fields, "elements", Fields::objects, "a list of parts")?;
    elements.into_iter().map(|element| part(element, root)).collect()
}

fn tags(fields: &mut Fields<'_>, root: &str) -> Result<Vec<Tag>, ApiError> {
    let tags = need(fields, "tags", Fields::objects, "a list of tags")?;
    let each = tags.into_iter().map(|mut fields| {
        fields.one_of("type", &["tag"], "\"tag\"")?;
        let tag = tag(&mut fields, root)?;
        fields.finish(&described::PLAIN_TAG)?;
        Ok(tag)
    });
    each.collect()
}

fn tag(fields: &mut Fields<'_>, root: &str) -> Result<Tag, ApiError> {
    let begin = need(fields, "begin", Fields::text, "a text")?;
    let content = need(fields, "content", Fields::object, "a part")?;
    let form = part(content, root)?;
    let end = need(fields, "end", Fields::text, "a text")?;
    Ok(Tag { begin, content: Box::new(form), end })
}

fn times(fields: &mut Fields<'_>) -> Result<Times, ApiError> {
    let at_least_one = fields.flag("at_least_one")?.unwrap_or(false);
    Ok(Times { at_least_one, stop_after_first: fields.flag("stop_after_first")?.unwrap_or(false) })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn read(value: &Value) -> Result<Form, ApiError> {
        match read_text("p".to_owned(), value.to_string())? {
            Constrained { constraint: Constraint::Tags(form), param } => {
                assert_eq!(param, "p");
                Ok(form)
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn both_forms_say_the_same() {
        let older = json!({
            "type": "structural_tag",
            "structures": [{ "begin": "<f>", "schema": { "type": "null" }, "end": "</f>" }],
            "triggers": ["<f"],
        });
        let content = json!({ "type": "json_schema", "json_schema": { "type": "null" } });
        let newer = json!({
            "format": {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [{ "type": "tag", "begin": "<f>", "content": content, "end": "</f>" }],
                "excludes": [],
            },
        });
        let form = |place: &str| {
            let content = Box::new(Form::Schema { schema: json!({ "type": "null" }), place: place.to_owned() });
            let tags = vec![Tag { begin: "<f>".into(), content, end: "</f>".into() }];
            Form::Triggered { triggers: vec!["<f".into()], tags, times: Times::default() }
        };
        assert_eq!(read(&older), Ok(form(".structures[0].schema")));
        assert_eq!(read(&newer), Ok(form(".format.tags[0].content.json_schema")));
    }

    #[test]
    fn every_part_is_read() {
        let tag = json!({ "begin": "(", "content": { "type": "any_text" }, "end": ")" });
        let with = |more: Value| {
            let mut tag = tag.clone();
            tag.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            tag
        };
        let format = json!({ "format": { "type": "sequence", "elements": [
            { "type": "const_string", "value": "a" },
            { "type": "or", "elements": [{ "type": "regex", "pattern": "b" }, { "type": "grammar", "grammar": "start: \"c\"" }] },
            with(json!({ "type": "tag" })),
            { "type": "tags_with_separator", "tags": [tag], "separator": ",", "at_least_one": true, "stop_after_first": true },
        ] } });
        let tag = || Tag { begin: "(".into(), content: Box::new(Form::Anything), end: ")".into() };
        let times = Times { at_least_one: true, stop_after_first: true };
        assert_eq!(
            read(&format),
            Ok(Form::Sequence(vec![
                Form::Exactly("a".into()),
                Form::Either(vec![
                    Form::Regex { regex: "b".into(), place: ".format.elements[1].elements[0].pattern".into() },
                    Form::Grammar {
                        text: "start: \"c\"".into(),
                        place: ".format.elements[1].elements[1].grammar".into(),
                    },
                ]),
                Form::Tag(tag()),
                Form::Separated { tags: vec![tag()], separator: ",".into(), times },
            ]))
        );
    }

    #[test]
    fn what_is_wrong_is_named() {
        let wrong = |value: Value| match read(&value).expect_err("it is wrong") {
            ApiError::Invalid { param, .. }
            | ApiError::Missing { param, .. }
            | ApiError::NotServed { param, .. }
            | ApiError::Unknown { param, .. } => param,
            other => panic!("{other}"),
        };
        let of = |part: Value| wrong(json!({ "format": part }));
        assert_eq!(wrong(json!({})), "p.structures");
        assert_eq!(wrong(json!({ "structures": [] })), "p.triggers");
        assert_eq!(wrong(json!({ "structures": [{ "begin": "a", "end": "b" }] })), "p.structures[0].schema");
        assert_eq!(wrong(json!({ "type": "json_schema" })), "p.type");
        assert_eq!(of(json!({})), "p.format.type");
        assert_eq!(of(json!({ "type": "xml" })), "p.format.type");
        assert_eq!(of(json!({ "type": "qwen_xml_parameter" })), "p.format.type");
        assert_eq!(of(json!({ "type": "any_text", "excludes": ["a"] })), "p.format.excludes");
        assert_eq!(of(json!({ "type": "any_text", "x": 1 })), "p.format.x");
        assert_eq!(of(json!({ "type": "or", "elements": [{ "type": "regex" }] })), "p.format.elements[0].pattern");
    }
}
