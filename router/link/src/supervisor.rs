//! The supervisor: keeps one worker alive, life after life, until it is told to stop or nothing helps.
//!
//! Invariant: when a life has ended, its process (if it was our child) is dead and reaped before anybody hears of it; and
//! whoever it was, it touches host memory no more.

use std::{
    cell::Cell,
    time::{Duration, Instant},
};

use crossbeam_channel::Sender;
use pelton_frame::{Layout, RouterEnd};
use tokio::{
    select,
    sync::mpsc::UnboundedReceiver,
    time::{sleep, timeout},
};

use crate::{
    Budget, LinkEvent, LinkOptions, WorkerSpec,
    client::{Route, Said},
    error::Trouble,
    folder::Folder,
    handle::Command,
    process::{EXIT_AFTER_HANG_UP, Process},
    session::{Address, Session},
    shortage::{Kills, smaller_kv},
    watch::until_lifeless,
};

/// The wait before the second try after a loss; the first is made at once, and each further wait is twice as long.
const BACK_OFF_FIRST: Duration = Duration::from_millis(500);
/// A worker that served for so long was sound: its loss starts the back-off from the beginning.
const SOUND: Duration = Duration::from_secs(30);

pub(crate) struct Supervisor {
    options: LinkOptions,
    route: Route,
    layout: Layout,
    events: Sender<LinkEvent>,
    commands: UnboundedReceiver<Command>,
}

/// What there is of a worker at one moment. Kept outside of the work on it, which may be cut off anywhere.
#[derive(Default)]
struct Life {
    process: Option<Process>,
    session: Option<Session>,
    attached_at: Cell<Option<Instant>>,
    budget: Cell<Option<Budget>>, // once the worker has made its plan
}

enum End {
    Lost(Trouble),
    Shutdown(Duration),
}

impl Supervisor {
    pub(crate) fn new(
        options: LinkOptions,
        route: Route,
        layout: Layout,
        events: Sender<LinkEvent>,
        commands: UnboundedReceiver<Command>,
    ) -> Self {
        Self { options, route, layout, events, commands }
    }

    pub(crate) async fn run(mut self) {
        let (mut losses, mut failed_starts) = (0_u32, 0_u32);
        for epoch in 1.. {
            let mut life = Life::default();
            let kills = Kills::so_far();
            let trouble = match self.live(epoch, &mut life).await {
                End::Shutdown(deadline) => return life.stop(deadline).await,
                End::Lost(trouble) => trouble,
            };
            let served = life.attached_at.get().map(|at| at.elapsed());
            life.lose(self.options.deadlines.let_go).await;
            if kills.explain(&trouble) {
                self.take_less_memory(life.budget.take().as_ref());
            }
            if !trouble.is_final() {
                tracing::warn!(epoch, "worker lost: {trouble}"); // what is final is told by whoever gives up
            }
            self.tell(LinkEvent::Lost { epoch, reason: trouble.to_string() });

            failed_starts = if served.is_some() { 0 } else { failed_starts + 1 };
            losses = if served.is_some_and(|served| served > SOUND) { 0 } else { losses + 1 };
            if trouble.is_final() || failed_starts >= self.failed_starts_max() {
                return self.tell(LinkEvent::GaveUp { reason: trouble.to_string() });
            }
            if self.pause(back_off(losses).min(self.options.deadlines.back_off)).await.is_err() {
                return;
            }
        }
    }

    /// One life, until it is lost or commanded to end.
    async fn live(&mut self, epoch: u32, life: &mut Life) -> End {
        let Self { options, route, layout, events, commands } = self;
        let tell = |event| {
            // An engine that has gone wants to know nothing.
            let _ = events.send(event);
            options.bell.ring();
        };
        let Life { process, session, attached_at, budget } = life;
        select! {
            biased;
            end = command(commands, attached_at) => end,
            trouble = serve(options, route, layout, epoch, (process, session, attached_at, budget), tell) => End::Lost(trouble),
        }
    }

    /// A wait that a shutdown ends.
    async fn pause(&mut self, time: Duration) -> Result<(), Duration> {
        let attached_at = Cell::new(None);
        select! {
            biased;
            end = command(&mut self.commands, &attached_at) => match end {
                End::Shutdown(deadline) => Err(deadline),
                End::Lost(_) => Ok(()),
            },
            () = sleep(time) => Ok(()),
        }
    }

    /// The worker was killed for want of memory: the next one has a smaller arena.
    fn take_less_memory(&mut self, budget: Option<&Budget>) {
        let Some(budget) = budget else { return };
        match smaller_kv(budget) {
            Some(kv_bytes) => {
                tracing::warn!(
                    was = budget.kv_bytes,
                    kv_bytes,
                    "the kernel has killed the worker for want of memory: the next one takes less KV"
                );
                self.options.load.kv_bytes = kv_bytes;
            }
            None => tracing::error!(
                "the kernel has killed the worker for want of memory, and its KV holds only one request of the longest context: lower --max-model-len, or give it more memory"
            ),
        }
    }

    /// A worker that others start may come back whenever they start it.
    fn failed_starts_max(&self) -> u32 {
        match self.options.spec {
            WorkerSpec::Spawn { .. } => self.options.failed_starts_max,
            WorkerSpec::Unix { .. } | WorkerSpec::Tcp { .. } => u32::MAX,
        }
    }

