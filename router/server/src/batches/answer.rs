//! The lines of answers: what stands in an output.

use bytes::Bytes;
use serde::Serialize;
use serde_json::value::RawValue;

use crate::{api::batches::Item, files::FileError, http::InnerAnswer};

/// Takes answers, one after the other, in any order.
pub(crate) trait Sink {
    /// A request was answered, with success or with an error.
    async fn answered(&mut self, item: &Item, answer: &InnerAnswer) -> Result<(), FileError>;
    /// A request is not answered any more.
    async fn unanswered(&mut self, item: &Item, why: &Unanswered) -> Result<(), FileError>;
}

/// Why a request is not answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(crate) struct Unanswered {
    code: &'static str,
    message: &'static str,
}

impl Unanswered {
    pub(crate) const EXPIRED: Self = Self {
        code: "batch_expired",
        message: "This request could not be executed before the completion window expired.",
    };
    pub(crate) const CANCELLED: Self =
        Self { code: "batch_cancelled", message: "This request was not executed: the batch was cancelled." };
    pub(crate) const LOST: Self =
        Self { code: "internal_error", message: "This request could not be executed; the server's log says more." };
}

#[derive(Serialize)]
struct Line<'a> {
    id: String,
    custom_id: &'a str,
    response: Option<Response<'a>>,
    error: Option<&'a Unanswered>,
}

#[derive(Serialize)]
struct Response<'a> {
    status_code: u16,
    request_id: &'a str,
    body: &'a RawValue,
}

impl<'a> Line<'a> {
    fn of(item: &'a Item) -> Self {
        let id = format!("batch_req_{}", uuid::Uuid::new_v4().simple());
        Self { id, custom_id: &item.custom_id, response: None, error: None }
    }

    fn written(&self) -> Bytes {
        let mut text = serde_json::to_vec(self).expect("texts and JSON are JSON");
        text.push(b'\n');
        text.into()
    }
}

/// The line of an answer.
pub(crate) fn answered(item: &Item, answer: &InnerAnswer) -> Bytes {
    let body = serde_json::from_slice(&answer.body).expect("handlers answer in JSON");
    let response = Response { status_code: answer.status.as_u16(), request_id: &answer.request_id, body };
    Line { response: Some(response), ..Line::of(item) }.written()
}

/// The line of a request without one.
pub(crate) fn unanswered(item: &Item, why: &Unanswered) -> Bytes {
    Line { error: Some(why), ..Line::of(item) }.written()
}

#[cfg(test)]
mod tests {
    use http::StatusCode;
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn an_answer_is_one_line_that_holds_the_response_as_it_was() {
        let item = Item {
            line: 1,
            custom_id: "a\n\"b".to_owned(),
            url: "/v1/completions",
            body: Bytes::new(),
            model: None,
            answers: 1,
        };
        let body = Bytes::from_static(br#"{"z":1.0,"a":"x\n"}"#);
        let answer = InnerAnswer { status: StatusCode::OK, request_id: "r".to_owned(), body };
        let read = |line: Bytes| -> Value {
            assert_eq!(line.iter().filter(|byte| **byte == b'\n').count(), 1);
            serde_json::from_slice(&line).expect("JSON")
        };
        let line = answered(&item, &answer);
        assert!(String::from_utf8_lossy(&line).contains(r#""body":{"z":1.0,"a":"x\n"}"#), "not one byte differs");
        let line = read(line);
        assert_eq!((&line["custom_id"], &line["error"]), (&json!("a\n\"b"), &Value::Null));
        assert_eq!((&line["response"]["status_code"], &line["response"]["request_id"]), (&json!(200), &json!("r")));
        let line = read(unanswered(&item, &Unanswered::EXPIRED));
        assert_eq!((&line["response"], &line["error"]["code"]), (&Value::Null, &json!("batch_expired")));
    }
}
