//! `tools`, `tool_choice` and `parallel_tool_calls` of a chat.

use std::collections::HashSet;

use serde_json::{Value, value::RawValue};

use super::fields::{Fields, quoted, shown};
use crate::{error::ApiError, generate::ToolReading};

/// Characters of a function's name at most, as for OpenAI.
const NAME_MAX: usize = 64;

/// The tools that the template is told of, and how calls of them are read. Both or none.
pub(crate) type Tools = Option<(Vec<Value>, ToolReading)>;

/// `None`: no tools are offered to the model.
pub(crate) fn read_tools(fields: &mut Fields<'_>) -> Result<Tools, ApiError> {
    let tools = read_list(fields)?;
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let is_offered = read_choice(fields, tools.is_some())?;
    let reading = if is_parallel { ToolReading::Parallel } else { ToolReading::Single };
    Ok(tools.filter(|_| is_offered).map(|tools| (tools, reading)))
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
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if name.is_empty() || name.len() > NAME_MAX || !name.chars().all(is_name) {
        let allowed = "1 to 64 of the characters a-z, A-Z, 0-9, _ and -";
        return Err(ApiError::invalid(function.at("name"), quoted(&name), allowed));
    }
    function.text("description")?;
    function.object("parameters")?;
    if function.flag("strict")? == Some(true) {
        return Err(ApiError::NotServed {
            param: function.at("strict"),
            what: "constraining arguments to their schema".into(),
        });
    }
    function.finish()?;
    tool.finish()?;
    let unreadable = |error: serde_json::Error| ApiError::invalid(path, error, "JSON whose texts are valid Unicode");
    serde_json::from_str(raw.get()).map_err(unreadable)
}

/// Whether the tools are offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, has_tools: bool) -> Result<bool, ApiError> {
    let allowed = "\"auto\" or \"none\"";
    let Some(choice) = fields.raw("tool_choice") else { return Ok(has_tools) };
    let is_offered = match choice.get() {
        "\"none\"" => return Ok(false),
        "\"auto\"" => true,
        "\"required\"" => {
            return Err(ApiError::NotServed {
                param: fields.at("tool_choice"),
                what: "demanding a call (\"required\")".into(),
            });
        }
        named if named.starts_with('{') => {
            let what = format!("demanding a call of one function ({})", shown(choice)).into();
            return Err(ApiError::NotServed { param: fields.at("tool_choice"), what });
        }
        _ => return Err(fields.wrong("tool_choice", choice, allowed)),
    };
    if !has_tools {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok(is_offered)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOOL: &str = r#"{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}"#;

    fn check(body: &str, expected: Result<Option<ToolReading>, &str>) {
        let mut fields = Fields::of_body(body.as_bytes()).expect("an object");
        let read =
            read_tools(&mut fields).map(|tools| tools.map(|(_, reading)| reading)).map_err(|error| match error {
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
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "required"}}"#), Err("tool_choice"));
        check(
            &format!(r#"{{"tools": [{TOOL}], "tool_choice": {{"type": "function", "function": {{"name": "f"}}}}}}"#),
            Err("tool_choice"),
        );
        check(&format!(r#"{{"tools": [{TOOL}], "tool_choice": "always"}}"#), Err("tool_choice"));
        check(r#"{"tools": [{"type": "web_search"}]}"#, Err("tools[0].type"));
        check(r#"{"tools": [{"type": "function"}]}"#, Err("tools[0].function"));
        check(r#"{"tools": [{"type": "function", "function": {"name": "f g"}}]}"#, Err("tools[0].function.name"));
        check(
            r#"{"tools": [{"type": "function", "function": {"name": "f", "strict": true}}]}"#,
            Err("tools[0].function.strict"),
        );
    }
}
