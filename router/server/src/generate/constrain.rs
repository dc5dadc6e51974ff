//! What an answer is constrained to, as a script for the grammar compiler: a client's wish, the reasoning before it, calls in the
//! form of the model's format.
//!
//! With tools, in this order: a call that is demanded wins over a wish for the text (B:SO1); a wish beside tools that may be
//! called is a call or a text that fits; strict tools leave the text free and constrain each call.

use std::sync::Arc;

use pelton_grammar::{
    Body, Call, Calls, Compiler, Constraint, Grammar, Mark, Part, Reasoning, Script, TokenText, Vocabulary,
};
use pelton_text::{CallForm, Format, Tokenizer};
use serde_json::{Value, json};

use super::{PreparedPrompt, Request, ToolReading, serving::Serving};
use crate::error::ApiError;

/// What a text has to fit, and what the request calls it.
#[derive(Debug, Clone, PartialEq)]
pub struct Constrained {
    /// What is asked for.
    pub constraint: Constraint,
    /// The parameter that says so.
    pub param: String,
}

/// How tools are used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolUse {
    /// How calls are read.
    pub reading: ToolReading,
    /// Whether there has to be one.
    pub demand: Demand,
    /// The only tools that may be called, of those that the model is told of; `None`: all.
    pub only: Option<Vec<String>>,
}

/// What the model has to call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Demand {
    /// What it likes.
    Nothing,
    /// At least one tool.
    Any,
    /// This one.
    Named(String),
}

/// The grammars of a model's answers.
pub(super) fn compiler(tokenizer: &Tokenizer, ends: &[u32]) -> Compiler {
    let (tokenizer, ends) = (tokenizer.clone(), ends.to_vec());
    Compiler::new(move || {
        let names: Vec<Option<String>> = (0..tokenizer.vocab_size())
            .map(|id| tokenizer.id_to_token(id).filter(|_| tokenizer.is_special(id)))
            .collect();
        let tokens = (0..).zip(&names).map(|(id, special)| match (special, tokenizer.token_bytes(id)) {
            (Some(name), _) => TokenText::Special(name),
            (None, Some(bytes)) => TokenText::Bytes(bytes),
            (None, None) => TokenText::Nothing,
        });
        Vocabulary::new(tokens, &ends)
    })
}

impl Serving {
    /// The grammar of the answers to a prompt; `None`: they are free. `tools`: those that are offered.
    pub(super) async fn grammar(
        &self,
        request: &Request,
        tools: &[Value],
        prompt: &PreparedPrompt,
    ) -> Result<Option<Grammar>, ApiError> {
        let Some(body) = self.body(request, tools)? else { return Ok(None) };
        let script = Script { reasoning: self.reasoning(request, prompt)?, body };
        let (compiler, request, tools) = (Arc::clone(&self.grammars), request.clone(), tools.to_vec());
        let work =
            move || compiler.compile(&script).map_err(|error| named(&compiler, &request, &tools, &script, error));
        self.on_pool(work).await.map(Some)
    }

    fn body(&self, request: &Request, tools: &[Value]) -> Result<Option<Body>, ApiError> {
        let text = request.options.constrained.as_ref().map(|wish| &wish.constraint);
        let Some(ToolUse { reading, demand, only }) = &request.tools else { return Ok(text.cloned().map(Body::Text)) };
        let may_be_called = |tool: &&Value| {
            only.as_ref().is_none_or(|only| only.iter().any(|name| tool["function"]["name"] == name.as_str()))
        };
        let tools: Vec<&Value> = tools.iter().filter(may_be_called).collect();
        let is_strict = tools.iter().copied().any(is_strict);
        let calls = |tools: &[&Value]| {
            let format = self.format.as_ref().expect("tools were refused without one");
            calls(format, &self.tokenizer, tools, *reading).ok_or_else(|| {
                let (param, what) = match demand {
                    Demand::Nothing if text.is_some() => (param_of(request), "constraining an answer beside tools"),
                    Demand::Nothing if only.is_some() => ("tool_choice".to_owned(), "allowing some tools alone"),
                    Demand::Nothing => ("tools".to_owned(), "constraining arguments (`strict`)"),
                    Demand::Any | Demand::Named(_) => ("tool_choice".to_owned(), "demanding a call"),
                };
                ApiError::NotServed { param, what: format!("{what} in the model's format ({})", format.name()).into() }
            })
        };
        Ok(Some(match demand {
            Demand::Any => Body::Calls(calls(&tools)?),
            Demand::Named(name) => {
                let tool = tools.into_iter().find(|tool| tool["function"]["name"] == name.as_str());
                Body::Calls(Calls { are_many: false, ..calls(tool.as_slice())? })
            }
            Demand::Nothing => match text {
                Some(text) => Body::Either(calls(&tools)?, text.clone()),
                None if is_strict || only.is_some() => Body::Free(calls(&tools)?),
                None => return Ok(None),
            },
        }))
    }

