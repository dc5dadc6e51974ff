//! What a batch's answers took together, in OpenAI's words for batches.

use std::{
    fs::File,
    io::{self, BufRead as _, BufReader},
    path::Path,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Tokens of all requests that were answered with success.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchUsage")]
pub(crate) struct Usage {
    input_tokens: u64,
    input_tokens_details: Cached,
    output_tokens: u64,
    output_tokens_details: Reasoned,
    total_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchInputTokens")]
struct Cached {
    cached_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "BatchOutputTokens")]
struct Reasoned {
    reasoning_tokens: u64,
}

/// The usage of one answer, as any of the endpoints tells it.
#[derive(Deserialize, Default)]
#[serde(default)]
struct Told {
    #[serde(alias = "prompt_tokens")]
    input_tokens: u64,
    #[serde(alias = "completion_tokens")]
    output_tokens: u64,
    #[serde(alias = "prompt_tokens_details")]
    input_tokens_details: Option<ToldCached>,
    #[serde(alias = "completion_tokens_details")]
    output_tokens_details: Option<ToldReasoned>,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToldCached {
    cached_tokens: u64,
}

#[derive(Deserialize, Default)]
#[serde(default)]
struct ToldReasoned {
    reasoning_tokens: u64,
}

#[derive(Deserialize)]
struct Answer {
    usage: Option<Told>,
}

impl Usage {
    /// What an answer says of itself; one that says nothing took nothing.
    pub(crate) fn of_answer(answer: &[u8]) -> Self {
        let mut usage = Self::default();
        let answer = serde_json::from_slice::<Answer>(answer).ok();
        usage.add_told(answer.and_then(|answer| answer.usage).unwrap_or_default());
        usage
    }

    pub(crate) fn add(&mut self, other: Self) {
        self.input_tokens += other.input_tokens;
        self.output_tokens += other.output_tokens;
        self.input_tokens_details.cached_tokens += other.input_tokens_details.cached_tokens;
        self.output_tokens_details.reasoning_tokens += other.output_tokens_details.reasoning_tokens;
        self.total_tokens += other.total_tokens;
    }

    fn add_told(&mut self, told: Told) {
        self.input_tokens += told.input_tokens;
        self.output_tokens += told.output_tokens;
        self.input_tokens_details.cached_tokens += told.input_tokens_details.unwrap_or_default().cached_tokens;
        self.output_tokens_details.reasoning_tokens += told.output_tokens_details.unwrap_or_default().reasoning_tokens;
        self.total_tokens = self.input_tokens + self.output_tokens;
    }

    /// Of all answers in an output that was written before.
    pub(super) fn of_output(path: &Path) -> io::Result<Self> {
        #[derive(Deserialize)]
        struct Line {
            response: Response,
        }
        #[derive(Deserialize)]
        struct Response {
            body: Answer,
        }
        let mut input = BufReader::with_capacity(64 << 10, File::open(path)?);
        let (mut usage, mut text) = (Self::default(), Vec::new());
        while input.read_until(b'\n', &mut text)? > 0 {
            let line = serde_json::from_slice::<Line>(&text).ok();
            usage.add_told(line.and_then(|line| line.response.body.usage).unwrap_or_default());
            text.clear();
        }
        Ok(usage)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tokens_of_all_endpoints_add_up_and_stand_in_outputs_too() {
        let answers = [
            r#"{"usage": {"prompt_tokens": 5, "completion_tokens": 2, "total_tokens": 7, "prompt_tokens_details": {"cached_tokens": 4}, "completion_tokens_details": null}}"#,
            r#"{"usage": {"input_tokens": 10, "output_tokens": 3, "total_tokens": 13, "output_tokens_details": {"reasoning_tokens": 1}}}"#,
            r#"{"object": "list", "data": [], "usage": {"prompt_tokens": 100, "total_tokens": 100}}"#,
            r#"{"usage": null}"#,
            "{}",
        ];
        let mut usage = Usage::default();
        answers.iter().for_each(|answer| usage.add(Usage::of_answer(answer.as_bytes())));
        assert_eq!(
            usage,
            Usage {
                input_tokens: 115,
                input_tokens_details: Cached { cached_tokens: 4 },
                output_tokens: 5,
                output_tokens_details: Reasoned { reasoning_tokens: 1 },
                total_tokens: 120,
            }
        );
        let output = tempfile::NamedTempFile::new().expect("a file");
        let lines = answers.map(|answer| format!("{{\"custom_id\": \"a\", \"response\": {{\"body\": {answer}}}}}\n"));
        std::fs::write(output.path(), lines.concat()).expect("written");
        assert_eq!(Usage::of_output(output.path()).expect("read"), usage);
    }
}
