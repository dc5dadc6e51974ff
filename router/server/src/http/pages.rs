//! Lists that are read page by page, as OpenAI's are: `after`, `limit`, `order`.

use axum::extract::{Query, rejection::QueryRejection};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;

use crate::error::{ApiError, shortened};

/// A query, not yet looked at.
pub(super) type Asked = Result<Query<Vec<(String, String)>>, QueryRejection>;

/// The names and values of a query.
pub(super) fn pairs(query: Asked) -> Result<Vec<(String, String)>, ApiError> {
    let wrong = |_| ApiError::invalid("query", "a text that is none", "pairs NAME=VALUE with & between");
    query.map(|Query(pairs)| pairs).map_err(wrong)
}

/// Which page is wanted.
#[derive(Debug, PartialEq)]
pub(super) struct Page {
    limit: usize,
    is_ascending: bool,
    after: Option<String>,
}

/// A page as clients see it.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Listed {
    object: &'static str,
    data: Vec<Value>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// An item of a page.
pub(super) fn json_of(item: &impl Serialize) -> Value {
    serde_json::to_value(item).expect("what clients see is JSON")
}

/// How long pages are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Lengths {
    pub(super) usual: usize,
    pub(super) most: usize,
}

impl Page {
    /// Reads a query. `other` takes a name that is none of a page's, or says that nobody knows it.
    pub(super) fn read(
        query: Asked,
        lengths: Lengths,
        mut other: impl FnMut(&str, &str) -> Result<bool, ApiError>,
    ) -> Result<Self, ApiError> {
        let mut page = Self { limit: lengths.usual, is_ascending: false, after: None };
        for (name, value) in pairs(query)? {
            let wrong = |allowed: String| {
                Err(ApiError::invalid(name.as_str(), format_args!("\"{}\"", shortened(&value)), allowed))
            };
            match (name.as_str(), value.as_str()) {
                ("after", _) => page.after = Some(value),
                ("order", "asc") => page.is_ascending = true,
                ("order", "desc") => page.is_ascending = false,
                ("order", _) => return wrong("asc or desc".to_owned()),
                ("limit", _) => match value.parse() {
                    Ok(count) if (1..=lengths.most).contains(&count) => page.limit = count,
                    _ => return wrong(format!("an integer from 1 to {}", lengths.most)),
                },
                (name, value) if other(name, value)? => {}
                _ => return Err(ApiError::Unknown { param: shortened(&name), nearest: None }),
            }
        }
        Ok(page)
    }

    /// The page of a list, whose oldest item is first. Each item has an `id`.
    pub(super) fn of(self, mut items: Vec<Value>) -> Result<Listed, ApiError> {
        if !self.is_ascending {
            items.reverse();
        }
        if let Some(after) = &self.after {
            let Some(at) = items.iter().position(|item| item["id"] == after.as_str()) else {
                let got = format!("\"{}\"", shortened(after));
                return Err(ApiError::invalid("after", got, "the `id` of one of the list's items"));
            };
            items.drain(..=at);
        }
        let has_more = items.len() > self.limit;
        items.truncate(self.limit);
        let id_of = |item: Option<&Value>| item.and_then(|item| item["id"].as_str()).map(str::to_owned);
        let (first_id, last_id) = (id_of(items.first()), id_of(items.last()));
        Ok(Listed { object: "list", data: items, first_id, last_id, has_more })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn page(query: &[(&str, &str)]) -> Result<Value, ApiError> {
        let query = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let page = Page::read(Ok(Query(query)), Lengths { usual: 2, most: 3 }, |name, _| Ok(name == "purpose"))?;
        let items = ["a", "b", "c", "d"].map(|id| json!({ "id": id }));
        let mut page = serde_json::to_value(page.of(items.into())?).expect("JSON");
        let ids: Vec<Value> = page["data"].as_array().expect("a list").iter().map(|item| item["id"].clone()).collect();
        page["data"] = ids.into();
        Ok(page)
    }

    #[test]
    fn pages_follow_each_other() {
        for (query, ids, has_more) in [
            (&[][..], json!(["d", "c"]), true),
            (&[("order", "asc")], json!(["a", "b"]), true),
            (&[("after", "c")], json!(["b", "a"]), false),
            (&[("after", "b"), ("order", "asc"), ("limit", "3")], json!(["c", "d"]), false),
            (&[("after", "a"), ("purpose", "x")], json!([]), false),
        ] {
            let page = page(query).expect("valid");
            assert_eq!((&page["data"], &page["has_more"]), (&ids, &json!(has_more)), "{query:?}");
            assert_eq!(
                (&page["first_id"], &page["last_id"]),
                (&page["data"][0], page["data"].as_array().and_then(|all| all.last()).unwrap_or(&Value::Null))
            );
        }
    }

    #[test]
    fn a_wrong_query_is_refused_by_its_name() {
        for query in [("limit", "0"), ("limit", "4"), ("order", "up"), ("after", "x"), ("befor", "a")] {
            let error = page(&[query]).expect_err("wrong").to_string();
            assert!(error.contains(&format!("`{}`", query.0)), "{error}");
        }
    }
}
