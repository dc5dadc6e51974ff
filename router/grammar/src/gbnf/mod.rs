//! GBNF, the form of grammars that llama.cpp made common, as Lark.
//!
//! ```text
//!   root ::= item ("," item)*        start: rule1 ( "," rule1 )*
//!   item ::= [a-z]+ | "x"{2,3}       rule1: /[a-z]/+ | "x"{2,3}
//! ```
//!
//! Texts, classes, rules, `|`, groups, `* + ?`, `{m,n}`, comments; a rule goes on to the next `name ::=`. All of it is checked here, where
//! its lines and columns are known: the library sees others.

mod tokens;

use std::{collections::HashMap, fmt::Write};

use tokens::{Piece, Token, tokens};

use crate::{
    GrammarError,
    faults::{fault, shortened},
    lark,
    script::quoted,
};

/// Groups within each other at most: the library reads no more.
const GROUPS_MAX: usize = 28;

/// Whether a grammar is written in it: its first rule has a `::=`, where one of Lark has a colon. Further on, texts and the like may hold either.
pub(crate) fn is_gbnf(text: &str) -> bool {
    lark::first_colon(text).is_some_and(|colon| text[colon..].starts_with("::="))
}

/// The same grammar as Lark.
pub(crate) fn to_lark(text: &str) -> Result<String, GrammarError> {
    let tokens = tokens(text)?;
    let begins: Vec<usize> =
        (0..tokens.len()).filter(|&at| matches!(tokens.get(at + 1), Some(Token { piece: Piece::Is, .. }))).collect();
    if begins.first() != Some(&0) {
        let at = tokens.first().map_or(text.len(), |first| first.at);
        return Err(fault(text, at, "a grammar begins with a rule: NAME ::= ..."));
    }
    let mut rules = HashMap::new();
    for &begin in &begins {
        let Token { piece: Piece::Name(name), at } = tokens[begin] else {
            return Err(fault(text, tokens[begin].at, "before a `::=` stands the name of a rule"));
        };
        let rule = if name == "root" { "start".to_owned() } else { format!("rule{}", rules.len()) };
        if rules.insert(name, rule).is_some() {
            return Err(fault(text, at, &format!("`{}` is defined twice", shortened(name))));
        }
    }
    if !rules.contains_key("root") {
        return Err(GrammarError::new("there is no rule `root`, with which a text begins"));
    }
    let mut lark = String::new();
    for (nth, &begin) in begins.iter().enumerate() {
        let Piece::Name(name) = tokens[begin].piece else { unreachable!("looked at above") };
        let end = begins.get(nth + 1).copied().unwrap_or(tokens.len());
        let mut body = Body { text, rest: tokens[begin + 2..end].iter(), rules: &rules };
        _ = writeln!(lark, "{}: {}", rules[name], body.alternatives(&mut Vec::new())?);
    }
    Ok(lark)
}

/// What stands behind the `::=` of a rule.
struct Body<'a, 't> {
    text: &'a str,
    rest: std::slice::Iter<'t, Token<'a>>,
    rules: &'t HashMap<&'a str, String>, // their names in Lark
}

