//! What clients say of batches: the request for one, and the lines of its file.

use std::collections::{BTreeMap, HashMap};

use bytes::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::{
    fields::{Fields, shown},
    metadata::{metadata, read_metadata},
    shape::{Field, Kind, Most, Shape, needed, optional},
    unknown::Given,
};
use crate::{
    error::ApiError,
    files::LIFETIME_S,
    json_size::{JsonSize, VALUES_MAX, too_much},
};

/// What the requests of a batch may be for.
pub(crate) const ENDPOINTS: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/embeddings",
    RESPONSES,
    "/v1/score",
    "/v1/rerank",
    "/score",
    "/rerank",
    "/v2/rerank",
];
const RESPONSES: &str = "/v1/responses";
const ENDPOINT: &str = "/v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/score, /score, /v1/rerank, /rerank or \
                        /v2/rerank";

/// OpenAI's bounds of a file's life, in seconds.
const LIFETIMES_S: std::ops::RangeInclusive<u64> = 3600..=LIFETIME_S;
const LIFETIME: &str = "an integer from 3600 to 2592000";

/// A request for a batch.
pub(crate) const BATCH: Shape = Shape::new(
    "BatchRequest",
    "Which requests are to be answered.",
    &[&[
        needed("input_file_id", Kind::TEXT, "The `id` of an uploaded file: a request a line."),
        needed("endpoint", Kind::Word(&ENDPOINTS), "What all its requests are for."),
        needed("completion_window", Kind::TEXT, "In which time: from `1m` to `30d`, such as `24h`."),
        metadata("For the client's own books."),
        optional("output_expires_after", Kind::Object(&EXPIRY), "How long the outputs are kept. 30 days unless given."),
    ]],
);
const EXPIRY: Shape = Shape::new(
    "FileExpiry",
    "How long a file is kept.",
    &[&[
        optional("anchor", Kind::Word(&["created_at"]), "From when on."),
        needed("seconds", Kind::Integer(3600, Most::Is(LIFETIME_S as i64)), "How long."),
    ]],
);
/// A line of a batch's file.
pub(crate) const LINE: Shape = Shape::new("BatchLine", "A request of a batch.", &[CALL]);
const CALL: &[Field] = &[
    needed("custom_id", Kind::Text(1..=CUSTOM_ID_MAX as u64), "By which its answer is found."),
    needed("method", Kind::Word(&["POST"]), "Always the same."),
    needed("url", Kind::Word(&ENDPOINTS), "What the request is for."),
    needed("body", Kind::AnyObject, "What would be posted there."),
];

/// The longest name of a line, in bytes.
const CUSTOM_ID_MAX: usize = 512;

/// A request for a batch.
#[derive(Debug)]
pub(crate) struct BatchRequest {
    pub(crate) input_file_id: String,
    pub(crate) endpoint: &'static str,
    pub(crate) completion_window: String,
    /// The same in seconds.
    pub(crate) window_s: u64,
    pub(crate) metadata: Option<HashMap<String, String>>,
    pub(crate) output_lifetime_s: u64,
}

impl BatchRequest {
    pub(crate) fn read<'a>(body: impl Into<Given<'a>>) -> Result<Self, ApiError> {
        let mut fields = Fields::of_body(body)?.spelled(&BATCH)?;
        let input_file_id = fields.need("input_file_id", "the `id` of a file")?;
        let endpoint = fields
            .one_of("endpoint", &ENDPOINTS, ENDPOINT)?
            .ok_or_else(|| ApiError::Missing { param: "endpoint".to_owned(), allowed: ENDPOINT })?;
        const WINDOW: &str = "a time from 1m to 30d, such as \"24h\"";
        let completion_window: String = fields.need("completion_window", WINDOW)?;
        let metadata = read_metadata(&mut fields)?;
        let mut output_lifetime_s = LIFETIME_S;
        if let Some(mut expiry) = fields.object("output_expires_after")? {
            expiry.one_of("anchor", &["created_at"], "\"created_at\"")?;
            output_lifetime_s = expiry.need_count("seconds", LIFETIME)?.into();
            check_lifetime("output_expires_after.seconds", output_lifetime_s)?;
            expiry.finish(&EXPIRY)?;
        }
        fields.finish(&BATCH)?;
        let window_s = seconds(&completion_window)
            .ok_or_else(|| ApiError::invalid("completion_window", format_args!("{completion_window:?}"), WINDOW))?;
        Ok(Self { input_file_id, endpoint, completion_window, window_s, metadata, output_lifetime_s })
    }
}

