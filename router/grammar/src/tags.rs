//! Structural tags: an answer whose text is free in some places and has a form in others, as rules of the library's language.
//!
//! ```text
//!   triggered = (text up to a trigger, the rest of a tag that begins with it)* text
//! ```
//!
//! Free text ends with the first mark that it could end with: no model gets past a trigger without the tag behind it.

use llguidance::api::GrammarWithLexer;
use serde_json::Value;

use crate::{
    Constraint, GrammarError, regex, schema,
    script::{Mark, Part, lark_of, piece, quoted},
};

/// Parts of a form at most, those within others counted.
const PARTS_MAX: usize = 1_000;
/// Levels of parts within parts at most.
const LEVELS_MAX: usize = 32;

/// What a part of an answer looks like.
#[derive(Debug, Clone, PartialEq)]
pub enum Form {
    /// This text.
    Exactly(String),
    /// Any text. It ends where what follows it begins: that has to be a text, or a tag.
    Anything,
    /// JSON that is valid by a schema.
    Schema {
        /// The schema.
        schema: Value,
        /// Where it stands in what the client sent, as a JSON pointer.
        place: String,
    },
    /// What a regular expression matches.
    Regex {
        /// The expression.
        regex: String,
        /// As of a schema.
        place: String,
    },
    /// What a grammar gives.
    Grammar {
        /// The grammar, in the form of Lark or of GBNF.
        text: String,
        /// As of a schema.
        place: String,
    },
    /// One after the other.
    Sequence(Vec<Form>),
    /// One of these.
    Either(Vec<Form>),
    /// See there.
    Tag(Tag),
    /// Free text, and tags in it.
    Triggered {
        /// Texts that begin tags, and stand nowhere else in the free text.
        triggers: Vec<String>,
        /// Each begins with a trigger.
        tags: Vec<Tag>,
        /// How many tags there are.
        times: Times,
    },
    /// Tags and nothing else.
    Separated {
        /// Any of these.
        tags: Vec<Tag>,
        /// Between two of them.
        separator: String,
        /// How many there are.
        times: Times,
    },
}

/// A part between two texts.
#[derive(Debug, Clone, PartialEq)]
pub struct Tag {
    /// Before it.
    pub begin: String,
    /// What it looks like.
    pub content: Box<Form>,
    /// After it.
    pub end: String,
}

/// How many tags an answer has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Times {
    /// One at least.
    pub at_least_one: bool,
    /// One at most, and nothing after it.
    pub stop_after_first: bool,
}

impl Times {
    fn suffix(self) -> &'static str {
        match (self.at_least_one, self.stop_after_first) {
            (false, false) => "*",
            (true, false) => "+",
            (false, true) => "?",
            (true, true) => "",
        }
    }
}

impl Form {
    /// Whether a part of it is free, or drawn by a grammar, which may have control tokens.
    pub fn has_free_text(&self) -> bool {
        match self {
            Self::Anything | Self::Grammar { .. } | Self::Triggered { .. } => true,
            Self::Exactly(_) | Self::Schema { .. } | Self::Regex { .. } => false,
            Self::Sequence(parts) | Self::Either(parts) => parts.iter().any(Self::has_free_text),
            Self::Tag(tag) => tag.content.has_free_text(),
            Self::Separated { tags, .. } => tags.iter().any(|tag| tag.content.has_free_text()),
        }
    }

    /// Its schemas, expressions and grammars, each with its place.
    pub(crate) fn constraints(&self) -> Vec<(Constraint, &str)> {
        match self {
            Self::Schema { schema, place } => vec![(Constraint::JsonSchema(schema.clone()), place)],
            Self::Regex { regex, place } => vec![(Constraint::Regex(regex.clone()), place)],
            Self::Grammar { text, place } => vec![(Constraint::Grammar(text.clone()), place)],
            Self::Sequence(parts) | Self::Either(parts) => parts.iter().flat_map(Self::constraints).collect(),
            Self::Tag(tag) => tag.content.constraints(),
            Self::Triggered { tags, .. } | Self::Separated { tags, .. } => {
                tags.iter().flat_map(|tag| tag.content.constraints()).collect()
            }
            Self::Exactly(_) | Self::Anything => Vec::new(),
        }
    }

