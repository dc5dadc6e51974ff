//! `text`: the form that an answer has to fit, and how long it shall be.

use pelton_grammar::Constraint;
use serde_json::{Map, Value, json};

use crate::{
    api::{
        fields::Fields,
        shape::{Field, Kind, Shape, needed, optional},
        twice::check_names,
        verbosity::{ABOUT, LENGTHS, VERBOSITY, read_verbosity},
    },
    error::ApiError,
    generate::Constrained,
};

/// What [`read_text`] reads.
pub(super) const TEXT: Field =
    optional("text", Kind::Object(&SHAPE), "What the answer's text has to fit, and how long it shall be.");

const SHAPE: Shape = Shape::new(
    "ResponseText",
    "What the answer's text has to fit, and how long it shall be.",
    &[&[
        optional(
            "format",
            Kind::Either(&[Kind::Object(&FREE), Kind::Object(&ANY_JSON), Kind::Object(&FITTING_JSON)]),
            "Its form.",
        ),
        optional(VERBOSITY, LENGTHS, ABOUT),
    ]],
);
const FORMATS: &[&str] = &["text", "json_object", "json_schema"];
const FREE: Shape =
    Shape::new("ResponseTextFormat", "Free text.", &[&[needed("type", Kind::Word(&["text"]), "Which form.")]]);
const ANY_JSON: Shape = Shape::new(
    "ResponseJsonObjectFormat",
    "Any JSON object.",
    &[&[needed("type", Kind::Word(&["json_object"]), "Which form.")]],
);
const FITTING_JSON: Shape = Shape::new(
    "ResponseJsonSchemaFormat",
    "JSON that fits a schema.",
    &[&[
        needed("type", Kind::Word(&["json_schema"]), "Which form."),
        needed("name", Kind::TEXT, "Repeated by the response."),
        optional("description", Kind::TEXT, "Repeated by the response."),
        needed("schema", Kind::Schema, "The schema."),
        optional("strict", Kind::Flag, "Strict or not, the answer fits."),
    ]],
);
/// The verbosity that responses tell where nobody asked for one.
const USUAL: &str = "medium";

/// The field `text`.
pub(super) struct Text {
    /// The form that it has to fit.
    pub(super) form: Option<Constrained>,
    pub(super) verbosity: Option<&'static str>,
    /// As responses repeat it.
    pub(super) shown: Value,
}

pub(super) fn read_text(fields: &mut Fields<'_>) -> Result<Text, ApiError> {
    let free = || json!({ "type": "text" });
    let Some(mut text) = fields.object("text")? else {
        return Ok(Text { form: None, verbosity: None, shown: json!({ "format": free(), "verbosity": USUAL }) });
    };
    let verbosity = read_verbosity(&mut text)?;
    let (form, shown) = match text.object("format")? {
        None => (None, free()),
        Some(format) => read_format(format)?,
    };
    text.finish(&SHAPE)?;
    Ok(Text { form, verbosity, shown: json!({ "format": shown, "verbosity": verbosity.unwrap_or(USUAL) }) })
}

fn read_format(mut format: Fields<'_>) -> Result<(Option<Constrained>, Value), ApiError> {
    let allowed = "\"text\", \"json_object\" or \"json_schema\"";
    let Some(kind) = format.one_of("type", FORMATS, allowed)? else {
        return Err(ApiError::Missing { param: format.at("type"), allowed });
    };
    let mut shown = json!({ "type": kind });
    let (constrained, shape) = match kind {
        "text" => (None, &FREE),
        "json_object" => {
            (Some(Constrained { constraint: Constraint::JsonObject, param: format.at("type") }), &ANY_JSON)
        }
        _ => {
            shown["name"] = format.need::<String>("name", "a text")?.into();
            shown["description"] = format.text("description")?.into();
            let schema: Map<String, Value> = format.need("schema", "a JSON schema, an object")?;
            if let Some(raw) = format.raw("schema") {
                check_names(&format.at("schema"), raw.get())?;
            }
            shown["schema"] = schema.clone().into();
            format.flag("strict")?; // strict or not, the answer fits
            shown["strict"] = true.into();
            let constraint = Constraint::JsonSchema(schema.into());
            (Some(Constrained { constraint, param: format.at("schema") }), &FITTING_JSON)
        }
    };
    format.finish(shape)?;
    Ok((constrained, shown))
}

/// The only form there is, where two fields may say one.
pub(super) fn one_of(one: Option<Constrained>, other: Option<Constrained>) -> Result<Option<Constrained>, ApiError> {
    if let (Some(one), Some(other)) = (&one, &other) {
        let reason = format!("cannot go together with `{}`: an answer has one form", other.param);
        return Err(ApiError::Conflict { param: one.param.clone(), reason });
    }
    Ok(one.or(other))
}
