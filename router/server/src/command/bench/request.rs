//! One request: sent, streamed, timed.

use std::time::{Duration, Instant};

use ::http::header::{AUTHORIZATION, CONTENT_TYPE};
use ::http::{HeaderValue, Request};
use bytes::Bytes;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};

use super::Options;
use crate::client::{Client, read_body};
use crate::sse::EventReader;

/// An error's body, or a list of models.
const BODY_BYTES_MAX: usize = 1 << 20;

/// Where requests go.
pub(super) struct Target {
    client: Client,
    url: String,
    authorization: Option<HeaderValue>,
    model: String,
}

/// What one request saw.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Sample {
    /// From sending to the first token.
    pub(super) first: Duration,
    /// Between events with tokens.
    pub(super) gaps: Vec<Duration>,
    /// From sending to the end of the stream.
    pub(super) whole: Duration,
    /// As the server counted them.
    pub(super) prompt_tokens: u64,
    /// As the server counted them.
    pub(super) output_tokens: u64,
}

impl Target {
    /// Asks the server for its model if none is given; fails if nobody is there.
    pub(super) async fn find(options: &Options) -> Result<Self, String> {
        let key = options.api_key.as_ref().map(|key| HeaderValue::try_from(format!("Bearer {}", key.reveal())));
        let mut target = Self {
            client: Client::new(!options.fresh),
            url: options.url.0.clone(),
            authorization: key.transpose().map_err(|error| error.to_string())?,
            model: String::new(),
        };
        target.model = match &options.model {
            Some(model) => model.clone(),
            None => target.first_model().await?,
        };
        Ok(target)
    }

    pub(super) fn model(&self) -> &str {
        &self.model
    }

    async fn first_model(&self) -> Result<String, String> {
        let request = self.request("GET", "/v1/models", Bytes::new())?;
        let response = self
            .client
            .send(request)
            .await
            .map_err(|error| format!("no answer from {error}; set --url to a running server"))?;
        let status = response.status();
        let body = read_body(response.into_body(), BODY_BYTES_MAX).await.map_err(|error| error.to_string())?;
        if !status.is_success() {
            let said = String::from_utf8_lossy(&body);
            return Err(format!("{} tells no models: {status}: {}; set --model, or --api-key", self.url, said.trim()));
        }
        let models: Value = serde_json::from_slice(&body).unwrap_or_default();
        models["data"][0]["id"]
            .as_str()
            .map(str::to_owned)
            .ok_or_else(|| format!("{} lists no model; set --model", self.url))
    }

    fn request(&self, method: &str, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, String> {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.url))
            .header(CONTENT_TYPE, "application/json")
            .body(Full::new(body))
            .map_err(|error| error.to_string())?;
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        Ok(request)
    }

    /// Sends a prompt and reads the answer to its end. Exactly `output` tokens are asked for.
    pub(super) async fn complete(&self, prompt: &[u32], output: u32) -> Result<Sample, String> {
        let body = json!({
            "model": self.model,
            "prompt": prompt,
            "max_tokens": output,
            "temperature": 0,
            "ignore_eos": true,
            "stream": true,
            "stream_options": { "include_usage": true },
        });
        let request = self.request("POST", "/v1/completions", body.to_string().into())?;
        let mut clock = Clock::new();
        let response = self.client.send(request).await.map_err(|error| error.to_string())?;
        let status = response.status();
        if !status.is_success() {
            let body = read_body(response.into_body(), BODY_BYTES_MAX).await.unwrap_or_default();
            let text: String = String::from_utf8_lossy(&body).chars().take(300).collect();
            return Err(format!("status {}: {text}", status.as_u16()));
        }
        let mut body = response.into_body();
        let mut events = EventReader::default();
        while let Some(frame) = body.frame().await {
            let frame = frame.map_err(|error| format!("the answer broke off: {error}"))?;
            let Ok(bytes) = frame.into_data() else { continue };
            let now = Instant::now();
            let mut result = Ok(());
            events.push(&bytes, |data| {
                if let Err(error) = clock.event(data, now) {
                    result = Err(error);
                }
            });
            result?;
        }
        clock.sample()
    }
}

/// Watches one stream.
struct Clock {
    sent: Instant,
    first: Option<Instant>,
    latest: Instant,
    gaps: Vec<Duration>,
    usage: Option<(u64, u64)>,
    is_done: bool,
}

impl Clock {
    fn new() -> Self {
        let now = Instant::now();
        Self { sent: now, first: None, latest: now, gaps: Vec::new(), usage: None, is_done: false }
    }

    fn event(&mut self, data: &str, now: Instant) -> Result<(), String> {
        if data == "[DONE]" {
            self.is_done = true;
            return Ok(());
        }
        let event: Value = serde_json::from_str(data).map_err(|error| format!("the server sent no JSON: {error}"))?;
        if !event["error"].is_null() {
            return Err(event["error"].to_string());
        }
        if let (Some(prompt), Some(output)) =
            (event["usage"]["prompt_tokens"].as_u64(), event["usage"]["completion_tokens"].as_u64())
        {
            self.usage = Some((prompt, output));
        }
        if event["choices"].as_array().is_some_and(|choices| !choices.is_empty()) {
            match self.first {
                None => self.first = Some(now),
                Some(_) => self.gaps.push(now - self.latest),
            }
            self.latest = now;
        }
        Ok(())
    }

    /// A stream that ended early, or without usage, is no measurement.
    fn sample(self) -> Result<Sample, String> {
        let first = self.first.ok_or("no token came")?;
        if !self.is_done {
            return Err("the stream ended without [DONE]".into());
        }
        let (prompt_tokens, output_tokens) = self.usage.ok_or("the server told no usage")?;
        Ok(Sample {
            first: first - self.sent,
            gaps: self.gaps,
            whole: self.sent.elapsed(),
            prompt_tokens,
            output_tokens,
        })
    }
}
