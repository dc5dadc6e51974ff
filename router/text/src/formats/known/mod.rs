//! The formats that Pelton knows, each a file of its own, and how a checkpoint's is found.

use std::sync::LazyLock;

use crate::formats::declaration::{Declaration, Reasoning};

/// In the order in which they are tried: what a template must have grows fewer.
static KNOWN: LazyLock<Vec<Declaration>> = LazyLock::new(|| {
    let texts = [
        include_str!("harmony.toml"),
        include_str!("hunyuan-v3.toml"),
        include_str!("deepseek-v3.2.toml"),
        include_str!("deepseek-v3.1.toml"),
        include_str!("deepseek-v3.toml"),
        include_str!("kimi-k2.toml"),
        include_str!("minimax-m2.toml"),
        include_str!("seed-oss.toml"),
        include_str!("glm-4.5.toml"),
        include_str!("qwen3-coder.toml"),
        include_str!("cohere.toml"),
        include_str!("gemma-4.toml"),
        include_str!("function-gemma.toml"),
        include_str!("mistral-args.toml"),
        include_str!("mistral.toml"),
        include_str!("llama4-pythonic.toml"),
        include_str!("llama3-json.toml"),
        include_str!("internlm.toml"),
        include_str!("olmo-3.toml"),
        include_str!("hunyuan.toml"),
        include_str!("jamba.toml"),
        include_str!("phi-4-mini.toml"),
        include_str!("granite.toml"),
        include_str!("ernie-4.5.toml"),
        include_str!("hermes.toml"),
        include_str!("xlam.toml"),
        include_str!("think.toml"),
    ];
    texts.map(|text| Declaration::parse(text).expect("the tests parse every one")).into()
});

pub(super) fn names() -> Vec<&'static str> {
    KNOWN.iter().map(|declaration| declaration.name.as_str()).collect()
}

pub(super) fn named(name: &str) -> Option<&'static Declaration> {
    KNOWN.iter().find(|declaration| declaration.name == name)
}

/// The format of a checkpoint with these templates and tokens. Thinking is told apart from content where either knows a mark of
/// it: fine-tuned models think in `<think>`, whatever their calls look like.
pub(super) fn detect(templates: &str, has_token: &dyn Fn(&str) -> bool) -> Option<Declaration> {
    let found = KNOWN.iter().find(|declaration| is_of(declaration, templates, has_token));
    let mut declaration = found?.clone();
    if declaration.channels {
        return Some(declaration);
    }
    let is_known = |reasoning: &Reasoning| {
        let mut marks = reasoning.open.iter().chain(&reasoning.close);
        marks.any(|mark| templates.contains(mark.as_str()) || has_token(mark))
    };
    let thinking = named("think").and_then(|think| think.reasoning.clone());
    declaration.reasoning = declaration.reasoning.into_iter().chain(thinking).find(is_known);
    Some(declaration)
}

fn is_of(declaration: &Declaration, templates: &str, has_token: &dyn Fn(&str) -> bool) -> bool {
    let detect = &declaration.detect;
    let says_something = !detect.template.is_empty() || !detect.tokens.is_empty();
    says_something
        && detect.template.iter().all(|text| templates.contains(text.as_str()))
        && !detect.without.iter().any(|text| templates.contains(text.as_str()))
        && detect.tokens.iter().all(|token| has_token(token))
}