    fn reasoning(&self, request: &Request, prompt: &PreparedPrompt) -> Result<Option<Reasoning>, ApiError> {
        let (Some(chat), Some(format)) = (prompt.chat, &self.format) else { return Ok(None) };
        if format.is_on_channels() {
            let what = format!("constraining answers in the model's format ({})", format.name()).into();
            return Err(ApiError::NotServed { param: param_of(request), what });
        }
        let mark = |text| mark(&self.tokenizer, format, text);
        let marks = format.reasoning_marks();
        Ok(marks.map(|(open, close)| Reasoning { is_open: chat.in_reasoning, open: mark(open), close: mark(close) }))
    }
}

/// The parameter that asks for a grammar.
fn param_of(request: &Request) -> String {
    match (&request.tools, &request.options.constrained) {
        (Some(ToolUse { demand: Demand::Any | Demand::Named(_), .. }), _) => "tool_choice".to_owned(),
        (Some(ToolUse { only: Some(_), .. }), None) => "tool_choice".to_owned(),
        (_, Some(wish)) => wish.param.clone(),
        _ => "tools".to_owned(),
    }
}

/// An error of the compiler by the request's names: of several schemas, the one that is wrong alone.
fn named(
    compiler: &Compiler,
    request: &Request,
    tools: &[Value],
    script: &Script,
    error: pelton_grammar::GrammarError,
) -> ApiError {
    let wish = request.options.constrained.as_ref();
    if let Body::Text(_) = script.body {
        let param = wish.map_or_else(String::new, |wish| wish.param.clone());
        return ApiError::WrongGrammar { param: param + &error.place, reason: error.reason };
    }
    let alone = tools
        .iter()
        .enumerate()
        .map(|(at, tool)| (format!("tools[{at}].function.parameters"), Constraint::JsonSchema(parameters(tool))));
    let alone = alone.chain(wish.map(|wish| (wish.param.clone(), wish.constraint.clone())));
    for (param, constraint) in alone {
        if let Err(error) = compiler.compile(&Script::of(constraint)) {
            return ApiError::WrongGrammar { param: param + &error.place, reason: error.reason };
        }
    }
    ApiError::WrongGrammar { param: param_of(request), reason: error.reason }
}

fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
}

/// The schema of a tool's arguments.
fn parameters(tool: &Value) -> Value {
    tool["function"]
        .get("parameters")
        .filter(|schema| !schema.is_null())
        .cloned()
        .unwrap_or_else(|| json!({"type": "object"}))
}

/// Calls of these tools. `None`: the format's are not JSON.
fn calls(format: &Format, tokenizer: &Tokenizer, tools: &[&Value], reading: ToolReading) -> Option<Calls> {
    let shape = format.call_shape()?;
    let mark = |text: Option<&str>| text.map(|text| mark(tokenizer, format, text));
    let text = |text: String| Part::Text(text);
    let is_list = shape.open.is_some() && shape.each_open.is_none();
    let is_parallel = reading == ToolReading::Parallel;
    let tools = match shape.form {
        CallForm::Object { name: key, arguments } => {
            let object = |tool: &Value, place: &str| {
                let place = format!("{place}/properties/{arguments}");
                json!({
                    "type": "object",
                    "properties": {
                        key: { "const": tool["function"]["name"] },
                        arguments: moved(&parameters(tool), &place),
                    },
                    "required": [key, arguments],
                    "additionalProperties": false,
                })
            };
            let plain = |schema| Call { head: Mark::new(), schema, tail: Mark::new() };
            if is_list {
                let each = tools.iter().enumerate().map(|(at, tool)| object(tool, &format!("#/items/anyOf/{at}")));
                let items: Vec<Value> = each.collect();
                let mut schema = json!({ "type": "array", "minItems": 1, "items": { "anyOf": items } });
                if !is_parallel {
                    schema["maxItems"] = json!(1);
                }
                vec![plain(schema)]
            } else {
                tools.iter().map(|tool| plain(object(tool, "#"))).collect()
            }
        }
        CallForm::Named { prefix, name_end, tail } => {
            let call = |tool: &&Value| {
                let name = tool["function"]["name"].as_str().unwrap_or_default();
                let mut head = vec![text(format!("{prefix}{name}"))];
                head.extend(mark(name_end).unwrap_or_default());
                Call { head, schema: parameters(tool), tail: mark(tail).unwrap_or_default() }
            };
            tools.iter().map(call).collect()
        }
    };
    Some(Calls {
        open: mark(shape.open),
        close: mark(shape.close),
        each_open: mark(shape.each_open),
        each_close: mark(shape.each_close),
        tools,
        are_many: is_parallel && shape.each_open.is_some(),
    })
}

