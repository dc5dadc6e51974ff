//! Bounds on thoughts, over bytes as tokens, read by a watch that knows `<t>` and `</t>`.

use std::sync::Arc;

use pelton_grammar::{
    Body, Budget, Constraint, Grammar, Mask, Part, Reasoning, Script, Spelling, State, Thinking, TokenText, Vocabulary,
    Watch,
};

const END: u32 = 256;

/// Thoughts stand between `<t>` and `</t>`.
#[derive(Default)]
struct Thoughts {
    text: Vec<u8>,
    is_reasoning: bool,
}

impl Watch for Thoughts {
    fn take(&mut self, token: u32) {
        self.text.extend(u8::try_from(token));
        self.is_reasoning = match self.is_reasoning {
            false => self.text.ends_with(b"<t>"),
            true => !self.text.ends_with(b"</t>"),
        };
    }

    fn is_reasoning(&self) -> bool {
        self.is_reasoning
    }

    fn is_within_character(&self) -> bool {
        self.text.last() > Some(&0x7f) && std::str::from_utf8(&self.text).is_err()
    }
}

fn budget(tokens: u32, is_open: bool) -> Budget {
    let watch = move || Box::new(Thoughts { is_reasoning: is_open, ..Thoughts::default() }) as Box<dyn Watch>;
    Budget { tokens, close: b"</t>".map(u32::from).into(), watch: Arc::new(watch) }
}

/// A digit behind thoughts.
fn digit(is_open: bool) -> Grammar {
    let bytes: Vec<[u8; 1]> = (0..=255).map(|byte| [byte]).collect();
    let single = bytes.iter().map(|byte| TokenText::Bytes(byte));
    let vocabulary = Vocabulary::new(single.chain([TokenText::Special("<end>")]), &[END]).unwrap();
    let mark = |text: &str| vec![Part::Text(text.to_owned())];
    let reasoning =
        Some(Reasoning { is_open, open: mark("<t>"), close: mark("</t>"), behind: Vec::new(), never: Vec::new() });
    vocabulary
        .compile(
            &Script { reasoning, mark: Vec::new(), body: Body::Text(Constraint::Regex("[0-9]".to_owned())) },
            Spelling::Usual,
        )
        .unwrap()
}

/// What comes of a model that would say `wish`: where something else is forced, its words wait.
fn said(mut state: State, wish: &str) -> String {
    let (mut text, mut wish) = (Vec::new(), wish.bytes().peekable());
    while let Some(&next) = wish.peek() {
        let token = match state.mask().unwrap() {
            Mask::Only(token) => {
                let _ = wish.next_if(|&wished| u32::from(wished) == token);
                token
            }
            Mask::Any => u32::from(wish.next().unwrap()),
            mask @ (Mask::Of(_) | Mask::AllBut(_)) => {
                assert!(mask.allows(next.into()), "{next:?} behind {text:?}");
                u32::from(wish.next().unwrap())
            }
        };
        text.push(u8::try_from(token).unwrap());
        state.take(&[token]).unwrap();
    }
    String::from_utf8_lossy(&text).into_owned()
}

#[test]
fn thoughts_end_when_their_budget_is_spent() {
    let open = |tokens| Grammar::of_thinking(budget(tokens, true)).begin();
    assert_eq!(said(open(3), "abcdef"), "abc</t>def");
    assert_eq!(said(open(0), "abc"), "</t>abc");
    assert_eq!(said(open(3), "ab</t>cdefg"), "ab</t>cdefg", "who ends them in time is let alone");
    assert_eq!(said(open(u32::MAX), "abcdefg"), "abcdefg");
    let closed = |tokens| Grammar::of_thinking(budget(tokens, false)).begin();
    assert_eq!(said(closed(2), "abcdef"), "abcdef", "no thought, no bound");
    assert_eq!(said(closed(2), "<t>abcd"), "<t>ab</t>cd", "the mark that opens them costs nothing");
    assert_eq!(said(closed(3), "<t>ab</t>c<t>defg"), "<t>ab</t>c<t></t>defg", "the budget is the whole answer's");
}

#[test]
fn a_mark_that_was_begun_goes_on() {
    let open = |tokens| Grammar::of_thinking(budget(tokens, true)).begin();
    assert_eq!(said(open(3), "a</t>b"), "a</t>b", "the model ends them with the last token of its budget");
    assert_eq!(said(open(3), "a</xyz"), "a</t>xyz");
    assert_eq!(said(open(3), "<<<a"), "<<</t>a");
}

#[test]
fn a_mark_that_was_forced_is_known_as_long_as_it_is_the_end() {
    for (text, at) in [
        ("abc</t>def", &[4, 5, 6, 7][..]),
        ("a</t>b", &[3, 4, 5]), // the model's own, until its budget is spent
        ("a</b", &[3]),         // nothing else may come there, whatever comes here
        ("ab<</t>", &[3, 4, 5, 6, 7]),
        ("</", &[]),
    ] {
        let mut thinking = Thinking::new(budget(3, true));
        let closing = (1..).zip(text.bytes()).filter_map(|(count, byte)| {
            thinking.take(byte.into());
            thinking.is_closing().then_some(count)
        });
        assert_eq!(closing.collect::<Vec<_>>(), at, "{text}");
    }
}

#[test]
fn a_character_is_completed_before_the_mark() {
    let open = |tokens| Grammar::of_thinking(budget(tokens, true)).begin();
    assert_eq!(said(open(2), "a\u{20ac}bc"), "a\u{20ac}</t>bc");
    let mut broken = open(1);
    for _ in 0..3 {
        broken.take(&[0xe2]).unwrap();
        assert_eq!(broken.mask().unwrap(), Mask::Any, "it may still be completed");
    }
    broken.take(&[0xe2]).unwrap();
    assert_eq!(broken.mask().unwrap(), Mask::Only(u32::from(b'<')), "no character is that long");
}

#[test]
fn a_form_begins_behind_the_forced_end_of_thoughts() {
    let of = |tokens, is_open| digit(is_open).with_thinking(budget(tokens, is_open)).begin();
    assert_eq!(said(of(3, true), "abc7"), "abc</t>7");
    assert_eq!(said(of(2, true), "a\u{20ac}7"), "a\u{20ac}</t>7", "the form allows no mark within a character");
    assert_eq!(said(of(2, false), "<t>ab7"), "<t>ab</t>7");
    assert_eq!(said(of(2, false), "7"), "7");
}

#[test]
fn the_same_tokens_make_the_same_state() {
    let grammar = digit(true).with_thinking(budget(3, true));
    let tokens: Vec<u32> = b"abc</t>".iter().map(|&byte| byte.into()).collect();
    let mut state = grammar.begin();
    for taken in 0..tokens.len() {
        let mut again = grammar.begin(); // as after the death of whoever kept the state
        again.take(&tokens[..taken]).unwrap();
        assert_eq!(state.mask().unwrap(), again.mask().unwrap());
        state.take(&tokens[taken..=taken]).unwrap();
    }
}
