//! `pelton bench serve`: load on a server that runs, and how it bears it.
//!
//! Streams `/v1/completions` with prompts of token ids, a fixed number at a time, so it measures any server with that API.
//! Latencies are counted from the moment a request is sent: time to the first token (TTFT), between tokens (ITL), to the end (E2E).

mod load;
mod plot;
mod prompts;
pub(super) mod quality;
mod report;
mod request;

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use self::prompts::{Scenario, TokenRange};
use self::report::Report;
use super::{Line, Trouble, print, resolve, runtime};
use crate::config::{Count, Row, Secret, Seed, Settings as _, Surroundings, Url, settings};

const USAGE: &str = "\
pelton bench serve --url URL [FLAGS]: measures a running server, one cell for each scenario and concurrency.

  pelton bench serve --scenario 32/64 512/64 1024+32/32 -c 1 8 32 --json results.jsonl --plot results.svg
";

settings! {
    /// Bench
    section Options ("bench", CommandLine) {
        /// The server.
        url: Url = "http://127.0.0.1:8000";
        /// The model to ask for. Not set: the first one that the server lists.
        model: Option<String>;
        /// The key that the server asks for.
        api_key: Option<Secret>;
        /// Prompt and output tokens of a request, `PROMPT/OUTPUT`; `SHARED+PROMPT/OUTPUT` begins all prompts with the same SHARED tokens.
        scenario: Row<Scenario> = "32/64";
        /// Requests at a time.
        concurrency: Row<Count<1, 65536>> = "1", short 'c';
        /// Requests of each cell. Not set: twice the concurrency, and at least 4.
        requests: Option<Count<1, 10_000_000>>;
        /// Requests before each cell that are not counted, so that caches and connections are warm.
        warmup: Count<0, 1000> = "1";
        /// Times that each cell is measured.
        repeat: Count<1, 1000> = "1";
        /// What prompts are drawn from. Each cell gets its own, so none finds another's prefixes in the cache.
        seed: Seed = "1";
        /// Token ids that prompts are made of, FIRST..LAST; all must be in the model's vocabulary.
        token_range: TokenRange = "300..4000";
        /// A new connection for each request.
        fresh: bool = "false";
        /// A request that takes longer counts as failed.
        timeout: Duration = "10m";
        /// A word of yours that stands in every result.
        label: Option<String>;
        /// A file that gets one JSON object a line for each cell.
        json: Option<PathBuf>;
        /// An SVG file that gets a picture of throughput and latencies.
        plot: Option<PathBuf>;
    }
}

/// Measures, prints a row for each cell, and writes the files. The exit code is 1 if any request failed.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().collect();
    let Line::Run(values) = resolve(USAGE, args, None, &settings, around)? else { return Ok(ExitCode::SUCCESS) };
    let options = Options::take(&values);
    check_files(&options)?;
    crate::machine::raise_open_files();
    let reports = runtime()?.block_on(measure(&options))?;
    if let Some(path) = &options.plot {
        std::fs::write(path, plot::svg(&reports)).map_err(|error| file_trouble(path, &error))?;
    }
    let is_clean = reports.iter().all(|report| report.errors == 0);
    Ok(if is_clean { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

async fn measure(options: &Options) -> Result<Vec<Report>, Trouble> {
    let target = request::Target::find(options).await.map_err(Trouble::Failed)?;
    print(format_args!("{}\n", report::HEADING))?;
    let mut reports = Vec::new();
    let mut seed = options.seed.0;
    for scenario in &options.scenario.0 {
        for Count(concurrency) in &options.concurrency.0 {
            for _ in 0..options.repeat.0 {
                let cell = load::Cell {
                    scenario: *scenario,
                    concurrency: *concurrency,
                    requests: options.requests.map_or((2 * concurrency).max(4), |count| count.0),
                    warmup: options.warmup.0,
                    range: options.token_range,
                    seed,
                    timeout: options.timeout,
                };
                seed = seed.wrapping_add(1);
                let report =
                    Report::new(&cell, &load::run(&target, &cell).await, target.model(), options.label.as_deref());
                print(format_args!("{}\n", report.row()))?;
                if let Some(path) = &options.json {
                    append(path, &report.json().to_string())?;
                }
                reports.push(report);
            }
        }
    }
    Ok(reports)
}

/// That the files can be written is known before anything is measured.
fn check_files(options: &Options) -> Result<(), Trouble> {
    for (flag, path) in [("--json", &options.json), ("--plot", &options.plot)] {
        let Some(path) = path else { continue };
        let tried = std::fs::File::options().create(true).append(true).open(path);
        tried.map_err(|error| Trouble::Failed(format!("`{flag}` is {}: {error}", path.display())))?;
    }
    Ok(())
}

/// A cell's result is kept as soon as it is there: a long run that is cut loses nothing.
fn append(path: &Path, line: &str) -> Result<(), Trouble> {
    let file = std::fs::File::options().create(true).append(true).open(path);
    file.and_then(|mut file| writeln!(file, "{line}")).map_err(|error| file_trouble(path, &error))
}

fn file_trouble(path: &Path, error: &std::io::Error) -> Trouble {
    Trouble::Failed(format!("{}: {error}", path.display()))
}
