//! Masks of the requests that have a grammar, computed by a few threads beside the engine's own.
//!
//! The life of a mask:
//!   1. a step with a masked row is submitted; as soon as every token before that row's draw is committed, the engine thread
//!      asks for the mask (`Masks::ask`), which takes it no longer than a push to a queue;
//!   2. a thread lets the request's grammar take what was drawn since, computes the mask and writes it to the worker;
//!   3. a row that nobody wants any more, or that is void, is passed over at once, so that the worker waits for none.
//!
//! A request has one thread at most, and one mask to come: where a mask takes so long that its row comes back without it, the
//! request asks again for a later row, and what was computed for the first one goes there. So a slow grammar holds up
//! itself, and each of its masks is computed once.
//!
//! A grammar's state follows from the tokens alone: a worker's death does not touch it, and after a bug of ours it is made anew
//! from the journal. Never here: what a grammar is, steps, slots' owners.

use std::{
    num::NonZeroUsize,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use pelton_core::{RequestId, TokenId};
use pelton_frame::{Bell, MaskWriter};
use pelton_grammar::{Grammar, Mask, State, Stuck};

/// Threads at most, a quarter of the processors: few, as most masks take microseconds, and several, as some take milliseconds.
const THREADS_MAX: usize = 8;
/// Expressions of a grammar may be as deep as their text is long. Only what is touched is taken.
const STACK: usize = 256 << 20;
/// A request that has waited for one mask for so long is ended: its rows have come back without a token for long enough.
const MASK_WAIT_MAX: Duration = Duration::from_secs(60);

/// Fewer tokens that are certain are drawn one by one: the first of them is under way when they are found.
const RUN_MIN: usize = 4;

/// A live request's grammar, and the tokens that it has to take.
pub(crate) struct Tracked {
    grammar: Grammar,
    /// Whether it makes no difference to the request if tokens that are certain are not drawn.
    may_skip: bool,
    /// Locked by the one thread that has the request. None until the first mask.
    state: Mutex<Option<State>>,
    /// Locked for a push or a copy.
    wanted: Mutex<Wanted>,
}

#[derive(Default)]
struct Wanted {
    /// Everything that was drawn.
    drawn: Vec<TokenId>,
    /// The latest row that needs a mask.
    row: Option<MaskedRow>,
    /// Behind how many tokens the mask to come is wanted, and since when.
    since: Option<(usize, Instant)>,
    /// Whether a thread has the request, or will have it.
    is_taken: bool,
}

/// A row, and how many tokens are drawn before its own.
struct MaskedRow {
    drawn: usize,
    writer: Arc<MaskWriter>,
    step: u64,
    slot: u32,
}

/// A request that needs a mask.
struct Job {
    request: RequestId,
    tracked: Arc<Tracked>,
}

/// A request whose grammar cannot go on, and why.
type End = (RequestId, Stuck);

/// Tokens that must follow the first ones that a request draws.
pub(crate) struct Run {
    pub(crate) request: RequestId,
    /// How many these are.
    pub(crate) drawn: usize,
    pub(crate) tokens: Vec<TokenId>,
}

/// What threads tell the engine.
#[derive(Clone)]
struct Tells {
    stuck: Sender<End>,
    runs: Sender<Run>,
    bell: Arc<Bell>,
}

/// See the top of the file.
pub(crate) struct Masks {
    jobs: Option<Sender<Job>>, // none until the first one is asked for
    tells: Tells,              // for those threads
    stuck: Receiver<End>,
    runs: Receiver<Run>,
}

impl Tracked {
    /// At the beginning of an answer.
    pub(crate) fn new(grammar: Grammar, may_skip: bool) -> Arc<Self> {
        Arc::new(Self { grammar, may_skip, state: Mutex::default(), wanted: Mutex::default() })
    }

    /// A token was committed.
    pub(crate) fn push(&self, token: TokenId) {
        lock(&self.wanted).drawn.push(token);
    }

    /// The row that needs a mask, and the tokens that the grammar has not taken. None: the thread that has asked is done.
    fn next(&self, taken: usize) -> Option<(MaskedRow, Vec<TokenId>)> {
        let mut wanted = lock(&self.wanted);
        let Some(row) = wanted.row.take() else {
            wanted.is_taken = false;
            return None;
        };
        let fresh = wanted.drawn.get(taken..row.drawn).unwrap_or_default().to_vec();
        Some((row, fresh))
    }
}

impl Masks {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        let ((tells_stuck, stuck), (tells_runs, runs)) = (unbounded(), unbounded());
        Self { jobs: None, tells: Tells { stuck: tells_stuck, runs: tells_runs, bell }, stuck, runs }
    }

    /// Has the mask of a row computed, behind `drawn` tokens of its request, and written. A row that it asked for before has
    /// come back by now.
    pub(crate) fn ask(
        &mut self,
        request: RequestId,
        tracked: Arc<Tracked>,
        drawn: usize,
        (writer, step, slot): (&Arc<MaskWriter>, u64, u32),
    ) {
        let mut wanted = lock(&tracked.wanted);
        let since = wanted.since.filter(|&(before, _)| before == drawn).map_or_else(Instant::now, |(_, since)| since);
        wanted.since = Some((drawn, since));
        if since.elapsed() > MASK_WAIT_MAX {
            let why = format!("what may follow took longer than {} s to compute", MASK_WAIT_MAX.as_secs());
            let _ = self.tells.stuck.send((request, Stuck::Because(why))); // we have the other end
            return writer.pass_over(step, slot);
        }
        wanted.row = Some(MaskedRow { drawn, writer: Arc::clone(writer), step, slot });
        if std::mem::replace(&mut wanted.is_taken, true) {
            return;
        }
        drop(wanted);
        let jobs = self.jobs.get_or_insert_with(|| start(&self.tells));
        jobs.send(Job { request, tracked }).expect("its threads end after it");
    }

    /// Requests whose grammars cannot go on, since the last call.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = End> {
        self.stuck.try_iter()
    }

    /// Tokens that have turned out to be certain, since the last call.
    pub(crate) fn runs(&self) -> impl Iterator<Item = Run> {
        self.runs.try_iter()
    }
}