    fn tell(&self, event: LinkEvent) {
        let _ = self.events.send(event); // see `live`
        self.options.bell.ring();
    }
}

fn back_off(losses: u32) -> Duration {
    match losses {
        0 | 1 => Duration::ZERO,
        _ => BACK_OFF_FIRST.saturating_mul(2_u32.saturating_pow(losses - 2)),
    }
}

/// Waits for a command that ends this life.
async fn command(commands: &mut UnboundedReceiver<Command>, attached_at: &Cell<Option<Instant>>) -> End {
    loop {
        match commands.recv().await {
            Some(Command::Replace(reason)) if attached_at.get().is_some() => {
                return End::Lost(Trouble::Replaced(reason));
            }
            // It was about a life that has ended already.
            Some(Command::Replace(reason)) => tracing::debug!("not replaced again: {reason}"),
            Some(Command::Shutdown(deadline)) => return End::Shutdown(deadline),
            None => return End::Shutdown(Duration::ZERO),
        }
    }
}

/// What a life consists of, each to be filled when it is there.
type Parts<'a> =
    (&'a mut Option<Process>, &'a mut Option<Session>, &'a Cell<Option<Instant>>, &'a Cell<Option<Budget>>);

/// Starts, attaches and watches a worker; returns why it is lost.
async fn serve(
    options: &LinkOptions,
    route: &Route,
    layout: &Layout,
    epoch: u32,
    (process, session, attached_at, budget): Parts<'_>,
    tell: impl Fn(LinkEvent),
) -> Trouble {
    let said = |said| match said {
        Said::Progress { stage, done, total } => tell(LinkEvent::Progress { stage, done, total }),
        Said::Budget(planned) => {
            budget.set(Some(planned));
            tell(LinkEvent::Budget(planned));
        }
    };
    let stage = |stage: String| tell(LinkEvent::Progress { stage, done: 0, total: 0 });
    let opened = match &options.spec {
        WorkerSpec::Spawn { program, arguments, env, processors } => {
            stage("starting the worker".to_owned());
            let folder = match Folder::create() {
                Ok(folder) => folder,
                Err(error) => return Trouble::System { call: "making a folder for sockets", error },
            };
            let child = match Process::spawn(program, arguments, env, processors, &folder.socket()) {
                Ok(child) => process.insert(child),
                Err(trouble) => return trouble,
            };
            select! {
                biased;
                ending = child.ended() => Err(Trouble::Ended(ending)),
                opened = Session::open_here(options, layout, epoch, Address::Ours(folder), said) => opened,
            }
        }
        WorkerSpec::Unix { path } => {
            stage(format!("waiting for the worker at {}", path.display()));
            Session::open_here(options, layout, epoch, Address::Theirs(path.clone()), said).await
        }
        WorkerSpec::Tcp { address, .. } => {
            stage(format!("waiting for the worker at {address}"));
            Session::open_there(options, layout, epoch, route, said).await
        }
    };
    let session = match opened {
        Ok((opened, report)) => {
            let port = RouterEnd::new(opened.memory.clone());
            attached_at.set(Some(Instant::now()));
            tell(LinkEvent::Attached { epoch, port, report, host: opened.host.clone(), masks: opened.masks.clone() });
            session.insert(opened)
        }
        Err(trouble) if trouble.is_final() => return trouble,
        Err(trouble) => return or_exit(trouble, process).await,
    };
    watch(options, process, session).await
}

/// Waits until the process, the connection or the worker's silence says that it is over.
async fn watch(options: &LinkOptions, process: &mut Option<Process>, session: &mut Session) -> Trouble {
    let vital = session.vital();
    let exited = async {
        match process {
            Some(process) => Trouble::Ended(process.ended().await),
            None => std::future::pending().await,
        }
    };
    let trouble = select! {
        biased;
        trouble = exited => return trouble,
        trouble = session.ended() => trouble,
        trouble = until_lifeless(vital, &options.deadlines) => return trouble,
    };
    or_exit(trouble, process).await
}

/// A connection that breaks may be the first sign of a death, whose reason says more.
async fn or_exit(trouble: Trouble, process: &mut Option<Process>) -> Trouble {
    match process {
        Some(process) => timeout(EXIT_AFTER_HANG_UP, process.ended()).await.map_or(trouble, Trouble::Ended),
        None => trouble,
    }
}

impl Life {
    /// Ends it at once. A worker owns nothing, so there is nothing to save.
    async fn kill(&mut self) {
        self.session = None;
        if let Some(process) = &mut self.process {
            process.kill().await;
        }
    }

    /// The same, and afterwards a worker that is not ours to end touches host memory no more either: others go on using it.
    async fn lose(&mut self, let_go: Duration) {
        if self.process.is_none()
            && let Some(session) = &mut self.session
        {
            session.let_go(let_go).await;
        }
        self.kill().await;
    }

    /// Lets it finish its steps and end by itself, then makes it end.
    async fn stop(mut self, deadline: Duration) {
        let by = Instant::now() + deadline;
        let Some(session) = &mut self.session else { return self.kill().await };
        if deadline.is_zero() {
            return self.kill().await;
        }
        session.drain(self.process.is_some(), deadline).await;
        self.session = None;
        if let Some(process) = &mut self.process
            && timeout(by.saturating_duration_since(Instant::now()), process.ended()).await.is_err()
        {
            process.kill().await;
        }
    }
}
