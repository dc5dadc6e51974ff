//! The names of the model as Anthropic's clients list them, in pages.

use pelton_text::LocalTime;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{api::fields::quoted, error::ApiError};

/// Models of a page, unless it is asked for another length; as for Anthropic.
const USUAL: usize = 20;
const MOST: usize = 1000;

/// A name.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicModel")]
pub(crate) struct Model<'a> {
    #[serde(rename = "type")]
    kind: &'static str,
    id: &'a str,
    display_name: &'a str,
    /// When this server began to serve it.
    created_at: String,
    lifecycle: &'static str,
    max_input_tokens: Option<u32>,
    /// Prompt and answer share the context.
    max_tokens: Option<u32>,
}

/// A page of names.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnthropicModels")]
pub(crate) struct Models<'a> {
    data: Vec<Model<'a>>,
    has_more: bool,
    first_id: Option<&'a str>,
    last_id: Option<&'a str>,
}

/// Which page is wanted.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ModelPage {
    limit: usize,
    after: Option<String>,
    before: Option<String>,
}

impl<'a> Model<'a> {
    pub(crate) fn new(name: &'a str, created: u64, max_model_len: Option<u32>) -> Self {
        let created = LocalTime { unix_seconds: created.cast_signed(), utc_offset_seconds: 0 };
        Self {
            kind: "model",
            id: name,
            display_name: name,
            created_at: created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            lifecycle: "active",
            max_input_tokens: max_model_len,
            max_tokens: max_model_len,
        }
    }
}

impl ModelPage {
    /// Reads a query. Other names in it are passed over: its client sends `beta`.
    pub(crate) fn read(query: Vec<(String, String)>) -> Result<Self, ApiError> {
        let mut page = Self { limit: USUAL, after: None, before: None };
        for (name, value) in query {
            match name.as_str() {
                "after_id" => page.after = Some(value),
                "before_id" => page.before = Some(value),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=MOST).contains(limit));
                    let wrong = || ApiError::invalid("limit", quoted(&value), format!("an integer from 1 to {MOST}"));
                    page.limit = limit.ok_or_else(wrong)?;
                }
                _ => {}
            }
        }
        Ok(page)
    }

    /// The page of all models. What comes before an id is told backwards from there, as for Anthropic: the last ones of it.
    pub(crate) fn of(self, mut all: Vec<Model<'_>>) -> Result<Models<'_>, ApiError> {
        let place = |all: &[Model<'_>], param: &str, id: &str| {
            let unknown = || ApiError::invalid(param, quoted(id), "the `id` of one of the models");
            all.iter().position(|model| model.id == id).ok_or_else(unknown)
        };
        if let Some(id) = &self.before {
            all.truncate(place(&all, "before_id", id)?);
        }
        if let Some(id) = &self.after {
            all.drain(..=place(&all, "after_id", id)?);
        }
        let has_more = all.len() > self.limit;
        if self.before.is_some() {
            all.drain(..all.len().saturating_sub(self.limit));
        }
        all.truncate(self.limit);
        let (first_id, last_id) = (all.first().map(|model| model.id), all.last().map(|model| model.id));
        Ok(Models { data: all, has_more, first_id, last_id })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_model_is_told_as_its_clients_read_it() {
        let model = serde_json::to_value(Model::new("demo", 1_764_032_400, Some(2048))).expect("plain");
        let expected = json!({
            "type": "model", "id": "demo", "display_name": "demo", "created_at": "2025-11-25T01:00:00Z",
            "lifecycle": "active", "max_input_tokens": 2048, "max_tokens": 2048,
        });
        assert_eq!(model, expected);
    }

    #[test]
    fn names_come_in_pages() {
        let page = |query: &[(&str, &str)]| -> Result<(String, bool), String> {
            let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let all = ["a", "b", "c", "d"].map(|name| Model::new(name, 0, None)).into();
            let page = ModelPage::read(query).and_then(|page| page.of(all)).map_err(|error| error.to_string())?;
            assert_eq!(page.first_id, page.data.first().map(|model| model.id));
            assert_eq!(page.last_id, page.data.last().map(|model| model.id));
            Ok((page.data.iter().map(|model| model.id).collect(), page.has_more))
        };
        let told = |ids: &str, has_more| Ok((ids.to_owned(), has_more));
        assert_eq!(page(&[("beta", "true")]), told("abcd", false));
        assert_eq!(page(&[("limit", "3")]), told("abc", true));
        assert_eq!(page(&[("limit", "3"), ("after_id", "a")]), told("bcd", false));
        assert_eq!(page(&[("limit", "2"), ("before_id", "d")]), told("bc", true));
        assert_eq!(page(&[("after_id", "d")]), told("", false));
        let refused = "`after_id` is \"e\"; allowed: the `id` of one of the models";
        assert_eq!(page(&[("after_id", "e")]), Err(refused.to_owned()));
        let refused = "`limit` is \"0\"; allowed: an integer from 1 to 1000";
        assert_eq!(page(&[("limit", "0")]), Err(refused.to_owned()));
    }
}
