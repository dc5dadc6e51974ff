//! Messages of `pelton.v1` to requests, and deltas to messages.

use std::{sync::Arc, time::Duration};

use pelton_engine::{TokenId, TokenLogprobs, TokenScore};
use pelton_rpc::v1::{self, generate_request::Input as GenerateInput, tokenize_request::Input as TokenizeInput};
use pelton_text::Tokenizer;
use tonic::{Status, metadata::AsciiMetadataValue};

use super::{chat, sampling};
use crate::{
    api::{PLAIN_ID, cut_of, is_plain_id},
    error::{ApiError, shortened},
    generate::{
        Apart, CallPiece, Delta, Drawn, Ending, Finish, OneText, PreparedPrompt, Prompt, Request, SUFFIX, Said,
        StopCause, ToolUse, Writer,
    },
};

pub(super) fn request(message: v1::GenerateRequest) -> Result<Request, ApiError> {
    let add_special = message.add_special_tokens;
    let (prompt, tools) = match message.input {
        Some(GenerateInput::Text(text)) => {
            (Prompt::Text { text, add_special: add_special.unwrap_or(ADDED_TO_TEXTS) }, None)
        }
        Some(GenerateInput::TokenIds(ids)) => (Prompt::Ids(ids.ids), None),
        Some(GenerateInput::Chat(chat)) => chat_prompt(chat, add_special)?,
        None => {
            return Err(ApiError::Missing {
                param: "input".to_owned(),
                allowed: "one of `text`, `token_ids` and `chat`",
            });
        }
    };
    if message.echo && prompt.is_chat() {
        return Err(ApiError::not_served("echo", true, "false for a chat", "repeating a chat"));
    }
    let prompt = filled(prompt, message.suffix, message.echo)?;
    let side = Some(message.truncation_side).filter(|side| !side.is_empty());
    let cut = cut_of(message.truncate_prompt_tokens.map(i64::from), side.as_deref(), str::to_owned)?;
    let mut options = message.sampling.map(sampling::options).transpose()?.unwrap_or_default();
    options.n = message.n.unwrap_or(1);
    options.priority = message.priority;
    options.user = Some(message.user);
    options.keep = message.keep_prompt_s.map(|seconds| Duration::from_secs(seconds.into()));
    options.cache_salt = Some(message.cache_salt).filter(|salt| !salt.is_empty());
    Ok(Request { echo: message.echo, tools, cut, ..Request::new(vec![prompt], options) })
}

/// A prompt behind which a text comes, unless that is empty.
fn filled(prompt: Prompt, suffix: String, echo: bool) -> Result<Prompt, ApiError> {
    let conflict = |reason: &str| Err(ApiError::Conflict { param: SUFFIX.to_owned(), reason: reason.to_owned() });
    match prompt {
        prompt if suffix.is_empty() => Ok(prompt),
        Prompt::Text { .. } if echo => conflict("cannot go together with `echo`: true"),
        Prompt::Text { text, add_special } => Ok(Prompt::Between { text, suffix, add_special }),
        _ => conflict("is only allowed together with `text`"),
    }
}

/// What a request calls itself, if it does.
pub(super) fn id(message: &v1::GenerateRequest) -> Result<Option<AsciiMetadataValue>, ApiError> {
    let given = message.request_id.as_str();
    if given.is_empty() {
        return Ok(None);
    }
    let is_plain = is_plain_id(given);
    let id = AsciiMetadataValue::try_from(given).ok().filter(|_| is_plain);
    let wrong = || ApiError::invalid("request_id", format_args!("\"{}\"", shortened(given)), PLAIN_ID);
    id.ok_or_else(wrong).map(Some)
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
        Some(TokenizeInput::Text(text)) => {
            Ok(Prompt::Text { text, add_special: add_special.unwrap_or(ADDED_TO_TEXTS) })
        }
        Some(TokenizeInput::Chat(chat)) => Ok(chat_prompt(chat, add_special)?.0),
        None => Err(ApiError::Missing { param: "input".to_owned(), allowed: "one of `text` and `chat`" }),
    }
}

