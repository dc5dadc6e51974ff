//! A conversation over `/v1/chat/completions`: the messages so far, one streamed answer at a time.
//!
//! Knows the OpenAI API as any client does, so it talks to other servers too. Never here: the terminal.

use std::io::Write;
use std::time::Instant;

use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ::http::{HeaderValue, Request, Response, StatusCode};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::Options;
use super::answer::Answer;
use crate::client::{Client, ClientError, read_body};
use crate::command::Trouble;
use crate::config::Secret;
use crate::sse::EventReader;

/// An error's body, or a list of models; both are small.
const BODY_BYTES_MAX: usize = 1 << 20;

/// The messages so far, and where they go.
pub(super) struct Conversation {
    client: Client,
    url: String,
    key: Option<Secret>,
    model: String,
    system: Option<String>,
    max_tokens: Option<u32>,
    messages: Vec<Value>,
}

/// An answer that has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Answered {
    pub(super) how: Ended,
    /// Prompts, each with its answer, that were left out before this one because the context was full.
    pub(super) left_out: usize,
}

/// How an answer ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ended {
    /// By itself; what it took, in words.
    Whole(String),
    /// By the user.
    Stopped,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
enum NoAnswer {
    #[error("no answer from {0}; start a server with `pelton serve`, or leave --url out for a chat without one")]
    Nobody(ClientError),
    #[error("the server refuses (status 401): {0}; give its key with --api-key-file FILE or PELTON_API_KEY_FILE")]
    Key(String),
    #[error("the server refuses (status {status}): {message}")]
    Refused { status: u16, message: String, is_context_full: bool },
    #[error("{0}")]
    Other(String),
}

impl From<String> for NoAnswer {
    fn from(message: String) -> Self {
        Self::Other(message)
    }
}