/// A file's life, as a client wants it.
pub(crate) fn check_lifetime(param: &str, seconds: u64) -> Result<u64, ApiError> {
    if LIFETIMES_S.contains(&seconds) { Ok(seconds) } else { Err(ApiError::invalid(param, seconds, LIFETIME)) }
}

/// `24h`, `90m`, `7d`: from a minute to 30 days.
fn seconds(window: &str) -> Option<u64> {
    let (digits, unit) = window.split_at_checked(window.len().checked_sub(1)?)?;
    let scale = match unit {
        "m" => 60,
        "h" => 3600,
        "d" => 24 * 3600,
        _ => return None,
    };
    let count: u64 = digits.parse().ok().filter(|_| digits.bytes().all(|digit| digit.is_ascii_digit()))?;
    count.checked_mul(scale).filter(|seconds| (60..=LIFETIME_S).contains(seconds))
}

/// A request of a batch.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Item {
    /// Of its line, from 1 on.
    pub(crate) line: u64,
    pub(crate) custom_id: String,
    pub(crate) url: &'static str,
    /// What would be posted there.
    pub(crate) body: Bytes,
    /// The model that it names.
    pub(crate) model: Option<String>,
    /// Answers, or beams, that are under way at once: of wrong numbers one, since nothing comes of them.
    pub(crate) answers: u32,
}

impl Item {
    /// Reads a line. `endpoint` is the batch's; `None`: each line may have its own.
    pub(crate) fn read(line: u64, text: &Bytes, endpoint: Option<&'static str>) -> Result<Self, LineError> {
        Self::of(line, text, endpoint).map_err(|error| LineError::new(line, &error))
    }

    pub(super) fn of(line: u64, text: &Bytes, endpoint: Option<&'static str>) -> Result<Self, ApiError> {
        let mut fields = Fields::around_body(text)?;
        const CUSTOM_ID: &str = "a text of 1 to 512 bytes";
        let custom_id: String = fields.need("custom_id", CUSTOM_ID)?;
        if custom_id.is_empty() || custom_id.len() > CUSTOM_ID_MAX {
            return Err(ApiError::invalid("custom_id", format_args!("{} bytes long", custom_id.len()), CUSTOM_ID));
        }
        if fields.one_of("method", &["POST"], "\"POST\"")?.is_none() {
            return Err(ApiError::Missing { param: "method".to_owned(), allowed: "\"POST\"" });
        }
        let url = fields
            .one_of("url", &ENDPOINTS, ENDPOINT)?
            .ok_or_else(|| ApiError::Missing { param: "url".to_owned(), allowed: ENDPOINT })?;
        if let Some(endpoint) = endpoint.filter(|endpoint| *endpoint != url) {
            return Err(ApiError::invalid(
                "url",
                format_args!("{url:?}"),
                format!("{endpoint:?}, the batch's endpoint"),
            ));
        }
        let body = fields.raw("body");
        let Some(raw) = body else {
            return Err(ApiError::Missing { param: "body".to_owned(), allowed: "an object, the request itself" });
        };
        let size = JsonSize::of(raw.get().as_bytes());
        if size.outer_commas >= VALUES_MAX {
            return Err(too_much("body", size));
        }
        let mut within = Fields::of_value("body".to_owned(), raw)?;
        for name in ["stream", "background"] {
            // What is wrong with another value, the request's own reader says.
            if let Some(value) = within.raw(name).filter(|value| value.get() == "true") {
                let allowed = "false: the answers of a batch are a file";
                return Err(ApiError::invalid(within.at(name), shown(value), allowed));
            }
        }
        let model = within.raw("model").and_then(|raw| serde_json::from_str(raw.get()).ok());
        let answers = answers(&mut within);
        let body = match within.raw("store") {
            None if url == RESPONSES => kept_by_nobody(raw).into(),
            _ => text.slice_ref(raw.get().as_bytes()),
        };
        fields.finish(&LINE)?;
        Ok(Self { line, custom_id, url, body, model, answers })
    }
}

