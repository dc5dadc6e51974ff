//! What a step's results change: tokens, ends, the index, and what comes home.

use crate::core::Core;
use crate::drafts::accepted;
use crate::epoch::{Owner, SentRow};
use crate::live::RequestKey;
use crate::{Event, FinishReason, GroupId, RowResult, SlotId, StepId, StepResults, TokenScore};

/// Results that do not belong to the step that is due. Nothing was changed; the caller replaces the worker.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CommitError {
    /// The group has no step in flight.
    #[error("results of {got:?} came, and no step is in flight")]
    NothingInFlight {
        /// What the results name.
        got: StepId,
    },
    /// Results come in the order of the steps.
    #[error("results of {got:?} came, and those of {expected:?} are due")]
    WrongStep {
        /// The oldest step in flight.
        expected: StepId,
        /// What the results name.
        got: StepId,
    },
    /// One result per row, and one for each draft.
    #[error("{got} results came, and the step's rows and drafts are {expected}")]
    WrongCount {
        /// Rows of the step, and their drafts.
        expected: usize,
        /// Results.
        got: usize,
    },
    /// A token for each row that samples and for each of its drafts, none for the others. A masked row's may be missing.
    #[error("row {row} samples: {samples}; a token came: {}", !samples)]
    WrongRow {
        /// Which row.
        row: usize,
        /// Whether it samples.
        samples: bool,
    },
    /// A score for each token that is scored.
    #[error("{got} scores came for {expected} tokens")]
    WrongScoreCount {
        /// Tokens that rows score.
        expected: usize,
        /// Scores of the results.
        got: usize,
    },
    /// A vector for each row that pools.
    #[error("{got} vectors came for {expected} rows that pool")]
    WrongVectorCount {
        /// Rows that pool.
        expected: usize,
        /// Vectors of the results.
        got: usize,
    },
}

impl Core {
    /// Takes in the results of the oldest step in flight.
    pub fn commit(&mut self, group: GroupId, results: StepResults) -> Result<(), CommitError> {
        let Some(epoch) = self.group_mut(group).epoch.as_mut() else {
            return Err(CommitError::NothingInFlight { got: results.step });
        };
        let due = epoch.in_flight.front().ok_or(CommitError::NothingInFlight { got: results.step })?;
        check(due.step, &due.rows, &results)?;
        let due = epoch.in_flight.pop_front().expect("looked at above");
        epoch.last_committed = due.step;
        self.group_mut(group).cost.learn(due.work, results.took_us);
        let epoch = self.epoch_mut(group);
        epoch.outlook = None;
        for &source in &due.sources {
            epoch.blocks.give_source(source);
        }
        let (mut drafts, mut draws) = (due.drafts.as_slice(), results.draws.into_iter());
        let (mut vectors, mut scores) = (results.vectors.into_iter(), results.scores.into_iter());
        for &row in &due.rows {
            let (its_drafts, others) = drafts.split_at(row.drafts as usize);
            drafts = others;
            let drawn = draws.as_slice().iter().map_while(|draw| draw.as_ref().map(|draw| draw.token));
            let accepted = accepted(its_drafts, drawn);
            let mut its_draws = draws.by_ref().take(1 + its_drafts.len());
            self.take_scores(group, row, scores.by_ref().take(row.scores as usize).collect());
            let vector = row.pools.then(|| vectors.next().expect("check() has counted them"));
            self.commit_row(group, row, accepted, &mut its_draws, vector, results.took_us);
            its_draws.for_each(drop);
        }
        self.land(group, &due);
        self.totals.steps += 1;
        self.epoch_mut(group).moved_at = self.requests.looks.now;
        Ok(())
    }

    /// Takes in what a row scored, if it still has a request. One that yields comes back with what is not scored yet.
    fn take_scores(&mut self, group: GroupId, row: SentRow, scores: Box<[TokenScore]>) {
        if let Owner::Serves(key) | Owner::Yields(key) = self.epoch(group).running(row.slot).owner
            && row.scores > 0
        {
            assert!(!row.is_void, "prompts are never taken back");
            let request = self.requests.get_mut(key);
            request.scored += row.scores;
            assert_eq!(request.scored, row.end - u32::from(row.samples), "tokens are scored in order");
            self.events.push(Event::Scored { request: request.place.id, scores });
        }
    }

