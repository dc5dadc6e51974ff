//! What the text of an answer has to fit: `response_format` (OpenAI's), `structured_outputs` (vLLM's) and its older `guided_*`.
//!
//! One of them at most: two could ask for what no text is. Whether a schema or a grammar is right, its compiler says.

use pelton_grammar::{Constraint, Spaces};
use serde_json::{Value, json, value::RawValue};

use super::{
    fields::{Fields, shown},
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
    tags,
    twice::check_names,
};
use crate::{error::ApiError, generate::Constrained, json_size::check_size};

const ANY_FORMAT: &[Kind] = &[
    Kind::Object(&TEXT_FORMAT),
    Kind::Object(&OBJECT_FORMAT),
    Kind::Object(&SCHEMA_FORMAT),
    Kind::Object(&tags::FORMAT_BY_PARTS),
    Kind::Object(&tags::FORMAT_BY_STRUCTURES),
];

/// The form of chats and completions, and its older names.
pub(super) const FORMATS: &[Field] = &[
    optional("response_format", Kind::Either(ANY_FORMAT), "What the answer's text has to fit."),
    optional("guided_json", SCHEMA_OR_TEXT, "The older name of `structured_outputs.json`."),
    optional("guided_regex", Kind::TEXT, "The older name of `structured_outputs.regex`."),
    optional("guided_choice", TEXTS, "The older name of `structured_outputs.choice`."),
    optional("guided_grammar", Kind::TEXT, "The older name of `structured_outputs.grammar`."),
];

/// The form that all OpenAI-like routes share.
pub(super) const STRUCTURED: &[Field] = &[optional(
    "structured_outputs",
    Kind::Object(&STRUCTURED_OUTPUTS),
    "What the answer's text has to fit: exactly one of its fields. Not together with other fields that say so.",
)];

const TEXTS: Kind = Kind::List(&Kind::TEXT, 1, Most::ANY);
pub(super) const SCHEMA_OR_TEXT: Kind = Kind::Either(&[Kind::Schema, Kind::Flag, Kind::TEXT]);

const TEXT_FORMAT: Shape =
    Shape::new("TextFormat", "Free text.", &[&[needed("type", Kind::Word(&["text"]), "Which form.")]]);
const OBJECT_FORMAT: Shape = Shape::new(
    "JsonObjectFormat",
    "Any JSON object.",
    &[&[needed("type", Kind::Word(&["json_object"]), "Which form.")]],
);
const SCHEMA_FORMAT: Shape = Shape::new(
    "JsonSchemaFormat",
    "JSON that fits a schema.",
    &[&[
        needed("type", Kind::Word(&["json_schema"]), "Which form."),
        needed("json_schema", Kind::Object(&NAMED_SCHEMA), "The schema."),
    ]],
);
const NAMED_SCHEMA: Shape = Shape::new(
    "NamedSchema",
    "A JSON schema with its name.",
    &[&[
        optional("name", Kind::TEXT, "For the client's own books."),
        optional("description", Kind::TEXT, "For the client's own books."),
        optional("strict", Kind::Flag, "Strict or not, the answer fits."),
        needed("schema", SCHEMA_OR_TEXT, "A JSON schema, or the text of one."),
    ]],
);
const STRUCTURED_OUTPUTS: Shape = Shape {
    name: "StructuredOutputs",
    about: "vLLM's way to say what an answer has to fit: exactly one of these.",
    fields: &[&[
        optional("json", SCHEMA_OR_TEXT, "A JSON schema, or the text of one."),
        optional("json_object", Kind::Flag, "Any JSON object."),
        with_default(
            NO_SPACES,
            Kind::Flag,
            "false",
            "With `json` or `json_object`: whether nothing stands between the document's tokens.",
        ),
        optional(
            SPACES,
            Kind::TEXT,
            "With `json` or `json_object`: what may stand there, a regular expression of white space alone.",
        ),
        with_default(
            "disable_additional_properties",
            Kind::Flag,
            "false",
            "The schema says it: `additionalProperties`.",
        ),
        with_default("disable_fallback", Kind::Flag, "false", "Without effect: one compiler does all."),
        optional("regex", Kind::TEXT, "A regular expression that the whole answer matches."),
        optional("choice", TEXTS, "The answer is one of these."),
        optional("grammar", Kind::TEXT, "A grammar, in Lark's form or GBNF."),
        optional(
            "structural_tag",
            Kind::Either(&tags::TAG_OR_TEXT),
            "Free text with parts that have a form; an object, or its text.",
        ),
    ]],
    unserved: &[],
};

