//! A conversation over `/v1/chat/completions`: the messages so far, one streamed answer at a time.
//!
//! Knows the OpenAI API as any client does, so it talks to other servers too. Never here: the terminal.

use std::io::Write;
use std::time::Instant;

use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ::http::{HeaderValue, Request, Response};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use serde_json::{Value, json};

use super::Options;
use crate::client::{Client, read_body};
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

/// How an answer ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Answered {
    /// By itself; what it took, in words.
    Whole(String),
    /// By the user.
    Stopped,
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
            None => conversation.first_model().await.map_err(|message| {
                Trouble::Failed(format!(
                    "{message}; start a server with `pelton serve`, or leave --url out for a chat without one"
                ))
            })?,
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
    /// conversation as far as it came; of a failed one nothing stays.
    pub(super) async fn ask(
        &mut self,
        prompt: &str,
        out: &mut impl Write,
        stop: impl Future<Output = ()>,
    ) -> Result<Answered, String> {
        self.messages.push(json!({ "role": "user", "content": prompt }));
        let mut answer = Answer::default();
        let ended = tokio::select! {
            ended = self.stream(&mut answer, out) => ended.map(|()| Answered::Whole(answer.usage())),
            // Dropping the stream closes its connection, by which the server knows.
            () = stop => Ok(Answered::Stopped),
        };
        match &ended {
            Ok(_) => self.messages.push(json!({ "role": "assistant", "content": answer.text })),
            Err(_) => _ = self.messages.pop(),
        }
        ended
    }

    async fn stream(&self, answer: &mut Answer, out: &mut impl Write) -> Result<(), String> {
        let mut body = json!({
            "model": self.model,
            "messages": self.messages,
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
            let Some(frame) = response.frame().await else { return Err("the server ended the answer early".into()) };
            let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let mut texts = Vec::new();
            events.push(&bytes, |data| texts.push(answer.take(data)));
            for text in texts {
                out.write_all(text?.as_bytes()).map_err(|error| error.to_string())?;
            }
            out.flush().map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    async fn first_model(&self) -> Result<String, String> {
        let response = self.send(self.request("GET", "/v1/models", Bytes::new())?).await?;
        let body = read_body(response.into_body(), BODY_BYTES_MAX).await.map_err(|error| error.to_string())?;
        let models: Value = serde_json::from_slice(&body).unwrap_or_default();
        models["data"][0]["id"].as_str().map(str::to_owned).ok_or_else(|| format!("{} serves no model", self.url))
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
    async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, String> {
        let response = self.client.send(request).await.map_err(|error| format!("no answer from {error}"))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let body = read_body(response.into_body(), BODY_BYTES_MAX).await.map_err(|error| error.to_string())?;
        let body: Value = serde_json::from_slice(&body).unwrap_or_default();
        let message = body["error"]["message"].as_str().unwrap_or("no reason was given");
        Err(format!("the server refuses (status {}): {message}", status.as_u16()))
    }
}

/// What has come of an answer.
struct Answer {
    text: String,
    tokens: u64,
    is_done: bool,
    asked: Instant,
    first: Option<Instant>,
}

impl Default for Answer {
    fn default() -> Self {
        Self { text: String::new(), tokens: 0, is_done: false, asked: Instant::now(), first: None }
    }
}

impl Answer {
    /// The text that one event adds.
    fn take(&mut self, data: &str) -> Result<String, String> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(String::new());
        }
        let event: Value = serde_json::from_str(data).map_err(|error| format!("the server sent no JSON: {error}"))?;
        if let Some(message) = event["error"]["message"].as_str() {
            return Err(message.to_owned());
        }
        if let Some(tokens) = event["usage"]["completion_tokens"].as_u64() {
            self.tokens = tokens;
        }
        let text = event["choices"][0]["delta"]["content"].as_str().unwrap_or_default();
        if !text.is_empty() {
            self.first.get_or_insert_with(Instant::now);
        }
        self.text.push_str(text);
        Ok(text.to_owned())
    }

    fn usage(&self) -> String {
        let first = self.first.unwrap_or_else(Instant::now);
        let after = first.duration_since(self.asked).as_secs_f64();
        let rate = self.tokens.saturating_sub(1) as f64 / first.elapsed().as_secs_f64().max(1e-6);
        format!("{} tokens, the first after {after:.2} s, then {rate:.0} a second", self.tokens)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use axum::Json;
    use axum::routing::{get, post};

    use super::*;

    type Bodies = Arc<Mutex<Vec<Value>>>;

    /// A server that answers "Hi " and then the number of messages; to "wait" it begins and never ends, to "no" it refuses.
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
                match messages.last().expect("a message")["content"].as_str().expect("text") {
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
            assert!(matches!(ended, Ok(Answered::Whole(usage)) if usage.starts_with("2 tokens")));
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
        assert_eq!(conversation.ask("wait", &mut Out(Some(begun)), stop).await, Ok(Answered::Stopped));
        assert_eq!(conversation.messages.last(), Some(&json!({ "role": "assistant", "content": "Hi " })));
        let (_, refused) = ask(&mut conversation, "no").await;
        assert_eq!(refused, Err("the server refuses (status 400): too long".into()));
        assert_eq!(conversation.messages.len(), 3);
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
