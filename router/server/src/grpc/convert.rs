//! Messages of `pelton.v1` to requests, and deltas to messages.

use pelton_engine::TokenId;
use pelton_rpc::v1::{self, generate_request::Input as GenerateInput, tokenize_request::Input as TokenizeInput};
use pelton_text::{ChatInput, Tokenizer};
use serde_json::{Map, Value, json};
use tonic::Status;

use crate::{
    api::tools_of_json,
    error::ApiError,
    generate::{Delta, Drawn, Ending, Finish, Options, Prompt, Request, StopCause, ToolReading, Writer, now},
};

pub(super) fn request(message: v1::GenerateRequest) -> Result<Request, ApiError> {
    let (prompt, tools) = match message.input {
        Some(GenerateInput::Text(text)) => (Prompt::Text { text, add_special: true }, None),
        Some(GenerateInput::TokenIds(ids)) => (Prompt::Ids(ids.ids), None),
        Some(GenerateInput::Chat(chat)) => self::chat(chat)?,
        None => {
            return Err(ApiError::Missing {
                param: "input".to_owned(),
                allowed: "one of `text`, `token_ids` and `chat`",
            });
        }
    };
    let mut options = message.sampling.map(self::options).unwrap_or_default();
    options.n = message.n.unwrap_or(1);
    Ok(Request { prompts: vec![prompt], options, echo: false, tools })
}

/// What this contract calls the prompt of a request.
pub(super) fn name_of_prompt(message: &v1::GenerateRequest) -> &'static str {
    match &message.input {
        Some(GenerateInput::TokenIds(_)) => "token_ids",
        Some(GenerateInput::Chat(_)) => "chat.messages",
        Some(GenerateInput::Text(_)) | None => "text",
    }
}

pub(super) fn tokenize_prompt(message: v1::TokenizeRequest) -> Result<Prompt, ApiError> {
    let add_special = message.add_special_tokens;
    match message.input {
        Some(TokenizeInput::Text(text)) => Ok(Prompt::Text { text, add_special: add_special.unwrap_or(true) }),
        Some(TokenizeInput::Chat(chat)) => {
            let (mut prompt, _) = self::chat(chat)?;
            if let Prompt::Chat { add_special: of_prompt, .. } = &mut prompt {
                *of_prompt = add_special.unwrap_or(false);
            }
            Ok(prompt)
        }
        None => Err(ApiError::Missing { param: "input".to_owned(), allowed: "one of `text` and `chat`" }),
    }
}

/// The contract has no field for calls yet: they stay in the text, where the caller can read them.
fn chat(chat: v1::Chat) -> Result<(Prompt, Option<ToolReading>), ApiError> {
    if chat.messages.is_empty() {
        return Err(ApiError::Missing { param: "chat.messages".to_owned(), allowed: "at least one message" });
    }
    let message = |v1::Message { role, content }| json!({ "role": role, "content": content });
    let tools = match chat.tools_json.as_str() {
        "" => None,
        json => Some(tools_of_json("chat.tools_json", json)?),
    };
    let input = ChatInput {
        messages: chat.messages.into_iter().map(message).collect::<Vec<Value>>(),
        tools,
        documents: None,
        template: None,
        add_generation_prompt: true,
        continue_final_message: false,
        kwargs: Map::new(),
        now: now(),
    };
    Ok((Prompt::Chat { input: Box::new(input), add_special: false }, None))
}

fn options(sampling: v1::Sampling) -> Options {
    let mut logit_bias: Vec<(TokenId, f32)> = sampling.logit_bias.into_iter().collect();
    logit_bias.sort_unstable_by_key(|&(token, _)| token);
    Options {
        max_tokens: sampling.max_tokens,
        min_tokens: sampling.min_tokens.unwrap_or(0),
        temperature: sampling.temperature,
        top_k: sampling.top_k.map(i64::from),
        top_p: sampling.top_p,
        min_p: sampling.min_p,
        repetition_penalty: sampling.repetition_penalty,
        presence_penalty: sampling.presence_penalty,
        frequency_penalty: sampling.frequency_penalty,
        logit_bias,
        seed: sampling.seed,
        stop: sampling.stop,
        stop_token_ids: sampling.stop_token_ids,
        ignore_eos: sampling.ignore_eos,
        include_stop: sampling.include_stop_str_in_output,
        logprobs: sampling.logprobs,
        ..Options::default()
    }
}

