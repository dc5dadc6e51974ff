//! The live requests, as the engine remembers them outside the core: enough to start each one again.
//!
//! Invariant: a request stands in the journal from its submission until its end, or until its client has left; what its
//! client hears last goes out with [`Journal::say_last_words`].

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use pelton_core::{
    Explanation, FinishReason, Micros, NewPin, NewRequest, PinId, RequestId, TokenId, TokenLogprobs, TokenScore,
};
use tokio::sync::mpsc::UnboundedSender;

use crate::{Embeds, Failure, Output, Submission, Usage, masks::Tracked, queue::Place};

/// Ordered by id, which is the order of arrival: a restart submits them in it.
#[derive(Default)]
pub(crate) struct Journal {
    entries: BTreeMap<RequestId, Entry>,
    /// What the requests that have ended are told once the counters tell it, too: who has his answer finds it counted.
    last_words: Vec<(UnboundedSender<Output>, Output)>,
}

/// One live request.
pub(crate) struct Entry {
    submission: Submission,
    arrival: Micros,
    /// Until the first admission.
    place: Option<Place>,
    outputs: UnboundedSender<Output>,
    /// Where it stands in its grammar, if it has one.
    tracked: Option<Arc<Tracked>>,
    /// Every token that was sent.
    generated: Vec<TokenId>,
    /// How many scores were sent.
    scored: u32,
    /// Prompt tokens found in the prefix cache at the first admission; `None` before it.
    cached: Option<u32>,
}

impl Journal {
    pub(crate) fn insert(
        &mut self,
        request: RequestId,
        submission: Submission,
        place: Place,
        outputs: UnboundedSender<Output>,
        arrival: Micros,
    ) {
        let place = Some(place);
        let sampling = &submission.sampling;
        let may_skip = sampling.logprobs.is_none() && !sampling.has_penalties();
        let tracked = submission.grammar.clone().map(|grammar| Tracked::new(grammar, may_skip));
        let entry =
            Entry { submission, arrival, place, outputs, tracked, generated: Vec::new(), scored: 0, cached: None };
        let before = self.entries.insert(request, entry);
        assert!(before.is_none(), "request ids are never used twice");
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn contains(&self, request: RequestId) -> bool {
        self.entries.contains_key(&request)
    }

    /// In the order of arrival.
    pub(crate) fn ids(&self) -> impl Iterator<Item = RequestId> + '_ {
        self.entries.keys().copied()
    }

    /// The request as the core would take it now: its generated tokens count as output already.
    pub(crate) fn as_new(&self, request: RequestId) -> Option<NewRequest> {
        self.entries.get(&request).map(|entry| entry.as_new(request))
    }

    /// Its prompt, if that is to be kept for some time from now on.
    pub(crate) fn as_pin(&self, request: RequestId, now: Micros) -> Option<NewPin> {
        self.entries.get(&request)?.as_pin(now)
    }

    /// The request has entered a batch. The prompt's tokens, if this is the first time: a new core does not know of an
    /// earlier one.
    pub(crate) fn admitted(&mut self, request: RequestId, cached: u32, now: Instant) -> Option<u32> {
        let entry = self.entries.get_mut(&request)?;
        entry.place.take()?.admitted(now);
        entry.cached = Some(cached);
        entry.send(Output::Admitted { cached });
        Some(entry.usage().prompt)
    }

    pub(crate) fn token(&mut self, request: RequestId, token: TokenId, logprobs: Option<Box<TokenLogprobs>>) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        entry.generated.push(token);
        if let Some(tracked) = &entry.tracked {
            tracked.push(token);
        }
        entry.send(Output::Token { token, logprobs });
    }

    pub(crate) fn scored(&mut self, request: RequestId, scores: Box<[TokenScore]>) {
        let Some(entry) = self.entries.get_mut(&request) else { return };
        entry.scored += u32::try_from(scores.len()).expect("fewer than the prompt's tokens");
        entry.send(Output::Scored(scores));
    }

    pub(crate) fn vector(&self, request: RequestId, vector: Box<[f32]>) {
        if let Some(entry) = self.entries.get(&request) {
            entry.send(Output::Vector(vector));
        }
    }

    /// What a live request's prompt begins with instead of tokens.
    pub(crate) fn embeds(&self, request: RequestId) -> Option<Arc<Embeds>> {
        self.entries.get(&request)?.submission.embeds.clone()
    }

    /// A live request's grammar, and how many tokens were drawn.
    pub(crate) fn tracked(&self, request: RequestId) -> Option<(Arc<Tracked>, usize)> {
        let entry = self.entries.get(&request)?;
        Some((Arc::clone(entry.tracked.as_ref()?), entry.generated.len()))
    }

    pub(crate) fn finished(&mut self, request: RequestId, reason: FinishReason, explanation: Box<Explanation>) {
        if let Some(entry) = self.entries.remove(&request) {
            let usage = entry.usage();
            self.last_words.push((entry.outputs, Output::Finished { reason, usage, explanation }));
        }
    }

    pub(crate) fn explained(&self, request: RequestId, explanation: Explanation) {
        if let Some(entry) = self.entries.get(&request) {
            entry.send(Output::Explained(Box::new(explanation)));
        }
    }

    pub(crate) fn failed(&mut self, request: RequestId, failure: Failure) {
        if let Some(entry) = self.entries.remove(&request) {
            self.last_words.push((entry.outputs, Output::Failed(failure)));
        }
    }

    /// Its time is over.
    pub(crate) fn expired(&mut self, request: RequestId) {
        let timeout = self.entries.get(&request).and_then(|entry| entry.submission.timeout);
        self.failed(request, Failure::Expired { after: timeout.unwrap_or_default() });
    }

    /// The client has left, or needs nothing more. Says whether the request was live.
    pub(crate) fn remove(&mut self, request: RequestId) -> bool {
        self.entries.remove(&request).is_some()
    }

    /// Ends all with the same failure.
    pub(crate) fn fail_all(&mut self, failure: &Failure) {
        for entry in std::mem::take(&mut self.entries).into_values() {
            self.last_words.push((entry.outputs, Output::Failed(failure.clone())));
        }
    }

    /// Tells those that have ended so.
    pub(crate) fn say_last_words(&mut self) {
        for (outputs, output) in self.last_words.drain(..) {
            let _ = outputs.send(output); // whoever has left needs none
        }
    }
}

