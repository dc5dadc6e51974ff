//! `pelton inspect program MODEL`: becomes `python -m pelton.inspect FOLDER ...`, which loads the model and prints.

use std::ffi::OsString;
use std::process::ExitCode;

use super::python::{Module, Taken};
use super::serve::find_model;
use super::{Line, Trouble, tree};
use crate::config::{Count, Settings as _, Surroundings, settings};

const USAGE: &str = "\
pelton inspect program [MODEL] [FLAGS]: the calls that a step of the model is made of on a CPU, with buffers, bytes, operations, and how long
each took against what the machine allows. Takes --model, --dtype, --quantize, --quantize-skip, --kv-dtype, --task, --pooling,
--trust-remote-code, --threads and --python of `pelton serve`.
";

/// What this command uses of the server's settings, beside those of the hub.
const USED: [&str; 11] = [
    "config",
    "model",
    "dtype",
    "quantize",
    "quantize_skip",
    "kv_dtype",
    "task",
    "pooling",
    "trust_remote_code",
    "threads",
    "python",
];

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
    let taken = Taken { command: "pelton inspect program", own: Options::ALL, used: &USED };
    let Line::Run(values) = taken.resolve(USAGE, args, around)? else { return Ok(ExitCode::SUCCESS) };
    let (options, config) = (Options::take(&values), tree(&values)?);
    let folder = find_model(&config, around, &|_, _, _| ())?;
    let threads = config.worker.threads.said().map_or(0, |Count(threads)| threads); // 0: the worker chooses
    let mut module = Module::new(&config, "pelton.inspect");
    let flags = [("--all", options.all), ("--trust-remote-code", config.model.trust_remote_code)];
    module.line().arg(folder).args(flags.iter().filter(|(_, is_set)| *is_set).map(|(flag, _)| flag)).args([
        format!("--rows={}", options.rows.0),
        format!("--tokens={}", options.tokens.0),
        format!("--context={}", options.context.0),
        format!("--threads={threads}"),
        format!("--dtype={}", config.model.dtype.word()),
        format!("--quantize={}", config.model.quantize.word()),
        format!("--quantize-skip={}", config.model.quantize_skip),
        format!("--kv-dtype={}", config.engine.kv_dtype.word()),
        format!("--task={}", config.model.task.word()),
        format!("--pooling={}", config.model.pooling.said().map_or("", |pooling| pooling.word())),
    ]);
    Err(module.exec())
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