/// A request for a response that leaves open whether it is kept, as one for a response that is not. It stands in the batch's output, and a
/// batch of many would drive out what clients go on with.
fn kept_by_nobody(body: &RawValue) -> String {
    let mut members: BTreeMap<String, &RawValue> =
        serde_json::from_str(body.get()).expect("its fields were read, each of another name");
    members.insert("store".to_owned(), RawValue::FALSE);
    serde_json::to_string(&members).expect("texts and JSON are JSON")
}

/// How many answers a request draws at once: `n`, which beams are as well, or `best_of`, to each of its prompts.
fn answers(body: &mut Fields<'_>) -> u32 {
    let mut count = |name| body.raw(name).and_then(|raw| serde_json::from_str::<f64>(raw.get()).ok()).unwrap_or(1.0);
    let each = count("n").max(count("best_of")).clamp(1.0, f64::from(u32::MAX)) as u32;
    // A list of numbers is one prompt.
    let prompt = body.raw("prompt").map_or("", RawValue::get);
    let first = prompt.strip_prefix('[').map_or("", str::trim_start);
    let is_many = first.starts_with(['"', '[']);
    let prompts = if is_many { JsonSize::of(prompt.as_bytes()).outer_commas + 1 } else { 1 };
    each.saturating_mul(u32::try_from(prompts).unwrap_or(u32::MAX))
}

/// Why a batch was not begun, or not ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub(crate) struct LineError {
    pub(crate) code: String,
    pub(crate) message: String,
    pub(crate) param: Option<String>,
    pub(crate) line: Option<u64>,
}

impl LineError {
    fn new(line: u64, error: &ApiError) -> Self {
        let (code, param) = match error {
            ApiError::Missing { param, .. } => ("missing_required_parameter", Some(param)),
            ApiError::Invalid { param, .. } if param == "url" => ("invalid_url", Some(param)),
            ApiError::Invalid { param, .. } if param == "method" => ("invalid_method", Some(param)),
            ApiError::Unknown { param, .. } => ("unknown_parameter", Some(param)),
            ApiError::Invalid { param, .. } | ApiError::Conflict { param, .. } => ("invalid_value", Some(param)),
            _ => ("invalid_json_line", None),
        };
        let message = match error {
            // Its line is the file's, told beside it; the text that was read has one alone.
            ApiError::BadBody { reason } => {
                let reason = reason.strip_prefix("line 1, ").unwrap_or(reason);
                format!("the line is not a JSON object that can be read: {reason}")
            }
            error => error.to_string(),
        };
        Self { code: code.to_owned(), message, param: param.cloned(), line: Some(line) }
    }

    /// Of a line that cannot be read at all.
    pub(crate) fn of_line(line: u64, code: &str, message: impl Into<String>) -> Self {
        Self { line: Some(line), ..Self::of_batch(code, message) }
    }

    /// A line that names another model than the first that names one.
    pub(crate) fn of_model(line: u64, model: &str, first: &str) -> Self {
        let [model, first] = [model, first].map(crate::error::shortened);
        let message = format!("`body.model` is \"{model}\", and \"{first}\" in lines before: a batch is of one model");
        Self { param: Some("body.model".to_owned()), ..Self::of_line(line, "mismatched_model", message) }
    }

