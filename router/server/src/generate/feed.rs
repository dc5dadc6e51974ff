//! Hands an answer to its reader at the reader's pace.
//!
//! A task follows the generation, or what is kept of one, and offers what has come to a channel of one place. While the reader is busy, more
//! comes, and all of it goes into the next offer: the slower the reader, the larger the pieces, never more memory than the
//! answer itself. A reader that takes nothing for too long, or is gone, loses the answer, and the engine gets its blocks
//! back. Nobody else waits for it.

use std::{
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use futures::Stream;
use tokio::{sync::mpsc, time::Instant};

use super::{ApiLimits, Delta, Generation};
use crate::{error::ApiError, metrics::Metrics};

/// Turns what comes into what a protocol sends. `None`: nothing to send.
pub(crate) trait Writer: Send + 'static {
    /// What comes at once.
    type Given;
    /// One piece of the protocol's stream.
    type Item: Send;
    fn write(&mut self, given: Self::Given) -> Option<Self::Item>;
    /// After the last that came; `last` is what that was written as, and goes in front.
    fn end(&mut self, last: Option<Self::Item>) -> Self::Item;
    /// In place of whatever would follow.
    fn error(&mut self, error: ApiError) -> Self::Item;
    /// Shows that the answer is still under way.
    fn keep_alive(&mut self) -> Option<Self::Item>;
}

/// Where an answer comes from.
pub(crate) trait Source: Send + 'static {
    /// What comes at once.
    type Given: Send;
    /// Safe to cancel.
    fn next(&mut self) -> impl Future<Output = Result<Self::Given, ApiError>> + Send;
    /// Whether what came last was all.
    fn is_over(&self) -> bool;
}

impl Source for Generation {
    type Given = Vec<Delta>;

    async fn next(&mut self) -> Result<Vec<Delta>, ApiError> {
        Self::next(self).await
    }

    fn is_over(&self) -> bool {
        Self::is_over(self)
    }
}

/// How long each side waits for the other.
#[derive(Debug, Clone, Copy)]
struct Patience {
    keep_alive: Duration,
    stall: Duration,
}

/// The reader's end: a stream of pieces.
pub(crate) struct Feed<T> {
    pieces: mpsc::Receiver<Piece<T>>,
    is_complete: bool,
}

enum Piece<T> {
    More(T),
    Last(T),
}

/// The stream was cut: its reader was too slow, or we failed. To end it quietly would show half an answer as a whole one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the stream was cut before its end")]
pub(crate) struct Cut;

impl<T> Stream for Feed<T> {
    type Item = Result<T, Cut>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let piece = std::task::ready!(self.pieces.poll_recv(context));
        Poll::Ready(match piece {
            Some(Piece::More(piece)) => Some(Ok(piece)),
            Some(Piece::Last(piece)) => {
                self.is_complete = true;
                Some(Ok(piece))
            }
            None if self.is_complete => None,
            None => {
                self.is_complete = true;
                Some(Err(Cut))
            }
        })
    }
}

/// Starts to feed a reader.
pub(crate) fn feed<S: Source, W: Writer<Given = S::Given>>(
    source: S,
    writer: W,
    limits: &ApiLimits,
    metrics: &Arc<Metrics>,
) -> Feed<W::Item> {
    let patience = Patience { keep_alive: limits.keep_alive, stall: limits.stall_timeout };
    let (sender, pieces) = mpsc::channel(1);
    let metrics = Arc::clone(metrics);
    tokio::spawn(async move {
        if pump(source, writer, sender, patience).await == Pumped::Stalled {
            metrics.stream_stalled();
        }
    });
    Feed { pieces, is_complete: false }
}

/// How the feeding ended.
#[derive(Debug, PartialEq, Eq)]
enum Pumped {
    Completed,
    ReaderGone,
    Stalled,
}

