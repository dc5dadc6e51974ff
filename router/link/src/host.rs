//! The host memory that all workers of this host share: made for the first one that reports, handed to those that follow.
//!
//! Invariant: a worker that has it is one that the supervisor can end: a child, or a neighbour whose process it sees. So
//! [`crate::LinkEvent::Lost`] means that the worker touches host memory no more, and its blocks may go to others.

use std::sync::{Arc, Mutex, PoisonError};

use pelton_frame::HostMemory;

use crate::ModelReport;

/// So many bytes of host memory, once it is known how large a block is.
pub struct HostShare {
    bytes: u64,
    state: Mutex<State>,
}

enum State {
    NotMade,
    Made {
        memory: Arc<HostMemory>,
        numerics_id: String,
    },
    /// It cannot be had: that was said once.
    Failed,
}

impl HostShare {
    /// Nothing is taken yet.
    pub fn new(bytes: u64) -> Self {
        Self { bytes, state: Mutex::new(State::NotMade) }
    }

    /// The memory for the blocks of a worker that has reported. None, with a warning: they are not those of the first
    /// worker, or the memory cannot be had.
    pub fn memory(&self, report: &ModelReport) -> Option<Arc<HostMemory>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::NotMade = *state {
            *state = make(self.bytes, report);
        }
        match &*state {
            State::Made { memory, numerics_id }
                if memory.block_bytes() as u64 == report.budget.kv_bytes_per_block
                    && *numerics_id == report.numerics_id =>
            {
                Some(Arc::clone(memory))
            }
            State::Made { .. } => {
                tracing::warn!(
                    "a worker's blocks are not those of the first one (`{}`): it reaches no host memory",
                    report.numerics_id
                );
                None
            }
            State::NotMade | State::Failed => None,
        }
    }

    /// Forgets the memory there is: the next one is fresh. Workers that have the old one keep it.
    pub fn renew(&self) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = State::NotMade;
    }
}

fn make(bytes: u64, report: &ModelReport) -> State {
    let block_bytes = report.budget.kv_bytes_per_block;
    let Some(blocks) = bytes.checked_div(block_bytes).filter(|&blocks| blocks > 0) else {
        tracing::warn!("host memory of {bytes} bytes does not hold a block of {block_bytes}: it is not used");
        return State::Failed;
    };
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    let made = usize::try_from(block_bytes).ok().map(|block_bytes| HostMemory::create(blocks, block_bytes));
    match made {
        Some(Ok(memory)) => State::Made { memory: Arc::new(memory), numerics_id: report.numerics_id.clone() },
        Some(Err(error)) => {
            tracing::warn!("host memory for {blocks} blocks of {block_bytes} bytes cannot be had: {error}");
            State::Failed
        }
        None => State::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Budget;

    fn report(kv_bytes_per_block: u64, numerics_id: &str) -> ModelReport {
        ModelReport {
            family: "llama".to_owned(),
            dtype: "float32".to_owned(),
            device: "cpu".to_owned(),
            device_name: "a processor".to_owned(),
            vocab_size: 100,
            max_model_len: 64,
            block_size: 4,
            blocks: 8,
            kinds: vec![crate::LayerKind::Full],
            numerics_id: numerics_id.to_owned(),
            invariant: true,
            pooling: None,
            embed_width: 0,
            budget: Budget { kv_bytes_per_block, ..Budget::default() },
        }
    }

    #[test]
    fn one_memory_serves_all_workers_that_compute_alike_and_no_other() {
        let share = HostShare::new(10_000);
        let first = share.memory(&report(1_000, "a")).expect("it fits");
        assert_eq!((first.blocks(), first.block_bytes()), (10, 1_000));
        let second = share.memory(&report(1_000, "a")).expect("the same");
        assert!(Arc::ptr_eq(&first, &second));
        assert!(share.memory(&report(2_000, "a")).is_none());
        assert!(share.memory(&report(1_000, "b")).is_none());
        share.renew();
        let fresh = share.memory(&report(1_000, "b")).expect("a fresh one");
        assert!(!Arc::ptr_eq(&first, &fresh));
    }

    #[test]
    fn what_holds_no_block_is_no_memory() {
        for share in [HostShare::new(999), HostShare::new(0)] {
            assert!(share.memory(&report(1_000, "a")).is_none());
        }
        assert!(HostShare::new(1_000).memory(&report(0, "a")).is_none());
    }
}
