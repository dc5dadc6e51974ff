//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat.

use std::collections::HashSet;

use serde_json::{Value, value::RawValue};

use super::{
    fields::{Fields, quoted},
    lists::Items,
    parameters::check_parameters,
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
    twice::check_names,
};
use crate::{
    error::ApiError,
    generate::{Demand, ToolReading, ToolUse},
};

/// Characters of a function's name at most, as for OpenAI.
const NAME_MAX: usize = 64;

/// What nobody serves of tools, as errors say it.
pub(super) const UNSERVED_TOOLS: &str = "tools of other types";

/// What [`read_tools`] reads.
pub(super) const TOOLS: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Object(&TOOL), 0, Most::ANY),
        "Functions that the model may call; no two of the same name.",
    ),
    with_default("parallel_tool_calls", Kind::Flag, "true", "Whether an answer may have more than one call."),
    optional(
        "tool_choice",
        Kind::Either(&[Kind::Word(&["auto", "none", "required"]), Kind::Object(&CHOICE), Kind::Object(&SOME)]),
        "Whether something is to be called, and what; a demand needs `tools`.",
    ),
];

const TOOL: Shape = Shape::new(
    "Tool",
    "A function that the model may call.",
    &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("function", Kind::Object(&FUNCTION), "The function."),
    ]],
);
const FUNCTION: Shape = Shape::new(
    "Function",
    "A function's name and parameters.",
    &[&[
        needed("name", Kind::FunctionName(NAME_MAX), "By which it is called."),
        optional("description", Kind::TEXT, "What it does, for the model."),
        optional("parameters", Kind::Schema, "A JSON schema of its arguments."),
        optional("strict", Kind::Flag, "Whether arguments are held to the schema also where no call is demanded."),
    ]],
);
const CHOICE: Shape = Shape::new(
    "ToolChoice",
    "A function that is to be called.",
    &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("function", Kind::Object(&CHOSEN), "Which function."),
    ]],
);
const CHOSEN: Shape = Shape::new(
    "ChosenFunction",
    "The name of a function.",
    &[&[needed("name", Kind::TEXT, "The name of one of `tools`.")]],
);

const SOME: Shape = Shape::new(
    "AllowedToolsChoice",
    "Only some of the functions may be called. The model is told of all, so that the prompt stays the same.",
    &[&[
        needed("type", Kind::Word(&["allowed_tools"]), "What it is."),
        needed("allowed_tools", Kind::Object(&ALLOWED), "Which functions."),
    ]],
);
const ALLOWED: Shape = Shape::new(
    "AllowedTools",
    "Functions that may be called.",
    &[&[
        needed("mode", Kind::Word(MODES), "Whether one of them has to be called."),
        needed("tools", Kind::List(&Kind::Object(&CHOICE), 1, Most::ANY), "Functions of `tools`."),
    ]],
);

/// How functions of a list may be called.
pub(super) const MODES: &[&str] = &["auto", "required"];

/// The tools that the template is told of, and how calls of them are read. Both or none.
pub(crate) type Tools = Option<(Vec<Value>, ToolUse)>;

/// `None`: no tools are offered to the model.
pub(crate) fn read_tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let tools = read_list(fields)?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let choice = read_choice(fields, &tools)?;
    let reading = if is_parallel { ToolReading::Parallel } else { ToolReading::Single };
    let Some(Choice { demand, only }) = choice.filter(|_| !tools.is_empty()) else { return Ok(None) };
    Ok(Some((tools, ToolUse { reading, demand, only })))
}

/// Clients that collect tools send empty lists, too.
fn read_list(fields: &mut Fields<'_>) -> Result<Vec<Value>, ApiError> {
    let raws: Option<Items<'_>> = fields.read("tools", "a list of tools")?;
    read_each(fields, &fields.at("tools"), &raws.map_or_else(Vec::new, |Items(raws)| raws))
}

