//! Which tokens an answer may have, beside what else it has to fit.

use std::sync::Arc;

use pelton_grammar::{Budget, Constraint, Grammar, Mask, Script, Spelling, State, TokenText, Vocabulary, Watch, Words};

/// Bytes, and the end.
const END: u32 = 256;

fn vocabulary() -> Vocabulary {
    let bytes: Vec<u8> = (0..=255).collect();
    let tokens = bytes.chunks(1).map(TokenText::Bytes).chain([TokenText::Special("<end>")]);
    Vocabulary::new(tokens, &[END]).expect("it has an end")
}

fn ids(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

fn bad(words: &[&str]) -> Words {
    Words::new(None, words.iter().map(|word| ids(word)).collect())
}

fn regex(regex: &str) -> Grammar {
    vocabulary().compile(&Script::of(Constraint::Regex(regex.to_owned())), Spelling::Usual).expect("a regex")
}

/// Whether each byte of a text may be drawn behind those before it.
fn may_say(grammar: &Grammar, text: &str) -> bool {
    let mut state = grammar.begin();
    ids(text).iter().all(|&token| {
        let allowed = state.mask().is_ok_and(|mask| mask.allows(token));
        allowed && state.take(&[token]).is_ok()
    })
}

#[test]
fn a_bad_word_is_never_completed() {
    let free = Grammar::of_words(bad(&["cat", "x"]));
    assert!(may_say(&free, "ca ct at cacacaba c-a-t"));
    for text in ["cat", "a cat", "cacat", "x", "ax"] {
        assert!(!may_say(&free, text), "{text}");
    }
    let twice = Grammar::of_words(bad(&["aab", "ab"]));
    assert!(may_say(&twice, "aaaa b") && !may_say(&twice, "ab") && !may_say(&twice, "aab"));
}

#[test]
fn only_listed_tokens_are_allowed() {
    let listed = Grammar::of_words(Words::new(Some(&ids("abc")), vec![ids("ab")]));
    assert!(may_say(&listed, "acbcaa"));
    for text in ["d", "ad", "ab", "\u{20ac}"] {
        assert!(!may_say(&listed, text), "{text}");
    }
    assert!(!listed.begin().mask().unwrap().allows(END), "the end is a token like others");
    let words = Words::new(Some(&ids("abc")), vec![ids("ab")]).allowing(&[END, u32::from(b'a')]);
    let with_end = Grammar::of_words(words);
    assert!(with_end.begin().mask().unwrap().allows(END) && may_say(&with_end, "acb") && !may_say(&with_end, "ab"));
}

#[test]
fn what_is_not_said_bans_nothing() {
    assert!(Words::default().is_empty() && Words::new(None, vec![Vec::new()]).is_empty());
    assert_eq!(Grammar::of_words(bad(&["ab"])).begin().mask(), Ok(Mask::Any), "nothing was begun");
}

#[test]
fn a_form_and_words_are_both_kept() {
    let form = regex("(cat|cow|dog)s?").with_words(bad(&["cat", "gs"]));
    assert!(may_say(&form, "cows") && may_say(&form, "dog"));
    assert!(!may_say(&form, "cat") && !may_say(&form, "dogs"));
    let mut state = form.begin();
    state.take(&ids("dog")).unwrap();
    assert!(state.mask().unwrap().allows(END));
    let listed = regex("[a-z]+").with_words(Words::new(Some(&[&ids("xyz")[..], &[END]].concat()), Vec::new()));
    assert!(may_say(&listed, "zyx") && !may_say(&listed, "zya") && !may_say(&listed, "z1"));
}

#[test]
fn where_nothing_is_left_the_answer_cannot_go_on() {
    let mut state: State = regex("cat").with_words(bad(&["cat"])).begin();
    state.take(&ids("ca")).unwrap();
    let stuck = state.mask().expect_err("it fits nothing else").to_string();
    assert!(stuck.contains("none may be used"), "{stuck}");
    let nothing = Grammar::of_words(Words::new(Some(&[]), Vec::new()));
    assert!(nothing.begin().mask().is_err());
}

#[test]
fn the_mark_that_ends_thoughts_is_no_word() {
    struct Always;
    impl Watch for Always {
        fn take(&mut self, _: u32) {}
        fn is_reasoning(&self) -> bool {
            true
        }
        fn is_within_character(&self) -> bool {
            false
        }
    }
    let budget = Budget { tokens: 1, close: ids("/").into(), watch: Arc::new(|| Box::new(Always)) };
    let thinking = Grammar::of_thinking(budget).with_words(bad(&["/", "a"]));
    let mut state = thinking.begin();
    assert!(!state.mask().unwrap().allows(u32::from(b'/')));
    state.take(&ids("bb")).unwrap();
    assert_eq!(state.mask(), Ok(Mask::Only(u32::from(b'/'))));
}
