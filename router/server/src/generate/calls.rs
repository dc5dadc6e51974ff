//! Calls of tools, as a grammar has to know them: in the form of the model's format, with the arguments that the tools' schemas allow.
//!
//! Where arguments stand one by one, as in XML, a parameter that is a text is free up to the mark behind it; others are JSON.

use std::collections::HashSet;

use pelton_grammar::{Arguments, BesideText, Call, Calls, Field, FieldValue, Fields, Mark, Never, Part, embedded};
use pelton_text::{Begin, CallForm, Format, ParameterMarks, Tokenizer, Written};
use serde_json::{Map, Value, json};

use super::{
    ToolReading,
    arguments::{alone, parameters, refers},
    constrain::{is_strict, mark},
};

/// What a schema may say of a text that a mark ends, and a grammar that reads up to this mark cannot keep.
const OF_TEXTS: [&str; 12] = [
    "pattern",
    "minLength",
    "maxLength",
    "format",
    "not",
    "if",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "$dynamicRef",
    "$recursiveRef",
];
/// What a schema may say of an object, and a grammar that writes its members one by one cannot keep.
const OF_ALL: [&str; 7] =
    ["minProperties", "maxProperties", "dependentRequired", "dependentSchemas", "dependencies", "propertyNames", "not"];
/// What says nothing of a value.
const NOTES: [&str; 8] =
    ["title", "description", "default", "examples", "$comment", "deprecated", "readOnly", "writeOnly"];

/// Parameters of a tool whose arguments stand one by one, at most.
const PARAMETERS_MAX: usize = 256;
/// Bytes of what a tool's parameters refer to, at most, where each has its own copy.
const BYTES_MAX: usize = 1 << 20;

/// Writes calls of one format.
struct Writer<'a> {
    format: &'a Format,
    tokenizer: &'a Tokenizer,
}

/// Calls of these tools. The error says what of them cannot be written.
pub(super) fn calls(
    format: &Format,
    tokenizer: &Tokenizer,
    tools: &[&Value],
    reading: ToolReading,
) -> Result<Calls, String> {
    let shape = format.call_shape().ok_or("it has no calls")?;
    let writer = Writer { format, tokenizer };
    let is_bare = shape.open.is_none() && shape.each_open.is_none();
    let is_list = shape.open.is_some() && shape.each_open.is_none();
    let is_parallel = reading == ToolReading::Parallel;
    let each = |call: &dyn Fn(&Value) -> Result<Call, String>| tools.iter().map(|tool| call(tool)).collect();
    let written: Result<Vec<Call>, String> = match shape.form {
        CallForm::Object { name, arguments } => {
            let keys = [name, arguments];
            let mut schemas = objects(tools, keys, is_list, is_parallel);
            if is_bare {
                schemas.extend(objects(tools, keys, true, is_parallel)); // such models write either
            }
            Ok(schemas.into_iter().map(plain).collect())
        }
        CallForm::Named { prefix, name_end, tail, is_numbered } => each(&|tool| {
            let mut head = writer.mark(prefix);
            head.push(Part::Text(name_of(tool).to_owned()));
            if is_numbered {
                head.extend([Part::Text(":".to_owned()), Part::Number]);
            }
            head.extend(name_end.map(|end| writer.mark(end)).unwrap_or_default());
            let tail = tail.map(|tail| writer.mark(tail)).unwrap_or_default();
            Ok(Call { head, arguments: Arguments::Json(parameters(tool)), tail })
        }),
        CallForm::Parameters(marks) => each(&|tool| writer.between_marks(tool, marks)),
        CallForm::Pythonic => each(&|tool| writer.pythonic(tool)),
        CallForm::Quoted { prefix, quote } => each(&|tool| writer.quoted(tool, prefix, quote)),
    };
    let is_python = shape.form == CallForm::Pythonic;
    // Of objects a schema says how many there are, and a call on a channel is the last message.
    let repeats = shape.each_open.is_some() || is_python || (is_list && matches!(shape.form, CallForm::Parameters(_)));
    let brackets = ["[", "]"].map(|bracket| (is_bare && is_python).then_some(bracket));
    let [open, close] = [shape.open.or(brackets[0]), shape.close.or(brackets[1])];
    Ok(Calls {
        open: open.map(|text| writer.mark(text)),
        close: close.map(|text| writer.mark(text)),
        each_open: shape.each_open.map(|text| writer.mark(text)),
        each_close: shape.each_close.map(|text| writer.mark(text)),
        between: brackets[0].map(|_| vec![Part::Text(", ".to_owned())]).unwrap_or_default(),
        tools: written?,
        are_many: is_parallel && repeats,
    })
}

