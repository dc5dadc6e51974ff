//! Conversations that do not fit the context: their oldest messages are left out, as few as can be.
//!
//! The search tries the whole conversation, then its end: first the shortest one, then ever longer ones until one does not fit, then between
//! the two. So apart from the first try no text is gone through that is much longer than what fits, however long the conversation is. All
//! tries of one prompt are one job of the text pool.

use pelton_text::{ChatInput, TemplateError};
use serde_json::Value;

use super::{
    prepare::{PreparedPrompt, Purpose, unrendered},
    serving::Serving,
    shown::Shown,
};
use crate::error::ApiError;

/// The room for an answer that names none: an eighth of the context, and not more than this many tokens.
const ROOM_MAX: u32 = 2048;

/// How a conversation may be shortened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortening {
    /// Of each message, whether it is told in any case: what systems and developers say.
    pub always: Vec<bool>,
    /// Where the other messages may begin, rising from 0, which is there. The last is the least that has to be told.
    pub starts: Vec<usize>,
    /// Tokens that the answer may have, if somebody said so.
    pub answer: Option<u32>,
}

impl Shortening {
    fn messages(&self, all: &[Value], start: usize) -> Vec<Value> {
        let is_told = |at: usize| at >= start || self.always[at];
        all.iter().enumerate().filter(|(at, _)| is_told(*at)).map(|(_, message)| message.clone()).collect()
    }

    /// Tokens that are to be left for the answer. Clients ask for a round number and mean "enough": for more than half of the
    /// context nothing is left out.
    fn room(&self, context: u32, default: Option<u32>) -> u32 {
        let wanted = self.answer.or(default).unwrap_or((context / 8).min(ROOM_MAX));
        wanted.clamp(1, (context / 2).max(1))
    }
}

/// A prompt, or why there is too much of it to make one.
type Tried = Result<PreparedPrompt, ApiError>;

impl Serving {
    /// The prompt with as few messages left out as can be. If not even the end of the conversation fits, that is the prompt, and refused as
    /// any that is too long.
    pub(super) fn shorten(&self, mut input: ChatInput, shortening: &Shortening) -> Result<PreparedPrompt, ApiError> {
        let all = std::mem::take(&mut input.messages);
        let Some(context) = self.max_model_len() else {
            input.messages = all;
            return self.try_chat(input)?;
        };
        let most = context - shortening.room(context, self.checkpoint.defaults.max_new_tokens).min(context);
        let (mut fitting, mut shortest) = (None, None);
        let fits = |number| -> Result<bool, ApiError> {
            let messages = shortening.messages(&all, shortening.starts[number]);
            match self.try_chat(ChatInput { messages, ..input.clone() })? {
                Ok(prompt) if prompt.ids.len() <= most as usize => {
                    fitting = Some(prompt);
                    return Ok(true);
                }
                tried if number + 1 == shortening.starts.len() => shortest = Some(tried),
                _ => {}
            }
            Ok(false)
        };
        let found = least_that_fits(shortening.starts.len(), fits)?;
        match found {
            // The search goes from short to long, and what fitted last is the longest that does.
            Some(_) => Ok(fitting.expect("what was found was made")),
            None => shortest.expect("the shortest was tried"),
        }
    }

    /// The outer error is no matter of length.
    fn try_chat(&self, input: ChatInput) -> Result<Tried, ApiError> {
        let (text, chat) = match self.chat_text(input)? {
            Ok(rendered) => rendered,
            Err(error @ (TemplateError::TooLong { .. } | TemplateError::TooMuchWork { .. })) => {
                return Ok(Err(unrendered(error)));
            }
            Err(error) => return Err(unrendered(error)),
        };
        match self.encode("messages", &text, false, Purpose::Answer { shown: Shown::default(), cut: None }) {
            Ok(ids) => Ok(Ok(PreparedPrompt { ids: ids.into(), text: None, chat: Some(chat), embeds: None })),
            Err(error @ ApiError::TextTooLong { .. }) => Ok(Err(error)),
            Err(error) => Err(error),
        }
    }
}

/// The least of `0..count` that fits, where whatever is above one that fits does, too; `None`: none. Tries 0 first, then from the end on,
/// so that the last one that fitted is the least.
fn least_that_fits<E>(count: usize, mut fits: impl FnMut(usize) -> Result<bool, E>) -> Result<Option<usize>, E> {
    if count == 0 {
        return Ok(None);
    }
    if fits(0)? {
        return Ok(Some(0));
    }
    let last = count - 1;
    if last == 0 || !fits(last)? {
        return Ok(None);
    }
    // `below` does not fit, `least` does.
    let (mut below, mut least, mut step) = (0, last, 1);
    while least - below > 1 {
        let next = least.saturating_sub(step).max(below + 1);
        if fits(next)? {
            least = next;
            step *= 2;
        } else {
            below = next;
            break;
        }
    }
    while least - below > 1 {
        let middle = below + (least - below) / 2;
        if fits(middle)? { least = middle } else { below = middle }
    }
    Ok(Some(least))
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use serde_json::json;

    use super::*;

    /// What is found where everything from `first` on fits, and what was tried.
    fn search(count: usize, first: usize) -> (Option<usize>, Vec<usize>) {
        let mut tried = Vec::new();
        let found = least_that_fits(count, |number| {
            tried.push(number);
            Ok::<_, Infallible>(number >= first)
        });
        (found.expect("no error"), tried)
    }

    #[test]
    fn the_least_that_fits_is_found_and_was_tried_last_of_those_that_fit() {
        for count in 1..40 {
            for first in 0..=count {
                let (found, tried) = search(count, first);
                assert_eq!(found, (first < count).then_some(first), "{first} of {count}");
                let fitted = tried.iter().copied().rfind(|number| *number >= first);
                assert_eq!(fitted, found, "{first} of {count}");
            }
        }
        assert_eq!(search(0, 0), (None, vec![]));
    }

    #[test]
    fn what_does_not_fit_is_not_tried_much_longer_than_what_does() {
        for (count, first) in [(100_000, 99_990), (100_000, 90_000), (1 << 20, 1)] {
            let (_, tried) = search(count, first);
            let longest = tried[1..].iter().map(|number| count - number).max().expect("some were tried");
            assert!(longest <= 2 * (count - first) + 1, "{longest} of {}", count - first);
            assert!(tried.len() <= 2 + 2 * 20, "{}", tried.len());
        }
    }

    #[test]
    fn an_error_ends_the_search() {
        let mut tried = 0;
        let found = least_that_fits(8, |number| {
            tried += 1;
            if number == 7 { Err("broken") } else { Ok(false) }
        });
        assert_eq!((found, tried), (Err("broken"), 2));
    }

    fn of(answer: Option<u32>) -> Shortening {
        Shortening { always: vec![true, false, true, false], starts: vec![0, 3], answer }
    }

    #[test]
    fn what_systems_say_stays() {
        let all = ["system", "user", "developer", "user"].map(Value::from);
        assert_eq!(of(None).messages(&all, 0), all);
        assert_eq!(Value::from(of(None).messages(&all, 3)), json!(["system", "developer", "user"]));
    }

    #[test]
    fn the_answer_gets_room_and_the_conversation_half_of_the_context() {
        for (answer, default, context, expected) in [
            (None, None, 800, 100),
            (None, None, 1 << 17, 2048),
            (None, Some(300), 800, 300),
            (Some(5), Some(300), 800, 5),
            (Some(800), None, 800, 400),
            (None, None, 1, 1),
        ] {
            assert_eq!(of(answer).room(context, default), expected, "{answer:?} {default:?} {context}");
        }
    }
}