async fn pump<S: Source, W: Writer<Given = S::Given>>(
    mut source: S,
    mut writer: W,
    sender: mpsc::Sender<Piece<W::Item>>,
    patience: Patience,
) -> Pumped {
    // One alarm and one ear for the whole answer: to set them anew for each token would cost two locks each. An alarm that
    // fires looks how long it has been quiet.
    let mut last = Instant::now();
    let mut alarm = pin!(tokio::time::sleep(patience.keep_alive));
    let mut left = pin!(sender.closed());
    loop {
        let piece = tokio::select! {
            given = source.next() => match given {
                Err(error) => Some(Piece::Last(writer.error(error))),
                Ok(given) => {
                    let piece = writer.write(given);
                    if source.is_over() { Some(Piece::Last(writer.end(piece))) } else { piece.map(Piece::More) }
                }
            },
            () = &mut left => return Pumped::ReaderGone,
            () = &mut alarm => {
                let due = last + patience.keep_alive;
                if Instant::now() < due {
                    alarm.as_mut().reset(due);
                    continue;
                }
                alarm.as_mut().reset(due + patience.keep_alive);
                writer.keep_alive().map(Piece::More)
            }
        };
        if let Some(piece) = piece {
            let is_last = matches!(piece, Piece::Last(_));
            match tokio::time::timeout(patience.stall, sender.send(piece)).await {
                Ok(Ok(())) if is_last => return Pumped::Completed,
                Ok(Ok(())) => {}
                Ok(Err(_)) => return Pumped::ReaderGone,
                Err(_) => return Pumped::Stalled,
            }
        }
        last = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::StreamExt as _;

    use super::*;
    use crate::generate::Said;

    /// Gives these results, then waits for ever, or is over.
    struct Script {
        results: std::vec::IntoIter<Result<Vec<Delta>, ApiError>>,
        ends: bool,
    }

    impl Source for Script {
        type Given = Vec<Delta>;

        async fn next(&mut self) -> Result<Vec<Delta>, ApiError> {
            match self.results.next() {
                Some(result) => result,
                None => pending().await,
            }
        }

        fn is_over(&self) -> bool {
            self.ends && self.results.len() == 0
        }
    }

    struct Plain;

    impl Writer for Plain {
        type Given = Vec<Delta>;
        type Item = String;

        fn write(&mut self, deltas: Vec<Delta>) -> Option<String> {
            let text: String = deltas.into_iter().map(|delta| delta.said.apart().text).collect();
            (!text.is_empty()).then_some(text)
        }

        fn end(&mut self, last: Option<String>) -> String {
            last.unwrap_or_default() + "."
        }

        fn error(&mut self, error: ApiError) -> String {
            format!("error: {error}")
        }

        fn keep_alive(&mut self) -> Option<String> {
            Some("...".to_owned())
        }
    }

    const PATIENT: Patience = Patience { keep_alive: Duration::from_secs(3600), stall: Duration::from_secs(3600) };

    fn script(texts: &[&str], ends: bool) -> Script {
        let delta = |text: &&str| Ok(vec![Delta { said: Said::text(*text), ..Delta::default() }]);
        Script { results: texts.iter().map(delta).collect::<Vec<_>>().into_iter(), ends }
    }

    fn run<T>(future: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime").block_on(future)
    }

    async fn read(source: Script, patience: Patience) -> (Pumped, Vec<Result<String, Cut>>) {
        let (sender, pieces) = mpsc::channel(1);
        tokio::join!(pump(source, Plain, sender, patience), Feed { pieces, is_complete: false }.collect())
    }

    #[test]
    fn an_answer_arrives_whole_and_its_end_in_the_last_piece() {
        let (pumped, pieces) = run(read(script(&["a", "", "b"], true), PATIENT));
        assert_eq!(pumped, Pumped::Completed);
        assert_eq!(pieces, [Ok("a".to_owned()), Ok("b.".to_owned())]);
    }

    #[test]
    fn an_error_is_the_last_piece() {
        let mut source = script(&["a"], false);
        source.results = vec![source.results.next().expect("one"), Err(ApiError::TextQueueFull)].into_iter();
        let (pumped, pieces) = run(read(source, PATIENT));
        assert_eq!(pumped, Pumped::Completed);
        assert_eq!(pieces[1], Ok(format!("error: {}", ApiError::TextQueueFull)));
    }

    #[test]
    fn a_reader_that_takes_nothing_is_cut_and_sees_it() {
        run(async {
            let (sender, pieces) = mpsc::channel(1);
            let impatient = Patience { stall: Duration::ZERO, ..PATIENT };
            assert_eq!(pump(script(&["a", "b", "c"], true), Plain, sender, impatient).await, Pumped::Stalled);
            let seen: Vec<_> = Feed { pieces, is_complete: false }.collect().await;
            assert_eq!(seen, [Ok("a".to_owned()), Err(Cut)]);
        });
    }

    #[test]
    fn a_reader_that_is_gone_ends_the_answer_even_while_nothing_comes() {
        run(async {
            let (sender, pieces) = mpsc::channel(1);
            let (pumped, ()) = tokio::join!(pump(script(&[], false), Plain, sender, PATIENT), async { drop(pieces) });
            assert_eq!(pumped, Pumped::ReaderGone);
        });
    }

    #[test]
    fn an_answer_that_is_silent_shows_that_it_lives() {
        run(async {
            let (sender, pieces) = mpsc::channel(1);
            let chatty = Patience { keep_alive: Duration::ZERO, ..PATIENT };
            let mut feed = Feed { pieces, is_complete: false };
            let reading = async {
                assert_eq!(feed.next().await, Some(Ok("...".to_owned())));
                drop(feed);
            };
            let (pumped, ()) = tokio::join!(pump(script(&[], false), Plain, sender, chatty), reading);
            assert_eq!(pumped, Pumped::ReaderGone);
        });
    }
}
