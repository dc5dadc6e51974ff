//! Values that are one word of a few, an address, or a secret.

use std::fmt;
use std::path::PathBuf;

use pelton_engine::Endpoint;

use super::value::Word;

/// Something that is never printed or logged.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Of a text that did not come through a setting: a line of a key file.
    pub fn new(text: &str) -> Self {
        Self(text.to_owned())
    }

    /// The text itself, for the one place that compares or sends it.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("****")
    }
}

impl Word for Secret {
    fn form() -> String {
        "SECRET".into()
    }
    const SECRET: bool = true;
    const COMMAS: bool = false;
    fn parse(text: &str) -> Result<Self, String> {
        if text.is_empty() || text.chars().any(|c| c.is_whitespace() || c.is_control()) {
            return Err("visible characters without blanks".into());
        }
        Ok(Self(text.to_owned()))
    }
    fn show(&self) -> String {
        "****".into()
    }
}

/// An enum whose variants have one word each, the same everywhere.
macro_rules! words {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident = $word:literal),+ $(,)? }) => {
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub enum $name { $($(#[$vdoc])* $variant),+ }

        impl $name {
            /// As it is written in flags and files.
            pub const fn word(self) -> &'static str {
                match self { $(Self::$variant => $word),+ }
            }
        }

        impl Word for $name {
            fn form() -> String {
                [$($word),+].join("|")
            }
            fn parse(text: &str) -> Result<Self, String> {
                match text {
                    $($word => Ok(Self::$variant),)+
                    _ => Err([$($word),+].join(", ")),
                }
            }
            fn show(&self) -> String {
                self.word().into()
            }
        }
    };
}

words! {
    /// What weights and activations are computed in.
    Dtype {
        /// What the checkpoint says.
        Auto = "auto",
        /// 8 bits of exponent, 7 of fraction.
        Bfloat16 = "bfloat16",
        /// For comparison with a reference.
        Float32 = "float32",
    }
}

words! {
    /// How weights are held.
    Quantize {
        /// As the checkpoint has them.
        Auto = "auto",
        /// 8 bits, times activations of 8 bits.
        Int8 = "int8",
        /// 8 bits, times activations as they are.
        Int8A16 = "int8-a16",
        /// 4 bits, times activations of 8 bits.
        Int4 = "int4",
        /// 4 bits, times activations as they are.
        Int4A16 = "int4-a16",
    }
}

words! {
    /// What keys and values are kept as.
    KvDtype {
        /// As they are computed.
        Auto = "auto",
        /// 8 bits, with a scale for each token and head.
        Int8 = "int8",
    }
}

words! {
    /// Whose definition of a model runs.
    ModelBackend {
        /// Pelton's, where it has one.
        Auto = "auto",
        /// Pelton's, or none.
        Native = "native",
        /// That of the Python package.
        Transformers = "transformers",
    }
}

words! {
    /// Where drafts of tokens come from.
    Speculate {
        /// There are none.
        Off = "off",
        /// From where the request's text has come by before.
        Ngram = "ngram",
    }
}

words! {
    /// What a model is for.
    Task {
        /// What its checkpoint says.
        Auto = "auto",
        /// Text.
        Generate = "generate",
        /// Vectors of texts.
        Embed = "embed",
        /// Classes of texts.
        Classify = "classify",
    }
}

words! {
    /// How the vectors of all tokens become one.
    Pooling {
        /// Their mean.
        Mean = "mean",
        /// The first one's.
        Cls = "cls",
        /// The last one's.
        Last = "last",
    }
}

words! {
    /// What becomes of fields that nobody knows.
    UnknownFields {
        /// The request is refused.
        Refuse = "refuse",
        /// The request is taken, and its answer names them.
        Warn = "warn",
    }
}

words! {
    /// Whose sampling holds where a request says nothing.
    GenerationConfig {
        /// The checkpoint's.
        Auto = "auto",
        /// OpenAI's.
        None = "none",
    }
}

words! {
    /// The least important message that is still logged.
    LogLevel {
        /// What failed.
        Error = "error",
        /// What looks wrong.
        Warn = "warn",
        /// What an operator wants to know.
        Info = "info",
        /// What a developer wants to know.
        Debug = "debug",
        /// Everything.
        Trace = "trace",
    }
}

words! {
    /// How a message looks.
    LogFormat {
        /// For people.
        Text = "text",
        /// One object a line, for collectors.
        Json = "json",
    }
}

/// Tokens in a KV block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSize(pub u32);

impl Word for BlockSize {
    fn form() -> String {
        "8|16|32|64|128|256".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let size = text.parse().ok().filter(|size| [8, 16, 32, 64, 128, 256].contains(size));
        size.map(Self).ok_or_else(|| "8, 16, 32, 64, 128, 256".into())
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

words! {
    /// Where a model runs.
    Device {
        /// The first GPU that PyTorch can use, else the processor.
        Auto = "auto",
        /// The processor.
        Cpu = "cpu",
        /// The first GPU.
        Cuda = "cuda",
    }
}

/// A worker that somebody else started.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum WorkerAddress {
    /// On this host: shared memory.
    Unix(PathBuf),
    /// On another: frames travel inline, with a token and TLS.
    Tcp {
        /// Name or address.
        host: String,
        /// Where it listens.
        port: u16,
    },
}

impl fmt::Display for WorkerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            WorkerAddress::Unix(path) => write!(f, "unix://{}", path.display()),
            WorkerAddress::Tcp { host, port } => write!(f, "tcp://{host}:{port}"),
        }
    }
}

