//! `usage`: what a request took.

use std::ops::Range;

use pelton_engine::Usage as AnswerUsage;
use schemars::JsonSchema;
use serde::Serialize;

use crate::generate::Finish;

/// Tokens of a whole request, in OpenAI's shape.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
pub(crate) struct Usage {
    prompt_tokens: u64,
    total_tokens: u64,
    completion_tokens: u64,
    /// From an answer's end on: nobody is told before how much of its prompt was found.
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_tokens_details: Option<PromptDetails>,
    /// Where reasoning is told apart, from an answer's end on.
    #[serde(skip_serializing_if = "Option::is_none")]
    completion_tokens_details: Option<CompletionDetails>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
struct CompletionDetails {
    reasoning_tokens: u64,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, JsonSchema)]
struct PromptDetails {
    cached_tokens: u64,
}

/// Adds up the answers of a request. A prompt counts once, however many answers it has.
#[derive(Debug, Default)]
pub(crate) struct UsageSum {
    /// By answer: what it has taken so far.
    answers: Vec<AnswerUsage>,
    /// By answer: tokens of reasoning, once it is complete and if they are told apart.
    reasoning: Vec<Option<u32>>,
    /// By answer: whether it is complete.
    are_over: Vec<bool>,
    answers_per_prompt: usize,
}

impl UsageSum {
    /// `prompts`: the tokens of each.
    pub(crate) fn new(prompts: impl IntoIterator<Item = usize>, answers_per_prompt: usize) -> Self {
        let usage = |prompt: usize| AnswerUsage {
            prompt: u32::try_from(prompt).expect("prompts fit the context"),
            ..AnswerUsage::default()
        };
        let answers: Vec<AnswerUsage> =
            prompts.into_iter().flat_map(|prompt| std::iter::repeat_n(usage(prompt), answers_per_prompt)).collect();
        let (reasoning, are_over) = (vec![None; answers.len()], vec![false; answers.len()]);
        Self { answers, reasoning, are_over, answers_per_prompt }
    }

    /// So many more tokens of an answer have come.
    pub(crate) fn drawn(&mut self, choice: usize, tokens: usize) {
        self.answers[choice].completion += u32::try_from(tokens).expect("tokens fit the context");
    }

    /// An answer is complete.
    pub(crate) fn finished(&mut self, choice: usize, finish: &Finish) {
        self.answers[choice] = finish.usage;
        self.reasoning[choice] = finish.reasoning_tokens;
        self.are_over[choice] = true;
    }

    /// Of all answers.
    pub(crate) fn total(&self) -> Usage {
        self.of(0..self.answers.len())
    }

    /// Of one answer and its prompt.
    pub(crate) fn of_choice(&self, choice: usize) -> Usage {
        self.of(choice..choice + 1)
    }

    fn of(&self, choices: Range<usize>) -> Usage {
        let answers = &self.answers[choices.clone()];
        let is_over = self.are_over[choices.clone()].iter().all(|is_over| *is_over);
        let told = self.reasoning[choices].iter().copied().flatten();
        let sum = |sum: Option<u64>, count| Some(sum.unwrap_or(0) + u64::from(count));
        let first_of_prompt = || answers.iter().step_by(self.answers_per_prompt.max(1));
        let prompt_tokens = first_of_prompt().map(|usage| u64::from(usage.prompt)).sum();
        let completion_tokens = answers.iter().map(|usage| u64::from(usage.completion)).sum();
        let cached_tokens = first_of_prompt().map(|usage| u64::from(usage.cached)).sum();
        Usage {
            prompt_tokens,
            total_tokens: prompt_tokens + completion_tokens,
            completion_tokens,
            prompt_tokens_details: is_over.then_some(PromptDetails { cached_tokens }),
            completion_tokens_details: told
                .fold(None, sum)
                .map(|reasoning_tokens| CompletionDetails { reasoning_tokens }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::generate::Ending;

    #[test]
    fn a_prompt_counts_once_and_answers_each() {
        let mut sum = UsageSum::new([10, 20], 2);
        sum.drawn(0, 1);
        let finish = |prompt, cached, completion, reasoning_tokens| {
            let usage = AnswerUsage { prompt, cached, completion };
            Finish { ending: Ending::Length, has_calls: false, usage, reasoning_tokens, explanation: None }
        };
        assert_eq!(sum.total().completion_tokens_details, None);
        sum.finished(0, &finish(10, 8, 3, Some(2)));
        sum.finished(1, &finish(10, 9, 4, Some(0)));
        sum.finished(2, &finish(20, 0, 5, Some(1)));
        sum.drawn(3, 1);
        sum.drawn(3, 2);
        let total = sum.total();
        assert_eq!((total.prompt_tokens, total.completion_tokens, total.total_tokens), (30, 15, 45));
        assert_eq!(total.prompt_tokens_details, None, "one answer is under way");
        assert_eq!(sum.of_choice(1).total_tokens, 14);
        assert_eq!(sum.of_choice(1).prompt_tokens_details.map(|details| details.cached_tokens), Some(9));
        assert_eq!(sum.of_choice(3).prompt_tokens_details, None);
        assert_eq!(total.completion_tokens_details, Some(CompletionDetails { reasoning_tokens: 3 }));
        assert_eq!(sum.of_choice(3).completion_tokens_details, None);
        sum.finished(3, &finish(20, 4, 3, None));
        assert_eq!(sum.total().prompt_tokens_details.map(|details| details.cached_tokens), Some(8));
    }
}
