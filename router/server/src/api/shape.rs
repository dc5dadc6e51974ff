//! What requests look like: the objects that parsers read, as tables of their fields.
//!
//! A table serves twice. [`Fields::finish`](super::fields::Fields::finish) takes it for the list of all that is known, so that a
//! field that is not described is refused; and `/openapi.json` is written from it. In tests every parsed object is compared with its
//! table: each described field must have been asked for, in the way that its kind says.

mod schema;
#[cfg(test)]
mod tests;

use std::ops::RangeInclusive;

use serde_json::Value;

use super::unserved::Unserved;
pub(crate) use schema::{Bounds, Schemas};

/// An object of a request.
#[derive(Debug)]
pub(crate) struct Shape {
    /// Its name among the components of the description.
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    /// In parts, which several shapes may share.
    pub(crate) fields: &'static [&'static [Field]],
    /// What is known and refused, unless its value asks for nothing.
    pub(crate) unserved: &'static [&'static [Unserved]],
}

/// A field. Where it may be left out, `null` says the same.
#[derive(Debug)]
pub(crate) struct Field {
    pub(crate) name: &'static str,
    pub(crate) kind: Kind,
    pub(crate) about: &'static str,
    pub(crate) is_needed: bool,
    /// What holds if it is left out, as JSON.
    pub(crate) default: Option<&'static str>,
}

/// What a field may hold.
#[derive(Debug)]
pub(crate) enum Kind {
    Flag,
    /// So many characters.
    Text(RangeInclusive<u64>),
    /// A text of visible ASCII characters, so many.
    Id(RangeInclusive<u64>),
    /// A name by which a function can be called, of so many characters at most.
    FunctionName(usize),
    /// From the first to the second.
    Integer(i64, Most),
    /// `f32::MIN_POSITIVE` stands for "above 0", `f32::MAX` for "any".
    Number(&'static RangeInclusive<f32>),
    /// One of a few texts.
    Word(&'static [&'static str]),
    /// A list of token ids, of so many.
    TokenIds(u64, Most),
    /// A list of so many.
    List(&'static Kind, u64, Most),
    Object(&'static Shape),
    /// An object of so many names of so many characters at most, with values of a kind.
    Map(&'static Kind, usize, usize),
    /// The same, with token ids for names.
    ByToken(&'static RangeInclusive<f32>, Most),
    /// An object that is handed on as it is.
    AnyObject,
    /// A JSON schema as an object.
    Schema,
    /// Known, but nothing else than `null` goes together with what makes this shape the one that counts.
    Absent,
    /// Something that is not looked at.
    Anything,
    Either(&'static [Kind]),
}

/// The largest number, or the most of something; in part the server's configuration or its model says it.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Most {
    Is(i64),
    /// Answers per prompt.
    Answers,
    /// Log-probabilities per token.
    Logprobs,
    StopTexts,
    /// Tokens of a prompt and its answer together.
    Context,
    /// The last token of the vocabulary.
    Token,
}

impl Kind {
    /// Any text at all.
    pub(crate) const TEXT: Self = Self::Text(0..=u64::MAX);
    /// An integer of 32 bits, 0 or above.
    pub(crate) const COUNT: Self = Self::Integer(0, Most::U32);
}

impl Kind {
    /// Whether it is one of its words.
    pub(crate) fn has_word(&self, word: &str) -> bool {
        matches!(self, Self::Word(words) if words.contains(&word))
    }

    fn keep_known(&self, value: &mut Value) {
        match self {
            Self::Object(shape) => shape.keep_known(value),
            Self::List(kind, ..) => value.as_array_mut().into_iter().flatten().for_each(|item| kind.keep_known(item)),
            Self::Either(kinds) => {
                let shapes = kinds.iter().filter_map(|kind| match kind {
                    Self::Object(shape) => Some(*shape),
                    _ => None,
                });
                let shapes: Vec<&Shape> = shapes.collect();
                // Known to one of them is enough.
                let is_known = |name: &str| shapes.iter().any(|shape| shape.names().any(|known| known == name));
                if let (Some(members), false) = (value.as_object_mut(), shapes.is_empty()) {
                    members.retain(|name, _| is_known(name));
                }
                shapes.iter().for_each(|shape| shape.keep_known_within(value));
                kinds.iter().filter(|kind| !matches!(kind, Self::Object(_))).for_each(|kind| kind.keep_known(value));
            }
            _ => {}
        }
    }
}

impl Most {
    pub(crate) const U32: Self = Self::Is(u32::MAX as i64);
    /// As many as a body holds.
    pub(crate) const ANY: Self = Self::Is(i64::MAX);
}

/// A field that may be left out.
pub(crate) const fn optional(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about, is_needed: false, default: None }
}

/// A field that must be there.
pub(crate) const fn needed(name: &'static str, kind: Kind, about: &'static str) -> Field {
    Field { name, kind, about, is_needed: true, default: None }
}

/// A field for which something else holds if it is left out.
pub(crate) const fn with_default(name: &'static str, kind: Kind, default: &'static str, about: &'static str) -> Field {
    Field { name, kind, about, is_needed: false, default: Some(default) }
}

impl Shape {
    /// Of fields alone.
    pub(crate) const fn new(name: &'static str, about: &'static str, fields: &'static [&'static [Field]]) -> Self {
        Self { name, about, fields, unserved: &[] }
    }

    pub(crate) fn fields(&self) -> impl Iterator<Item = &'static Field> {
        self.fields.iter().copied().flatten()
    }

    pub(crate) fn unserved(&self) -> impl Iterator<Item = &'static Unserved> {
        self.unserved.iter().copied().flatten()
    }

