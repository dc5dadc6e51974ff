//! How a core begins: the configuration in its words.

use pelton_core::{Core, CoreConfig, Goal, KINDS_MAX, Kind};
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
    let together = report.tokens_together();
    let capacities = Capacities { tokens: capacities.tokens.max(together), ..*capacities };
    Core::new(CoreConfig {
        block_size: report.block_size,
        kinds: kinds(report),
        max_model_len: report.max_model_len,
        limits: step::limits(&capacities, report.budget.kv_bytes_per_block),
        max_running: config.max_running,
        // The handle counts the queue, so that a refusal needs no turn of this thread.
        max_waiting: usize::MAX,
        token_budget: config.token_budget.max(together),
        itl_target_us: config.itl_target.map(|target| u32::try_from(target.as_micros()).unwrap_or(u32::MAX)),
        hash_key,
        host_blocks: below.host_blocks,
        disk_places: below.disk_places,
        drafts_max: config.drafts_max,
        prefix_caching: has_prefix_cache(config, report),
        pin_share: config.pin_share,
        tenant_cache_share: config.tenant_cache_share,
        tells_cache_changes: config.cache_events.is_some() && has_prefix_cache(config, report),
    })
}

/// KV of tokens that see those behind them is of no use to another text.
fn has_prefix_cache(config: &EngineConfig, report: &ModelReport) -> bool {
    config.prefix_caching && goal(report) != Goal::VectorOfAll
}

/// What requests of this model give.
pub fn goal(report: &ModelReport) -> Goal {
    match &report.pooling {
        None => Goal::Tokens,
        Some(pooling) if pooling.is_bidirectional => Goal::VectorOfAll,
        Some(_) => Goal::VectorOfLast,
    }
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
    if goal(report) == Goal::VectorOfAll && report.kinds != [LayerKind::Full] {
        let kinds = &report.kinds;
        return Some(format!(
            "a model that sees all tokens of a text at once has layers of {kinds:?}; allowed: [Full]"
        ));
    }
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
    use crate::{Gives, Pooling};

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
            pooling: None,
            embed_width: 0,
            budget: crate::Budget::default(),
        }
    }

    #[test]
    fn a_context_that_no_frame_holds_is_refused_and_the_refusal_names_what_fits() {
        let capacities = step::capacities(8, 64, false);
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
    fn a_model_that_sees_all_tokens_at_once_has_full_layers() {
        let capacities = step::capacities(8, 64, false);
        let gives = Gives::Embedding { normalize: true };
        let pooling = |is_bidirectional| Some(Pooling { width: 8, is_bidirectional, gives: gives.clone() });
        let bidirectional = |tokens, kinds: &[LayerKind]| {
            unfit(&ModelReport { pooling: pooling(true), ..report(tokens, 16, kinds.to_vec()) }, &capacities)
        };
        assert_eq!(bidirectional(64, &[LayerKind::Full]), None);
        assert_eq!(bidirectional(6_500, &[LayerKind::Full]), None, "a step has room for the longest text");
        for kinds in [&[LayerKind::Window(5)][..], &[LayerKind::Full; 2]] {
            assert!(bidirectional(64, kinds).is_some_and(|why| why.contains("allowed: [Full]")), "{kinds:?}");
        }
        let causal = ModelReport { pooling: pooling(false), ..report(6_500, 16, vec![LayerKind::Full]) };
        assert_eq!(unfit(&causal, &capacities), None);
        let goals = [None, pooling(false), pooling(true)]
            .map(|pooling| goal(&ModelReport { pooling, ..report(64, 16, vec![LayerKind::Full]) }));
        assert_eq!(goals, [Goal::Tokens, Goal::VectorOfLast, Goal::VectorOfAll]);
    }

    #[test]
    fn kinds_are_the_workers_in_their_order() {
        let kinds = kinds(&report(64, 16, vec![LayerKind::Full, LayerKind::Window(5)]));
        assert_eq!(kinds, [Kind::Full, Kind::Window { tokens: 5 }]);
    }
}