/// No two may have the same name: a call could be of either.
fn read_each<'a>(fields: &Fields<'a>, path: &str, raws: &[&'a RawValue]) -> Result<Vec<Value>, ApiError> {
    let mut tools: Vec<Value> = Vec::with_capacity(raws.len());
    let mut names = HashSet::with_capacity(raws.len());
    for (index, raw) in raws.iter().enumerate() {
        let at = format!("{path}[{index}]");
        let tool = read_tool(fields.within(at.clone(), raw)?, at, raw)?;
        let name = tool["function"]["name"].as_str().unwrap_or_default();
        if !names.insert(name.to_owned()) {
            let (param, reason) =
                (format!("{path}[{index}].function.name"), format!("is {}, like another tool's", quoted(name)));
            return Err(ApiError::Conflict { param, reason });
        }
        tools.push(tool);
    }
    Ok(tools)
}

fn read_tool(mut tool: Fields<'_>, path: String, raw: &RawValue) -> Result<Value, ApiError> {
    let kind: String = tool.need("type", "\"function\"")?;
    if kind != "function" {
        return Err(ApiError::not_served(tool.at("type"), quoted(&kind), "\"function\"", UNSERVED_TOOLS));
    }
    let Some(mut function) = tool.object("function")? else {
        return Err(ApiError::Missing { param: tool.at("function"), allowed: "an object with a `name`" });
    };
    let name: String = function.need("name", "a text")?;
    if !is_function_name(&name, NAME_MAX) {
        let allowed = "1 to 64 of the characters a-z, A-Z, 0-9, _ and -";
        return Err(ApiError::invalid(function.at("name"), quoted(&name), allowed));
    }
    function.text("description")?;
    function.object("parameters")?;
    if let Some(schema) = function.raw("parameters") {
        check_names(&function.at("parameters"), schema.get())?;
    }
    function.flag("strict")?;
    function.finish(&FUNCTION)?;
    let may_have_more = tool.passes_unknown();
    tool.finish(&TOOL)?;
    let unreadable = |_| ApiError::invalid(path.as_str(), "no valid Unicode", "JSON whose texts are valid Unicode");
    let mut read: Value = serde_json::from_str(raw.get()).map_err(unreadable)?;
    check_parameters(|| format!("{path}.function.parameters"), &read["function"]["parameters"])?;
    if may_have_more {
        TOOL.keep_known(&mut read);
    }
    Ok(read)
}

/// Whether a function can be called by this name of at most `most` characters.
pub(super) fn is_function_name(name: &str, most: usize) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=most).contains(&name.len()) && name.chars().all(is_part)
}

/// What a client says of calls.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub(super) demand: Demand,
    /// The only functions that may be called; `None`: all.
    pub(super) only: Option<Vec<String>>,
}

impl From<Demand> for Choice {
    fn from(demand: Demand) -> Self {
        Self { demand, only: None }
    }
}

/// What has to be called; `None`: the tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, tools: &[Value]) -> Result<Option<Choice>, ApiError> {
    let allowed = "\"auto\", \"none\", \"required\", {\"type\": \"function\", \"function\": {\"name\": NAME}} or \
                   {\"type\": \"allowed_tools\", \"allowed_tools\": {...}}";
    let Some(choice) = fields.raw("tool_choice") else { return Ok(Some(Demand::Nothing.into())) };
    let choice: Choice = match choice.get() {
        "\"none\"" => return Ok(None),
        // It asks for what happens anyway.
        "\"auto\"" => return Ok(Some(Demand::Nothing.into())),
        "\"required\"" => Demand::Any.into(),
        object if object.starts_with('{') => read_choice_of(fields, tools)?,
        _ => return Err(fields.wrong("tool_choice", choice, allowed)),
    };
    if tools.is_empty() {
        let reason = "is only allowed where tools are offered".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok(Some(choice))
}

