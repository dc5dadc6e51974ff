//! `pelton run-batch`: answers a file of requests, as OpenAI's batches have it, into a file of answers, with a server of its own.
//!
//! 1. The whole input is checked, before the model is loaded.
//! 2. The model is loaded, and each request goes the way that a client's would.
//! 3. Each answer is written as it comes: whatever ends the run, `--resume` goes on behind the last whole line.
//!
//! Code 0: all requests have a line in the output, and those that were refused say why. 1: some have none.

use std::ffi::OsString;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use tokio::fs::{File, OpenOptions};
use tokio::io::{AsyncWriteExt as _, BufWriter};
use tokio_util::sync::CancellationToken;

use super::serve::{Server, Stop, start_unless_stopped};
use super::{Line, Trouble, print, resolve, runtime, tree};
use crate::api::batches::Item;
use crate::batches::{Ended, Form, Sink, Unanswered, Work, answered, unanswered};
use crate::config::{
    Auto, Config, Count, Origin, Setting, Settings as _, Surroundings, Values, server_settings, settings,
};
use crate::display::count;
use crate::files::{FileError, Place, end_of_lines};
use crate::http::InnerAnswer;
use crate::logging;

const USAGE: &str = "\
pelton run-batch -i FILE -o FILE [MODEL] [FLAGS]: answers a file of requests into a file of answers, each line as in OpenAI's batches
(docs/batches.md). It serves MODEL (or the demo model) to nobody else and takes the flags of `pelton serve`.
";

settings! {
    /// Run a batch
    section Options ("run-batch", CommandLine) {
        /// The requests, one a line: {"custom_id": ..., "method": "POST", "url": "/v1/chat/completions", "body": {...}}. `-` is
        /// standard input.
        input_file: Option<PathBuf>, short 'i';
        /// Where the answers go, one a line, in the order in which they come. What is there is written over.
        output_file: Option<PathBuf>, short 'o';
        /// Whether to go on with an output of an earlier run: what it has answered is left as it is.
        resume: bool = "false";
    }
}

/// Runs a file.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().chain(server_settings()).collect();
    let Line::Run(values) = resolve(USAGE, args, Some("model"), &settings, around)? else {
        return Ok(ExitCode::SUCCESS);
    };
    refuse_what_would_be_ignored(&settings, &values)?;
    let options = Options::take(&values);
    let missing = |flag: &str| Trouble::Usage(format!("`{flag}` is missing: {}", USAGE.lines().next().unwrap_or("")));
    let input = options.input_file.ok_or_else(|| missing("--input-file"))?;
    let output = options.output_file.ok_or_else(|| missing("--output-file"))?;
    let mut config = tree(&values)?;
    for_nobody_else(&mut config);
    let bars = MultiProgress::new();
    logging::start(&config.log, &bars);
    let input = Input::open(&input)?;
    refuse_one_file(&input.path, &output)?;
    let runtime = runtime()?;
    let ran = runtime.block_on(async {
        let form = Form { endpoint: None, body_bytes: config.server.body_limit.0 as usize };
        let work = Work::new(input.path.clone(), form, 0);
        let run = Run { config: &config, around, bars: &bars, output: &output, resumes: options.resume };
        run.from(work).await
    });
    runtime.shutdown_timeout(Duration::from_millis(100));
    ran
}

/// Fields of settings that say who may reach a server, and what it keeps for them.
const OF_CLIENTS: [&str; 12] = [
    "host",
    "port",
    "grpc_port",
    "api_key",
    "api_key_file",
    "max_connections",
    "files_dir",
    "files_max",
    "max_file_size",
    "response_store_count",
    "response_store_size",
    "response_store_lifetime",
];

/// Flags that this command would not use. Variables and files speak to all commands, so theirs are no mistake.
fn refuse_what_would_be_ignored(settings: &[&Setting], values: &Values) -> Result<(), Trouble> {
    let flags: Vec<String> = settings
        .iter()
        .filter(|setting| OF_CLIENTS.contains(&setting.field))
        .filter(|setting| matches!(values.given(setting.field).origin, Origin::Flag(_)))
        .map(|setting| format!("`{}`", setting.flag()))
        .collect();
    if flags.is_empty() {
        return Ok(());
    }
    Err(Trouble::Usage(format!(
        "{} has no meaning here: no client reaches this server; leave it out",
        flags.join(", ")
    )))
}

