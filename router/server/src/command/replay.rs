//! `pelton replay FILE`: runs a recording again, says whether every plan is the same, and explains each request.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use pelton_record::{End, Replay, Story, replay};
use serde_json::{Value, json};

use super::{Line, Trouble, resolve};
use crate::api::explained;
use crate::config::{Count, Settings as _, Surroundings, settings};

const USAGE: &str = "\
pelton replay FILE [FLAGS]: runs what `pelton serve --record FILE` recorded again, says whether every step is planned as it was then, and
explains each request: what it waited for, why its prompt was not cached, what it cost others. FILE may also be one of FILE.000001 and so
on. Only the build that recorded can replay. The exit code is 1 if a plan differs or a file is damaged.
";

settings! {
    /// Replay
    section Options ("replay", CommandLine) {
        /// The recording.
        file: Option<PathBuf>;
        /// Explain this request alone: its number in the recording.
        request: Option<Count<0, { u32::MAX }>>;
        /// Print one JSON object instead of text.
        json: bool = "false";
    }
}

/// Replays, and reports.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().collect();
    let Line::Run(values) = resolve(USAGE, args, Some("file"), &settings, around)? else {
        return Ok(ExitCode::SUCCESS);
    };
    let options = Options::take(&values);
    let file = options.file.ok_or_else(|| Trouble::Usage("say what to replay: `pelton replay FILE`".into()))?;
    let replay = replay(&file).map_err(|error| Trouble::Failed(format!("{}: {error}", file.display())))?;
    let is_asked = |request: u64| options.request.is_none_or(|asked| u64::from(asked.0) == request);
    let stories: Vec<(usize, &Story)> = replay
        .stories
        .iter()
        .filter(|((_, request), _)| is_asked(request.0))
        .map(|(&(run, _), story)| (run, story))
        .collect();
    if let (Some(request), []) = (options.request, stories.as_slice()) {
        return Err(Trouble::Failed(format!("{}: request {} is not in the recording", file.display(), request.0)));
    }
    if options.json {
        println!("{:#}", report_json(&replay, &stories));
    } else {
        print!("{}", report(&replay, &stories));
    }
    Ok(if replay.is_exact() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn report(replay: &Replay, stories: &[(usize, &Story)]) -> String {
    let mut page = String::new();
    for (at, &(run, story)) in stories.iter().enumerate() {
        let is_new = at == 0 || stories[at - 1].0 != run;
        if is_new && replay.runs.len() > 1 {
            page.push_str(&format!("process {}, which began to record {} s after 1970\n\n", run + 1, replay.runs[run]));
        }
        page.push_str(&explained::text(&story.explanation, &end(&story.end)));
        page.push('\n');
    }
    for (file, note) in lines(replay) {
        page.push_str(&format!("{file}: {note}\n"));
    }
    let (segments, calls, plans) = (replay.segments, replay.calls, replay.plans);
    let verdict = if replay.differences.is_empty() { "each as it was then" } else { "NOT as they were then" };
    page.push_str(&format!("{segments} segments, {calls} calls, {plans} plans: {verdict}\n"));
    page
}

fn report_json(replay: &Replay, stories: &[(usize, &Story)]) -> Value {
    let story = |&(run, story): &(usize, &Story)| {
        let mut value = explained::json(&story.explanation);
        value["process"] = json!(run + 1);
        value["end"] = json!(end(&story.end));
        value
    };
    json!({
        "is_exact": replay.is_exact(),
        "segments": replay.segments,
        "calls": replay.calls,
        "plans": replay.plans,
        "differences": replay.differences.len(),
        "notes": lines(replay).map(|(file, note)| json!({ "file": file, "note": note })).collect::<Vec<_>>(),
        "requests": stories.iter().map(story).collect::<Vec<_>>(),
    })
}

/// All that is not as it should be, with the file it is about.
fn lines(replay: &Replay) -> impl Iterator<Item = (String, String)> {
    let notes = replay.notes.iter().map(|(file, note)| (file, note.clone()));
    let assertions = replay.assertions.iter().map(|(file, what)| (file, format!("an assertion fires in {what}")));
    let differences = replay.differences.iter().map(|(file, difference)| {
        let (call, group, at) = (difference.calls, difference.group.0, explained::seconds(difference.now.0));
        (file, format!("DIFFERENT: the plan of call {call}, for worker group {group} at {at}"))
    });
    let damage = replay.damage.iter().map(|(file, damage)| (file, format!("DAMAGED: {damage}")));
    let all = notes.chain(assertions).chain(differences).chain(damage);
    all.map(|(file, what)| (file.display().to_string(), what)).collect::<Vec<_>>().into_iter()
}

fn end(end: &End) -> String {
    use pelton_engine::FinishReason::{Length, StopToken, Vector};
    match end {
        End::Finished(Length) => "finished by its length".to_owned(),
        End::Finished(Vector) => "finished by its vector".to_owned(),
        End::Finished(StopToken(token)) => format!("finished by token {token}"),
        End::Stopped => "finished by a stop string".to_owned(),
        End::Aborted => "aborted".to_owned(),
        End::Expired => "expired".to_owned(),
        End::Refused(why) => format!("refused: {why}"),
        End::Open => "not ended".to_owned(),
        End::Unseen => "ended where nothing was recorded".to_owned(),
    }
}