    /// A second line of the same name.
    pub(crate) fn duplicate(line: u64, custom_id: &str) -> Self {
        let message = format!("`custom_id` \"{}\" is another line's, too", crate::error::shortened(custom_id));
        Self { param: Some("custom_id".to_owned()), ..Self::of_line(line, "duplicate_custom_id", message) }
    }

    /// Of no line in particular.
    pub(crate) fn of_batch(code: &str, message: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), param: None, line: None }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(text: &str) -> Result<Item, LineError> {
        Item::read(7, &Bytes::copy_from_slice(text.as_bytes()), Some("/v1/completions"))
    }

    #[test]
    fn a_line_is_a_request() {
        let read = line(
            r#" {"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": false, "x": [1]}} "#,
        );
        let body = Bytes::from_static(br#"{"stream": false, "x": [1]}"#);
        let (custom_id, url) = ("a".to_owned(), "/v1/completions");
        assert_eq!(read, Ok(Item { line: 7, custom_id, url, body, model: None, answers: 1 }));
    }

    #[test]
    fn a_line_counts_for_all_the_answers_that_it_draws_at_once() {
        for (body, answers) in [
            ("{}", 1),
            (r#"{"n": 5, "use_beam_search": true}"#, 5),
            (r#"{"n": 2, "best_of": 8}"#, 8),
            (r#"{"n": 4, "prompt": ["a", "b", "c"]}"#, 12),
            (r#"{"prompt": [ [1, 2], [3]]}"#, 2),
            (r#"{"prompt": [1, 2, 3]}"#, 1),
            (r#"{"prompt": []}"#, 1),
            (r#"{"prompt": "a,b", "n": null}"#, 1),
            (r#"{"n": "7"}"#, 1),
            (r#"{"n": -7}"#, 1),
            (r#"{"n": 1e300}"#, u32::MAX),
        ] {
            let text = format!(r#"{{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {body}}}"#);
            assert_eq!(line(&text).map(|item| item.answers), Ok(answers), "{body}");
        }
    }

    #[test]
    fn a_response_is_kept_only_where_its_line_says_so() {
        for (url, body, expected) in [
            ("/v1/responses", "{}", r#"{"store":false}"#),
            ("/v1/responses", r#"{"input": "a\u0062", "store": null}"#, r#"{"input":"a\u0062","store":false}"#),
            ("/v1/responses", r#"{"n": 1e400, "store" : true}"#, r#"{"n": 1e400, "store" : true}"#),
            ("/v1/responses", r#"{"store": false}"#, r#"{"store": false}"#),
            ("/v1/responses", r#"{"store": "no"}"#, r#"{"store": "no"}"#),
            ("/v1/chat/completions", "{}", "{}"),
        ] {
            let text = format!(r#"{{"custom_id": "a", "method": "POST", "url": "{url}", "body": {body}}}"#);
            let read = Item::read(7, &Bytes::from(text), None);
            assert_eq!(read.map(|item| item.body), Ok(Bytes::from(expected)), "{body}");
        }
    }

    #[test]
    fn what_a_request_may_hold_its_own_reader_says() {
        let ids = vec!["1"; 200_000].join(",");
        let body = format!(r#"{{"input": [{ids}]}}"#);
        let read =
            line(&format!(r#"{{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {body}}}"#));
        assert_eq!(read.map(|item| item.body), Ok(Bytes::from(body)));
    }

    #[test]
    fn what_is_no_json_is_told_of_the_line_and_not_of_a_body() {
        let told = |text: &str| line(text).expect_err("it is wrong").message;
        let expected = "the line is not a JSON object that can be read: column 14: a colon belongs here";
        assert_eq!(told(r#"{"custom_id" 1}"#), expected);
        assert_eq!(told("[]"), "the line is not a JSON object that can be read: it is an empty list");
    }

    #[test]
    fn a_wrong_line_says_what_is_wrong() {
        for (text, code, param) in [
            ("{", "invalid_json_line", None),
            ("[]", "invalid_json_line", None),
            (
                r#"{"method": "POST", "url": "/v1/completions", "body": {}}"#,
                "missing_required_parameter",
                Some("custom_id"),
            ),
            (
                r#"{"custom_id": "", "method": "POST", "url": "/v1/completions", "body": {}}"#,
                "invalid_value",
                Some("custom_id"),
            ),
            (
                r#"{"custom_id": 1, "method": "POST", "url": "/v1/completions", "body": {}}"#,
                "invalid_value",
                Some("custom_id"),
            ),
            (
                r#"{"custom_id": "a", "method": "GET", "url": "/v1/completions", "body": {}}"#,
                "invalid_method",
                Some("method"),
            ),
            (
                r#"{"custom_id": "a", "url": "/v1/completions", "body": {}}"#,
                "missing_required_parameter",
                Some("method"),
            ),
            (r#"{"custom_id": "a", "method": "POST", "url": "/v1/models", "body": {}}"#, "invalid_url", Some("url")),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/embeddings", "body": {}}"#,
                "invalid_url",
                Some("url"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions"}"#,
                "missing_required_parameter",
                Some("body"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": 1}"#,
                "invalid_value",
                Some("body"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {"stream": true}}"#,
                "invalid_value",
                Some("body.stream"),
            ),
            (
                r#"{"custom_id": "a", "method": "POST", "url": "/v1/completions", "body": {}, "bodie": 1}"#,
                "unknown_parameter",
                Some("bodie"),
            ),
        ] {
            let error = line(text).expect_err(text);
            assert_eq!((error.code.as_str(), error.param.as_deref(), error.line), (code, param, Some(7)), "{text}");
        }
    }

    #[test]
    fn a_window_has_a_unit_and_bounds() {
        for (text, expected) in [
            ("24h", Some(86_400)),
            ("1m", Some(60)),
            ("30d", Some(2_592_000)),
            ("31d", None),
            ("0h", None),
            ("24", None),
            ("+1h", None),
            ("h", None),
            ("", None),
            ("1é", None),
            ("99999999999999999999d", None),
        ] {
            assert_eq!(seconds(text), expected, "{text}");
        }
    }

    #[test]
    fn a_request_for_a_batch_is_refused_by_the_name_of_what_is_wrong() {
        let check = |change: (&str, &str), param: &str| {
            let mut body = serde_json::json!({
                "input_file_id": "file-1", "endpoint": "/v1/completions", "completion_window": "24h",
            });
            body[change.0] = serde_json::from_str(change.1).expect("JSON");
            let error = BatchRequest::read(body.to_string().as_bytes()).expect_err(change.1);
            assert!(error.to_string().contains(&format!("`{param}`")), "{error}");
        };
        check(("input_file_id", "1"), "input_file_id");
        check(("input_file_id", "null"), "input_file_id");
        check(("endpoint", r#""/v1/models""#), "endpoint");
        check(("completion_window", r#""1s""#), "completion_window");
        check(("metadata", r#"{"a": 1}"#), "metadata");
        check(("metadata", &format!(r#"{{"a": "{}"}}"#, "x".repeat(513))), "metadata");
        check(("output_expires_after", r#"{"anchor": "created_at", "seconds": 1}"#), "output_expires_after.seconds");
        check(("output_expires_after", r#"{"anchor": "now", "seconds": 3600}"#), "output_expires_after.anchor");
        check(("windows", "1"), "windows");
    }

    #[test]
    fn a_whole_number_of_seconds_may_have_a_point() {
        let body = r#"{"input_file_id": "file-1", "endpoint": "/rerank", "completion_window": "24h",
                       "output_expires_after": {"anchor": "created_at", "seconds": 7200.0}}"#;
        assert_eq!(BatchRequest::read(body.as_bytes()).expect("right").output_lifetime_s, 7200);
    }
}