impl Body<'_, '_> {
    /// Up to the end of the innermost group, or of the rule. `open`: where the groups around it begin.
    fn alternatives(&mut self, open: &mut Vec<usize>) -> Result<String, GrammarError> {
        let mut parts: Vec<String> = Vec::new();
        let mut may_repeat = false; // the last of them
        while let Some(Token { piece, at }) = self.rest.next() {
            let wrong = |reason: &str| Err(fault(self.text, *at, reason));
            let part = match piece {
                Piece::Text(text) => quoted(text),
                Piece::Class(class) => format!("/{class}/"),
                Piece::Any => "/(?s:.)/".to_owned(),
                Piece::Name(name) => match self.rules.get(name) {
                    Some(rule) => rule.clone(),
                    None => return wrong(&format!("`{}` is not defined", shortened(name))),
                },
                Piece::Open if open.len() == GROUPS_MAX => {
                    return wrong(&format!("more than {GROUPS_MAX} groups stand within each other"));
                }
                Piece::Open => {
                    open.push(*at);
                    format!("( {} )", self.alternatives(open)?)
                }
                Piece::Close if open.pop().is_some() => return Ok(parts.join(" ")),
                Piece::Close => return wrong("a `)` closes nothing"),
                Piece::Or => "|".to_owned(),
                Piece::Repeat(_) if !may_repeat => {
                    return wrong(
                        "one repetition may follow a text, a class, a name or a group: nothing of it stands here",
                    );
                }
                Piece::Repeat(times) => {
                    let repeated = parts.pop().expect("it may be repeated");
                    // The library has none that is never there.
                    if times == "{0}" { "\"\"".to_owned() } else { repeated + times }
                }
                Piece::Is => unreachable!("rules end before the next one's name"),
            };
            may_repeat = !matches!(piece, Piece::Or | Piece::Repeat(_));
            parts.push(part);
        }
        match open.last() {
            None => Ok(parts.join(" ")),
            Some(&at) => Err(fault(self.text, at, "a `(` is not closed within its rule")),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn rules_texts_and_classes_become_larks() {
        let gbnf = "# a list\nroot ::= item (\",\" Item)* # more\nitem ::= [a-z/]+\n  | \"x\\\"\"{2,3}\nItem ::= . some-name?\nsome-name ::= \"#\"{0}|(\"a\")";
        let lark = "start: rule1 ( \",\" rule2 )*\nrule1: /[a-z\\/]/+ | \"x\\\"\"{2,3}\nrule2: /(?s:.)/ rule3?\nrule3: \"\" | ( \"a\" )\n";
        assert_eq!(to_lark(gbnf).unwrap(), lark);
    }

    #[test]
    fn what_is_wrong_is_told_with_its_place() {
        let many = format!("root ::= {}\"a\"{}", "(".repeat(29), ")".repeat(29));
        for (text, expected) in [
            ("root ::= item other\nitem ::= \"a\"", "line 1, column 15: `other` is not defined"),
            ("root ::= item\nitem ::= \"a\"\n item ::= \"b\"", "line 3, column 2: `item` is defined twice"),
            ("a ::= \"b\"", "there is no rule `root`, with which a text begins"),
            ("root ::= (", "line 1, column 10: a `(` is not closed within its rule"),
            ("root ::= ((\"a\")", "line 1, column 10: a `(` is not closed within its rule"),
            ("root ::= \"é\")", "line 1, column 13: a `)` closes nothing"),
            ("root ::= \"a\"\n\nb ::= [", "line 3, column 7: a '[' is not closed by ']'"),
            ("# é\nroot ::= \"é\" ;", "line 2, column 14: ';' begins nothing that a GBNF grammar has"),
            ("\n::= a", "line 2, column 1: a grammar begins with a rule: NAME ::= ..."),
            ("x root ::= \"a\"", "line 1, column 1: a grammar begins with a rule: NAME ::= ..."),
            ("root ::=::= a", "line 1, column 6: before a `::=` stands the name of a rule"),
            ("root ::= \"a\" \"b\" ::= c", "line 1, column 14: before a `::=` stands the name of a rule"),
            (&many, "line 1, column 38: more than 28 groups stand within each other"),
        ] {
            assert_eq!(to_lark(text).map_err(|error| error.reason), Err(expected.to_owned()), "{text}");
        }
        let misplaced = "one repetition may follow a text, a class, a name or a group: nothing of it stands here";
        for (text, place) in [
            ("root ::= * \"a\"", "line 1, column 10"),
            ("root ::= \"a\" | {2}", "line 1, column 16"),
            ("root ::=\n (+)", "line 2, column 3"),
            ("root ::= \"b\"***", "line 1, column 14"),
        ] {
            assert_eq!(to_lark(text).map_err(|error| error.reason), Err(format!("{place}: {misplaced}")), "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(body in r#"["\[\]\\^:=(){}?|*+.,0-3a-bux#\-é\n ]{0,24}"#) {
            let text = format!("root ::= {body}");
            if let Err(error) = to_lark(&text) {
                prop_assert!(error.reason.starts_with("line "), "{}: {}", text, error);
            }
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
