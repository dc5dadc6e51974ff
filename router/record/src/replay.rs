//! Makes the recorded calls again, compares every plan with the one that was made then, and tells what each request went
//! through.
//!
//! Each segment begins with its own snapshot, so a gap or a damaged file costs what is missing and nothing else.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};

use pelton_core::{
    Core, Event, Explanation, FinishReason, GroupId, Micros, NewRequest, RequestId, RowResult, StepResults, TokenScore,
};

use crate::call::{Call, Digest};
use crate::format::Damage;
use crate::reader::{Segment, segments};

/// How a request's story ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum End {
    /// A stop token, enough tokens, or its vector.
    Finished(FinishReason),
    /// Its text reached a stop string.
    Stopped,
    /// Its client left, or the engine gave it up.
    Aborted,
    /// Its deadline passed.
    Expired,
    /// It could not be served.
    Refused(String),
    /// It had not ended when the recording did.
    Open,
    /// It ended where nothing was recorded.
    Unseen,
}

/// What became of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Story {
    /// What it went through.
    pub explanation: Explanation,
    /// How it ended.
    pub end: End,
}

/// A plan that is not the one that was made then: the first such one of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// Whose plan.
    pub group: GroupId,
    /// Asked for when.
    pub now: Micros,
    /// How many calls of the segment came before.
    pub calls: u64,
}

/// What a replay found.
#[derive(Debug, Default)]
pub struct Replay {
    /// By process (its number, in the order of the recording) and request.
    pub stories: BTreeMap<(usize, RequestId), Story>,
    /// When each process began to record, in seconds since 1970.
    pub runs: Vec<u64>,
    /// Segments that were read.
    pub segments: u64,
    /// Calls that were made again.
    pub calls: u64,
    /// Plans that were compared.
    pub plans: u64,
    /// Where plans differ.
    pub differences: Vec<(PathBuf, Difference)>,
    /// Files that could not be read, or not to their end.
    pub damage: Vec<(PathBuf, Damage)>,
    /// Calls in which an assertion fires: what the incident may be about.
    pub assertions: Vec<(PathBuf, String)>,
    /// Whatever else one should know.
    pub notes: Vec<(PathBuf, String)>,
}

impl Replay {
    /// Whether all that was recorded could be read and gave the same plans.
    pub fn is_exact(&self) -> bool {
        self.differences.is_empty() && self.damage.is_empty()
    }
}

/// Replays all segments of a recording, oldest first.
pub fn replay(recording: &Path) -> Result<Replay, std::io::Error> {
    let mut replayer = Replayer { replay: Replay::default(), last: None };
    for path in segments(recording)? {
        match Segment::open(&path) {
            Ok(segment) => replayer.segment(&path, segment),
            Err(damage) => {
                replayer.last = None;
                replayer.replay.damage.push((path, damage));
            }
        }
    }
    Ok(replayer.replay)
}

struct Replayer {
    replay: Replay,
    /// The segment before: its run, its number, and whether it was read to its end.
    last: Option<(u64, u64, bool)>,
}

/// One segment under way.
struct Running<'a> {
    core: Core,
    run: usize,
    stories: &'a mut BTreeMap<(usize, RequestId), Story>,
    asked: Option<(GroupId, Micros, Option<Digest>)>, // the plan that was made last
    calls: u64,
    plans: u64,
}

impl Replayer {
    fn segment(&mut self, path: &Path, segment: Segment) {
        let Segment { header, snapshot, mut calls } = segment;
        let replay = &mut self.replay;
        if self.last.is_none_or(|(run, ..)| run != header.run) {
            replay.runs.push(header.began);
        }
        let follows = self.last == Some((header.run, header.number.wrapping_sub(1), true)) && header.is_continued;
        if header.lost > 0 {
            replay.notes.push((path.to_owned(), format!("a gap before it: {} calls were not recorded", header.lost)));
        } else if header.is_continued && !follows {
            replay
                .notes
                .push((path.to_owned(), "a gap before it: the segment before was removed, or not read".to_owned()));
        }
        let run = replay.runs.len() - 1;
        // The invariants are asserted: a file that somebody made up must not end the replay of the others.
        let Ok(core) = catch_unwind(|| Core::restore(snapshot)) else {
            let what = "its snapshot makes no sense".to_owned();
            replay.damage.push((path.to_owned(), Damage::Record { at: 0, what }));
            self.last = None;
            return;
        };
        for (_, story) in replay.stories.range_mut((run, RequestId(0))..(run + 1, RequestId(0))) {
            if story.end == End::Open && core.explain(story.explanation.request).is_none() {
                story.end = End::Unseen;
            }
        }
        let mut running = Running { core, run, stories: &mut replay.stories, asked: None, calls: 0, plans: 0 };
        let mut damage = None;
        let mut difference = None;
        // An assertion may be what was recorded: then the replay shows it and goes on with the next segment.
        let fired = catch_unwind(AssertUnwindSafe(|| {
            for call in calls.by_ref() {
                match call {
                    Err(found) => damage = Some(found),
                    Ok(call) => difference = running.make(call),
                }
                if difference.is_some() {
                    break;
                }
            }
        }));
        running.keep_live();
        replay.segments += 1;
        replay.calls += running.calls;
        replay.plans += running.plans;
        let calls_made = running.calls;
        let is_whole = calls.has_end() && difference.is_none() && fired.is_ok();
        match fired {
            Err(cause) => replay.assertions.push((path.to_owned(), format!("call {calls_made}: {}", words(&*cause)))),
            Ok(()) if damage.is_none() && difference.is_none() && !calls.has_end() => {
                replay.notes.push((
                    path.to_owned(),
                    "it was not ended: the process was killed, still runs, or the file was cut".to_owned(),
                ));
            }
            Ok(()) => {}
        }
        replay.damage.extend(damage.map(|damage| (path.to_owned(), damage)));
        replay.differences.extend(difference.map(|difference| (path.to_owned(), difference)));
        self.last = Some((header.run, header.number, is_whole));
    }
}

