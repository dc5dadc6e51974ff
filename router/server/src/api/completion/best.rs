//! `best_of`: more answers are drawn than are wanted, and those are told whose tokens are the likeliest on average.

use crate::{
    api::{
        fields::Fields,
        sampling::StreamOptions,
        shape::{Field, Kind, Most, optional},
    },
    error::ApiError,
    generate::{Options, Whole, told},
};

/// The field that asks for it.
pub(super) const BEST_OF: Field = optional(
    "best_of",
    Kind::Integer(1, Most::Answers),
    "How many answers are drawn, of which the `n` likeliest are told, by their log-probability per token; at least `n`, and not streamed.",
);

/// How many answers are told and how many are drawn, which become the request's.
pub(super) fn read_best_of(
    fields: &mut Fields<'_>,
    options: &mut Options,
    stream: Option<StreamOptions>,
) -> Result<u32, ApiError> {
    let told = options.n;
    let Some(drawn) = fields.count(BEST_OF.name, told::N)? else { return Ok(told) };
    if drawn < told {
        return Err(ApiError::invalid(fields.at(BEST_OF.name), drawn, format!("at least `n`, which is {told}")));
    }
    // None at all is refused like everywhere.
    if drawn == told || told == 0 {
        return Ok(told);
    }
    let conflict = |reason: &str| Err(ApiError::Conflict { param: fields.at(BEST_OF.name), reason: reason.to_owned() });
    if stream.is_some() {
        return conflict("cannot be streamed if it is more than `n`: which answers are told is known at their end");
    }
    if options.beams.is_some() {
        return conflict("cannot go together with `use_beam_search`, which finds the best by itself");
    }
    options.n = drawn;
    options.logprobs = options.logprobs.or(Some(0));
    Ok(told)
}

/// The likeliest `told` answers of each `drawn`, best first.
pub(super) fn best(answers: Vec<Whole>, drawn: usize, told: usize) -> Vec<Whole> {
    if drawn == told {
        return answers;
    }
    let mut answers = answers.into_iter();
    let mut all = Vec::new();
    while answers.len() > 0 {
        let mut of_prompt: Vec<Whole> = answers.by_ref().take(drawn).collect();
        // Only the first of them brings the prompt's scores where they are shared; whoever is told brings them, too.
        let scores = of_prompt.iter().map(|answer| &answer.scores).find(|scores| !scores.is_empty()).cloned();
        of_prompt.sort_by(|one, other| likelihood(other).total_cmp(&likelihood(one)));
        of_prompt.truncate(told);
        for answer in &mut of_prompt {
            answer.scores = scores.clone().unwrap_or_default();
        }
        all.append(&mut of_prompt);
    }
    all
}

/// The log-probability of a token on average.
fn likelihood(answer: &Whole) -> f64 {
    let logprobs = answer.tokens.iter().filter_map(|drawn| drawn.logprobs.as_deref());
    let (sum, count) = logprobs.fold((0.0, 0), |(sum, count), told| (sum + f64::from(told.chosen), count + 1));
    if count == 0 { f64::NEG_INFINITY } else { sum / f64::from(count) }
}
