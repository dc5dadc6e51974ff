//! `/v1/responses`, and what is kept of them: retrieving, cancelling and deleting a response, listing its input.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    extract::State,
    response::{IntoResponse as _, Response},
};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::{
    App,
    body::JsonBody,
    explain::Explains,
    id::Id,
    pages::{Asked, Lengths, Listed, Page, pairs},
    sse,
};
use crate::{
    api::responses::{Cancelled, Item, ResponseEvents, ResponseForm, ResponsesRequest, Store, Stored, new_id, renamed},
    error::{ApiError, shortened},
    generate::{Generation, Terms, seconds_since_1970},
};

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
    let bytes = before.iter().map(|item| item.get().len()).sum();
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
        return in_background(keeper, stored.clone(), form, generation);
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

/// Whether the response is kept: OpenAI's clients expect it unless they say otherwise.
fn stores(store: &Store, asked: &ResponsesRequest) -> Result<bool, ApiError> {
    let is_wanted = if asked.is_background { Some(true) } else { asked.store };
    if store.is_open() || is_wanted != Some(true) {
        return Ok(store.is_open() && is_wanted.unwrap_or(true));
    }
    let param = if asked.is_background { "background" } else { "store" };
    let what = "keeping responses: `response-store-count` of this server is 0, and it";
    Err(ApiError::NotServed { param: param.to_owned(), what: what.into() })
}

/// All that was said up to the end of a kept response.
fn conversation(store: &Store, previous: Option<&str>, tenant: u64) -> Result<Vec<Item>, ApiError> {
    const PARAM: &str = "previous_response_id";
    let Some(id) = previous else { return Ok(Vec::new()) };
    let Some(stored) = store.get(id, tenant, Instant::now()) else {
        let allowed = "the `id` of a response that is kept";
        return Err(ApiError::invalid(PARAM, format_args!("\"{}\"", shortened(id)), allowed));
    };
    if stored.response["status"] == "in_progress" {
        let reason = "names a response that is under way still".to_owned();
        return Err(ApiError::Conflict { param: PARAM.to_owned(), reason });
    }
    Ok(stored.conversation())
}

/// Where a response will be kept.
struct Keeper {
    store: Arc<Store>,
    id: String,
    tenant: u64,
}

impl Keeper {
    fn keep(self, stored: Stored, done: crate::api::responses::Done) {
        self.store.keep(&self.id, self.tenant, stored, done, Instant::now());
        self.sweep();
    }

    /// What is too old goes in time, also when nobody asks for anything any more.
    fn sweep(&self) {
        if !self.store.needs_sweeper() {
            return;
        }
        let store = Arc::clone(&self.store);
        tokio::spawn(async move {
            while let Some(next) = store.sweep(Instant::now()) {
                tokio::time::sleep_until(next.into()).await;
            }
        });
    }
}

/// Answers now; the generation goes on without its client.
fn in_background(
    keeper: Keeper,
    stored: Stored,
    form: ResponseForm,
    generation: Generation,
) -> Result<Response, ApiError> {
    let token = CancellationToken::new();
    let shown = Json(stored.response.clone()).into_response();
    if !keeper.store.begin(&keeper.id, keeper.tenant, stored, token.clone(), Instant::now()) {
        let reason = "the responses under way in the background leave no room for another".to_owned();
        return Err(ApiError::Unavailable { reason, retry_after_s: 1 });
    }
    keeper.sweep();
    tokio::spawn(async move {
        let Some(answers) = token.run_until_cancelled(generation.whole()).await else { return };
        let done = match answers {
            Ok(mut answers) => form.whole(answers.pop().expect("one answer was asked for")),
            Err(error) => {
                error.report();
                form.failed(&error)
            }
        };
        keeper.store.finish(&keeper.id, done);
    });
    Ok(shown)
}

fn unknown(id: &str) -> ApiError {
    ApiError::NotKept { what: "response", id: shortened(id) }
}

pub(super) async fn retrieve(
    State(App { responses, .. }): State<App>,
    Id(id): Id,
    terms: Terms,
    query: Asked,
) -> Result<Json<Value>, ApiError> {
    for (name, value) in pairs(query)? {
        match (name.as_str(), value.as_str()) {
            ("stream", "false") => {}
            ("stream" | "starting_after" | "include" | "include[]" | "include_obfuscation", _) => {
                let what = "this when a response is retrieved".into();
                return Err(ApiError::NotServed { param: name, what });
            }
            _ => return Err(ApiError::Unknown { param: shortened(&name), nearest: None }),
        }
    }
    let stored = responses.get(&id, terms.tenant, Instant::now()).ok_or_else(|| unknown(&id))?;
    Ok(Json(stored.response))
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
) -> Result<Json<Value>, ApiError> {
    match responses.cancel(&id, terms.tenant, Instant::now()) {
        Cancelled::Done(response) => Ok(Json(response)),
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
    let page = Page::read(query, PAGE, |_, _| Ok(false))?;
    let stored = responses.get(&id, terms.tenant, Instant::now()).ok_or_else(|| unknown(&id))?;
    let items = stored
        .input
        .iter()
        .map(|item| serde_json::from_str(item.get()).expect("what is kept was written as JSON"))
        .collect();
    page.of(items).map(Json)
}