impl Running<'_> {
    /// Makes a call again. Some: the plan differs.
    fn make(&mut self, call: Call) -> Option<Difference> {
        self.calls += 1;
        match call {
            Call::AddGroup { group, blocks, reaches_host } => self.core.add_group(group, blocks, reaches_host),
            Call::Submit(new) => self.submit(*new),
            Call::Abort(request) => {
                self.keep(request, End::Aborted);
                self.core.abort(request);
            }
            Call::Finish(request) => {
                self.keep(request, End::Stopped);
                self.core.finish(request);
            }
            Call::Hold(request) => self.core.hold(request),
            Call::Force { request, drawn, tokens } => self.core.force(request, drawn, tokens),
            Call::Withdraw { request, trust } => self.core.withdraw(request, trust),
            Call::Release(request) => {
                self.keep(request, End::Open); // it may be refused
                self.core.release(request);
            }
            Call::Pin(new) => {
                let _ = self.core.pin(*new); // refused then, refused now
            }
            Call::Unpin(pin) => self.core.unpin(pin),
            Call::Tick(now) => self.core.tick(now),
            Call::Clock(now) => self.core.clock(now),
            Call::Plan { group, now } => {
                let plan = self.core.plan(group, now);
                self.asked = Some((group, now, plan.as_ref().map(Digest::of)));
            }
            Call::Planned(then) => {
                self.plans += u64::from(then.is_some());
                let (group, now, again) = self.asked.take()?;
                if then != again {
                    return Some(Difference { group, now, calls: self.calls - 1 });
                }
            }
            Call::Commit { group, step, took_us, tokens, vectors, scores } => {
                let draw = |token| RowResult { token, logprobs: None };
                let draws = tokens.into_iter().map(|token| token.map(draw)).collect();
                // Refused then, refused now: the plans after it say so.
                let (vectors, scores) = (vec![Box::default(); vectors], vec![TokenScore::default(); scores]);
                let _ = self.core.commit(group, StepResults { step, took_us, draws, vectors, scores });
            }
            Call::WorkerLost(group) => self.core.worker_lost(group),
            Call::RemoveGroup(group) => {
                self.keep_live(); // it may refuse some
                self.core.remove_group(group);
            }
            Call::DiskOrders => drop(self.core.disk_orders()),
            Call::DiskDone { place, result } => self.core.disk_done(place, result),
            Call::RestoreDisk(entries) => self.core.restore_disk(entries),
            Call::ClearTiers => self.core.clear_tiers(),
            Call::WorkerBack { group, blocks, reaches_host } => {
                self.keep_live(); // it may refuse some
                self.core.worker_back(group, blocks, reaches_host);
            }
        }
        self.hear();
        None
    }

    fn submit(&mut self, new: NewRequest) {
        let (id, prompt) = (new.id, u32::try_from(new.prompt.len()).unwrap_or(u32::MAX));
        let (arrival, deadline) = (new.arrival, new.deadline);
        match self.core.submit(new) {
            Ok(()) => self.keep(id, End::Open),
            Err(refusal) => {
                let explanation = Explanation::new(id, arrival, deadline, prompt);
                self.stories.insert((self.run, id), Story { explanation, end: End::Refused(refusal.to_string()) });
            }
        }
    }

    fn hear(&mut self) {
        let Self { core, stories, run, .. } = self;
        for event in core.events() {
            let (explanation, end) = match event {
                Event::Finished { reason, explanation, .. } => (explanation, End::Finished(reason)),
                Event::Expired { explanation, .. } => (explanation, End::Expired),
                Event::Refused { request, refusal } => {
                    if let Some(story) = stories.get_mut(&(*run, request)) {
                        story.end = End::Refused(refusal.to_string());
                    }
                    continue;
                }
                Event::Admitted { .. } | Event::Token { .. } | Event::Scored { .. } | Event::Vector { .. } => continue,
            };
            stories.insert((*run, explanation.request), Story { explanation: *explanation, end });
        }
        let groups: Vec<GroupId> = core.groups().collect();
        groups.into_iter().for_each(|group| drop(core.cache_changes(group)));
    }

    fn keep(&mut self, request: RequestId, end: End) {
        if let Some(explanation) = self.core.explain(request) {
            self.stories.insert((self.run, request), Story { explanation, end });
        }
    }

    fn keep_live(&mut self) {
        let live: Vec<RequestId> = self.core.live().collect();
        live.into_iter().for_each(|request| self.keep(request, End::Open));
    }
}

fn words(cause: &(dyn std::any::Any + Send)) -> String {
    let text = cause.downcast_ref::<&str>().copied().or_else(|| cause.downcast_ref::<String>().map(String::as_str));
    text.unwrap_or("an assertion fires").to_owned()
}
