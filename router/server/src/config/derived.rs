//! Defaults that depend on the installation, and the few variables of other tools that Pelton honours.

use std::path::PathBuf;

use super::resolve::Surroundings;
use super::setting::Derived;

fn fixed(text: impl Into<String>) -> Derived {
    Derived { text: Some(text.into()), origin: "default".into() }
}

/// The interpreter that runs this command, if one does: its environment has the worker in it.
pub(super) fn python(around: &Surroundings) -> Derived {
    match &around.wheel {
        Some(wheel) => Derived {
            text: Some(wheel.python.display().to_string()),
            origin: "default (the interpreter that runs this command)".into(),
        },
        None => fixed("python3"),
    }
}

/// The folder that the hub's own tools use.
pub(super) fn hub_cache(around: &Surroundings) -> Derived {
    if let Some(path) = around.variable("HF_HUB_CACHE") {
        return Derived { text: Some(path.into()), origin: "variable HF_HUB_CACHE".into() };
    }
    hugging_face_home(around, "hub")
}

/// Beside what other programs keep for this user.
pub(super) fn model_cache(around: &Surroundings) -> Derived {
    let (cache, origin) = match (around.variable("XDG_CACHE_HOME"), around.variable("HOME")) {
        (Some(cache), _) => (PathBuf::from(cache), "default, below variable XDG_CACHE_HOME"),
        (_, Some(home)) => (PathBuf::from(home).join(".cache"), "default"),
        _ => (std::env::temp_dir(), "default (there is no home folder)"),
    };
    Derived { text: Some(cache.join("pelton/models").display().to_string()), origin: origin.into() }
}

/// Where `hf auth login` leaves it, if it did.
pub(super) fn hub_token_file(around: &Surroundings) -> Derived {
    let derived = hugging_face_home(around, "token");
    match derived.text {
        Some(path) if PathBuf::from(&path).is_file() => Derived { text: Some(path), ..derived },
        _ => Derived { text: None, origin: "default".into() },
    }
}

/// The switch of the hub's own tools.
pub(super) fn offline(around: &Surroundings) -> Derived {
    match around.variable("HF_HUB_OFFLINE") {
        Some("1" | "true" | "TRUE" | "on" | "ON" | "yes" | "YES") => {
            Derived { text: Some("true".into()), origin: "variable HF_HUB_OFFLINE".into() }
        }
        _ => fixed("false"),
    }
}

fn hugging_face_home(around: &Surroundings, name: &str) -> Derived {
    let (home, origin) = match (around.variable("HF_HOME"), around.variable("XDG_CACHE_HOME"), around.variable("HOME"))
    {
        (Some(home), _, _) => (PathBuf::from(home), "variable HF_HOME"),
        (_, Some(cache), _) => (PathBuf::from(cache).join("huggingface"), "default, below variable XDG_CACHE_HOME"),
        (_, _, Some(home)) => (PathBuf::from(home).join(".cache/huggingface"), "default"),
        _ => (std::env::temp_dir().join("huggingface"), "default (there is no home folder)"),
    };
    Derived { text: Some(home.join(name).display().to_string()), origin: origin.into() }
}