    /// Takes in one row. Of its drafts `accepted` count: what was drawn in their places and behind them, token by token as if
    /// each had had a row of its own. What is drawn behind the others, and their KV, counts for nothing. A vector ends its request.
    fn commit_row(
        &mut self,
        group: GroupId,
        row: SentRow,
        accepted: usize,
        draws: &mut impl Iterator<Item = Option<RowResult>>,
        mut vector: Option<Box<[f32]>>,
        took_us: u32,
    ) {
        let Self { requests, groups, events, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("commit() looked");
        let running = epoch.running_mut(row.slot);
        if let Owner::Serves(key) | Owner::Yields(key) = running.owner
            && !row.is_void
        {
            let mut result = draws.next().expect("check() counted them");
            let is_unsampled = row.masked && result.is_none();
            // A row that is taken back is computed again from its last token on.
            let mut end = row.end - row.drafts - u32::from(is_unsampled);
            let counts = end + u32::try_from(accepted).expect("at most its drafts");
            running.draws -= u32::from(row.samples) + row.drafts;
            if is_unsampled {
                epoch.take_back(row);
                totals.unsampled += 1;
            } else if row.drafts > 0 {
                running.take_back_drafts(counts);
            }
            let now = requests.looks.now;
            let request = requests.get_mut(key);
            request.account.step(took_us, counts);
            request.account.drafted(row.drafts);
            totals.drafted_tokens += u64::from(row.drafts);
            for left in (0..=accepted).rev() {
                let request = requests.get_mut(key);
                let before = std::mem::replace(&mut epoch.running_mut(row.slot).committed, end);
                epoch.index_computed(row.slot, request);
                epoch.pass(row.slot, before);
                let id = request.place.id;
                let reason = if let Some(vector) = vector.take() {
                    events.push(Event::Vector { request: id, vector });
                    Some(FinishReason::Vector)
                } else {
                    let Some(RowResult { token, logprobs }) = result.take() else { break };
                    if request.drawn() == 0 {
                        request.account.first_token(now);
                    }
                    if left > 0 {
                        request.account.accepted();
                        totals.accepted_tokens += 1;
                    }
                    totals.generated_tokens += 1;
                    events.push(Event::Token { request: id, token, logprobs });
                    request.push(token)
                };
                if let Some(reason) = reason {
                    return self.end_in_slot(group, row.slot, key, reason);
                }
                if left > 0 {
                    result = draws.next().expect("check() counted them");
                    end += 1;
                }
            }
            if row.samples && !is_unsampled && epoch.running(row.slot).draws == 0 {
                let request = requests.get_mut(key);
                for token in request.take_forced() {
                    (totals.generated_tokens, totals.forced_tokens) =
                        (totals.generated_tokens + 1, totals.forced_tokens + 1);
                    events.push(Event::Token { request: request.place.id, token, logprobs: None });
                    if let Some(reason) = request.push(token) {
                        return self.end_in_slot(group, row.slot, key, reason);
                    }
                }
            }
            requests.get_mut(key).take_in();
        }
        epoch.settle(row.slot, requests);
    }

    /// A request is complete, by what it has drawn.
    fn end_in_slot(&mut self, group: GroupId, slot: SlotId, key: RequestKey, reason: FinishReason) {
        let Self { requests, groups, lengths, events, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("commit() looked");
        let request = requests.get(key);
        // Who asks for one token tells nothing of how long answers are, nor who wants a vector.
        if reason != FinishReason::Vector && request.known_max - request.prompt_len > 1 {
            lengths.learn(request.drawn());
        }
        let explanation = Box::new(requests.explain(key));
        totals.waited.add(&explanation.waited);
        events.push(Event::Finished { request: requests.get(key).place.id, reason, explanation });
        epoch.leave(slot, requests);
        requests.settle_account(key);
        requests.remove(key);
    }
}

fn check(due: StepId, rows: &[SentRow], results: &StepResults) -> Result<(), CommitError> {
    if results.step != due {
        return Err(CommitError::WrongStep { expected: due, got: results.step });
    }
    let expected = rows.iter().map(|row| 1 + row.drafts as usize).sum();
    if results.draws.len() != expected {
        return Err(CommitError::WrongCount { expected, got: results.draws.len() });
    }
    let mut draws = results.draws.iter();
    for (number, row) in rows.iter().enumerate() {
        for draw in draws.by_ref().take(1 + row.drafts as usize) {
            let may_be_missing = row.masked && draw.is_none();
            if row.samples != draw.is_some() && !may_be_missing {
                return Err(CommitError::WrongRow { row: number, samples: row.samples });
            }
        }
    }
    let (expected, got) = (rows.iter().map(|row| row.scores as usize).sum(), results.scores.len());
    if got != expected {
        return Err(CommitError::WrongScoreCount { expected, got });
    }
    let (expected, got) = (rows.iter().filter(|row| row.pools).count(), results.vectors.len());
    if got == expected { Ok(()) } else { Err(CommitError::WrongVectorCount { expected, got }) }
}
