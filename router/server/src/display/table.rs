//! The table at the end of the start: what was loaded, what it takes, what fits, and how to talk to it.

use std::fmt::Write as _;
use std::time::Duration;

use pelton_engine::{Gives, ModelReport};
use pelton_text::Format;

use super::{bytes, count};

/// What the table shows besides the model's own report.
pub(crate) struct Start<'a> {
    /// The name that answers carry.
    pub(crate) name: &'a str,
    /// Workers, each with what the report tells of one.
    pub(crate) workers: u32,
    /// Requests that run at once in a worker.
    pub(crate) max_running: u32,
    /// `http://127.0.0.1:8000`.
    pub(crate) url: &'a str,
    /// Whether clients must send a key.
    pub(crate) needs_key: bool,
    /// Whether the model has a chat template.
    pub(crate) chats: bool,
    /// How the model writes reasoning and tool calls.
    pub(crate) format: Option<&'a Format>,
    /// Since the command began.
    pub(crate) took: Duration,
}

/// The whole text.
pub(crate) fn started(model: &ModelReport, start: &Start<'_>) -> String {
    let budget = &model.budget;
    let tokens = u64::from(model.blocks) * u64::from(model.block_size) / model.kinds.len().max(1) as u64;
    let longest = u64::from((model.blocks / budget.blocks_per_request.max(1)).min(start.max_running));
    let kernels = if model.numerics_id.contains("portable") {
        "  (portable kernels: this processor has no AVX2; correct, and slow)"
    } else {
        ""
    };
    let mut text = String::new();
    let mut row = |name: &str, value: &str, note: &str| _ = writeln!(text, "  {name:<12}{value:>12}   {note}");
    if start.workers > 1 {
        row("workers", &count(start.workers.into()), "each with what follows");
    }
    row(
        "weights",
        &bytes(budget.weights_bytes),
        &format!("{} {} on {} ({}){kernels}", model.family, model.dtype, model.device, model.device_name),
    );
    row("activations", &bytes(budget.activation_bytes), "of the largest step");
    row(
        "KV blocks",
        &bytes(budget.kv_bytes),
        &format!("{} blocks of {} tokens = {} tokens", count(model.blocks.into()), model.block_size, count(tokens)),
    );
    if budget.memory_limit_bytes > 0 {
        row("limit", &bytes(budget.memory_limit_bytes), "the most that the worker may take");
    }
    row(
        "fits",
        &count(longest),
        &format!(
            "requests of {} tokens at once, or up to {} shorter ones",
            count(model.max_model_len.into()),
            start.max_running
        ),
    );
    if let Some(pooling) = &model.pooling {
        let what = match &pooling.gives {
            Gives::Embedding { .. } => "numbers in each embedding",
            Gives::Classes { .. } => "classes of a text",
        };
        row("vectors", &count(pooling.width.into()), what);
    } else if start.chats {
        let (name, note) = reads(start.format);
        row("format", name, note);
    }
    let Start { url, name, .. } = start;
    let key = if start.needs_key { "-H \"Authorization: Bearer $KEY\" " } else { "" };
    let (path, body) = match model.pooling.as_ref().map(|pooling| &pooling.gives) {
        Some(Gives::Embedding { .. }) => ("v1/embeddings", r#"{"input": "Hello"}"#),
        Some(Gives::Classes { labels, .. }) if labels.len() == 1 => {
            ("rerank", r#"{"query": "Hello", "documents": ["Hi", "Bye"]}"#)
        }
        Some(Gives::Classes { .. }) => ("classify", r#"{"input": "Hello"}"#),
        None if start.chats => ("v1/chat/completions", r#"{"messages": [{"role": "user", "content": "Hello!"}]}"#),
        None => ("v1/completions", r#"{"prompt": "Hello", "max_tokens": 32}"#),
    };
    _ = writeln!(text, "{name} is ready at {url} after {:.1} s. Talk to it:", start.took.as_secs_f64());
    _ = writeln!(text, "  curl {url}/{path} {key}-H 'Content-Type: application/json' -d '{body}'");
    text
}

/// A format's name, and what of an answer is told apart by it.
fn reads(format: Option<&Format>) -> (&str, &'static str) {
    let Some(format) = format else { return ("none", "reasoning and tool calls stay in the text (--format)") };
    let note = match (format.has_reasoning(), format.has_calls()) {
        (true, true) => "of reasoning and tool calls (--format)",
        (true, false) => "of reasoning (--format)",
        _ => "of tool calls (--format)",
    };
    (format.name(), note)
}

#[cfg(test)]
mod tests {
    use pelton_link::{Budget, LayerKind};

    use super::*;
    use crate::generate::testing::tokenizer;

    #[test]
    fn the_table_says_what_fits_and_how_to_talk_to_it() {
        let budget = Budget {
            weights_bytes: 12 << 20,
            activation_bytes: 100 << 20,
            kv_bytes: 1 << 30,
            memory_limit_bytes: 4 << 30,
            blocks_per_request: 128,
            ..Budget::default()
        };
        let model = ModelReport {
            family: "llama".into(),
            dtype: "bfloat16".into(),
            device: "cpu".into(),
            device_name: "Some CPU".into(),
            vocab_size: 4096,
            max_model_len: 4096,
            block_size: 32,
            blocks: 1000,
            kinds: vec![LayerKind::Full],
            numerics_id: "cpu-portable-bf16".into(),
            invariant: true,
            budget,
            pooling: None,
            embed_width: 0,
        };
        let format = Format::named("hermes", &tokenizer()).expect("it is known");
        let start = Start {
            name: "demo",
            workers: 2,
            max_running: 256,
            url: "http://127.0.0.1:8000",
            needs_key: true,
            chats: true,
            format: Some(&format),
            took: Duration::from_millis(1200),
        };
        let text = started(&model, &start);
        for part in [
            "workers                2   each with what follows",
            "weights         12.0 MiB   llama bfloat16 on cpu (Some CPU)  (portable kernels",
            "KV blocks       1.00 GiB   1,000 blocks of 32 tokens = 32,000 tokens",
            "fits                   7   requests of 4,096 tokens at once, or up to 256 shorter ones",
            "format            hermes   of reasoning and tool calls (--format)",
            "demo is ready at http://127.0.0.1:8000 after 1.2 s",
            "curl http://127.0.0.1:8000/v1/chat/completions -H \"Authorization: Bearer $KEY\"",
        ] {
            assert!(text.contains(part), "{part} in\n{text}");
        }
        let classes = |labels: usize| Gives::Classes {
            labels: vec!["x".to_owned(); labels],
            activation: pelton_engine::Activation::Softmax,
        };
        for (gives, parts) in [
            (Gives::Embedding { normalize: true }, ["384   numbers in each embedding", ":8000/v1/embeddings -H"]),
            (classes(1), ["384   classes of a text", ":8000/rerank -H"]),
            (classes(2), ["384   classes of a text", ":8000/classify -H"]),
        ] {
            let pooling = Some(pelton_engine::Pooling { width: 384, is_bidirectional: true, gives });
            let text = started(&ModelReport { pooling, ..model.clone() }, &start);
            assert!(parts.iter().all(|part| text.contains(part)), "{parts:?} in\n{text}");
        }
    }
}
