//! The ports, opened before anything else: a taken port is found out at once, and clients wait instead of being refused.

use std::net::{SocketAddr, TcpListener, ToSocketAddrs as _};

use crate::command::Trouble;
use crate::config::Config;
use crate::http::Listeners;

/// Listening sockets that nobody reads yet.
pub(crate) struct Doors {
    pub(super) http: TcpListener,
    pub(super) grpc: Option<TcpListener>,
    host: String,
}

impl Doors {
    /// Opens what the configuration names.
    pub(crate) fn open(config: &Config) -> Result<Self, Trouble> {
        let host = &config.server.host;
        let http = listen(host, config.server.port, "--port")?;
        let grpc = config.server.grpc_port.map(|port| listen(host, port, "--grpc-port")).transpose()?;
        Ok(Self { http, grpc, host: host.clone() })
    }

    /// The sockets, for the API.
    pub(super) fn listeners(self) -> Result<Listeners, Trouble> {
        let failed = |error: std::io::Error| Trouble::Failed(format!("cannot listen: {error}"));
        Ok(Listeners {
            http: tokio::net::TcpListener::from_std(self.http).map_err(failed)?,
            grpc: self.grpc.map(tokio::net::TcpListener::from_std).transpose().map_err(failed)?,
        })
    }

    /// Where this machine reaches it: an address that means "all" is shown as the loopback's.
    pub(crate) fn url(&self) -> String {
        let port = self.http.local_addr().map_or(0, |address| address.port());
        match self.host.as_str() {
            "0.0.0.0" => format!("http://127.0.0.1:{port}"),
            "::" => format!("http://[::1]:{port}"),
            host if host.contains(':') => format!("http://[{host}]:{port}"),
            host => format!("http://{host}:{port}"),
        }
    }
}

/// Connections that nobody has accepted yet, as far as the system permits.
const BACKLOG: i32 = 4096;

fn listen(host: &str, port: u16, flag: &str) -> Result<TcpListener, Trouble> {
    let failed = |reason: String| Trouble::Failed(format!("cannot listen on {host}:{port}: {reason}"));
    let addresses: Vec<SocketAddr> = (host, port)
        .to_socket_addrs()
        .map_err(|error| failed(format!("{error}; set --host to an address of this machine")))?
        .collect();
    let advice = |error: std::io::Error| {
        let change = match error.kind() {
            std::io::ErrorKind::AddrInUse => {
                format!("another process has it; end that one, or choose another port with {flag}")
            }
            std::io::ErrorKind::PermissionDenied => {
                format!("ports below 1024 are for root; choose another with {flag}")
            }
            _ => "set --host to an address of this machine".to_owned(),
        };
        failed(format!("{error}; {change}"))
    };
    // One of a name's addresses is enough, tried in their order.
    let listener = TcpListener::bind(addresses.as_slice()).map_err(advice)?;
    // `bind` has the kernel keep 128 that nobody has accepted yet; of a burst of more it would leave some to try again and again.
    rustix::net::listen(&listener, BACKLOG).map_err(|error| failed(error.to_string()))?;
    listener.set_nonblocking(true).map_err(|error| failed(error.to_string()))?;
    Ok(listener)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Surroundings;

    fn config(host: &str, port: u16) -> Config {
        let arguments = [("host".to_owned(), host.to_owned()), ("port".to_owned(), port.to_string())];
        Config::from_arguments(&arguments, &Surroundings::default()).expect("valid")
    }

    #[test]
    fn a_burst_of_clients_is_connected_before_any_of_them_is_accepted() {
        let most = std::fs::read_to_string("/proc/sys/net/core/somaxconn").expect("a Linux system");
        let count = most.trim().parse::<usize>().expect("a number").min(1_000);
        let listener = listen("127.0.0.1", 0, "--port").expect("a free port");
        let address = listener.local_addr().expect("bound");
        let patience = std::time::Duration::from_secs(20);
        let connect = |_| std::net::TcpStream::connect_timeout(&address, patience).expect("the kernel has room for it");
        assert_eq!((0..count).map(connect).collect::<Vec<_>>().len(), count);
    }

    #[tokio::test]
    async fn a_taken_port_says_what_to_change() {
        let first = Doors::open(&config("127.0.0.1", 0)).expect("a free port");
        let port = first.http.local_addr().expect("bound").port();
        assert_eq!(first.url(), format!("http://127.0.0.1:{port}"));
        let Err(Trouble::Failed(message)) = Doors::open(&config("127.0.0.1", port)).map(|_| ()) else {
            panic!("taken")
        };
        assert!(message.contains("choose another port with --port"), "{message}");
        let Err(Trouble::Failed(message)) = Doors::open(&config("no.such.host.invalid", 0)).map(|_| ()) else {
            panic!("unknown")
        };
        assert!(message.contains("set --host"), "{message}");
    }
}
