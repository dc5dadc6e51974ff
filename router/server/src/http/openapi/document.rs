//! The description as a document of OpenAPI 3.1.

use schemars::{Schema, SchemaGenerator, generate::SchemaSettings};
use serde_json::{Map, Value, json};

use super::{
    operation::{Answer, Asks, EXPLAIN, Operation, PEERS_PRIORITY, PRIORITY, TIMEOUT},
    operations::OPERATIONS,
};
use crate::{
    api::{
        anthropic::ErrorBody,
        shape::{Bounds, Schemas},
    },
    error::Envelope,
    http::{anthropic::is_anthropic, around::is_open},
};

const ABOUT: &str = "\
Pelton answers OpenAI's and Anthropic's protocols, and vLLM's fields beside them. What is described here is what is parsed: a field that \
is not described is refused with the nearest name that is (unless the server runs with `--unknown-fields warn`), and a field that is described and not served yet is refused by its name, \
unless its value asks for nothing. `null` says that a field is left out.\n\n\
Every error has one form, `Error`; under `/v1/messages` Anthropic's. Every answer carries `x-request-id`. Bounds are those of this server \
and its model.";

/// What of the server the description tells.
#[derive(Debug, Clone, Copy)]
pub(super) struct Facts {
    pub(super) bounds: Bounds,
    /// Whether clients need a key.
    pub(super) has_keys: bool,
}

/// The whole document.
pub(super) fn document(facts: &Facts) -> Value {
    let mut writer = Writer::new(facts.bounds);
    let mut paths = Map::new();
    for operation in OPERATIONS {
        // OpenAPI has no parameter that spans slashes.
        let path = paths.entry(operation.path.replace("{*", "{")).or_insert_with(|| json!({}));
        path[operation.method] = writer.operation(operation, facts.has_keys);
    }
    let mut document = json!({
        "openapi": "3.1.0",
        "info": { "title": "Pelton", "version": env!("CARGO_PKG_VERSION"), "description": ABOUT },
        "servers": [{ "url": "/" }],
        "paths": paths,
        "components": writer.components(),
    });
    if facts.has_keys {
        document["components"]["securitySchemes"] = json!({
            "bearer": { "type": "http", "scheme": "bearer" },
            "x-api-key": { "type": "apiKey", "in": "header", "name": "x-api-key" },
        });
        document["security"] = json!([{ "bearer": [] }, { "x-api-key": [] }]);
    }
    document
}

/// Collects the components that operations refer to.
struct Writer {
    requests: Schemas,
    answers: SchemaGenerator,
}

impl Writer {
    fn new(bounds: Bounds) -> Self {
        let settings = SchemaSettings::draft2020_12().for_serialize().with(|settings| {
            settings.definitions_path = "/components/schemas".into();
            settings.meta_schema = None;
        });
        Self { requests: Schemas::new(bounds), answers: settings.into_generator() }
    }

    fn operation(&mut self, operation: &Operation, has_keys: bool) -> Value {
        let mut described = json!({
            "operationId": operation.id,
            "tags": [operation.tag],
            "summary": operation.about,
            "parameters": parameters(operation),
        });
        if let Asks::Body(shapes, examples) = operation.asks {
            let example = |(name, body): &(&str, &str)| {
                let value: Value = serde_json::from_str(body).expect("examples are JSON");
                (key(name), json!({ "summary": name, "value": value }))
            };
            let examples: Map<String, Value> = examples.iter().map(example).collect();
            let content = json!({ "schema": self.requests.of_any(shapes), "examples": examples });
            described["requestBody"] = json!({ "required": true, "content": { "application/json": content } });
        }
        if let Asks::Form(parts) = operation.asks {
            let part = |&(name, schema, about): &(&str, &str, &str)| {
                let mut schema: Value = serde_json::from_str(schema).expect("schemas are JSON");
                schema["description"] = about.into();
                (name.to_owned(), schema)
            };
            let properties: Map<String, Value> = parts.iter().map(part).collect();
            let needed: Vec<&str> = parts.iter().take(2).map(|(name, ..)| *name).collect();
            let schema = json!({
                "type": "object", "properties": properties, "required": needed, "additionalProperties": false
            });
            described["requestBody"] =
                json!({ "required": true, "content": { "multipart/form-data": { "schema": schema } } });
        }
        let mut responses = Map::from_iter([("200".to_owned(), self.answer(operation))]);
        let is_guarded = has_keys && !is_open(operation.path);
        if has_keys && !is_guarded {
            described["security"] = json!([]);
        }
        let unauthorized = is_guarded.then_some(401);
        responses
            .extend(operation.errors.iter().copied().chain(unauthorized).map(|status| self.error(operation, status)));
        described["responses"] = responses.into();
        described
    }

