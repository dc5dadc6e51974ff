//! Text on both sides of the tokens: templates and tokenisation before, detokenisation, stop strings, reasoning and tool calls after.
//!
//! In: a checkpoint's text files, once, when opened; then strings, messages and token ids. Out: the same, converted.
//! Never here: requests, schedules, sockets, clocks, weights. "Now" is an argument of the template that prints it.
//! Whatever comes from a client may be malformed: it becomes a value of an error type, never a panic.
#![forbid(unsafe_code)]

mod checkpoint;
mod decoding;
mod detokenizer;
mod fast;
mod formats;
mod pool;
mod stop;
mod template;
mod text_end;
mod tokenizer;

pub use checkpoint::{Checkpoint, CheckpointError, GenerationDefaults};
pub use detokenizer::Detokenizer;
pub use formats::{
    AnswerParser, Begin, Beside, CallForm, CallShape, Certain, Format, FormatError, Ids, ParameterMarks, Piece,
    Reading, Tools, Written,
};
pub use pool::{Pool, PoolError};
pub use stop::{StopMatcher, StopStep};
pub use template::{
    ChatInput, ChatTemplate, LocalTime, OwnTemplate, Refused, THINKING_SWITCHES, TemplateError, Wishes, arguments_of,
};
pub use text_end::with_text_end;
pub use tokenizer::{TextError, Texts, TokenBounds, Tokenizer};