fn read_choice_of(fields: &mut Fields<'_>, tools: &[Value]) -> Result<Choice, ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { unreachable!("it begins with a brace") };
    let kind: String = choice.need("type", "\"function\" or \"allowed_tools\"")?;
    match kind.as_str() {
        "function" => Ok(Demand::Named(read_named(choice, tools)?).into()),
        "allowed_tools" => {
            let Some(mut allowed) = choice.object("allowed_tools")? else {
                let allowed = "an object with `mode` and `tools`";
                return Err(ApiError::Missing { param: choice.at("allowed_tools"), allowed });
            };
            let demand = read_mode(&mut allowed)?;
            let mut only = Vec::new();
            for mut named in read_some(&mut allowed)? {
                let kind: String = named.need("type", "\"function\"")?;
                check_kind(&named, &kind)?;
                only.push(read_named(named, tools)?);
            }
            allowed.finish(&ALLOWED)?;
            choice.finish(&SOME)?;
            Ok(Choice { demand, only: Some(only) })
        }
        other => Err(unserved_choice(&choice, other, "\"function\" or \"allowed_tools\"")),
    }
}

/// Whether one of some functions has to be called.
pub(super) fn read_mode(allowed: &mut Fields<'_>) -> Result<Demand, ApiError> {
    let words = "\"auto\" or \"required\"";
    match allowed.one_of("mode", MODES, words)? {
        Some("required") => Ok(Demand::Any),
        Some(_) => Ok(Demand::Nothing),
        None => Err(ApiError::Missing { param: allowed.at("mode"), allowed: words }),
    }
}

/// Some functions; at least one.
pub(super) fn read_some<'a>(allowed: &mut Fields<'a>) -> Result<Vec<Fields<'a>>, ApiError> {
    let words = "a list of at least one function";
    match allowed.objects("tools")? {
        Some(some) if some.is_empty() => Err(ApiError::invalid(allowed.at("tools"), "an empty list", words)),
        Some(some) => Ok(some),
        None => Err(ApiError::Missing { param: allowed.at("tools"), allowed: words }),
    }
}

/// Refuses what is no function.
pub(super) fn check_kind(choice: &Fields<'_>, kind: &str) -> Result<(), ApiError> {
    if kind == "function" { Ok(()) } else { Err(unserved_choice(choice, kind, "\"function\"")) }
}

fn unserved_choice(choice: &Fields<'_>, kind: &str, allowed: &'static str) -> ApiError {
    ApiError::not_served(choice.at("type"), quoted(kind), allowed, "other choices")
}

fn read_named(mut choice: Fields<'_>, tools: &[Value]) -> Result<String, ApiError> {
    let Some(mut function) = choice.object("function")? else {
        return Err(ApiError::Missing { param: choice.at("function"), allowed: "an object with a `name`" });
    };
    let name: String = function.need("name", "a text")?;
    if !tools.iter().any(|tool| tool["function"]["name"] == name.as_str()) {
        return Err(ApiError::invalid(function.at("name"), quoted(&name), "the name of one of `tools`"));
    }
    function.finish(&CHOSEN)?;
    choice.finish(&CHOICE)?;
    Ok(name)
}

