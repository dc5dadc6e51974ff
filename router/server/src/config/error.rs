//! Why a configuration is refused: who said it, what it got, what is allowed.

use std::path::PathBuf;

use super::resolve::Origin;

/// Each message ends with what to change. No secret stands in any of them.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A flag that no setting has.
    #[error("there is no flag `{got}`{}", or_nearest(.nearest, "; see `--help` for all flags"))]
    UnknownFlag {
        /// As it was given.
        got: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A `PELTON_` variable that no setting has.
    #[error("there is no variable `{got}`{}", or_nearest(.nearest, "; `pelton config explain` shows all; unset it"))]
    UnknownVariable {
        /// As it was given.
        got: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A key or table of the file that no setting has.
    #[error("{at}: there is no {what} `{got}`{}", or_nearest(.nearest, "; docs/flags.md lists all"))]
    UnknownKey {
        /// File and line.
        at: String,
        /// "key" or "table".
        what: &'static str,
        /// As it was given.
        got: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// A value outside what is allowed.
    #[error("{origin}: `{name}` is {got}; allowed: {allowed}")]
    OutOfRange {
        /// Who said it.
        origin: Box<Origin>,
        /// Which setting.
        name: String,
        /// What it got; masked if it is a secret.
        got: String,
        /// In words.
        allowed: String,
    },
    /// A flag without its value.
    #[error("`{flag}` needs a value: {flag} {form}")]
    NoValue {
        /// Which.
        flag: String,
        /// What it takes.
        form: String,
    },
    /// A flag that may stand only once.
    #[error("`{flag}` is given twice; give it once")]
    Twice {
        /// Which.
        flag: String,
    },
    /// A word that is no flag and no place is left for.
    #[error("`{got}` is one argument too many{}", or_nearest(.nearest, ""))]
    TooMany {
        /// As it was given; not the word itself if it may be a secret.
        got: String,
        /// What was probably meant.
        nearest: Option<String>,
    },
    /// An argument or variable that is no text.
    #[error("{what} is not valid UTF-8")]
    NotText {
        /// Which.
        what: String,
    },
    /// The file cannot be read or is no TOML.
    #[error("{}: {reason}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        reason: String,
    },
    /// Two settings that do not go together.
    #[error("{0}")]
    Conflict(String),
}

fn or_nearest(nearest: &Option<String>, otherwise: &str) -> String {
    nearest.as_ref().map_or_else(|| otherwise.to_owned(), |name| format!("; did you mean `{name}`?"))
}
