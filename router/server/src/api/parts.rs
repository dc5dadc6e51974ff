//! A delta's parts one by one, for protocols that tell an answer in blocks of which one is open at a time.

use crate::generate::CallPiece;

/// A part of an answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Part {
    Thought(String),
    Text(String),
    Call(CallPiece),
}

/// What a delta tells, in the order in which it was said as far as a delta knows it: the rest of the call that is open,
/// thoughts, text, further calls.
pub(super) fn parts(reasoning: String, text: String, calls: Vec<CallPiece>, open_call: Option<usize>) -> Vec<Part> {
    let mut calls = calls.into_iter().peekable();
    let mut parts = Vec::new();
    while let Some(piece) =
        calls.next_if(|piece| matches!(piece, CallPiece::Arguments { index, .. } if Some(*index) == open_call))
    {
        parts.push(Part::Call(piece));
    }
    if !reasoning.is_empty() {
        parts.push(Part::Thought(reasoning));
    }
    if !text.is_empty() {
        parts.push(Part::Text(text));
    }
    parts.extend(calls.map(Part::Call));
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_call_is_completed_before_anything_else_begins() {
        let start = |index| CallPiece::Start { index, id: "x".into(), name: "f".into() };
        let more = |index| CallPiece::Arguments { index, delta: "{}".into() };
        let got = parts("Hm.".into(), "\n".into(), vec![more(0), start(1), more(1)], Some(0));
        let rest = [Part::Thought("Hm.".into()), Part::Text("\n".into()), Part::Call(start(1)), Part::Call(more(1))];
        assert_eq!(got[0], Part::Call(more(0)));
        assert_eq!(got[1..], rest);
        assert_eq!(parts(String::new(), String::new(), vec![start(0), more(0)], None).len(), 2);
    }
}
