//! What an answer has to look like, and its form in the grammar library's own language (Lark with inline JSON schemas).
//!
//! ```text
//!   answer = [reasoning] ([mark] constraint | calls)
//!   reasoning = open? any text up to close       free, since thoughts have no form
//!   calls = open? (each_open call each_close)+ close?
//!   call = head arguments tail                   arguments: JSON, or fields (`fields.rs`)
//! ```
//!
//! What is free beside calls: `beside.rs`.

use llguidance::api::{GrammarWithLexer, TopLevelGrammar};
use serde_json::{Value, json};

use crate::{BesideText, Fields, Form, GrammarError, Spaces, beside, gbnf, lark, regex, schema};

/// Bytes of a constraint at most.
const BYTES_MAX: usize = 1 << 20;
/// Entries of a list of choices at most.
const CHOICES_MAX: usize = 10_000;

/// What an answer has to look like.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// What the model may think before; `None`: nothing.
    pub reasoning: Option<Reasoning>,
    /// What stands before a text that has to fit something.
    pub mark: Mark,
    /// What it says.
    pub body: Body,
}

/// What is asked of the text itself.
#[derive(Debug, Clone, PartialEq)]
pub enum Body {
    /// A text that fits.
    Text(Constraint),
    /// Calls of tools, and nothing else.
    Calls(Calls),
    /// Calls, or a text that fits.
    Either(Calls, Constraint),
    /// Any text, and calls beside it.
    Free(Calls, BesideText),
}

/// What a text has to fit.
#[derive(Debug, Clone, PartialEq)]
pub enum Constraint {
    /// JSON that is valid by a schema.
    JsonSchema(Value),
    /// Any JSON object.
    JsonObject,
    /// JSON that is valid by a schema, with this between its tokens.
    Spaced(Value, Spaces),
    /// A regular expression that matches all of it.
    Regex(String),
    /// One of these texts.
    Choice(Vec<String>),
    /// A grammar in the form of Lark, or of GBNF (`name ::= ...`).
    Grammar(String),
    /// Structural tags: free in some places.
    Tags(Form),
}

/// A mark as it is drawn: texts and control tokens, one after the other.
pub type Mark = Vec<Part>;

/// A part of a mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Part {
    /// These characters, in any tokens.
    Text(String),
    /// This token.
    Token(u32),
    /// A number.
    Number,
    /// Line ends and spaces, or nothing. Only around calls and within them.
    Gap,
}

/// How thinking is marked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reasoning {
    /// Whether the prompt has opened it.
    pub is_open: bool,
    /// What opens it.
    pub open: Mark,
    /// What closes it.
    pub close: Mark,
    /// What stands behind that, before the answer; of no parts: line ends and spaces, as the model likes.
    pub behind: Mark,
    /// Texts that thoughts do not have: those with which somebody who reads them sees other things begin.
    pub never: Vec<String>,
}

/// How calls are written.
#[derive(Debug, Clone, PartialEq)]
pub struct Calls {
    /// Before all of them.
    pub open: Option<Mark>,
    /// After all of them.
    pub close: Option<Mark>,
    /// Before each.
    pub each_open: Option<Mark>,
    /// After each.
    pub each_close: Option<Mark>,
    /// Between two of them; of no parts: line ends and spaces.
    pub between: Mark,
    /// What may be called.
    pub tools: Vec<Call>,
    /// Whether there may be several.
    pub are_many: bool,
}

/// One tool, as its calls are written.
#[derive(Debug, Clone, PartialEq)]
pub struct Call {
    /// Text before the arguments: the name, if it does not stand among them.
    pub head: Mark,
    /// What it is called with.
    pub arguments: Arguments,
    /// After them.
    pub tail: Mark,
}

/// How arguments are written.
#[derive(Debug, Clone, PartialEq)]
pub enum Arguments {
    /// JSON that is valid by a schema.
    Json(Value),
    /// One by one.
    Fields(Fields),
}

