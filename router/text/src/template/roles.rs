//! Who may speak where. Nearly all templates tell a message of a system's at the beginning, some tell others, and few know the role `developer`.
//! What a template does not know it leaves out in silence, or it refuses the chat.
//!
//! A template is asked, by rendering chats, rather than read: a message is told if its text is in what was rendered.

use serde_json::{Value, json};

use super::TemplateError;

/// What is looked for in a rendered chat: one word, so that no template cuts it.
const MARK: &str = "message-of-this-role";
/// Likewise, of a message before it.
const EARLIER: &str = "message-of-an-earlier-one";
const SYSTEM: &str = "system";
const DEVELOPER: &str = "developer";

/// What a template makes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Told,
    LeftOut,
    Refused,
}

/// What a template makes of a role's messages, by their place.
#[derive(Debug, Clone, Copy)]
struct Places {
    /// The first message of all.
    first: Fate,
    /// Right behind a system's first one, both of them.
    next: Fate,
    /// Behind an answer, with a system's at the beginning, if the template tells that one: some tell but the last.
    later: Fate,
    /// Behind an answer, and no other.
    alone: Fate,
}

impl Places {
    fn at(&self, at: usize, leading: usize, is_only: bool) -> Fate {
        match at {
            0 => self.first,
            at if at < leading => self.next,
            _ if is_only => self.alone,
            _ => self.later,
        }
    }
}

/// What a template makes of those who speak neither for the user nor for the model.
#[derive(Debug, Clone, Copy)]
pub(super) struct Roles {
    system: Places,
    developer: Places,
}

impl Roles {
    /// Asks a template. One that does not tell what users say cannot be asked: it is left alone.
    pub(super) fn of(render: impl Fn(Vec<Value>) -> Result<String, TemplateError>) -> Self {
        let fate_of = |messages: Vec<Value>, marks: &[&str]| match render(messages) {
            Ok(text) if marks.iter().all(|mark| text.contains(mark)) => Fate::Told,
            Ok(_) => Fate::LeftOut,
            Err(_) => Fate::Refused,
        };
        let fate = |messages: Vec<Value>| fate_of(messages, &[MARK]);
        // Some templates know content as a list of parts alone.
        let forms: [fn(&str, &str) -> Value; 2] = [
            |role, text| json!({ "role": role, "content": text }),
            |role, text| json!({ "role": role, "content": [{ "type": "text", "text": text }] }),
        ];
        let Some(say) = forms.into_iter().find(|say| fate(vec![say("user", MARK)]) == Fate::Told) else {
            let all = Places { first: Fate::Told, next: Fate::Told, later: Fate::Told, alone: Fate::Told };
            return Self { system: all, developer: all };
        };
        let hi = || say("user", "hi");
        let has_answers = fate(vec![hi(), say("assistant", "yes"), say("user", MARK)]) == Fate::Told;
        let tells_first = fate(vec![say(SYSTEM, MARK), hi()]) == Fate::Told;
        let places = |role| {
            let behind = |mut before: Vec<Value>| {
                before.extend([hi(), say("assistant", "yes"), say(role, MARK), hi()]);
                before
            };
            let alone = if has_answers { fate(behind(Vec::new())) } else { Fate::Told };
            let later = match has_answers && tells_first {
                true => fate_of(behind(vec![say(SYSTEM, EARLIER)]), &[EARLIER, MARK]),
                false => alone,
            };
            let next = fate_of(vec![say(SYSTEM, EARLIER), say(role, MARK), hi()], &[EARLIER, MARK]);
            Places { first: fate(vec![say(role, MARK), hi()]), next, later, alone }
        };
        Self { system: places(SYSTEM), developer: places(DEVELOPER) }
    }