/// `None`: the text is free.
pub(super) fn read_constrained(fields: &mut Fields<'_>) -> Result<Option<Constrained>, ApiError> {
    let mut all = Vec::new();
    all.extend(read_response_format(fields)?);
    if let Some(mut outputs) = fields.object("structured_outputs")? {
        read_structured(&mut outputs, &mut all)?;
        outputs.finish(&STRUCTURED_OUTPUTS)?;
        if all.is_empty() {
            let allowed = "one of `json`, `json_object`, `regex`, `choice`, `grammar` and `structural_tag`";
            return Err(ApiError::invalid(fields.at("structured_outputs"), "an object that asks for none", allowed));
        }
    }
    read_guided(fields, &mut all)?;
    if let [one, other, ..] = &all[..] {
        let reason = format!("cannot go together with `{}`: an answer has one form", one.param);
        return Err(ApiError::Conflict { param: other.param.clone(), reason });
    }
    Ok(all.pop())
}

fn read_response_format(fields: &mut Fields<'_>) -> Result<Option<Constrained>, ApiError> {
    let Some(mut format) = fields.object("response_format")? else { return Ok(None) };
    let allowed = "\"text\", \"json_object\", \"json_schema\" or \"structural_tag\"";
    let Some(kind) = format.raw("type") else {
        return Err(ApiError::Missing { param: format.at("type"), allowed });
    };
    let (constrained, shape) = match kind.get() {
        "\"text\"" => (None, &TEXT_FORMAT),
        "\"json_object\"" => {
            (Some(Constrained { constraint: Constraint::JsonObject, param: format.at("type") }), &OBJECT_FORMAT)
        }
        "\"json_schema\"" => (Some(read_json_schema(&mut format)?), &SCHEMA_FORMAT),
        "\"structural_tag\"" => {
            let (constrained, told) = tags::read(&mut format, "response_format".to_owned())?;
            let shape = if told == tags::Told::ByParts { &tags::FORMAT_BY_PARTS } else { &tags::FORMAT_BY_STRUCTURES };
            (Some(constrained), shape)
        }
        _ => return Err(format.wrong("type", kind, allowed)),
    };
    format.finish(shape)?;
    Ok(constrained)
}

/// `strict` or not, the answer fits: a model that may do otherwise helps nobody.
fn read_json_schema(format: &mut Fields<'_>) -> Result<Constrained, ApiError> {
    let Some(mut named) = format.object("json_schema")? else {
        return Err(ApiError::Missing { param: format.at("json_schema"), allowed: "an object with a `schema`" });
    };
    named.text("name")?;
    named.text("description")?;
    named.flag("strict")?;
    let Some(raw) = named.raw("schema") else {
        return Err(ApiError::Missing { param: named.at("schema"), allowed: "a JSON schema" });
    };
    let constrained = schema(named.at("schema"), raw)?;
    named.finish(&NAMED_SCHEMA)?;
    Ok(constrained)
}