impl Script {
    /// A text without thoughts.
    pub fn of(constraint: Constraint) -> Self {
        Self { reasoning: None, mark: Mark::new(), body: Body::Text(constraint) }
    }

    /// In the library's language. `specials`: control tokens by their names.
    pub(crate) fn to_grammar(&self, specials: &[(String, u32)]) -> Result<TopLevelGrammar, GrammarError> {
        let (reasoning, mut rules) = match &self.reasoning {
            None => ("", String::new()),
            Some(reasoning) => ("reasoning ", reasoning.rules()),
        };
        let mark = piece(&self.mark);
        let mut grammars = Vec::new();
        match &self.body {
            Body::Text(constraint) if self.reasoning.is_none() && self.mark.is_empty() => {
                return constraint.to_grammar(specials);
            }
            Body::Text(constraint) => {
                rules = format!("start: {reasoning}{mark} @body\n{rules}");
                grammars = constraint.to_body(specials)?;
            }
            Body::Calls(calls) => rules = format!("start: {reasoning}calls\n{rules}{}", calls.rules()?),
            Body::Either(calls, constraint) => {
                rules = format!("start: {reasoning}(calls | {mark} @body)\n{rules}{}", calls.rules()?);
                grammars = constraint.to_body(specials)?;
            }
            Body::Free(calls, beside) => {
                rules = format!("start: {reasoning}free\n{rules}{}{}", beside.rules(calls)?, calls.rules()?);
            }
        }
        grammars.insert(0, GrammarWithLexer::from_lark(rules));
        Ok(TopLevelGrammar { grammars, max_tokens: None })
    }
}

impl Constraint {
    /// As the grammar `body`, and those that it needs.
    fn to_body(&self, specials: &[(String, u32)]) -> Result<Vec<GrammarWithLexer>, GrammarError> {
        let mut grammars = self.to_grammar(specials)?.grammars;
        grammars[0].name = Some("body".to_owned());
        Ok(grammars)
    }

    /// In the library's language: one grammar, and those that it needs.
    pub(crate) fn to_grammar(&self, specials: &[(String, u32)]) -> Result<TopLevelGrammar, GrammarError> {
        check_size(match self {
            Self::JsonSchema(schema) | Self::Spaced(schema, _) => schema.to_string().len(),
            Self::JsonObject => 0,
            Self::Regex(text) | Self::Grammar(text) => text.len(),
            Self::Choice(texts) => texts.iter().map(String::len).sum(),
            Self::Tags(form) => form.bytes(),
        })?;
        let of_schema = TopLevelGrammar::from_json_schema;
        Ok(match self {
            Self::JsonSchema(value) => match schema::prepared(value)? {
                empty if schema::is_of_empty_objects(&empty) => {
                    TopLevelGrammar::from_lark(format!("start: {}", quoted("{}")))
                }
                prepared => of_schema(prepared),
            },
            Self::Spaced(value, spaces) => of_schema(schema::prepared_part(value, "", spaces)?),
            Self::JsonObject => of_schema(schema::prepared(&json!({"type": "object"}))?),
            Self::Regex(regex) => TopLevelGrammar::from_lark(format!("start: {}", regex::terminal(regex)?)),
            Self::Tags(form) => TopLevelGrammar { grammars: form.to_grammars(specials)?, max_tokens: None },
            Self::Choice(texts) => TopLevelGrammar::from_lark(choices(texts)?),
            Self::Grammar(text) => TopLevelGrammar::from_lark(lark_of(text)?),
        })
    }
}

/// A client's grammar as Lark.
pub(crate) fn lark_of(grammar: &str) -> Result<String, GrammarError> {
    if gbnf::is_gbnf(grammar) {
        return gbnf::to_lark(grammar);
    }
    lark::check_alone(grammar)?;
    Ok(lark::with_closed_ranges(grammar))
}

