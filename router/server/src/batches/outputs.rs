//! A batch's two outputs: answers, and errors. Both grow line by line and become files when the batch ends.

use std::sync::Arc;

use super::{
    Batches,
    answer::{Sink, Unanswered, answered, unanswered},
    batch::Batch,
    usage::Usage,
};
use crate::{
    api::batches::Item,
    files::{About, Draft, FileError, Purpose},
    http::InnerAnswer,
};

/// See the top of the file.
pub(super) struct Outputs {
    batches: Arc<Batches>,
    id: String,
    answers: Draft,
    errors: Draft,
}

impl Outputs {
    /// Those that an earlier server left, or new ones.
    pub(super) async fn open(batches: &Arc<Batches>, batch: &Batch) -> Result<Self, FileError> {
        let (answers, errors) = batch.drafts.as_ref().expect("a batch in progress has outputs");
        let files = batches.files();
        Ok(Self {
            batches: Arc::clone(batches),
            id: batch.id.clone(),
            answers: files.reopen(answers).await?,
            errors: files.reopen(errors).await?,
        })
    }

    pub(super) fn drafts(&self) -> [&Draft; 2] {
        [&self.answers, &self.errors]
    }

    /// Leaves both for the next server.
    pub(super) fn leave(self) {
        self.answers.leave();
        self.errors.leave();
    }

    /// Makes files of them, but for what is empty. Their ids.
    pub(super) async fn keep(self, batch: &Batch) -> Result<[Option<String>; 2], FileError> {
        let about = |what: &str| About {
            tenant: batch.tenant,
            filename: format!("{}_{what}.jsonl", batch.id),
            purpose: Purpose::BatchOutput,
            lifetime_s: batch.output_lifetime_s,
        };
        Ok([kept(self.answers, about("output")).await?, kept(self.errors, about("error")).await?])
    }
}

async fn kept(draft: Draft, about: About) -> Result<Option<String>, FileError> {
    if draft.is_empty() { Ok(None) } else { draft.keep(about).await.map(|record| Some(record.id)) }
}

impl Sink for Outputs {
    async fn answered(&mut self, item: &Item, answer: &InnerAnswer) -> Result<(), FileError> {
        let line = answered(item, answer);
        if answer.status.is_success() {
            self.answers.write(&line).await?;
            let usage = Usage::of_answer(&answer.body);
            self.batches.change(&self.id, |batch| {
                batch.counts.completed += 1;
                batch.usage.get_or_insert_default().add(usage);
            });
        } else {
            self.errors.write(&line).await?;
            self.batches.change(&self.id, |batch| batch.counts.failed += 1);
        }
        Ok(())
    }

    async fn unanswered(&mut self, item: &Item, why: &Unanswered) -> Result<(), FileError> {
        self.errors.write(&unanswered(item, why)).await?;
        self.batches.change(&self.id, |batch| batch.counts.failed += 1);
        Ok(())
    }
}