/// An error of the shared checks by this contract's names; `prompt` is what it calls the prompt.
pub(super) fn by_our_names(error: ApiError, prompt: &'static str) -> ApiError {
    error.renamed(|param| {
        let ours = match param {
            "prompt" | "messages" => prompt,
            "tools" => "chat.tools_json",
            "chat_template_kwargs" => "chat.chat_template_kwargs_json",
            "chat_template" => "chat.chat_template",
            "continue_final_message" => "chat.continue_final_message",
            "documents" => "chat.documents_json",
            "reasoning_effort" => "chat.reasoning_effort",
            "verbosity" => "chat.verbosity",
            "use_beam_search" => "sampling.beam_search",
            "length_penalty" => "sampling.beam_search.length_penalty",
            "prompt_cache_retention" => "keep_prompt_s",
            param => {
                let field = param.split(['.', '[']).next().unwrap_or(param);
                return sampling::NAMES.contains(&field).then(|| format!("sampling.{param}"));
            }
        };
        Some(ours.to_owned())
    })
}

/// Whether special tokens are added to a text, unless it is said; templates write a chat's.
const ADDED_TO_TEXTS: bool = true;

fn chat_prompt(chat: v1::Chat, add_special: Option<bool>) -> Result<(Prompt, Option<ToolUse>), ApiError> {
    let (input, reading) = chat::read(chat)?;
    Ok((Prompt::Chat { input: Box::new(input), add_special: add_special.unwrap_or(!ADDED_TO_TEXTS) }, reading))
}

/// Writes deltas as messages; each piece of the stream is all messages of one step.
pub(super) struct MessageWriter {
    tokenizer: Tokenizer,
    /// What each choice begins with, until it has begun.
    echoes: Vec<Option<String>>,
    texts: Vec<OneText>,
    prompt: Arc<[TokenId]>,
    /// Scores of the prompt that each choice has told.
    scored: Vec<usize>,
}

/// Log-probabilities of a prompt in one message at most, some 40 bytes each: clients take messages of 4 MB.
const SCORES_PER_MESSAGE: usize = 16_384;

type Messages = Result<Vec<v1::GenerateResponse>, Status>;

impl Writer for MessageWriter {
    type Given = Vec<Delta>;
    type Item = Messages;

