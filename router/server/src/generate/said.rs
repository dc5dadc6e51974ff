//! What an answer says, in the order in which it is said: thoughts, text and calls.
//!
//! Protocols that tell an answer in blocks need the order; for others the kinds are taken apart.

/// Parts in their order; two of one kind that follow each other are one.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Said(Vec<Part>);

/// A part of what is said.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// What the model thinks, if its format tells that from text.
    Thought(String),
    /// Text to show.
    Text(String),
    /// A part of a tool call.
    Call(CallPiece),
    /// A tool call that nobody wants. It is not told, but texts around it are not one.
    Dropped,
}

impl Part {
    /// By how much an answer grows with it. Parts that are joined grow it by as much as each by itself.
    pub(crate) fn size(&self) -> usize {
        match self {
            Self::Thought(text) | Self::Text(text) => text.len(),
            Self::Call(CallPiece::Start { .. }) | Self::Dropped => 1,
            Self::Call(CallPiece::Arguments { delta, .. }) => delta.len(),
        }
    }
}

/// A part of a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallPiece {
    /// A call begins.
    Start {
        /// Counted from 0 within the answer.
        index: usize,
        /// The model's own, or one that is unique in the world.
        id: String,
        /// The function's name.
        name: String,
    },
    /// More of its arguments, a JSON text.
    Arguments {
        /// Which call.
        index: usize,
        /// To be appended.
        delta: String,
    },
}

/// A tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Call {
    /// Unique in the world.
    pub id: String,
    /// The function's name.
    pub name: String,
    /// A JSON text.
    pub arguments: String,
}

/// The same by kinds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Apart {
    /// All thoughts.
    pub reasoning: String,
    /// All text.
    pub text: String,
    /// All parts of calls.
    pub calls: Vec<CallPiece>,
}

/// A part that is complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Block {
    /// As [`Part::Thought`].
    Thought(String),
    /// As [`Part::Text`].
    Text(String),
    /// All of a call.
    Call(Call),
}

impl Said {
    /// Nothing but text.
    #[cfg(test)]
    pub(crate) fn text(text: impl Into<String>) -> Self {
        Self::of([Part::Text(text.into())])
    }

    /// These parts.
    pub fn of(parts: impl IntoIterator<Item = Part>) -> Self {
        let mut said = Self::default();
        parts.into_iter().for_each(|part| said.push(part));
        said
    }

    /// Adds what is said next.
    pub fn push(&mut self, part: Part) {
        match (self.0.last_mut(), part) {
            (_, Part::Text(more) | Part::Thought(more)) if more.is_empty() => {}
            (Some(Part::Text(text)), Part::Text(more)) => text.push_str(&more),
            (Some(Part::Thought(text)), Part::Thought(more)) => text.push_str(&more),
            (
                Some(Part::Call(CallPiece::Arguments { index: last, delta })),
                Part::Call(CallPiece::Arguments { index, delta: more }),
            ) if *last == index => delta.push_str(&more),
            (_, part) => self.0.push(part),
        }
    }

    /// Adds all that is said next.
    pub fn append(&mut self, more: Self) {
        more.0.into_iter().for_each(|part| self.push(part));
    }

    /// Whether nothing is said.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Bytes of text.
    pub(crate) fn text_bytes(&self) -> usize {
        self.0.iter().map(|part| if let Part::Text(text) = part { text.len() } else { 0 }).sum()
    }

    /// In its order.
    pub fn into_parts(self) -> impl Iterator<Item = Part> {
        self.0.into_iter()
    }

    /// By kinds.
    pub fn apart(self) -> Apart {
        let mut apart = Apart::default();
        for part in self.0 {
            match part {
                Part::Thought(more) => apart.reasoning.push_str(&more),
                Part::Text(more) => apart.text.push_str(&more),
                Part::Call(piece) => apart.calls.push(piece),
                Part::Dropped => {}
            }
        }
        apart
    }

    /// Of an answer that is complete. Texts around a call that was dropped are blocks of their own.
    pub fn blocks(self) -> Vec<Block> {
        let mut blocks = Vec::new();
        for part in self.0 {
            match part {
                Part::Thought(text) => blocks.push(Block::Thought(text)),
                Part::Text(text) => blocks.push(Block::Text(text)),
                Part::Call(CallPiece::Start { id, name, .. }) => {
                    blocks.push(Block::Call(Call { id, name, arguments: String::new() }));
                }
                Part::Call(CallPiece::Arguments { delta, .. }) => match blocks.last_mut() {
                    Some(Block::Call(call)) => call.arguments.push_str(&delta),
                    _ => panic!("arguments follow the beginning of their call"),
                },
                Part::Dropped => {}
            }
        }
        blocks
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(index: usize) -> Part {
        Part::Call(CallPiece::Start { index, id: index.to_string(), name: "f".into() })
    }

    fn more(index: usize, delta: &str) -> Part {
        Part::Call(CallPiece::Arguments { index, delta: delta.into() })
    }

    #[test]
    fn parts_of_a_kind_become_one_and_keep_their_order() {
        let parts = || {
            [
                Part::Text("a".into()),
                Part::Text(String::new()),
                Part::Text("b".into()),
                start(0),
                more(0, "{"),
                more(0, "}"),
            ]
        };
        let mut said = Said::of(parts());
        said.append(Said::of([
            start(1),
            Part::Thought("Hm".into()),
            Part::Thought(".".into()),
            Part::Text("c".into()),
        ]));
        assert_eq!(said.text_bytes(), 3);
        let call = |id: &str, arguments: &str| {
            Block::Call(Call { id: id.into(), name: "f".into(), arguments: arguments.into() })
        };
        let expected = [
            Block::Text("ab".into()),
            call("0", "{}"),
            call("1", ""),
            Block::Thought("Hm.".into()),
            Block::Text("c".into()),
        ];
        assert_eq!(said.clone().blocks(), expected);
        let apart = said.apart();
        assert_eq!((apart.reasoning.as_str(), apart.text.as_str(), apart.calls.len()), ("Hm.", "abc", 3));
        assert!(Said::of([Part::Text(String::new())]).is_empty());
    }
}
