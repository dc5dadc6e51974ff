//! Responses that are made without their client: kept from their beginning on, and read as often as somebody asks.

use std::{sync::Arc, time::Instant};

use axum::{
    Json,
    response::{IntoResponse as _, Response},
};
use bytes::BytesMut;

use super::unknown;
use crate::{
    api::responses::{Background, Done, Following, NumberedEvents, ResponseForm, Store, Stored},
    error::ApiError,
    generate::{Generation, Serving},
    http::sse,
};

/// Where a response will be kept.
pub(super) struct Keeper {
    pub(super) store: Arc<Store>,
    pub(super) id: String,
    pub(super) tenant: u64,
}

impl Keeper {
    pub(super) fn keep(self, stored: Stored, done: Done) {
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
pub(super) fn answer(
    keeper: Keeper,
    stored: Stored,
    form: ResponseForm,
    generation: Generation,
) -> Result<Response, ApiError> {
    let background = Background::default();
    let shown = Json(stored.response.clone()).into_response();
    if !keeper.store.begin(&keeper.id, keeper.tenant, stored, background.clone(), Instant::now()) {
        return Err(no_room());
    }
    keeper.sweep();
    tokio::spawn(make(keeper, background, NumberedEvents::new(form), generation));
    Ok(shown)
}

/// Answers with a stream that the client may leave, and come back to; the generation goes on.
pub(super) fn stream(
    serving: &Serving,
    keeper: Keeper,
    stored: Stored,
    form: ResponseForm,
    generation: Generation,
) -> Result<Response, ApiError> {
    let background = Background::default();
    let (mut events, mut first) = (NumberedEvents::new(form), BytesMut::new());
    events.begin(&mut first);
    let Keeper { store, id, tenant } = &keeper;
    if !store.begin_stream(id, *tenant, stored, background.clone(), &first, Instant::now()) {
        return Err(no_room());
    }
    keeper.sweep();
    let shown = follow(serving, store, id, *tenant, None);
    tokio::spawn(make(keeper, background, events, generation));
    shown
}

/// Makes a response to its end, or until somebody cancels it, and keeps its events as they come, whoever reads them.
async fn make(
    Keeper { store, id, .. }: Keeper,
    Background { cancel, over }: Background,
    mut events: NumberedEvents,
    mut generation: Generation,
) {
    let _over = over.drop_guard();
    let mut out = BytesMut::new();
    let done = loop {
        match cancel.run_until_cancelled(generation.next()).await {
            None => {
                drop(generation);
                break events.cancelled(&mut out);
            }
            Some(Ok(deltas)) => events.deltas(deltas, &mut out),
            Some(Err(error)) => {
                error.report();
                break events.error(&error, &mut out);
            }
        }
        if generation.is_over() {
            break events.end(&mut out);
        }
        store.append(&id, &out);
        out.clear();
    };
    store.finish(&id, done, &out);
}

/// Streams the events of a response that are kept and those that come, behind one of them or from the first one on.
pub(super) fn follow(
    serving: &Serving,
    store: &Store,
    id: &str,
    tenant: u64,
    after: Option<u64>,
) -> Result<Response, ApiError> {
    match store.follow(id, tenant, after, Instant::now())? {
        Following::Reader(reader) => Ok(sse::replay(serving, reader)),
        Following::Unknown => Err(unknown(id)),
        Following::NotStreamed => {
            let reason = "is true, and this response was not asked for with `background`: true and `stream`: true, so that its events \
                          are not kept; leave `stream` out, or send false"
                .to_owned();
            Err(ApiError::Conflict { param: "stream".to_owned(), reason })
        }
    }
}

fn no_room() -> ApiError {
    let reason = "the responses under way in the background leave no room for another".to_owned();
    ApiError::Unavailable { reason, retry_after_s: 1 }
}
