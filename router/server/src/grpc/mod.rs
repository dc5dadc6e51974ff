//! The gRPC door: `pelton.v1.Pelton`, the standard health service, reflection.
//!
//! A thin translation onto `generate`, which HTTP uses too. Never here: checks of values, defaults, text or tokens.

mod bounds;
mod chat;
mod convert;
mod health;
mod refusals;
mod sampling;
mod service;

use std::convert::Infallible;

use axum::{
    Router,
    body::Body,
    extract::Request,
    middleware::{from_fn, from_fn_with_state},
    response::IntoResponse,
};
use pelton_rpc::v1::pelton_server::{PeltonServer, SERVICE_NAME as PELTON};
use tonic::server::NamedService;
use tower::Service;

use crate::http::App;

/// Bytes of a message to a client at most: a million token ids take 3 MB, and tonic's own bound is 4.
const ANSWER_BYTES_MAX: usize = 64 << 20;

/// Adds our services to a router; the router's own fallback answers whatever else is called.
pub(crate) fn add_services(router: Router, app: &App) -> Router {
    let pelton = PeltonServer::new(service::PeltonService::new(app.serving.clone()))
        .max_decoding_message_size(app.serving.limits.body_bytes)
        .max_encoding_message_size(ANSWER_BYTES_MAX);
    let reflection = || {
        tonic_reflection::server::Builder::configure()
            .register_encoded_file_descriptor_set(pelton_rpc::DESCRIPTORS)
            .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
            // The worker's contract is in our descriptors too, but is not served here.
            .with_service_name(PELTON)
            .with_service_name("grpc.health.v1.Health")
    };
    let compiled = "our descriptors were compiled by our own build";
    let health = health::service(app.serving.status.clone(), PELTON);
    let router = router.merge(
        add(Router::new(), pelton)
            .layer(from_fn_with_state(app.clone(), bounds::check))
            .layer(from_fn(refusals::explain)),
    );
    let router = add(router, reflection().build_v1().expect(compiled));
    // What most clients still ask first.
    let router = add(router, reflection().build_v1alpha().expect(compiled));
    add(router, health)
}

fn add<S>(router: Router, service: S) -> Router
where
    S: Service<Request<Body>, Error = Infallible> + NamedService + Clone + Send + Sync + 'static,
    S::Response: IntoResponse,
    S::Future: Send + 'static,
{
    router.route_service(&format!("/{}/{{*method}}", S::NAME), service)
}