/// What is free beside calls. `is_open`: the prompt ends within a message. `None`: the format has none.
pub(super) fn beside(format: &Format, tokenizer: &Tokenizer, is_open: bool) -> Option<BesideText> {
    let texts = |texts: &[&str]| texts.iter().map(|&text| text.to_owned()).collect();
    let beside = format.beside_calls()?;
    let never = Never { marks: texts(&beside.marks), before: texts(beside.behind) };
    let mark = |text: &str| mark(tokenizer, format, text);
    Some(match beside.begin {
        Begin::Marked => BesideText::Marked { never },
        Begin::Bare(with) => BesideText::Begun { with: texts(&with), never },
        Begin::Messages { headers, between } => BesideText::Messages {
            is_open,
            headers: headers.iter().map(|header| mark(header)).collect(),
            between: mark(between),
            never,
        },
    })
}

fn plain(schema: Value) -> Call {
    Call { head: Mark::new(), arguments: Arguments::Json(schema), tail: Mark::new() }
}

/// Schemas of calls as objects with a name and arguments; of several tools in one, if calls are a list.
fn objects(tools: &[&Value], [name, arguments]: [&str; 2], is_list: bool, is_parallel: bool) -> Vec<Value> {
    let object = |tool: &&Value| {
        json!({
            "type": "object",
            "properties": {
                name: { "const": tool["function"]["name"] },
                arguments: embedded(parameters(tool)),
            },
            "required": [name, arguments],
            "additionalProperties": false,
        })
    };
    let items: Vec<Value> = tools.iter().map(object).collect();
    if !is_list {
        return items;
    }
    let mut schema = json!({ "type": "array", "minItems": 1, "items": { "anyOf": items } });
    if !is_parallel {
        schema["maxItems"] = json!(1);
    }
    vec![schema]
}

