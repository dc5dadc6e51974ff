//! One connection to a worker, from the first call to attached memory.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use pelton_frame::{Bell, Capacities, HostMemory, Layout, MaskMemory, MaskWriter, Memory};
use pelton_rpc::v1::{DrainRequest, HealthRequest, ShutdownRequest};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::UnixStream,
    select,
    task::JoinHandle,
    time::timeout,
};

use crate::{
    LinkOptions, ModelReport,
    client::{self, Client, Route, Said, dial},
    error::{Trouble, within},
    folder::Folder,
    handover::hand_over,
    inline::Steps,
    process::{EXIT_AFTER_HANG_UP, Neighbour},
};

/// A worker that has loaded its model and maps, or mirrors, a memory of this epoch.
pub(crate) struct Session {
    pub(crate) memory: Memory,
    pub(crate) host: Option<Arc<HostMemory>>,
    pub(crate) masks: Arc<MaskWriter>,
    client: Client,
    carriage: Carriage,
}

/// How frames travel.
enum Carriage {
    /// Both map one memory. Each side hears of the other's end by the end of the socket; of a neighbour's death also by a
    /// pidfd, unless it lives in another container.
    Shared { socket: UnixStream, process: Option<Neighbour> },
    /// Over gRPC, by a task that ends with the reason.
    Inline(JoinHandle<Trouble>),
}

/// Where the control socket of a worker on this host is.
pub(crate) enum Address {
    /// In our folder, which goes as soon as both connections stand.
    Ours(Folder),
    /// Where others have put it.
    Theirs(PathBuf),
}

impl Address {
    fn path(&self) -> PathBuf {
        match self {
            Self::Ours(folder) => folder.socket(),
            Self::Theirs(path) => path.clone(),
        }
    }
}

impl Session {
    /// Steps 2 to 5 of a worker's life (see the crate's first comment) with a worker on this host.
    pub(crate) async fn open_here(
        options: &LinkOptions,
        layout: &Layout,
        epoch: u32,
        address: Address,
        tell: impl FnMut(Said),
    ) -> Result<(Self, ModelReport), Trouble> {
        let deadlines = &options.deadlines;
        let nonce = nonce()?;
        let control = dial(&address.path(), deadlines.connect).await?;
        let (process, can_be_ended) = match &address {
            Address::Ours(_) => (None, true), // its end is seen by whoever has spawned it
            Address::Theirs(_) => {
                let process = Neighbour::behind(&control);
                let is_seen = process.is_some();
                (process, is_seen)
            }
        };
        let mut client = client::over_unix(control, layout).await?;
        let hello = client::handshake(&mut client, &nonce, epoch, deadlines).await?;
        if hello.memory_socket.is_empty() {
            return Err(Trouble::Contract("the worker has no memory socket, and it is on this host".to_owned()));
        }
        let mut socket = dial(Path::new(&hello.memory_socket), deadlines.attach).await?;
        drop(address); // both connections stand
        let report = client::load(&mut client, &options.load, &hello, deadlines, tell).await?;
        let layout = &for_model(layout, &report)?;
        let memory = Memory::create(layout, epoch)?;
        let host = match &options.host {
            Some(share) if can_be_ended => share.memory(&report),
            Some(_) => {
                tracing::warn!("the worker runs in another container: it reaches no host memory");
                None
            }
            None => None,
        };
        let masks = MaskMemory::create(layout.capacities().slots, report.vocab_size, epoch)?;
        let mut files = vec![memory.fd().expect("created as a file"), options.bell.fd()];
        files.push(masks.fd().expect("created as a file"));
        files.extend(host.as_ref().map(|host| host.fd()));
        let handed = hand_over(&mut socket, &nonce, &files);
        // A card pins its host memory first, at some gigabytes a second.
        let gigabytes = host.as_ref().map_or(0, |host| (u64::from(host.blocks()) * host.stride() as u64) >> 30);
        within("attach", deadlines.attach + Duration::from_secs(gigabytes), handed).await?;
        let carriage = Carriage::Shared { socket, process };
        let masks = Arc::new(MaskWriter::shared(masks));
        Ok((Self { memory, host, masks, client, carriage }, report))
    }

    /// The same with a worker elsewhere.
    pub(crate) async fn open_there(
        options: &LinkOptions,
        layout: &Layout,
        epoch: u32,
        route: &Route,
        tell: impl FnMut(Said),
    ) -> Result<(Self, ModelReport), Trouble> {
        let Route::There { endpoint, auth } = route else { unreachable!("a tcp worker has a route of its own") };
        let deadlines = &options.deadlines;
        let nonce = nonce()?;
        let mut client = client::over_tcp(endpoint, auth.clone(), deadlines.connect, layout).await?;
        let hello = client::handshake(&mut client, &nonce, epoch, deadlines).await?;
        let report = client::load(&mut client, &options.load, &hello, deadlines, tell).await?;
        let layout = &for_model(layout, &report)?;
        let steps = within("attach", deadlines.attach, Steps::open(&mut client, &nonce, layout)).await?;
        let memory = Memory::local(layout, epoch)?;
        let bell: Arc<Bell> = Arc::clone(&options.bell);
        let masks = MaskWriter::inline(layout.capacities().slots, report.vocab_size, steps.mask_carrier());
        let masks = Arc::new(masks);
        let task = tokio::spawn(steps.carry(memory.clone(), bell));
        Ok((Self { memory, host: None, masks, client, carriage: Carriage::Inline(task) }, report))
    }

