//! Enough of Lark to tell what its terminals cost. What is wrong with a grammar the library tells; here it is passed over.

use std::collections::HashMap;

use crate::{
    GrammarError,
    cost::{Cost, check_schema},
    faults::{Fault, fault},
    schema,
};

#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Token<'a> {
    Text(usize),
    Regex(&'a str),
    /// A schema behind `%json`, or what stands behind `%regex`.
    Json(&'a str),
    Name(&'a str),
    /// A special token, another grammar.
    Opaque,
    Sign(char),
    LineEnd,
}

/// Checks every terminal, regular expression and schema of a grammar. `values`: how many its schemas had before.
pub(crate) fn check(text: &str, values: &mut usize) -> Result<(), Fault> {
    let tokens = tokens(text);
    for token in &tokens {
        match token {
            Token::Regex(regex) => Cost::of_regex(regex).map_or(Ok(()), Cost::check)?,
            Token::Json(json) => match serde_json::from_str(json) {
                Ok(schema) => check_schema(&schema, values)?,
                Err(_) => continue,
            },
            _ => {}
        }
    }
    let mut terminals = Terminals { bodies: HashMap::new(), costs: HashMap::new() };
    for (name, body) in definitions(&tokens).into_iter().filter(|(name, _)| is_terminal(name)) {
        terminals.bodies.entry(name).or_insert(body);
    }
    let names: Vec<&str> = terminals.bodies.keys().copied().collect();
    names.into_iter().try_for_each(|name| terminals.cost(name).check())
}

/// Refuses a client's grammar that refers to others by their names (`@name`): those are ours, and one that has itself behind a reference
/// may never begin.
pub(crate) fn check_alone(text: &str) -> Result<(), GrammarError> {
    let mut at = 0;
    while at < text.len() {
        if text[at..].starts_with('@') {
            return Err(fault(text, at, "it refers to another grammar, of which there is none"));
        }
        at += token(&text[at..]).1;
    }
    Ok(())
}

/// The schemas that begin in a line, counted from 1.
pub(crate) fn schemas_of_line(text: &str, line: usize) -> Vec<serde_json::Value> {
    let (mut found, mut at, mut lines) = (Vec::new(), 0, 1);
    while at < text.len() && lines <= line {
        let (token, length) = token(&text[at..]);
        let part = &text[at..at + length];
        if let Some(Token::Json(json)) = token
            && part.starts_with("%json")
            && lines == line
        {
            found.extend(serde_json::from_str(json));
        }
        lines += part.matches('\n').count();
        at += length;
    }
    found
}

/// The same with schemas whose numbers the library keeps within their bounds. Lines stay where they are.
pub(crate) fn with_closed_ranges(text: &str) -> String {
    let (mut whole, mut at) = (String::new(), 0);
    while at < text.len() {
        let (token, length) = token(&text[at..]);
        let part = &text[at..at + length];
        at += length;
        let schema = match token {
            Some(Token::Json(json)) if part.starts_with("%json") => {
                serde_json::from_str::<serde_json::Value>(json).ok()
            }
            _ => None,
        };
        match schema.as_ref().map(|schema| schema::closed(schema.clone())) {
            Some(closed) if schema.as_ref() != Some(&closed) => {
                let lines = "\n".repeat(part.matches('\n').count());
                whole += &format!("%json {}", closed.to_string().replacen('{', &format!("{{{lines}"), 1));
            }
            _ => whole += part,
        }
    }
    whole
}

/// Where the first colon stands that is in no comment, text or regular expression: behind the name of the first rule, if it is Lark.
pub(crate) fn first_colon(text: &str) -> Option<usize> {
    let mut at = 0;
    while at < text.len() {
        match token(&text[at..]) {
            (Some(Token::Sign(':')), _) => return Some(at),
            (_, length) => at += length,
        }
    }
    None
}

pub(crate) fn is_terminal(name: &str) -> bool {
    name.trim_start_matches('_').starts_with(|c: char| c.is_ascii_uppercase())
}

/// Names at the beginning of a line that a colon stands behind, and what follows up to the next one.
fn definitions<'a, 't>(tokens: &'t [Token<'a>]) -> Vec<(&'a str, &'t [Token<'a>])> {
    let mut found: Vec<(&str, usize, usize)> = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let Token::Name(name) = token else { continue };
        let is_first = at == 0 || tokens[at - 1] == Token::LineEnd;
        let line = tokens[at..]
            .iter()
            .take_while(|token| !matches!(token, Token::LineEnd | Token::Text(_) | Token::Sign('|' | '(')));
        if let Some(colon) = line.enumerate().find(|(_, token)| **token == Token::Sign(':')).filter(|_| is_first) {
            found.push((name, at, at + colon.0 + 1));
        }
    }
    let ends: Vec<usize> = found.iter().skip(1).map(|(_, at, _)| *at).chain([tokens.len()]).collect();
    found.into_iter().zip(ends).map(|((name, _, begin), end)| (name, &tokens[begin..end])).collect()
}

struct Terminals<'a, 't> {
    bodies: HashMap<&'a str, &'t [Token<'a>]>,
    /// `None`: it is being computed, so that it refers to itself, which the library refuses.
    costs: HashMap<&'a str, Option<Cost>>,
}

impl<'a> Terminals<'a, '_> {
    fn cost(&mut self, name: &'a str) -> Cost {
        if let Some(known) = self.costs.get(name) {
            return known.unwrap_or_default();
        }
        let Some(&body) = self.bodies.get(name) else { return Cost::of_text(1) };
        self.costs.insert(name, None);
        let cost = self.alternatives(&mut body.iter().peekable());
        self.costs.insert(name, Some(cost));
        cost
    }

    fn alternatives<'t>(&mut self, rest: &mut std::iter::Peekable<std::slice::Iter<'t, Token<'a>>>) -> Cost {
        let (mut all, mut sequence) = (Vec::new(), Vec::new());
        while let Some(token) = rest.next() {
            let cost = match token {
                Token::Sign('|' | '&') => {
                    all.push(Cost::sequence(&std::mem::take(&mut sequence)));
                    continue;
                }
                Token::Sign(')' | ']') => break,
                Token::Sign('(') => self.alternatives(rest),
                Token::Sign('[') => self.alternatives(rest).repeated(true),
                // How often: a repetition. Its bounds cost nothing.
                Token::Sign('{') => {
                    while rest.next_if(|token| **token != Token::Sign('}')).is_some() {}
                    rest.next();
                    repeat_last(&mut sequence, true);
                    continue;
                }
                Token::Sign('?' | '*' | '~') => {
                    repeat_last(&mut sequence, true);
                    continue;
                }
                Token::Sign('+') => {
                    repeat_last(&mut sequence, false);
                    continue;
                }
                Token::Text(bytes) => Cost::of_text(*bytes),
                Token::Regex(regex) => Cost::of_regex(regex).unwrap_or_default(),
                Token::Json(json) => Cost::of_text(json.len()),
                Token::Name(name) => self.cost(name),
                Token::Opaque => Cost::of_text(1),
                Token::Sign(_) | Token::LineEnd => continue,
            };
            sequence.push(cost);
        }
        all.push(Cost::sequence(&sequence));
        Cost::together(&all)
    }
}

