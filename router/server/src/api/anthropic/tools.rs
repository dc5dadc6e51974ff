//! `tools` and `tool_choice`, as the tools of a chat.

use std::collections::HashSet;

use serde_json::{Map, Value, json};

use super::blocks::{CACHE_CONTROL, Reader};
use crate::{
    api::{
        fields::{Fields, quoted},
        lists::Items,
        parameters::check_parameters,
        shape::{Field, Kind, Most, Shape, needed, optional, with_default},
        tools::{Tools, UNSERVED_TOOLS, is_function_name},
        twice::check_names,
    },
    error::{ApiError, shortened},
    generate::{Demand, ToolReading, ToolUse},
};

/// Characters of a tool's name at most, as for Anthropic.
const NAME_MAX: usize = 128;

/// What [`read_tools`] reads.
pub(super) const TOOLS: &[Field] = &[
    optional(
        "tools",
        Kind::List(&Kind::Object(&TOOL), 0, Most::ANY),
        "Functions that the model may call; no two of the same name.",
    ),
    optional(
        "tool_choice",
        Kind::Either(&[Kind::Object(&CHOICE_FREE), Kind::Object(&CHOICE_NAMED), Kind::Object(&CHOICE_NONE)]),
        "Whether something is to be called; a demand needs `tools`.",
    ),
];

const TOOL: Shape = Shape {
    name: "MessagesTool",
    about: "A function that the model may call.",
    fields: &[&[
        optional("type", Kind::Word(&["custom"]), "What it is."),
        needed("name", Kind::FunctionName(NAME_MAX), "By which it is called."),
        optional("description", Kind::TEXT, "What it does, for the model."),
        needed("input_schema", Kind::Schema, "A JSON schema of its arguments."),
        optional("strict", Kind::Flag, "Whether arguments are held to the schema also where no call is demanded."),
        optional("eager_input_streaming", Kind::Flag, "Arguments are always told as they come."),
        CACHE_CONTROL,
    ]],
    unserved: &[&[
        ("defer_loading", &["false"], "searching for tools"),
        ("input_examples", &["[]"], "examples of a tool's input"),
        ("allowed_callers", &["[\"direct\"]"], "a tool that others call"),
    ]],
};
const CHOICES: &[&str] = &["auto", "any", "tool", "none"];
const SINGLE: Field =
    with_default("disable_parallel_tool_use", Kind::Flag, "false", "Whether there is one call at most.");
const CHOICE_FREE: Shape = Shape::new(
    "MessagesToolChoice",
    "Any function may be called, or has to be.",
    &[&[needed("type", Kind::Word(&["auto", "any"]), "Which it is."), SINGLE]],
);
const CHOICE_NAMED: Shape = Shape::new(
    "MessagesToolChoiceNamed",
    "A function that is to be called.",
    &[&[
        needed("type", Kind::Word(&["tool"]), "Which it is."),
        needed("name", Kind::TEXT, "The name of one of `tools`."),
        SINGLE,
    ]],
);
const CHOICE_NONE: Shape = Shape::new(
    "MessagesToolChoiceNone",
    "Nothing is called.",
    &[&[needed("type", Kind::Word(&["none"]), "Which it is.")]],
);

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
        tool.finish(&TOOL)?;
        tools.push(read);
    }
    let (demand, reading) = read_choice(fields, &names)?;
    Ok(demand.filter(|_| !tools.is_empty()).map(|demand| (tools, ToolUse { reading, demand, only: None })))
}

fn read_tool(tool: &mut Fields<'_>, reader: &mut Reader) -> Result<(String, Value), ApiError> {
    if let Some(kind) = tool.text("type")?.filter(|kind| kind != "custom") {
        return Err(ApiError::not_served(tool.at("type"), quoted(&kind), "\"custom\"", UNSERVED_TOOLS));
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
    let schema = Value::Object(tool.need("input_schema", "a JSON schema, an object")?);
    if let Some(schema) = tool.raw("input_schema") {
        check_names(&tool.at("input_schema"), schema.get())?;
    }
    check_parameters(|| tool.at("input_schema"), &schema)?;
    function.insert("parameters".to_owned(), schema);
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
        return Err(ApiError::not_served(tool.at("defer_loading"), true, "false", "searching for tools"));
    }
    if tool.read("input_examples", "a list")?.is_some_and(|Items(examples)| !examples.is_empty()) {
        let what = "examples of a tool's input";
        return Err(ApiError::not_served(tool.at("input_examples"), "a list of some", "an empty list", what));
    }
    let callers: Option<Vec<String>> = tool.read("allowed_callers", "a list of texts")?;
    if let Some(callers) = callers.filter(|callers| *callers != ["direct"]) {
        let got = shortened(&format!("{callers:?}"));
        return Err(ApiError::not_served(tool.at("allowed_callers"), got, "[\"direct\"]", "a tool that others call"));
    }
    Ok(())
}

/// What has to be called, and how calls are read. `None`: tools are not offered to the model at all.
fn read_choice(fields: &mut Fields<'_>, names: &HashSet<String>) -> Result<(Option<Demand>, ToolReading), ApiError> {
    let Some(mut choice) = fields.object("tool_choice")? else {
        return Ok((Some(Demand::Nothing), ToolReading::Parallel));
    };
    let allowed = "\"auto\", \"any\", \"tool\" or \"none\"";
    let Some(kind) = choice.one_of("type", CHOICES, allowed)? else {
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
    choice.finish(match kind {
        "none" => &CHOICE_NONE,
        "tool" => &CHOICE_NAMED,
        _ => &CHOICE_FREE,
    })?;
    if names.is_empty() && demand.as_ref().is_some_and(|demand| *demand != Demand::Nothing) {
        let reason = "is only allowed together with `tools`".to_owned();
        return Err(ApiError::Conflict { param: fields.at("tool_choice"), reason });
    }
    Ok((demand, reading))
}
