//! `/v1/responses`, and what is kept of them: retrieving, cancelling and deleting a response, listing its input.

mod background;

use std::time::Instant;

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    App,
    body::JsonBody,
    explain::Explains,
    id::Id,
    pages::{Asked, Lengths, Listed, Page, pairs},
    sse,
};
use crate::{
    api::responses::{
        Cancelled, Item, LOGPROBS, ResponseEvents, ResponseForm, ResponsesRequest, SEALED, STARTING_AFTER, Store,
        Stored, check_included, new_id, renamed,
    },
    error::{ApiError, shortened},
    generate::{Terms, seconds_since_1970},
};

use background::Keeper;

pub(super) const INPUT_TOKENS: &str = "/v1/responses/input_tokens";
/// OpenAI's, and no id of a response: whoever asks for it is told that nothing here makes conversations shorter that way.
pub(super) const COMPACT: &str = "/v1/responses/compact";

/// Items on a page of `input_items`.
const PAGE: Lengths = Lengths { usual: 20, most: 100 };

pub(super) async fn create(
    State(App { serving, responses, .. }): State<App>,
    terms: Terms,
    explains: Explains,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let mut asked = serving.on_text(body.len(), move || ResponsesRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let stores = stores(&responses, &asked)?;
    asked.fill_in(stores, &serving.checkpoint.defaults);
    let before = conversation(&responses, asked.previous.as_deref(), terms.tenant)?;
    let bytes = length(&before) + length(&asked.items);
    let read = move || asked.request(&before).map(|request| (asked, before, request));
    let (asked, before, request) = serving.on_text(bytes, read).await?;
    let generation = serving.generate(request, terms).await.map_err(renamed)?;
    let form = ResponseForm {
        id: new_id("resp"),
        created: seconds_since_1970(),
        model: serving.model_name().to_owned(),
        shows_logprobs: asked.shows_logprobs.then(|| serving.tokenizer.clone()),
        asked: asked.asked,
    };
    let stored = stores.then(|| Stored::new(form.in_progress(), asked.items, before));
    let keeper = Keeper { store: responses, id: form.id.clone(), tenant: terms.tenant };
    if let (true, Some(stored)) = (asked.is_background, &stored) {
        return match asked.is_stream {
            false => background::answer(keeper, stored.clone(), form, generation),
            true => background::stream(&serving, keeper, stored.clone(), form, generation),
        };
    }
    if asked.is_stream {
        let keep = move |done| {
            if let Some(stored) = stored {
                keeper.keep(stored, done);
            }
        };
        return Ok(sse::respond(&serving, generation, ResponseEvents::new(form, keep)));
    }
    let done = form.whole(generation.whole().await?.pop().expect("one answer was asked for"));
    let shown = Json(done.response.clone()).into_response();
    if let Some(stored) = stored {
        keeper.keep(stored, done);
    }
    Ok(shown)
}

/// How many tokens a response would be an answer to.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct InputTokens {
    #[schemars(extend("const" = "response.input_tokens"))]
    object: &'static str,
    input_tokens: usize,
}

