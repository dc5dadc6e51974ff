//! `pelton chat`: a conversation in the terminal, with a running server or one of its own.
//!
//! On a terminal: line editing, commands that begin with `/`, and Ctrl-C, which ends an answer and not the program. Elsewhere each
//! line of standard input is a prompt and only answers are printed, so that it can stand in a pipe.

mod commands;
mod conversation;
mod prompt;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;

use indicatif::MultiProgress;

use self::commands::Command;
use self::conversation::{Answered, Conversation};
use self::prompt::{Prompt, Said};
use super::serve::{Doors, Server};
use super::{Line, Trouble, resolve, runtime, tree};
use crate::config::{Config, LogLevel, Settings as _, Surroundings, Tokens, Url, Values, server_settings, settings};
use crate::logging;

const USAGE: &str = "\
pelton chat [MODEL] [FLAGS]: a chat in the terminal. With --url it talks to a running server, else to one of its own that serves MODEL (or
the demo model) and takes the flags of `pelton serve`. From a pipe, each line is a prompt.
";

settings! {
    /// Chat
    section Options ("chat", CommandLine) {
        /// A running server, as http://127.0.0.1:8000; its key is `--api-key`.
        url: Option<Url>;
        /// What the model is told before the conversation.
        system: Option<String>;
        /// The longest answer. Not set: what the context leaves.
        max_tokens: Option<Tokens>;
    }
}

/// Chats until the user leaves.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().chain(server_settings()).collect();
    let Line::Run(values) = resolve(USAGE, args, Some("model"), &settings, around)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let options = Options::take(&values);
    let mut config = tree(&values)?;
    if is_quiet_by_default(&values) {
        config.log.log_level = LogLevel::Warn;
    }
    let bars = MultiProgress::new();
    logging::start(&config.log, &bars);
    let prompt = Prompt::open()?;
    let runtime = runtime()?;
    runtime.block_on(async {
        if let Some(url) = &options.url {
            let key = config.server.api_key.first().cloned();
            let model = config.model.model.clone();
            return talk(prompt, Conversation::open(&url.0, key, model, &options).await?).await;
        }
        let mut server = own_server(&mut config, around, &bars).await?;
        let talked = match server.loaded(&bars).await {
            Ok(()) => match Conversation::open(server.url(), None, None, &options).await {
                Ok(conversation) => talk(prompt, conversation).await,
                Err(trouble) => Err(trouble),
            },
            Err(trouble) => Err(trouble),
        };
        server.stop().await;
        talked
    })
}

/// The log is for a server's operator; in a chat only what looks wrong is worth a line, unless the user asked for more.
fn is_quiet_by_default(values: &Values) -> bool {
    matches!(values.given("log_level").origin, crate::config::Origin::Default(_))
}

/// A server for this conversation alone: on the loopback, on any free port, without keys.
async fn own_server(config: &mut Config, around: &Surroundings, bars: &MultiProgress) -> Result<Server, Trouble> {
    config.server.host = "127.0.0.1".into();
    config.server.port = 0;
    config.server.grpc_port = None;
    config.server.api_key.clear();
    config.server.api_key_file = None;
    Server::start(config, around, Doors::open(config)?, bars).await
}

async fn talk(mut prompt: Prompt, mut conversation: Conversation) -> Result<ExitCode, Trouble> {
    if prompt.is_terminal() {
        println!(
            "Chatting with {}. /help shows what else there is; Ctrl-C ends an answer, Ctrl-D the chat.",
            conversation.model()
        );
    }
    let mut code = ExitCode::SUCCESS;
    loop {
        let said;
        (prompt, said) = prompt.next().await?;
        let line = match said {
            Said::Line(line) if line.trim().is_empty() => continue,
            Said::Line(line) => line,
            Said::Interrupted => {
                println!("(Ctrl-D or /quit leaves)");
                continue;
            }
            Said::Nothing => return Ok(code),
        };
        // From a pipe every line is a prompt: a text that begins with a slash is no command there.
        match Command::parse(&line).filter(|_| prompt.is_terminal()) {
            None => match conversation.ask(&line, &mut std::io::stdout(), interrupted(&prompt)).await {
                Ok(Answered::Whole(usage)) if prompt.is_terminal() => println!("\n\x1b[2m{usage}\x1b[0m"),
                Ok(Answered::Whole(_)) => println!(),
                Ok(Answered::Stopped) => println!("\n(stopped)"),
                Err(message) => {
                    _ = std::io::stdout().flush();
                    eprintln!("pelton: {message}");
                    code = ExitCode::FAILURE;
                }
            },
            Some(Ok(Command::Quit)) => return Ok(code),
            Some(Ok(Command::Help)) => print!("{}", commands::HELP),
            Some(Ok(Command::Reset)) => {
                conversation.reset();
                println!("(a new conversation)");
            }
            Some(Ok(Command::System(text))) => {
                conversation.set_system(text);
                println!("(a new conversation with this system prompt)");
            }
            Some(Err(message)) => println!("{message}"),
        }
    }
}

/// Ctrl-C during an answer. From a pipe it ends the program, as with any filter.
async fn interrupted(prompt: &Prompt) {
    if prompt.is_terminal() && tokio::signal::ctrl_c().await.is_ok() {
        return;
    }
    std::future::pending().await
}
