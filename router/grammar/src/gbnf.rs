//! GBNF, the form of grammars that llama.cpp made common, as Lark.
//!
//! ```text
//!   root ::= item ("," item)*        start: item ("," item)*
//!   item ::= [a-z]+ | "x"{2,3}       r_item: /[a-z]/+ | "x"{2,3}
//! ```
//!
//! Texts, classes, rules, `|`, groups, `* + ?`, `{m,n}`, comments; a rule goes on to the next `name ::=`.

use std::collections::HashSet;

use crate::{
    GrammarError,
    faults::shortened,
    lark,
    regex::{self, Reading, Wrong},
};

/// Whether a grammar is written in it: its first rule has a `::=`, where one of Lark has a colon. Further on, texts and the like may hold either.
pub(crate) fn is_gbnf(text: &str) -> bool {
    lark::first_colon(text).is_some_and(|colon| text[colon..].starts_with("::="))
}

/// The same grammar as Lark. What Lark knows as well is passed on as it is, and checked there.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let tokens = tokens(text)?;
    let begins: Vec<usize> = (1..tokens.len()).filter(|&at| tokens[at].text == "::=").map(|at| at - 1).collect();
    if begins.first() != Some(&0) {
        return Err(GrammarError::new("a grammar begins with a rule: NAME ::= ..."));
    }
    let mut lark = String::new();
    let mut defined = HashSet::new();
    for &begin in &begins {
        if !defined.insert(tokens[begin].text) {
            return Err(tokens[begin].fault(text, &format!("`{}` is defined twice", shortened(tokens[begin].text))));
        }
    }
    for (at, &begin) in begins.iter().enumerate() {
        let end = begins.get(at + 1).copied().unwrap_or(tokens.len());
        let name = name(&tokens[begin], text)?;
        // Of two `::=` in a row the first one would be a name.
        let body = tokens.get(begin + 2..end);
        let body = body.ok_or_else(|| tokens[begin].fault(text, "`::=` stands behind a name alone"))?;
        check_groups(body, text)?;
        let body: Vec<String> = body.iter().map(|token| expression(token, &defined, text)).collect::<Result<_, _>>()?;
        lark += &format!("{name}: {}\n", body.concat().trim_start());
    }
    if !defined.contains("root") {
        return Err(GrammarError::new("there is no rule `root`, with which a text begins"));
    }
    Ok(lark)
}

/// A piece of a grammar, and where it begins.
struct Token<'a> {
    text: &'a str,
    at: usize,
}

impl Token<'_> {
    fn fault(&self, text: &str, reason: &str) -> GrammarError {
        fault(text, self.at, reason)
    }
}

/// What is wrong, behind its line and column.
fn fault(text: &str, at: usize, reason: &str) -> GrammarError {
    let before = &text[..at];
    let (line, begin) = (before.matches('\n').count() + 1, before.rfind('\n').map_or(0, |end| end + 1));
    GrammarError::new(format!("line {line}, column {}: {reason}", before[begin..].chars().count() + 1))
}

fn check_groups(body: &[Token<'_>], text: &str) -> Result<(), GrammarError> {
    let mut open = Vec::new();
    for token in body {
        match token.text {
            "(" => open.push(token),
            ")" if open.pop().is_none() => return Err(token.fault(text, "a `)` closes nothing")),
            _ => {}
        }
    }
    open.pop().map_or(Ok(()), |token| Err(token.fault(text, "a `(` is not closed within its rule")))
}

/// Rules of Lark begin with a small letter.
fn name(token: &Token<'_>, text: &str) -> Result<String, GrammarError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if token.text.is_empty() || !token.text.chars().all(is_name) {
        return Err(token.fault(text, &format!("`{}` is no name of a rule", shortened(token.text))));
    }
    if token.text == "root" {
        return Ok("start".to_owned());
    }
    // Names that differ in their case alone stay different.
    let letter = |c: char| if c.is_ascii_uppercase() { format!("u_{}", c.to_ascii_lowercase()) } else { c.to_string() };
    Ok(format!("r_{}", token.text.replace('-', "_d_").chars().map(letter).collect::<String>()))
}

