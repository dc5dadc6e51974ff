//! From scripts to grammars, each compiled once for all requests that bring it.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
};

use llguidance::{Matcher, api::TopLevelGrammar};
use serde_json::Value;

use crate::{
    Body, Constraint, GrammarError, Script, Spaces, Spelling, State, Vocabulary, cost,
    ends::never_ends,
    faults::Fault,
    lark, schema,
    thinking::{Budget, Thinking},
    words::{Spoken, Words},
};

/// Grammars that are kept compiled.
const KEPT: usize = 64;
/// The library goes as deep as a chain of references is long, some kilobytes each. Only what is touched is taken, and given back.
const STACK: usize = 512 << 20;
/// Parts of structural tags that are compiled alone, to find the one at fault.
const TRIES_MAX: usize = 64;
/// Tokens of a text that are drawn before a grammar is used: most that get too costly do so early.
const WALKED: usize = 48;

/// What an answer is drawn within. Cheap to clone.
#[derive(Clone, Default)]
pub struct Grammar {
    text: Option<Arc<Mutex<Matcher>>>, // none: it is free
    thinking: Option<Budget>,
    words: Words,
}

impl std::fmt::Debug for Grammar {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { thinking, words, .. } = self;
        f.debug_struct("Grammar").field("thinking", thinking).field("words", words).finish_non_exhaustive()
    }
}

impl Grammar {
    /// Any text, with a bound on the thoughts before it.
    pub fn of_thinking(budget: Budget) -> Self {
        Self { thinking: Some(budget), ..Self::default() }
    }

    /// Any text of these words.
    pub fn of_words(words: Words) -> Self {
        Self { words, ..Self::default() }
    }

    /// The same with a bound on the thoughts.
    pub fn with_thinking(self, budget: Budget) -> Self {
        Self { thinking: Some(budget), ..self }
    }

    /// The bound on the thoughts.
    pub fn thinking(&self) -> Option<&Budget> {
        self.thinking.as_ref()
    }

    /// The same of these words.
    pub fn with_words(self, words: Words) -> Self {
        Self { words, ..self }
    }

    /// Whether the text has a form, so that only its end completes it.
    pub fn has_form(&self) -> bool {
        self.text.is_some()
    }

    /// The beginning of an answer. It shares nothing with others, so that none waits for another.
    pub fn begin(&self) -> State {
        let matcher = self.text.as_ref().map(|text| text.lock().unwrap_or_else(PoisonError::into_inner).deep_clone());
        let spoken = Some(&self.words).filter(|words| !words.is_empty()).cloned().map(Spoken::new);
        State::new(matcher, self.thinking.clone().map(Thinking::new), spoken)
    }
}

/// Compiles scripts for one vocabulary, and keeps the latest.
pub struct Compiler {
    make: Box<dyn Fn() -> Result<Vocabulary, GrammarError> + Send + Sync>,
    vocabulary: OnceLock<Result<Vocabulary, GrammarError>>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    grammars: HashMap<String, Grammar>, // by the script's text and its spelling
    order: VecDeque<String>,            // oldest first
}

impl Compiler {
    /// The vocabulary is made by `warm`, or when the first grammar needs it.
    pub fn new(make: impl Fn() -> Result<Vocabulary, GrammarError> + Send + Sync + 'static) -> Self {
        Self { make: Box::new(make), vocabulary: OnceLock::new(), kept: Mutex::default() }
    }

    /// Makes the vocabulary, which takes a second for a large one, before somebody waits for it. An error is told to those.
    pub fn warm(&self) {
        let _ = self.vocabulary.get_or_init(&self.make);
    }

