//! The command `pelton`: finds the subcommand, resolves its settings, runs it, and turns trouble into a message and an exit code.
//!
//! Codes: 0 done, 1 it failed (the message says what to change), 2 the command line or a setting is wrong.

mod bench;
mod cache;
mod chat;
mod config_explain;
mod doctor;
mod inspect;
mod prepare;
mod python;
mod replay;
mod run_batch;
pub(crate) mod serve;
mod tokenizer_json;
mod worker;

use std::ffi::OsString;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::process::ExitCode;

pub(crate) use python::NO_MODULES_OF_THIS_FOLDER;

use crate::config::{self, Asked, Config, ConfigError, Setting, Surroundings, Values, Wheel};
use crate::nearest::nearest;
use crate::renderer;

const OVERVIEW: &str = "\
Pelton serves large language models.

  pelton serve [MODEL]            serve a model over HTTP and gRPC; without MODEL: the demo model
  pelton chat [MODEL]             chat in the terminal, with a running server (--url) or one of its own
  pelton prepare [MODEL]          loads a model once, so that each start of it is quick
  pelton run-batch -i IN -o OUT   answers a file of requests into a file of answers
  pelton doctor                   what this machine is, and what Pelton will use of it
  pelton config explain           every setting, its value, and where it came from
  pelton inspect program [MODEL]  the calls that a model's step is made of on a CPU, and what each takes
  pelton replay FILE              run a recording (--record) again, and explain each request
  pelton cache list|purge FOLDER  what is kept in a folder of --kv-disk; empties it
  pelton bench serve              measure a running server
  pelton bench quality [MODEL]    what quantised weights (--quantize) change about a model's predictions
  pelton worker --listen ADDRESS  a worker by itself, for a router to be pointed at

`pelton COMMAND --help` shows its flags. MODEL is a folder in Hugging Face layout, or ORG/NAME from the hub.
";

/// Why a command ended without doing what it was asked.
#[derive(Debug)]
pub(crate) enum Trouble {
    /// The command line, a variable or the file is wrong.
    Usage(String),
    /// Anything else; the message says what to change.
    Failed(String),
}

impl From<ConfigError> for Trouble {
    fn from(error: ConfigError) -> Self {
        Trouble::Usage(error.to_string())
    }
}

/// Runs the command that `args` (the program's name first) asks for.
pub(crate) fn run(args: &[OsString], wheel: Option<Wheel>) -> ExitCode {
    match dispatch(args, wheel) {
        Ok(code) => code,
        Err(Trouble::Usage(message)) => {
            complain(&message);
            ExitCode::from(2)
        }
        Err(Trouble::Failed(message)) => {
            complain(&message);
            ExitCode::FAILURE
        }
    }
}

/// One line on standard error. Nobody may be there to read it, and then there is nobody to tell.
fn complain(message: &str) {
    _ = writeln!(std::io::stderr(), "pelton: {message}");
}

/// What a command was asked for, on standard output. A reader that has gone has seen enough; a full disk is trouble.
fn print(text: impl Display) -> Result<(), Trouble> {
    print_to(&mut std::io::stdout(), text)
}

fn print_to(out: &mut impl Write, text: impl Display) -> Result<(), Trouble> {
    match write!(out, "{text}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Trouble::Failed(format!("standard output cannot be written: {error}")))
        }
        _ => Ok(()),
    }
}

