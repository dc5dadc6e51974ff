//! `pelton chat`: a conversation in the terminal, with a running server or one of its own.
//!
//! On a terminal: line editing, commands that begin with `/`, and Ctrl-C, which ends an answer and not the program. Elsewhere each
//! line of standard input is a prompt and only answers are printed, so that it can stand in a pipe.

mod answer;
mod commands;
mod conversation;
mod prompt;

use std::ffi::OsString;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use indicatif::MultiProgress;

use self::commands::Command;
use self::conversation::{Answered, Conversation, Ended};
use self::prompt::{Prompt, Said};
use super::serve::{Doors, Server, secrets};
use super::{Line, Trouble, complain, resolve, runtime, tree};
use crate::config::{
    Config, LogLevel, Origin, Setting, Settings as _, Surroundings, Tokens, Url, Values, server_settings, settings,
};
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
    refuse_what_would_be_ignored(&settings, &values, options.url.is_some())?;
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
            let key = secrets(&config)?.into_iter().next();
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

/// Fields of settings that a chat with a running server uses, besides its own.
const WITH_URL: [&str; 9] =
    ["url", "system", "max_tokens", "config", "model", "api_key", "api_key_file", "log_level", "log_format"];
/// Fields of settings that a server for one chat chooses by itself.
const OF_OWN_SERVER: [&str; 9] = [
    "host",
    "port",
    "grpc_port",
    "api_key",
    "api_key_file",
    "files_dir",
    "files_max",
    "max_file_size",
    "batch_in_flight",
];

/// Flags that this chat would not use. Variables and files speak to all commands, so theirs are no mistake.
fn refuse_what_would_be_ignored(settings: &[&Setting], values: &Values, has_url: bool) -> Result<(), Trouble> {
    let is_ignored = |field| if has_url { !WITH_URL.contains(&field) } else { OF_OWN_SERVER.contains(&field) };
    let flags: Vec<String> = settings
        .iter()
        .filter(|setting| is_ignored(setting.field) && matches!(values.given(setting.field).origin, Origin::Flag(_)))
        .map(|setting| format!("`{}`", setting.flag()))
        .collect();
    let reason = if has_url {
        "has no meaning with --url: the server runs already; leave it out, or leave --url out for a server of this chat's own"
    } else {
        "has no meaning without --url: this chat's own server can be reached by nobody else; leave it out, or name a running server"
    };
    if flags.is_empty() { Ok(()) } else { Err(Trouble::Usage(format!("{} {reason}", flags.join(", ")))) }
}

/// The log is for a server's operator; in a chat only what looks wrong is worth a line, unless the user asked for more.
fn is_quiet_by_default(values: &Values) -> bool {
    matches!(values.given("log_level").origin, Origin::Default(_))
}

/// A server for this conversation alone: on the loopback, on any free port, without keys.
async fn own_server(config: &mut Config, around: &Surroundings, bars: &MultiProgress) -> Result<Server, Trouble> {
    config.server.host = "127.0.0.1".into();
    config.server.port = 0;
    config.server.grpc_port = None;
    config.server.api_key.clear();
    config.server.api_key_file = None;
    config.server.files_dir = None;
    Server::start(config, around, Doors::open(config)?, bars, &Arc::default()).await
}

async fn talk(mut prompt: Prompt, mut conversation: Conversation) -> Result<ExitCode, Trouble> {
    if prompt.is_terminal() {
        say(format_args!(
            "Chatting with {}. /help shows what else there is; Ctrl-C ends an answer, Ctrl-D the chat.",
            conversation.model()
        ))?;
    }
    let mut code = ExitCode::SUCCESS;
    loop {
        let said;
        (prompt, said) = prompt.next().await?;
        let line = match said {
            Said::Line(line) if line.trim().is_empty() => continue,
            Said::Line(line) => line,
            Said::Interrupted => {
                say("(Ctrl-D or /quit leaves)")?;
                continue;
            }
            Said::Nothing => return Ok(code),
        };
        // From a pipe every line is a prompt: a text that begins with a slash is no command there.
        match Command::parse(&line).filter(|_| prompt.is_terminal()) {
            None => match conversation.ask(&line, &mut std::io::stdout(), interrupted(&prompt)).await {
                Ok(answered) => close(&answered, prompt.is_terminal())?,
                Err(message) => {
                    _ = std::io::stdout().flush();
                    complain(&message);
                    // A person has seen it and may have gone on; what reads a pipe sees the code alone.
                    if !prompt.is_terminal() {
                        code = ExitCode::FAILURE;
                    }
                }
            },
            Some(Ok(Command::Quit)) => return Ok(code),
            Some(Ok(Command::Help)) => say(commands::HELP.trim_end())?,
            Some(Ok(Command::Reset)) => {
                conversation.reset();
                say("(a new conversation)")?;
            }
            Some(Ok(Command::System(text))) => {
                conversation.set_system(text);
                say("(a new conversation with this system prompt)")?;
            }
            Some(Err(message)) => say(message)?,
        }
    }
}