/// On the loopback, on any free port, for this run alone: all that runs at once may be the file's.
fn for_nobody_else(config: &mut Config) {
    // What runs and, behind it, what is to run next.
    let all = || Count(config.running_in_all().saturating_mul(2).min(65_536));
    let in_flight = config.server.batch_in_flight.said().unwrap_or_else(all);
    config.server.host = "127.0.0.1".into();
    config.server.port = 0;
    config.server.grpc_port = None;
    config.server.api_key.clear();
    config.server.api_key_file = None;
    config.server.files_dir = None;
    config.server.response_store_count = Count(0);
    config.server.batch_in_flight = Auto::Of(in_flight);
}

/// Answers would be written over the requests, which are read again.
fn refuse_one_file(input: &Path, output: &Path) -> Result<(), Trouble> {
    let place = |path: &Path| std::fs::metadata(path).ok().map(|about| (about.dev(), about.ino()));
    if place(input) != place(output) {
        return Ok(());
    }
    let (input, output) = (input.display(), output.display());
    Err(Trouble::Usage(format!(
        "`output-file` is {output}, the same file as `input-file` {input}: give it another name"
    )))
}

/// A file that can be read twice.
struct Input {
    path: PathBuf,
    /// What came by standard input, as long as this lives.
    _copied: Option<Place>,
}

impl Input {
    /// Waits for the end of standard input, if that is it.
    fn open(path: &Path) -> Result<Self, Trouble> {
        let failed = |error: &dyn std::fmt::Display| Trouble::Failed(format!("the input {}: {error}", path.display()));
        if path != Path::new("-") {
            let about = std::fs::metadata(path).map_err(|error| failed(&error))?;
            if !about.is_file() {
                return Err(failed(&"it is no file; standard input is `-`"));
            }
            return Ok(Self { path: path.to_owned(), _copied: None });
        }
        let place = Place::private(&std::env::temp_dir()).map_err(|error| failed(&error))?;
        let copy = place.files().join("input");
        let copied = std::fs::File::create_new(&copy).and_then(|mut file| io::copy(&mut io::stdin().lock(), &mut file));
        copied.map_err(|error| failed(&error))?;
        Ok(Self { path: copy, _copied: Some(place) })
    }
}

/// Everything that a run needs beside its work.
struct Run<'a> {
    config: &'a Config,
    around: &'a Surroundings,
    bars: &'a MultiProgress,
    output: &'a Path,
    resumes: bool,
}

impl Run<'_> {
    async fn from(&self, mut work: Work) -> Result<ExitCode, Trouble> {
        let failed = |error: io::Error| Trouble::Failed(format!("the input: {error}"));
        let total = work.check().await.map_err(failed)?.map_err(|errors| {
            let mut text = "the input cannot be run; nothing was begun:".to_owned();
            for error in errors {
                let place = error.line.map_or_else(String::new, |line| format!("line {line}: "));
                text += &format!("\n  {place}{}", error.message);
            }
            Trouble::Failed(text)
        })?;
        let mut stop = Stop::listen()?;
        let mut answers = Answers::open(self, total).await?;
        if self.resumes {
            let [before] = work.resume([self.output]).await.map_err(|error| self.unwritten(&error))?;
            answers.before(before);
        }
        let started = start_unless_stopped(self.config, self.around, self.bars, &mut stop).await?;
        let ended = match started {
            None => Ended::Stopped,
            Some(mut server) => {
                answers.write_over(self.resumes).await.map_err(|error| self.unwritten(&error))?;
                let ran = self.answer(&mut server, &mut work, &mut answers, &mut stop).await;
                server.stop().await;
                ran?
            }
        };
        answers.end(ended, self.output).await.map_err(|error| self.unwritten(&error))
    }

    async fn answer(
        &self,
        server: &mut Server,
        work: &mut Work,
        answers: &mut Answers,
        stop: &mut Stop,
    ) -> Result<Ended, Trouble> {
        tokio::select! {
            loaded = server.loaded(self.bars) => loaded?,
            () = stop.asked() => return Ok(Ended::Stopped),
        }
        let (door, stopping) = (Arc::new(server.inner_door()), CancellationToken::new());
        answers.begin();
        let mut answering = std::pin::pin!(work.answer(&door, answers, &stopping, std::future::pending()));
        let answered = tokio::select! {
            answered = &mut answering => answered,
            trouble = server.failed() => return Err(trouble),
            () = stop.asked() => {
                tracing::info!("stopping: requests under way may finish; a second signal ends at once");
                stopping.cancel();
                tokio::select! {
                    answered = &mut answering => answered,
                    () = stop.asked_again() => Ok(Ended::Stopped),
                }
            }
        };
        answered.map_err(|error| self.unwritten(&error))
    }

    fn unwritten(&self, error: &dyn std::fmt::Display) -> Trouble {
        Trouble::Failed(format!("the output {}: {error}", self.output.display()))
    }
}

