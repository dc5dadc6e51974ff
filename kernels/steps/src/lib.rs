//! A worker's step on a CPU, whole: what changed is applied to the persistent batch, the program runs, tokens are drawn.
//!
//! Knows: slots, block tables, each slot's rules and counts, the order of things within a step.
//! Never here: waiting, publishing, clocks, Python, how a model was made into a program. In: a checked plan. Out: each row's result.
#![forbid(unsafe_code)]

mod batch;
mod rules;
mod step;

pub use batch::NoRoom;
pub use step::{RowResults, Sizes, StepError, Steps, TakeMasks};