impl Entry {
    fn as_new(&self, id: RequestId) -> NewRequest {
        NewRequest {
            id,
            prompt: self.submission.prompt.clone(),
            generated: self.generated.clone(),
            scored: self.scored,
            goal: self.submission.goal,
            sampling: self.submission.sampling.clone(),
            stop: self.submission.stop.clone(),
            masked: self.submission.grammar.is_some(),
            scope: self.submission.scope.clone(),
            priority: self.submission.priority,
            arrival: self.arrival,
            party: self.submission.party,
            deadline: self.submission.timeout.map(|timeout| self.deadline_after(timeout)),
        }
    }

    fn as_pin(&self, now: Micros) -> Option<NewPin> {
        let keep = self.submission.keep?;
        let until = now.0.saturating_add(u64::try_from(keep.as_micros()).unwrap_or(u64::MAX));
        Some(NewPin {
            id: PinId(0), // whoever keeps it has a name for it
            tokens: self.submission.prompt.clone(),
            scope: self.submission.scope.clone(),
            party: self.submission.party,
            until: Micros(until),
        })
    }

    fn deadline_after(&self, timeout: Duration) -> Micros {
        Micros(self.arrival.0.saturating_add(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX)))
    }

    fn usage(&self) -> Usage {
        let count = |len: usize| u32::try_from(len).expect("a request's tokens fit the context, which is a u32");
        Usage {
            prompt: count(self.submission.prompt.len()),
            cached: self.cached.unwrap_or(0),
            completion: count(self.generated.len()),
        }
    }

    /// The receiver may be gone: then its abort is on the way.
    fn send(&self, output: Output) {
        let _ = self.outputs.send(output);
    }
}

#[cfg(test)]
mod tests {
    use pelton_core::{CacheScope, Party, Sampling, StopRule};
    use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

    use super::*;
    use crate::{QueueLimits, queue::Queue};

    fn submitted(journal: &mut Journal, id: u64) -> UnboundedReceiver<Output> {
        let (outputs, receiver) = unbounded_channel();
        let submission = Submission {
            prompt: vec![1, 2].into(),
            embeds: None,
            goal: pelton_core::Goal::Tokens,
            sampling: Sampling::greedy(),
            stop: StopRule { max_tokens: 9, min_tokens: 0, stop_ids: Vec::new().into() },
            grammar: None,
            scope: CacheScope::default(),
            keep: None,
            priority: 0,
            party: Party::default(),
            timeout: None,
        };
        let queue = Queue::new(QueueLimits { requests: 1, tokens: None, wait: None });
        let place = queue.enter(0, &[(RequestId(id), 2)], Instant::now()).expect("room for one").remove(0);
        journal.insert(RequestId(id), submission, place, outputs, Micros(id));
        receiver
    }

    #[test]
    fn a_request_is_replayed_with_the_tokens_that_its_client_has() {
        let mut journal = Journal::default();
        let (mut first, _second) = (submitted(&mut journal, 1), submitted(&mut journal, 2));
        let now = Instant::now();
        assert_eq!(journal.admitted(RequestId(1), 1, now), Some(2));
        assert_eq!(journal.admitted(RequestId(1), 0, now), None, "the second admission is no first one");
        journal.scored(RequestId(1), Box::new([TokenScore::default()]));
        journal.token(RequestId(1), 7, None);
        assert_eq!(journal.as_new(RequestId(1)).map(|new| new.scored), Some(1));
        let replayed = journal.ids().map(|id| journal.as_new(id).expect("live"));
        let replayed: Vec<_> = replayed.map(|new| (new.id.0, new.generated)).collect();
        assert_eq!(replayed, [(1, vec![7]), (2, vec![])]);
        let explanation = Box::new(Explanation::new(RequestId(1), Micros(1), None, 2));
        journal.finished(RequestId(1), FinishReason::Length, explanation.clone());
        assert_eq!(first.try_recv(), Ok(Output::Admitted { cached: 1 }));
        assert_eq!(first.try_recv(), Ok(Output::Scored(Box::new([TokenScore::default()]))));
        assert_eq!(first.try_recv(), Ok(Output::Token { token: 7, logprobs: None }));
        assert!(first.try_recv().is_err(), "its end is told once it is counted");
        journal.say_last_words();
        let usage = Usage { prompt: 2, cached: 1, completion: 1 };
        let reason = FinishReason::Length;
        assert_eq!(first.try_recv(), Ok(Output::Finished { reason, usage, explanation }));
        assert!(first.try_recv().is_err());
        assert_eq!(journal.len(), 1);
    }

    #[test]
    fn failing_all_tells_each_and_leaves_none() {
        let mut journal = Journal::default();
        let mut receivers = [submitted(&mut journal, 1), submitted(&mut journal, 2)];
        journal.fail_all(&Failure::ShuttingDown);
        journal.say_last_words();
        for receiver in &mut receivers {
            assert_eq!(receiver.try_recv(), Ok(Output::Failed(Failure::ShuttingDown)));
        }
        assert!(journal.is_empty());
    }
}