/// A schema that stands at `place` within another one: what it refers to of itself is there, too.
fn moved(schema: &Value, place: &str) -> Value {
    match schema {
        Value::Object(members) => Value::Object(
            members
                .iter()
                .map(|(name, value)| match value {
                    Value::String(to) if name == "$ref" && to.starts_with('#') => {
                        (name.clone(), Value::String(format!("{place}{}", &to[1..])))
                    }
                    value => (name.clone(), moved(value, place)),
                })
                .collect(),
        ),
        Value::Array(items) => Value::Array(items.iter().map(|item| moved(item, place)).collect()),
        other => other.clone(),
    }
}

/// A mark as it is drawn: where the tokenizer has a control token for a part of it, that is the only way.
pub(super) fn mark(tokenizer: &Tokenizer, format: &Format, text: &str) -> Mark {
    let mut parts = Mark::new();
    let mut rest = text;
    while !rest.is_empty() {
        let special = format.special_ids().iter().filter_map(|&id| {
            let name = tokenizer.id_to_token(id)?;
            Some((rest.find(&name)?, std::cmp::Reverse(name.len()), id))
        });
        let Some((at, length, id)) = special.min() else {
            parts.push(Part::Text(rest.to_owned()));
            break;
        };
        if at > 0 {
            parts.push(Part::Text(rest[..at].to_owned()));
        }
        parts.push(Part::Token(id));
        rest = &rest[at + length.0..];
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::testing::tokenizer;

    fn tool(name: &str, parameters: Value) -> Value {
        json!({ "type": "function", "function": { "name": name, "parameters": parameters } })
    }

    #[test]
    fn references_of_a_schema_follow_it_to_its_place() {
        let schema =
            json!({ "$defs": { "a": { "type": "null" } }, "items": [{ "$ref": "#/$defs/a" }, { "$ref": "other#/x" }] });
        let expected = json!({ "$defs": { "a": { "type": "null" } }, "items": [{ "$ref": "#/p/$defs/a" }, { "$ref": "other#/x" }] });
        assert_eq!(moved(&schema, "#/p"), expected);
    }

    #[test]
    fn calls_take_the_form_of_the_format() {
        let tokenizer = tokenizer();
        let tools = [&tool("f", json!({ "type": "object" })), &tool("g", json!({ "type": "object" }))];
        let of =
            |name: &str, reading| calls(&Format::named(name, &tokenizer).expect("known"), &tokenizer, &tools, reading);
        let hermes = of("hermes", ToolReading::Parallel).expect("JSON");
        assert_eq!(hermes.each_open, Some(vec![Part::Text("<tool_call>".into())]));
        assert_eq!((hermes.tools.len(), hermes.are_many, &hermes.open), (2, true, &None));
        assert_eq!(hermes.tools[0].schema["properties"]["name"], json!({ "const": "f" }));
        let mistral = of("mistral", ToolReading::Single).expect("JSON");
        assert_eq!((mistral.tools.len(), mistral.are_many), (1, false));
        assert_eq!(
            (&mistral.tools[0].schema["type"], &mistral.tools[0].schema["maxItems"]),
            (&json!("array"), &json!(1))
        );
        let deepseek = of("deepseek-v3.1", ToolReading::Parallel).expect("JSON");
        assert_eq!(deepseek.tools[1].head[0], Part::Text("g".into()));
        assert_eq!(deepseek.tools[1].schema, json!({ "type": "object" }));
        assert!(of("qwen3-coder", ToolReading::Parallel).is_none());
    }
}
