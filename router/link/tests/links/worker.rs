//! A worker that obeys the contract and misbehaves as `FAULT` says. It draws `drawn(last token)` for every row.

use std::{
    env,
    io::{IoSliceMut, Read, Write},
    mem::MaybeUninit,
    net::Shutdown,
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener as MemoryListener, UnixStream as MemoryStream},
    },
    pin::Pin,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use pelton_frame::*;
use pelton_rpc::{WORKER_PROTOCOL, v1::*};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use tokio::{
    net::{TcpListener, UnixListener},
    signal::unix::{SignalKind, signal},
    sync::{Notify, mpsc},
};
use tokio_stream::{
    Stream, StreamExt,
    wrappers::{TcpListenerStream, UnboundedReceiverStream, UnixListenerStream},
};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Identity, Server, ServerTlsConfig},
};
use worker_server::{Worker, WorkerServer};

/// What the step with this number does, and nothing before it.
pub(crate) const FAULTY_STEP: u64 = 3;
pub(crate) const BLOCKS: u32 = 128;
const LONG: Duration = Duration::from_secs(60);

/// The token that follows `last`.
pub(crate) fn drawn(last: u32) -> u32 {
    (last * 31 + 7) % 1000
}

/// `LISTEN`: unix:///path or tcp://host:port. For tcp also `TOKEN`, and `CERT` and `KEY` as PEM.
pub(crate) fn main() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(serve());
    std::process::exit(0); // step threads may still wait
}

async fn serve() {
    let listen = env::var("LISTEN").unwrap();
    let fault = env::var("FAULT").unwrap_or_default();
    if fault == "exits at start" {
        eprintln!("no module named `torch`");
        std::process::exit(3);
    }
    if fault == "deaf" {
        let _ = signal(SignalKind::terminate()).unwrap(); // caught, and nobody listens
    }
    let end = Arc::new(Notify::new());
    let path = listen.strip_prefix("unix://").map(str::to_owned);
    let fake = Fake {
        fault,
        memory_socket: path.as_ref().map(|path| format!("{path}.memory")).unwrap_or_default(),
        claim: Arc::default(),
        token: env::var("TOKEN").ok(),
        end: Arc::clone(&end),
    };
    if let Some(path) = path {
        let memory = MemoryListener::bind(&fake.memory_socket).unwrap();
        let (claim, fault) = (Arc::clone(&fake.claim), fake.fault.clone());
        thread::spawn(move || memory.incoming().for_each(|socket| serve_memory(socket.unwrap(), &claim, &fault)));
        let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
        println!("listening on {path}");
        let server = Server::builder().add_service(WorkerServer::new(fake));
        server.serve_with_incoming_shutdown(incoming, end.notified()).await.unwrap();
    } else {
        let listener = TcpListener::bind(listen.strip_prefix("tcp://").unwrap()).await.unwrap();
        println!("listening on {}", listener.local_addr().unwrap());
        let identity = Identity::from_pem(env::var("CERT").unwrap(), env::var("KEY").unwrap());
        let server = Server::builder().tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        let mut server = server;
        let incoming = TcpListenerStream::new(listener);
        let routes = server.add_service(WorkerServer::new(fake));
        routes.serve_with_incoming_shutdown(incoming, end.notified()).await.unwrap();
    }
}

#[derive(Default)]
struct Claim {
    nonce: Vec<u8>,
    epoch: u32,
}

struct Fake {
    fault: String,
    memory_socket: String,
    claim: Arc<Mutex<Claim>>,
    token: Option<String>,
    end: Arc<Notify>,
}

type Answers<T> = Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

