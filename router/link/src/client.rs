//! The worker's gRPC contract, from the router's side: connect, handshake, load.

use std::{net::IpAddr, path::Path, time::Duration};

use hyper_util::rt::TokioIo;
use pelton_frame::{Layout, RECORDS_CHECKSUM};
use pelton_rpc::{
    WORKER_PROTOCOL,
    v1::{HandshakeRequest, HandshakeResponse, worker_client::WorkerClient},
};
use tokio::{net::UnixStream, time::sleep};
use tonic::{
    Request, Status,
    metadata::{Ascii, MetadataValue},
    service::{Interceptor, interceptor::InterceptedService},
    transport::{Certificate, Channel, ClientTlsConfig, Endpoint, Uri},
};

use crate::{
    Budget, Deadlines, LinkError, LoadOptions, ModelReport, Tls, WorkerSpec,
    error::{Trouble, within},
    pooling,
};

/// Between two tries to connect to a worker that starts.
const RETRY: Duration = Duration::from_millis(20);
/// A silent network is noticed within two of these, also while no step runs.
const KEEP_ALIVE: Duration = Duration::from_secs(10);

/// How a certificate begins in PEM.
const CERTIFICATE: &[u8] = b"-----BEGIN CERTIFICATE-----";

pub(crate) type Client = WorkerClient<InterceptedService<Channel, Auth>>;

/// Adds the token to every call, if there is one.
#[derive(Clone)]
pub(crate) struct Auth(Option<MetadataValue<Ascii>>);

impl Interceptor for Auth {
    fn call(&mut self, mut request: Request<()>) -> Result<Request<()>, Status> {
        if let Some(header) = &self.0 {
            request.metadata_mut().insert("authorization", header.clone());
        }
        Ok(request)
    }
}

/// How a worker elsewhere is reached; made from checked options.
#[derive(Clone)]
pub(crate) enum Route {
    /// By a socket on this host.
    Here,
    /// By a network.
    There { endpoint: Box<Endpoint>, auth: Auth },
}

impl Route {
    pub(crate) fn new(spec: &WorkerSpec) -> Result<Self, LinkError> {
        let WorkerSpec::Tcp { address, token, tls } = spec else { return Ok(Self::Here) };
        let host = host(address).ok_or_else(|| LinkError::Address(address.clone()))?;
        if tls.is_none() && !is_loopback(host) {
            return Err(LinkError::NotEncrypted(address.clone()));
        }
        let mut header: MetadataValue<Ascii> = format!("Bearer {}", token.0).parse().map_err(|_| LinkError::Token)?;
        header.set_sensitive(true);
        let scheme = if tls.is_some() { "https" } else { "http" };
        let endpoint =
            Endpoint::from_shared(format!("{scheme}://{address}")).map_err(|_| LinkError::Address(address.clone()))?;
        let endpoint = endpoint
            .tcp_nodelay(true)
            .http2_keep_alive_interval(KEEP_ALIVE)
            .keep_alive_timeout(KEEP_ALIVE)
            .keep_alive_while_idle(true);
        let endpoint = match tls {
            None => endpoint,
            Some(Tls { ca_pem, name }) => {
                if !ca_pem.windows(CERTIFICATE.len()).any(|bytes| bytes == CERTIFICATE) {
                    return Err(LinkError::NoCertificate(address.clone())); // tonic takes it, and then trusts nobody
                }
                let config = ClientTlsConfig::new()
                    .ca_certificate(Certificate::from_pem(ca_pem))
                    .domain_name(name.as_deref().unwrap_or(host));
                endpoint.tls_config(config).map_err(|error| LinkError::Tls { address: address.clone(), error })?
            }
        };
        Ok(Self::There { endpoint: Box::new(endpoint), auth: Auth(Some(header)) })
    }
}

fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    let host = host.strip_prefix('[').map_or(host, |host| host.strip_suffix(']').unwrap_or(host));
    (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(host)
}

fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
}

/// Connects to a socket on this host as soon as it is there, and makes sure that its peer is the same user.
pub(crate) async fn dial(path: &Path, allowed: Duration) -> Result<UnixStream, Trouble> {
    let address = || path.display().to_string();
    let connected = within("connect", allowed, async {
        loop {
            match UnixStream::connect(path).await {
                Ok(stream) => return Ok(stream),
                Err(error) if is_not_yet_there(&error) => sleep(RETRY).await,
                Err(error) => return Err(Trouble::Connect { address: address(), error: error.to_string() }),
            }
        }
    });
    let stream = connected.await?;
    let peer = stream.peer_cred().map_err(Trouble::system("getsockopt(SO_PEERCRED)"))?;
    let ours = rustix::process::geteuid().as_raw();
    if peer.uid() != ours {
        return Err(Trouble::Contract(format!("{} belongs to user {}, and we are user {ours}", address(), peer.uid())));
    }
    Ok(stream)
}

fn is_not_yet_there(error: &std::io::Error) -> bool {
    matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::ConnectionRefused)
}

/// A client over this one connection: if it breaks, calls fail, and no other worker can take its place unseen.
pub(crate) async fn over_unix(stream: UnixStream, layout: &Layout) -> Result<Client, Trouble> {
    let address = "the control socket".to_owned();
    let mut once = Some(stream);
    let connector = tower::service_fn(move |_: Uri| {
        let stream = once.take();
        async move { stream.map(TokioIo::new).ok_or_else(|| std::io::Error::other("the connection has ended")) }
    });
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    Ok(client(channel.map_err(|error| Trouble::Connect { address, error: chain(&error) })?, Auth(None), layout))
}

