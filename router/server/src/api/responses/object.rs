//! The object `response`: what was asked for, how far it is, what has come of it.

use pelton_engine::Usage;
use pelton_text::Tokenizer;
use serde_json::{Map, Value, json};

use super::output::Output;
use crate::{
    error::ApiError,
    generate::{Delta, Ending, Finish, Whole},
};

/// How a response is shown, in streams and whole.
#[derive(Clone)]
pub(crate) struct ResponseForm {
    pub(crate) id: String,
    pub(crate) created: u64,
    pub(crate) model: String,
    /// What responses repeat of their request.
    pub(crate) asked: Map<String, Value>,
    /// With which log-probabilities are shown, if they are wanted.
    pub(crate) shows_logprobs: Option<Tokenizer>,
}

/// A response that will not change any more.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) response: Value,
    /// Its items, for conversations that go on with it.
    pub(crate) output: Vec<Value>,
}

/// How far a response is.
pub(super) enum State<'a> {
    InProgress,
    Ended(&'a Finish),
    Failed(&'a ApiError),
    Cancelled,
}

impl ResponseForm {
    /// While it is under way, or of one that came to nothing.
    pub(crate) fn in_progress(&self) -> Value {
        self.show(&State::InProgress, &[])
    }

    pub(crate) fn whole(&self, answer: Whole) -> Done {
        let mut output = Output::new(self.shows_logprobs.clone());
        let Whole { said, scores, tokens, finish } = answer;
        let delta = Delta { choice: 0, said, scores, tokens, finish: Some(finish.clone()) };
        output.delta(delta, &mut |_, _| {});
        Done { response: self.show(&State::Ended(&finish), &output.items), output: output.items }
    }

    /// `output`: what there was until then, which is shown, and which no other response goes on with.
    pub(crate) fn failed(&self, error: &ApiError, output: &[Value]) -> Done {
        Done { response: self.show(&State::Failed(error), output), output: Vec::new() }
    }

    pub(super) fn show(&self, state: &State<'_>, output: &[Value]) -> Value {
        let cut_by = match state {
            State::Ended(Finish { ending: Ending::Length, .. }) => Some("max_output_tokens"),
            State::Ended(Finish { ending: Ending::Repetition, .. }) => Some("repetition"),
            _ => None,
        };
        let status = match state {
            State::InProgress => "in_progress",
            State::Failed(_) => "failed",
            State::Cancelled => "cancelled",
            State::Ended(_) if cut_by.is_some() => "incomplete",
            State::Ended(_) => "completed",
        };
        let error = match state {
            State::Failed(error) => {
                let code = if error.status().is_client_error() { "invalid_prompt" } else { "server_error" };
                json!({ "code": code, "message": error.to_string() })
            }
            _ => Value::Null,
        };
        let usage = match state {
            State::Ended(finish) => usage(finish.usage, finish.reasoning_tokens),
            _ => Value::Null,
        };
        let cut = cut_by.map(|reason| json!({ "reason": reason }));
        let mut shown = json!({
            "id": self.id, "object": "response", "created_at": self.created, "status": status, "error": error,
            "incomplete_details": cut, "model": self.model, "output": output,
        });
        let members = shown.as_object_mut().expect("it was made as one");
        members.extend(self.asked.clone());
        members.insert("usage".to_owned(), usage);
        shown
    }
}

fn usage(Usage { prompt, cached, completion }: Usage, reasoning: Option<u32>) -> Value {
    json!({
        // Nobody pays for writing: what is new enters the cache anyway.
        "input_tokens": prompt, "input_tokens_details": { "cached_tokens": cached, "cache_write_tokens": 0 },
        "output_tokens": completion, "output_tokens_details": { "reasoning_tokens": reasoning.unwrap_or(0) },
        "total_tokens": u64::from(prompt) + u64::from(completion),
    })
}