impl Fake {
    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        match &self.token {
            Some(token) if given != Some(&format!("Bearer {token}")) => Err(Status::unauthenticated("wrong token")),
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl Worker for Fake {
    type LoadStream = Answers<LoadProgress>;
    type StepsStream = Answers<StepsResponse>;

    async fn handshake(&self, request: Request<HandshakeRequest>) -> Result<Response<HandshakeResponse>, Status> {
        self.admit(&request)?;
        let HandshakeRequest { nonce, epoch, .. } = request.into_inner();
        *self.claim.lock().unwrap() = Claim { nonce, epoch };
        Ok(Response::new(HandshakeResponse {
            protocol: if self.fault == "other version" { 99 } else { WORKER_PROTOCOL },
            records_checksum: RECORDS_CHECKSUM,
            pid: std::process::id(),
            device: "cpu".to_owned(),
            device_name: "none".to_owned(),
            worker_version: "9.9.9".to_owned(),
            memory_socket: self.memory_socket.clone(),
        }))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<Self::LoadStream>, Status> {
        self.admit(&request)?;
        if self.fault == "no such model" {
            return Err(Status::failed_precondition("there is no model in /nowhere"));
        }
        let request = request.into_inner();
        let budget = Budget { weights_bytes: 1 << 20, blocks: BLOCKS, block_size: 32, ..Budget::default() };
        // What tests want to know of this process travels in fields that hold any text.
        let stage = format!("reading weights {} {}", std::process::id(), self.memory_socket);
        let first = LoadProgress { stage, total: 1 << 20, budget: Some(budget), ..LoadProgress::default() };
        if self.fault == "loads for ever" {
            return Ok(Response::new(Box::pin(tokio_stream::once(Ok(first)).chain(tokio_stream::pending()))));
        }
        let report = ModelReport {
            family: self.memory_socket.clone(),
            dtype: request.dtype,
            vocab_size: 1000,
            max_model_len: 4096,
            block_size: 32,
            blocks: BLOCKS,
            budget: Some(budget),
            numerics_id: std::process::id().to_string(),
            invariant: true,
        };
        let last = LoadProgress { stage: "ready".to_owned(), report: Some(report), ..LoadProgress::default() };
        Ok(Response::new(Box::pin(tokio_stream::iter([Ok(first), Ok(last)]))))
    }

    async fn steps(&self, request: Request<Streaming<StepsRequest>>) -> Result<Response<Self::StepsStream>, Status> {
        self.admit(&request)?;
        let mut requests = request.into_inner();
        let Some(StepsRequest { kind: Some(steps_request::Kind::Attach(attach)) }) = requests.message().await? else {
            return Err(Status::invalid_argument("the first message is `attach`"));
        };
        let epoch = {
            let claim = self.claim.lock().unwrap();
            if attach.nonce != claim.nonce {
                return Err(Status::failed_precondition("wrong nonce"));
            }
            claim.epoch
        };
        let layout = Layout::new(capacities(attach.capacities.unwrap())).unwrap();
        let memory = Memory::local(&layout, epoch).unwrap();
        let (answers, stream) = mpsc::unbounded_channel();
        let say = move |kind| answers.send(Ok(StepsResponse { kind: Some(kind) })).is_ok();
        say(steps_response::Kind::LayoutChecksum(layout.checksum()));
        let (end, fault, mut outlet) =
            (WorkerEnd::new(memory.clone(), None), self.fault.clone(), Inline::new(memory.clone()));
        thread::spawn(move || {
            run(end, &fault, || {
                let bytes = outlet.next_result().unwrap().unwrap();
                say(steps_response::Kind::Result(bytes));
            });
        });
        tokio::spawn(async move {
            let mut inlet = Inline::new(memory.clone());
            while let Ok(Some(StepsRequest { kind: Some(steps_request::Kind::Frame(plan)) })) = requests.message().await
            {
                inlet.accept_plan(&plan).unwrap();
            }
            memory.detach();
        });
        Ok(Response::new(Box::pin(UnboundedReceiverStream::new(stream))))
    }

    async fn health(&self, request: Request<HealthRequest>) -> Result<Response<HealthResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(HealthResponse::default()))
    }

    async fn drain(&self, request: Request<DrainRequest>) -> Result<Response<DrainResponse>, Status> {
        self.admit(&request)?;
        Ok(Response::new(DrainResponse::default()))
    }

    async fn shutdown(&self, request: Request<ShutdownRequest>) -> Result<Response<ShutdownResponse>, Status> {
        self.admit(&request)?;
        if self.fault != "deaf" {
            self.end.notify_one();
        }
        Ok(Response::new(ShutdownResponse {}))
    }
}

fn capacities(wire: pelton_rpc::v1::Capacities) -> pelton_frame::Capacities {
    let pelton_rpc::v1::Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
    } = wire;
    pelton_frame::Capacities { frames, slots, tokens, appends, copies, biases, suppressed, history, top_logprobs }
}

