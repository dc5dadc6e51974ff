//! What an answer is constrained to, as a script for the grammar compiler: a client's wish, the reasoning before it, calls in the
//! form of the model's format.
//!
//! With tools, in this order: a call that is demanded wins over a wish for the text (B:SO1); a wish beside tools that may be
//! called is a call or a text that fits; strict tools leave the text free and constrain each call.

use std::sync::Arc;

use pelton_grammar::{
    BesideText, Body, Compiler, Constraint, Grammar, Mark, Part, Reasoning, Script, Spelling, TokenText, Vocabulary,
};
use pelton_text::{Begin, Certain, Checkpoint, Format, Tokenizer};
use serde_json::Value;

use super::{
    ChatStart, PreparedPrompt, Request, ToolReading,
    arguments::parameters,
    calls::{beside, calls},
    serving::Serving,
};
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

/// The grammars of a model's answers. A tokenizer may know tokens that its model cannot draw: there are none of them here.
pub(super) fn compiler(tokenizer: &Tokenizer, checkpoint: &Checkpoint) -> Compiler {
    let (tokenizer, ends) = (tokenizer.clone(), checkpoint.eos_ids.clone());
    let size = checkpoint.vocab_size.unwrap_or(u32::MAX).min(tokenizer.vocab_size());
    Compiler::new(move || {
        let names: Vec<Option<String>> =
            (0..size).map(|id| tokenizer.id_to_token(id).filter(|_| tokenizer.is_special(id))).collect();
        let tokens = (0..).zip(&names).map(|(id, special)| match (special, tokenizer.token_bytes(id)) {
            (Some(name), _) => TokenText::Special(name),
            (None, Some(bytes)) => TokenText::Bytes(bytes),
            (None, None) => TokenText::Nothing,
        });
        if !tokenizer.spells_parts() {
            return Vocabulary::new(tokens, &ends);
        }
        let speller = tokenizer.clone();
        Vocabulary::spelled(tokens, &ends, Box::new(move |text| spelled(&speller, text, size)))
    })
}

/// The tokens of a text, all of which are below `size`.
fn spelled(tokenizer: &Tokenizer, text: &str, size: u32) -> Option<Vec<u32>> {
    tokenizer.spell(text).filter(|ids| ids.iter().all(|&id| id < size))
}

impl Serving {
    /// The grammar of the answers to a prompt; `None`: they are free. `tools`: those that are offered.
    pub(super) async fn grammar(
        self: &Arc<Self>,
        request: &Request,
        tools: &[Value],
        prompt: &PreparedPrompt,
    ) -> Result<Option<Grammar>, ApiError> {
        if request.options.constrained.is_none() && self.certain(request, tools) == Certain::Nothing {
            return Ok(None);
        }
        let (serving, request, tools, chat) = (Arc::clone(self), request.clone(), tools.to_vec(), prompt.chat);
        // To put the script together takes as long as its schemas are.
        self.on_pool(move || serving.compiled(&request, &tools, chat)).await
    }

    /// What of an answer can be the beginning of a call alone, since a grammar draws it.
    pub(super) fn certain(&self, request: &Request, tools: &[Value]) -> Certain {
        let begins_bare =
            || self.format.as_ref().and_then(Format::beside_calls).is_none_or(|b| matches!(b.begin, Begin::Bare(_)));
        match (&request.tools, &request.options.constrained) {
            (None, _) => Certain::Nothing,
            (Some(ToolUse { demand: Demand::Any | Demand::Named(_), .. }), _) => Certain::All,
            // A text that has to fit may begin like a call that no mark begins.
            (Some(_), Some(_)) if begins_bare() => Certain::Nothing,
            (Some(_), Some(_)) => Certain::First,
            (Some(ToolUse { only: Some(_), .. }), None) => Certain::Marked,
            (Some(_), None) if tools.iter().any(is_strict) => Certain::Marked,
            (Some(_), None) => Certain::Nothing,
        }
    }

    fn compiled(
        &self,
        request: &Request,
        tools: &[Value],
        chat: Option<ChatStart>,
    ) -> Result<Option<Grammar>, ApiError> {
        let Some(body) = self.body(request, tools, chat)? else { return Ok(None) };
        let (mut reasoning, mark) = self.before_the_body(chat, request.tools.is_some());
        if let Body::Free(_, BesideText::Messages { .. }) = body {
            reasoning = None; // it is among the messages
        }
        let script = Script { reasoning, mark, body };
        // Where words are ruled out, the usual spelling of a text may need them.
        let spelling = if request.options.words.is_empty() { Spelling::Usual } else { Spelling::Any };
        let compiled = self.grammars.compile(&script, spelling);
        compiled.map(Some).map_err(|error| named(&self.grammars, request, tools, &script, error))
    }