fn repeat_last(sequence: &mut [Cost], may_be_none: bool) {
    if let Some(last) = sequence.last_mut() {
        *last = last.repeated(may_be_none);
    }
}

pub(crate) fn tokens(text: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let (token, length) = token(rest);
        // A line that goes on has no end.
        if token != Some(Token::LineEnd) || tokens.last() != Some(&Token::LineEnd) {
            tokens.extend(token);
        }
        rest = &rest[length..];
    }
    tokens
}

/// What a text that is not empty begins with, unless it is a space or a comment; and its bytes.
fn token(text: &str) -> (Option<Token<'_>>, usize) {
    match text.chars().next().expect("the text is not empty") {
        '"' => {
            let length = closed(text, '"');
            (Some(Token::Text(length.saturating_sub(2))), length)
        }
        '#' => (None, text.find('\n').unwrap_or(text.len())),
        '/' if text.starts_with("//") => (None, text.find('\n').unwrap_or(text.len())),
        '/' => {
            let length = closed(text, '/');
            (Some(Token::Regex(text[1..length].strip_suffix('/').unwrap_or(&text[1..length]))), length)
        }
        '<' => (Some(Token::Opaque), text.find(['>', '\n']).map_or(text.len(), |end| end + 1)),
        '%' => {
            let word = 1 + text[1..].find(|c: char| !c.is_ascii_alphabetic()).unwrap_or(text.len() - 1);
            let json = json(&text[word..]).filter(|_| matches!(&text[..word], "%json" | "%regex"));
            match json {
                Some((json, length)) => (Some(Token::Json(json)), word + length),
                None => (None, word),
            }
        }
        '\n' => (Some(Token::LineEnd), 1),
        '@' => (Some(Token::Opaque), name(text)),
        c if c.is_ascii_alphabetic() || c == '_' => {
            let length = name(text);
            (Some(Token::Name(&text[..length])), length)
        }
        c => (Some(Token::Sign(c)).filter(|_| c.is_ascii_punctuation()), c.len_utf8()),
    }
}