    fn answer(&mut self, operation: &Operation) -> Value {
        let schema_of = |answers: &mut SchemaGenerator, of: fn(&mut SchemaGenerator) -> Schema| of(answers).to_value();
        let content = match operation.answer {
            Answer::Nothing => return json!({ "description": "Well." }),
            Answer::Text(media) => json!({ media: { "schema": { "type": "string" } } }),
            Answer::Json(of) => json!({ "application/json": { "schema": schema_of(&mut self.answers, of) } }),
            Answer::JsonOrEvents(of, event, about) => {
                let of_event = schema_of(&mut self.answers, event);
                json!({
                    "application/json": { "schema": schema_of(&mut self.answers, of) },
                    "text/event-stream": { "schema": { "description": about }, "x-event-schema": of_event },
                })
            }
        };
        json!({ "description": "The answer.", "content": content })
    }

    fn error(&mut self, operation: &Operation, status: u16) -> (String, Value) {
        let is_health = operation.errors == [503] && matches!(operation.answer, Answer::Json(_));
        let (status, schema) = match &operation.answer {
            // Probes tell what they tell of a server that is well, and why it is not.
            Answer::Json(of) if is_health => (status, of(&mut self.answers)),
            _ if is_anthropic(operation.path) => {
                let status = if status == 503 { ErrorBody::OVERLOADED } else { status };
                (status, self.answers.subschema_for::<ErrorBody<'static>>())
            }
            _ => (status, self.answers.subschema_for::<Envelope<'static>>()),
        };
        let mut response =
            json!({ "description": meaning(status), "content": { "application/json": { "schema": schema } } });
        if matches!(status, 429 | 503 | ErrorBody::OVERLOADED) {
            response["headers"] = json!({
                "retry-after": { "description": "When to try again, in seconds.", "schema": { "type": "integer" } }
            });
        }
        (status.to_string(), response)
    }

    fn components(mut self) -> Value {
        let mut schemas = self.requests.components;
        for (name, schema) in self.answers.take_definitions(true) {
            let before = schemas.insert(name.clone(), schema);
            assert!(before.is_none(), "{name} names a request's object and an answer's");
        }
        json!({ "schemas": schemas })
    }
}

/// An example's name, as components may be called.
fn key(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "-")
}

fn parameters(operation: &Operation) -> Vec<Value> {
    let mut parameters = Vec::new();
    if let Asks::Id(about) | Asks::IdAndQuery(about, _) = operation.asks {
        parameters.push(json!({
            "name": "id", "in": "path", "required": true, "description": about, "schema": { "type": "string", "minLength": 1 }
        }));
    }
    if let Asks::IdAndQuery(_, query) | Asks::Query(query) = operation.asks {
        parameters.extend(query.iter().map(|(name, schema, about)| {
            let schema: Value = serde_json::from_str(schema).expect("schemas are JSON");
            json!({ "name": name, "in": "query", "description": about, "schema": schema })
        }));
    }
    parameters.extend(operation.headers.iter().map(|name| {
        let (about, schema) = match *name {
            PRIORITY => (
                "Smaller first; the body's `priority` goes before it.",
                json!({ "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX }),
            ),
            PEERS_PRIORITY => (
                "The same by the peer's name; `x-request-priority` goes before it.",
                json!({ "type": "integer", "minimum": i32::MIN, "maximum": i32::MAX }),
            ),
            TIMEOUT => (
                "Milliseconds from the request's arrival to its last token.",
                json!({ "type": "integer", "minimum": 1, "maximum": u64::MAX }),
            ),
            EXPLAIN => {
                ("1: the answer tells what its request went through.", json!({ "type": "string", "enum": ["0", "1"] }))
            }
            other => unreachable!("no operation has the header {other}"),
        };
        json!({ "name": name, "in": "header", "description": about, "schema": schema })
    }));
    parameters
}

fn meaning(status: u16) -> &'static str {
    match status {
        400 => "The request is wrong: `param` names the place.",
        401 => "No key, or a wrong one.",
        404 => "There is no such model, or nothing is kept under this id.",
        413 => "The body is too large.",
        415 => "The body is declared as something else than plain JSON.",
        429 => "Too much waits already.",
        500 => "The server is at fault; its log says more.",
        503 | ErrorBody::OVERLOADED => "The model loads, or the server ends.",
        504 => "The request's time was over.",
        other => unreachable!("no operation has the status {other}"),
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::collections::BTreeSet;

    use super::*;

    pub(in super::super) const FACTS: Facts = Facts {
        bounds: Bounds {
            answers: 128,
            logprobs: 20,
            stop_texts: 4,
            context: Some(2048),
            vocabulary: Some(1000),
            passes_unknown: false,
        },
        has_keys: false,
    };

    fn references<'a>(value: &'a Value, found: &mut BTreeSet<&'a str>) {
        match value {
            Value::Object(members) => {
                found.extend(members.get("$ref").and_then(Value::as_str));
                members.values().for_each(|member| references(member, found));
            }
            Value::Array(items) => items.iter().for_each(|item| references(item, found)),
            _ => {}
        }
    }

    #[test]
    fn every_component_is_referred_to_and_there() {
        let document = document(&FACTS);
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let schemas = document["components"]["schemas"].as_object().expect("an object");
        let names: BTreeSet<String> = schemas.keys().map(|name| format!("#/components/schemas/{name}")).collect();
        assert_eq!(found.into_iter().map(str::to_owned).collect::<BTreeSet<_>>(), names);
    }

    #[test]
    fn operations_have_names_of_their_own() {
        let ids: BTreeSet<&str> = OPERATIONS.iter().map(|operation| operation.id).collect();
        assert_eq!(ids.len(), OPERATIONS.len());
    }

    #[test]
    fn keys_are_told_where_there_are_some() {
        let open = document(&FACTS);
        assert!(open.get("security").is_none() && open["components"].get("securitySchemes").is_none());
        let guarded = document(&Facts { has_keys: true, ..FACTS });
        assert_eq!(guarded["security"].as_array().map(Vec::len), Some(2));
        assert!(guarded["paths"]["/v1/models"]["get"]["responses"].get("401").is_some());
        assert_eq!(guarded["paths"]["/health"]["get"]["security"], json!([]));
        assert!(guarded["paths"]["/health"]["get"]["responses"].get("401").is_none());
    }

    #[test]
    fn bounds_are_the_servers() {
        let document = document(&FACTS);
        let of = |field: &str| &document["components"]["schemas"]["ChatRequest"]["properties"][field];
        assert_eq!(of("max_tokens")["maximum"], 2048);
        assert_eq!(of("n")["maximum"], 128);
        assert_eq!(of("temperature")["maximum"], 2.0);
        assert_eq!(of("stop_token_ids")["items"]["maximum"], 999);
        let ids = "^0*([0-9]|[1-9][0-9]{1}|[1-8][0-9]{2}|9[0-8][0-9]{1}|99[0-8][0-9]{0}|999)$";
        assert_eq!(of("logit_bias")["propertyNames"]["pattern"], ids);
        let noted = of("metadata");
        assert_eq!((&noted["maxProperties"], &noted["propertyNames"]["maxLength"]), (&json!(16), &json!(64)));
        assert_eq!(noted["additionalProperties"]["maxLength"], 512);
    }
}