/// Where a fault of a tool's schema stands, in protocols that call the schema `name` and have no object around it.
pub(super) fn in_tool(param: &str, name: &str) -> Option<String> {
    let (tool, rest) = param.split_once("].function.parameters")?;
    tool.starts_with("tools[").then(|| format!("{tool}].{name}{rest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}"#;

    fn check(body: &str, expected: Result<Option<ToolReading>, &str>) {
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let read =
            read_tools(&mut fields).map(|tools| tools.map(|(_, used)| used.reading)).map_err(|error| match error {
                ApiError::Invalid { param, .. }
                | ApiError::Missing { param, .. }
                | ApiError::NotServed { param, .. }
                | ApiError::Conflict { param, .. } => param,
                other => panic!("{other}"),
            });
        assert_eq!(read, expected.map_err(str::to_owned), "{body}");
    }

    #[test]
    fn tools_are_offered_unless_the_choice_is_none() {
        check("{}", Ok(None));
        for body in [r#"{"tool_choice": "none"}"#, r#"{"tool_choice": "auto"}"#, r#"{"tools": []}"#] {
            check(body, Ok(None));
        }
        check(&format!(r#"{{"tools": [{TOOL}]}}"#), Ok(Some(ToolReading::Parallel)));
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "auto"}}"#), Ok(Some(ToolReading::Parallel)));
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "none"}}"#), Ok(None));
        check(&format!(r#"{{"tools": [{TOOL}], "parallel_tool_calls": false}}"#), Ok(Some(ToolReading::Single)));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        check(&format!(r#"{{"tools": [{TOOL}, {TOOL}]}}"#), Err("tools[1].function.name"));
        check(r#"{"tool_choice": "required"}"#, Err("tool_choice"));
        let named = |name: &str| {
            format!(r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "{name}"}}}}}}"#)
        };
        check(&named("g"), Err("tool_choice.function.name"));
        let of = |choice: &str| format!(r#"{{"tools": [{TOOL}], "tool_choice": {choice}}}"#);
        check(&of(r#"{"type": "custom"}"#), Err("tool_choice.type"));
        check(&of(r#"{"type": "allowed_tools"}"#), Err("tool_choice.allowed_tools"));
        let some = |mode: &str, tools: &str| {
            of(&format!(r#"{{"type": "allowed_tools", "allowed_tools": {{"mode": "{mode}", "tools": [{tools}]}}}}"#))
        };
        let f = r#"{"type": "function", "function": {"name": "f"}}"#;
        check(&some("none", f), Err("tool_choice.allowed_tools.mode"));
        check(&some("auto", ""), Err("tool_choice.allowed_tools.tools"));
        check(&some("auto", r#"{"type": "custom"}"#), Err("tool_choice.allowed_tools.tools[0].type"));
        let g = &f.replace("\"f\"", "\"g\"");
        check(&some("auto", g), Err("tool_choice.allowed_tools.tools[0].function.name"));
        check(&some("auto", f), Ok(Some(ToolReading::Parallel)));
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "always"}}"#), Err("tool_choice"));
        check(r#"{"tools": [{"type": "web_search"}]}"#, Err("tools[0].type"));
        let string = TOOL.replace("object", "string");
        check(&format!(r#"{{"tools": [{string}]}}"#), Err("tools[0].function.parameters"));
        check(r#"{"tools": [{"type": "function"}]}"#, Err("tools[0].function"));
        check(r#"{"tools": [{"type": "function", "function": {"name": "f g"}}]}"#, Err("tools[0].function.name"));
    }

    #[test]
    fn a_call_can_be_demanded() {
        let demand = |choice: &str| {
            let body = format!(r#"{{"tools": [{TOOL}], "tool_choice": {choice}}}"#);
            let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
            let read = read_tools(&mut fields).expect("right").map(|(_, used)| (used.demand, used.only));
            fields.finish_part().expect("everything was known");
            read
        };
        assert_eq!(demand("\"auto\""), Some((Demand::Nothing, None)));
        assert_eq!(demand("\"required\""), Some((Demand::Any, None)));
        let named = r#"{"type": "function", "function": {"name": "f"}}"#;
        assert_eq!(demand(named), Some((Demand::Named("f".into()), None)));
        assert_eq!(demand("\"none\""), None);
        let some = |mode: &str| {
            demand(&format!(
                r#"{{"type": "allowed_tools", "allowed_tools": {{"mode": "{mode}", "tools": [{named}]}}}}"#
            ))
        };
        let only = || Some(vec!["f".to_owned()]);
        assert_eq!(some("auto"), Some((Demand::Nothing, only())));
        assert_eq!(some("required"), Some((Demand::Any, only())));
    }
}