/// What stands below an answer.
fn close(answered: &Answered, is_terminal: bool) -> Result<(), Trouble> {
    match &answered.how {
        Ended::Whole(usage) if is_terminal => say(format_args!("\n\x1b[2m{usage}\x1b[0m"))?,
        Ended::Whole(_) => say("")?,
        Ended::Stopped => say("\n(stopped)")?,
    }
    if answered.left_out > 0 {
        let note = format!(
            "(the context is full: the oldest {} left out; /reset begins anew)",
            if answered.left_out == 1 { "prompt and its answer are" } else { "prompts and their answers are" }
        );
        // From a pipe only answers are printed.
        if is_terminal { say(note)? } else { complain(&note) }
    }
    Ok(())
}

/// One line on standard output. When nobody is there to read it, the chat is over.
fn say(line: impl std::fmt::Display) -> Result<(), Trouble> {
    let mut out = std::io::stdout();
    writeln!(out, "{line}")
        .and_then(|()| out.flush())
        .map_err(|error| Trouble::Failed(format!("standard output cannot be written: {error}")))
}

/// Ctrl-C during an answer. From a pipe it ends the program, as with any filter.
async fn interrupted(prompt: &Prompt) {
    if prompt.is_terminal() && tokio::signal::ctrl_c().await.is_ok() {
        return;
    }
    std::future::pending().await
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use super::*;

    fn refusal(args: &[&str], variables: &[(&str, &str)]) -> Option<String> {
        let settings: Vec<_> = Options::ALL.iter().chain(server_settings()).collect();
        let args: Vec<OsString> = args.iter().map(OsString::from).collect();
        let variables = variables.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
        let around = Surroundings::new(variables, None).expect("texts");
        let Ok(Line::Run(values)) = resolve(USAGE, &args, Some("model"), &settings, &around) else {
            panic!("flags that exist")
        };
        let has_url = Options::take(&values).url.is_some();
        match refuse_what_would_be_ignored(&settings, &values, has_url) {
            Ok(()) => None,
            Err(Trouble::Usage(message) | Trouble::Failed(message)) => Some(message),
        }
    }

    #[test]
    fn flags_that_a_chat_would_not_use_are_refused_by_name() {
        const URL: [&str; 2] = ["--url", "http://127.0.0.1:1"];
        let with_url = |args: &[&str]| refusal(&[&URL, args].concat(), &[]);
        let message = with_url(&["--kv-memory", "1GiB", "--dtype", "float32", "--port", "1"]).expect("refused");
        assert!(message.starts_with("`--dtype`, `--port`, `--kv-memory` has no meaning with --url"), "{message}");
        assert_eq!(with_url(&["a-model", "--api-key", "k", "--api-key-file", "/f", "--log-level", "info"]), None);
        assert_eq!(with_url(&["--system", "Be brief.", "--max-tokens", "5"]), None);
        let message = refusal(&["--port", "1"], &[]).expect("refused");
        assert!(message.starts_with("`--port` has no meaning without --url"), "{message}");
        assert_eq!(refusal(&["--kv-memory", "1GiB", "--dtype", "float32"], &[]), None);
        // Variables are for all commands of a shell.
        assert_eq!(refusal(&URL, &[("PELTON_PORT", "9000"), ("PELTON_KV_MEMORY", "1GiB")]), None);
    }
}