impl Conversation {
    /// Asks the server what it serves; `model` none: its first one.
    pub(super) async fn open(
        url: &str,
        key: Option<Secret>,
        model: Option<String>,
        options: &Options,
    ) -> Result<Self, Trouble> {
        let mut conversation = Self {
            client: Client::new(true),
            url: url.to_owned(),
            key,
            model: String::new(),
            system: options.system.clone(),
            max_tokens: options.max_tokens.map(|tokens| tokens.0),
            messages: Vec::new(),
        };
        conversation.model = match model {
            Some(model) => model,
            None => conversation.first_model().await.map_err(|error| Trouble::Failed(error.to_string()))?,
        };
        conversation.reset();
        Ok(conversation)
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    /// Forgets all but the system prompt.
    pub(super) fn reset(&mut self) {
        self.messages = self.system.iter().map(|text| json!({ "role": "system", "content": text })).collect();
    }

    /// Forgets all, the old system prompt too.
    pub(super) fn set_system(&mut self, system: Option<String>) {
        self.system = system;
        self.reset();
    }

    /// Sends `prompt` and writes the answer as it comes, until it ends or `stop` resolves. A stopped answer stays in the
    /// conversation as far as it came; of a failed one nothing stays. When the context is full, the oldest prompts and their
    /// answers are left out, as many as it takes.
    pub(super) async fn ask(
        &mut self,
        prompt: &str,
        out: &mut impl Write,
        stop: impl Future<Output = ()>,
    ) -> Result<Answered, String> {
        self.messages.push(json!({ "role": "user", "content": prompt }));
        let mut stop = std::pin::pin!(stop);
        let kept = usize::from(self.system.is_some());
        let mut left_out = 0;
        loop {
            let mut answer = Answer::default();
            let first = kept + 2 * left_out;
            let ended = tokio::select! {
                ended = self.stream(first, &mut answer, out) => ended.map(|()| Ended::Whole(answer.usage())),
                // Dropping the stream closes its connection, by which the server knows.
                () = &mut stop => Ok(Ended::Stopped),
            };
            match ended {
                // Nothing was written yet: a refusal comes before the first token.
                Err(NoAnswer::Refused { is_context_full: true, .. }) if first + 1 < self.messages.len() => {
                    left_out += 1
                }
                Err(error) => {
                    self.messages.pop();
                    let is_full = matches!(error, NoAnswer::Refused { is_context_full: true, .. });
                    let advice = if is_full { "; shorten the message, or the system prompt" } else { "" };
                    return Err(format!("{error}{advice}"));
                }
                Ok(how) => {
                    self.messages.drain(kept..first);
                    self.messages.push(json!({ "role": "assistant", "content": answer.text }));
                    return Ok(Answered { how, left_out });
                }
            }
        }
    }

    /// Sends the system prompt and the messages from the one at `first`.
    async fn stream(&self, first: usize, answer: &mut Answer, out: &mut impl Write) -> Result<(), NoAnswer> {
        let kept = usize::from(self.system.is_some());
        let messages: Vec<&Value> = self.messages[..kept].iter().chain(&self.messages[first..]).collect();
        let mut body = json!({
            "model": self.model,
            "messages": messages,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        if let Some(limit) = self.max_tokens {
            body["max_tokens"] = limit.into();
        }
        let request = self.request("POST", "/v1/chat/completions", body.to_string().into())?;
        let mut response = self.send(request).await?.into_body();
        let mut events = EventReader::default();
        while !answer.is_done {
            let Some(frame) = response.frame().await else {
                return Err("the server ended the answer early".to_owned().into());
            };
            let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let mut texts = Vec::new();
            events.push(&bytes, |data| texts.push(answer.take(data)));
            if texts.iter().any(|text| text.as_ref().is_ok_and(|text| !text.is_empty())) {
                answer.came(Instant::now());
            }
            for text in texts {
                out.write_all(text?.as_bytes()).map_err(|error| error.to_string())?;
            }
            out.flush().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn first_model(&self) -> Result<String, NoAnswer> {
        let response = self.send(self.request("GET", "/v1/models", Bytes::new())?).await?;
        let body = read_body(response.into_body(), BODY_BYTES_MAX).await.map_err(|error| error.to_string())?;
        let models: Value = serde_json::from_slice(&body).unwrap_or_default();
        models["data"][0]["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{} serves no model", self.url).into())
    }

    fn request(&self, method: &str, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        if let Some(key) = &self.key {
            let mut value =
                HeaderValue::try_from(format!("Bearer {}", key.reveal())).map_err(|error| error.to_string())?;
            value.set_sensitive(true);
            request.headers_mut().insert(AUTHORIZATION, value);
        }
        Ok(request)
    }

    /// A refusal becomes the server's own words.
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, NoAnswer> {
        let response = self.client.send(request).await.map_err(NoAnswer::Nobody)?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = read_body(response.into_body(), BODY_BYTES_MAX).await.map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or("no reason was given").to_owned();
        if status == StatusCode::UNAUTHORIZED {
            return Err(NoAnswer::Key(message));
        }
        // OpenAI's word for it stands under `code`; where that is the status, as in our own answers, under `code_name`.
        let is_context_full = ["code", "code_name"].iter().any(|key| body["error"][key] == "context_length_exceeded");
        Err(NoAnswer::Refused { status: status.as_u16(), message, is_context_full })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Json;
    use axum::routing::{get, post};

    use super::*;
    use crate::error::ApiError;

    type Bodies = Arc<Mutex<Vec<Value>>>;

    /// A server that answers "Hi " and then the number of messages; to "wait" it begins and never ends, to "no" it refuses. Its
    /// context holds five messages, and no message "long".
    async fn server() -> (String, Bodies) {
        let bodies = Bodies::default();
        let seen = Arc::clone(&bodies);
        let completions = move |Json(body): Json<Value>| {
            let messages = body["messages"].as_array().expect("messages").clone();
            seen.lock().expect("whole").push(body);
            async move {
                use axum::response::IntoResponse as _;
                let delta =
                    |text: &str| format!("data: {}\n\n", json!({ "choices": [{ "delta": { "content": text } }] }));
                let begin = futures::stream::iter([delta("Hi ")]);
                let last = messages.last().expect("a message")["content"].as_str().expect("text");
                if messages.len() > 5 || last == "long" {
                    let (prompt, limit) = (messages.len() as u64 + 5, 5);
                    return ApiError::PromptTooLong { param: "messages".into(), prompt, limit }.into_response();
                }
                match last {
                    "no" => (::http::StatusCode::BAD_REQUEST, Json(json!({ "error": { "message": "too long" } })))
                        .into_response(),
                    "wait" => {
                        use futures::StreamExt as _;
                        let endless = begin.chain(futures::stream::pending()).map(Ok::<_, std::io::Error>);
                        axum::body::Body::from_stream(endless).into_response()
                    }
                    _ => [
                        delta("Hi "),
                        delta(&messages.len().to_string()),
                        "data: {\"choices\":[],\"usage\":{\"completion_tokens\":2}}\n\n".into(),
                        "data: [DONE]\n\n".into(),
                    ]
                    .concat()
                    .into_response(),
                }
            }
        };
        let app = axum::Router::new()
            .route("/v1/models", get(|| async { Json(json!({ "data": [{ "id": "small" }] })) }))
            .route("/v1/chat/completions", post(completions));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        (url, bodies)
    }

    async fn open(url: &str) -> Conversation {
        let options = Options { url: None, system: Some("Be brief.".into()), max_tokens: None };
        Conversation::open(url, None, None, &options).await.expect("a server")
    }

    async fn ask(conversation: &mut Conversation, prompt: &str) -> (String, Result<Answered, String>) {
        let mut out = Vec::new();
        let ended = conversation.ask(prompt, &mut out, std::future::pending()).await;
        (String::from_utf8(out).expect("text"), ended)
    }

    #[tokio::test]
    async fn the_conversation_grows_until_it_is_reset() {
        let (url, bodies) = server().await;
        let mut conversation = open(&url).await;
        assert_eq!(conversation.model(), "small");
        for expected in ["Hi 2", "Hi 4"] {
            let (text, ended) = ask(&mut conversation, "hello").await;
            assert_eq!(text, expected);
            let Ok(Answered { how: Ended::Whole(usage), left_out: 0 }) = ended else { panic!("{ended:?}") };
            assert!(usage.starts_with("2 tokens"), "{usage}");
        }
        let sent = bodies.lock().expect("whole")[1]["messages"].clone();
        assert_eq!(sent[0], json!({ "role": "system", "content": "Be brief." }));
        assert_eq!(sent[2], json!({ "role": "assistant", "content": "Hi 2" }));
        conversation.reset();
        assert_eq!(ask(&mut conversation, "hello").await.0, "Hi 2");
        conversation.set_system(None);
        assert_eq!(ask(&mut conversation, "hello").await.0, "Hi 1");
    }

    #[tokio::test]
    async fn a_stopped_answer_stays_as_far_as_it_came_and_a_refused_one_leaves_nothing() {
        let (url, _) = server().await;
        let mut conversation = open(&url).await;
        let (begun, has_begun) = futures::channel::oneshot::channel();
        struct Out(Option<futures::channel::oneshot::Sender<()>>);
        impl Write for Out {
            fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
                self.0.take().map(|begun| begun.send(()));
                Ok(bytes.len())
            }
            fn flush(&mut self) -> std::io::Result<()> {
                Ok(())
            }
        }
        let stop = async { _ = has_begun.await };
        let stopped = conversation.ask("wait", &mut Out(Some(begun)), stop).await;
        assert_eq!(stopped, Ok(Answered { how: Ended::Stopped, left_out: 0 }));
        assert_eq!(conversation.messages.last(), Some(&json!({ "role": "assistant", "content": "Hi " })));
        let (_, refused) = ask(&mut conversation, "no").await;
        assert_eq!(refused, Err("the server refuses (status 400): too long".into()));
        assert_eq!(conversation.messages.len(), 3);
    }

    #[tokio::test]
    async fn a_full_context_leaves_out_the_oldest_prompts_and_says_how_many() {
        let (url, bodies) = server().await;
        let mut conversation = open(&url).await;
        for (prompt, expected) in [("one", 0), ("two", 0), ("three", 1), ("four", 1)] {
            let (_, ended) = ask(&mut conversation, prompt).await;
            assert_eq!(ended.expect("an answer").left_out, expected, "{prompt}");
        }
        let sent = bodies.lock().expect("whole").last().expect("asked")["messages"].clone();
        assert_eq!((&sent[0]["role"], &sent[1]["content"]), (&json!("system"), &json!("three")));
        // What is too long by itself costs the conversation nothing.
        let before = conversation.messages.clone();
        let (_, refused) = ask(&mut conversation, "long").await;
        let message = refused.expect_err("too long by itself");
        assert!(message.ends_with("; shorten the message, or the system prompt"), "{message}");
        assert_eq!(conversation.messages, before);
    }

    #[tokio::test]
    async fn a_key_is_sent_and_a_missing_one_is_what_the_refusal_is_about() {
        let models = |headers: ::http::HeaderMap| async move {
            use axum::response::IntoResponse as _;
            if headers.get(AUTHORIZATION).is_some_and(|value| value == "Bearer right") {
                return Json(json!({ "data": [{ "id": "small" }] })).into_response();
            }
            (StatusCode::UNAUTHORIZED, Json(json!({ "error": { "message": "no key" } }))).into_response()
        };
        let app = axum::Router::new().route("/v1/models", get(models));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        tokio::spawn(async move { axum::serve(listener, app).await });
        let options = Options { url: None, system: None, max_tokens: None };
        let opened = Conversation::open(&url, Some(Secret::new("right")), None, &options).await;
        assert_eq!(opened.expect("the right key").model(), "small");
        let Err(Trouble::Failed(message)) = Conversation::open(&url, None, None, &options).await.map(|_| ()) else {
            panic!("no key")
        };
        assert!(message.contains("no key; give its key with --api-key-file FILE"), "{message}");
        assert!(!message.contains("start a server"), "{message}");
    }

    #[tokio::test]
    async fn nobody_there_is_said_with_what_to_do() {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
        let url = format!("http://{}", free.local_addr().expect("bound"));
        drop(free);
        let options = Options { url: None, system: None, max_tokens: None };
        let Err(Trouble::Failed(message)) = Conversation::open(&url, None, None, &options).await.map(|_| ()) else {
            panic!("nobody")
        };
        assert!(message.contains("Connection refused") && message.contains("pelton serve"), "{message}");
    }
}
