//! The error body of a request whose head cannot be parsed.
//!
//! hyper answers such a request by itself, with a status and no body, and has no hook for it. So its answer is recognised
//! where it is written to the socket: it is a head alone with one of three statuses, and without the `x-request-id` that every
//! response of ours has. After it hyper closes the connection. Where it follows an earlier answer in the same write (pipelined
//! requests), it stays as it is.

use http::StatusCode;

use crate::error::ApiError;

/// What is sent in place of `written`, if that is hyper's own refusal.
pub(super) fn in_place_of(written: &[u8]) -> Option<Vec<u8>> {
    let head = std::str::from_utf8(written.strip_prefix(b"HTTP/1.1 ")?.strip_suffix(b"\r\n\r\n")?).ok()?;
    let (status, reason) = match head.get(..3)? {
        "400" => (StatusCode::BAD_REQUEST, "it is no HTTP request"),
        "414" => (StatusCode::URI_TOO_LONG, "its path is too long"),
        "431" => (StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE, "its headers are too large or too many"),
        _ => return None,
    };
    let is_ours = head.lines().skip(1).any(|line| line.to_ascii_lowercase().starts_with("x-request-id:"));
    if is_ours || head.contains("\r\n\r\n") {
        return None;
    }
    let error = ApiError::BadHead { status, reason };
    let body = serde_json::to_string(&error.envelope()).expect("envelopes are plain");
    let (status, id, length) = (status.as_str(), uuid::Uuid::now_v7().simple(), body.len());
    let phrase = head.lines().next()?.get(4..).unwrap_or_default();
    Some(
        format!(
            "HTTP/1.1 {status} {phrase}\r\ncontent-type: application/json\r\ncontent-length: {length}\r\nconnection: close\r\n\
             x-request-id: {id}\r\n\r\n{body}"
        )
        .into_bytes(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_of_hypers_gets_our_body() {
        for (status, code_name) in [
            ("400 Bad Request", "bad_request_head"),
            ("414 URI Too Long", "uri_too_long"),
            ("431 Request Header Fields Too Large", "headers_too_large"),
        ] {
            let written = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: 0\r\ndate: now\r\n\r\n");
            let sent = String::from_utf8(in_place_of(written.as_bytes()).expect("hyper's own")).expect("UTF-8");
            let (head, body) = sent.split_once("\r\n\r\n").expect("a head and a body");
            assert!(head.starts_with(&format!("HTTP/1.1 {status}\r\n")), "{head}");
            assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
            let body: serde_json::Value = serde_json::from_str(body).expect("JSON");
            assert_eq!(body["error"]["code_name"], code_name);
        }
    }

    #[test]
    fn nothing_else_is_touched() {
        for written in [
            "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\nx-request-id: 1\r\ncontent-length: 0\r\n\r\n",
            "HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\n\r\n{}",
            "HTTP/1.1 400 Bad Request\r\n\r\nHTTP/1.1 400 Bad Request\r\n\r\n",
            "data: HTTP/1.1 400 Bad Request\r\n\r\n",
            "",
        ] {
            assert_eq!(in_place_of(written.as_bytes()), None, "{written}");
        }
        assert_eq!(in_place_of(b"HTTP/1.1 400 \xff\r\n\r\n"), None);
    }
}
