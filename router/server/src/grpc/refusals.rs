//! What tonic refuses before our code sees a call, with the details that our own errors have.

use axum::{extract::Request, middleware::Next, response::Response};
use tonic::{Code, Status};

use crate::error::{ApiError, shortened};

/// Every error of ours has it.
const CODE_NAME: &str = "pelton-code-name";

/// tonic calls a message that it cannot decode an internal error, and says nothing at all of an unknown method.
pub(super) async fn explain(request: Request, next: Next) -> Response {
    let path = shortened(request.uri().path());
    let response = next.run(request).await;
    match refusal(&response, path) {
        None => response,
        Some(error) => Status::from(error).into_http(),
    }
}

fn refusal(response: &Response, path: String) -> Option<ApiError> {
    if response.headers().contains_key(CODE_NAME) {
        return None;
    }
    let status = Status::from_header_map(response.headers())?;
    match status.code() {
        // Nothing of ours fails without a code name: this comes from the decoder.
        Code::Internal => {
            tracing::debug!(said = status.message(), "a message cannot be decoded");
            Some(ApiError::BadMessage {
                reason: "it is not the message that this call takes, or not all of it".to_owned(),
            })
        }
        Code::Unimplemented if status.message().is_empty() => Some(ApiError::UnknownRoute { path, nearest: None }),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(status: Status, expected: Option<(Code, &str)>) {
        let got = refusal(&status.into_http(), "/pelton.v1.Pelton/None".to_owned()).map(Status::from);
        let code_name = |status: &Status| status.metadata().get(CODE_NAME)?.to_str().ok().map(str::to_owned);
        let got = got.map(|status| (status.code(), code_name(&status)));
        assert_eq!(got, expected.map(|(code, name)| (code, Some(name.to_owned()))));
    }

    #[test]
    fn what_the_client_did_wrong_is_told_as_such() {
        check(Status::internal("failed to decode"), Some((Code::InvalidArgument, "invalid_message")));
        check(Status::unimplemented(""), Some((Code::Unimplemented, "unknown_route")));
        check(Status::unimplemented("Content is compressed with `gzip`"), None);
        check(ApiError::Internal { log: "ours".into() }.into(), None);
        assert_eq!(refusal(&Response::default(), String::new()).map(|error| error.to_string()), None);
    }
}
