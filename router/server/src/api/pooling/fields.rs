//! The fields that requests for vectors, classes and scores share.

use serde_json::value::RawValue;

use super::INPUTS_MAX;
use crate::{
    api::{
        completion::{PROMPTS, parse_prompts},
        fields::{Fields, shown},
        lists::Items,
        models::{MODEL, read_model},
        sampling::{PRIORITY, REQUEST_ID, SALT, read_request_id},
        shape::{Field, Kind, Most, Shape, needed, optional, with_default},
        unserved::{self, Unserved, refuse_all},
    },
    error::ApiError,
    generate::{PoolContent, PoolInput, PoolRequest, Prompt, Truncation, options::check_salt, told},
};

const INPUT: &str = "a text, a list of texts, a list of token ids, or a list of lists of token ids; none of them empty";

/// What [`Common::read`] reads.
pub(super) const COMMON: &[Field] = &[
    MODEL,
    REQUEST_ID,
    optional(
        "use_activation",
        Kind::Flag,
        "Whether embeddings are normalised and classes activated; left out: as the model wants.",
    ),
    optional("normalize", Kind::Flag, "The older name of `use_activation`."),
    with_default("add_special_tokens", Kind::Flag, "true", "Whether the tokenizer adds its special tokens to texts."),
    optional(
        "truncate_prompt_tokens",
        Kind::Either(&[Kind::Integer(-1, Most::Is(-1)), Kind::Integer(1, Most::U32)]),
        "Only so many first tokens of each input count; -1: as many as the model takes.",
    ),
    optional("priority", PRIORITY, "Smaller first."),
    optional("cache_salt", SALT, "Requests with different salts share no cached blocks."),
    optional("user", Kind::TEXT, "Who of the key's users asks: each gets a share of what the key gets."),
];

/// What vLLM's clients may send beside, wherever a model gives something else than text.
pub(super) const PEERS: &[Unserved] = &[
    ("chat_template_kwargs", &["{}"], "vectors of chats"),
    ("truncation_side", &["\"right\""], "keeping the last tokens of an input"),
];

/// What [`read_input`] reads.
pub(super) const INPUTS: Field = needed("input", PROMPTS, "One input or up to 2048, each as text or as token ids.");

const TEXT_OBJECT: Shape =
    Shape::new("TextObject", "A text in an object.", &[&[needed("text", Kind::TEXT, "The text.")]]);
const TEXT_ITEM: Kind = Kind::Either(&[Kind::TEXT, Kind::Object(&TEXT_OBJECT)]);
/// What [`read_texts`] reads.
pub(super) const TEXTS: Kind =
    Kind::Either(&[Kind::TEXT, Kind::Object(&TEXT_OBJECT), Kind::List(&TEXT_ITEM, 1, Most::Is(INPUTS_MAX as i64))]);

/// What stands in every such request, beside what it is about.
#[derive(Debug)]
pub(super) struct Common {
    pub(super) model: Option<String>,
    pub(super) request_id: Option<String>,
    /// `use_activation`, or `normalize`: whether embeddings are normalised, classes activated. `None`: as the model wants.
    pub(super) is_finished: Option<bool>,
    add_special: bool,
    truncation: Truncation,
    priority: Option<i32>,
    cache_salt: Option<String>,
    user: Option<String>,
}

impl Common {
    pub(super) fn read(fields: &mut Fields<'_>) -> Result<Self, ApiError> {
        let (activation, normalize) = (fields.flag("use_activation")?, fields.flag("normalize")?);
        if let (Some(one), Some(other)) = (activation, normalize)
            && one != other
        {
            let reason = format!("is {other} and `use_activation` {one}; they mean the same");
            return Err(ApiError::Conflict { param: fields.at("normalize"), reason });
        }
        [PEERS, unserved::BOTH, unserved::MEDIA].into_iter().try_for_each(|table| refuse_all(fields, table))?;
        Ok(Self {
            model: read_model(fields)?,
            request_id: read_request_id(fields)?,
            is_finished: activation.or(normalize),
            add_special: fields.flag("add_special_tokens")?.unwrap_or(true),
            truncation: read_truncation(fields)?,
            priority: fields.integer("priority", told::SIGNED)?,
            cache_salt: read_salt(fields)?,
            user: fields.text("user")?,
        })
    }

    pub(super) fn request(&self, inputs: Vec<PoolInput>, last_text_max: Option<u32>) -> PoolRequest {
        PoolRequest {
            inputs,
            add_special: self.add_special,
            truncation: self.truncation,
            last_text_max,
            priority: self.priority,
            cache_salt: self.cache_salt.clone(),
            user: self.user.clone(),
        }
    }
}

