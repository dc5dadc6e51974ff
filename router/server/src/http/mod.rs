//! The HTTP door: routes, what surrounds every request, and the listeners. gRPC shares its port unless it has one of its own.
//!
//! Handlers read a body, call `generate` and write what comes. Never here: what a field means (`api`), how an answer is made
//! (`generate`), text or tokens.

mod anthropic;
pub(crate) mod around;
mod batches;
pub(crate) mod body;
mod connection;
mod explain;
mod files;
mod form;
mod generation;
mod health;
mod host;
mod id;
mod inner;
mod leftover;
mod listen;
mod models;
mod openapi;
mod pages;
mod pooling;
mod responses;
mod routes;
mod scale_out;
mod slots;
mod sse;
pub(crate) mod terms;
mod tokens;
mod unknown;
mod unparsed;

use std::sync::Arc;

use crate::{
    api::responses::Store,
    auth::{ApiKey, Keys},
    batches::Batches,
    error::ApiError,
    generate::Serving,
};

pub use crate::api::responses::StoreLimits;
pub(crate) use health::is_ready;
pub(crate) use inner::{InnerAnswer, InnerDoor};
pub use listen::{Listeners, serve};

/// What every handler knows. Clones are the same app.
#[derive(Clone)]
pub struct App {
    pub(crate) serving: Arc<Serving>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) responses: Arc<Store>,
    desk: Arc<Desk>,
}

/// Where batches are taken.
pub(crate) struct Desk {
    /// Or why there is none.
    pub(crate) batches: Result<Arc<Batches>, String>,
    /// Requests of all batches that are under way at once.
    pub(crate) in_flight: usize,
}

impl App {
    /// Without keys, everybody is let in.
    pub(crate) fn new(serving: Arc<Serving>, api_keys: Vec<ApiKey>, responses: StoreLimits, desk: Desk) -> Self {
        let secret = desk.batches.as_ref().map_or_else(|_| fresh_secret(), |batches| batches.secret);
        Self {
            serving,
            keys: Arc::new(Keys::new(api_keys, secret)),
            responses: Arc::new(Store::new(responses)),
            desk: Arc::new(desk),
        }
    }

    /// Where requests come in that are not clients'.
    pub(crate) fn inner_door(&self) -> InnerDoor {
        InnerDoor::new(self, self.desk.in_flight)
    }

    /// The batches, and their files.
    pub(crate) fn batches(&self) -> Result<&Arc<Batches>, ApiError> {
        self.desk.batches.as_ref().map_err(|reason| ApiError::Unavailable { reason: reason.clone(), retry_after_s: 60 })
    }
}

/// For tenants that nobody has to know again.
fn fresh_secret() -> [u8; 16] {
    *uuid::Uuid::new_v4().as_bytes()
}
