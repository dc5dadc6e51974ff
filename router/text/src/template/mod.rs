//! Renders a chat to the text its model was trained on, by the Jinja template of the checkpoint.
//!
//! What `transformers.apply_chat_template` gives is right by definition; `tests/golden` holds its answers. Templates
//! are the operator's, messages and `kwargs` are the client's: so a template that cannot be parsed is refused when it
//! is opened, and what goes wrong while rendering is the client's unless the plainest chat goes wrong too.

mod bounds;
mod environment;
mod faults;
mod json;
mod levels;
mod messages;
mod own;
mod python;
mod rewrite;
mod roles;
mod source;
mod strftime;
mod wishes;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::{Arc, OnceLock};

use minijinja::Environment;
use minijinja::value::{Serde, Value as Jinja};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::checkpoint::Checkpoint;
use faults::describe;
use messages::Continuation;
pub use messages::arguments_of;
pub use own::{OwnTemplate, Refused};
use roles::{Roles, instructs};
pub use strftime::LocalTime;
use wishes::{Known, VERBOSITY, Watched};
pub use wishes::{THINKING_SWITCHES, Wishes};

/// A million tokens are some 4 MB of text; the largest context there is fits twice over.
const OUTPUT_BYTES_MAX: usize = 8 << 20;

/// Instructions per rendering. A message takes some hundred, so 100,000 messages fit; about a second at most.
const FUEL: u64 = 20_000_000;

