//! GBNF, the form of grammars that llama.cpp made common, as Lark.
//!
//! ```text
//!   root ::= item ("," item)*        start: item ("," item)*
//!   item ::= [a-z]+ | "x"{2,3}       r_item: /[a-z]/+ | "x"{2,3}
//! ```
//!
//! Texts, classes, rules, `|`, groups, `* + ?`, `{m,n}`, comments; a rule goes on to the next `name ::=`.

use std::collections::HashSet;

use crate::{GrammarError, faults::shortened};

/// Whether a grammar is written in it: Lark has no `::=`.
pub(crate) fn is_gbnf(text: &str) -> bool {
    text.contains("::=")
}

/// The same grammar as Lark. What Lark knows as well is passed on as it is, and checked there.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let tokens = tokens(text)?;
    let begins: Vec<usize> = (1..tokens.len()).filter(|&at| tokens[at] == "::=").map(|at| at - 1).collect();
    if begins.first() != Some(&0) {
        return Err(GrammarError::new("a grammar begins with a rule: NAME ::= ..."));
    }
    let mut lark = String::new();
    let mut defined = HashSet::new();
    for &begin in &begins {
        if !defined.insert(tokens[begin].as_str()) {
            return Err(GrammarError::new(format!("`{}` is defined twice", shortened(&tokens[begin]))));
        }
    }
    for (at, &begin) in begins.iter().enumerate() {
        let end = begins.get(at + 1).copied().unwrap_or(tokens.len());
        let name = name(&tokens[begin])?;
        // Of two `::=` in a row the first one would be a name.
        let body = tokens.get(begin + 2..end).ok_or_else(|| GrammarError::new("`::=` stands behind a name alone"))?;
        let body: Vec<String> = body.iter().map(|token| expression(token, &defined)).collect::<Result<_, _>>()?;
        lark += &format!("{name}: {}\n", body.concat().trim_start());
    }
    if !defined.contains("root") {
        return Err(GrammarError::new("there is no rule `root`, with which a text begins"));
    }
    Ok(lark)
}

/// Rules of Lark begin with a small letter.
fn name(token: &str) -> Result<String, GrammarError> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if token.is_empty() || !token.chars().all(is_name) {
        return Err(GrammarError::new(format!("{token:?} is no name of a rule")));
    }
    if token == "root" {
        return Ok("start".to_owned());
    }
    // Names that differ in their case alone stay different.
    let letter = |c: char| if c.is_ascii_uppercase() { format!("u_{}", c.to_ascii_lowercase()) } else { c.to_string() };
    Ok(format!("r_{}", token.replace('-', "_d_").chars().map(letter).collect::<String>()))
}

fn expression(token: &str, defined: &HashSet<&str>) -> Result<String, GrammarError> {
    let first = token.chars().next().expect("tokens are not empty");
    Ok(match first {
        '"' => format!(" {token}"),
        '[' => format!(" /{}/", token.replace('/', "\\/")),
        '.' => " /(?s:.)/".to_owned(),
        '|' | '(' => format!(" {token}"),
        ')' | '*' | '+' | '?' | '{' => token.to_owned(),
        _ => {
            let name = name(token)?;
            if !defined.contains(token) {
                return Err(GrammarError::new(format!("`{}` is not defined", shortened(token))));
            }
            format!(" {name}")
        }
    })
}

fn tokens(text: &str) -> Result<Vec<String>, GrammarError> {
    let mut tokens = Vec::new();
    let mut rest = text.trim_start();
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '#' => {
                rest = rest.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
                continue;
            }
            '"' => closed(rest, '"')?,
            '[' => closed(rest, ']')?,
            '{' => closed(rest, '}')?,
            ':' if rest.starts_with("::=") => 3,
            '|' | '(' | ')' | '*' | '+' | '?' | '.' => 1,
            c if c.is_ascii_alphanumeric() || c == '_' => {
                rest.find(|c: char| !(c.is_ascii_alphanumeric() || c == '_' || c == '-')).unwrap_or(rest.len())
            }
            c => return Err(GrammarError::new(format!("{c:?} begins nothing that a GBNF grammar has"))),
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

/// Bytes up to and with the closing character, past those that are escaped.
fn closed(text: &str, end: char) -> Result<usize, GrammarError> {
    let mut is_escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if is_escaped => is_escaped = false,
            '\\' => is_escaped = true,
            c if c == end => return Ok(at + c.len_utf8()),
            _ => {}
        }
    }
    Err(GrammarError::new(format!("a {:?} is not closed by {end:?}", text.chars().next().unwrap_or(end))))
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
        assert_eq!(said("root ::= item other\nitem ::= \"a\""), "`other` is not defined");
        assert_eq!(said("root ::= item\nitem ::= \"a\"\nitem ::= \"b\""), "`item` is defined twice");
        assert!(!is_gbnf("start: \"a\""));
    }
}