/// Bytes of the name that the first character begins.
fn name(text: &str) -> usize {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    text.char_indices().skip(1).find(|(_, c)| !is_of_name(*c)).map_or(text.len(), |(at, _)| at)
}

/// Bytes up to and with the mark that closes what the first character opens.
fn closed(text: &str, close: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == close => return at + c.len_utf8(),
            _ => {}
        }
    }
    text.len()
}

/// The JSON that a text begins with, and where it ends.
fn json(text: &str) -> Option<(&str, usize)> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<serde_json::Value>();
    values.next()?.ok()?;
    let end = values.byte_offset();
    Some((&text[..end], end))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_costly(text: &str) -> bool {
        check(text, &mut 0).is_err()
    }

    #[test]
    fn terminals_are_written_out() {
        let doubled = |levels: usize, first: &str| {
            let more: String = (1..=levels).map(|nth| format!("A{nth}: A{} A{}\n", nth - 1, nth - 1)).collect();
            format!("start: A{levels} // \" a comment\nA0: {first}\n{more}")
        };
        assert!(!is_costly(&doubled(8, "\"a\"?")));
        assert!(is_costly(&doubled(14, "\"a\"?")));
        assert!(is_costly(&doubled(40, "\"a\"")), "its parts are too many, or count beyond 64 bits");
        assert!(is_costly(&doubled(14, "(\"x\" | /b?/ )\n  | \"c\"")));
        assert!(is_costly(&doubled(14, "\"a\"").replace("A1:", "A1.5:").replace("\"a\"", "[\"a\"]")));
        let names: String = (0..20_000).map(|_| "a0 ").collect();
        assert!(!is_costly(&format!("start: {names}\na0: \"a\"?")), "rules are not written out");
    }

    #[test]
    fn what_stands_within_is_found() {
        let chain = "a?".repeat(5000);
        assert!(is_costly(&format!("start: \"x\" /{chain}/")));
        assert!(is_costly(&format!("start: /\\/\"{chain}/i \"\\\"\"")));
        assert!(!is_costly(&format!("start: \"x\" // /{chain}/")));
        assert!(is_costly(&format!("# \"\nstart: \"x\" /{chain}/")), "a comment begins no text");
        assert!(is_costly(&format!("start: %json {{ \"pattern\": \"{chain}\" }}\nA: \"b\"")));
        let words: String = (0..3000).map(|nth| format!("  | \"country {nth}\"\n")).collect();
        assert!(!is_costly(&format!("start: LIST\nLIST: WORD (\",\" WORD)*\nWORD: \"Peru\"\n{words}")));
    }

    #[test]
    fn any_text_is_read() {
        for text in [
            "",
            "A:",
            "A: A",
            "A: (",
            "A: )",
            "\"",
            "/",
            "/a",
            "<",
            "%",
            "%json",
            "%json {",
            "@",
            "A: ~ ? {",
            "ä: \"ö\"",
            "A: B\nB: A",
        ] {
            _ = check(text, &mut 0);
        }
    }
}
