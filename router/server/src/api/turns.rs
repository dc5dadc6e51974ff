//! A conversation that a protocol tells in parts, put together as messages in the form of chats.
//!
//! What the model itself said stands in one turn, however many parts the protocol has for it: templates know an answer as one
//! message with reasoning, text and calls.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use crate::generate::Shortening;

/// Turns, the oldest first.
#[derive(Debug, Default)]
pub(super) struct Turns {
    turns: Vec<Turn>,
}

#[derive(Debug, Default)]
struct Turn {
    role: &'static str,
    texts: Vec<String>,
    reasoning: String,
    calls: Vec<Value>,
    /// In a turn of the role `tool`: the call that it answers.
    answers: Option<String>,
}

/// What a conversation ends with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Last {
    /// A turn that the model is to answer.
    Open,
    /// Text of the model's own.
    Answer,
    /// Calls of the model's own, which nobody has answered.
    Calls,
}

impl Turns {
    /// A turn of its own.
    pub(super) fn say(&mut self, role: &'static str, texts: Vec<String>) {
        self.turns.push(Turn { role, texts, ..Turn::default() });
    }

    /// What a user says, within the user's last turn if nobody has said anything since.
    pub(super) fn say_on(&mut self, texts: Vec<String>) {
        match self.turns.last_mut() {
            Some(turn) if turn.role == "user" => {
                let mut texts = texts.into_iter();
                // In one text: templates that know no parts put a line's end between any two.
                if let Some(last) = turn.texts.last_mut() {
                    last.push_str("\n\n");
                    last.push_str(&texts.next().unwrap_or_default());
                }
                turn.texts.extend(texts);
            }
            _ => self.say("user", texts),
        }
    }

    /// An empty message of a user's: a turn, unless the user's last one is still under way.
    pub(super) fn say_nothing(&mut self) {
        if self.turns.last().is_none_or(|turn| turn.role != "user") {
            self.say("user", Vec::new());
        }
    }

    /// Text that the model has said.
    pub(super) fn answered(&mut self, text: String) {
        self.answer().texts.push(text);
    }

    /// What the model thought.
    pub(super) fn thought(&mut self, text: &str) {
        self.answer().reasoning.push_str(text);
    }

    /// A call that the model made; `arguments` is the text of a JSON object.
    pub(super) fn called(&mut self, id: &str, name: &str, arguments: &str) {
        let call = json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } });
        self.answer().calls.push(call);
    }

    /// What a call came to.
    pub(super) fn resulted(&mut self, id: String, texts: Vec<String>) {
        self.turns.push(Turn { role: "tool", texts, answers: Some(id), ..Turn::default() });
    }

    /// Another conversation that goes on with this one.
    pub(super) fn join(&mut self, other: Self) {
        self.turns.extend(other.turns);
    }

    /// A call that is answered and was never made before.
    pub(super) fn stray_result(&self) -> Option<&str> {
        let mut made = HashSet::new();
        self.turns.iter().find_map(|turn| {
            let stray = turn.answers.as_deref().filter(|id| !made.contains(id));
            made.extend(turn.calls.iter().filter_map(|call| call["id"].as_str()));
            stray
        })
    }

    /// See [`Last`]; of no turns at all: open.
    pub(super) fn last(&self) -> Last {
        match self.turns.last() {
            Some(turn) if turn.role == "assistant" && turn.calls.is_empty() => Last::Answer,
            Some(turn) if turn.role == "assistant" => Last::Calls,
            _ => Last::Open,
        }
    }

    /// How the conversation may be shortened, whose answer may have so many tokens. What systems and developers say stays, and so does the
    /// last of what anybody else says; a call goes with its results. It begins with a turn of the user's, as most templates ask for,
    /// as long as there is one to begin with.
    pub(super) fn shortening(&self, answer: Option<u32>) -> Shortening {
        let always: Vec<bool> = self.turns.iter().map(|turn| matches!(turn.role, "system" | "developer")).collect();
        let mut said = (0..self.turns.len()).filter(|at| !always[*at]);
        let (first, last) = (said.next(), said.next_back());
        let parted = self.parted();
        let may_begin = |at: &usize| !always[*at] && !parted[*at];
        // Without what came before the second thing that was said, and without as much as leaves the last one.
        let later = first.zip(last).map_or(0..0, |(first, last)| first + 1..last + 1);
        let users: Vec<usize> = later.clone().filter(may_begin).filter(|at| self.turns[*at].role == "user").collect();
        let within_last = users.last().map_or(later.start, |at| at + 1)..later.end;
        let starts = [0].into_iter().chain(users).chain(within_last.filter(may_begin)).collect();
        Shortening { always, starts, answer }
    }

    /// Of each turn, whether a conversation that began there would have a result without its call.
    fn parted(&self) -> Vec<bool> {
        let mut made = HashMap::new(); // the last turn before in which a call was made
        let mut call_of = Vec::with_capacity(self.turns.len());
        for (at, turn) in self.turns.iter().enumerate() {
            call_of.push(turn.answers.as_deref().and_then(|id| made.get(id)).copied());
            made.extend(turn.calls.iter().filter_map(|call| Some((call["id"].as_str()?, at))));
        }
        let mut first_needed = usize::MAX; // of the calls whose results stand here or later
        let mut parted: Vec<bool> = (0..self.turns.len())
            .rev()
            .map(|at| {
                first_needed = call_of[at].map_or(first_needed, |call: usize| call.min(first_needed));
                first_needed < at
            })
            .collect();
        parted.reverse();
        parted
    }

    /// The messages of a chat.
    pub(super) fn into_messages(self) -> Vec<Value> {
        self.turns.into_iter().map(Turn::into_message).collect()
    }

    fn answer(&mut self) -> &mut Turn {
        if self.turns.last().is_none_or(|turn| turn.role != "assistant") {
            self.say("assistant", Vec::new());
        }
        self.turns.last_mut().expect("a turn of the model was just put there")
    }
}