fn read_structured(outputs: &mut Fields<'_>, all: &mut Vec<Constrained>) -> Result<(), ApiError> {
    if let Some(raw) = outputs.raw("json") {
        all.push(schema(outputs.at("json"), raw)?);
    }
    if outputs.flag("json_object")? == Some(true) {
        all.push(Constrained { constraint: Constraint::JsonObject, param: outputs.at("json_object") });
    }
    if let Some(regex) = outputs.text("regex")? {
        all.push(Constrained { constraint: Constraint::Regex(regex), param: outputs.at("regex") });
    }
    if let Some(texts) = read_choice(outputs, "choice")? {
        all.push(Constrained { constraint: Constraint::Choice(texts), param: outputs.at("choice") });
    }
    if let Some(grammar) = outputs.text("grammar")? {
        all.push(Constrained { constraint: Constraint::Grammar(grammar), param: outputs.at("grammar") });
    }
    if let Some(raw) = outputs.raw("structural_tag") {
        all.push(tags::read_text_or_object(outputs.at("structural_tag"), raw)?);
    }
    outputs.flag("disable_fallback")?;
    if outputs.flag("disable_additional_properties")? == Some(true) {
        let param = outputs.at("disable_additional_properties");
        let what = "closing a schema's objects (`additionalProperties`: false in the schema does it)";
        return Err(ApiError::not_served(param, true, "false", what));
    }
    read_spaces(outputs, all)
}

/// What stands between the tokens of a document.
fn read_spaces(outputs: &mut Fields<'_>, all: &mut [Constrained]) -> Result<(), ApiError> {
    let is_disabled = outputs.flag(NO_SPACES)?.unwrap_or(false);
    let pattern = outputs.text(SPACES)?;
    set_spaces(all.last_mut(), is_disabled, pattern, |name| outputs.at(name))
}

const NO_SPACES: &str = "disable_any_whitespace";
const SPACES: &str = "whitespace_pattern";