    /// Bytes of what it is made of, about.
    pub(crate) fn bytes(&self) -> usize {
        let of_tags = |tags: &[Tag]| -> usize {
            tags.iter().map(|tag| tag.begin.len() + tag.content.bytes() + tag.end.len()).sum()
        };
        match self {
            Self::Exactly(text) | Self::Regex { regex: text, .. } | Self::Grammar { text, .. } => text.len(),
            Self::Anything => 0,
            Self::Schema { schema, .. } => schema.to_string().len(),
            Self::Sequence(parts) | Self::Either(parts) => parts.iter().map(Self::bytes).sum(),
            Self::Tag(tag) => of_tags(std::slice::from_ref(tag)),
            Self::Triggered { triggers, tags, .. } => triggers.iter().map(String::len).sum::<usize>() + of_tags(tags),
            Self::Separated { tags, separator, .. } => separator.len() + of_tags(tags),
        }
    }

    /// In the library's language: one grammar, and those that it refers to. `specials`: control tokens by their names, which a mark may hold.
    pub(crate) fn to_grammars(&self, specials: &[(String, u32)]) -> Result<Vec<GrammarWithLexer>, GrammarError> {
        let mut rules = Rules { text: String::new(), grammars: Vec::new(), count: 0, parts: 0, specials };
        let start = rules.of(self, &[], 0)?;
        let whole = GrammarWithLexer::from_lark(format!("start: {start}\n{}", rules.text));
        Ok([vec![whole], rules.grammars].concat())
    }
}

struct Rules<'a> {
    text: String,
    grammars: Vec<GrammarWithLexer>, // clients' own: in ours one could end what it stands in, and go on
    count: usize,
    parts: usize,
    specials: &'a [(String, u32)],
}

