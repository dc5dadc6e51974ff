//! `tools`, `tool_choice` and `parallel_tool_calls`, as the tools of a chat.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use crate::{
    api::{
        fields::{Fields, quoted},
        parameters::check_parameters,
        shape::{Field, Kind, Most, Shape, needed, optional, with_default},
        tools::{Choice, MODES, Tools, UNSERVED_TOOLS, check_kind, is_function_name, read_mode, read_some},
        twice::check_names,
        unserved::{Unserved, refuse_all},
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
        Kind::Either(&[Kind::Word(&["auto", "none", "required"]), Kind::Object(&CHOICE), Kind::Object(&SOME)]),
        "Whether something is to be called, and what; a demand needs `tools`.",
    ),
];

const TOOL: Shape = Shape {
    name: "ResponseTool",
    about: "A function that the model may call.",
    fields: &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("name", Kind::FunctionName(NAME_MAX), "By which it is called."),
        optional("description", Kind::TEXT, "What it does, for the model."),
        optional("parameters", Kind::Schema, "A JSON schema of its arguments."),
        optional("strict", Kind::Flag, "Whether arguments are held to the schema also where no call is demanded."),
    ]],
    unserved: &[TOOL_UNSERVED],
};
const TOOL_UNSERVED: &[Unserved] = &[
    ("allowed_callers", &["[]", r#"["direct"]"#], "calls by programs"),
    ("async", &["false"], "calls that are not waited for"),
    ("defer_loading", &["false"], "tools that are told later"),
    ("output_schema", &["{}"], "schemas of outputs"),
];
const CHOICE: Shape = Shape::new(
    "ResponseToolChoice",
    "A function that is to be called.",
    &[&[
        needed("type", Kind::Word(&["function"]), "What it is."),
        needed("name", Kind::TEXT, "The name of one of `tools`."),
    ]],
);
const SOME: Shape = Shape::new(
    "ResponseAllowedTools",
    "Only some of the functions may be called. The model is told of all, so that the prompt stays the same.",
    &[&[
        needed("type", Kind::Word(&["allowed_tools"]), "What it is."),
        needed("mode", Kind::Word(MODES), "Whether one of them has to be called."),
        needed("tools", Kind::List(&Kind::Object(&CHOICE), 1, Most::ANY), "Functions of `tools`."),
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
    let (choice, shown_choice) = read_choice(fields, &names)?;
    let reading = if is_parallel { ToolReading::Parallel } else { ToolReading::Single };
    let tools =
        choice.filter(|_| !tools.is_empty()).map(|Choice { demand, only }| (tools, ToolUse { reading, demand, only }));
    Ok(Asked { tools, shown_tools, shown_choice, is_parallel })
}

fn read_tool(tool: &mut Fields<'_>) -> Result<(String, Map<String, Value>), ApiError> {
    let kind: String = tool.need("type", "\"function\"")?;
    if kind != "function" {
        return Err(ApiError::not_served(tool.at("type"), quoted(&kind), "\"function\"", UNSERVED_TOOLS));
    }
    let name: String = tool.need("name", "a text")?;
    if !is_function_name(&name, NAME_MAX) {
        let allowed = "1 to 128 of the characters a-z, A-Z, 0-9, _ and -";
        return Err(ApiError::invalid(tool.at("name"), quoted(&name), allowed));
    }
    refuse_all(tool, TOOL_UNSERVED)?;
    let mut function = Map::from_iter([("name".to_owned(), name.clone().into())]);
    if let Some(description) = tool.text("description")? {
        function.insert("description".to_owned(), description.into());
    }
    if let Some(parameters) = tool.read("parameters", "a JSON schema, an object")? {
        let parameters = Value::Object(parameters);
        if let Some(schema) = tool.raw("parameters") {
            check_names(&tool.at("parameters"), schema.get())?;
        }
        check_parameters(|| tool.at("parameters"), &parameters)?;
        function.insert("parameters".to_owned(), parameters);
    }
    if let Some(strict) = tool.flag("strict")? {
        function.insert("strict".to_owned(), strict.into());
    }
    Ok((name, function))
}

/// What has to be called; `None`: the tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<(Option<Choice>, Value), ApiError> {
    let allowed = "\"auto\", \"none\", \"required\", {\"type\": \"function\", \"name\": NAME} or \
                   {\"type\": \"allowed_tools\", \"mode\": MODE, \"tools\": [...]}";
    let Some(choice) = fields.raw("tool_choice") else { return Ok((Some(Demand::Nothing.into()), "auto".into())) };
    let (choice, shown) = match choice.get() {
        "\"none\"" => return Ok((None, "none".into())),
        "\"auto\"" => return Ok((Some(Demand::Nothing.into()), "auto".into())),
        "\"required\"" => (Demand::Any.into(), "required".into()),
        object if object.starts_with('{') => read_choice_of(fields, names)?,
        _ => return Err(fields.wrong("tool_choice", choice, allowed)),
    };
    if names.is_empty() {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok((Some(choice), shown))
}

fn read_choice_of(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<(Choice, Value), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else { unreachable!("it begins with a brace") };
    let kind: String = choice.need("type", "\"function\" or \"allowed_tools\"")?;
    let shown = |name: &str| json!({ "type": "function", "name": name });
    if kind != "allowed_tools" {
        let name = read_named(choice, &kind, names)?;
        let shown = shown(&name);
        return Ok((Demand::Named(name).into(), shown));
    }
    let demand = read_mode(&mut choice)?;
    let mut only = Vec::new();
    for mut named in read_some(&mut choice)? {
        let kind: String = named.need("type", "\"function\"")?;
        only.push(read_named(named, &kind, names)?);
    }
    choice.finish(&SOME)?;
    let mode = if demand == Demand::Any { "required" } else { "auto" };
    let tools: Vec<Value> = only.iter().map(|name| shown(name)).collect();
    let shown = json!({ "type": "allowed_tools", "mode": mode, "tools": tools });
    Ok((Choice { demand, only: Some(only) }, shown))
}

fn read_named(mut choice: Fields<'_>, kind: &str, names: &HashSet<String>) -> Result<String, ApiError> {
    check_kind(&choice, kind)?;
    let name: String = choice.need("name", "the name of one of `tools`")?;
    if !names.contains(&name) {
        return Err(ApiError::invalid(choice.at("name"), quoted(&name), "the name of one of `tools`"));
    }
    choice.finish(&CHOICE)?;
    Ok(name)
}