fn choices(texts: &[String]) -> Result<String, GrammarError> {
    if texts.is_empty() || texts.len() > CHOICES_MAX {
        return Err(GrammarError::new(format!("a list of 1 to {CHOICES_MAX} texts is allowed")));
    }
    let texts: Vec<String> = texts.iter().map(|text| quoted(text)).collect();
    Ok(format!("start: {}", texts.join(" | ")))
}

fn check_size(bytes: usize) -> Result<(), GrammarError> {
    if bytes <= BYTES_MAX {
        return Ok(());
    }
    Err(GrammarError::new(format!("it has {bytes} bytes; allowed: {BYTES_MAX}")))
}

/// A text as Lark writes it: as JSON does, but for DEL, which JSON leaves as it is.
pub(crate) fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("texts are JSON").replace('\x7F', "\\u007F")
}

/// A mark as a piece of a rule.
pub(crate) fn piece(mark: &[Part]) -> String {
    let part = |part: &Part| match part {
        Part::Text(text) => quoted(text),
        Part::Token(id) => format!("<[{id}]>"),
        Part::Number => "/[0-9]{1,4}/".to_owned(),
        Part::Gap => "GAP".to_owned(),
    };
    mark.iter().map(part).collect::<Vec<_>>().join(" ")
}

impl Reasoning {
    fn rules(&self) -> String {
        let thought = beside::free_text(&self.never, &[]);
        let thoughts = match &self.close[..] {
            // Up to the first one: thoughts that mention the mark have ended.
            [Part::Text(close)] => format!("thoughts[suffix={}]: THOUGHT\n", quoted(close)),
            _ => format!("thoughts: THOUGHT {}\n", piece(&self.close)),
        };
        // Beside a mark, where it is no part of the answer. Without thoughts the answer begins at once.
        let behind = if self.behind.is_empty() { "/[ \\r\\n]{0,4}/".to_owned() } else { piece(&self.behind) };
        let begin = match self.is_open {
            true => format!("thoughts {behind}"),
            false => format!("({} thoughts {behind})?", piece(&self.open)),
        };
        format!("reasoning: {begin}\n{thoughts}THOUGHT: {thought}\n")
    }
}

impl Calls {
    fn rules(&self) -> Result<String, GrammarError> {
        let optional = |mark: &Option<Mark>| mark.as_deref().map(piece).unwrap_or_default();
        let bytes = |tool: &Call| match &tool.arguments {
            Arguments::Json(schema) => schema.to_string().len(),
            Arguments::Fields(fields) => fields.bytes(),
        };
        check_size(self.tools.iter().map(bytes).sum())?;
        let (mut names, mut rules) = (Vec::new(), String::new());
        for (at, tool) in self.tools.iter().enumerate() {
            let name = format!("call{at}");
            let (head, tail) = (piece(&tool.head), piece(&tool.tail));
            rules += &match &tool.arguments {
                Arguments::Json(value) => {
                    format!("{name}: {head} GAP {} GAP {tail}\n", schema::piece(value)?)
                }
                Arguments::Fields(fields) => {
                    // Where something separates them, nothing else stands between.
                    let gap = if fields.separator.is_some() { "" } else { "GAP" };
                    format!("{name}: {head} {gap} {name}_fields {tail}\n{}", fields.rules(&format!("{name}_fields"))?)
                }
            };
            names.push(name);
        }
        let all = match (self.are_many, &self.between[..]) {
            (false, _) => "each".to_owned(),
            (true, []) => "each+".to_owned(),
            (true, between) => format!("each ({} each)*", piece(between)),
        };
        // Line ends stand around calls where models write them.
        let (names, each_close) = (names.join(" | "), optional(&self.each_close));
        let (open, close, each_open) = (optional(&self.open), optional(&self.close), optional(&self.each_open));
        Ok(format!(
            "calls: {open} rest_of_calls\nrest_of_calls: GAP {all} {close}\neach: {each_open} rest_of_each\n\
             rest_of_each: GAP ({names}) GAP {each_close} GAP\nGAP: /[ \\r\\n]{{0,2}}/\n{rules}"
        ))
    }
}