    /// Takes up to some 100 ms, and longer where the vocabulary is not made yet: not for an event loop.
    pub fn compile(&self, script: &Script, spelling: Spelling) -> Result<Grammar, GrammarError> {
        let key = format!("{spelling:?} {script:?}");
        if let Some(kept) = self.kept().grammars.get(&key) {
            return Ok(kept.clone());
        }
        let vocabulary = self.vocabulary.get_or_init(&self.make).as_ref().map_err(Clone::clone)?;
        let grammar = deep(|| vocabulary.compile(script, spelling))?;
        let mut kept = self.kept();
        if kept.grammars.insert(key.clone(), grammar.clone()).is_none() {
            kept.order.push_back(key);
        }
        if kept.order.len() > KEPT
            && let Some(oldest) = kept.order.pop_front()
        {
            kept.grammars.remove(&oldest);
        }
        Ok(grammar)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs this where there is room for deep recursion.
fn deep<T: Send>(job: impl FnOnce() -> Result<T, GrammarError> + Send) -> Result<T, GrammarError> {
    let failed = |why: &str| Err(GrammarError::new(format!("it cannot be compiled now: {why}")));
    thread::scope(|scope| {
        match thread::Builder::new().name("pelton-grammar".to_owned()).stack_size(STACK).spawn_scoped(scope, job) {
            Ok(running) => running.join().unwrap_or_else(|_| failed("an internal error")),
            Err(_) => failed("there is no room for a thread"),
        }
    })
}

impl Vocabulary {
    /// Compiles a script. An error names the smallest part of a schema that is at fault.
    pub fn compile(&self, script: &Script, spelling: Spelling) -> Result<Grammar, GrammarError> {
        let grammar = script.to_grammar(&self.specials).map_err(Fault::Ours);
        let fault = match grammar.and_then(|grammar| self.compiled(grammar, spelling)) {
            Ok(grammar) => return Ok(grammar),
            Err(fault) => fault,
        };
        Err(match &script.body {
            Body::Text(constraint) => self.told(constraint, fault, spelling),
            _ => fault.of_parts(),
        })
    }

    /// What is wrong with a constraint, at the smallest part of it.
    fn told(&self, constraint: &Constraint, fault: Fault, spelling: Spelling) -> GrammarError {
        match constraint {
            _ if matches!(fault, Fault::Ours(_)) => fault.of_constraint(constraint),
            Constraint::JsonSchema(whole) | Constraint::Spaced(whole, _) => self.told_of_schema(whole, fault, spelling),
            Constraint::Tags(form) => {
                for (part, place) in form.constraints().into_iter().take(TRIES_MAX) {
                    let alone = part.to_grammar(&self.specials).map_err(Fault::Ours);
                    if let Err(fault) = alone.and_then(|grammar| self.compiled(grammar, spelling)) {
                        return self.told(&part, fault, spelling).within(place);
                    }
                }
                fault.of_constraint(constraint)
            }
            Constraint::Grammar(text) => {
                let line = fault.line_of_schema();
                let schemas = line.map(|line| lark::schemas_of_line(text, line)).unwrap_or_default();
                let within = schemas.iter().find_map(|schema| self.place_within(schema, spelling));
                let whole = fault.of_constraint(constraint);
                match within {
                    None => whole,
                    Some(GrammarError { place, reason }) => {
                        GrammarError::new(format!("{}, at {place}: {reason}", whole.reason))
                    }
                }
            }
            _ => fault.of_constraint(constraint),
        }
    }

    /// The part at fault of a schema that the library gets as it is, if that is not the whole.
    fn place_within(&self, whole: &Value, spelling: Spelling) -> Option<GrammarError> {
        let reason_of = |part: &Value| {
            // What it refers to is elsewhere.
            let is_alone = !part.to_string().contains("\"$ref\"");
            let compiled =
                is_alone.then(|| self.compiled(TopLevelGrammar::from_json_schema(part.clone()), spelling))?;
            compiled.err().map(|fault| fault.of_schema().reason)
        };
        let (place, reason) = schema::place_of_fault(whole, |whole, place| reason_of(whole.pointer(place)?));
        reason.filter(|_| !place.is_empty()).map(|reason| GrammarError { place, reason })
    }

    fn told_of_schema(&self, whole: &Value, fault: Fault, spelling: Spelling) -> GrammarError {
        let reason_of = |place: &str, part: &Value| {
            let schema = schema::prepared_part(part, place, &Spaces::Usual).ok()?;
            let compiled = self.compiled(TopLevelGrammar::from_json_schema(schema), spelling);
            compiled.err().map(|fault| fault.of_schema().reason)
        };
        let Some(reason) = reason_of("", whole) else { return fault.of_schema() };
        let (place, why) = schema::place_of_fault(whole, |part, place| reason_of(place, part));
        GrammarError { place, reason: why.unwrap_or(reason) }
    }

    fn compiled(&self, grammar: TopLevelGrammar, spelling: Spelling) -> Result<Grammar, Fault> {
        cost::check(&grammar)?;
        let mut written = grammar.grammars.iter().filter_map(|part| part.lark_grammar.as_deref());
        let is_endless = written.any(never_ends);
        let parser = self.factory(spelling).map_err(Fault::Ours)?.create_parser(grammar);
        let mut matcher = Matcher::new(parser);
        match Fault::of(&matcher) {
            Some(fault) if !is_endless || fault.has_place() => return Err(fault),
            _ if is_endless => return Err(Fault::Empty),
            _ => {}
        }
        // A grammar that nothing fits is found out now, not in the midst of an answer.
        matcher.compute_mask_or_eos().map_err(|_| Fault::Empty)?;
        self.walk(matcher.deep_clone()).map_err(|()| Fault::Costly)?;
        Ok(Grammar { text: Some(Arc::new(Mutex::new(matcher))), ..Grammar::default() })
    }

    /// Draws the beginning of a text that fits, always the same. An error: what may follow there takes too much to compute.
    fn walk(&self, mut matcher: Matcher) -> Result<(), ()> {
        let mut random = 0x9E37_79B9_u32;
        let mut last = None;
        let env = matcher.tok_env().map_err(drop)?;
        let is_space = |token| env.tok_trie().token(token).iter().all(u8::is_ascii_whitespace);
        for _ in 0..WALKED {
            let mut mask = matcher.compute_mask_or_eos().map_err(drop)?;
            self.ends.iter().for_each(|&end| mask.disallow_token(end));
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            // It is repetitions that get costly: the same token again, as long as it fits and says something.
            let again = last.filter(|&token| mask.is_allowed(token) && !is_space(token));
            let Some(token) = again.or_else(|| nth(mask.as_slice(), random >> 8)) else { break };
            matcher.consume_token(token).map_err(drop)?;
            last = Some(token);
        }
        Ok(())
    }
}

/// The n-th of the bits that are set, counted from 0 and round again.
fn nth(words: &[u32], n: u32) -> Option<u32> {
    let count: u32 = words.iter().map(|word| word.count_ones()).sum();
    let mut left = n.checked_rem(count)?;
    for (at, &word) in (0..).zip(words) {
        if left < word.count_ones() {
            let above = (0..left).fold(word, |word, _| word & (word - 1));
            return Some(at * u32::BITS + above.trailing_zeros());
        }
        left -= word.count_ones();
    }
    None
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

    use super::*;
    use crate::TokenText;

    #[test]
    fn a_vocabulary_is_made_once_and_before_the_first_grammar_if_wanted() {
        let made = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&made);
        let compiler = Compiler::new(move || {
            count.fetch_add(1, Relaxed);
            Vocabulary::new([TokenText::Bytes(b"a"), TokenText::Special("<end>")].into_iter(), &[1])
        });
        assert_eq!(made.load(Relaxed), 0, "nobody has asked");
        compiler.warm();
        assert_eq!(made.load(Relaxed), 1);
        compiler.compile(&Script::of(Constraint::Regex("a".to_owned())), Spelling::Usual).expect("a regex");
        assert_eq!(made.load(Relaxed), 1);
    }
}