    /// Brings messages into an order and under roles by which the template tells all of them: a developer's goes as a system's where the
    /// template does not know it, and those at the beginning are one where it tells but one. What it would leave out even so is refused.
    pub(super) fn arrange(self, messages: &mut Vec<Value>) -> Result<(), TemplateError> {
        let leading = messages.iter().take_while(|message| instructs(message)).count();
        let is_only = messages.iter().filter(|message| instructs(message)).count() == 1;
        let mut is_one = true;
        for (at, message) in messages.iter_mut().enumerate().filter(|(_, message)| instructs(message)) {
            let role = if message["role"] == DEVELOPER { DEVELOPER } else { SYSTEM };
            if role == DEVELOPER && self.developer.at(at, leading, is_only) == Fate::Told {
                continue;
            }
            message["role"] = SYSTEM.into();
            match (self.system.at(at, leading, is_only), at) {
                (Fate::Told, _) => {}
                // The template says why.
                (Fate::Refused, 0) => {}
                (_, at) if (1..leading).contains(&at) => is_one = false,
                (_, at) => return Err(misplaced(at, role)),
            }
        }
        if !is_one {
            let rest: Vec<Value> = messages.drain(1..leading).collect();
            let contents = std::iter::once(&messages[0]).chain(&rest).map(|message| &message["content"]);
            messages[0]["content"] = joined(contents.collect());
        }
        Ok(())
    }
}

/// Whether it is said by a system or a developer.
pub(super) fn instructs(message: &Value) -> bool {
    message.is_object() && (message["role"] == SYSTEM || message["role"] == DEVELOPER)
}

fn misplaced(at: usize, role: &str) -> TemplateError {
    let what = format!("asks for a message of the role \"{role}\"");
    let reason = match at {
        0 => format!("{what}, which the chat template does not tell the model; let the user say it"),
        _ => format!(
            "{what} in the midst of a conversation, which the chat template does not tell the model; let it come first, or the user say it"
        ),
    };
    TemplateError::Misplaced { at, reason }
}

/// Contents as one, a blank line between any two.
fn joined(contents: Vec<&Value>) -> Value {
    let texts: Option<Vec<&str>> = contents.iter().map(|content| content.as_str()).collect();
    if let Some(texts) = texts {
        return texts.into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n").into();
    }
    let text = |text: &str| json!({ "type": "text", "text": text });
    let mut parts = Vec::new();
    for content in contents.into_iter().filter(|content| content.as_str() != Some("")) {
        if !parts.is_empty() {
            parts.push(text("\n\n"));
        }
        match content {
            Value::String(said) => parts.push(text(said)),
            Value::Array(said) => parts.extend(said.iter().cloned()),
            other => parts.push(other.clone()),
        }
    }
    parts.into()
}

#[cfg(test)]
mod tests {
    use super::super::tests::template;
    use super::*;
    use crate::ChatInput;