fn start(tells: &Tells) -> Sender<Job> {
    let (jobs, waiting) = unbounded::<Job>();
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for number in 0..(processors / 4).clamp(2, THREADS_MAX) {
        let (waiting, tells) = (waiting.clone(), tells.clone());
        let work = move || {
            for job in waiting {
                let done = catch_unwind(AssertUnwindSafe(|| job.run(&tells)));
                if let Err(why) = done.unwrap_or_else(|_| Err(Stuck::Because("an internal error".to_owned()))) {
                    let _ = tells.stuck.send((job.request, why)); // nobody hears it if the engine has ended
                    tells.bell.ring();
                }
            }
        };
        let thread = thread::Builder::new().name(format!("pelton-mask-{number}")).stack_size(STACK);
        thread.spawn(work).expect("a thread can be started");
    }
    jobs
}

impl Job {
    /// Computes masks as long as rows of the request need some.
    fn run(&self, tells: &Tells) -> Result<(), Stuck> {
        let mut state = lock(&self.tracked.state);
        let state = state.get_or_insert_with(|| self.tracked.grammar.begin());
        while let Some((row, fresh)) = self.tracked.next(state.taken()) {
            match behind(state, &fresh) {
                Ok(mask) => {
                    row.allow(mask);
                    lock(&self.tracked.wanted).since = None; // a row that is replayed waits anew
                    self.tell_run(state, tells);
                }
                Err(why) => {
                    row.writer.pass_over(row.step, row.slot);
                    return Err(why); // it stays taken: nobody asks for a request that has ended
                }
            }
        }
        Ok(())
    }
}

impl Job {
    /// Of the mask that was just made.
    fn tell_run(&self, state: &State, tells: &Tells) {
        if self.tracked.may_skip && state.begins_run() && state.run().len() >= RUN_MIN {
            let run = Run { request: self.request, drawn: state.taken(), tokens: state.run().collect() };
            let _ = tells.runs.send(run); // nobody hears it if the engine has ended
            tells.bell.ring();
        }
    }
}

fn behind<'a>(state: &'a mut State, fresh: &[TokenId]) -> Result<Mask<'a>, Stuck> {
    state.take(fresh)?;
    state.mask()
}

