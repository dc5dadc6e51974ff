//! What a step's results change: tokens, ends, the index, and what comes home.

use crate::core::Core;
use crate::epoch::{Owner, SentRow};
use crate::{Event, FinishReason, GroupId, RowResult, StepId, StepResults};

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
    /// One result per row.
    #[error("{got} results came for {expected} rows")]
    WrongRowCount {
        /// Rows of the step.
        expected: usize,
        /// Rows of the results.
        got: usize,
    },
    /// A token for each row that samples, none for the others. A masked row's may be missing.
    #[error("row {row} samples: {samples}; a token came: {}", !samples)]
    WrongRow {
        /// Which row.
        row: usize,
        /// Whether it samples.
        samples: bool,
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
        for &source in &due.sources {
            epoch.blocks.give_source(source);
        }
        let mut vectors = results.vectors.into_iter();
        for (&row, result) in due.rows.iter().zip(results.rows) {
            let given = match result {
                Some(result) => Given::Token(result),
                None if row.pools => Given::Vector(vectors.next().expect("check() has counted them")),
                None => Given::Nothing,
            };
            self.commit_row(group, row, given, results.took_us);
        }
        self.land(group, &due);
        self.totals.steps += 1;
        self.epoch_mut(group).moved_at = self.requests.looks.now;
        Ok(())
    }

    fn commit_row(&mut self, group: GroupId, row: SentRow, given: Given, took_us: u32) {
        let Self { requests, groups, lengths, events, totals, .. } = self;
        let epoch = groups.get_mut(&group).and_then(|group| group.epoch.as_mut()).expect("commit() looked");
        let running = epoch.running_mut(row.slot);
        if let Owner::Serves(key) | Owner::Yields(key) = running.owner
            && !row.is_void
        {
            let is_unsampled = row.masked && matches!(given, Given::Nothing);
            let end = row.end - u32::from(is_unsampled); // a row that is taken back is computed again from its last token on
            let before = std::mem::replace(&mut running.committed, end);
            running.draws -= u32::from(row.samples);
            if is_unsampled {
                epoch.take_back(row);
                totals.unsampled += 1;
            }
            let now = requests.looks.now;
            let request = requests.get_mut(key);
            request.account.step(took_us, end);
            epoch.index_computed(row.slot, request);
            epoch.pass(row.slot, before);
            let id = request.place.id;
            let end = match given {
                Given::Nothing => None,
                Given::Token(RowResult { token, logprobs }) => {
                    if request.drawn() == 0 {
                        request.account.first_token(now);
                    }
                    totals.generated_tokens += 1;
                    events.push(Event::Token { request: id, token, logprobs });
                    request.push(token).inspect(|_| lengths.learn(request.drawn()))
                }
                Given::Vector(vector) => {
                    events.push(Event::Vector { request: id, vector });
                    Some(FinishReason::Vector)
                }
            };
            if let Some(reason) = end {
                let explanation = Box::new(requests.explain(key));
                events.push(Event::Finished { request: id, reason, explanation });
                epoch.leave(row.slot, requests);
                requests.settle_account(key);
                requests.remove(key);
                return;
            }
        }
        epoch.settle(row.slot, requests);
    }
}

/// What a row brings.
enum Given {
    Nothing,
    Token(RowResult),
    Vector(Box<[f32]>),
}

fn check(due: StepId, rows: &[SentRow], results: &StepResults) -> Result<(), CommitError> {
    if results.step != due {
        return Err(CommitError::WrongStep { expected: due, got: results.step });
    }
    if results.rows.len() != rows.len() {
        return Err(CommitError::WrongRowCount { expected: rows.len(), got: results.rows.len() });
    }
    let is_wrong = |(row, result): (&SentRow, &Option<RowResult>)| {
        let may_be_missing = row.masked && result.is_none();
        row.samples != result.is_some() && !may_be_missing
    };
    if let Some(row) = rows.iter().zip(&results.rows).position(is_wrong) {
        return Err(CommitError::WrongRow { row, samples: rows[row].samples });
    }
    let (expected, got) = (rows.iter().filter(|row| row.pools).count(), results.vectors.len());
    if got == expected { Ok(()) } else { Err(CommitError::WrongVectorCount { expected, got }) }
}
