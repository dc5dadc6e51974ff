//! One streamed answer as it comes: its text so far, and how long it took.
//!
//! Knows the events of `/v1/chat/completions`. Never here: sockets, the terminal, the messages before it.

use std::time::Instant;

use serde_json::Value;

/// What has come of an answer.
pub(super) struct Answer {
    pub(super) text: String,
    /// Its latest text was the model's thinking, which is shown and not part of the answer.
    is_thinking: bool,
    tokens: u64,
    pub(super) is_done: bool,
    asked: Instant,
    /// When its first and its latest piece of text came, and how many came.
    first: Option<Instant>,
    latest: Option<Instant>,
    pieces: u64,
}

impl Default for Answer {
    fn default() -> Self {
        Self {
            text: String::new(),
            is_thinking: false,
            tokens: 0,
            is_done: false,
            asked: Instant::now(),
            first: None,
            latest: None,
            pieces: 0,
        }
    }
}

impl Answer {
    /// The text that one event shows.
    pub(super) fn take(&mut self, data: &str) -> Result<String, String> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(String::new());
        }
        let event: Value = serde_json::from_str(data).map_err(|error| format!("the server sent no JSON: {error}"))?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(message.to_owned());
        }
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            self.tokens = tokens;
        }
        let delta = &event["choices"][0]["delta"];
        let mut shown = delta["reasoning"].as_str().unwrap_or_default().to_owned();
        self.is_thinking |= !shown.is_empty();
        let text = delta["content"].as_str().unwrap_or_default();
        if !text.is_empty() && std::mem::take(&mut self.is_thinking) {
            shown.push_str("\n\n");
        }
        self.text.push_str(text);
        Ok(shown + text)
    }

    /// Some of its text has come. Events that are read together count once: whoever kept them until then, it was no model's rate.
    pub(super) fn came(&mut self, now: Instant) {
        self.first.get_or_insert(now);
        self.latest = Some(now);
        self.pieces += 1;
    }

    /// What it took, in words.
    pub(super) fn usage(&self) -> String {
        let (Some(first), Some(latest)) = (self.first, self.latest) else { return format!("{} tokens", self.tokens) };
        let (after, took) = (first - self.asked, latest - self.asked);
        // In a few large pieces most tokens come with the first of one, and the time between pieces says nothing of a rate.
        if self.pieces * 2 < self.tokens || self.pieces < 2 || latest == first {
            return format!("{} tokens in {:.2} s", self.tokens, took.as_secs_f64());
        }
        let rate = self.tokens.saturating_sub(1) as f64 / (latest - first).as_secs_f64();
        format!("{} tokens, the first after {:.2} s, then {rate:.0} a second", self.tokens, after.as_secs_f64())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thoughts_are_shown_and_are_no_part_of_the_answer() {
        let mut answer = Answer::default();
        let shown: Vec<String> =
            [r#"{"reasoning": "Hm, "}"#, r#"{"reasoning": "so."}"#, r#"{"content": "Yes"}"#, r#"{"content": "."}"#]
                .iter()
                .map(|delta| answer.take(&format!(r#"{{"choices": [{{"delta": {delta}}}]}}"#)).expect("an event"))
                .collect();
        assert_eq!(shown, ["Hm, ", "so.", "\n\nYes", "."]);
        assert_eq!(answer.text, "Yes.");
    }

    #[test]
    fn a_rate_is_told_only_where_tokens_came_one_by_one() {
        let asked = Instant::now();
        let at = |ms| Some(asked + std::time::Duration::from_millis(ms));
        for (tokens, pieces, first, latest, expected) in [
            (11, 11, at(500), at(1500), "11 tokens, the first after 0.50 s, then 10 a second"),
            (60, 1, at(500), at(500), "60 tokens in 0.50 s"),
            (60, 2, at(500), at(501), "60 tokens in 0.50 s"),
            (2, 2, at(500), at(500), "2 tokens in 0.50 s"),
            (1, 1, at(500), at(500), "1 tokens in 0.50 s"),
            (3, 0, None, None, "3 tokens"),
        ] {
            let answer = Answer { tokens, is_done: true, asked, first, latest, pieces, ..Answer::default() };
            assert_eq!(answer.usage(), expected);
        }
    }
}