/// The output, and how far it is.
struct Answers {
    file: BufWriter<File>,
    bar: ProgressBar,
    total: u64,
    answered: u64,
    refused: u64,
    began: Instant,
    /// Whether what is in the file is of this run, or of those that it goes on with.
    is_ready: bool,
}

impl Answers {
    async fn open(run: &Run<'_>, total: u64) -> Result<Self, Trouble> {
        let open = async {
            let mut options = OpenOptions::new();
            options.read(true).write(true).create(true).truncate(false);
            let mut file = options.open(run.output).await?;
            if run.resumes {
                let end = end_of_lines(&mut file).await?;
                file.set_len(end).await?;
                tokio::io::AsyncSeekExt::seek(&mut file, io::SeekFrom::End(0)).await?;
            }
            Ok(file)
        };
        let file = open.await.map_err(|error: io::Error| run.unwritten(&error))?;
        let bar = run.bars.add(ProgressBar::no_length());
        Ok(Self {
            file: BufWriter::new(file),
            bar,
            total,
            answered: 0,
            refused: 0,
            began: Instant::now(),
            is_ready: run.resumes,
        })
    }

    /// What an earlier run has answered.
    fn before(&mut self, count: u64) {
        self.answered = count;
    }

    /// What is there goes only now: nothing of it is lost to a model that is not found. Pipes and devices have nothing there.
    async fn write_over(&mut self, resumes: bool) -> io::Result<()> {
        self.is_ready = true;
        let file = self.file.get_ref();
        if !resumes && file.metadata().await?.is_file() {
            file.set_len(0).await?;
        }
        Ok(())
    }

    fn begin(&mut self) {
        self.began = Instant::now();
        let look = "answering {wide_bar} {human_pos}/{human_len} {eta} left";
        self.bar.set_style(ProgressStyle::with_template(look).expect("a valid template"));
        self.bar.set_length(self.total);
        self.bar.set_position(self.answered);
        self.bar.reset_eta();
    }

    async fn write(&mut self, line: &[u8]) -> Result<(), FileError> {
        self.file.write_all(line).await?;
        // A line is there as soon as it is answered.
        self.file.flush().await?;
        self.answered += 1;
        self.bar.set_position(self.answered);
        self.say_each_tenth();
        Ok(())
    }

    /// Where nobody sees a bar.
    fn say_each_tenth(&self) {
        let tenth = |answered: u64| answered * 10 / self.total.max(1);
        if self.bar.is_hidden() && tenth(self.answered) > tenth(self.answered - 1) {
            tracing::info!(answered = self.answered, of = self.total, "answering");
        }
    }

    async fn end(mut self, ended: Ended, output: &Path) -> Result<ExitCode, io::Error> {
        self.file.flush().await?;
        self.bar.finish_and_clear();
        let Self { total, answered, refused, .. } = self;
        if !self.is_ready {
            super::complain(&format!(
                "nothing was begun; {} is as it was: give the same command again",
                output.display()
            ));
            return Ok(ExitCode::FAILURE);
        }
        let left = total.saturating_sub(answered);
        let seconds = self.began.elapsed().as_secs_f64();
        let mut text = format!("{} of {} requests answered in {seconds:.1} s", count(answered), count(total));
        if refused > 0 {
            text += &format!(", {} with an error", count(refused));
        }
        text += &format!(": {}\n", output.display());
        _ = print(&text); // the exit code tells the same
        if ended == Ended::Whole && left == 0 {
            return Ok(ExitCode::SUCCESS);
        }
        super::complain(&format!("{} requests are not answered; --resume goes on with them", count(left)));
        Ok(ExitCode::FAILURE)
    }
}

impl Sink for Answers {
    async fn answered(&mut self, item: &Item, answer: &InnerAnswer) -> Result<(), FileError> {
        self.refused += u64::from(!answer.status.is_success());
        self.write(&answered(item, answer)).await
    }

    async fn unanswered(&mut self, item: &Item, why: &Unanswered) -> Result<(), FileError> {
        self.refused += 1;
        self.write(&unanswered(item, why)).await
    }
}
