//! Has the requests of a file answered: the same for batches and for `pelton run-batch`.
//!
//! A thread reads ahead by a few lines, as many requests as the door permits are under way, and what is answered goes into the sink at
//! once, in the order of its end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use tokio::{
    sync::mpsc,
    task::{JoinSet, spawn_blocking},
};
use tokio_util::sync::CancellationToken;

use super::{
    answer::{Sink, Unanswered},
    lines::{Done, Form, Lines, Names, check},
};
use crate::{
    api::batches::{Item, LineError},
    files::FileError,
    http::{InnerAnswer, InnerDoor},
};

/// Lines that are read before anybody asks for them. Each may be as large as a body.
const AHEAD: usize = 4;

/// A file of requests and what of it is done.
pub(crate) struct Work {
    input: PathBuf,
    form: Form,
    tenant: u64,
    done: Done,
}

/// How the work ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ended {
    /// All requests are answered.
    Whole,
    /// Some are not: the server ends.
    Stopped,
    /// Some are not: they were given up.
    Cut,
}

type Answered = (Item, Option<InnerAnswer>);

/// Asks one request after the other, as many at once as the door permits. Dropped, it gives up those that are under way.
async fn ask_all(
    mut requests: mpsc::Receiver<io::Result<Item>>,
    door: Arc<InnerDoor>,
    tenant: u64,
    stop: CancellationToken,
    answers: mpsc::Sender<Answered>,
) -> Result<Ended, FileError> {
    let (mut asking, mut ended) = (JoinSet::new(), Ended::Whole);
    while let Some(item) = requests.recv().await {
        let item = item?;
        let Some(slot) = stop.run_until_cancelled(door.slot(item.answers)).await else {
            ended = Ended::Stopped;
            break;
        };
        if answers.is_closed() {
            break; // writing has failed, and says so itself
        }
        let (door, answers) = (Arc::clone(&door), answers.clone());
        asking.spawn(async move {
            let answer = door.ask(item.url, item.body.clone(), tenant, &slot).await;
            _ = answers.send((item, answer)).await;
            // Not before it is handed over: answers that wait to be written are bounded, too.
            drop(slot);
        });
        while asking.try_join_next().is_some() {}
    }
    while asking.join_next().await.is_some() {}
    Ok(ended)
}

impl Work {
    pub(crate) fn new(input: PathBuf, form: Form, tenant: u64) -> Self {
        Self { input, form, tenant, done: Done::default() }
    }

    /// How many requests there are, or why none is begun.
    pub(crate) async fn check(&self) -> io::Result<Result<u64, Vec<LineError>>> {
        let (input, form) = (self.input.clone(), self.form);
        spawn_blocking(move || check(Lines::open(&input, form)?)).await.expect("reading does not panic")
    }

    /// Leaves out what stands in outputs that were written before. How many lines each of them has.
    pub(crate) async fn resume<const N: usize>(&mut self, outputs: [&Path; N]) -> io::Result<[u64; N]> {
        let (input, form, outputs) = (self.input.clone(), self.form, outputs.map(Path::to_owned));
        let read = move || -> io::Result<(Done, [u64; N])> {
            let (mut names, mut counts) = (Names::default(), [0; N]);
            for (path, count) in outputs.iter().zip(&mut counts) {
                let before = names.len();
                names = names.of_output(path)?;
                *count = names.len() - before;
            }
            // A second pass over the input, for those who have something to leave out.
            let done = if names.len() == 0 { Done::default() } else { Done::of(Lines::open(&input, form)?, &names)? };
            Ok((done, counts))
        };
        let (done, counts) = spawn_blocking(read).await.expect("reading does not panic")?;
        self.done = done;
        Ok(counts)
    }

    /// Has all answered that is not yet. After `stop` no request is begun, and those under way come to their end; when `cut` resolves they are
    /// given up. Either way what is being written is written to its end: to drop this future may leave half a line.
    pub(crate) async fn answer(
        &mut self,
        door: &Arc<InnerDoor>,
        sink: &mut impl Sink,
        stop: &CancellationToken,
        cut: impl Future<Output = ()>,
    ) -> Result<Ended, FileError> {
        let (answers, answered) = mpsc::channel::<Answered>(AHEAD);
        let asking = ask_all(self.rest(), Arc::clone(door), self.tenant, stop.clone(), answers);
        let ask = async {
            tokio::select! {
                biased;
                () = cut => Ok(Ended::Cut),
                ended = asking => ended,
            }
        };
        let (asked, written) = futures::future::join(ask, self.write_all(answered, sink)).await;
        let (asked, written) = (asked?, written?);
        Ok(if asked == Ended::Whole { written } else { asked })
    }

    /// Writes answers until nobody asks any more.
    async fn write_all(
        &mut self,
        mut answered: mpsc::Receiver<Answered>,
        sink: &mut impl Sink,
    ) -> Result<Ended, FileError> {
        let mut ended = Ended::Whole;
        while let Some((item, answer)) = answered.recv().await {
            match answer {
                Some(answer) => {
                    sink.answered(&item, &answer).await?;
                    self.done.mark(item.line);
                }
                None => ended = Ended::Stopped,
            }
        }
        Ok(ended)
    }

    /// Tells of all that is not answered why it is not.
    pub(crate) async fn refuse(&mut self, sink: &mut impl Sink, why: &Unanswered) -> Result<u64, FileError> {
        let mut requests = self.rest();
        let mut count = 0;
        while let Some(item) = requests.recv().await {
            let item = item?;
            sink.unanswered(&item, why).await?;
            self.done.mark(item.line);
            count += 1;
        }
        Ok(count)
    }

    /// The requests that are not done, in their order.
    fn rest(&self) -> mpsc::Receiver<io::Result<Item>> {
        let (found, requests) = mpsc::channel(AHEAD);
        let (input, form, done) = (self.input.clone(), self.form, self.done.clone());
        spawn_blocking(move || {
            let read = || -> io::Result<()> {
                let mut lines = Lines::open(&input, form)?;
                while let Some(read) = lines.next()? {
                    let item = read.map_err(|error| io::Error::other(format!("the input has changed: {error:?}")))?;
                    // Who asks no more has what it wanted.
                    if !done.has(item.line) && found.blocking_send(Ok(item)).is_err() {
                        break;
                    }
                }
                Ok(())
            };
            if let Err(error) = read() {
                _ = found.blocking_send(Err(error));
            }
        });
        requests
    }
}
