//! `pelton bench quality`: what rounding the weights costs. Tokenises a text and hands it to `python -m pelton.quality`, which loads the
//! model twice and compares.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use pelton_text::Tokenizer;

use crate::command::python::{Module, Taken};
use crate::command::serve::find_model;
use crate::command::tokenizer_json::tokenizer_json;
use crate::command::{Line, Trouble, tree};
use crate::config::{Count, Quantize, Settings as _, Surroundings, settings};

const USAGE: &str = "\
pelton bench quality [MODEL] --quantize int8 [FLAGS]: how far the model's predictions move when its weights are quantised: KL divergence
and how often the likeliest token stays the same, token by token over a text. Takes --model, --dtype (of both), --quantize,
--quantize-skip, --trust-remote-code, --threads and --python of `pelton serve`.
";

/// What this command uses of the server's settings, beside those of the hub.
const USED: [&str; 8] =
    ["config", "model", "dtype", "quantize", "quantize_skip", "trust_remote_code", "threads", "python"];

/// Prose and code in English, 15 KB.
const TEXT: &str = include_str!("../../../../../bench/quality/text.txt");

settings! {
    /// Quality
    section Options ("quality", CommandLine) {
        /// The text, UTF-8. Not set: one that comes with Pelton.
        text: Option<PathBuf>;
        /// Tokens of it that are looked at, at most.
        tokens: Count<2, 1_000_000> = "2048";
        /// Tokens that one prediction may look back on: the text is cut into windows of so many.
        window: Count<2, 65536> = "512";
        /// A file that gets the result as a JSON object.
        json: Option<PathBuf>;
    }
}

/// The exit code is the module's.
pub(in crate::command) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let taken = Taken { command: "pelton bench quality", own: Options::ALL, used: &USED };
    let Line::Run(values) = taken.resolve(USAGE, args, around)? else { return Ok(ExitCode::SUCCESS) };
    let (options, config) = (Options::take(&values), tree(&values)?);
    if config.model.quantize == Quantize::Auto {
        let why = "`quantize` is auto, which changes nothing; allowed: int8, int8-a16, int4, int4-a16";
        return Err(Trouble::Usage(why.to_owned()));
    }
    let text = match &options.text {
        None => TEXT.to_owned(),
        Some(path) => std::fs::read_to_string(path).map_err(|error| super::file_trouble(path, &error))?,
    };
    let folder = find_model(&config, around, &|_, _, _| ())?;
    let json = tokenizer_json(&folder, &config)?;
    let tokenizer = Tokenizer::from_json(&json).map_err(|error| Trouble::Failed(format!("the tokenizer: {error}")))?;
    let mut ids = tokenizer.encode(&text, false).map_err(|error| Trouble::Failed(format!("the text: {error}")))?;
    ids.truncate(options.tokens.0 as usize);

    let mut module = Module::new(&config, "pelton.quality");
    module.line().arg(folder).args([
        format!("--dtype={}", config.model.dtype.word()),
        format!("--quantize={}", config.model.quantize.word()),
        format!("--quantize-skip={}", config.model.quantize_skip),
        format!("--threads={}", config.worker.threads.said().map_or(0, |Count(threads)| threads)),
        format!("--window={}", options.window.0),
    ]);
    if config.model.trust_remote_code {
        module.line().arg("--trust-remote-code");
    }
    if let Some(path) = &options.json {
        module.line().arg("--json").arg(path);
    }
    let numbers: Vec<String> = ids.iter().map(u32::to_string).collect();
    Err(module.exec_with(numbers.join(" ").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_would_compare_nothing_is_refused() {
        let refusal = |line: &[&str]| {
            let args: Vec<OsString> = line.iter().map(OsString::from).collect();
            match run(&args, &Surroundings::default()) {
                Err(Trouble::Usage(message) | Trouble::Failed(message)) => message,
                Ok(_) => panic!("{line:?} was taken"),
            }
        };
        assert!(refusal(&[]).contains("`quantize` is auto, which changes nothing"));
        assert!(refusal(&["--quantize", "int3"]).contains("allowed: auto, int8, int8-a16, int4, int4-a16"));
        assert!(refusal(&["--quantize", "int4", "--port", "1"]).starts_with("`--port` has no meaning"));
        assert!(refusal(&["--quantize", "int4", "--text", "/no/text"]).starts_with("/no/text: "));
    }
}