fn dispatch(args: &[OsString], wheel: Option<Wheel>) -> Result<ExitCode, Trouble> {
    let around = Surroundings::new(std::env::vars_os(), wheel)?;
    let words: Vec<&str> = args.iter().skip(1).take(2).map_while(|word| word.to_str()).collect();
    let rest = |skip: usize| args.get(skip..).unwrap_or_default();
    match words.as_slice() {
        ["serve", ..] => serve::run(rest(2), &around),
        ["chat", ..] => chat::run(rest(2), &around),
        ["prepare", ..] => prepare::run(rest(2), &around),
        ["run-batch", ..] => run_batch::run(rest(2), &around),
        ["doctor", ..] => doctor::run(rest(2), &around),
        ["config", "explain", ..] => config_explain::explain(rest(3), &around),
        ["config", "docs", ..] => config_explain::docs(rest(3)),
        ["inspect", "program", ..] => inspect::run(rest(3), &around),
        ["replay", ..] => replay::run(rest(2), &around),
        ["cache", "list", ..] => cache::list(rest(3), &around),
        ["cache", "purge", ..] => cache::purge(rest(3), &around),
        ["bench", "serve", ..] => bench::run(rest(3), &around),
        ["bench", "quality", ..] => bench::quality::run(rest(3), &around),
        ["worker", ..] => worker::run(rest(2), &around),
        [renderer::COMMAND] => {
            renderer::run().map_err(|error| Trouble::Failed(format!("cannot render a template: {error}")))
        }
        ["help" | "--help" | "-h", ..] => {
            print(OVERVIEW)?;
            Ok(ExitCode::SUCCESS)
        }
        ["version" | "--version" | "-V", ..] => {
            print(concat!("pelton ", env!("CARGO_PKG_VERSION"), "\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        [] => Err(Trouble::Usage(format!("say what to do\n\n{OVERVIEW}"))),
        [word, rest @ ..] => match GROUPS.iter().find(|(name, _)| name == word) {
            Some((group, known)) => of_group(group, known, rest.first().copied()),
            None => {
                let advice = nearest(word, COMMANDS)
                    .map_or("see `pelton help`".to_owned(), |name| format!("did you mean `pelton {name}`?"));
                Err(Trouble::Usage(format!("there is no command `{word}`; {advice}")))
            }
        },
    }
}

/// What may stand first.
const COMMANDS: [&str; 13] = [
    "serve",
    "chat",
    "prepare",
    "run-batch",
    "doctor",
    "config",
    "inspect",
    "replay",
    "cache",
    "bench",
    "worker",
    "help",
    "version",
];

/// Commands that are several: what each is followed by.
const GROUPS: [(&str, &[&str]); 4] = [
    ("config", &["explain", "docs"]),
    ("inspect", &["program"]),
    ("bench", &["serve", "quality"]),
    ("cache", &["list", "purge"]),
];

/// A command that is several, without one of them: its help, or what is wrong.
fn of_group(group: &str, known: &[&'static str], word: Option<&str>) -> Result<ExitCode, Trouble> {
    let all = known.iter().map(|name| format!("`pelton {group} {name}`")).collect::<Vec<_>>().join(" or ");
    match word {
        Some("--help" | "-h" | "help") => {
            print(format_args!("pelton {group}: {all}; `--help` behind it shows its flags\n"))?;
            Ok(ExitCode::SUCCESS)
        }
        None => Err(Trouble::Usage(format!("`pelton {group}` is {all}"))),
        Some(word) => {
            let advice = nearest(word, known.iter().copied())
                .map_or(format!("there is {all}"), |name| format!("did you mean `pelton {group} {name}`?"));
            Err(Trouble::Usage(format!("there is no command `{group} {word}`; {advice}")))
        }
    }
}

/// What a subcommand's line asks for, after `--help` has been dealt with.
enum Line {
    /// Help was printed.
    Helped,
    /// To run.
    Run(Values),
}

/// Resolves a subcommand's line, or prints its help.
fn resolve(
    usage: &str,
    args: &[OsString],
    positional: Option<&'static str>,
    settings: &[&'static Setting],
    around: &Surroundings,
) -> Result<Line, Trouble> {
    resolve_showing(usage, args, positional, settings, settings, around)
}

/// The same, with help for the settings in `shown`.
fn resolve_showing(
    usage: &str,
    args: &[OsString],
    positional: Option<&'static str>,
    settings: &[&'static Setting],
    shown: &[&'static Setting],
    around: &Surroundings,
) -> Result<Line, Trouble> {
    Ok(match config::resolve(args, positional, settings, around)? {
        Asked::Help => {
            print(format_args!("{usage}{}", config::help(shown)))?;
            Line::Helped
        }
        Asked::Run(values) => Line::Run(values),
    })
}

/// The tree, for a command that takes all of the server's settings.
fn tree(values: &Values) -> Result<Config, Trouble> {
    Ok(Config::new(values)?)
}

/// A runtime for commands that wait for sockets.
fn runtime() -> Result<tokio::runtime::Runtime, Trouble> {
    tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .thread_name("pelton-io")
        .build()
        .map_err(|error| Trouble::Failed(format!("cannot start threads: {error}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full(ErrorKind);

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> std::io::Result<usize> {
            Err(self.0.into())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_command_of_several_has_help_and_a_nearest_name() {
        let said = |group, known: &[&'static str], word| match of_group(group, known, word) {
            Err(Trouble::Usage(message)) => message,
            Err(Trouble::Failed(message)) => panic!("{message}"),
            Ok(_) => String::new(),
        };
        let bench = said("bench", &["serve", "quality"], Some("serv"));
        assert_eq!(bench, "there is no command `bench serv`; did you mean `pelton bench serve`?");
        let expected = "there is no command `cache x`; there is `pelton cache list` or `pelton cache purge`";
        assert_eq!(said("cache", &["list", "purge"], Some("x")), expected);
        assert_eq!(said("inspect", &["program"], None), "`pelton inspect` is `pelton inspect program`");
        assert_eq!(said("config", &["explain"], Some("--help")), "");
        assert!(GROUPS.iter().all(|(name, _)| COMMANDS.contains(name)));
    }

    #[test]
    fn a_full_disk_is_trouble_and_a_reader_that_has_gone_is_not() {
        let Err(Trouble::Failed(message)) = print_to(&mut Full(ErrorKind::StorageFull), "text") else {
            panic!("nothing was written")
        };
        assert!(message.starts_with("standard output cannot be written"), "{message}");
        assert!(print_to(&mut Full(ErrorKind::BrokenPipe), "text").is_ok());
        let mut out = Vec::new();
        assert!(print_to(&mut out, "text").is_ok());
        assert_eq!(out, b"text");
    }
}