impl Word for WorkerAddress {
    fn form() -> String {
        "ADDRESS".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let allowed = || "unix:///path/to/worker.sock, or tcp://HOST:PORT".to_string();
        if let Some(path) = text.strip_prefix("unix://") {
            return if path.starts_with('/') { Ok(Self::Unix(path.into())) } else { Err(allowed()) };
        }
        let (host, port) = text.strip_prefix("tcp://").and_then(|rest| rest.rsplit_once(':')).ok_or_else(allowed)?;
        match port.parse() {
            Ok(port) if port > 0 && !host.is_empty() && !host.contains('/') => {
                Ok(Self::Tcp { host: host.into(), port })
            }
            _ => Err(allowed()),
        }
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

impl Word for Endpoint {
    fn form() -> String {
        "ENDPOINT".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map_err(|_| "tcp://ADDRESS:PORT, with * for all addresses, or ipc:///PATH".to_string())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// The address of a server, without a slash at its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Url(pub String);

impl Word for Url {
    fn form() -> String {
        "URL".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let allowed = || "http://HOST[:PORT] or https://HOST[:PORT], a path may follow".to_string();
        let uri: http::Uri = text.parse().map_err(|_| allowed())?;
        let known =
            matches!(uri.scheme_str(), Some("http" | "https")) && uri.host().is_some_and(|host| !host.is_empty());
        if known && uri.query().is_none() { Ok(Self(text.trim_end_matches('/').to_owned())) } else { Err(allowed()) }
    }
    fn show(&self) -> String {
        self.0.clone()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::{units::*, value::*};
    use super::*;

    fn read<T: Value>(text: &str) -> Result<String, String> {
        T::read(&[text.to_owned()]).map(|value| value.show())
    }

    #[test]
    fn units_are_understood() {
        for (got, expected) in [
            (read::<Tokens>("32k"), "32768"),
            (read::<Tokens>("32K"), "32768"),
            (read::<Tokens>("0.5k"), "512"),
            (read::<Auto<Tokens>>("auto"), "auto"),
            (read::<Auto<Tokens>>("1m"), "1048576"),
            (read::<Bytes>("1.5GiB"), "1.50 GiB"),
            (read::<Bytes>("512 MiB"), "512 MiB"),
            (read::<Bytes>("2g"), "2.00 GiB"),
            (read::<Bytes>("100"), "100 B"),
            (read::<Duration>("90"), "90s"),
            (read::<Duration>("500ms"), "0.5s"),
            (read::<Duration>("2m"), "120s"),
            (read::<WorkerAddress>("tcp://[::1]:7000"), "tcp://[::1]:7000"),
            (read::<WorkerAddress>("unix:///run/w.sock"), "unix:///run/w.sock"),
            (read::<Url>("http://localhost:8000/"), "http://localhost:8000"),
            (read::<Vec<String>>("a, b"), "a, b"),
            (read::<Vec<Secret>>("a,b"), "****"),
        ] {
            assert_eq!(got.as_deref(), Ok(expected));
        }
    }

    #[test]
    fn what_is_out_of_range_is_refused_with_what_is_allowed() {
        for (got, allowed) in [
            (read::<Tokens>("0"), "1 to 16m tokens"),
            (read::<Tokens>("17m"), "1 to 16m tokens"),
            (read::<Tokens>("-5"), "1 to 16m tokens"),
            (read::<Tokens>("0.3"), "1 to 16m tokens"),
            (read::<Auto<Tokens>>("lots"), "auto, or 1 to 16m tokens"),
            (read::<Bytes>("4 Gigs"), "1 to 1024TiB"),
            (read::<Bytes>("1e3"), "1 to 1024TiB"),
            (read::<Count<1, 8>>("9"), "a whole number from 1 to 8"),
            (read::<BlockSize>("24"), "8, 16, 32, 64, 128, 256"), // C:K1
            (read::<u16>("70000"), "0 (any free port) to 65535"),
            (read::<Dtype>("fp16"), "auto, bfloat16, float32"),
            (read::<Device>("tpu"), "auto, cpu, cuda"),
            (read::<WorkerAddress>("unix://relative"), "unix:///path"),
            (read::<WorkerAddress>("tcp://host"), "unix:///path"),
            (read::<Url>("localhost:8000"), "http://HOST"),
            (read::<Secret>("two words"), "visible characters"),
            (read::<Vec<Secret>>(""), "visible characters"),
            (read::<Vec<Secret>>(" "), "visible characters"),
            (read::<bool>("yes"), "true, false"),
        ] {
            let refused = got.expect_err("must be refused");
            assert!(refused.starts_with(allowed), "{refused} should begin with {allowed}");
        }
    }
}
