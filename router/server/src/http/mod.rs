//! The HTTP door: routes, what surrounds every request, and the listeners. gRPC shares its port unless it has one of its own.
//!
//! Handlers read a body, call `generate` and write what comes. Never here: what a field means (`api`), how an answer is made
//! (`generate`), text or tokens.

mod anthropic;
mod around;
mod body;
mod connection;
mod explain;
mod generation;
mod health;
mod host;
mod id;
mod listen;
mod models;
mod openapi;
mod pooling;
mod responses;
mod routes;
mod scale_out;
mod slots;
mod sse;
pub(crate) mod terms;
mod tokens;
mod unparsed;

use std::sync::Arc;

use crate::{
    api::responses::Store,
    auth::{ApiKey, Keys},
    generate::Serving,
};

pub use crate::api::responses::StoreLimits;
pub(crate) use health::is_ready;
pub use listen::{Listeners, serve};

/// What every handler knows. Clones are the same app.
#[derive(Clone)]
pub struct App {
    pub(crate) serving: Arc<Serving>,
    pub(crate) keys: Arc<Keys>,
    pub(crate) responses: Arc<Store>,
}

impl App {
    /// Without keys, everybody is let in.
    pub fn new(serving: Arc<Serving>, api_keys: Vec<ApiKey>, responses: StoreLimits) -> Self {
        Self { serving, keys: Arc::new(Keys::new(api_keys)), responses: Arc::new(Store::new(responses)) }
    }
}