/// Why a chat could not be rendered, or a template not opened.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TemplateError {
    /// The checkpoint's template cannot be used. The operator's fault, when opened.
    #[error("{file}: {reason}")]
    Invalid {
        /// Which file.
        file: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The template itself refused the chat (`raise_exception`). The client's fault.
    #[error("{0}")]
    Raised(String),
    /// The template fails by itself: it renders not even the plainest chat. The operator's fault.
    #[error("the model's chat template fails on any chat: {0}")]
    Broken(String),
    /// The template does not fit the chat, or the other way round. The client's fault.
    #[error("the chat template cannot render these messages: {0}")]
    Failed(String),
    /// The chat itself is not one. The client's fault.
    #[error("`{param}`: {reason}")]
    Input {
        /// The part of the chat.
        param: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The template would leave a message out, or refuses its place. The client's fault.
    #[error("`messages[{at}].role` {reason}")]
    Misplaced {
        /// Which message, counted from 0.
        at: usize,
        /// What is wrong with it, as the rest of a sentence.
        reason: String,
    },
    /// There is no template of that name. The client's fault.
    #[error("there is no chat template `{name}`; there are: {known}")]
    UnknownName {
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// The rendered chat is longer than any context. The client's fault.
    #[error("the rendered chat is longer than {limit_bytes} bytes")]
    TooLong {
        /// The bound.
        limit_bytes: usize,
    },
    /// The template ran for too long. The client's fault: the same template renders other chats.
    #[error("the chat takes the template more than {limit} instructions")]
    TooMuchWork {
        /// The bound.
        limit: u64,
    },
}

/// All that a template is told.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ChatInput {
    /// At least one object with a role.
    pub messages: Vec<Value>,
    /// JSON schemas of functions.
    pub tools: Option<Vec<Value>>,
    /// Texts to answer from.
    pub documents: Option<Value>,
    /// Which template, if there are several. `None`: `tool_use` if there are tools, else `rag` if there are documents, else or if there is no such one `default`.
    pub template: Option<String>,
    /// The text of a template that came with the chat. It is nobody's whom we trust: only an [`OwnTemplate`] runs it.
    pub own_template: Option<String>,
    /// The text ends with the beginning of an answer.
    pub add_generation_prompt: bool,
    /// The text ends within the last message, which the model continues.
    pub continue_final_message: bool,
    /// Other variables of the template; they win over the names of special tokens.
    pub kwargs: Map<String, Value>,
    /// How long answers shall be: the variable `verbosity`, unless `kwargs` has it. A template that does not look at it refuses the chat, but
    /// for "medium".
    pub verbosity: Option<String>,
    /// What else a template has to know.
    pub wishes: Wishes,
    /// What `strftime_now` prints.
    pub now: LocalTime,
}

/// The chat templates of one checkpoint. Cheap to clone.
#[derive(Debug, Clone)]
pub struct ChatTemplate {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    environment: Environment<'static>,
    sources: BTreeMap<String, String>,
    special_tokens: Map<String, Value>,
    content: ContentForm,
    /// By name: what each template looks at for the plainest chat.
    known: BTreeMap<String, Known>,
    /// By name: what each template makes of systems and developers. Asked by the first chat in which one speaks: a template may have
    /// come with a chat, and each rendering is its sender's time.
    roles: BTreeMap<String, OnceLock<Roles>>,
}

impl ChatTemplate {
    /// Reads the templates in `dir`. `None`: the checkpoint has none.
    pub fn open(dir: &Path, checkpoint: &Checkpoint) -> Result<Option<Self>, TemplateError> {
        let sources = source::read(dir)?;
        if sources.is_empty() {
            return Ok(None);
        }
        Self::from_sources(sources, checkpoint.special_tokens.clone()).map(Some)
    }

    /// From templates by name; `special_tokens` become variables (`bos_token` ...).
    pub fn from_sources(
        sources: BTreeMap<String, String>,
        special_tokens: Map<String, Value>,
    ) -> Result<Self, TemplateError> {
        let mut environment = environment::new();
        environment.set_fuel(Some(FUEL));
        for (name, source) in &sources {
            let invalid = |reason| TemplateError::Invalid { file: format!("chat template `{name}`"), reason };
            let source = rewrite::for_minijinja(source).map_err(invalid)?;
            environment.add_template_owned(name.clone(), source).map_err(|error| invalid(describe(&error)))?;
        }
        let (content, known) = (ContentForm::Either, BTreeMap::new());
        let roles = sources.keys().map(|name| (name.clone(), OnceLock::new())).collect();
        let mut inner = Inner { environment, sources, special_tokens, content, known, roles };
        inner.content = inner.content_form();
        inner.known = inner.sources.keys().map(|name| (name.clone(), inner.plainest(name).0)).collect();
        Ok(Self { inner: Arc::new(inner) })
    }

    /// The text of the template that is used if no other is asked for.
    pub fn source(&self) -> &str {
        let sources = &self.inner.sources;
        sources.get("default").or_else(|| sources.values().next()).map_or("", String::as_str)
    }

    /// The texts of all templates.
    pub fn sources(&self) -> String {
        self.inner.sources.values().map(String::as_str).collect::<Vec<_>>().join("\n")
    }

    /// Brings what systems and developers say under roles and into places by which the template tells it, so that nothing of it is left out
    /// in silence. Comes before [`ChatTemplate::adapt`].
    pub fn arrange(&self, input: &mut ChatInput) -> Result<(), TemplateError> {
        if !input.messages.iter().any(instructs) {
            return Ok(());
        }
        let roles = self.inner.roles(self.inner.choose(input)?);
        roles.arrange(&mut input.messages)
    }

    /// Brings messages of the OpenAI API into the form that templates are written for: `arguments` of tool calls as
    /// objects ([`arguments_of`]) instead of JSON text; content that is a list of texts as one text, a line each, if this template knows no lists.
    pub fn adapt(&self, messages: Vec<Value>) -> Vec<Value> {
        messages.into_iter().map(|message| messages::adapt(message, self.inner.content)).collect()
    }

    /// The chat as text.
    pub fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        self.inner.render(input)
    }
}