/// Writes deltas as messages; each piece of the stream is all messages of one step.
pub(super) struct MessageWriter {
    pub(super) tokenizer: Tokenizer,
}

type Messages = Result<Vec<v1::GenerateResponse>, Status>;

impl Writer for MessageWriter {
    type Item = Messages;

    fn deltas(&mut self, deltas: Vec<Delta>) -> Option<Messages> {
        Some(Ok(deltas.into_iter().map(|delta| self.message(delta)).collect()))
    }

    fn end(&mut self, last: Option<Messages>) -> Messages {
        last.unwrap_or_else(|| Ok(Vec::new()))
    }

    fn error(&mut self, error: ApiError) -> Messages {
        Err(error.into())
    }

    /// HTTP/2 has its own pings.
    fn keep_alive(&mut self) -> Option<Messages> {
        None
    }
}

impl MessageWriter {
    fn message(&self, delta: Delta) -> v1::GenerateResponse {
        v1::GenerateResponse {
            choice: u32::try_from(delta.choice).expect("choices are bounded"),
            text: delta.text,
            token_ids: delta.tokens.iter().map(|drawn| drawn.token).collect(),
            logprobs: delta.tokens.iter().filter_map(|drawn| self.logprob(drawn)).collect(),
            finish: delta.finish.map(finish),
        }
    }

    fn logprob(&self, drawn: &Drawn) -> Option<v1::Logprob> {
        let entry = |token_id, logprob, top| {
            let token = self.tokenizer.token_bytes(token_id).unwrap_or_default().to_vec();
            v1::Logprob { token_id, token, logprob, top }
        };
        let logprobs = drawn.logprobs.as_deref()?;
        let top = logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob, Vec::new())).collect();
        Some(entry(drawn.token, logprobs.chosen, top))
    }
}

fn finish(finish: Finish) -> v1::Finish {
    let mut message = v1::Finish {
        reason: "stop".to_owned(),
        prompt_tokens: finish.usage.prompt,
        completion_tokens: finish.usage.completion,
        cached_tokens: finish.usage.cached,
        ..v1::Finish::default()
    };
    match finish.ending {
        Ending::Length => message.reason = "length".to_owned(),
        Ending::Stop(StopCause::EndOfText) => {}
        Ending::Stop(StopCause::Token(token)) => message.stop_token_id = Some(token),
        Ending::Stop(StopCause::Text(text)) => message.stop_string = text,
    }
    message
}

#[cfg(test)]
mod tests {
    use pelton_engine::Usage;

    use super::*;

    #[test]
    fn a_request_without_input_names_what_is_missing() {
        let error = request(v1::GenerateRequest::default()).expect_err("nothing was asked");
        assert_eq!(Status::from(error).code(), tonic::Code::InvalidArgument);
    }

    #[test]
    fn tools_that_are_no_json_are_named() {
        let messages = vec![v1::Message { role: "user".into(), content: "hi".into() }];
        let chat = v1::Chat { messages, tools_json: "{".into() };
        let input = Some(GenerateInput::Chat(chat));
        let status = Status::from(request(v1::GenerateRequest { input, ..Default::default() }).expect_err("bad tools"));
        assert!(status.message().contains("chat.tools_json"), "{}", status.message());
    }

    #[test]
    fn what_ended_an_answer_is_told() {
        let usage = Usage { prompt: 3, cached: 2, completion: 5 };
        let ended = |ending| finish(Finish { ending, has_calls: false, usage, explanation: None });
        assert_eq!(ended(Ending::Length).reason, "length");
        let by_text = ended(Ending::Stop(StopCause::Text("END".into())));
        assert_eq!((by_text.reason.as_str(), by_text.stop_string.as_str()), ("stop", "END"));
        assert_eq!(ended(Ending::Stop(StopCause::Token(7))).stop_token_id, Some(7));
        assert_eq!(ended(Ending::Stop(StopCause::EndOfText)).stop_token_id, None);
        assert_eq!(ended(Ending::Length).cached_tokens, 2);
    }
}
