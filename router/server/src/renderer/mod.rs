//! Templates that come with requests, each run in a process of its own.
//!
//! Such a template is a program of the client's. minijinja keeps it from files, sockets and variables of the system; time, memory and the
//! stack have their bounds here: the process may take [`MEMORY_MAX`] and dies alone, and it is killed after [`TIME_MAX`].

mod child;

use std::ffi::OsString;
use std::io;
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use pelton_text::{ChatInput, OwnTemplate, Refused};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::{Child, Command};
use tokio::sync::Semaphore;
use tokio::time::timeout;

pub(crate) use child::run;

use crate::command::NO_MODULES_OF_THIS_FOLDER;
use crate::error::ApiError;

/// The subcommand that is the child's side.
pub(crate) const COMMAND: &str = "render-template";
/// What requests call their template.
const OWN_TEMPLATE: &str = "chat_template";
/// The switch that lets templates in.
const FLAG: &str = "--trust-request-chat-template";
/// Bytes of a template. The longest of known models have some 40 KB.
const TEMPLATE_BYTES_MAX: usize = 256 << 10;
/// Bytes that the child may take for its data. A chat of 32 MB is held some times over.
const MEMORY_MAX: u64 = 512 << 20;
/// How long the child may take, its start and the end of others' turns among it.
const TIME_MAX: Duration = Duration::from_secs(10);
/// Children at once: a template takes a whole core.
const AT_ONCE: usize = 2;
/// Requests that may wait for their turn.
const WAITING_MAX: usize = 64;
/// Bytes of an answer: 8 MiB of text, each of which JSON may write as six.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// What the child says.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Answer {
    /// The chat as text.
    Text(String),
    /// Why there is none.
    Refused(Refused),
}

/// Runs templates of requests.
#[derive(Debug)]
pub(crate) struct Renderer {
    /// The program and its arguments.
    line: Vec<OsString>,
    turns: Semaphore,
    waiting: AtomicUsize,
}

impl Renderer {
    /// `python`: the interpreter of the wheel that this is part of. Without one, this program is the child, too.
    pub(crate) fn new(python: Option<&Path>) -> io::Result<Self> {
        let (program, words) = match python {
            Some(python) => (python.to_owned(), &[NO_MODULES_OF_THIS_FOLDER, "-m", "pelton", COMMAND][..]),
            None => (std::env::current_exe()?, &[COMMAND][..]),
        };
        let line = [program.into()].into_iter().chain(words.iter().map(OsString::from)).collect();
        Ok(Self { line, turns: Semaphore::new(AT_ONCE), waiting: AtomicUsize::new(0) })
    }

    /// The chat as its own template writes it.
    pub(crate) async fn render(
        &self,
        special_tokens: Map<String, Value>,
        input: ChatInput,
    ) -> Result<String, ApiError> {
        let length = input.own_template.as_ref().map_or(0, String::len);
        if length > TEMPLATE_BYTES_MAX {
            let allowed = format!("at most {TEMPLATE_BYTES_MAX} bytes");
            return Err(ApiError::invalid(OWN_TEMPLATE, format_args!("{length} bytes long"), allowed));
        }
        let job = serde_json::to_vec(&OwnTemplate { special_tokens, input })
            .map_err(|error| ApiError::Internal { log: format!("a template's job cannot be written: {error}") })?;
        let _turn = self.turn().await?;
        match timeout(TIME_MAX, self.ask(&job)).await {
            Err(_) => Err(refused(format!("took longer than {} s to render these messages", TIME_MAX.as_secs()))),
            Ok(Err(error)) => Err(ApiError::Internal { log: format!("the renderer of templates: {error}") }),
            Ok(Ok(Said::Answer(Answer::Text(text)))) => Ok(text),
            Ok(Ok(Said::Answer(Answer::Refused(Refused { param, reason })))) => Err(match param.as_str() {
                OWN_TEMPLATE => ApiError::WrongTemplate { reason },
                _ => ApiError::Conflict { param, reason },
            }),
            Ok(Ok(Said::Died)) => {
                Err(refused(format!("needs more than {} MiB of memory, or too deep a stack", MEMORY_MAX >> 20)))
            }
        }
    }

    async fn turn(&self) -> Result<tokio::sync::SemaphorePermit<'_>, ApiError> {
        let waiting = Waiting::begin(&self.waiting).ok_or(ApiError::TextQueueFull)?;
        let turn = self.turns.acquire().await.expect("nobody closes it");
        drop(waiting);
        Ok(turn)
    }

    /// Dropped when the client leaves, and then the child is killed.
    async fn ask(&self, job: &[u8]) -> io::Result<Said> {
        let mut child = Command::new(&self.line[0])
            .args(&self.line[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()?;
        let (answer, status) = talk(&mut child, job).await?;
        if status.code().is_none() {
            return Ok(Said::Died);
        }
        let answer = serde_json::from_slice(&answer)
            .map_err(|error| io::Error::other(format!("it ended with {status} and no answer: {error}")))?;
        Ok(Said::Answer(answer))
    }
}

/// What came of a child.
enum Said {
    Answer(Answer),
    /// A signal ended it: out of memory (the allocator aborts) or of stack.
    Died,
}

async fn talk(child: &mut Child, job: &[u8]) -> io::Result<(Vec<u8>, ExitStatus)> {
    let mut stdin = child.stdin.take().expect("piped");
    let mut stdout = child.stdout.take().expect("piped").take(ANSWER_BYTES_MAX);
    let tell = async move {
        // A child that dies before it has read all says so by its status.
        _ = stdin.write_all(job).await;
        _ = stdin.shutdown().await;
    };
    let mut answer = Vec::new();
    let ((), read) = tokio::join!(tell, stdout.read_to_end(&mut answer));
    read?;
    drop(stdout); // a child that writes more than that ends
    Ok((answer, child.wait().await?))
}

/// One that waits, as long as it lives.
struct Waiting<'a>(&'a AtomicUsize);

impl<'a> Waiting<'a> {
    fn begin(count: &'a AtomicUsize) -> Option<Self> {
        let this = (count.fetch_add(1, Ordering::Relaxed), Self(count));
        (this.0 < WAITING_MAX).then_some(this.1)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Templates of requests where none are let in.
pub(crate) fn not_allowed() -> ApiError {
    let reason = format!("is not taken from requests by this server; its operator may allow it by `{FLAG}`");
    ApiError::Conflict { param: OWN_TEMPLATE.to_owned(), reason }
}

fn refused(reason: String) -> ApiError {
    ApiError::WrongTemplate { reason }
}
