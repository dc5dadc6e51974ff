//! A chat that brings its template: someone wrote it whom nobody trusts.
//!
//! The bounds of this room (`bounds.rs`, fuel) are against mistakes, and no sandbox: who runs an [`OwnTemplate`] does so in a process that
//! may die of it. Hence the job and its outcome are data.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::{ChatInput, ChatTemplate, TemplateError};

/// What requests call their template.
const PARAM: &str = "chat_template";

/// A chat and the template that came with it.
#[derive(Debug, Serialize, Deserialize)]
pub struct OwnTemplate {
    /// The model's special tokens, by the names that templates have for them.
    pub special_tokens: Map<String, Value>,
    /// The chat; its `own_template` is run.
    pub input: ChatInput,
}

/// Why there is no text: whose part of the request it was, and the reason as the rest of a sentence.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Refused {
    /// The part of the request.
    pub param: String,
    /// What is wrong with it.
    pub reason: String,
}

impl OwnTemplate {
    /// The chat as text. Whatever fails is the sender's.
    pub fn render(self) -> Result<String, Refused> {
        let Self { special_tokens, mut input } = self;
        let refused = |reason| Refused { param: PARAM.to_owned(), reason };
        let source = input.own_template.take().ok_or_else(|| refused("is missing".to_owned()))?;
        let sources = BTreeMap::from([("default".to_owned(), source)]);
        let template = ChatTemplate::from_sources(sources, special_tokens).map_err(|error| match error {
            TemplateError::Invalid { reason, .. } => refused(format!("cannot be read: {reason}")),
            other => refused(format!("cannot be read: {other}")),
        })?;
        let rendered = template.arrange(&mut input).and_then(|()| {
            input.messages = template.adapt(std::mem::take(&mut input.messages));
            template.render(&input)
        });
        rendered.map_err(|error| match error {
            TemplateError::Misplaced { at, reason } => Refused { param: format!("messages[{at}].role"), reason },
            TemplateError::Input { param, reason } => Refused { param: param.to_owned(), reason },
            TemplateError::Raised(said) => refused(format!("refuses these messages: {said}")),
            TemplateError::Broken(reason) | TemplateError::Failed(reason) => {
                refused(format!("cannot render these messages: {reason}"))
            }
            other => refused(format!("cannot render these messages: {other}")),
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn render(source: &str, messages: Value) -> Result<String, Refused> {
        let input = ChatInput {
            messages: messages.as_array().cloned().expect("a list"),
            own_template: Some(source.to_owned()),
            add_generation_prompt: true,
            ..ChatInput::default()
        };
        let Value::Object(special_tokens) = json!({ "bos_token": "<s>" }) else { unreachable!("an object") };
        // As it travels between processes.
        let sent = serde_json::to_string(&OwnTemplate { special_tokens, input }).expect("plain data");
        serde_json::from_str::<OwnTemplate>(&sent).expect("what was written").render()
    }

    #[test]
    fn it_is_told_what_the_models_template_is_told() {
        let source = "{{ bos_token }}{% for m in messages %}[{{ m.role }}] {{ m.content }}{% endfor %}{% if add_generation_prompt %}[me]{% endif %}";
        let text = render(source, json!([{ "role": "user", "content": "hi" }]));
        assert_eq!(text.as_deref(), Ok("<s>[user] hi[me]"));
    }

    #[test]
    fn content_in_parts_comes_as_this_template_knows_it() {
        let parts =
            json!([{ "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] }]);
        let text = render("{% for m in messages %}{{ m.content }}{% endfor %}", parts.clone());
        assert_eq!(text.as_deref(), Ok("a\nb"), "it knows texts alone");
        let source = "{% for m in messages %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}";
        assert_eq!(render(source, parts).as_deref(), Ok("(a)(b)"));
    }

    #[test]
    fn what_fails_is_the_senders() {
        let hi = json!([{ "role": "user", "content": "hi" }]);
        let param_and_reason =
            |source: &str| render(source, hi.clone()).map_err(|refused| (refused.param, refused.reason));
        for (source, said) in [
            ("{% if %}", "cannot be read: "),
            ("{{ raise_exception('no users') }}", "refuses these messages: no users"),
            ("{{ messages.upper() }}", "cannot render these messages: "),
            (
                "{% for i in range(9999) %}{% for i in range(9999) %}{% endfor %}{% endfor %}",
                "cannot render these messages: ",
            ),
        ] {
            let (param, reason) = param_and_reason(source).expect_err(source);
            assert_eq!(param, "chat_template");
            assert!(reason.starts_with(said), "{reason}");
        }
        let (param, _) =
            render("{{ 1 }}", json!(["text"])).map_err(|refused| (refused.param, 0)).expect_err("no message");
        assert_eq!(param, "messages");
    }
}