    fn write(&mut self, deltas: Vec<Delta>) -> Option<Messages> {
        Some(Ok(deltas.into_iter().flat_map(|delta| self.messages(delta)).collect()))
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
    /// For `choices` answers to one prompt, which has a text if it is to be echoed.
    pub(super) fn new(tokenizer: Tokenizer, prompt: &PreparedPrompt, choices: usize) -> Self {
        let echoes = vec![prompt.text.clone(); choices];
        let texts = vec![OneText::default(); choices];
        Self { tokenizer, echoes, texts, prompt: Arc::clone(&prompt.ids), scored: vec![0; choices] }
    }

    /// One message, or several where the prompt was scored: scores come first.
    fn messages(&mut self, mut delta: Delta) -> Vec<v1::GenerateResponse> {
        let scores = std::mem::take(&mut delta.scores);
        let each = SCORES_PER_MESSAGE / (1 + scores.first().map_or(0, |score| score.logprobs.top.len()));
        let choice = delta.choice;
        let mut parts = scores.chunks(each.max(1)).map(<[TokenScore]>::to_vec).collect::<Vec<_>>();
        delta.scores = parts.pop().unwrap_or_default();
        let before = parts.into_iter().map(|scores| Delta { choice, scores, ..Delta::default() });
        before.chain([delta]).map(|delta| self.message(delta)).collect()
    }

    fn message(&mut self, delta: Delta) -> v1::GenerateResponse {
        let echo = self.echoes[delta.choice].take();
        let scored = self.scored[delta.choice];
        self.scored[delta.choice] += delta.scores.len();
        let one = &mut self.texts[delta.choice];
        let said = Said::of(delta.said.into_parts().map(|part| one.join(part)));
        let Apart { reasoning, text, calls } = said.apart();
        v1::GenerateResponse {
            choice: u32::try_from(delta.choice).expect("choices are bounded"),
            text: echo.unwrap_or_default() + &text,
            reasoning,
            tool_calls: calls.into_iter().map(call).collect(),
            token_ids: delta.tokens.iter().map(|drawn| drawn.token).collect(),
            logprobs: delta.tokens.iter().filter_map(|drawn| self.logprob(drawn)).collect(),
            finish: delta.finish.map(finish),
            prompt_logprobs: (self.prompt.iter().skip(1 + scored).zip(&delta.scores))
                .map(|at| self.prompt_logprob(at))
                .collect(),
        }
    }

    fn prompt_logprob(&self, (&token, score): (&TokenId, &TokenScore)) -> v1::PromptLogprob {
        v1::PromptLogprob { rank: score.rank, logprob: Some(self.entry(token, &score.logprobs)) }
    }

    fn entry(&self, token: TokenId, logprobs: &TokenLogprobs) -> v1::Logprob {
        let entry = |token_id, logprob, top| {
            let token = self.tokenizer.token_bytes(token_id).unwrap_or_default().to_vec();
            v1::Logprob { token_id, token, logprob, top }
        };
        let top = logprobs.top.iter().map(|&(token, logprob)| entry(token, logprob, Vec::new())).collect();
        entry(token, logprobs.chosen, top)
    }

    fn logprob(&self, drawn: &Drawn) -> Option<v1::Logprob> {
        Some(self.entry(drawn.token, drawn.logprobs.as_deref()?))
    }
}

fn call(piece: CallPiece) -> v1::ToolCallDelta {
    let at = |index: usize| u32::try_from(index).expect("an answer has fewer calls than tokens");
    match piece {
        CallPiece::Start { index, id, name } => {
            v1::ToolCallDelta { index: at(index), id, name, ..v1::ToolCallDelta::default() }
        }
        CallPiece::Arguments { index, delta } => {
            v1::ToolCallDelta { index: at(index), arguments: delta, ..v1::ToolCallDelta::default() }
        }
    }
}

fn finish(finish: Finish) -> v1::Finish {
    let mut message = v1::Finish {
        reason: "stop".to_owned(),
        prompt_tokens: finish.usage.prompt,
        completion_tokens: finish.usage.completion,
        cached_tokens: finish.usage.cached,
        reasoning_tokens: finish.reasoning_tokens,
        ..v1::Finish::default()
    };
    if finish.has_calls {
        message.reason = "tool_calls".to_owned();
    }
    match finish.ending {
        Ending::Length => message.reason = "length".to_owned(),
        Ending::Repetition => message.reason = "repetition".to_owned(),
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
    use crate::generate::{Cut, Part, Said, Side, testing::tokenizer};

    #[test]
    fn a_request_without_input_names_what_is_missing() {
        let error = request(v1::GenerateRequest::default()).expect_err("nothing was asked");
        assert_eq!(Status::from(error).code(), tonic::Code::InvalidArgument);
    }

    fn asked(input: GenerateInput) -> v1::GenerateRequest {
        v1::GenerateRequest { input: Some(input), ..v1::GenerateRequest::default() }
    }

    #[test]
    fn every_field_of_a_request_arrives() {
        let sampling = v1::Sampling {
            skip_special_tokens: Some(false),
            spaces_between_special_tokens: Some(false),
            ..v1::Sampling::default()
        };
        let request = request(v1::GenerateRequest {
            cache_salt: "mine".into(),
            echo: true,
            add_special_tokens: Some(false),
            sampling: Some(sampling),
            ..asked(GenerateInput::Text("a".into()))
        })
        .expect("valid");
        assert_eq!(request.options.cache_salt.as_deref(), Some("mine"));
        assert!(request.echo && !request.options.skip_special && request.options.joins_special);
        assert!(matches!(&request.prompts[..], [Prompt::Text { add_special: false, .. }]));
        let plain = self::request(asked(GenerateInput::Text("a".into()))).expect("valid");
        assert_eq!(plain.options.cache_salt, None);
        assert!(!plain.echo && plain.options.skip_special && !plain.options.joins_special);
        assert!(matches!(&plain.prompts[..], [Prompt::Text { add_special: true, .. }]));
    }

    #[test]
    fn a_request_may_name_itself_plainly() {
        let of = |given: &str| {
            let id = id(&v1::GenerateRequest { request_id: given.into(), ..v1::GenerateRequest::default() });
            id.map(|id| id.map(|id| id.to_str().expect("ASCII").to_owned()))
        };
        assert_eq!(of(""), Ok(None));
        assert_eq!(of("mine-1"), Ok(Some("mine-1".to_owned())));
        for wrong in ["a b", "é", "\n", &"x".repeat(129)] {
            assert!(matches!(of(wrong), Err(ApiError::Invalid { param, .. }) if param == "request_id"));
        }
    }

    #[test]
    fn how_a_prompt_is_cut_and_what_comes_behind_it_arrive_or_are_refused_by_name() {
        let text = || asked(GenerateInput::Text("a".into()));
        let cut = |tokens, side: &str| {
            let asked = v1::GenerateRequest { truncate_prompt_tokens: tokens, truncation_side: side.into(), ..text() };
            request(asked).map(|request| request.cut)
        };
        assert_eq!(cut(None, ""), Ok(None));
        assert_eq!(cut(Some(-1), ""), Ok(Some(Cut { tokens: None, keeps: Side::End })));
        assert_eq!(cut(Some(7), "right"), Ok(Some(Cut { tokens: Some(7), keeps: Side::Beginning })));
        let param = |error| match error {
            ApiError::Invalid { param, .. } | ApiError::Conflict { param, .. } => param,
            other => panic!("{other}"),
        };
        assert_eq!(cut(Some(0), "").map_err(param), Err("truncate_prompt_tokens".to_owned()));
        assert_eq!(cut(Some(7), "both").map_err(param), Err("truncation_side".to_owned()));

        let behind = |input, echo| request(v1::GenerateRequest { suffix: "b".into(), echo, ..asked(input) });
        let filled = behind(GenerateInput::Text("a".into()), false).expect("valid");
        assert!(matches!(&filled.prompts[..], [Prompt::Between { text, suffix, .. }] if text == "a" && suffix == "b"));
        for refused in [
            behind(GenerateInput::Text("a".into()), true),
            behind(GenerateInput::TokenIds(v1::TokenIds { ids: vec![1] }), false),
        ] {
            assert_eq!(param(refused.expect_err("refused")), "suffix");
        }
    }

    #[test]
    fn a_chat_cannot_be_echoed() {
        let message = v1::Message { role: "user".into(), content: "hi".into(), ..v1::Message::default() };
        let chat = v1::Chat { messages: vec![message], ..v1::Chat::default() };
        let echoed = v1::GenerateRequest { echo: true, ..asked(GenerateInput::Chat(chat)) };
        let status = Status::from(request(echoed).expect_err("refused"));
        assert!(status.message().contains("`echo`"), "{}", status.message());
    }

    #[test]
    fn errors_of_the_shared_checks_have_this_contracts_names() {
        let named =
            |param: &str| by_our_names(ApiError::invalid(param.to_owned(), "wrong", "right"), "text").to_string();
        assert!(named("prompt").starts_with("`text`"));
        assert!(named("tools").starts_with("`chat.tools_json`"));
        assert!(named("reasoning_effort").starts_with("`chat.reasoning_effort`"));
        assert!(named("max_tokens").starts_with("`sampling.max_tokens`"));
        assert!(named("priority").starts_with("`priority`"));
    }

    #[test]
    fn scores_of_a_long_prompt_come_in_several_messages() {
        let ids: Vec<TokenId> = (0..20_000).map(|at| at % 250).collect();
        let prompt = PreparedPrompt { ids: ids.clone().into(), embeds: None, text: None, chat: None };
        let top = vec![(1, -0.5); 4];
        let score = TokenScore { rank: 2, logprobs: TokenLogprobs { chosen: -1.0, top } };
        let delta = Delta { scores: vec![score; ids.len() - 1], said: Said::text("a"), ..Delta::default() };
        let told = MessageWriter::new(tokenizer(), &prompt, 1).write(vec![delta]).expect("some").expect("messages");
        assert_eq!(told.len(), 7, "of 3,276 tokens with five entries each");
        let scored = told.iter().flat_map(|message| &message.prompt_logprobs);
        let scored: Vec<TokenId> = scored.filter_map(|each| Some(each.logprob.as_ref()?.token_id)).collect();
        assert_eq!(scored, ids[1..]);
        let texts: Vec<&str> = told.iter().map(|message| message.text.as_str()).collect();
        assert_eq!(texts.concat(), "a");
        assert_eq!(texts.last(), Some(&"a"), "the text comes behind the prompt");
    }

    #[test]
    fn an_echo_comes_once_per_choice_and_calls_beside_the_text() {
        let prompt = PreparedPrompt { ids: [1].into(), embeds: None, text: Some("one ".into()), chat: None };
        let mut writer = MessageWriter::new(tokenizer(), &prompt, 2);
        let text = |choice, text: &str| Delta { choice, said: Said::text(text), ..Delta::default() };
        let written = writer.write(vec![text(0, "a"), text(1, "b"), text(0, "c")]).expect("some").expect("messages");
        assert_eq!(written.iter().map(|message| message.text.as_str()).collect::<Vec<_>>(), ["one a", "one b", "c"]);
        let written = writer.message(Delta { said: Said::of([Part::Thought("Hm.".into())]), ..Delta::default() });
        assert_eq!((written.reasoning.as_str(), written.text.as_str()), ("Hm.", ""));
        let start = CallPiece::Start { index: 0, id: "1".into(), name: "f".into() };
        let calls = [start, CallPiece::Arguments { index: 0, delta: "{}".into() }].map(Part::Call);
        let written = writer.message(Delta { said: Said::of(calls), ..Delta::default() });
        let shown: Vec<_> =
            written.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(shown, [("f", ""), ("", "{}")]);
        let written = writer.write(vec![text(0, "d"), text(1, "e")]).expect("some").expect("messages");
        let texts = written.iter().map(|message| message.text.as_str());
        assert_eq!(texts.collect::<Vec<_>>(), ["\nd", "e"], "what stands between the texts of an answer parts them");
    }

    #[test]
    fn what_ended_an_answer_is_told() {
        let usage = Usage { prompt: 3, cached: 2, completion: 5 };
        let ended =
            |ending| finish(Finish { ending, has_calls: false, usage, reasoning_tokens: None, explanation: None });
        assert_eq!(ended(Ending::Length).reason, "length");
        let by_text = ended(Ending::Stop(StopCause::Text("END".into())));
        assert_eq!((by_text.reason.as_str(), by_text.stop_string.as_str()), ("stop", "END"));
        assert_eq!(ended(Ending::Stop(StopCause::Token(7))).stop_token_id, Some(7));
        assert_eq!(ended(Ending::Stop(StopCause::EndOfText)).stop_token_id, None);
        assert_eq!(ended(Ending::Length).cached_tokens, 2);
        assert_eq!(ended(Ending::Length).reasoning_tokens, None);
        let called = finish(Finish {
            ending: Ending::Stop(StopCause::EndOfText),
            has_calls: true,
            usage,
            reasoning_tokens: None,
            explanation: None,
        });
        assert_eq!(called.reason, "tool_calls");
    }
}
