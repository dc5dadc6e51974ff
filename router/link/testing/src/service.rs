//! The worker's gRPC contract, as a server.

use std::{
    os::unix::net::UnixListener as MemoryListener,
    sync::{Arc, Mutex},
    thread,
};

use pelton_frame::{Inline, Layout, Memory, RECORDS_CHECKSUM, WorkerEnd};
use pelton_rpc::{
    WORKER_PROTOCOL,
    v1::{
        Capacities, DrainRequest, DrainResponse, HandshakeRequest, HandshakeResponse, HealthRequest, HealthResponse,
        LoadProgress, LoadRequest, ShutdownRequest, ShutdownResponse, StepsRequest, StepsResponse, steps_request,
        steps_response,
        worker_server::{Worker, WorkerServer},
    },
};
use tokio::{
    net::{TcpListener, UnixListener},
    sync::{Notify, mpsc},
};
use tokio_stream::wrappers::{TcpListenerStream, UnboundedReceiverStream, UnixListenerStream};
use tonic::{
    Request, Response, Status, Streaming,
    transport::{Identity, Server, ServerTlsConfig},
};

use crate::{Answers, Script, Steps, handover::serve_memory};

/// Where a worker listens.
pub enum Door {
    /// A socket on this host; memory is handed over beside it.
    Unix(String),
    /// An address of a network, with TLS and a token.
    Tcp {
        /// HOST:PORT.
        address: String,
        /// What the router has to say.
        token: String,
        /// Certificate and key, as PEM.
        identity: (String, String),
    },
}

impl Door {
    /// What `LISTEN` says, which must be unix:///path.
    pub fn unix(listen: &str) -> Self {
        Self::Unix(listen.strip_prefix("unix://").expect("a socket on this host").to_owned())
    }
}

/// Serves routers until one says `Shutdown`; then the process ends. Says "listening on ..." when it does.
pub fn serve(door: Door, script: impl Script) -> ! {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(listen(door, script));
    std::process::exit(0); // step threads may still wait
}

async fn listen(door: Door, script: impl Script) {
    let end = Arc::new(Notify::new());
    let service = |memory_socket, token| Service {
        script: script.clone(),
        memory_socket,
        token,
        claim: Arc::default(),
        end: Arc::clone(&end),
    };
    match door {
        Door::Unix(path) => {
            let service = service(format!("{path}.memory"), None);
            let memory = MemoryListener::bind(&service.memory_socket).unwrap();
            let claim = Arc::clone(&service.claim);
            thread::spawn(move || {
                memory.incoming().for_each(|socket| serve_memory(socket.unwrap(), &claim, &script));
            });
            let incoming = UnixListenerStream::new(UnixListener::bind(&path).unwrap());
            println!("listening on {path}");
            let server = Server::builder().add_service(WorkerServer::new(service));
            server.serve_with_incoming_shutdown(incoming, end.notified()).await.unwrap();
        }
        Door::Tcp { address, token, identity: (cert, key) } => {
            let listener = TcpListener::bind(address).await.unwrap();
            println!("listening on {}", listener.local_addr().unwrap());
            let tls = ServerTlsConfig::new().identity(Identity::from_pem(cert, key));
            let service = WorkerServer::new(service(String::new(), Some(token)));
            let server = Server::builder().tls_config(tls).unwrap().add_service(service);
            server.serve_with_incoming_shutdown(TcpListenerStream::new(listener), end.notified()).await.unwrap();
        }
    }
}

/// Who may hand memory over: the router of the latest handshake.
#[derive(Default)]
pub(crate) struct Claim {
    pub(crate) nonce: Vec<u8>,
    pub(crate) epoch: u32,
}

struct Service<S> {
    script: S,
    memory_socket: String, // empty: frames travel inline
    claim: Arc<Mutex<Claim>>,
    token: Option<String>,
    end: Arc<Notify>,
}

impl<S: Script> Service<S> {
    fn admit<T>(&self, request: &Request<T>) -> Result<(), Status> {
        let given = request.metadata().get("authorization").and_then(|value| value.to_str().ok());
        match &self.token {
            Some(token) if given != Some(&format!("Bearer {token}")) => Err(Status::unauthenticated("wrong token")),
            _ => Ok(()),
        }
    }
}

#[tonic::async_trait]
impl<S: Script> Worker for Service<S> {
    type LoadStream = Answers<LoadProgress>;
    type StepsStream = Answers<StepsResponse>;

    async fn handshake(&self, request: Request<HandshakeRequest>) -> Result<Response<HandshakeResponse>, Status> {
        self.admit(&request)?;
        let HandshakeRequest { nonce, epoch, .. } = request.into_inner();
        *self.claim.lock().unwrap() = Claim { nonce, epoch };
        let mut hello = HandshakeResponse {
            protocol: WORKER_PROTOCOL,
            records_checksum: RECORDS_CHECKSUM,
            pid: std::process::id(),
            device: "cpu".to_owned(),
            device_name: "none".to_owned(),
            worker_version: "9.9.9".to_owned(),
            memory_socket: self.memory_socket.clone(),
        };
        self.script.greet(&mut hello);
        Ok(Response::new(hello))
    }

    async fn load(&self, request: Request<LoadRequest>) -> Result<Response<Self::LoadStream>, Status> {
        self.admit(&request)?;
        let epoch = self.claim.lock().unwrap().epoch;
        self.script.load(request.into_inner(), &self.memory_socket, epoch).map(Response::new)
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
        let (end, script, mut outlet) =
            (WorkerEnd::new(memory.clone(), None), self.script.clone(), Inline::new(memory.clone()));
        thread::spawn(move || {
            let carry = || {
                let bytes = outlet.next_result().unwrap().unwrap();
                say(steps_response::Kind::Result(bytes));
            };
            script.take_steps(Steps { end, bell: None, host: None, published: Box::new(carry) });
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
        if self.script.obeys_shutdown() {
            self.end.notify_one();
        }
        Ok(Response::new(ShutdownResponse {}))
    }
}

fn capacities(wire: Capacities) -> pelton_frame::Capacities {
    let Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    } = wire;
    pelton_frame::Capacities {
        frames,
        slots,
        tokens,
        appends,
        copies,
        biases,
        suppressed,
        history,
        top_logprobs,
        saves,
        loads,
        pooled_width,
        scores,
        embeds,
        embed_width,
    }
}