impl Inner {
    /// Most templates ask whether an answer that called tools has content, too, and print its arguments as JSON; those that print what there
    /// is unasked are given what they can print, unless calls would be left out then. So is one that leaves calls out.
    fn render(&self, input: &ChatInput) -> Result<String, TemplateError> {
        let normal = messages::normalise(&input.messages)?;
        let otherwise = || messages::otherwise(&normal).find_map(|chat| self.render_with_calls(input, chat));
        match self.render_as(input, normal.clone()) {
            Err(TemplateError::Failed(reason)) => otherwise().ok_or(TemplateError::Failed(reason)),
            Ok(text) if !messages::tells_calls(&text, &input.messages) => Ok(otherwise().unwrap_or(text)),
            rendered => rendered,
        }
    }

    /// `None`: the template fails, or leaves calls out.
    fn render_with_calls(&self, input: &ChatInput, messages: Vec<Value>) -> Option<String> {
        let text = self.render_as(input, messages.clone()).ok()?;
        // Names may be there for the tools that are offered, too.
        let is_telling = messages::tells_calls(&text, &input.messages)
            && self.render_as(input, messages::without_calls(messages)).ok().as_ref() != Some(&text);
        is_telling.then_some(text)
    }

    fn render_as(&self, input: &ChatInput, mut messages: Vec<Value>) -> Result<String, TemplateError> {
        let name = self.choose(input)?;
        let continuation = match (input.continue_final_message, input.add_generation_prompt) {
            (false, _) => None,
            (true, false) => Some(Continuation::mark(&mut messages, &self.sources[name])?),
            (true, true) => {
                let reason = "cannot go together with `add_generation_prompt`".into();
                return Err(TemplateError::Input { param: "continue_final_message", reason });
            }
        };
        let variables = Watched::new(self.variables(input, messages)?);
        let rendered = match self.run(name, &variables) {
            Err(TemplateError::Failed(reason)) if self.is_broken(name) => Err(TemplateError::Broken(reason)),
            other => other,
        }?;
        let known = self.known.get(name).copied().unwrap_or_default();
        known.or(variables.known()).check(input)?;
        match continuation {
            None => Ok(rendered),
            Some(continuation) => continuation.cut(rendered),
        }
    }

    /// Whether a template fails on a chat that any template should know.
    fn is_broken(&self, name: &str) -> bool {
        matches!(self.plainest(name).1, Err(TemplateError::Failed(_)))
    }

    /// What a template looks at and makes of the plainest chat.
    fn plainest(&self, name: &str) -> (Known, Result<String, TemplateError>) {
        let messages = vec![serde_json::json!({"role": "user", "content": "hello"})];
        let plainest = ChatInput { add_generation_prompt: true, ..ChatInput::default() };
        match self.variables(&plainest, messages).map(Watched::new) {
            Ok(variables) => {
                let made = self.run(name, &variables);
                (variables.known(), made)
            }
            Err(error) => (Known::default(), Err(error)),
        }
    }

    fn roles(&self, name: &str) -> Roles {
        let render = |messages| {
            let plain = ChatInput { add_generation_prompt: true, ..ChatInput::default() };
            self.run(name, &Watched::new(self.variables(&plain, messages)?))
        };
        *self.roles[name].get_or_init(|| Roles::of(render))
    }

    fn choose(&self, input: &ChatInput) -> Result<&str, TemplateError> {
        let wanted = match &input.template {
            Some(name) => name.as_str(),
            None if input.tools.is_some() && self.sources.contains_key("tool_use") => "tool_use",
            None if input.documents.is_some() && self.sources.contains_key("rag") => "rag",
            None => "default",
        };
        let unknown = || TemplateError::UnknownName {
            name: wanted.to_owned(),
            known: self.sources.keys().map(String::as_str).collect::<Vec<_>>().join(", "),
        };
        self.sources.get_key_value(wanted).map(|(name, _)| name.as_str()).ok_or_else(unknown)
    }