impl Rules<'_> {
    /// What matches a form and `then` behind it.
    fn of(&mut self, form: &Form, then: &[Part], level: usize) -> Result<String, GrammarError> {
        self.parts += 1;
        if self.parts > PARTS_MAX || level > LEVELS_MAX {
            let reason = format!("it has more than {PARTS_MAX} parts, or more than {LEVELS_MAX} within each other");
            return Err(GrammarError::new(reason));
        }
        let below = level + 1;
        Ok(match form {
            Form::Anything if then.is_empty() => "/(?s:.*)/".to_owned(),
            Form::Anything => self.text_up_to(then),
            Form::Exactly(text) => format!("{} {}", piece(&self.mark(text)), piece(then)),
            Form::Schema { schema, place } => {
                let schema = schema::piece(schema).map_err(|error| error.within(place))?;
                format!("{schema} {}", piece(then))
            }
            Form::Regex { regex, place } => {
                let terminal = regex::terminal(regex).map_err(|error| error.within(place))?;
                format!("{terminal} {}", piece(then))
            }
            Form::Grammar { text, place } => {
                let name = self.name();
                let lark = lark_of(text).map_err(|error| error.within(place))?;
                self.grammars.push(GrammarWithLexer { name: Some(name.clone()), ..GrammarWithLexer::from_lark(lark) });
                format!("@{name} {}", piece(then))
            }
            Form::Sequence(parts) => self.sequence(parts, then, below)?,
            Form::Either(parts) if parts.is_empty() => return Err(GrammarError::new("a choice among nothing")),
            Form::Either(parts) => {
                let each: Result<Vec<String>, _> =
                    parts.iter().map(|part| self.of(part, then, below).map(|rule| self.rule(&rule))).collect();
                format!("({})", each?.join(" | "))
            }
            Form::Tag(tag) => {
                let begin = self.mark(&tag.begin);
                format!("{} {} {}", piece(&begin), self.behind_begin(tag, below)?, piece(then))
            }
            Form::Triggered { triggers, tags, times } => self.triggered(triggers, tags, *times, then, below)?,
            Form::Separated { tags, separator, times } => {
                let tags: Result<Vec<String>, _> =
                    tags.iter().map(|tag| self.of(&Form::Tag(tag.clone()), &[], below)).collect();
                let tag = self.alternatives(tags?)?;
                let more = format!("({} {tag})", piece(&self.mark(separator)));
                let tags = match times {
                    Times { stop_after_first: true, .. } => tag,
                    Times { .. } => format!("{tag} {more}*"),
                };
                format!("({tags}){} {}", if times.at_least_one { "" } else { "?" }, piece(then))
            }
        })
    }

    fn sequence(&mut self, parts: &[Form], then: &[Part], level: usize) -> Result<String, GrammarError> {
        let mut rule = String::new();
        let mut parts = parts.iter().peekable();
        while let Some(part) = parts.next() {
            if !matches!(part, Form::Anything) || parts.peek().is_none() {
                let then = if parts.peek().is_none() { then } else { &[] };
                rule += &format!("{} ", self.of(part, then, level)?);
                continue;
            }
            let next = parts.next().expect("looked at above");
            let then = if parts.peek().is_none() { piece(then) } else { String::new() };
            rule += &match next {
                Form::Exactly(text) if !text.is_empty() => {
                    let mark = self.mark(text);
                    format!("{} {then} ", self.text_up_to(&mark))
                }
                Form::Tag(tag) if !tag.begin.is_empty() => {
                    let begin = self.mark(&tag.begin);
                    format!("{} {} {then} ", self.text_up_to(&begin), self.behind_begin(tag, level)?)
                }
                _ => return Err(GrammarError::new("behind any text a text or a tag is allowed: nothing else ends it")),
            };
        }
        Ok(rule)
    }

    fn triggered(
        &mut self,
        triggers: &[String],
        tags: &[Tag],
        times: Times,
        then: &[Part],
        level: usize,
    ) -> Result<String, GrammarError> {
        let mut texts_and_tags = Vec::new();
        for trigger in triggers {
            if trigger.is_empty() {
                return Err(GrammarError::new("a trigger has a character"));
            }
            let mut rests = Vec::new();
            for tag in tags.iter().filter(|tag| tag.begin.starts_with(trigger.as_str())) {
                let rest = piece(&self.mark(&tag.begin[trigger.len()..]));
                rests.push(format!("{rest} {}", self.behind_begin(tag, level)?));
            }
            if rests.is_empty() {
                return Err(GrammarError::new(format!("no tag begins with the trigger {trigger:?}")));
            }
            let text = self.text_up_to(&self.mark(trigger));
            texts_and_tags.push(format!("{text} {}", self.alternatives(rests)?));
        }
        for tag in tags {
            let begun_by = triggers.iter().filter(|trigger| tag.begin.starts_with(trigger.as_str())).count();
            if begun_by != 1 {
                let reason = format!("the tag {:?} begins with {begun_by} of the triggers; allowed: one", tag.begin);
                return Err(GrammarError::new(reason));
            }
        }
        let one = self.alternatives(texts_and_tags)?;
        let (suffix, tail) = (times.suffix(), self.of(&Form::Anything, then, level)?);
        Ok(match times {
            Times { at_least_one: true, stop_after_first: true } => format!("{one} {}", piece(then)),
            Times { at_least_one: false, stop_after_first: true } => format!("({one} {} | {tail})", piece(then)),
            Times { stop_after_first: false, .. } => format!("{one}{suffix} {tail}"),
        })
    }

    fn behind_begin(&mut self, tag: &Tag, level: usize) -> Result<String, GrammarError> {
        let end = self.mark(&tag.end);
        self.of(&tag.content, &end, level + 1)
    }

    fn alternatives(&mut self, rules: Vec<String>) -> Result<String, GrammarError> {
        if rules.is_empty() {
            return Err(GrammarError::new("there are no tags"));
        }
        let names: Vec<String> = rules.iter().map(|rule| self.rule(rule)).collect();
        Ok(format!("({})", names.join(" | ")))
    }

    /// Any text that ends with a mark, the first that comes.
    fn text_up_to(&mut self, mark: &[Part]) -> String {
        let name = self.name();
        self.text += &match mark {
            [Part::Text(text)] => format!("{name}[suffix={}]: /(?s:.*)/\n", quoted(text)),
            _ => format!("{name}: /(?s:.*)/ {}\n", piece(mark)),
        };
        name
    }

    fn rule(&mut self, rule: &str) -> String {
        let name = self.name();
        self.text += &format!("{name}: {rule}\n");
        name
    }

    fn name(&mut self) -> String {
        self.count += 1;
        format!("part{}", self.count)
    }

    /// A text as it is drawn: where there is a control token for a part of it, that is the only way.
    fn mark(&self, text: &str) -> Mark {
        let (mut parts, mut rest) = (Mark::new(), text);
        while !rest.is_empty() {
            let first = self.specials.iter().filter_map(|(name, id)| Some((rest.find(name)?, name.len(), *id)));
            let first = first.min_by_key(|&(at, len, _)| (at, std::cmp::Reverse(len)));
            let Some((at, len, id)) = first else {
                parts.push(Part::Text(rest.to_owned()));
                break;
            };
            if at > 0 {
                parts.push(Part::Text(rest[..at].to_owned()));
            }
            parts.push(Part::Token(id));
            rest = &rest[at + len..];
        }
        parts
    }
}
