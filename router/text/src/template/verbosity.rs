//! How long answers shall be: a variable that some templates tell the model, and most do not know.
//!
//! A template is asked, by rendering the chat, rather than read: it knows the variable if it looked at it. What is written in a template says
//! less: `{% set verbosity = verbosity | default("medium") %}` declares the very name it reads.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{Object, Value};

use super::TemplateError;

/// What templates and requests call it.
pub(super) const VERBOSITY: &str = "verbosity";

/// What an answer is that nobody wished otherwise.
const USUAL: &str = "medium";

/// A template's variables, and whether it has looked at the one that is wished for.
#[derive(Debug)]
pub(super) struct Watched {
    variables: BTreeMap<String, Value>,
    was_read: AtomicBool,
}

impl Watched {
    pub(super) fn new(variables: BTreeMap<String, Value>) -> Arc<Self> {
        Arc::new(Self { variables, was_read: AtomicBool::new(false) })
    }

    /// Refuses a wish that the template, which has been run, knew nothing of.
    pub(super) fn check(&self, wish: Option<&str>) -> Result<(), TemplateError> {
        let Some(wish) = wish.filter(|wish| *wish != USUAL) else { return Ok(()) };
        if self.was_read.load(Ordering::Relaxed) {
            return Ok(());
        }
        let reason = format!("is \"{wish}\", and the model's chat template knows no verbosity; allowed: \"{USUAL}\"");
        Err(TemplateError::Input { param: VERBOSITY, reason })
    }
}

impl Object for Watched {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if key == VERBOSITY {
            // A template is run by one thread, the one that asks afterwards.
            self.was_read.store(true, Ordering::Relaxed);
        }
        self.variables.get(key).cloned()
    }
}
