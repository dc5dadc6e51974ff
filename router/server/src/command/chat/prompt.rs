//! Where prompts come from: a line editor on a terminal, else the lines of standard input.

use std::io::{BufRead as _, IsTerminal as _};

use rustyline::DefaultEditor;
use rustyline::error::ReadlineError;

use crate::command::Trouble;

/// The source of prompts. The editor's history ends with the program: what was typed is written nowhere.
pub(super) enum Prompt {
    Terminal(Box<DefaultEditor>),
    Pipe,
}

/// What the user did.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Said {
    /// Typed a line.
    Line(String),
    /// Pressed Ctrl-C.
    Interrupted,
    /// Left: Ctrl-D, or the end of the input.
    Nothing,
}

impl Prompt {
    /// A terminal on both sides, or a pipe.
    pub(super) fn open() -> Result<Self, Trouble> {
        if !std::io::stdin().is_terminal() || !std::io::stdout().is_terminal() {
            return Ok(Self::Pipe);
        }
        let failed = |error| Trouble::Failed(format!("the terminal cannot be used: {error}"));
        Ok(Self::Terminal(Box::new(DefaultEditor::new().map_err(failed)?)))
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Self::Terminal(_))
    }

    /// Waits for the next line on a thread of its own, because neither source can be waited for otherwise.
    pub(super) async fn next(mut self) -> Result<(Self, Said), Trouble> {
        let read = tokio::task::spawn_blocking(move || {
            let said = self.read();
            (self, said)
        });
        let (prompt, said) = read.await.expect("reading a line does not panic");
        Ok((prompt, said.map_err(|error| Trouble::Failed(format!("the input cannot be read: {error}")))?))
    }

    fn read(&mut self) -> Result<Said, ReadlineError> {
        match self {
            Self::Terminal(editor) => match editor.readline("> ") {
                Ok(line) => {
                    editor.add_history_entry(&line)?;
                    Ok(Said::Line(line))
                }
                Err(ReadlineError::Interrupted) => Ok(Said::Interrupted),
                Err(ReadlineError::Eof) => Ok(Said::Nothing),
                Err(error) => Err(error),
            },
            Self::Pipe => {
                let mut line = String::new();
                Ok(match std::io::stdin().lock().read_line(&mut line)? {
                    0 => Said::Nothing,
                    _ => Said::Line(line.trim_end_matches(['\n', '\r']).to_owned()),
                })
            }
        }
    }
}