/// The same in any protocol, whose names `at` gives.
pub(crate) fn set_spaces(
    asked: Option<&mut Constrained>,
    is_disabled: bool,
    pattern: Option<String>,
    at: impl Fn(&'static str) -> String,
) -> Result<(), ApiError> {
    let conflict = |param: String, reason: &str| Err(ApiError::Conflict { param, reason: reason.to_owned() });
    let (param, spaces) = match (is_disabled, pattern) {
        (false, None) => return Ok(()),
        (true, Some(_)) => return conflict(at(SPACES), "cannot go together with `disable_any_whitespace`: true"),
        (true, None) => (at(NO_SPACES), Spaces::None),
        (false, Some(pattern)) => (at(SPACES), Spaces::Matching(pattern)),
    };
    if let Err(error) = spaces.check() {
        return Err(ApiError::WrongGrammar { param, reason: error.reason });
    }
    match asked.map(|asked| &mut asked.constraint) {
        Some(asked @ Constraint::JsonObject) => *asked = Constraint::Spaced(json!({ "type": "object" }), spaces),
        Some(asked @ Constraint::JsonSchema(_)) => {
            if let Constraint::JsonSchema(schema) = std::mem::replace(asked, Constraint::JsonObject) {
                *asked = Constraint::Spaced(schema, spaces);
            }
        }
        _ => return conflict(param, "is only allowed together with a JSON schema or `json_object`"),
    }
    Ok(())
}

fn read_choice(fields: &mut Fields<'_>, name: &'static str) -> Result<Option<Vec<String>>, ApiError> {
    let allowed = "a list of at least one text";
    match fields.texts(name, allowed)? {
        Some(texts) if texts.is_empty() => Err(ApiError::invalid(fields.at(name), "an empty list", allowed)),
        texts => Ok(texts),
    }
}

/// The names that clients of older servers send.
fn read_guided(fields: &mut Fields<'_>, all: &mut Vec<Constrained>) -> Result<(), ApiError> {
    if let Some(raw) = fields.raw("guided_json") {
        all.push(schema(fields.at("guided_json"), raw)?);
    }
    if let Some(regex) = fields.text("guided_regex")? {
        all.push(Constrained { constraint: Constraint::Regex(regex), param: fields.at("guided_regex") });
    }
    if let Some(texts) = read_choice(fields, "guided_choice")? {
        all.push(Constrained { constraint: Constraint::Choice(texts), param: fields.at("guided_choice") });
    }
    if let Some(grammar) = fields.text("guided_grammar")? {
        all.push(Constrained { constraint: Constraint::Grammar(grammar), param: fields.at("guided_grammar") });
    }
    Ok(())
}

/// A schema, or the text of one.
fn schema(param: String, raw: &RawValue) -> Result<Constrained, ApiError> {
    Ok(Constrained { constraint: Constraint::JsonSchema(schema_value(&param, raw)?), param })
}

pub(super) fn schema_value(param: &str, raw: &RawValue) -> Result<Value, ApiError> {
    let wrong = |raw: &RawValue| ApiError::invalid(param, shown(raw), "a JSON schema: an object, or the text of one");
    check_size(param, raw.get())?;
    check_names(param, raw.get())?;
    let mut value: Value = serde_json::from_str(raw.get()).map_err(|_| wrong(raw))?;
    if let Value::String(text) = &value {
        check_size(param, text)?;
        check_names(param, text)?;
        value = serde_json::from_str(text).map_err(|_| wrong(raw))?;
    }
    match value {
        Value::Object(_) | Value::Bool(_) => Ok(value),
        _ => Err(wrong(raw)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(body: &Value) -> Result<Option<Constrained>, ApiError> {
        let body = body.to_string();
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let read = read_constrained(&mut fields)?;
        fields.finish_part().expect("everything was known");
        Ok(read)
    }

    fn check(body: &Value, constraint: Constraint, param: &str) {
        let expected = Constrained { constraint, param: param.to_owned() };
        assert_eq!(read(body), Ok(Some(expected)), "{body}");
    }

    fn refused(body: &Value) -> String {
        match read(body).expect_err("it is wrong") {
            ApiError::Invalid { param, .. }
            | ApiError::Missing { param, .. }
            | ApiError::NotServed { param, .. }
            | ApiError::Conflict { param, .. }
            | ApiError::WrongGrammar { param, .. }
            | ApiError::Unknown { param, .. } => param,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn each_way_of_asking_says_the_same() {
        let schema = json!({ "type": "object" });
        let of_schema = || Constraint::JsonSchema(schema.clone());
        let format = json!({ "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } });
        check(&json!({ "response_format": format }), of_schema(), "response_format.json_schema.schema");
        check(&json!({ "response_format": { "type": "json_object" } }), Constraint::JsonObject, "response_format.type");
        check(&json!({ "structured_outputs": { "json": schema } }), of_schema(), "structured_outputs.json");
        check(&json!({ "structured_outputs": { "json": schema.to_string() } }), of_schema(), "structured_outputs.json");
        check(&json!({ "guided_json": schema }), of_schema(), "guided_json");
        let choice = || Constraint::Choice(vec!["a".into(), "b".into()]);
        check(&json!({ "structured_outputs": { "choice": ["a", "b"] } }), choice(), "structured_outputs.choice");
        check(&json!({ "guided_choice": ["a", "b"] }), choice(), "guided_choice");
        check(
            &json!({ "structured_outputs": { "regex": "a" } }),
            Constraint::Regex("a".into()),
            "structured_outputs.regex",
        );
        check(&json!({ "guided_regex": "a" }), Constraint::Regex("a".into()), "guided_regex");
        let grammar = || Constraint::Grammar("start: \"a\"".into());
        check(&json!({ "structured_outputs": { "grammar": "start: \"a\"" } }), grammar(), "structured_outputs.grammar");
        check(&json!({ "guided_grammar": "start: \"a\"" }), grammar(), "guided_grammar");
        let object = json!({ "structured_outputs": { "json_object": true, "regex": null } });
        check(&object, Constraint::JsonObject, "structured_outputs.json_object");
    }

    #[test]
    fn what_stands_between_tokens_is_read_and_goes_with_json_alone() {
        let schema = json!({ "type": "object" });
        let spaced = |spaces| Constraint::Spaced(schema.clone(), spaces);
        let asked = |more: Value| {
            let mut outputs = json!({ "json": schema });
            outputs.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
            json!({ "structured_outputs": outputs })
        };
        let param = "structured_outputs.json";
        check(&asked(json!({ "disable_any_whitespace": true })), spaced(Spaces::None), param);
        check(&asked(json!({ "whitespace_pattern": " ?" })), spaced(Spaces::Matching(" ?".into())), param);
        let plain = || Constraint::JsonSchema(schema.clone());
        let nothing = json!({ "disable_any_whitespace": false, "whitespace_pattern": null, "disable_fallback": true });
        check(&asked(nothing), plain(), param);
        let object = json!({ "structured_outputs": { "json_object": true, "disable_any_whitespace": true } });
        check(&object, spaced(Spaces::None), "structured_outputs.json_object");
        for (more, param) in [
            (json!({ "whitespace_pattern": "[a ]" }), "structured_outputs.whitespace_pattern"),
            (json!({ "whitespace_pattern": "[" }), "structured_outputs.whitespace_pattern"),
            (
                json!({ "whitespace_pattern": " ", "disable_any_whitespace": true }),
                "structured_outputs.whitespace_pattern",
            ),
            (json!({ "disable_additional_properties": true }), "structured_outputs.disable_additional_properties"),
            (json!({ "json": null, "regex": "a", "whitespace_pattern": " " }), "structured_outputs.whitespace_pattern"),
        ] {
            assert_eq!(refused(&asked(more.clone())), param, "{more}");
        }
        let told = read(&asked(json!({ "whitespace_pattern": "x" }))).expect_err("it is no space").to_string();
        let expected =
            "`structured_outputs.whitespace_pattern` cannot be used: it matches more than white space; allowed: ";
        assert!(told.starts_with(expected) && told.matches("allowed").count() == 1, "{told}");
    }

    #[test]
    fn a_name_that_a_schema_has_twice_is_refused_by_its_place() {
        let twice = r#"{"type": "object", "properties": {"a": {}, "b": {"type": "null", "type": "string"}}}"#;
        let text = serde_json::to_string(twice).expect("a text");
        for (body, place) in [
            (format!(r#"{{"structured_outputs": {{"json": {twice}}}}}"#), "structured_outputs.json"),
            (format!(r#"{{"guided_json": {text}}}"#), "guided_json"),
        ] {
            let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
            let error = read_constrained(&mut fields).expect_err("it is wrong").to_string();
            assert_eq!(error, format!("`{place}/properties/b/type` is given twice"));
        }
    }

    #[test]
    fn what_asks_for_nothing_leaves_the_text_free() {
        for body in [
            json!({}),
            json!({ "response_format": { "type": "text" } }),
            json!({ "response_format": null, "guided_json": null }),
        ] {
            assert_eq!(read(&body), Ok(None), "{body}");
        }
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (body, param) in [
            (json!({ "response_format": {} }), "response_format.type"),
            (json!({ "response_format": { "type": "yaml" } }), "response_format.type"),
            (json!({ "response_format": { "type": "structural_tag" } }), "response_format.structures"),
            (json!({ "response_format": { "type": "json_schema" } }), "response_format.json_schema"),
            (
                json!({ "response_format": { "type": "json_schema", "json_schema": {} } }),
                "response_format.json_schema.schema",
            ),
            (json!({ "response_format": { "type": "text", "x": 1 } }), "response_format.x"),
            (json!({ "structured_outputs": {} }), "structured_outputs"),
            (json!({ "structured_outputs": { "foo": 1 } }), "structured_outputs.foo"),
            (json!({ "structured_outputs": { "json": null, "choices": ["a"] } }), "structured_outputs.choices"),
            (json!({ "structured_outputs": { "json": 5 } }), "structured_outputs.json"),
            (json!({ "structured_outputs": { "json": "{" } }), "structured_outputs.json"),
            (json!({ "structured_outputs": { "choice": "a" } }), "structured_outputs.choice"),
            (
                json!({ "structured_outputs": { "structural_tag": "{}" } }),
                "structured_outputs.structural_tag.structures",
            ),
            (json!({ "structured_outputs": { "structural_tag": "{" } }), "structured_outputs.structural_tag"),
            (json!({ "structured_outputs": { "choice": [] } }), "structured_outputs.choice"),
            (json!({ "guided_choice": [] }), "guided_choice"),
            // B:SO2
            (json!({ "structured_outputs": { "regex": "a", "grammar": "b" } }), "structured_outputs.grammar"),
            (json!({ "response_format": { "type": "json_object" }, "guided_regex": "a" }), "guided_regex"),
        ] {
            assert_eq!(refused(&body), param, "{body}");
        }
    }
}