impl Writer<'_> {
    fn mark(&self, text: &str) -> Mark {
        mark(self.tokenizer, self.format, text)
    }

    fn between_marks(&self, tool: &Value, marks: ParameterMarks<'_>) -> Result<Call, String> {
        let mut head = self.mark(marks.name_open);
        head.push(Part::Text(name_of(tool).to_owned()));
        match marks.name_end {
            "\n" => head.push(Part::Gap), // the next mark ends it, too
            end => head.extend(self.mark(end)),
        }
        let field = |(key, value, is_required): (&str, FieldValue, bool)| {
            let is_json = matches!(value, FieldValue::Json(_));
            let key_end = if is_json { marks.key_end_json } else { marks.key_end_text };
            let mut open = self.mark(marks.key_open);
            open.push(Part::Text(key.to_owned()));
            open.extend(self.mark(key_end));
            if !marks.value_open.is_empty() {
                open.push(Part::Gap);
                open.extend(self.mark(marks.value_open));
            }
            let mut close = self.mark(marks.value_end);
            if marks.lines && !is_json {
                open.push(Part::Text("\n".to_owned()));
                if let Some(Part::Text(text)) = close.first_mut() {
                    text.insert(0, '\n'); // where the mark is a token, the line's end may be left out
                }
            }
            Field { open, value, close, is_required }
        };
        let schema = parameters(tool);
        let fields = self.fields(tool, &schema, marks.value_end, |_| true)?;
        let is_read = |key: &str| key.trim() == key && !key.is_empty() && !key.contains(char::is_control);
        let ends = [marks.key_end, marks.key_end_text, marks.key_end_json];
        if let Some((key, ..)) =
            fields.iter().find(|(key, ..)| !is_read(key) || ends.iter().any(|end| key.contains(end)))
        {
            return Err(format!("the name of the parameter {key:?} of `{}` cannot be written", name_of(tool)));
        }
        let fields = Fields { fields: fields.into_iter().map(field).collect(), separator: None };
        Ok(Call { head, arguments: Arguments::Fields(fields), tail: self.mark(marks.end) })
    }

    fn pythonic(&self, tool: &Value) -> Result<Call, String> {
        let schema = parameters(tool);
        let parameters = properties(tool, &schema)?;
        let is_word = |key: &str| key.chars().all(|c| c == '_' || c.is_alphanumeric()) && !key.is_empty();
        if let Some(Parameter { key, .. }) = parameters.iter().find(|parameter| !is_word(parameter.key)) {
            return Err(format!("the name of the parameter `{key}` of `{}` is none in Python", name_of(tool)));
        }
        let field = |Parameter { key, alone, is_required, .. }: Parameter<'_>| Field {
            open: vec![Part::Text(format!("{key}="))],
            value: FieldValue::Json(alone),
            close: Mark::new(),
            is_required,
        };
        let fields = parameters.into_iter().map(field).collect();
        Ok(Call {
            head: vec![Part::Text(format!("{}(", name_of(tool)))],
            arguments: Arguments::Fields(Fields { fields, separator: Some(", ".to_owned()) }),
            tail: vec![Part::Text(")".to_owned())],
        })
    }

    fn quoted(&self, tool: &Value, prefix: &str, quote: &str) -> Result<Call, String> {
        let field = |(key, value, is_required): (&str, FieldValue, bool)| {
            let is_json = matches!(value, FieldValue::Json(_));
            let quote = if is_json { Mark::new() } else { self.mark(quote) };
            let mut open = vec![Part::Text(format!("{key}:"))];
            open.extend(quote.iter().cloned());
            Field { open, value, close: quote, is_required }
        };
        let schema = parameters(tool);
        let fields = self.fields(tool, &schema, quote, |written| written == Written::Scalar)?;
        let is_word = |key: &str| key.chars().all(|c| c.is_alphanumeric() || "_-.$".contains(c)) && !key.is_empty();
        if let Some((key, ..)) = fields.iter().find(|(key, ..)| !is_word(key)) {
            return Err(format!("the name of the parameter {key:?} of `{}` cannot be written", name_of(tool)));
        }
        let fields = Fields { fields: fields.into_iter().map(field).collect(), separator: Some(",".to_owned()) };
        let mut head = self.mark(prefix);
        head.push(Part::Text(format!("{}{{", name_of(tool))));
        Ok(Call { head, arguments: Arguments::Fields(fields), tail: vec![Part::Text("}".to_owned())] })
    }

    /// A tool's parameters where texts are plain up to a mark. `takes_json`: which others can be written as JSON.
    fn fields<'a>(
        &self,
        tool: &Value,
        schema: &'a Value,
        end: &str,
        takes_json: impl Fn(Written) -> bool,
    ) -> Result<Vec<(&'a str, FieldValue, bool)>, String> {
        let mut fields = Vec::new();
        for Parameter { key, schema, alone, is_required } in properties(tool, schema)? {
            let fault = |why: &str| format!("the parameter `{key}` of `{}` {why}", name_of(tool));
            let written = Written::of(schema);
            let value = match (written, texts(schema)) {
                (Written::Text, Some(texts)) if texts.iter().any(|text| text.contains(end)) => {
                    return Err(fault("takes a text with the mark that ends texts in it"));
                }
                (Written::Text, texts) => {
                    if let Some(keyword) = says_more(schema).filter(|_| is_strict(tool)) {
                        return Err(fault(&format!("is a plain text, of which `{keyword}` cannot be kept")));
                    }
                    texts.map_or(FieldValue::Text, FieldValue::Texts)
                }
                (written, _) if takes_json(written) => FieldValue::Json(alone),
                _ => return Err(fault("may hold texts within other values")),
            };
            fields.push((key, value, is_required));
        }
        Ok(fields)
    }
}