    fn body(&self, request: &Request, tools: &[Value], chat: Option<ChatStart>) -> Result<Option<Body>, ApiError> {
        let text = request.options.constrained.as_ref().map(|wish| &wish.constraint);
        let Some(ToolUse { reading, demand, only }) = &request.tools else { return Ok(text.cloned().map(Body::Text)) };
        let may_be_called = |tool: &&Value| {
            only.as_ref().is_none_or(|only| only.iter().any(|name| tool["function"]["name"] == name.as_str()))
        };
        let tools: Vec<&Value> = tools.iter().filter(may_be_called).collect();
        let is_strict = tools.iter().copied().any(is_strict);
        let format = self.format.as_ref().expect("tools were refused without one");
        let reading = if let Demand::Named(_) = demand { ToolReading::Single } else { *reading };
        let calls = |tools: &[&Value]| {
            calls(format, &self.tokenizer, tools, reading).map_err(|why| {
                let choice = || "tool_choice".to_owned();
                let free = "\"auto\" or \"none\"";
                let (param, got, allowed, what) = match demand {
                    Demand::Nothing if text.is_some() => {
                        let what = "constraining an answer beside tools";
                        (form_of(request), "asked for beside `tools`", "one of the two", what)
                    }
                    Demand::Nothing if only.is_some() => (choice(), "some tools", free, "allowing some tools alone"),
                    Demand::Nothing => {
                        let what = "constraining arguments (`strict`)";
                        ("tools".to_owned(), "a list with `strict` tools", "tools without it", what)
                    }
                    Demand::Any | Demand::Named(_) => (choice(), "a demand", free, "demanding a call"),
                };
                let what = format!("{what} in the model's format ({}): {why}", format.name());
                ApiError::not_served(param, got, allowed, what)
            })
        };
        Ok(Some(match demand {
            Demand::Any => Body::Calls(calls(&tools)?),
            Demand::Named(name) => {
                let tool = tools.into_iter().find(|tool| tool["function"]["name"] == name.as_str());
                Body::Calls(calls(tool.as_slice())?)
            }
            Demand::Nothing => match text {
                Some(text) => Body::Either(calls(&tools)?, text.clone()),
                None if is_strict || only.is_some() => {
                    let calls = calls(&tools)?;
                    let is_open = chat.is_some_and(|chat| chat.in_reasoning || chat.is_continued);
                    Body::Free(calls, beside(format, &self.tokenizer, is_open).expect("it has calls"))
                }
                None => return Ok(None),
            },
        }))
    }

    /// What a chat's answer may have before what is asked for: thoughts, and the mark of content.
    fn before_the_body(&self, chat: Option<ChatStart>, has_tools: bool) -> (Option<Reasoning>, Mark) {
        let (Some(chat), Some(format)) = (chat, &self.format) else { return (None, Mark::new()) };
        let mark = |text| mark(&self.tokenizer, format, text);
        let reasoning = format.reasoning_marks().filter(|_| !chat.is_sober).map(|(open, close)| Reasoning {
            is_open: chat.in_reasoning,
            open: mark(open),
            close: mark(close),
            behind: format.mark_behind_reasoning().map(mark).unwrap_or_default(),
            // Where calls are read, none of them may begin unseen by the grammar.
            never: if has_tools { format.marks_behind_thoughts() } else { Vec::new() }
                .into_iter()
                .map(str::to_owned)
                .collect(),
        });
        (reasoning, format.content_mark().map(mark).unwrap_or_default())
    }
}

/// The parameter that asks for a grammar.
pub(super) fn form_of(request: &Request) -> String {
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
    let alone = tools.iter().enumerate().flat_map(|(at, tool)| {
        // As the client wrote it, then as it is used.
        let written = tool["function"].get("parameters").filter(|schema| !schema.is_null()).cloned();
        let place = format!("tools[{at}].function.parameters");
        let schemas = written.into_iter().chain([parameters(tool)]);
        schemas.map(move |schema| (place.clone(), Constraint::JsonSchema(schema)))
    });
    let alone = alone.chain(wish.map(|wish| (wish.param.clone(), wish.constraint.clone())));
    for (param, constraint) in alone {
        if let Err(error) = compiler.compile(&Script::of(constraint), Spelling::Usual) {
            return ApiError::WrongGrammar { param: param + &error.place, reason: error.reason };
        }
    }
    ApiError::WrongGrammar { param: form_of(request), reason: error.reason }
}

pub(super) fn is_strict(tool: &Value) -> bool {
    tool["function"]["strict"] == true
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
