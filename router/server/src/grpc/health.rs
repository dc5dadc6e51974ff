//! `grpc.health.v1.Health`: SERVING exactly while a request would be answered.

use pelton_engine::Status;
use tokio::sync::watch;
use tonic_health::{
    ServingStatus,
    pb::health_server::{Health, HealthServer},
    server::health_reporter,
};

use crate::http::is_ready;

/// The service, and a task that tells it of every change. `name`: our own service; the empty name is the whole server.
pub(super) fn service(mut status: watch::Receiver<Status>, name: &'static str) -> HealthServer<impl Health> {
    let (reporter, server) = health_reporter();
    tokio::spawn(async move {
        loop {
            let serving =
                if is_ready(&status.borrow_and_update()) { ServingStatus::Serving } else { ServingStatus::NotServing };
            reporter.set_service_status("", serving).await;
            reporter.set_service_status(name, serving).await;
            if status.changed().await.is_err() {
                return; // the engine is gone, and told so before
            }
        }
    });
    server
}