fn name_of(tool: &Value) -> &str {
    tool["function"]["name"].as_str().unwrap_or_default()
}

/// A parameter of a tool.
struct Parameter<'a> {
    key: &'a str,
    schema: &'a Value,
    /// The same with all that it refers to.
    alone: Value,
    is_required: bool,
}

/// The parameters of a tool, if they are all that its schema speaks of.
fn properties<'a>(tool: &Value, schema: &'a Value) -> Result<Vec<Parameter<'a>>, String> {
    if *schema == Value::Bool(false) {
        return Err(format!("no arguments fit the parameters of `{}`", name_of(tool)));
    }
    let elsewhere =
        ["$ref", "allOf", "anyOf", "oneOf", "if", "patternProperties", "$dynamicRef", "$recursiveRef", "const", "enum"];
    let written = tool["function"].get("parameters").unwrap_or(schema);
    if let Some(keyword) = elsewhere.iter().find(|keyword| written.get(**keyword).is_some()) {
        let name = name_of(tool);
        return Err(format!("the parameters of `{name}` are not all listed as `properties`, but by `{keyword}`"));
    }
    let listed = schema.get("properties").and_then(Value::as_object);
    let count = listed.map_or(0, Map::len);
    if count > PARAMETERS_MAX {
        return Err(format!("`{}` has {count} parameters; allowed: {PARAMETERS_MAX}", name_of(tool)));
    }
    let required = schema.get("required").and_then(Value::as_array).into_iter().flatten();
    let required: HashSet<&str> = required.filter_map(Value::as_str).collect();
    let is_listed = |key: &&str| listed.is_some_and(|listed| listed.contains_key(*key));
    if let Some(key) = required.iter().find(|key| !is_listed(key)) {
        return Err(format!("`{}` requires the parameter `{key}`, which is not among its `properties`", name_of(tool)));
    }
    let bound = |keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    let too_few = bound("minProperties").is_some_and(|least| least > required.len() as f64);
    let too_many = bound("maxProperties").is_some_and(|most| most < count as f64);
    let unkept = OF_ALL.iter().find(|keyword| match **keyword {
        "minProperties" => too_few,
        "maxProperties" => too_many,
        keyword => schema.get(keyword).is_some(),
    });
    if let Some(keyword) = unkept.filter(|_| is_strict(tool)) {
        return Err(format!("`{keyword}` of the parameters of `{}` cannot be kept", name_of(tool)));
    }
    let (mut all, mut copied) = (Vec::with_capacity(count), 0);
    for (key, part) in listed.into_iter().flatten() {
        let alone = alone(schema, key, part);
        if refers(part) {
            copied += alone.to_string().len();
        }
        if copied > BYTES_MAX {
            let name = name_of(tool);
            return Err(format!(
                "the parameters of `{name}` with what each refers to take more than {BYTES_MAX} bytes"
            ));
        }
        all.push(Parameter { key, schema: part, alone, is_required: required.contains(key.as_str()) });
    }
    Ok(all)
}

/// What a text's schema says of it beside which texts it may be, if that cannot be kept.
fn says_more(schema: &Value) -> Option<&'static str> {
    let is_bare = |part: &Value| {
        let members = part.as_object();
        members.is_none_or(|members| members.keys().all(|name| name == "type" || NOTES.contains(&name.as_str())))
    };
    OF_TEXTS.into_iter().find(|keyword| match schema.get(keyword) {
        Some(Value::Array(parts)) => !parts.iter().all(is_bare),
        value => value.is_some(),
    })
}

/// The texts that a parameter takes, if it says which.
fn texts(schema: &Value) -> Option<Vec<String>> {
    let values = match (schema.get("const"), schema.get("enum")) {
        (Some(only), None) => vec![only],
        (only, Some(values)) => {
            values.as_array()?.iter().filter(|value| only.is_none_or(|only| only == *value)).collect()
        }
        (None, None) => return None,
    };
    Some(values.into_iter().filter_map(Value::as_str).map(str::to_owned).collect())
}

#[cfg(test)]
mod tests;
