//! Commands that are done in Python: modules of the wheel, run by the interpreter that workers would be.

use std::ffi::OsString;
use std::fs::File;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Output, Stdio};

use super::{Line, Trouble, resolve_showing};
use crate::config::{Config, Hub, Origin, Setting, Settings as _, Surroundings, Values, server_settings};

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

/// What a command that serves nothing takes: settings of its own, of the server's those in `used`, and the hub's. The server's others may stand
/// in variables and files, which speak to all commands.
pub(super) struct Taken {
    pub(super) command: &'static str,
    pub(super) own: &'static [Setting],
    pub(super) used: &'static [&'static str],
}

impl Taken {
    /// Resolves its line. Help shows what it takes, and nothing that it refuses.
    pub(super) fn resolve(&self, usage: &str, args: &[OsString], around: &Surroundings) -> Result<Line, Trouble> {
        let settings: Vec<_> = self.own.iter().chain(server_settings()).collect();
        let line = resolve_showing(usage, args, Some("model"), &settings, &self.shown(), around)?;
        if let Line::Run(values) = &line {
            self.refuse_what_would_be_ignored(values)?;
        }
        Ok(line)
    }

    fn shown(&self) -> Vec<&'static Setting> {
        self.own.iter().chain(server_settings().into_iter().filter(|setting| self.uses(setting.field))).collect()
    }

    fn uses(&self, field: &str) -> bool {
        self.used.contains(&field) || Hub::ALL.iter().any(|setting| setting.field == field)
    }

    /// Flags of the server that would do nothing.
    fn refuse_what_would_be_ignored(&self, values: &Values) -> Result<(), Trouble> {
        let flags: Vec<String> = server_settings()
            .iter()
            .filter(|setting| !self.uses(setting.field))
            .filter(|setting| matches!(values.given(setting.field).origin, Origin::Flag(_)))
            .map(|setting| format!("`{}`", setting.flag()))
            .collect();
        let reason = format!("has no meaning for `{}`: nothing is served; leave it out", self.command);
        if flags.is_empty() { Ok(()) } else { Err(Trouble::Usage(format!("{} {reason}", flags.join(", ")))) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_shows_what_is_taken_and_nothing_that_is_refused() {
        let taken = Taken { command: "pelton this", own: &[], used: &["dtype"] };
        let shown: Vec<_> = taken.shown().into_iter().map(|setting| setting.field).collect();
        let hub = Hub::ALL.iter().map(|setting| setting.field);
        assert!(shown.contains(&"dtype") && hub.clone().all(|field| shown.contains(&field)), "{shown:?}");
        assert_eq!(shown.len(), 1 + hub.count());
        let run = |line: &[&str]| {
            let args: Vec<OsString> = line.iter().map(OsString::from).collect();
            match taken.resolve("", &args, &Surroundings::default()) {
                Err(Trouble::Usage(message) | Trouble::Failed(message)) => message,
                Ok(_) => String::new(),
            }
        };
        assert_eq!(run(&["--dtype", "float32"]), "");
        assert!(run(&["--port", "1"]).starts_with("`--port` has no meaning for `pelton this`"));
    }
}