impl Turn {
    fn into_message(self) -> Value {
        let Self { role, texts, reasoning, calls, answers } = self;
        let mut message = json!({ "role": role });
        // An answer that only called tools has no content.
        match &texts[..] {
            [] if !calls.is_empty() => {}
            [] => message["content"] = "".into(),
            [text] => message["content"] = text.as_str().into(),
            texts => message["content"] = texts.iter().map(|text| json!({ "type": "text", "text": text })).collect(),
        }
        if !reasoning.is_empty() {
            message["reasoning_content"] = reasoning.into();
        }
        if !calls.is_empty() {
            message["tool_calls"] = calls.into();
        }
        if let Some(id) = answers {
            message["tool_call_id"] = id.into();
        }
        message
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A conversation in letters: a system, a user, the model, its call 1 or 2, the result of 1 or 2.
    fn turns_of(conversation: &str) -> Turns {
        let mut turns = Turns::default();
        let mut letters = conversation.chars();
        while let Some(letter) = letters.next() {
            let mut id = || letters.next().expect("the number of a call").to_string();
            match letter {
                's' => turns.say("system", vec!["s".into()]),
                'd' => turns.say("developer", vec!["d".into()]),
                'u' => turns.say("user", vec!["u".into()]),
                'a' => turns.say("assistant", vec!["a".into()]),
                'c' => {
                    let id = id();
                    turns.say("assistant", vec![]);
                    turns.called(&id, "f", "{}");
                }
                'r' => turns.resulted(id(), vec!["r".into()]),
                other => panic!("{other}"),
            }
        }
        turns
    }

    /// Where a conversation may begin.
    fn check_starts(conversation: &str, expected: &[usize]) {
        let turns = turns_of(conversation);
        let shortening = turns.shortening(Some(7));
        assert_eq!(shortening.starts, expected, "{conversation}");
        assert_eq!((shortening.always.len(), shortening.answer), (turns.turns.len(), Some(7)));
    }

    #[test]
    fn a_conversation_may_begin_where_nothing_is_torn_apart() {
        check_starts("u", &[0]);
        check_starts("s", &[0]);
        check_starts("uau", &[0, 2]);
        check_starts("suauau", &[0, 3, 5]);
        // What developers say in between is no beginning, and no end either.
        check_starts("sudud", &[0, 3]);
        check_starts("suad", &[0, 2]);
        // Within the last exchange it begins with what the model did.
        check_starts("uuc1r1c2r2", &[0, 1, 2, 4]);
        check_starts("uaa", &[0, 1, 2]);
        // A result that comes late keeps all that came since its call.
        check_starts("uc1uaur1u", &[0, 6]);
        check_starts("c1r1", &[0]);
        check_starts("uc1c2r1r2", &[0, 1]);
        // An id that is used again is that of the last call.
        check_starts("uc1r1uc1r1u", &[0, 3, 6]);
    }

    #[test]
    fn a_result_is_stray_unless_its_call_came_before_it() {
        let check =
            |conversation, expected| assert_eq!(turns_of(conversation).stray_result(), expected, "{conversation}");
        check("uc1r1", None);
        check("uc1c2r2r1", None);
        check("uc1ur1r1", None); // answered twice
        check("uc1r1uc1r1", None);
        check("ur1", Some("1"));
        check("ur1c1", Some("1"));
        check("uc1r2c2r1", Some("2"));
        check("ur2r1", Some("2")); // the first one is told
    }

    #[test]
    fn what_the_model_said_is_one_message() {
        let mut turns = Turns::default();
        turns.say("system", vec!["Be brief.".into()]);
        turns.say_on(vec!["What is".into()]);
        turns.say_on(vec!["5 + 5?".into()]);
        turns.thought("Hm. ");
        turns.thought("Add.");
        turns.answered("Let me see.".into());
        assert_eq!(turns.last(), Last::Answer);
        turns.called("1", "add", "{\"a\":5}");
        assert_eq!(turns.last(), Last::Calls);
        turns.resulted("1".into(), vec!["10".into()]);
        turns.called("2", "add", "{}");
        turns.resulted("2".into(), vec![]);
        assert_eq!(turns.last(), Last::Open);
        let call = |id: &str, arguments: &str| json!({ "id": id, "type": "function", "function": { "name": "add", "arguments": arguments } });
        let expected = [
            json!({ "role": "system", "content": "Be brief." }),
            json!({ "role": "user", "content": "What is\n\n5 + 5?" }),
            json!({ "role": "assistant", "content": "Let me see.", "reasoning_content": "Hm. Add.", "tool_calls": [call("1", "{\"a\":5}")] }),
            json!({ "role": "tool", "tool_call_id": "1", "content": "10" }),
            json!({ "role": "assistant", "tool_calls": [call("2", "{}")] }),
            json!({ "role": "tool", "tool_call_id": "2", "content": "" }),
        ];
        assert_eq!(turns.into_messages(), expected);
    }
}
