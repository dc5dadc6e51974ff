//! Wishes that some templates tell the model, and most do not know: how long answers shall be, how hard to think, what to answer from.
//!
//! A template is asked, by rendering chats, rather than read: it knows a variable if it looked at it. What is written in a template says
//! less: `{% set verbosity = verbosity | default("medium") %}` declares the very name it reads. A template may look at a variable for some
//! chats alone, as at a switch of thinking where an answer begins; so it is asked twice, by the plainest chat and by the one that is rendered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use minijinja::value::{Object, Value};
use serde::{Deserialize, Serialize};

use super::{ChatInput, TemplateError};

/// What templates and requests call it.
pub(super) const VERBOSITY: &str = "verbosity";
/// What an answer is that nobody wished otherwise.
const USUAL: &str = "medium";

const DOCUMENTS: &str = "documents";
/// What templates call the switch for thinking.
pub const THINKING_SWITCHES: [&str; 2] = ["enable_thinking", "thinking"];
/// How templates are told how hard to think, or whether.
const THINKING: [&str; 3] = ["reasoning_effort", THINKING_SWITCHES[0], THINKING_SWITCHES[1]];
const WATCHED: [&str; 5] = [VERBOSITY, DOCUMENTS, THINKING[0], THINKING[1], THINKING[2]];

/// What a request wishes by fields of its own, beside the variables by which the template is told.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Wishes {
    /// How hard to think. A template that knows neither efforts nor a switch of thinking refuses the chat.
    pub effort: Option<String>,
    /// To think, for a model that does not by itself. The same.
    pub thoughts: bool,
    /// To answer from documents. A template that does not look at them refuses the chat.
    pub documents: bool,
}

impl ChatInput {
    /// Whether the template is told that nothing is to be thought.
    pub fn is_sober(&self) -> bool {
        THINKING_SWITCHES.iter().any(|switch| self.kwargs.get(*switch) == Some(&false.into()))
    }
}

/// Of the watched variables, those that a template has looked at.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Known([bool; WATCHED.len()]);

impl Known {
    /// By both.
    pub(super) fn or(self, other: Self) -> Self {
        Self(std::array::from_fn(|at| self.0[at] || other.0[at]))
    }

    fn has(self, names: &[&str]) -> bool {
        WATCHED.iter().zip(self.0).any(|(name, is_known)| is_known && names.contains(name))
    }

    /// Refuses a wish that the template knows nothing of.
    pub(super) fn check(self, input: &ChatInput) -> Result<(), TemplateError> {
        let refused = |param, reason: String| Err(TemplateError::Input { param, reason });
        let Wishes { effort, thoughts, documents } = &input.wishes;
        if let Some(wish) = input.verbosity.as_ref().filter(|wish| *wish != USUAL && !self.has(&[VERBOSITY])) {
            let reason =
                format!("is \"{wish}\", and the model's chat template knows no verbosity; allowed: \"{USUAL}\"");
            return refused(VERBOSITY, reason);
        }
        let can_be_told = self.has(&THINKING);
        if let Some(effort) = effort.as_ref().filter(|_| !can_be_told) {
            let reason = format!(
                "is \"{effort}\", and the model's chat template knows neither efforts nor a switch of thinking; leave it out"
            );
            return refused(THINKING[0], reason);
        }
        if *thoughts && !can_be_told {
            let reason =
                "is \"enabled\", and the model thinks neither by itself nor by its chat template; leave it out";
            return refused("thinking", reason.to_owned());
        }
        if *documents && !self.has(&[DOCUMENTS]) {
            let reason = "are not shown by the model's chat template; put them into a message".to_owned();
            return refused(DOCUMENTS, reason);
        }
        Ok(())
    }
}

/// A template's variables, and which it has looked at.
#[derive(Debug)]
pub(super) struct Watched {
    variables: BTreeMap<String, Value>,
    looked_at: [AtomicBool; WATCHED.len()],
}

impl Watched {
    pub(super) fn new(variables: BTreeMap<String, Value>) -> Arc<Self> {
        Arc::new(Self { variables, looked_at: Default::default() })
    }

    /// What a template that was run knows.
    pub(super) fn known(&self) -> Known {
        Known(std::array::from_fn(|at| self.looked_at[at].load(Ordering::Relaxed)))
    }
}

impl Object for Watched {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.get_value_by_str(key.as_str()?)
    }

    fn get_value_by_str(self: &Arc<Self>, key: &str) -> Option<Value> {
        if let Some(at) = WATCHED.iter().position(|watched| *watched == key) {
            // A template is run by one thread, the one that asks afterwards.
            self.looked_at[at].store(true, Ordering::Relaxed);
        }
        self.variables.get(key).cloned()
    }
}