/// Takes memory over and serves it until the router hangs up; then the next router may come.
fn serve_memory(mut socket: MemoryStream, claim: &Mutex<Claim>, fault: &str) {
    match take_memory(&socket, claim, fault) {
        Ok(end) => {
            socket.write_all(&[1]).unwrap();
            let memory = end.memory().clone();
            let (fault, hang_up) = (fault.to_owned(), socket.try_clone().unwrap());
            let steps = thread::spawn(move || {
                run(end, &fault, || {});
                let _ = hang_up.shutdown(Shutdown::Both); // the router may have hung up first
            });
            let _ = socket.read(&mut [0]);
            memory.detach();
            steps.join().unwrap();
        }
        Err(reason) => {
            let length = u32::try_from(reason.len()).unwrap().to_le_bytes();
            let _ = socket.write_all(&[&[0], &length[..], reason.as_bytes()].concat());
        }
    }
}

fn take_memory(socket: &MemoryStream, claim: &Mutex<Claim>, fault: &str) -> Result<WorkerEnd, String> {
    let mut nonce = [0; 16];
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(&mut nonce)], &mut control, RecvFlags::CMSG_CLOEXEC).unwrap();
    let rights = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files),
        _ => None,
    });
    let files: Vec<OwnedFd> = rights.flatten().collect();
    let [memory, bell] = <[OwnedFd; 2]>::try_from(files).map_err(|_| "the router has gone".to_owned())?;
    let claim = claim.lock().unwrap();
    if received.bytes != 16 || nonce[..] != claim.nonce[..] || fault == "another nonce" {
        return Err("the nonce is not that of the handshake".to_owned());
    }
    let memory = Memory::from_fd(memory).map_err(|error| error.to_string())?;
    assert_eq!(memory.epoch(), claim.epoch);
    Ok(WorkerEnd::new(memory, Some(Bell::from_fd(bell).map_err(|error| error.to_string())?)))
}

/// The step loop.
fn run(mut end: WorkerEnd, fault: &str, mut published: impl FnMut()) {
    end.set_bounds(Bounds { blocks: BLOCKS, block_size: 32, vocab: 1000, positions: 4096 });
    loop {
        let frame = match end.wait(LONG).unwrap() {
            Waited::Step(frame) => frame,
            Waited::Idle => continue,
            Waited::Detached => return,
        };
        let header = *end.header(frame).unwrap();
        if header.step() == FAULTY_STEP {
            match fault {
                "aborts in a step" => {
                    eprintln!("the model is on fire");
                    std::process::abort();
                }
                "is stuck in a step" => loop {
                    thread::park();
                },
                "hangs up in a step" => return,
                _ => {}
            }
        }
        let (mut rows, mut tokens) = (Vec::new(), Vec::new());
        let memory = end.memory().clone();
        memory.read(frame, Region::Rows, header.rows as usize * Row::WORDS, &mut rows);
        memory.read(frame, Region::Tokens, header.tokens as usize, &mut tokens);
        let last = |row: &[u32]| tokens[(row[4] + row[3] - 1) as usize]; // token_offset + known - 1
        let sampled: Vec<u32> = rows.chunks_exact(Row::WORDS).map(|row| drawn(last(row))).collect();
        memory.write(frame, Region::Sampled, &sampled);
        memory.write(frame, Region::Flags, &vec![0; sampled.len()]);
        memory.write(frame, Region::ChosenLogprob, &vec![0; sampled.len()]);
        end.publish(frame, STATUS_OK, Duration::ZERO).unwrap();
        published();
    }
}
