//! Masks of the requests that have a grammar, computed by a few threads beside the engine's own.
//!
//! The life of a mask:
//!   1. a step with a masked row is submitted; as soon as every token before that row's draw is committed, the engine thread
//!      asks for the mask (`Masks::ask`), which takes it no longer than a push to a queue;
//!   2. a thread lets the request's grammar take what was drawn since, computes the mask and writes it to the worker;
//!   3. a row that nobody wants any more, or that is void, is passed over at once, so that the worker waits for none.
//!
//! A grammar's state follows from the tokens alone: a worker's death does not touch it, and after a bug of ours it is made anew
//! from the journal. Never here: what a grammar is, steps, slots' owners.

use std::{
    num::NonZeroUsize,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
};

use crossbeam_channel::{Receiver, Sender, unbounded};
use pelton_core::{RequestId, TokenId};
use pelton_frame::{Bell, MaskWriter};
use pelton_grammar::{Grammar, State, Stuck};

/// Threads at most, a quarter of the processors: few, as most masks take microseconds, and several, as some take milliseconds.
const THREADS_MAX: usize = 8;

/// A live request's grammar, and the tokens that it has to take.
pub(crate) struct Tracked {
    grammar: Grammar,
    /// Locked while a mask is computed, by the threads here alone. None until the first one.
    state: Mutex<Option<State>>,
    /// Everything that was drawn. Locked for a push or a copy.
    drawn: Mutex<Vec<TokenId>>,
}

/// The mask behind so many drawn tokens, for a row.
struct Job {
    request: RequestId,
    tracked: Arc<Tracked>,
    drawn: usize,
    writer: Arc<MaskWriter>,
    step: u64,
    slot: u32,
}

/// A request whose grammar cannot go on, and why.
type End = (RequestId, Stuck);

/// See the top of the file.
pub(crate) struct Masks {
    jobs: Option<Sender<Job>>, // none until the first one is asked for
    tells: Sender<End>,        // for those threads
    stuck: Receiver<End>,
    bell: Arc<Bell>,
}

impl Tracked {
    /// At the beginning of an answer.
    pub(crate) fn new(grammar: Grammar) -> Arc<Self> {
        Arc::new(Self { grammar, state: Mutex::default(), drawn: Mutex::default() })
    }

    /// A token was committed.
    pub(crate) fn push(&self, token: TokenId) {
        lock(&self.drawn).push(token);
    }
}

impl Masks {
    pub(crate) fn new(bell: Arc<Bell>) -> Self {
        let (tells, stuck) = unbounded();
        Self { jobs: None, tells, stuck, bell }
    }

    /// Has the mask of a row computed, behind `drawn` tokens of its request, and written.
    pub(crate) fn ask(
        &mut self,
        request: RequestId,
        tracked: Arc<Tracked>,
        drawn: usize,
        (writer, step, slot): (&Arc<MaskWriter>, u64, u32),
    ) {
        let job = Job { request, tracked, drawn, writer: Arc::clone(writer), step, slot };
        let jobs = self.jobs.get_or_insert_with(|| start(&self.tells, &self.bell));
        jobs.send(job).expect("its threads end after it");
    }

    /// Requests whose grammars cannot go on, since the last call.
    pub(crate) fn stuck(&self) -> impl Iterator<Item = End> {
        self.stuck.try_iter()
    }
}

fn start(stuck: &Sender<End>, bell: &Arc<Bell>) -> Sender<Job> {
    let (jobs, waiting) = unbounded::<Job>();
    let processors = thread::available_parallelism().map_or(1, NonZeroUsize::get);
    for number in 0..(processors / 4).clamp(2, THREADS_MAX) {
        let (waiting, stuck, bell) = (waiting.clone(), stuck.clone(), Arc::clone(bell));
        let work = move || {
            for job in waiting {
                if let Err(why) = job.run() {
                    job.writer.pass_over(job.step, job.slot);
                    let _ = stuck.send((job.request, why)); // nobody hears it if the engine has ended
                    bell.ring();
                }
            }
        };
        let thread = thread::Builder::new().name(format!("pelton-mask-{number}"));
        thread.spawn(work).expect("a thread can be started");
    }
    jobs
}

impl Job {
    fn run(&self) -> Result<(), Stuck> {
        let mut state = lock(&self.tracked.state);
        let state = state.get_or_insert_with(|| self.tracked.grammar.begin());
        if state.taken() > self.drawn {
            return Ok(()); // its row has come back without it, and a later one has been asked for
        }
        let fresh = lock(&self.tracked.drawn)[state.taken()..self.drawn].to_vec();
        state.take(&fresh)?;
        let mut mask = state.mask()?.to_vec();
        mask.resize(self.writer.words(), 0); // models have more logits than tokens
        self.writer.allow(self.step, self.slot, &mask);
        Ok(())
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
    use pelton_grammar::{Constraint, Script, TokenText, Vocabulary};

    use super::*;

    const LONG: Duration = Duration::from_secs(60);

    /// Tokens "a", "b", the end.
    fn grammar(regex: &str) -> Grammar {
        let tokens = [TokenText::Bytes(b"a"), TokenText::Bytes(b"b"), TokenText::Special("<end>")];
        let vocabulary = Vocabulary::new(tokens.into_iter(), &[2]).expect("it has an end");
        vocabulary.compile(&Script::of(Constraint::Regex(regex.to_owned()))).expect("a regex")
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
        let tracked = Tracked::new(grammar("ab"));
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
        let tracked = Tracked::new(grammar("ab"));
        tracked.push(1); // no mask has allowed it
        let seen = masks.bell.read();
        masks.ask(RequestId(7), tracked, 1, (&writer, 3, 1));
        assert_eq!(taken(&memory, 3, 1), None);
        masks.bell.wait(seen, LONG);
        assert_eq!(masks.stuck().map(|(request, _)| request).collect::<Vec<_>>(), [RequestId(7)]);
    }
}
