//! Added tokens: where they stand in a text, by the rules of the `tokenizers` crate.
//!
//! The leftmost one counts, of those that begin at one place the longest, and the next begins behind it at the earliest.
//! `lstrip` and `rstrip` let a token take the whitespace beside it along. What one of them took is not given twice.

use memchr::{memchr, memchr2, memchr3};
use tokenizers::AddedToken;

/// A part of a text.
pub(super) enum Part<'a> {
    /// An added token, with the whitespace that it takes along.
    Token(u32),
    /// What lies between them; not empty.
    Text(&'a str),
}

/// Added tokens that are looked for together.
#[derive(Default)]
pub(super) struct Added {
    nodes: Vec<Node>, // of a trie by bytes, the root first; none if there are no tokens
    tokens: Vec<Token>,
    firsts: Vec<u8>, // with which tokens begin
}

#[derive(Default)]
struct Node {
    children: Vec<(u8, u32)>, // ascending
    token: Option<u32>,       // the index of the one that ends here
}

struct Token {
    id: u32,
    takes_left: bool,
    takes_right: bool,
}

impl Added {
    /// `tokens`, each with the text that it is found by. `None`: some of them are found by rules that are not known here.
    pub(super) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32, &'a AddedToken)>) -> Option<Self> {
        let mut added = Self::default();
        for (text, id, token) in tokens {
            if token.single_word || text.is_empty() {
                return None;
            }
            added.insert(text.as_bytes(), Token { id, takes_left: token.lstrip, takes_right: token.rstrip });
        }
        added.firsts =
            added.nodes.first().map_or(Vec::new(), |root| root.children.iter().map(|child| child.0).collect());
        Some(added)
    }

    fn insert(&mut self, text: &[u8], token: Token) {
        if self.nodes.is_empty() {
            self.nodes.push(Node::default());
        }
        let mut node = 0;
        for &byte in text {
            let next = u32::try_from(self.nodes.len()).expect("a vocabulary is shorter than 4 GiB");
            let children = &mut self.nodes[node].children;
            node = match children.binary_search_by_key(&byte, |child| child.0) {
                Ok(known) => children[known].1 as usize,
                Err(place) => {
                    children.insert(place, (byte, next));
                    self.nodes.push(Node::default());
                    next as usize
                }
            };
        }
        let index = u32::try_from(self.tokens.len()).expect("ids are 32 bits");
        self.nodes[node].token = Some(index);
        self.tokens.push(token);
    }

    /// Gives the parts of `text`, in order.
    pub(super) fn split<'a>(&self, text: &'a str, mut part: impl FnMut(Part<'a>)) {
        let (mut done, mut from) = (0, 0);
        while let Some((start, end, index)) = self.find(text.as_bytes(), from) {
            let token = &self.tokens[index as usize];
            let before = if token.takes_left { text[..start].trim_end().len() } else { start };
            if done < before {
                part(Part::Text(&text[done..before]));
            }
            part(Part::Token(token.id));
            // The search goes on behind the token itself, not behind what it took.
            from = end;
            done = if token.takes_right { text.len() - text[end..].trim_start().len() } else { end };
        }
        if done < text.len() {
            part(Part::Text(&text[done..]));
        }
    }

    /// The first token from `from` on: where it begins and ends, and which it is.
    fn find(&self, text: &[u8], from: usize) -> Option<(usize, usize, u32)> {
        let mut at = from;
        loop {
            at += self.candidate(&text[at..])?;
            if let Some((end, index)) = self.longest(text, at) {
                return Some((at, end, index));
            }
            at += 1;
        }
    }

    /// The next byte with which a token may begin.
    fn candidate(&self, text: &[u8]) -> Option<usize> {
        match self.firsts[..] {
            [] => None,
            [a] => memchr(a, text),
            [a, b] => memchr2(a, b, text),
            [a, b, c] => memchr3(a, b, c, text),
            _ => text.iter().position(|byte| self.firsts.binary_search(byte).is_ok()),
        }
    }

    /// The longest token that begins at `at`: where it ends, and which it is.
    fn longest(&self, text: &[u8], at: usize) -> Option<(usize, u32)> {
        let (mut node, mut found) = (&self.nodes[0], None);
        for (byte, end) in text[at..].iter().zip(at + 1..) {
            let Ok(child) = node.children.binary_search_by_key(byte, |child| child.0) else { break };
            node = &self.nodes[node.children[child].1 as usize];
            if let Some(index) = node.token {
                found = Some((end, index));
            }
        }
        found
    }
}
