//! How a core begins: the configuration in its words.

use pelton_core::{Core, CoreConfig, KINDS_MAX, Kind};
use pelton_frame::Capacities;

use crate::{EngineConfig, LayerKind, ModelReport, step};

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
        kinds: kinds(report),
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
        drafts_max: config.drafts_max,
        prefix_caching: config.prefix_caching,
        pin_share: config.pin_share,
        tenant_cache_share: config.tenant_cache_share,
        tells_cache_changes: config.cache_events.is_some() && config.prefix_caching,
    })
}

/// The kinds of this model's layers. None has a state: no worker tells of one, and frames carry no moves of states.
pub(crate) fn kinds(report: &ModelReport) -> Vec<Kind> {
    let kind = |kind: &LayerKind| match *kind {
        LayerKind::Full => Kind::Full,
        LayerKind::Window(tokens) => Kind::Window { tokens },
    };
    report.kinds.iter().map(kind).collect()
}

/// Why the core could not serve this model, if so.
pub(super) fn unfit(report: &ModelReport, capacities: &Capacities) -> Option<String> {
    if report.max_model_len > step::CONTEXT_MAX {
        return Some(format!(
            "a context of {} tokens is more than a frame holds; allowed: --max-model-len {} at most",
            report.max_model_len,
            step::CONTEXT_MAX
        ));
    }
    let kinds = u32::try_from(report.kinds.len()).unwrap_or(u32::MAX);
    if kinds as usize > KINDS_MAX {
        return Some(format!("the model's layers are of {kinds} kinds; allowed: {KINDS_MAX} at most"));
    }
    let most = (capacities.appends / kinds).saturating_mul(report.block_size);
    (report.max_model_len > most).then(|| {
        let (tokens, size) = (report.max_model_len, report.block_size);
        format!(
            "a context of {tokens} tokens in blocks of {size}, for {kinds} kinds of layers, is more than a frame holds; \
             allowed: --max-model-len {most} at most, or larger blocks"
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(max_model_len: u32, block_size: u32, kinds: Vec<LayerKind>) -> ModelReport {
        ModelReport {
            family: "gemma3".to_owned(),
            dtype: "float32".to_owned(),
            device: "cpu".to_owned(),
            device_name: "a processor".to_owned(),
            vocab_size: 100,
            max_model_len,
            block_size,
            blocks: 8,
            kinds,
            numerics_id: "plain".to_owned(),
            invariant: true,
            budget: crate::Budget::default(),
        }
    }

    #[test]
    fn a_context_that_no_frame_holds_is_refused_and_the_refusal_names_what_fits() {
        let capacities = step::capacities(8, 64);
        let unfit = |tokens, block, kinds: &[LayerKind]| unfit(&report(tokens, block, kinds.to_vec()), &capacities);
        assert_eq!(unfit(step::CONTEXT_MAX, 16, &[LayerKind::Full]), None);
        assert!(
            unfit(step::CONTEXT_MAX + 1, 16, &[LayerKind::Full]).is_some_and(|why| why.contains("1048576 at most"))
        );
        let mixed = [&[LayerKind::Full][..], &[LayerKind::Window(512); 6]].concat();
        let most = 65_536 / 7 * 16;
        assert_eq!(unfit(most, 16, &mixed), None);
        assert!(
            unfit(most + 1, 16, &mixed)
                .is_some_and(|why| why.contains("for 7 kinds") && why.contains("149792 at most"))
        );
        assert!(unfit(64, 16, &[LayerKind::Full; 17]).is_some_and(|why| why.contains("of 17 kinds")));
    }

    #[test]
    fn kinds_are_the_workers_in_their_order() {
        let kinds = kinds(&report(64, 16, vec![LayerKind::Full, LayerKind::Window(5)]));
        assert_eq!(kinds, [Kind::Full, Kind::Window { tokens: 5 }]);
    }
}
