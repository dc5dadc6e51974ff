//! `tools` and `tool_choice`, as the tools of a chat.

use std::collections::HashSet;

use serde_json::{Map, Value, json, value::RawValue};

use super::blocks::Reader;
use crate::{
    api::{
        fields::{Fields, quoted},
        tools::{Tools, is_function_name},
    },
    error::ApiError,
    generate::{Demand, ToolReading, ToolUse},
};

/// Characters of a tool's name at most, as for Anthropic.
const NAME_MAX: usize = 128;

/// `None`: no tools are offered to the model.
pub(super) fn read_tools(fields: &mut Fields<'_>, reader: &mut Reader) -> Result<Tools, ApiError> {
    let mut tools = Vec::new();
    let mut names = HashSet::new();
    for mut tool in fields.objects("tools")?.unwrap_or_default() {
        let (name, read) = read_tool(&mut tool, reader)?;
        if !names.insert(name.clone()) {
            let reason = format!("is {}, like another tool's", quoted(&name));
            return Err(ApiError::Conflict { param: tool.at("name"), reason });
        }
        tool.finish()?;
        tools.push(read);
    }
    let (demand, reading) = read_choice(fields, &names)?;
    Ok(demand.filter(|_| !tools.is_empty()).map(|demand| (tools, ToolUse { reading, demand })))
}

fn read_tool(tool: &mut Fields<'_>, reader: &mut Reader) -> Result<(String, Value), ApiError> {
    if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
        let what = format!("a tool of type {}", quoted(&kind)).into();
        return Err(ApiError::NotServed { param: tool.at("type"), what });
    }
    let name: String = tool.need("name", "a text")?;
    if !is_function_name(&name, NAME_MAX) {
        let allowed = "1 to 128 of the characters a-z, A-Z, 0-9, _ and -";
        return Err(ApiError::invalid(tool.at("name"), quoted(&name), allowed));
    }
    let mut function = Map::from_iter([("name".to_owned(), name.clone().into())]);
    if let Some(description) = tool.text("description")? {
        function.insert("description".to_owned(), description.into());
    }
    let schema: Map<String, Value> = tool.need("input_schema", "a JSON schema, an object")?;
    function.insert("parameters".to_owned(), schema.into());
    if let Some(strict) = tool.flag("strict")? {
        function.insert("strict".to_owned(), strict.into());
    }
    reader.cache_control(tool)?;
    tool.flag("eager_input_streaming")?; // arguments are always told as they come
    refuse_rest(tool)?;
    Ok((name, json!({ "type": "function", "function": function })))
}

fn refuse_rest(tool: &mut Fields<'_>) -> Result<(), ApiError> {
    if tool.flag("defer_loading")? == Some(true) {
        return Err(ApiError::NotServed { param: tool.at("defer_loading"), what: "searching for tools".into() });
    }
    if tool.read::<Vec<&RawValue>>("input_examples", "a list")?.is_some_and(|examples| !examples.is_empty()) {
        return Err(ApiError::NotServed {
            param: tool.at("input_examples"),
            what: "examples of a tool's input".into(),
        });
    }
    let callers: Option<Vec<String>> = tool.read("allowed_callers", "a list of texts")?;
    if callers.is_some_and(|callers| callers != ["direct"]) {
        return Err(ApiError::NotServed { param: tool.at("allowed_callers"), what: "a tool that others call".into() });
    }
    Ok(())
}

/// What has to be called, and how calls are read. `None`: tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<(Option<Demand>, ToolReading), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok((Some(Demand::Nothing), ToolReading::Parallel));
    };
    let allowed = "\"auto\", \"any\", \"tool\" or \"none\"";
    let Some(kind) = choice.one_of("type", &["auto", "any", "tool", "none"], allowed)? else {
        return Err(ApiError::Missing { param: choice.at("type"), allowed });
    };
    let is_single = kind != "none" && choice.flag("disable_parallel_tool_use")?.unwrap_or(false);
    let reading = if is_single { ToolReading::Single } else { ToolReading::Parallel };
    let demand = match kind {
        "none" => None,
        "auto" => Some(Demand::Nothing),
        "any" => Some(Demand::Any),
        _ => {
            let name: String = choice.need("name", "the name of one of `tools`")?;
            if !names.contains(&name) {
                return Err(ApiError::invalid(choice.at("name"), quoted(&name), "the name of one of `tools`"));
            }
            Some(Demand::Named(name))
        }
    };
    choice.finish()?;
    if names.is_empty() && demand.as_ref().is_some_and(|demand| *demand != Demand::Nothing) {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok((demand, reading))
}
