//! A thread that sleeps is woken on another processor than its waker's.
//!
//! The system may take all other processors for busy when a job is posted, and put the worker on the caller's: then the two take turns, for
//! milliseconds, while the others idle again. Threads are not kept to processors of their own for that (`docs/decisions/processors.md`): while it is
//! woken a worker is forbidden the caller's processor, and no longer, so that the system is as free as before.
//!
//! Only where there is one other processor: among several the system would choose without a look at who runs there, and on which node.

/// Wakes a thread that sleeps, elsewhere than on that processor.
pub(crate) fn wake_elsewhere(thread: ThreadId, processor: usize, wake: impl FnOnce()) {
    let allowed = system::forbid(thread, processor);
    wake();
    if let Some(allowed) = allowed {
        allow(thread, allowed);
    }
}

pub(crate) use system::{ThreadId, allow, are_two, processor, this_thread};

#[cfg(target_os = "linux")]
mod system {
    use std::sync::LazyLock;

    use rustix::thread::{CpuSet, gettid, sched_getaffinity, sched_getcpu, sched_setaffinity};

    pub(crate) type ThreadId = rustix::thread::Pid;

    static ALL: LazyLock<CpuSet> = LazyLock::new(|| {
        let mut all = CpuSet::new();
        (0..CpuSet::MAX_CPU).for_each(|processor| all.set(processor));
        all
    });

    pub(crate) fn this_thread() -> ThreadId {
        gettid()
    }

    /// The number of the processor on which this runs.
    pub(crate) fn processor() -> usize {
        sched_getcpu()
    }

    /// Whether this thread has two processors.
    pub(crate) fn are_two() -> bool {
        sched_getaffinity(None).is_ok_and(|allowed| allowed.count() == 2)
    }

    /// Leaves a thread the other of two processors, and says which it had; None, with nothing done, where there are more or fewer.
    pub(super) fn forbid(thread: ThreadId, processor: usize) -> Option<CpuSet> {
        let allowed = sched_getaffinity(Some(thread)).ok()?;
        let mut others = allowed;
        others.unset(processor);
        (allowed.count() == 2 && others.count() == 1 && sched_setaffinity(Some(thread), &others).is_ok())
            .then_some(allowed)
    }

    /// Takes that back. The system keeps what a thread asked for, and would hold it to two processors when its container gets more: so all
    /// are asked for, unless that is more than it had.
    pub(crate) fn allow(thread: ThreadId, allowed: CpuSet) {
        if sched_setaffinity(Some(thread), &ALL).is_err() || sched_getaffinity(Some(thread)).ok() != Some(allowed) {
            _ = sched_setaffinity(Some(thread), &allowed);
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    #[derive(Clone, Copy)]
    pub(crate) struct ThreadId;

    pub(crate) fn this_thread() -> ThreadId {
        ThreadId
    }

    /// Unknown, and no matter: nothing is done here.
    pub(crate) fn processor() -> usize {
        0
    }

    pub(crate) fn are_two() -> bool {
        false
    }

    pub(super) fn forbid(_: ThreadId, _: usize) -> Option<()> {
        None
    }

    pub(crate) fn allow(_: ThreadId, (): ()) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::*;

    #[test]
    fn a_thread_is_kept_off_a_processor_while_it_is_woken() {
        let machine = sched_getaffinity(None).expect("said to everybody");
        let mut pair = CpuSet::new();
        let processors: Vec<_> = (0..CpuSet::MAX_CPU).filter(|&at| machine.is_set(at)).take(2).collect();
        processors.iter().for_each(|&at| pair.set(at));
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(this_thread()).expect("awaited");
            _ = ended.recv();
        });
        let id = told.recv().expect("sent at once");
        let allowed = || sched_getaffinity(Some(id)).expect("it runs");
        sched_setaffinity(Some(id), &pair).expect("a part of what is allowed");
        for &here in &processors {
            let mut seen = None;
            wake_elsewhere(id, here, || seen = Some(allowed().is_set(here)));
            assert_eq!(seen, Some(processors.len() < 2));
            assert_eq!(allowed(), pair);
        }
        if machine.count() > 2 {
            sched_setaffinity(Some(id), &machine).expect("it is allowed");
            wake_elsewhere(id, processors[0], || {
                assert_eq!(allowed(), machine, "the system would choose among several")
            });
            assert_eq!(allowed(), machine);
        }
        drop(end);
        thread.join().expect("it only waits");
    }
}
