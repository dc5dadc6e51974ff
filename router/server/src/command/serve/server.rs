//! A server from its first answer to its last: the doors, the engine behind them, and their end.

use std::sync::{Arc, OnceLock};
use std::thread;

use indicatif::MultiProgress;
use pelton_engine::{Engine, ModelReport, Phase, Status};
use pelton_grammar::Compiler;
use pelton_text::Format;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::doors::Doors;
use super::opened::{self, Opened};
use super::parts;
use super::starting::Starting;
use crate::command::Trouble;
use crate::config::{Config, Surroundings};
use crate::display::Progress;
use crate::http::{self, App, InnerDoor};
use crate::metrics::Metrics;

/// A model that is served, or about to be.
pub(crate) struct Server {
    app: App,
    engine: Engine,
    status: watch::Receiver<Status>,
    metrics: Arc<Metrics>,
    grammars: Arc<Compiler>,
    url: String,
    name: String,
    needs_key: bool,
    chats: bool,
    format: Option<Format>,
    closing: CancellationToken,
    hurry: CancellationToken,
    serving: JoinHandle<()>,
}

impl Server {
    /// Finds the model and starts its engine; the doors answer from the first moment. Loading goes on behind it. Whoever stops waiting
    /// ends the engine, if there is one in `started` by then.
    pub(crate) async fn start(
        config: &Config,
        around: &Surroundings,
        doors: Doors,
        bars: &MultiProgress,
        started: &Arc<OnceLock<Engine>>,
    ) -> Result<Self, Trouble> {
        let (keys, desk) = (parts::api_keys(config)?, parts::desk(config)?);
        let starting = Starting::answer(&doors)?;
        let opened = {
            let (config, around, told, bars) = (config.clone(), around.clone(), starting.told(), bars.clone());
            let started = Arc::clone(started);
            let opening = tokio::task::spawn_blocking(move || {
                let progress = Progress::new(&bars);
                let show = |stage: &str, done, total| {
                    progress.show(stage, done, total);
                    told.tell(stage, done, total);
                };
                opened::open(&config, &around, &show, &started)
            });
            opening.await.expect("opening a model does not panic")?
        };
        starting.end().await;
        let Opened { engine, serving, name, chats } = opened;
        let (url, needs_key) = (doors.url(), !keys.is_empty());
        let (metrics, format) = (Arc::clone(&serving.metrics), serving.format.clone());
        let grammars = Arc::clone(&serving.grammars);
        let (app, listeners) = (App::new(serving, keys, parts::kept(config), desk), doors.listeners()?);
        let within = app.clone();
        let (closing, drain) = (CancellationToken::new(), config.server.drain_timeout);
        let (closed, hurry) = (closing.clone(), CancellationToken::new());
        let hurried = hurry.clone();
        let serving =
            tokio::spawn(async move { http::serve(app, listeners, closed.cancelled(), drain, hurried).await });
        Ok(Self {
            app: within,
            status: engine.status(),
            metrics,
            grammars,
            engine,
            url,
            name,
            needs_key,
            chats,
            format,
            closing,
            hurry,
            serving,
        })
    }

    /// Shows progress until the model is loaded, or says why it cannot be.
    pub(crate) async fn loaded(&mut self, bars: &MultiProgress) -> Result<(), Trouble> {
        let progress = Progress::new(bars);
        loop {
            match &self.status.borrow_and_update().phase {
                Phase::Ready => {
                    let grammars = Arc::clone(&self.grammars);
                    // After the load, which needs the processors more; without the thread the first grammar does it.
                    let _ = thread::Builder::new().name("pelton-vocabulary".to_owned()).spawn(move || grammars.warm());
                    return Ok(());
                }
                Phase::Failed { reason } => return Err(Trouble::Failed(reason.clone())),
                Phase::Loading { stage, done, total } => {
                    self.metrics.loading(*total);
                    progress.show(stage, *done, *total);
                }
                Phase::Recovering { reason } => progress.show(&format!("starting the worker again: {reason}"), 0, 0),
                Phase::Draining | Phase::Ended => return Err(Trouble::Failed("the engine has ended".into())),
            }
            if self.status.changed().await.is_err() {
                return Err(Trouble::Failed("the engine has ended".into()));
            }
        }
    }

    /// Resolves when the engine has given up.
    pub(crate) async fn failed(&mut self) -> Trouble {
        match self
            .status
            .wait_for(|status| matches!(status.phase, Phase::Failed { .. } | Phase::Ended))
            .await
            .map(|status| status.phase.clone())
        {
            Ok(Phase::Failed { reason }) => Trouble::Failed(reason),
            _ => Trouble::Failed("the engine has ended".into()),
        }
    }

    /// What was loaded.
    pub(crate) fn model(&self) -> Option<ModelReport> {
        self.status.borrow().model.clone()
    }

    /// Where this machine reaches it.
    pub(crate) fn url(&self) -> &str {
        &self.url
    }

    /// Where requests come in without a client.
    pub(crate) fn inner_door(&self) -> InnerDoor {
        self.app.inner_door()
    }

    /// The name that answers carry.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Whether clients must send a key.
    pub(crate) fn needs_key(&self) -> bool {
        self.needs_key
    }

    /// Whether the model has a chat template.
    pub(crate) fn chats(&self) -> bool {
        self.chats
    }

    /// How the model writes reasoning and tool calls.
    pub(crate) fn format(&self) -> Option<&Format> {
        self.format.as_ref()
    }

    /// Takes no more requests, lets running ones finish for as long as the drain may take or until `hurry` resolves, ends the
    /// others with an error, and then the workers. Returns whether it had to hurry.
    pub(crate) async fn drain(mut self, hurry: impl Future<Output = ()>) -> bool {
        self.closing.cancel();
        tokio::select! {
            () = self.ended() => false,
            () = hurry => {
                self.stop().await;
                true
            }
        }
    }

    /// Resolves when the doors are closed and the engine has ended.
    async fn ended(&mut self) {
        // A panic there has been reported there.
        if (&mut self.serving).await.is_err() {
            self.engine.shutdown().await;
        }
    }

    /// The same at once.
    pub(crate) async fn stop(mut self) {
        self.hurry.cancel();
        self.closing.cancel();
        self.ended().await;
    }
}
