//! Commands that are done in Python: modules of the wheel, run by the interpreter that workers would be.

use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use super::Trouble;
use crate::config::{Config, Hub, Origin, Settings as _, Values, server_settings};

/// For every start of Python: what lies in the folder that a command is given in is none of its modules. It may be a model's.
pub(crate) const NO_MODULES_OF_THIS_FOLDER: &str = "-P";

/// `python -m MODULE`, to be given arguments.
pub(super) struct Module {
    command: Command,
    name: &'static str,
}

impl Module {
    pub(super) fn new(config: &Config, name: &'static str) -> Self {
        let mut command = Command::new(&config.worker.python);
        command.args([NO_MODULES_OF_THIS_FOLDER, "-m", name]);
        Self { command, name }
    }

    /// The command, to be given arguments.
    pub(super) fn line(&mut self) -> &mut Command {
        &mut self.command
    }

    /// Replaces this process; returns only if that fails.
    pub(super) fn exec(mut self) -> Trouble {
        let error = self.command.exec();
        self.trouble(&error)
    }

    /// The same, with this as its standard input. A child would outlive whoever ends this process alone, with all cores and its memory.
    pub(super) fn exec_with(mut self, input: &[u8]) -> Trouble {
        match in_memory(input) {
            Ok(file) => {
                self.command.stdin(file);
                self.exec()
            }
            Err(error) => Trouble::Failed(format!("no memory for what {} is to read: {error}", self.name)),
        }
    }

    /// Runs it to its end.
    pub(super) fn output(mut self) -> Result<Output, Trouble> {
        self.command.stdin(Stdio::null()).output().map_err(|error| self.trouble(&error))
    }

    fn trouble(&self, error: &std::io::Error) -> Trouble {
        let python = self.command.get_program().display();
        let advice = "set --python to a Python that has the package `pelton`";
        Trouble::Failed(format!("cannot run `{python} -m {}`: {error}; {advice}", self.name))
    }
}

/// A file without a name, to be read from its beginning.
fn in_memory(content: &[u8]) -> std::io::Result<File> {
    let mut file = File::from(rustix::fs::memfd_create("pelton-input", rustix::fs::MemfdFlags::CLOEXEC)?);
    file.write_all(content)?;
    file.seek(SeekFrom::Start(0))?;
    Ok(file)
}

/// Refuses flags of the server that are not among `used` nor the hub's: they would do nothing.
pub(super) fn refuse_what_would_be_ignored(values: &Values, used: &[&str], command: &str) -> Result<(), Trouble> {
    let is_ignored = |field| !used.contains(&field) && !Hub::ALL.iter().any(|setting| setting.field == field);
    let flags: Vec<String> = server_settings()
        .iter()
        .filter(|setting| is_ignored(setting.field) && matches!(values.given(setting.field).origin, Origin::Flag(_)))
        .map(|setting| format!("`{}`", setting.flag()))
        .collect();
    let reason = format!("has no meaning for `{command}`: nothing is served; leave it out");
    if flags.is_empty() { Ok(()) } else { Err(Trouble::Usage(format!("{} {reason}", flags.join(", ")))) }
}
