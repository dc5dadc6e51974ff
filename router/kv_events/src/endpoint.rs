//! Where a socket listens: the part of ZeroMQ's endpoint strings that a server needs, parsed once.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

/// Where a socket listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Endpoint {
    /// `tcp://ADDRESS:PORT`. The address is an IP address, IPv6 in brackets, or `*` for all of IPv4; `[::]` is all of both.
    /// Port 0 or `*` lets the system choose.
    Tcp(SocketAddr),
    /// `ipc://PATH`: a socket file, made on binding and removed at the end. Who may connect is up to its directory.
    Ipc(PathBuf),
}

/// Why a text is no endpoint.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{got}` is no endpoint: {why}; allowed: tcp://*:5557, tcp://127.0.0.1:5557, tcp://[::1]:5557, ipc:///run/events"
)]
pub struct EndpointError {
    got: String,
    why: &'static str,
}

impl FromStr for Endpoint {
    type Err = EndpointError;

    fn from_str(text: &str) -> Result<Self, EndpointError> {
        parse(text).map_err(|why| EndpointError { got: text.to_owned(), why })
    }
}

fn parse(text: &str) -> Result<Endpoint, &'static str> {
    if let Some(path) = text.strip_prefix("ipc://") {
        return match path {
            "" => Err("it has no path"),
            _ if path.starts_with('@') => Err("names outside the file system have no owner and no mode"),
            _ => Ok(Endpoint::Ipc(path.into())),
        };
    }
    let address = text.strip_prefix("tcp://").ok_or("it begins with neither tcp:// nor ipc://")?;
    let (host, port) = address.rsplit_once(':').ok_or("it has no port")?;
    let port = match port {
        "*" => 0,
        _ => port.parse().map_err(|_| "its port is no number from 0 to 65535")?,
    };
    let host = match host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        _ if host == "*" => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        Some(inner) => IpAddr::V6(inner.parse().map_err(|_| "there is no IPv6 address in its brackets")?),
        None => IpAddr::V4(host.parse().map_err(|_| "its host is neither an IP address nor *")?),
    };
    Ok(Endpoint::Tcp(SocketAddr::new(host, port)))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(address) => write!(f, "tcp://{address}"),
            Endpoint::Ipc(path) => write!(f, "ipc://{}", path.display()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_is_read_and_written_back() {
        for (text, expected) in [
            ("tcp://*:5557", "tcp://0.0.0.0:5557"),
            ("tcp://127.0.0.1:0", "tcp://127.0.0.1:0"),
            ("tcp://127.0.0.1:*", "tcp://127.0.0.1:0"),
            ("tcp://[::1]:80", "tcp://[::1]:80"),
            ("ipc:///run/pelton/events", "ipc:///run/pelton/events"),
            ("ipc://events", "ipc://events"),
        ] {
            let endpoint: Endpoint = text.parse().unwrap();
            assert_eq!(endpoint.to_string(), expected);
            assert_eq!(expected.parse(), Ok(endpoint), "what is written can be read");
        }
    }

    #[test]
    fn what_is_no_endpoint_is_refused_with_what_it_got() {
        for (text, why) in [
            ("", "begins with"),
            ("5557", "begins with"),
            ("udp://*:5557", "begins with"),
            ("inproc://events", "begins with"),
            ("tcp://*", "no port"),
            ("tcp://*:", "no number"),
            ("tcp://*:65536", "no number"),
            ("tcp://node-1:5557", "neither an IP address"),
            ("tcp://::1:5557", "neither an IP address"),
            ("tcp://[1.2.3.4]:5557", "brackets"),
            ("ipc://", "no path"),
            ("ipc://@pelton", "outside the file system"),
        ] {
            let error = text.parse::<Endpoint>().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains(text), "{text}: {error}");
        }
    }
}
