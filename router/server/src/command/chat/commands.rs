//! Lines that begin with `/`.

use crate::nearest::nearest;

/// What a user may ask of the program instead of the model.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Command {
    /// Show this list.
    Help,
    /// Forget the conversation.
    Reset,
    /// Forget it, and begin with another system prompt; none: without one.
    System(Option<String>),
    /// Leave.
    Quit,
}

pub(super) const HELP: &str = "\
  /reset          forget the conversation
  /system TEXT    forget it, and tell the model this before the next one; without TEXT: nothing
  /quit           leave (so does Ctrl-D)
  Ctrl-C          end the answer
";

impl Command {
    /// `None`: a prompt. `Err`: looks like a command and is none.
    pub(super) fn parse(line: &str) -> Option<Result<Self, String>> {
        let line = line.trim().strip_prefix('/')?;
        let (word, rest) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
        let rest = rest.trim();
        Some(match word {
            "help" | "?" => Ok(Self::Help),
            "reset" => Ok(Self::Reset),
            "system" => Ok(Self::System((!rest.is_empty()).then(|| rest.to_owned()))),
            "quit" | "exit" | "q" => Ok(Self::Quit),
            _ => Err(match nearest(word, ["help", "reset", "system", "quit"]) {
                Some(name) => format!("there is no command /{word}; did you mean /{name}?"),
                None => format!("there is no command /{word}; see /help"),
            }),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_told_from_prompts() {
        for (line, expected) in [
            ("hello", None),
            ("a/b", None),
            ("/help", Some(Ok(Command::Help))),
            (" /quit ", Some(Ok(Command::Quit))),
            ("/system  Be brief. ", Some(Ok(Command::System(Some("Be brief.".into()))))),
            ("/system", Some(Ok(Command::System(None)))),
            ("/rest", Some(Err("there is no command /rest; did you mean /reset?".into()))),
            ("/dance", Some(Err("there is no command /dance; see /help".into()))),
        ] {
            assert_eq!(Command::parse(line), expected, "{line}");
        }
    }
}
