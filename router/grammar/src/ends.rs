//! Whether a text of a grammar ever ends. The library takes one that never does (`start: "a" start`), and goes on with it for ever.
//!
//! What cannot be told here (templates, attributes, counted repetitions) is said to end.

use std::{collections::HashSet, iter::Peekable, slice::Iter};

use crate::lark::{Token, is_terminal, tokens};

/// Rounds over all rules at most: each finds a rule more at least, in common grammars most of them.
const ROUNDS_MAX: usize = 64;
/// Letters that stand behind a text or an expression as its flags, where they look like a name.
const FLAGS: &str = "imslux";

/// Whether no text of a Lark grammar ends.
pub(crate) fn never_ends(text: &str) -> bool {
    let tokens = tokens(text);
    let is_parametric = tokens.windows(2).any(|two| two == [Token::Sign(':'), Token::Sign(':')]);
    if is_parametric || text.contains("%lark") {
        return false;
    }
    let rules: Vec<(&str, &[Token])> = lines(&tokens).filter_map(rule).collect();
    let mut endless: HashSet<&str> = rules.iter().map(|(name, _)| *name).collect();
    for _ in 0..ROUNDS_MAX {
        let before = endless.len();
        // What a rule needs mostly stands behind it.
        for (name, body) in rules.iter().rev() {
            if endless.contains(name) && ends(&mut body.iter().peekable(), &endless) {
                endless.remove(name);
            }
        }
        if !endless.contains("start") {
            return false;
        }
        if endless.len() == before {
            return true;
        }
    }
    false
}

/// Each with those that go on with it, which begin with a `|`.
fn lines<'a, 't>(tokens: &'t [Token<'a>]) -> impl Iterator<Item = &'t [Token<'a>]> {
    let is_end = |&at: &usize| tokens[at] == Token::LineEnd && tokens.get(at + 1) != Some(&Token::Sign('|'));
    let mut begin = 0;
    (0..tokens.len()).filter(is_end).chain([tokens.len()]).collect::<Vec<_>>().into_iter().map(move |end| {
        let line = &tokens[begin..end];
        begin = (end + 1).min(tokens.len());
        line
    })
}

/// A rule's name, and what stands behind its colon.
fn rule<'a, 't>(line: &'t [Token<'a>]) -> Option<(&'a str, &'t [Token<'a>])> {
    let marks = line.iter().take_while(|token| matches!(token, Token::Sign('?' | '!'))).count();
    match &line[marks..] {
        [Token::Name(name), Token::Sign(':'), body @ ..] if !is_terminal(name) => Some((name, body)),
        _ => None,
    }
}

/// Whether one of several alternatives ends, up to the end of the group. `endless`: rules of which no text is known to end.
fn ends(rest: &mut Peekable<Iter<Token>>, endless: &HashSet<&str>) -> bool {
    let mut one_ends = false;
    let (mut others_end, mut last_ends) = (true, true); // of an alternative, the last part and those before it
    while let Some(token) = rest.next() {
        let part_ends = match token {
            Token::Sign('|') => {
                one_ends |= others_end && last_ends;
                (others_end, last_ends) = (true, true);
                continue;
            }
            Token::Sign(')' | ']') => break,
            Token::Sign('?' | '*' | '~') => {
                last_ends = true;
                continue;
            }
            Token::Sign('{') => {
                while rest.next().is_some_and(|token| *token != Token::Sign('}')) {}
                last_ends = true;
                continue;
            }
            // Behind an arrow stands another name of the alternative.
            Token::Sign('>') => {
                rest.next();
                continue;
            }
            Token::Sign('(') => ends(rest, endless),
            Token::Sign('[') => {
                ends(rest, endless);
                true
            }
            Token::Name(name) => !endless.contains(name) || name.chars().all(|c| FLAGS.contains(c)),
            _ => true,
        };
        others_end &= last_ends;
        last_ends = part_ends;
    }
    one_ends || others_end && last_ends
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_that_only_go_on_are_told() {
        for text in [
            "start: start",
            "start: \"a\" start",
            "start: /[a-z]/ start\n  | \"b\" start",
            "start: \"a\" item+\nitem: \"b\" (start | item \"c\")\n",
            "?start: item -> item2\n!item: (\"a\" | \"b\") item // | \"c\"\n",
            "start: \"a\"? (start)+",
            "start: A start\nA: \"x\" | \"y\"",
            "%ignore / /\nstart: a\na: b\nb: a",
        ] {
            assert!(never_ends(text), "{text}");
        }
        for text in [
            "start: \"a\" start?",
            "start: \"a\" start*",
            "start: \"a\" [start]",
            "start: \"a\" start\n\n  | \"b\"",
            "start: \"a\" start |",
            "start:",
            "start: \"a\"\n?item: start item",
            "start: \"a\"i\ni: i",
            "start: \"x\" -> item\nitem: item",
            "start: item\nitem: \"a\" item | \"b\"",
            "start: other",
            "start[max_tokens=3]: \"a\" start",
            "start: a::0\na::_: \"x\" a::incr(_) %if lt(_, 3)\n  | \"\"",
            "start: start{0,2}",
            "a: a",
            "start: %json { \"start\": 1 }\n",
            "",
            "start: (",
            "start: )))",
            "start: {",
        ] {
            assert!(!never_ends(text), "{text}");
        }
    }
}
