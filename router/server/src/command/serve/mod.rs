//! `pelton serve`: from the command to a served model, and to its end.
//!
//! 1. The port is opened, and answers: alive, not ready, and why.
//! 2. The model is found: a folder, the hub's cache, a download, or the demo model.
//! 3. The engine starts; the API takes the port over; loading is shown until the table says what fits.
//! 4. SIGTERM, SIGINT or SIGHUP: running requests finish, for `drain-timeout` at most; what is left ends with an error. A second signal
//!    ends at once.

mod doors;
mod model;
mod opened;
mod parts;
mod server;
mod starting;
mod stop;
mod text_side;
mod weights;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use indicatif::MultiProgress;
use pelton_engine::Engine;
use pelton_text::Format;

use super::{Line, Trouble, resolve, runtime, tree};
use crate::config::{Config, LogFormat, Surroundings, server_settings};
use crate::display::{Start, started};
use crate::logging;

pub(super) use doors::Doors;
pub(super) use model::find as find_model;
pub(crate) use opened::open;
pub(super) use parts::{Share, engine_config, refused_here, secrets, worker_finds_memory};
pub(super) use server::Server;
pub(super) use stop::Stop;

const USAGE: &str = "\
pelton serve [MODEL] [FLAGS]: serves a model over HTTP and gRPC on one port.

MODEL is a folder in Hugging Face layout, or ORG/NAME from the hub; without it the demo model is served.
";

/// Serves until it is told to stop.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let began = Instant::now();
    let Line::Run(values) = resolve(USAGE, args, Some("model"), &server_settings(), around)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let config = tree(&values)?;
    let bars = MultiProgress::new();
    logging::start(&config.log, &bars);
    let runtime = runtime()?;
    let ended = runtime.block_on(serve(&config, around, &bars, began));
    // A download that was told to stop may still wait for the network in its own thread, a vocabulary still be read.
    runtime.shutdown_timeout(Duration::from_millis(100));
    ended.map(|()| ExitCode::SUCCESS)
}

/// A server, which finds its model first: that may be a download. None: it was to stop before there was one.
pub(super) async fn start_unless_stopped(
    config: &Config,
    around: &Surroundings,
    bars: &MultiProgress,
    stop: &mut Stop,
) -> Result<Option<Server>, Trouble> {
    let doors = Doors::open(config)?;
    let engine = Arc::new(OnceLock::<Engine>::new());
    tokio::select! {
        started = Server::start(config, around, doors, bars, &engine) => started.map(Some),
        () = stop.asked() => {
            if let Some(engine) = engine.get() {
                tokio::select! {
                    () = engine.shutdown() => {}
                    () = stop.asked_again() => {}
                }
            }
            Ok(None)
        }
    }
}

async fn serve(config: &Config, around: &Surroundings, bars: &MultiProgress, began: Instant) -> Result<(), Trouble> {
    let mut stop = Stop::listen()?;
    let Some(mut server) = start_unless_stopped(config, around, bars, &mut stop).await? else { return Ok(()) };
    let loaded = tokio::select! {
        loaded = server.loaded(bars) => loaded,
        () = stop.asked() => {
            server.stop().await;
            return Ok(());
        }
    };
    if let Err(trouble) = loaded {
        server.stop().await;
        return Err(trouble);
    }
    announce(config, &server, began.elapsed(), bars);
    let failed = tokio::select! {
        trouble = server.failed() => Some(trouble),
        () = stop.asked() => None,
    };
    match failed {
        Some(trouble) => {
            server.stop().await;
            Err(trouble)
        }
        None => {
            tracing::info!(
                seconds = config.server.drain_timeout.as_secs(),
                "stopping: running requests may finish; a second signal ends at once"
            );
            if server.drain(stop.asked_again()).await {
                return Err(Trouble::Failed("ended by a second signal; running requests were cut".into()));
            }
            Ok(())
        }
    }
}

/// The table for people, one message for collectors.
fn announce(config: &Config, server: &Server, took: Duration, bars: &MultiProgress) {
    let Some(model) = server.model() else { return };
    if config.log.log_format == LogFormat::Json {
        let (family, device, max_model_len) = (model.family, model.device, model.max_model_len);
        tracing::info!(
            url = server.url(),
            model = server.name(),
            family,
            device,
            max_model_len,
            blocks = model.blocks,
            block_size = model.block_size,
            workers = config.workers(),
            format = server.format().map_or("none", Format::name),
            "ready"
        );
        return;
    }
    let start = Start {
        name: server.name(),
        workers: config.workers(),
        max_running: config.max_running(),
        url: server.url(),
        needs_key: server.needs_key(),
        chats: server.chats(),
        format: server.format(),
        took,
    };
    // Standard error may be closed; serving goes on.
    _ = bars.suspend(|| write!(std::io::stderr(), "{}", started(&model, &start)));
}
