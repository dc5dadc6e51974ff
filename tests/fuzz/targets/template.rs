//! Whatever a template says and a chat holds: text or an error, within bounds, and the same again.
//!
//! Input: a byte for how, then up to three texts with a byte of 0xFF between them: the template, the messages as JSON, and an
//! object of `tools`, `documents` and other variables.
#![no_main]

use std::{collections::BTreeMap, panic, process, sync::Once};

use libfuzzer_sys::fuzz_target;
use pelton_text::{ChatInput, ChatTemplate, LocalTime, TemplateError};
use serde_json::{Map, Value, json};

static HOOK: Once = Once::new();

/// libFuzzer ends at every panic, even one that is caught. The engine's own are caught where it is called, and told as errors;
/// only those of all other code end the run.
fn pass_over_the_engine() {
    let end = panic::take_hook();
    panic::set_hook(Box::new(move |panic| {
        if !panic.location().is_some_and(|place| place.file().contains("/minijinja-")) {
            end(panic);
            process::abort();
        }
    }));
}

fuzz_target!(|input: &[u8]| {
    HOOK.call_once(pass_over_the_engine);
    let [how, texts @ ..] = input else { return };
    let mut texts = texts.split(|&byte| byte == 0xFF).map(String::from_utf8_lossy);
    let source = texts.next().unwrap_or_default().into_owned();
    let specials = Map::from_iter([("bos_token".to_owned(), json!("<s>")), ("eos_token".to_owned(), json!("</s>"))]);
    // A template may include itself.
    let sources = BTreeMap::from([("default".to_owned(), source.clone()), ("tool_use".to_owned(), source)]);
    let Ok(template) = ChatTemplate::from_sources(sources, specials) else { return };

    let messages = texts.next().and_then(|text| serde_json::from_str(&text).ok());
    let messages: Vec<Value> = messages.unwrap_or_else(|| vec![json!({"role": "user", "content": "Hello"})]);
    let mut kwargs: Map<String, Value> =
        texts.next().and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default();
    let has = |bit: u8| how >> bit & 1 == 1;
    let chat = ChatInput {
        messages: if has(0) { template.adapt(messages) } else { messages },
        tools: kwargs.remove("tools").and_then(|tools| serde_json::from_value(tools).ok()),
        documents: kwargs.remove("documents"),
        add_generation_prompt: has(1),
        continue_final_message: has(2),
        kwargs,
        now: LocalTime { unix_seconds: 1_700_000_000, utc_offset_seconds: 3600 },
        ..ChatInput::default()
    };
    let rendered = template.render(&chat);
    match &rendered {
        Ok(text) => assert!(text.len() <= 8 << 20),
        Err(TemplateError::TooMuchWork { .. }) => return, // once is enough
        Err(error) => assert!(!error.to_string().is_empty()),
    }
    assert_eq!(rendered, template.render(&chat), "the same chat gives the same text");
});