fn expression(token: &Token<'_>, defined: &HashSet<&str>, text: &str) -> Result<String, GrammarError> {
    let of_it = token.text;
    let first = of_it.chars().next().expect("tokens are not empty");
    Ok(match first {
        '"' => format!(" {of_it}"),
        '[' => {
            let wrong = |wrong: Wrong| fault(text, token.at + wrong.at, &wrong.reason);
            format!(" /{}/", regex::read(of_it, Reading::Text).map_err(wrong)?)
        }
        '.' => " /(?s:.)/".to_owned(),
        '|' | '(' => format!(" {of_it}"),
        ')' | '*' | '+' | '?' | '{' => of_it.to_owned(),
        _ => {
            let name = name(token, text)?;
            if !defined.contains(of_it) {
                return Err(token.fault(text, &format!("`{}` is not defined", shortened(of_it))));
            }
            format!(" {name}")
        }
    })
}

fn tokens(text: &str) -> Result<Vec<Token<'_>>, GrammarError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let at = text.len() - rest.len();
        let closed = |end| {
            let reason = || format!("a {first:?} is not closed by {end:?}");
            closed(rest, end).ok_or_else(|| fault(text, at, &reason()))
        };
        let length = match first {
            '#' => {
                rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
                continue;
            }
            '"' => closed('"')?,
            '[' => closed(']')?,
            '{' => closed('}')?,
            ':' if rest.starts_with("::=") => 3,
            '|' | '(' | ')' | '*' | '+' | '?' | '.' => 1,
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len())
            }
            c => return Err(fault(text, at, &format!("{c:?} begins nothing that a GBNF grammar has"))),
        };
        tokens.push(Token { text: &rest[..length], at });
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Bytes up to and with the closing character, past those that are escaped.
fn closed(text: &str, end: char) -> Option<usize> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == end => return Some(at + c.len_utf8()),
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_texts_and_classes_become_larks() {
        let gbnf = "# a list\nroot ::= item (\",\" Item)* # more\nitem ::= [a-z/]+\n  | \"x\\\"\"{2,3}\nItem ::= . some-name?\nsome-name ::= \"#\"";
        let lark = "start: r_item ( \",\" r_u_item)*\nr_item: /[a-z\\/]/+ | \"x\\\"\"{2,3}\nr_u_item: /(?s:.)/ r_some_d_name?\nr_some_d_name: \"#\"\n";
        assert_eq!(to_lark(gbnf).unwrap(), lark);
    }

    #[test]
    fn what_is_no_gbnf_is_refused() {
        for wrong in [
            "a ::= \"b\"",
            "root ::= \"b",
            "root ::= [a",
            "::= a",
            "root ::=::= a",
            "root ::= ::=",
            "root ::= a; b",
            "x root ::= \"a\"",
        ] {
            assert!(to_lark(wrong).is_err(), "{wrong}");
        }
        let said = |text| to_lark(text).expect_err(text).reason;
        for (text, expected) in [
            ("root ::= item other\nitem ::= \"a\"", "line 1, column 15: `other` is not defined"),
            ("root ::= item\nitem ::= \"a\"\n item ::= \"b\"", "line 3, column 2: `item` is defined twice"),
            ("root ::= (", "line 1, column 10: a `(` is not closed within its rule"),
            ("root ::= \"é\")", "line 1, column 13: a `)` closes nothing"),
            ("root ::= \"a\"\n\nb ::= [", "line 3, column 7: a '[' is not closed by ']'"),
            ("# é\nroot ::= \"é\" ;", "line 2, column 14: ';' begins nothing that a GBNF grammar has"),
        ] {
            assert_eq!(said(text), expected);
        }
    }

    #[test]
    fn it_is_told_from_lark_by_its_first_rule() {
        for gbnf in [
            "root ::= \"a\"",
            "# start: a\n\n  root::=\"a:b\"",
            "x root ::= a",
            "::= a",
            "root ::= [\"] item\nitem ::= [/]",
        ] {
            assert!(is_gbnf(gbnf), "{gbnf}");
        }
        for lark in [
            "start: \"a\"",
            "start: \"::=\" A\nA: /::=/",
            "// root ::= \"a\"\nstart: \"b\"",
            "# root ::= \"a\"\nstart: \"b\" // ::=",
            "%ignore \"::=\"\nstart: \"b\"",
            "%ignore /[\"]::=/\nstart: \"b\"",
            "",
        ] {
            assert!(!is_gbnf(lark), "{lark}");
        }
    }
}
