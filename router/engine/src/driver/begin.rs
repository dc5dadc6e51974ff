//! How a core begins: the configuration in its words.

use pelton_core::{Core, CoreConfig};
use pelton_frame::Capacities;

use crate::{EngineConfig, ModelReport, step};

/// How much there is below the devices.
pub(super) struct Below {
    pub(super) host_blocks: u32,
    pub(super) disk_places: u32,
}

/// A core for the model of this report.
pub(super) fn new_core(
    config: &EngineConfig,
    capacities: &Capacities,
    hash_key: [u64; 2],
    report: &ModelReport,
    below: Below,
) -> Core {
    Core::new(CoreConfig {
        block_size: report.block_size,
        max_model_len: report.max_model_len,
        limits: step::limits(capacities, report.budget.kv_bytes_per_block),
        max_running: config.max_running,
        // The handle counts the queue, so that a refusal needs no turn of this thread.
        max_waiting: usize::MAX,
        token_budget: config.token_budget,
        itl_target_us: config.itl_target.map(|target| u32::try_from(target.as_micros()).unwrap_or(u32::MAX)),
        hash_key,
        host_blocks: below.host_blocks,
        disk_places: below.disk_places,
        prefix_caching: config.prefix_caching,
        tells_cache_changes: config.cache_events.is_some() && config.prefix_caching,
    })
}
