//! Numbers with bounds and units: counts, tokens, bytes, times.

use std::fmt;
use std::time::Duration;

use super::value::Word;

/// A count between two bounds, both allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Count<const LEAST: u32, const MOST: u32>(pub u32);

impl<const LEAST: u32, const MOST: u32> Word for Count<LEAST, MOST> {
    fn form() -> String {
        "NUMBER".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let value = text.parse().ok().filter(|value| (LEAST..=MOST).contains(value));
        value.map(Self).ok_or_else(|| format!("a whole number from {LEAST} to {MOST}"))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A seed of any size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seed(pub u64);

impl Word for Seed {
    fn form() -> String {
        "NUMBER".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        text.parse().map(Self).map_err(|_| format!("a whole number from 0 to {}", u64::MAX))
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A number of tokens: `32768`, or `32k` with k = 1024.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tokens(pub u32);

/// 16 Mi tokens: far above any model, low enough that sums of a few fit 32 bits.
const TOKENS_MAX: u32 = 16 << 20;

impl Word for Tokens {
    fn form() -> String {
        "TOKENS".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let (digits, unit) = split_unit(text);
        let scale = match unit.to_ascii_lowercase().as_str() {
            "" => Some(1.0),
            "k" => Some(1024.0),
            "m" => Some(1024.0 * 1024.0),
            _ => None,
        };
        whole(digits, scale)
            .filter(|tokens| (1..=u64::from(TOKENS_MAX)).contains(tokens))
            .map(|tokens| Self(tokens as u32))
            .ok_or_else(|| "1 to 16m tokens, as 4096 or 32k (k = 1024)".into())
    }
    fn show(&self) -> String {
        self.0.to_string()
    }
}

/// A number of bytes: `8GiB`, `512MiB`, `2GB`, `4096`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Word for Bytes {
    fn form() -> String {
        "BYTES".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let (digits, unit) = split_unit(text);
        let scale = match unit.to_ascii_lowercase().as_str() {
            "" | "b" => Some(1.0),
            "k" | "kib" => Some(1024.0),
            "m" | "mib" => Some(1024f64.powi(2)),
            "g" | "gib" => Some(1024f64.powi(3)),
            "t" | "tib" => Some(1024f64.powi(4)),
            "kb" => Some(1e3),
            "mb" => Some(1e6),
            "gb" => Some(1e9),
            "tb" => Some(1e12),
            _ => None,
        };
        whole(digits, scale)
            .filter(|bytes| (1..=1 << 50).contains(bytes))
            .map(Self)
            .ok_or_else(|| "1 to 1024TiB, as 8GiB, 512MiB, 2GB or a plain number".into())
    }
    fn show(&self) -> String {
        self.to_string()
    }
}

/// A bound in bytes that may be 0: for nothing at all.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Room(pub u64);

impl Word for Room {
    fn form() -> String {
        Bytes::form()
    }
    fn parse(text: &str) -> Result<Self, String> {
        if text == "0" {
            return Ok(Self(0));
        }
        Bytes::parse(text).map(|bytes| Self(bytes.0)).map_err(|allowed| format!("0 or {allowed}"))
    }
    fn show(&self) -> String {
        if self.0 == 0 { "0".into() } else { Bytes(self.0).show() }
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&crate::display::bytes(self.0))
    }
}

impl Word for Duration {
    fn form() -> String {
        "SECONDS".into()
    }
    fn parse(text: &str) -> Result<Self, String> {
        let (digits, unit) = split_unit(text);
        let scale = match unit {
            "ms" => Some(1.0),
            "" | "s" => Some(1e3),
            "m" => Some(60e3),
            "h" => Some(3600e3),
            _ => None,
        };
        whole(digits, scale)
            .filter(|ms| (1..=7 * 24 * 3_600_000).contains(ms))
            .map(Duration::from_millis)
            .ok_or_else(|| "1ms to 168h, as 30, 30s, 500ms, 10m or 1h".into())
    }
    fn show(&self) -> String {
        format!("{}s", self.as_secs_f64())
    }
}

/// `32k` is ("32", "k"), `1.5GiB` ("1.5", "GiB").
fn split_unit(text: &str) -> (&str, &str) {
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    (&text[..end], text[end..].trim())
}

/// `digits` times `scale`, if that is a whole number that a float holds exactly.
fn whole(digits: &str, scale: Option<f64>) -> Option<u64> {
    let value = digits.parse::<f64>().ok()? * scale?;
    (value.fract() == 0.0 && value < 2f64.powi(53)).then_some(value as u64)
}
