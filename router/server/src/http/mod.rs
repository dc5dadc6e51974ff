//! The HTTP door: routes, what surrounds every request, and the listeners. gRPC shares its port unless it has one of its own.
//!
//! Handlers read a body, call `generate` and write what comes. Never here: what a field means (`api`), how an answer is made
//! (`generate`), text or tokens.

mod around;
mod body;
mod connection;
mod explain;
mod generation;
mod health;
mod listen;
mod models;
mod routes;
mod sse;
mod tokens;

use std::sync::Arc;

use crate::{auth::ApiKey, generate::Serving};

pub(crate) use health::is_ready;
pub use listen::{Listeners, serve};

/// What every handler knows. Clones are the same app.
#[derive(Clone)]
pub struct App {
    pub(crate) serving: Arc<Serving>,
    pub(crate) api_keys: Arc<[ApiKey]>,
}

impl App {
    /// Without keys, everybody is let in.
    pub fn new(serving: Arc<Serving>, api_keys: Vec<ApiKey>) -> Self {
        Self { serving, api_keys: api_keys.into() }
    }
}
