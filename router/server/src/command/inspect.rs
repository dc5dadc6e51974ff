//! `pelton inspect program MODEL`: becomes `python -m pelton.inspect FOLDER ...`, which loads the model and prints.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use super::serve::find_model;
use super::{Line, Trouble, resolve, tree};
use crate::config::{Count, Hub, Origin, Settings as _, Surroundings, Values, server_settings, settings};

const USAGE: &str = "\
pelton inspect program [MODEL] [FLAGS]: the calls that a step of the model is made of on a CPU, with buffers, bytes, operations, and how long
each took against what the machine allows. Takes --model, --dtype, --threads and --python of `pelton serve`.
";

/// What this command uses of the server's settings, beside those of the hub.
const USED: [&str; 5] = ["config", "model", "dtype", "threads", "python"];

settings! {
    /// Inspect
    section Options ("inspect", CommandLine) {
        /// Requests in the step.
        rows: Count<1, 4096> = "1";
        /// New tokens of each.
        tokens: Count<1, 65536> = "1";
        /// Tokens of each that were computed before.
        context: Count<0, 1048576> = "64";
        /// Every call in order, instead of one line for calls that are alike but for their layer.
        all: bool = "false";
    }
}

/// Replaces this process; returns only for help, or if that fails.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().chain(server_settings()).collect();
    let Line::Run(values) = resolve(USAGE, args, Some("model"), &settings, around)? else {
        return Ok(ExitCode::SUCCESS);
    };
    refuse_what_would_be_ignored(&values)?;
    let (options, config) = (Options::take(&values), tree(&values)?);
    let folder = find_model(&config, around, &|_, _, _| ())?;
    let threads = config.worker.threads.said().map_or(0, |Count(threads)| threads); // 0: the worker chooses
    let mut command = Command::new(&config.worker.python);
    command.args(["-m", "pelton.inspect"]).arg(folder).args([
        format!("--rows={}", options.rows.0),
        format!("--tokens={}", options.tokens.0),
        format!("--context={}", options.context.0),
        format!("--threads={threads}"),
        format!("--dtype={}", config.model.dtype.word()),
    ]);
    let error = command.args(options.all.then_some("--all")).exec();
    Err(Trouble::Failed(format!(
        "cannot run `{} -m pelton.inspect`: {error}; set --python to a Python that has the package `pelton`",
        config.worker.python.display()
    )))
}

fn refuse_what_would_be_ignored(values: &Values) -> Result<(), Trouble> {
    let is_ignored = |field| !USED.contains(&field) && !Hub::ALL.iter().any(|setting| setting.field == field);
    let flags: Vec<String> = server_settings()
        .iter()
        .filter(|setting| is_ignored(setting.field) && matches!(values.given(setting.field).origin, Origin::Flag(_)))
        .map(|setting| format!("`{}`", setting.flag()))
        .collect();
    let reason = "has no meaning for `pelton inspect program`: nothing is served; leave it out";
    if flags.is_empty() { Ok(()) } else { Err(Trouble::Usage(format!("{} {reason}", flags.join(", ")))) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(line: &[&str]) -> String {
        let args: Vec<OsString> = line.iter().map(OsString::from).collect();
        match run(&args, &Surroundings::default()) {
            Err(Trouble::Usage(message) | Trouble::Failed(message)) => message,
            Ok(_) => panic!("{line:?} was taken"),
        }
    }

    #[test]
    fn a_flag_without_meaning_and_a_folder_without_a_model_are_refused() {
        assert!(refusal(&["--port", "1", "--rows", "8"]).starts_with("`--port` has no meaning"));
        assert!(refusal(&["--rows", "0"]).contains("rows"));
        let empty = tempfile::tempdir().expect("a folder");
        let folder = empty.path().to_str().expect("a path of letters");
        assert!(refusal(&[folder, "--threads", "2"]).contains("has no config.json"));
    }

    #[test]
    fn an_interpreter_that_is_not_there_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("config.json"), "{}").expect("written");
        let folder = folder.path().to_str().expect("a path of letters");
        assert!(refusal(&[folder, "--python", "/no/python"]).contains("cannot run `/no/python -m pelton.inspect`"));
    }
}
