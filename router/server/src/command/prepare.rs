//! `pelton prepare MODEL`: becomes `python -m pelton.prepare`, which loads the model as a worker of `pelton serve` would, and keeps it.

use std::ffi::OsString;
use std::process::ExitCode;

use super::python::{Module, Taken};
use super::serve::{engine_config, find_model};
use super::tokenizer_json::tokenizer_json;
use super::{Line, Trouble, tree};
use crate::config::{Config, Surroundings};

const USAGE: &str = "\
pelton prepare [MODEL] [FLAGS]: loads the model once and keeps it, so that `pelton serve` with the same flags starts without the checkpoint and
without PyTorch. Takes those flags of `pelton serve` that decide what is loaded, and how long a context fits. A model on a card is not kept.
";

/// What this command uses of the server's settings, beside those of the hub.
const USED: [&str; 25] = [
    "config",
    "model",
    "dtype",
    "max_model_len",
    "quantize",
    "quantize_skip",
    "model_backend",
    "trust_remote_code",
    "task",
    "pooling",
    "kv_memory",
    "kv_dtype",
    "memory_limit",
    "block_size",
    "token_budget",
    "max_running",
    "speculate",
    "speculate_max",
    "kv_host_memory",
    "workers",
    "device",
    "threads",
    "python",
    "model_cache",
    "model_cache_size",
];

/// The exit code is the module's.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let taken = Taken { command: "pelton prepare", own: &[], used: &USED };
    let Line::Run(values) = taken.resolve(USAGE, args, around)? else { return Ok(ExitCode::SUCCESS) };
    let config = tree(&values)?;
    refuse_what_keeps_nothing(&config)?;
    let folder = find_model(&config, around, &|_, _, _| ())?;
    drop(tokenizer_json(&folder, &config)?); // kept, too, if it has to be made
    let request = engine_config(&config, &folder)?.load.encoded().map_err(Trouble::Failed)?;

    Err(Module::new(&config, "pelton.prepare").exec_with(&request))
}

fn refuse_what_keeps_nothing(config: &Config) -> Result<(), Trouble> {
    if !config.worker.worker.is_empty() {
        let why = "`worker` names a worker that runs already, and a model is kept where its worker runs: run `pelton prepare` there";
        return Err(Trouble::Usage(why.into()));
    }
    if config.worker.model_cache_size.0 == 0 {
        return Err(Trouble::Usage("`model-cache-size` is 0, so nothing is kept; give it room".into()));
    }
    Ok(())
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
    fn what_would_be_ignored_or_keep_nothing_is_refused() {
        assert!(refusal(&["--port", "1"]).starts_with("`--port` has no meaning for `pelton prepare`"));
        assert!(refusal(&["--model-cache-size", "0"]).contains("nothing is kept"));
        let empty = tempfile::tempdir().expect("a folder");
        let folder = empty.path().to_str().expect("a path of letters");
        assert!(refusal(&[folder]).contains("has no config.json"));
    }

    #[test]
    fn what_decides_how_long_a_context_fits_is_taken() {
        let empty = tempfile::tempdir().expect("a folder");
        let folder = empty.path().to_str().expect("a path of letters");
        let flags = ["--max-running", "4", "--speculate", "ngram", "--speculate-max", "3", "--workers", "2"];
        let more = ["--kv-host-memory", "1MiB", "--device", "cpu"];
        assert!(refusal(&[&[folder][..], &flags, &more].concat()).contains("has no config.json"));
    }
}
