//! `/v1/messages` and `/v1/messages/count_tokens`, and what their clients expect of every answer there and of `/v1/models`.

use axum::{
    Extension, Json,
    extract::{Request, State},
    middleware::Next,
    response::{IntoResponse as _, Response},
};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use schemars::JsonSchema;
use serde::Serialize;

use super::{App, around::RequestId, body::JsonBody, explain::Explains, sse};
use crate::{
    api::anthropic::{CountRequest, ErrorBody, MessageEvents, MessageForm, MessagesRequest, renamed},
    error::ApiError,
    generate::Terms,
};

/// By which Anthropic's clients know a request.
static REQUEST_ID: HeaderName = HeaderName::from_static("request-id");

/// Which version of the protocol a client speaks; all are the same here.
static VERSION: HeaderName = HeaderName::from_static("anthropic-version");

pub(super) const MODELS: &str = "/v1/models";
pub(super) const MESSAGES: &str = "/v1/messages";
pub(super) const COUNT_TOKENS: &str = "/v1/messages/count_tokens";

pub(super) async fn messages(
    State(App { serving, .. }): State<App>,
    Extension(RequestId(request_id)): Extension<RequestId>,
    terms: Terms,
    explains: Explains,
    JsonBody(body): JsonBody,
) -> Result<Response, ApiError> {
    explains.refuse()?;
    let asked = serving.on_text(body.len(), move || MessagesRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let mut request = asked.request;
    if !serving.ends_thoughts() {
        // Without thoughts a budget is kept, on channels it stays a wish.
        request.options.thoughts = None;
    }
    // Clients ask for what Claude could say; a smaller context ends the answer earlier, and the message says so.
    request.options.max_tokens = Some(asked.max_tokens.min(serving.max_model_len().unwrap_or(u32::MAX)));
    let generation = serving.generate(request, terms).await.map_err(renamed)?;
    let form = MessageForm {
        id: format!("msg_{request_id}"),
        model: serving.model_name().to_owned(),
        thoughts: asked.thoughts,
        max_tokens: asked.max_tokens,
        prompt: generation.prompts()[0].ids.len(),
        request_id,
    };
    if asked.is_stream {
        return Ok(sse::respond(&serving, generation, MessageEvents::new(form)));
    }
    let answer = generation.whole().await?.pop().expect("one answer was asked for");
    Ok(Json(form.whole(answer)).into_response())
}

/// How many tokens a conversation has.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct TokenCount {
    input_tokens: usize,
}

pub(super) async fn count_tokens(
    State(App { serving, .. }): State<App>,
    JsonBody(body): JsonBody,
) -> Result<Json<TokenCount>, ApiError> {
    let asked = serving.on_text(body.len(), move || CountRequest::read(&body)).await?;
    serving.check_model(asked.model.as_deref())?;
    let prepared = serving.count(asked.prompt).await.map_err(renamed)?;
    Ok(Json(TokenCount { input_tokens: prepared.ids.len() }))
}

/// Whether a path is one of Anthropic's.
pub(super) fn is_anthropic(path: &str) -> bool {
    path.strip_prefix(MESSAGES).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Whether a client says that it speaks Anthropic's protocol: on a route that another protocol has, too.
pub(super) fn speaks(headers: &HeaderMap) -> bool {
    headers.contains_key(&VERSION)
}

/// Whether a request is to be answered as Anthropic would.
fn is_spoken(request: &Request) -> bool {
    let path = request.uri().path();
    let is_of_models = path.strip_prefix(MODELS).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_anthropic(path) || is_of_models && speaks(request.headers())
}

/// On these routes every answer has the header `request-id`, and every error Anthropic's form.
pub(super) async fn speak(request: Request, next: Next) -> Response {
    if !is_spoken(&request) {
        return next.run(request).await;
    }
    let id = request.extensions().get::<RequestId>().map_or_else(String::new, |id| id.0.clone());
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<ApiError>() {
        let body = ErrorBody::new(&error, &id);
        let status = body.status;
        let mut translated = (status, Json(body)).into_response();
        for name in [header::RETRY_AFTER, header::ALLOW, header::WWW_AUTHENTICATE] {
            if let Some(value) = response.headers_mut().remove(&name) {
                translated.headers_mut().insert(name, value);
            }
        }
        response = translated;
    }
    response.headers_mut().insert(REQUEST_ID.clone(), HeaderValue::from_str(&id).expect("ids are visible ASCII"));
    response
}