/// Counts what [`create`] would give the model. Nothing is kept.
pub(super) async fn input_tokens(
    State(App { serving, responses, .. }): State<App>,
    terms: Terms,
    JsonBody(body): JsonBody,
) -> Result<Json<InputTokens>, ApiError> {
    let mut asked = serving.on_text(body.len(), move || ResponsesRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let before = conversation(&responses, asked.previous.as_deref(), terms.tenant)?;
    let bytes = length(&before) + length(&asked.items);
    let mut request = serving.on_text(bytes, move || asked.request(&before)).await?;
    serving.check_counted(&request.options).map_err(renamed)?;
    let prompt = request.prompts.pop().expect("a response is an answer to one prompt");
    let prepared = serving.count(prompt).await.map_err(renamed)?;
    Ok(Json(InputTokens { object: "response.input_tokens", input_tokens: prepared.ids.len() }))
}

/// Whether the response is kept: OpenAI's clients expect it unless they say otherwise.
fn stores(store: &Store, asked: &ResponsesRequest) -> Result<bool, ApiError> {
    let is_wanted = if asked.is_background { Some(true) } else { asked.store };
    if store.is_open() || is_wanted != Some(true) {
        return Ok(store.is_open() && is_wanted.unwrap_or(true));
    }
    let param = if asked.is_background { "background" } else { "store" };
    let what = "keeping responses (`response-store-count` of this server is 0)";
    Err(ApiError::not_served(param, true, "false", what))
}

/// All that was said up to the end of a kept response.
fn conversation(store: &Store, previous: Option<&str>, tenant: u64) -> Result<Vec<Item>, ApiError> {
    const PARAM: &str = "previous_response_id";
    let Some(id) = previous else { return Ok(Vec::new()) };
    let Some(stored) = store.get(id, tenant, Instant::now()) else {
        let allowed = "the `id` of a response that is kept";
        return Err(ApiError::invalid(PARAM, format_args!("\"{}\"", shortened(id)), allowed));
    };
    if !stored.is_done {
        let reason = "names a response that is under way still".to_owned();
        return Err(ApiError::Conflict { param: PARAM.to_owned(), reason });
    }
    Ok(stored.conversation())
}

/// Bytes of JSON that items are.
fn length(items: &[Item]) -> usize {
    items.iter().map(|item| item.get().len()).sum()
}

fn unknown(id: &str) -> ApiError {
    ApiError::NotKept { what: "response", id: shortened(id) }
}

pub(super) async fn retrieve(
    State(App { serving, responses, .. }): State<App>,
    Id(id): Id,
    terms: Terms,
    query: Asked,
) -> Result<Response, ApiError> {
    if let Retrieval::Stream { after } = Retrieval::read(pairs(query)?)? {
        return background::follow(&serving, &responses, &id, terms.tenant, after);
    }
    let stored = responses.get(&id, terms.tenant, Instant::now()).ok_or_else(|| unknown(&id))?;
    Ok(told(&stored.response))
}

/// A response as it is kept.
fn told(response: &Item) -> Response {
    Json(&**response).into_response()
}

/// How a response is retrieved.
#[derive(Debug, PartialEq)]
enum Retrieval {
    Whole,
    /// Its events, behind one of them or from the first one on.
    Stream {
        after: Option<u64>,
    },
}

impl Retrieval {
    fn read(query: Vec<(String, String)>) -> Result<Self, ApiError> {
        let (mut is_stream, mut after) = (false, None);
        for (name, value) in query {
            let wrong = |allowed: &'static str| {
                Err(ApiError::invalid(name.as_str(), format_args!("\"{}\"", shortened(&value)), allowed))
            };
            match (name.as_str(), value.as_str()) {
                ("stream", "true") => is_stream = true,
                ("stream", "false") => is_stream = false,
                ("stream", _) => return wrong("true or false"),
                (STARTING_AFTER, number) => match number.parse() {
                    Ok(number) => after = Some(number),
                    Err(_) => return wrong("the `sequence_number` of an event, an integer, 0 or above"),
                },
                ("include_obfuscation", "false") => {}
                ("include_obfuscation", "true") => {
                    return Err(ApiError::not_served(name, true, "false", "padding of events"));
                }
                ("include_obfuscation", _) => return wrong("true or false"),
                (include, value) if is_include(include) => included(include, value)?,
                _ => return Err(ApiError::Unknown { param: shortened(&name), nearest: None }),
            }
        }
        if after.is_some() && !is_stream {
            let reason = "is only allowed together with `stream`=true".to_owned();
            return Err(ApiError::Conflict { param: STARTING_AFTER.to_owned(), reason });
        }
        Ok(if is_stream { Self::Stream { after } } else { Self::Whole })
    }
}

/// As clients write lists in queries.
fn is_include(name: &str) -> bool {
    matches!(name, "include" | "include[]")
}

/// Refuses to include what nobody kept.
fn included(name: &str, value: &str) -> Result<(), ApiError> {
    if !is_include(name) {
        return Ok(());
    }
    if value == LOGPROBS {
        let what = "log-probabilities later than with the response";
        return Err(ApiError::not_served(name, format_args!("\"{value}\""), format!("\"{SEALED}\""), what));
    }
    check_included(name, value, &[SEALED]).map(drop)
}