    /// All names that are known.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.fields().map(|field| field.name).chain(self.unserved().map(|(name, ..)| *name))
    }

    /// Names that must be there.
    pub(crate) fn needed(&self) -> impl Iterator<Item = &'static str> {
        self.fields().filter(|field| field.is_needed).map(|field| field.name)
    }

    /// Drops from an object, and from those within it, what is not described: for values that are handed on to a template.
    pub(crate) fn keep_known(&self, value: &mut Value) {
        if let Some(members) = value.as_object_mut() {
            members.retain(|name, _| self.names().any(|known| known == name));
        }
        self.keep_known_within(value);
    }

    fn keep_known_within(&self, value: &mut Value) {
        let Some(members) = value.as_object_mut() else { return };
        for field in self.fields() {
            if let Some(value) = members.get_mut(field.name) {
                field.kind.keep_known(value);
            }
        }
    }
}

/// How a parser asked for a field: what tests compare with its kind.
#[cfg(test)]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Way {
    /// By code of its own.
    Raw,
    Flag,
    Text,
    Integer,
    Number,
    TokenIds,
    Word(&'static [&'static str]),
    Object,
    Objects,
}

#[cfg(test)]
impl Shape {
    /// Panics unless a parser that read such an object has asked for exactly what is described.
    pub(crate) fn check(&self, asked: &[(&'static str, Way)]) {
        tests::note(self);
        for (name, way) in asked {
            let field = self.fields().find(|field| field.name == *name);
            let is_known = field.is_some() || self.unserved().any(|(unserved, ..)| unserved == name);
            assert!(is_known, "`{name}` of {} is read and not described", self.name);
            let fits = field.is_none_or(|field| field.kind.is_read_by(*way));
            assert!(fits, "`{name}` of {} is described as {:?} and read as {way:?}", self.name, field.map(|f| &f.kind));
        }
        for field in self.fields().filter(|field| matches!(field.kind, Kind::Integer(..))) {
            let name = field.name;
            assert!(asked.contains(&(name, Way::Integer)), "`{name}` of {}: for schemas 5.0 is an integer", self.name);
        }
        for name in self.names() {
            assert!(
                asked.iter().any(|(known, _)| *known == name),
                "`{name}` of {} is described and not read",
                self.name
            );
            assert_eq!(
                self.names().filter(|other| *other == name).count(),
                1,
                "`{name}` of {} is there twice",
                self.name
            );
        }
    }
}

#[cfg(test)]
impl Kind {
    fn is_read_by(&self, way: Way) -> bool {
        match (way, self) {
            (Way::Raw, _)
            | (_, Self::Absent)
            | (Way::Integer, Self::Integer(..))
            | (Way::Flag, Self::Flag)
            | (Way::Text, Self::Text(_) | Self::Id(_) | Self::FunctionName(_) | Self::Word(_))
            | (Way::Number, Self::Number(_))
            | (Way::TokenIds, Self::TokenIds(..))
            | (Way::Object, Self::Object(_) | Self::AnyObject | Self::Schema)
            | (Way::Objects, Self::List(Self::Object(_) | Self::Either(_) | Self::AnyObject, ..)) => true,
            // A shape that is one of several has some of the words.
            (Way::Word(read), Self::Word(described)) => described.iter().all(|word| read.contains(word)),
            (Way::Integer | Way::Text | Way::Object | Way::Objects, Self::Either(kinds)) => {
                kinds.iter().any(|kind| kind.is_read_by(way))
            }
            _ => false,
        }
    }
}