impl MaskedRow {
    fn allow(&self, mask: Mask<'_>) {
        let words = self.writer.words();
        let mask = match mask {
            Mask::Any => vec![u32::MAX; words],
            Mask::AllBut(tokens) => {
                let mut mask = vec![u32::MAX; words];
                for token in tokens {
                    if let Some(bits) = mask.get_mut(token as usize / 32) {
                        *bits &= !(1 << (token % 32)); // tokenizers may know tokens that their model does not
                    }
                }
                mask
            }
            Mask::Only(token) => {
                let mut mask = vec![0; words];
                mask[token as usize / 32] = 1 << (token % 32);
                mask
            }
            Mask::Of(mask) => {
                let mut mask = mask.to_vec();
                mask.resize(words, 0); // models have more logits than tokens
                mask
            }
        };
        self.writer.allow(self.step, self.slot, &mask);
    }
}

/// A state that a panic left half-done is stuck from then on, by its own account.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use pelton_frame::{MaskMemory, MaskState};
    use pelton_grammar::{Constraint, Script, Spelling, TokenText, Vocabulary};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Tokens "a", "b", the end.
    fn grammar(regex: &str) -> Grammar {
        let tokens = [TokenText::Bytes(b"a"), TokenText::Bytes(b"b"), TokenText::Special("<end>")];
        let vocabulary = Vocabulary::new(tokens.into_iter(), &[2]).expect("it has an end");
        vocabulary.compile(&Script::of(Constraint::Regex(regex.to_owned())), Spelling::Usual).expect("a regex")
    }

    /// The same, of which texts without a choice are spelled token by token.
    fn spelled(regex: &str) -> Grammar {
        let tokens = [TokenText::Bytes(b"a"), TokenText::Bytes(b"b"), TokenText::Special("<end>")];
        let spell = |text: &str| Some(text.bytes().map(|byte| u32::from(byte - b'a')).collect());
        let vocabulary = Vocabulary::spelled(tokens.into_iter(), &[2], Box::new(spell)).expect("it has an end");
        vocabulary.compile(&Script::of(Constraint::Regex(regex.to_owned())), Spelling::Usual).expect("a regex")
    }

    fn rig() -> (Masks, Arc<MaskWriter>, MaskMemory) {
        let memory = MaskMemory::local(2, 40, 1).expect("small"); // more logits than tokens
        let bell = Arc::new(Bell::create().expect("a bell"));
        (Masks::new(bell), Arc::new(MaskWriter::shared(memory.clone())), memory)
    }

    fn taken(memory: &MaskMemory, step: u64, slot: u32) -> Option<Vec<u32>> {
        let (mut words, mut states) = (Vec::new(), Vec::new());
        memory.take(step, [slot].into_iter(), LONG, &mut words, &mut states);
        (states == [MaskState::Here]).then_some(words)
    }

    #[test]
    fn a_mask_follows_what_was_drawn_and_is_the_same_when_it_is_asked_for_again() {
        let (mut masks, writer, memory) = rig();
        let tracked = Tracked::new(grammar("ab"), true);
        masks.ask(RequestId(1), Arc::clone(&tracked), 0, (&writer, 1, 0));
        assert_eq!(taken(&memory, 1, 0), Some(vec![0b001, 0]));
        tracked.push(0);
        tracked.push(1);
        masks.ask(RequestId(1), Arc::clone(&tracked), 1, (&writer, 2, 0));
        assert_eq!(taken(&memory, 2, 0), Some(vec![0b010, 0]));
        masks.ask(RequestId(1), Arc::clone(&tracked), 2, (&writer, 4, 1)); // in another slot
        assert_eq!(taken(&memory, 4, 1), Some(vec![0b100, 0]));
        masks.ask(RequestId(1), tracked, 2, (&writer, 5, 1));
        assert_eq!(taken(&memory, 5, 1), Some(vec![0b100, 0]));
        assert_eq!(masks.stuck().count(), 0);
    }

    #[test]
    fn a_grammar_that_cannot_go_on_lets_its_row_go_and_is_told() {
        let (mut masks, writer, memory) = rig();
        let tracked = Tracked::new(grammar("ab"), true);
        tracked.push(1); // no mask has allowed it
        let seen = masks.tells.bell.read();
        masks.ask(RequestId(7), tracked, 1, (&writer, 3, 1));
        assert_eq!(taken(&memory, 3, 1), None);
        masks.tells.bell.wait(seen, LONG);
        assert_eq!(masks.stuck().map(|(request, _)| request).collect::<Vec<_>>(), [RequestId(7)]);
    }

    #[test]
    fn tokens_that_are_certain_are_told_once_where_they_begin_if_there_are_enough() {
        let (mut masks, writer, memory) = rig();
        for (request, regex, may_skip, told) in
            [(1, "aabba", true, Some(vec![0, 0, 1, 1, 0])), (2, "aabba", false, None), (3, "aab", true, None)]
        {
            let tracked = Tracked::new(spelled(regex), may_skip);
            for (drawn, step) in [(0, 1), (1, 2), (2, 3)] {
                let step = 10 * request + step;
                masks.ask(RequestId(request), Arc::clone(&tracked), drawn, (&writer, step, 0));
                assert!(taken(&memory, step, 0).is_some_and(|mask| mask[0].count_ones() == 1));
                tracked.push([0, 0, 1][drawn]);
            }
            while lock(&tracked.wanted).is_taken {
                thread::yield_now();
            }
            let runs: Vec<_> = masks.runs().map(|run| (run.request.0, run.drawn, run.tokens)).collect();
            assert_eq!(runs, told.map(|tokens| (request, 0, tokens)).into_iter().collect::<Vec<_>>());
        }
    }

    /// As if its grammar took long.
    #[test]
    fn a_slow_grammar_has_one_thread_and_its_latest_row_gets_what_was_computed_for_an_earlier_one() {
        let (mut masks, writer, memory) = rig();
        let slow = Tracked::new(grammar("ab"), true);
        let computing = lock(&slow.state);
        for step in 1..20 {
            masks.ask(RequestId(1), Arc::clone(&slow), 0, (&writer, step, 0));
        }
        masks.ask(RequestId(2), Tracked::new(grammar("b"), true), 0, (&writer, 1, 1));
        assert_eq!(taken(&memory, 1, 1), Some(vec![0b010, 0]), "the others have threads");
        drop(computing);
        assert_eq!(taken(&memory, 19, 0), Some(vec![0b001, 0]));
        slow.push(0);
        masks.ask(RequestId(1), slow, 1, (&writer, 20, 0));
        assert_eq!(taken(&memory, 20, 0), Some(vec![0b010, 0]), "it goes on");
    }

    #[test]
    fn a_mask_that_does_not_come_ends_its_request() {
        let (mut masks, writer, memory) = rig();
        let slow = Tracked::new(grammar("ab"), true);
        let computing = lock(&slow.state);
        masks.ask(RequestId(1), Arc::clone(&slow), 0, (&writer, 1, 0));
        lock(&slow.wanted).since = Instant::now().checked_sub(2 * MASK_WAIT_MAX).map(|since| (0, since));
        masks.ask(RequestId(1), Arc::clone(&slow), 0, (&writer, 2, 0));
        assert_eq!(taken(&memory, 2, 0), None, "its row waits for nothing");
        let stuck: Vec<_> = masks.stuck().map(|(request, why)| (request.0, why.to_string())).collect();
        assert!(matches!(&stuck[..], [(1, why)] if why.contains("longer than 60 s")), "{stuck:?}");
        drop(computing);
    }

    /// As after the loss of a worker that has hung for long.
    #[test]
    fn a_mask_that_had_come_is_asked_for_again_at_any_time() {
        let (mut masks, writer, memory) = rig();
        let tracked = Tracked::new(grammar("ab"), true);
        masks.ask(RequestId(1), Arc::clone(&tracked), 0, (&writer, 1, 0));
        assert_eq!(taken(&memory, 1, 0), Some(vec![0b001, 0]));
        // Computed, and written; the thread notes it right after.
        while lock(&tracked.wanted).is_taken {
            thread::yield_now();
        }
        assert_eq!(lock(&tracked.wanted).since, None);
        masks.ask(RequestId(1), tracked, 0, (&writer, 2, 0));
        assert_eq!((taken(&memory, 2, 0), masks.stuck().count()), (Some(vec![0b001, 0]), 0));
    }
}