fn read_salt(fields: &mut Fields<'_>) -> Result<Option<String>, ApiError> {
    let salt = fields.text("cache_salt")?;
    salt.as_deref().map_or(Ok(()), check_salt)?;
    Ok(salt)
}

/// -1: to what the model takes.
fn read_truncation(fields: &mut Fields<'_>) -> Result<Truncation, ApiError> {
    let name = "truncate_prompt_tokens";
    let allowed = "-1, the model's length, or an integer from 1 to 4294967295";
    match fields.integer::<i64>(name, allowed)? {
        None => Ok(Truncation::Never),
        Some(-1) => Ok(Truncation::ToModel),
        Some(tokens) => match u32::try_from(tokens) {
            Ok(tokens) if tokens > 0 => Ok(Truncation::To(tokens)),
            _ => Err(ApiError::invalid(fields.at(name), tokens, allowed)),
        },
    }
}

/// `input`, in all its forms.
pub(super) fn read_input(fields: &mut Fields<'_>) -> Result<Vec<PoolInput>, ApiError> {
    let name = "input";
    let Some(raw) = fields.raw(name) else {
        return Err(ApiError::Missing { param: fields.at(name), allowed: INPUT });
    };
    let wrong = |got: String| ApiError::invalid(fields.at(name), got, INPUT);
    let prompts = parse_prompts(raw, true).map_err(wrong)?;
    check_count(&fields.at(name), prompts.len(), raw)?;
    let first = raw.get().strip_prefix('[').map_or("", str::trim_start);
    let is_list = first.starts_with(['[', '"']); // a list of token ids is one input
    let content = |prompt| match prompt {
        Prompt::Text { text, .. } => PoolContent::Text(text),
        Prompt::Ids(ids) => PoolContent::Ids(ids),
        Prompt::Between { .. } | Prompt::Embeds { .. } | Prompt::Chat { .. } | Prompt::LongChat { .. } => {
            unreachable!("texts and ids alone are read from an `input`")
        }
    };
    let input = |(index, prompt)| {
        let param = if is_list { format!("{}[{index}]", fields.at(name)) } else { fields.at(name) };
        PoolInput { param, content: content(prompt) }
    };
    let inputs: Vec<PoolInput> = prompts.into_iter().enumerate().map(input).collect();
    let is_empty = |input: &&PoolInput| match &input.content {
        PoolContent::Text(text) => text.is_empty(),
        PoolContent::Ids(ids) => ids.is_empty(),
        PoolContent::Pair(..) => false,
    };
    match inputs.iter().find(is_empty) {
        Some(empty) => Err(ApiError::invalid(empty.param.clone(), "empty", INPUT)),
        None => Ok(inputs),
    }
}

/// A bounded number of inputs, at least one.
pub(super) fn check_count(param: &str, count: usize, raw: &RawValue) -> Result<(), ApiError> {
    match count {
        0 => Err(ApiError::invalid(param, shown(raw), format!("1 to {INPUTS_MAX} items"))),
        count if count > INPUTS_MAX => {
            Err(ApiError::invalid(param, format_args!("a list of {count} items"), format!("1 to {INPUTS_MAX} items")))
        }
        _ => Ok(()),
    }
}

/// A list of texts, or of objects that have one.
pub(super) fn read_texts<'a>(fields: &Fields<'a>, param: &str, raw: &'a RawValue) -> Result<Vec<String>, ApiError> {
    const TEXTS: &str = "a text, or a list of texts or of objects with a `text`";
    let wrong = || ApiError::invalid(param, shown(raw), TEXTS);
    let Items(items) = match raw.get().as_bytes().first() {
        Some(b'[') => serde_json::from_str(raw.get()).map_err(|_| wrong())?,
        Some(b'"' | b'{') => Items(vec![raw]),
        _ => return Err(wrong()),
    };
    check_count(param, items.len(), raw)?;
    let text = |(index, item): (usize, &'a RawValue)| -> Result<String, ApiError> {
        let path = format!("{param}[{index}]");
        if item.get().starts_with('{') {
            let mut object = fields.within(path, item)?;
            let text = object.need("text", "a text")?;
            object.finish(&TEXT_OBJECT)?;
            return Ok(text);
        }
        serde_json::from_str(item.get())
            .map_err(|_| ApiError::invalid(path, shown(item), "a text, or an object with a `text`"))
    };
    items.into_iter().enumerate().map(text).collect()
}