    /// Waits until the connection itself shows that the worker has gone, or can go on no more.
    pub(crate) async fn ended(&mut self) -> Trouble {
        match &mut self.carriage {
            Carriage::Shared { socket, process: Some(process) } => {
                let trouble = select! {
                    biased;
                    trouble = process.ended() => return trouble,
                    trouble = hung_up(socket) => trouble,
                };
                timeout(EXIT_AFTER_HANG_UP, process.ended()).await.unwrap_or(trouble)
            }
            Carriage::Shared { socket, process: None } => hung_up(socket).await,
            Carriage::Inline(task) => match task.await {
                Ok(trouble) => trouble,
                Err(error) => Trouble::System { call: "carrying frames", error: error.into() },
            },
        }
    }

    /// By what the worker's life is seen. Inline, the memory's heartbeat says nothing of it, so it is asked.
    pub(crate) fn vital(&self) -> Vital {
        let (asked, pid) = match &self.carriage {
            Carriage::Shared { socket, .. } => (None, socket.peer_cred().ok().and_then(|peer| peer.pid())),
            Carriage::Inline(_) => (Some(self.client.clone()), None),
        };
        Vital { memory: self.memory.clone(), asked, pid }
    }

    /// Returns once a worker that others started touches host memory no more. It says so by the end of its memory socket,
    /// which it closes when its last step is done and the memory is let go; one that does not is killed.
    pub(crate) async fn let_go(&mut self, allowed: Duration) {
        let Carriage::Shared { socket, process: Some(process) } = &mut self.carriage else { return };
        if self.host.is_none() {
            return;
        }
        self.memory.detach();
        let closed = async {
            // A worker that has closed already, or is dead, makes both fail: then there is nothing to wait for.
            let _ = socket.shutdown().await;
            while socket.read(&mut [0; 64]).await.is_ok_and(|read| read > 0) {}
        };
        if timeout(allowed, closed).await.is_err() {
            tracing::warn!(
                "the wait `let-go` has passed its deadline of {} s: the worker is killed, since it may still write to host memory",
                allowed.as_secs_f32()
            );
            process.kill();
            process.ended().await;
        }
    }

    /// Lets the worker finish its steps; a child is asked to end as well.
    pub(crate) async fn drain(&mut self, is_child: bool, allowed: Duration) {
        let calls = async {
            let drained = self.client.drain(DrainRequest {}).await.map(|_| ());
            if is_child { drained.and(self.client.shutdown(ShutdownRequest {}).await.map(|_| ())) } else { drained }
        };
        match timeout(allowed, calls).await {
            Ok(Ok(())) => {}
            Ok(Err(status)) => tracing::debug!("the worker does not drain: {}", status.message()),
            Err(_) => tracing::debug!("the worker does not drain within {allowed:?}"),
        }
    }
}

/// The signs of life of a session.
pub(crate) struct Vital {
    pub(crate) memory: Memory,
    asked: Option<Client>,
    pid: Option<i32>, // on this host
}

impl Vital {
    /// Whether somebody has stopped the process, so that no step moves however long it may take. False where one cannot see.
    pub(crate) fn is_stopped(&self) -> bool {
        let stat = self.pid.and_then(|pid| std::fs::read_to_string(format!("/proc/{pid}/stat")).ok());
        // "PID (NAME) STATE ...", and the name may hold anything.
        stat.as_deref().and_then(|stat| stat.rsplit_once(") ")).is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
    }

    /// Whether the worker has answered a call. False without one if its memory beats by itself.
    pub(crate) async fn answers(&mut self, allowed: Duration) -> bool {
        match &mut self.asked {
            None => false,
            Some(client) => timeout(allowed, client.health(HealthRequest {})).await.is_ok_and(|answer| answer.is_ok()),
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.memory.detach();
        if let Carriage::Inline(task) = &self.carriage {
            task.abort(); // ends the stream
        }
    }
}

/// The layout that was planned before anything was loaded, with room for the vectors of this model, for its texts and for prompts that
/// are given as its embeddings.
fn for_model(layout: &Layout, report: &ModelReport) -> Result<Layout, Trouble> {
    let pooled_width = report.pooling.as_ref().map_or(0, |pooling| pooling.width);
    let capacities = *layout.capacities();
    let tokens = capacities.tokens.max(report.tokens_together());
    let scores = if pooled_width > 0 { 0 } else { capacities.scores };
    let embed_width = if capacities.embeds > 0 { report.embed_width } else { 0 };
    let embeds = if embed_width > 0 { capacities.embeds } else { 0 };
    Layout::new(Capacities { pooled_width, tokens, scores, embeds, embed_width, ..capacities }).map_err(|error| {
        let widths = format!("vectors have {pooled_width} numbers and whose embeddings have {embed_width}");
        Trouble::Contract(format!("a model whose {widths}: {error}"))
    })
}

/// Waits for the end of the memory socket.
async fn hung_up(socket: &mut UnixStream) -> Trouble {
    match socket.read(&mut [0]).await {
        Ok(0) => Trouble::HungUp,
        Ok(_) => Trouble::Contract("the worker talks on the memory socket".to_owned()),
        Err(error) => Trouble::System { call: "reading the memory socket", error },
    }
}

fn nonce() -> Result<[u8; 16], Trouble> {
    let mut nonce = [0; 16];
    getrandom::fill(&mut nonce).map_err(|error| Trouble::Contract(format!("no randomness: {error}")))?;
    Ok(nonce)
}