/// A response that is kept no longer.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DeletedResponse {
    id: String,
    object: &'static str,
    deleted: bool,
}

pub(super) async fn delete(
    State(App { responses, .. }): State<App>,
    Id(id): Id,
    terms: Terms,
) -> Result<Json<DeletedResponse>, ApiError> {
    if responses.delete(&id, terms.tenant, Instant::now()) {
        return Ok(Json(DeletedResponse { id, object: "response", deleted: true }));
    }
    Err(unknown(&id))
}

pub(super) async fn cancel(
    State(App { responses, .. }): State<App>,
    Id(id): Id,
    terms: Terms,
) -> Result<Response, ApiError> {
    match responses.cancel(&id, terms.tenant, Instant::now()) {
        Cancelled::Done(response) => Ok(told(&response)),
        Cancelled::Ending(over) => {
            over.cancelled().await;
            let stored = responses.get(&id, terms.tenant, Instant::now()).ok_or_else(|| unknown(&id))?;
            Ok(told(&stored.response))
        }
        Cancelled::Unknown => Err(unknown(&id)),
        Cancelled::NotBackground => {
            let reason = "names a response that was not asked for with `background`: true".to_owned();
            Err(ApiError::Conflict { param: "response_id".to_owned(), reason })
        }
    }
}

pub(super) async fn input_items(
    State(App { responses, .. }): State<App>,
    Id(id): Id,
    terms: Terms,
    query: Asked,
) -> Result<Json<Listed>, ApiError> {
    let page = Page::read(query, PAGE, |name, value| included(name, value).map(|()| is_include(name)))?;
    let stored = responses.get(&id, terms.tenant, Instant::now()).ok_or_else(|| unknown(&id))?;
    let items = stored
        .input
        .iter()
        .map(|item| serde_json::from_str(item.get()).expect("what is kept was written as JSON"))
        .collect();
    page.of(items).map(Json)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is read of a query, or the parameter that is refused.
    fn check(query: &[(&str, &str)], expected: Result<Retrieval, &str>) {
        let pairs = query.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let read = Retrieval::read(pairs).map_err(|error| match error {
            ApiError::Invalid { param, .. }
            | ApiError::NotServed { param, .. }
            | ApiError::Conflict { param, .. }
            | ApiError::Unknown { param, .. } => param,
            other => panic!("{other}"),
        });
        assert_eq!(read, expected.map_err(str::to_owned), "{query:?}");
    }

    #[test]
    fn a_response_is_retrieved_whole_or_as_events() {
        let stream = |after| Ok(Retrieval::Stream { after });
        check(&[], Ok(Retrieval::Whole));
        check(&[("stream", "false"), ("include_obfuscation", "false")], Ok(Retrieval::Whole));
        check(&[("stream", "true")], stream(None));
        check(&[("starting_after", "0"), ("stream", "true")], stream(Some(0)));
        check(&[("stream", "true"), ("starting_after", "18446744073709551615")], stream(Some(u64::MAX)));
        check(&[("stream", "yes")], Err("stream"));
        for wrong in ["", "-1", "1.5", "x", "18446744073709551616"] {
            check(&[("stream", "true"), ("starting_after", wrong)], Err("starting_after"));
        }
        check(&[("starting_after", "1")], Err("starting_after"));
        check(&[("stream", "false"), ("starting_after", "1")], Err("starting_after"));
        check(&[("include_obfuscation", "true")], Err("include_obfuscation"));
        check(&[("include_obfuscation", "yes")], Err("include_obfuscation"));
        check(&[("include[]", "reasoning.encrypted_content")], Ok(Retrieval::Whole));
        for wrong in ["message.output_text.logprobs", "file_search_call.results", "all", ""] {
            check(&[("include[]", wrong)], Err("include[]"));
            check(&[("include", wrong)], Err("include"));
        }
        check(&[("colour", "red")], Err("colour"));
        let told = included("include", "all").expect_err("it is nothing").to_string();
        assert!(told.ends_with("allowed: \"reasoning.encrypted_content\""), "{told}");
    }
}
