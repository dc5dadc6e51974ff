//! ORG/NAME.

use std::fmt;
use std::str::FromStr;

/// A model's name on the hub. Its parts are safe as names of files and in addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelName {
    org: String,
    name: String,
}

impl ModelName {
    /// The model's folder in the cache.
    pub(super) fn folder(&self) -> String {
        format!("models--{}--{}", self.org, self.name)
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)
    }
}

impl FromStr for ModelName {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let (org, name) = text.split_once('/').ok_or(())?;
        let is_part = |part: &str| {
            (1..=96).contains(&part.len())
                && part.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
                && !part.starts_with(['.', '-'])
                && !part.ends_with(['.', '-'])
                && !part.contains("--")
                && !part.contains("..")
        };
        if is_part(org) && is_part(name) { Ok(Self { org: org.into(), name: name.into() }) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_org_and_name_are_a_name() {
        for good in ["Qwen/Qwen3-0.6B", "meta-llama/Llama-3.2-1B_x", "a/b"] {
            assert_eq!(good.parse::<ModelName>().expect(good).to_string(), good);
        }
        for bad in
            ["", "gpt2", "/abs/olute", "./here", "../up", "a/b/c", "a/..", "a--b/c", "a/b c", "a/", "https://x/y"]
        {
            assert!(bad.parse::<ModelName>().is_err(), "{bad}");
        }
    }
}
