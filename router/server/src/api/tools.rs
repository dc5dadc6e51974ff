//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat.

use std::collections::HashSet;

use serde_json::{Value, value::RawValue};

use super::{
    fields::{Fields, quoted},
    shape::{Field, Kind, Most, Shape, needed, optional, with_default},
};
use crate::{
    error::ApiError,
    generate::{Demand, ToolReading, ToolUse},
};

/// Characters of a function's name at most, as for OpenAI.
const NAME_MAX: usize = 64;

/// What [`read_tools`] reads.
pub(super) const TOOLS: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Object(&TOOL), 1, Most::ANY),
        "Functions that the model may call; no two of the same name.",
    ),
    with_default("parallel_tool_calls", Kind::Flag, "true", "Whether an answer may have more than one call."),
    optional(
        "tool_choice",
        Kind::Either(&[Kind::Word(&["auto", "none", "required"]), Kind::Object(&CHOICE)]),
        "Whether something is to be called. But for `none` it needs `tools`.",
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

/// The tools that the template is told of, and how calls of them are read. Both or none.
pub(crate) type Tools = Option<(Vec<Value>, ToolUse)>;

/// `None`: no tools are offered to the model.
pub(crate) fn read_tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let tools = read_list(fields)?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let demand = read_choice(fields, tools.as_deref())?;
    let reading = if is_parallel { ToolReading::Parallel } else { ToolReading::Single };
    Ok(tools.and_then(|tools| Some((tools, ToolUse { reading, demand: demand? }))))
}

fn read_list(fields: &mut Fields<'_>) -> Result<Option<Vec<Value>>, ApiError> {
    let allowed = "a list of at least one tool";
    let Some(raws) = fields.read::<Vec<&RawValue>>("tools", allowed)? else { return Ok(None) };
    if raws.is_empty() {
        return Err(ApiError::invalid(fields.at("tools"), "an empty list", allowed));
    }
    read_each(&fields.at("tools"), &raws).map(Some)
}

/// No two may have the same name: a call could be of either.
fn read_each(path: &str, raws: &[&RawValue]) -> Result<Vec<Value>, ApiError> {
    let mut tools: Vec<Value> = Vec::with_capacity(raws.len());
    let mut names = HashSet::with_capacity(raws.len());
    for (index, raw) in raws.iter().enumerate() {
        let tool = read_tool(format!("{path}[{index}]"), raw)?;
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

fn read_tool(path: String, raw: &RawValue) -> Result<Value, ApiError> {
    let mut tool = Fields::of_value(path.clone(), raw)?;
    let kind: String = tool.need("type", "\"function\"")?;
    if kind != "function" {
        return Err(ApiError::NotServed {
            param: tool.at("type"),
            what: format!("a tool of type {}", quoted(&kind)).into(),
        });
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
    function.flag("strict")?;
    function.finish(&FUNCTION)?;
    tool.finish(&TOOL)?;
    let unreadable = |error: serde_json::Error| ApiError::invalid(path, error, "JSON whose texts are valid Unicode");
    serde_json::from_str(raw.get()).map_err(unreadable)
}

/// Whether a function can be called by this name of at most `most` characters.
pub(super) fn is_function_name(name: &str, most: usize) -> bool {
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    (1..=most).contains(&name.len()) && name.chars().all(is_part)
}

/// What has to be called; `None`: the tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, tools: Option<&[Value]>) -> Result<Option<Demand>, ApiError> {
    let allowed = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"function\": {\"name\": NAME}}";
    let Some(choice) = fields.raw("tool_choice") else { return Ok(tools.map(|_| Demand::Nothing)) };
    let demand = match choice.get() {
        "\"none\"" => return Ok(None),
        "\"auto\"" => Demand::Nothing,
        "\"required\"" => Demand::Any,
        named if named.starts_with('{') => Demand::Named(read_named(fields)?),
        _ => return Err(fields.wrong("tool_choice", choice, allowed)),
    };
    let Some(tools) = tools else {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    };
    if let Demand::Named(name) = &demand
        && !tools.iter().any(|tool| tool["function"]["name"] == name.as_str())
    {
        let param = fields.at("tool_choice.function.name");
        return Err(ApiError::invalid(param, quoted(name), "the name of one of `tools`"));
    }
    Ok(Some(demand))
}

fn read_named(fields: &mut Fields<'_>) -> Result<String, ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { unreachable!("it begins with a brace") };
    let kind: String = choice.need("type", "\"function\"")?;
    if kind != "function" {
        let what = format!("a choice of type {}", quoted(&kind)).into();
        return Err(ApiError::NotServed { param: choice.at("type"), what });
    }
    let Some(mut function) = choice.object("function")? else {
        return Err(ApiError::Missing { param: choice.at("function"), allowed: "an object with a `name`" });
    };
    let name = function.need("name", "a text")?;
    function.finish(&CHOSEN)?;
    choice.finish(&CHOICE)?;
    Ok(name)
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
        check(r#"{"tool_choice": "none"}"#, Ok(None));
        check(&format!(r#"{{"tools": [{TOOL}]}}"#), Ok(Some(ToolReading::Parallel)));
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "auto"}}"#), Ok(Some(ToolReading::Parallel)));
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "none"}}"#), Ok(None));
        check(&format!(r#"{{"tools": [{TOOL}], "parallel_tool_calls": false}}"#), Ok(Some(ToolReading::Single)));
    }

    #[test]
    fn what_cannot_be_kept_is_refused() {
        check(r#"{"tools": []}"#, Err("tools"));
        check(&format!(r#"{{"tools": [{TOOL}, {TOOL}]}}"#), Err("tools[1].function.name"));
        check(r#"{"tool_choice": "auto"}"#, Err("tool_choice"));
        check(r#"{"tool_choice": "required"}"#, Err("tool_choice"));
        let named = |name: &str| {
            format!(r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "{name}"}}}}}}"#)
        };
        check(&named("g"), Err("tool_choice.function.name"));
        check(
            &format!(r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "allowed_tools"}}}}"#),
            Err("tool_choice.type"),
        );
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "always"}}"#), Err("tool_choice"));
        check(r#"{"tools": [{"type": "web_search"}]}"#, Err("tools[0].type"));
        check(r#"{"tools": [{"type": "function"}]}"#, Err("tools[0].function"));
        check(r#"{"tools": [{"type": "function", "function": {"name": "f g"}}]}"#, Err("tools[0].function.name"));
    }

    #[test]
    fn a_call_can_be_demanded() {
        let demand = |choice: &str| {
            let body = format!(r#"{{"tools": [{TOOL}], "tool_choice": {choice}}}"#);
            let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
            let read = read_tools(&mut fields).expect("right").map(|(_, used)| used.demand);
            fields.finish_part().expect("everything was known");
            read
        };
        assert_eq!(demand("\"auto\""), Some(Demand::Nothing));
        assert_eq!(demand("\"required\""), Some(Demand::Any));
        let named = r#"{"type": "function", "function": {"name": "f"}}"#;
        assert_eq!(demand(named), Some(Demand::Named("f".into())));
        assert_eq!(demand("\"none\""), None);
    }
}