    /// As Qwen2.5 and Qwen3: the first of a system's apart, later ones among users', no other role.
    const QWEN: &str = "{% if messages[0].role == 'system' %}[S {{ messages[0].content }}]{% endif %}{% for m in messages %}\
        {% if m.role == 'user' or (m.role == 'system' and not loop.first) %}[{{ m.role }} {{ m.content }}]\
        {% elif m.role == 'assistant' %}[A {{ m.content }}]{% endif %}{% endfor %}";
    /// As Qwen3.5.
    const STRICT: &str = "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}\
        {{ raise_exception('System message must be at the beginning.') }}{% endif %}[S {{ m.content }}]\
        {% elif m.role in ['user', 'assistant'] %}[{{ m.role }} {{ m.content }}]\
        {% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}";
    /// The first alone, and later ones are left out.
    const FORGETFUL: &str = "{% for m in messages %}{% if m.role == 'system' and loop.first %}[S {{ m.content }}]\
        {% elif m.role in ['user', 'assistant'] %}[{{ m.role }} {{ m.content }}]{% endif %}{% endfor %}";
    /// As gpt-oss: a developer's message is one of the first, by either name.
    const HARMONY: &str = "{% if messages[0].role in ['system', 'developer'] %}[D {{ messages[0].content }}]{% endif %}{% for m in messages %}\
        {% if m.role in ['user', 'assistant'] %}[{{ m.role }} {{ m.content }}]{% endif %}{% endfor %}";
    const ANY: &str = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}";
    /// As DeepSeek R1's distillates: the last one is put before all.
    const LAST: &str = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}\
        {% endif %}{% endfor %}{{ ns.s }}{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.role }} {{ m.content }}]\
        {% endif %}{% endfor %}";
    const PARTS: &str = "{% for m in messages if m.role != 'developer' %}{% for p in m.content %}({{ p.text }}){% endfor %}{% endfor %}";
    const NO_SYSTEM: &str =
        "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}[{{ m.content }}]{% endif %}{% endfor %}";
    const AGAINST: &str = "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}\
        {% for m in messages %}[{{ m.content }}]{% endfor %}";

    /// A conversation in letters: what is rendered of it, or the place that is refused.
    #[track_caller]
    fn check(source: &str, conversation: &str, expected: &str) {
        let template = template(source);
        let message = |(at, letter): (usize, char)| {
            let role = match letter {
                's' => "system",
                'd' => "developer",
                'a' => "assistant",
                _ => "user",
            };
            json!({ "role": role, "content": format!("{letter}{at}") })
        };
        let messages = conversation.chars().enumerate().map(message).collect();
        let mut input = ChatInput { messages, ..ChatInput::default() };
        let rendered = template.arrange(&mut input).and_then(|()| {
            input.messages = template.adapt(std::mem::take(&mut input.messages));
            template.render(&input)
        });
        let shown = match rendered {
            Ok(text) => text,
            Err(TemplateError::Misplaced { at, .. }) => format!("messages[{at}]"),
            Err(TemplateError::Raised(said)) => said,
            Err(other) => panic!("{other}"),
        };
        assert_eq!(shown, expected, "{conversation}");
    }

    #[test]
    fn a_developers_message_is_told_as_a_systems_where_its_role_is_not_known() {
        check(QWEN, "du", "[S d0][user u1]");
        check(QWEN, "sdu", "[S s0][system d1][user u2]");
        check(QWEN, "uadu", "[user u0][A a1][system d2][user u3]");
        check(STRICT, "du", "[S d0][user u1]");
        check(FORGETFUL, "du", "[S d0][user u1]");
    }

    #[test]
    fn a_template_that_knows_developers_is_shown_them() {
        check(ANY, "sduadu", "[system s0][developer d1][user u2][assistant a3][developer d4][user u5]");
        check(HARMONY, "du", "[D d0][user u1]");
        check(HARMONY, "su", "[D s0][user u1]");
        check(HARMONY, "sdu", "[D s0\n\nd1][user u2]");
    }

    #[test]
    fn what_comes_first_is_one_message_where_the_template_tells_but_one() {
        check(STRICT, "sdu", "[S s0\n\nd1][user u2]");
        check(STRICT, "ssdu", "[S s0\n\ns1\n\nd2][user u3]");
        check(FORGETFUL, "dsua", "[S d0\n\ns1][user u2][assistant a3]");
        check(QWEN, "ssu", "[S s0][system s1][user u2]");
    }

    #[test]
    fn what_would_be_lost_in_the_midst_is_refused_by_its_place() {
        for source in [STRICT, FORGETFUL, HARMONY] {
            check(source, "uasu", "messages[2]");
            check(source, "suadu", "messages[3]");
        }
        check(NO_SYSTEM, "su", "messages[0]");
        check(NO_SYSTEM, "du", "messages[0]");
        check(NO_SYSTEM, "ua", "[u0][a1]");
        check(AGAINST, "su", "System role not supported");
        check(AGAINST, "du", "[d0][u1]");
    }

    #[test]
    fn a_template_that_tells_but_the_last_is_given_one() {
        check(LAST, "su", "s0[user u1]");
        check(LAST, "sdu", "s0\n\nd1[user u2]");
        check(LAST, "uasu", "s2[user u0][assistant a1][user u3]");
        check(LAST, "suasu", "messages[3]");
        check(LAST, "uasuasu", "messages[2]");
    }

    #[test]
    fn contents_in_parts_are_joined_and_known_as_such() {
        check(STRICT, "u", "[user u0]");
        let (text, part) = (json!("b"), json!([{ "type": "text", "text": "a" }]));
        let blank = json!({ "type": "text", "text": "\n\n" });
        assert_eq!(joined(vec![&part, &text]), json!([part[0], blank, { "type": "text", "text": "b" }]));
        assert_eq!(joined(vec![&text, &json!(""), &text]), "b\n\nb");
        let template = template(PARTS);
        let say = |role: &str| json!({ "role": role, "content": part });
        let mut input = ChatInput { messages: vec![say("developer"), say("user")], ..ChatInput::default() };
        template.arrange(&mut input).expect("told as a system's");
        assert_eq!(template.render(&input).as_deref(), Ok("(a)(a)"));
    }

    #[test]
    fn a_template_that_cannot_be_asked_is_left_alone() {
        check("as ever", "sduadu", "as ever");
    }
}
