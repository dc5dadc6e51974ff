//! Bodies of requests by which `/openapi.json` shows what can be asked; a test sends each. Name and JSON.

pub(super) const CHAT_EXAMPLES: &[(&str, &str)] = &[
    ("a question", r#"{"messages": [{"role": "user", "content": "What is Pelton?"}], "max_tokens": 32}"#),
    (
        "a call of a function",
        r#"{"messages": [{"role": "user", "content": "How warm is it in Rome?"}], "max_tokens": 48, "tool_choice": "auto",
            "tools": [{"type": "function", "function": {"name": "weather", "description": "The weather of a city",
              "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}}}]}"#,
    ),
    (
        "JSON of a schema",
        r#"{"messages": [{"role": "user", "content": "A river and its length."}], "max_tokens": 64,
            "response_format": {"type": "json_schema", "json_schema": {"name": "river", "schema": {"type": "object",
              "properties": {"name": {"type": "string", "maxLength": 10}, "km": {"type": "integer"}}, "required": ["name", "km"]}}}}"#,
    ),
];
pub(super) const COMPLETION_EXAMPLES: &[(&str, &str)] = &[
    ("a text", r#"{"prompt": "A river is", "max_tokens": 16}"#),
    ("several, as tokens", r#"{"prompt": [[1, 2, 3], [4]], "max_tokens": 4, "temperature": 0, "logprobs": 1}"#),
];
pub(super) const RESPONSE_EXAMPLES: &[(&str, &str)] = &[
    ("a question", r#"{"input": "What is Pelton?", "max_output_tokens": 32}"#),
    ("nothing kept", r#"{"input": [{"role": "user", "content": "Hello"}], "store": false, "max_output_tokens": 16}"#),
    (
        "a stream that can be left and come back to",
        r#"{"input": "Hello", "background": true, "stream": true, "truncation": "auto", "max_output_tokens": 16}"#,
    ),
];
pub(super) const MESSAGES_EXAMPLES: &[(&str, &str)] = &[(
    "a question",
    r#"{"max_tokens": 32, "system": "Be brief.", "messages": [{"role": "user", "content": [{"type": "text", "text": "Hello"}]}]}"#,
)];
pub(super) const SCORE_EXAMPLES: &[(&str, &str)] =
    &[("one with two", r#"{"queries": "a warm day", "documents": ["The sun shines.", "It snows."]}"#)];
pub(super) const RERANK_EXAMPLES: &[(&str, &str)] =
    &[("two documents", r#"{"query": "a warm day", "documents": ["It snows.", "The sun shines."], "top_n": 1}"#)];
pub(super) const INPUT_EXAMPLES: &[(&str, &str)] = &[("two texts", r#"{"input": ["The sun shines.", "It snows."]}"#)];
