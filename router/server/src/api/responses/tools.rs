//! `tools`, `tool_choice` and `parallel_tool_calls`, as the tools of a chat.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::{
    api::{
        fields::{Fields, quoted},
        shape::{Field, Kind, Most, Shape, needed, optional, with_default},
        tools::{Tools, is_function_name},
    },
    error::ApiError,
    generate::{Demand, ToolReading, ToolUse},
};

/// Characters of a function's name at most.
const NAME_MAX: usize = 128;

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
        Kind::Either(&[Kind::Word(&["auto", "none", "required"]), Kind::Object(&CHOICE)]),
        "Whether something is to be called; a demand needs `tools`.",
    ),
];

const TOOL: Shape = Shape::new(
    "ResponseTool",
    "A function that the model may call.",
    &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("name", Kind::FunctionName(NAME_MAX), "By which it is called."),
        optional("description", Kind::TEXT, "What it does, for the model."),
        optional("parameters", Kind::Schema, "A JSON schema of its arguments."),
        optional("strict", Kind::Flag, "Whether arguments are held to the schema also where no call is demanded."),
    ]],
);
const CHOICE: Shape = Shape::new(
    "ResponseToolChoice",
    "A function that is to be called.",
    &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("name", Kind::TEXT, "The name of one of `tools`."),
    ]],
);

/// What was asked for, in the form in which responses repeat it.
pub(super) struct Asked {
    pub(super) tools: Tools,
    pub(super) shown_tools: Vec<Value>,
    pub(super) shown_choice: Value,
    pub(super) is_parallel: bool,
}

pub(super) fn read_tools(fields: &mut Fields<'_>) -> Result<Asked, ApiError> {
    let (mut tools, mut shown_tools, mut names) = (Vec::new(), Vec::new(), HashSet::new());
    for mut tool in fields.objects("tools")?.unwrap_or_default() {
        let (name, function) = read_tool(&mut tool)?;
        if !names.insert(name.clone()) {
            let reason = format!("is {}, like another tool's", quoted(&name));
            return Err(ApiError::Conflict { param: tool.at("name"), reason });
        }
        tool.finish(&TOOL)?;
        let shown = |field: &str| function.get(field).cloned().unwrap_or_default();
        let is_strict = function.get("strict").cloned().unwrap_or(Value::Bool(false));
        shown_tools.push(json!({ "type": "function", "name": name, "description": shown("description"),
                                 "parameters": shown("parameters"), "strict": is_strict }));
        tools.push(json!({ "type": "function", "function": function }));
    }
    let is_parallel = fields.flag("parallel_tool_calls")?.unwrap_or(true);
    let (demand, shown_choice) = read_choice(fields, &names)?;
    let reading = if is_parallel { ToolReading::Parallel } else { ToolReading::Single };
    let tools = demand.filter(|_| !tools.is_empty()).map(|demand| (tools, ToolUse { reading, demand }));
    Ok(Asked { tools, shown_tools, shown_choice, is_parallel })
}

fn read_tool(tool: &mut Fields<'_>) -> Result<(String, Map<String, Value>), ApiError> {
    let kind: String = tool.need("type", "\"function\"")?;
    if kind != "function" {
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
    if let Some(parameters) = tool.read::<Map<String, Value>>("parameters", "a JSON schema, an object")? {
        function.insert("parameters".to_owned(), parameters.into());
    }
    if let Some(strict) = tool.flag("strict")? {
        function.insert("strict".to_owned(), strict.into());
    }
    Ok((name, function))
}

/// What has to be called; `None`: the tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<(Option<Demand>, Value), ApiError> {
    let allowed = "\"auto\", \"none\", \"required\" or {\"type\": \"function\", \"name\": NAME}";
    let Some(choice) = fields.raw("tool_choice") else { return Ok((Some(Demand::Nothing), "auto".into())) };
    let (demand, shown) = match choice.get() {
        "\"none\"" => return Ok((None, "none".into())),
        "\"auto\"" => return Ok((Some(Demand::Nothing), "auto".into())),
        "\"required\"" => (Demand::Any, "required".into()),
        named if named.starts_with('{') => {
            let name = read_named(fields, names)?;
            (Demand::Named(name.clone()), json!({ "type": "function", "name": name }))
        }
        _ => return Err(fields.wrong("tool_choice", choice, allowed)),
    };
    if names.is_empty() {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok((Some(demand), shown))
}

fn read_named(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<String, ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { unreachable!("it begins with a brace") };
    let kind: String = choice.need("type", "\"function\"")?;
    if kind != "function" {
        let what = format!("a choice of type {}", quoted(&kind)).into();
        return Err(ApiError::NotServed { param: choice.at("type"), what });
    }
    let name: String = choice.need("name", "the name of one of `tools`")?;
    if !names.contains(&name) {
        return Err(ApiError::invalid(choice.at("name"), quoted(&name), "the name of one of `tools`"));
    }
    choice.finish(&CHOICE)?;
    Ok(name)
}