pub(crate) async fn over_tcp(
    endpoint: &Endpoint,
    auth: Auth,
    allowed: Duration,
    layout: &Layout,
) -> Result<Client, Trouble> {
    let connected = within("connect", allowed, async {
        let address = endpoint.uri().to_string();
        endpoint.connect().await.map_err(|error| Trouble::Connect { address, error: chain(&error) })
    });
    Ok(client(connected.await?, auth, layout))
}

fn client(channel: Channel, auth: Auth, layout: &Layout) -> Client {
    // An inline frame is at most as large as its part of the layout; the rest is for protobuf's own bytes.
    // How wide the model's vectors are nobody knows yet.
    let vectors = 4 * (layout.capacities().slots * pooling::WIDTH_MAX) as usize;
    let bytes_max = layout.frame_stride() + vectors + 4096;
    WorkerClient::with_interceptor(channel, auth)
        .max_decoding_message_size(bytes_max)
        .max_encoding_message_size(bytes_max)
}

/// An error with all its causes: tonic's own says no more than "transport error".
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}

/// Versions and layouts are equal, or the connection ends here.
pub(crate) async fn handshake(
    client: &mut Client,
    nonce: &[u8; 16],
    epoch: u32,
    deadlines: &Deadlines,
) -> Result<HandshakeResponse, Trouble> {
    let request = HandshakeRequest {
        protocol: WORKER_PROTOCOL,
        records_checksum: RECORDS_CHECKSUM,
        nonce: nonce.to_vec(),
        epoch,
    };
    let answer = within("handshake", deadlines.handshake, async {
        Ok(client.handshake(request).await.map_err(Trouble::call("Handshake"))?.into_inner())
    })
    .await?;
    if answer.protocol != WORKER_PROTOCOL || answer.records_checksum != RECORDS_CHECKSUM {
        return Err(Trouble::Contract(format!(
            "the worker (version {}) speaks protocol {} with records {:#x}, and this router {WORKER_PROTOCOL} with {RECORDS_CHECKSUM:#x}: install both from the same release",
            answer.worker_version, answer.protocol, answer.records_checksum
        )));
    }
    Ok(answer)
}

/// What a worker says while it loads.
pub(crate) enum Said {
    Progress { stage: String, done: u64, total: u64 },
    Budget(Budget),
}

/// Loads the model; `tell` hears of each step of it.
pub(crate) async fn load(
    client: &mut Client,
    options: &LoadOptions,
    hello: &HandshakeResponse,
    deadlines: &Deadlines,
    mut tell: impl FnMut(Said),
) -> Result<ModelReport, Trouble> {
    let request = options.request().map_err(Trouble::Contract)?;
    let told = request.first_context;
    let allowed = deadlines.load_progress;
    let mut stream = within("load-progress", allowed, async {
        Ok(client.load(request).await.map_err(Trouble::call("Load"))?.into_inner())
    })
    .await?;
    loop {
        let next = async { stream.message().await.map_err(Trouble::call("Load")) };
        let Some(progress) = within("load-progress", allowed, next).await? else {
            return Err(Trouble::Contract("the worker's `Load` has ended without a report".to_owned()));
        };
        if let Some(budget) = progress.budget {
            agree(options, told, budget.max_model_len)?; // before any weight is read
            tell(Said::Budget(budget.into()));
        }
        if let Some(report) = progress.report {
            let report = ModelReport::check(report, hello.device.clone(), hello.device_name.clone())
                .map_err(Trouble::Contract)?;
            agree(options, told, report.max_model_len)?; // a model that was loaded already has no other plan
            return Ok(report);
        }
        tell(Said::Progress { stage: progress.stage, done: progress.done, total: progress.total });
    }
}

/// Whether a worker that was told of this context (0: of none) plans the server's.
fn agree(options: &LoadOptions, told: u32, planned: u32) -> Result<(), Trouble> {
    options.first_context.agree(planned).map_err(|first| match told {
        0 => Trouble::OtherContext { first, planned },
        _ => Trouble::Contract(format!(
            "the worker plans a context of {planned} tokens; it was told that this server's is {first}"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Token;

    fn route(address: &str, token: &str, ca_pem: Option<&str>) -> Result<(), String> {
        let tls = ca_pem.map(|pem| Tls { ca_pem: pem.into(), name: None });
        let spec = WorkerSpec::Tcp { address: address.to_owned(), token: Token(token.to_owned()), tls };
        Route::new(&spec).map(|_| ()).map_err(|error| error.to_string())
    }

    #[test]
    fn a_token_travels_unencrypted_on_this_host_alone() {
        for address in ["127.0.0.1:9000", "localhost:9000", "[::1]:9000"] {
            assert_eq!(route(address, "secret", None), Ok(()), "{address}");
        }
        for address in ["10.0.0.1:9000", "worker.example:9000", "[2001:db8::1]:9000"] {
            assert!(route(address, "secret", None).unwrap_err().contains("unencrypted"), "{address}");
        }
    }

    #[test]
    fn options_that_cannot_work_are_refused_before_anything_starts() {
        for address in ["worker", "worker:", ":9000", "worker:http", "worker:70000"] {
            assert!(route(address, "secret", None).unwrap_err().contains("HOST:PORT"), "{address}");
        }
        assert!(route("localhost:9000", "line\nbreak", None).unwrap_err().contains("printable ASCII"));
        assert!(route("localhost:9000", "secret", Some("no PEM")).unwrap_err().contains("no certificate"));
    }

    #[test]
    fn a_token_is_shown_nowhere() {
        let spec = WorkerSpec::Tcp { address: "h:1".to_owned(), token: Token("secret".to_owned()), tls: None };
        assert!(!format!("{spec:?}").contains("secret"));
    }
}