    fn variables(&self, input: &ChatInput, mut messages: Vec<Value>) -> Result<BTreeMap<String, Jinja>, TemplateError> {
        if self.content == ContentForm::Lists {
            messages.iter_mut().for_each(messages::wrap);
        }
        let mut variables: BTreeMap<String, Jinja> = BTreeMap::new();
        for (name, value) in self.special_tokens.iter().chain(&input.kwargs) {
            variables.insert(name.clone(), Jinja::from(Serde(value)));
        }
        if let Some(word) = input.verbosity.as_deref().filter(|_| !input.kwargs.contains_key(VERBOSITY)) {
            variables.insert(VERBOSITY.to_owned(), word.into());
        }
        let now = input.now;
        let own = [
            ("messages", Jinja::from(Serde(messages))),
            ("tools", Jinja::from(Serde(&input.tools))),
            ("documents", Jinja::from(Serde(&input.documents))),
            ("add_generation_prompt", input.add_generation_prompt.into()),
            ("strftime_now", Jinja::from_function(move |format: &str| now.strftime(format))),
        ];
        for (name, value) in own {
            if input.kwargs.contains_key(name) {
                let reason = format!("`{name}` is no free variable; it has a place of its own in the request");
                return Err(TemplateError::Input { param: "chat_template_kwargs", reason });
            }
            variables.insert(name.to_owned(), value);
        }
        if input.kwargs.contains_key("chat_template") {
            let reason = "`chat_template` is no variable; it has a place of its own in the request".to_owned();
            return Err(TemplateError::Input { param: "chat_template_kwargs", reason });
        }
        Ok(variables)
    }

    fn run(&self, name: &str, variables: &Arc<Watched>) -> Result<String, TemplateError> {
        let template = self.environment.get_template(name).map_err(|error| TemplateError::Failed(describe(&error)))?;
        let mut output = Bounded::default();
        // minijinja panics on some templates (`''[::-1]`). What a panic may have left half done is dropped with it.
        let result = catch_unwind(AssertUnwindSafe(|| {
            template.render_captured_to(Jinja::from_dyn_object(Arc::clone(variables)), &mut output).map(drop)
        }));
        let result = result.map_err(|_| TemplateError::Failed("an expression in it cannot be computed".to_owned()))?;
        if output.is_over {
            return Err(TemplateError::TooLong { limit_bytes: OUTPUT_BYTES_MAX });
        }
        result.map_err(|error| match environment::raised(&error) {
            Some(message) => TemplateError::Raised(message),
            None if error.kind() == minijinja::ErrorKind::OutOfFuel => TemplateError::TooMuchWork { limit: FUEL },
            None => TemplateError::Failed(describe(&error)),
        })?;
        String::from_utf8(output.bytes)
            .map_err(|_| TemplateError::Failed("what it renders is no valid Unicode".to_owned()))
    }

    /// A template is asked, rather than read.
    fn content_form(&self) -> ContentForm {
        let takes_lists = self.shows_content(serde_json::json!([{ "type": "text", "text": PROBE }]));
        match (takes_lists, takes_lists && self.shows_content(PROBE.into())) {
            (false, _) => ContentForm::Texts,
            (true, false) => ContentForm::Lists,
            (true, true) => ContentForm::Either,
        }
    }

    /// Whether a template knows content of this form: it is shown some, and if a list itself is printed, or an error raised, it does not.
    fn shows_content(&self, content: Value) -> bool {
        let messages = vec![serde_json::json!({"role": "user", "content": content})];
        let shown = self.render(&ChatInput { messages, ..ChatInput::default() });
        shown.is_ok_and(|text| text.contains(PROBE) && !["'type'", "\"type\""].iter().any(|key| text.contains(key)))
    }
}

/// What a message's content may be for a template. In another form it is lost, or printed as it lies in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ContentForm {
    Texts,
    Lists,
    Either,
}

/// Content that a template is shown, to see what becomes of it.
const PROBE: &str = "content-part";

#[derive(Default)]
struct Bounded {
    bytes: Vec<u8>,
    is_over: bool,
}

impl std::io::Write for &mut Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.bytes.len() + bytes.len() > OUTPUT_BYTES_MAX {
            self.is_over = true;
            return Err(std::io::Error::other("the rendered chat is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests;
