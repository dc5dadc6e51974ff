//! What is answered where. The one list of routes: the router, `Allow` headers and "did you mean" all come from it.

use axum::{
    Router,
    extract::{DefaultBodyLimit, Request},
    middleware::{from_fn, from_fn_with_state},
    response::{IntoResponse as _, Response},
    routing::{MethodRouter, get, post},
};
use tower_http::catch_panic::CatchPanicLayer;

use super::{
    App, anthropic, around, batches, files, generation, health, host, models, openapi, pooling, responses, scale_out,
    tokens, unknown,
};
use crate::{
    api::batches::ENDPOINTS,
    error::{ApiError, shortened},
    grpc,
    nearest::nearest,
};

const GET: &str = "GET, HEAD";
const POST: &str = "POST";

/// Path, allowed methods as the `Allow` header has them, handlers.
fn routes() -> Vec<(&'static str, &'static str, MethodRouter<App>)> {
    vec![
        ("/v1/completions", POST, post(generation::completions)),
        ("/v1/chat/completions", POST, post(generation::chat_completions)),
        (anthropic::MESSAGES, POST, post(anthropic::messages)),
        (anthropic::COUNT_TOKENS, POST, post(anthropic::count_tokens)),
        ("/v1/responses", POST, post(responses::create)),
        (responses::INPUT_TOKENS, POST, post(responses::input_tokens)),
        ("/v1/responses/{id}", "GET, HEAD, DELETE", get(responses::retrieve).delete(responses::delete)),
        ("/v1/responses/{id}/cancel", POST, post(responses::cancel)),
        ("/v1/responses/{id}/input_items", GET, get(responses::input_items)),
        ("/v1/files", "GET, HEAD, POST", get(files::list).post(files::create)),
        ("/v1/files/{id}", "GET, HEAD, DELETE", get(files::retrieve).delete(files::delete)),
        ("/v1/files/{id}/content", GET, get(files::content)),
        ("/v1/batches", "GET, HEAD, POST", get(batches::list).post(batches::create)),
        ("/v1/batches/{id}", GET, get(batches::retrieve)),
        ("/v1/batches/{id}/cancel", POST, post(batches::cancel)),
        (anthropic::MODELS, GET, get(models::list)),
        ("/v1/models/{*id}", GET, get(models::one)),
        ("/v1/embeddings", POST, post(pooling::embeddings)),
        ("/pooling", POST, post(pooling::pooling)),
        ("/classify", POST, post(pooling::classify)),
        ("/score", POST, post(pooling::score)),
        ("/v1/score", POST, post(pooling::score)),
        ("/rerank", POST, post(pooling::rerank)),
        ("/v1/rerank", POST, post(pooling::rerank)),
        ("/v2/rerank", POST, post(pooling::rerank)),
        ("/v1/completions/render", POST, post(scale_out::render_completions)),
        ("/v1/chat/completions/render", POST, post(scale_out::render_chat)),
        ("/inference/v1/generate", POST, post(scale_out::generate)),
        ("/tokenize", POST, post(tokens::tokenize)),
        ("/detokenize", POST, post(tokens::detokenize)),
        ("/version", GET, get(models::version)),
        ("/metrics", GET, get(health::metrics)),
        ("/health", GET, get(health::health)),
        ("/ping", "GET, HEAD, POST", get(health::health).post(health::health)),
        ("/livez", GET, get(health::live)),
        ("/readyz", GET, get(health::ready)),
        ("/startupz", GET, get(health::started)),
        ("/openapi.json", GET, get(openapi::describe)),
        ("/docs", GET, get(openapi::docs)),
    ]
}

/// HTTP, and gRPC beside it if `with_grpc`.
pub(super) fn http_router(app: &App, with_grpc: bool) -> Router {
    let mut router = Router::new();
    for (path, _, handlers) in routes() {
        router = router.route(path, handlers);
    }
    let router = router.method_not_allowed_fallback(wrong_method).fallback(unknown_route).with_state(app.clone());
    surrounded(if with_grpc { grpc::add_services(router, app) } else { router }, app)
}

/// What requests from within are answered by: they are no HTTP requests, so nothing measures them as such or asks for their key.
pub(super) fn inner_router(app: &App) -> Router {
    let mut router = Router::new();
    for (path, _, handlers) in routes() {
        if ENDPOINTS.contains(&path) {
            router = router.route(path, handlers);
        }
    }
    router.layer(DefaultBodyLimit::disable()).layer(CatchPanicLayer::custom(panicked)).with_state(app.clone())
}

/// gRPC alone, for a port of its own.
pub(super) fn grpc_router(app: &App) -> Router {
    surrounded(grpc::add_services(Router::new().fallback(unknown_route), app), app)
}

/// The outermost comes last.
fn surrounded(router: Router, app: &App) -> Router {
    router
        .layer(DefaultBodyLimit::disable()) // `body` has limits of its own, with our errors
        .layer(CatchPanicLayer::custom(panicked))
        .layer(from_fn_with_state(app.clone(), around::authorize))
        .layer(from_fn(host::check))
        .layer(from_fn(anthropic::speak)) // what the layers within refuse is an answer of these routes, too
        .layer(from_fn_with_state(app.clone(), unknown::tell))
        .layer(from_fn_with_state(app.clone(), around::measure))
        .layer(from_fn(around::identify))
}

async fn unknown_route(request: Request) -> Response {
    // Shortened before it is compared: a path may be long.
    let path = shortened(request.uri().path());
    let all = routes();
    let known = all.iter().map(|(path, ..)| *path).filter(|path| !path.contains('{'));
    // It itself: this is the port of gRPC alone.
    let nearest = nearest(&path, known).filter(|near| *near != path).map(str::to_owned);
    let error = ApiError::UnknownRoute { path, nearest };
    around::rejection(&request, error)
}

async fn wrong_method(request: Request) -> Response {
    let path = request.extensions().get::<axum::extract::MatchedPath>().map_or("", |path| path.as_str());
    let allowed = routes().into_iter().find(|(known, ..)| *known == path).map_or("", |(_, allowed, _)| allowed);
    if request.uri().path() == responses::COMPACT {
        let allowed = "`truncation`: \"auto\" of a response, which leaves the oldest turns out";
        let error = ApiError::not_served(responses::COMPACT, "asked for", allowed, "compacting a conversation");
        return around::rejection(&request, error);
    }
    let method = request.method().to_string();
    around::rejection(&request, ApiError::WrongMethod { method, allowed: allowed.to_owned() })
}

fn panicked(panic: Box<dyn std::any::Any + Send>) -> Response {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    ApiError::Internal { log: format!("a handler panicked: {text}") }.into_response()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_route_is_described_and_every_description_is_of_a_route() {
        let all = routes();
        let methods = all.iter().flat_map(|(path, allowed, _)| allowed.split(", ").map(move |method| (method, *path)));
        // HEAD is a GET whose body stays away.
        let answered: BTreeSet<(String, &str)> = methods
            .filter(|(method, _)| *method != "HEAD")
            .map(|(method, path)| (method.to_lowercase(), path))
            .collect();
        let described: Vec<(String, &str)> =
            openapi::described().map(|(method, path)| (method.to_owned(), path)).collect();
        assert_eq!(described.iter().cloned().collect::<BTreeSet<_>>(), answered);
        assert_eq!(described.len(), answered.len(), "none is described twice");
    }
}
