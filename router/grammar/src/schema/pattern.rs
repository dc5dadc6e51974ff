//! Patterns of our own.

use crate::regex::literal;

/// A pattern of all texts but these.
pub(super) fn anything_but(texts: &[&str]) -> String {
    format!("^(?:{})$", others(texts))
}

fn others(texts: &[&str]) -> String {
    let mut firsts: Vec<char> = texts.iter().filter_map(|text| text.chars().next()).collect();
    firsts.sort_unstable();
    firsts.dedup();
    let mut ways: Vec<String> = Vec::new();
    if !texts.contains(&"") {
        ways.push(String::new());
    }
    let class: String = firsts.iter().map(|&first| literal(first)).collect();
    ways.push(if class.is_empty() { "(?s:.+)".to_owned() } else { format!("[^{class}](?s:.*)") });
    for first in firsts {
        let rests: Vec<&str> = texts.iter().filter_map(|text| text.strip_prefix(first)).collect();
        ways.push(format!("{}(?:{})", literal(first), others(&rests)));
    }
    ways.join("|")
}
