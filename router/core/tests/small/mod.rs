//! A small core, and a life of a few steps by hand.

use std::sync::Arc;

use pelton_core::{
    CacheScope, Core, CoreConfig, Goal, GroupId, Kind, Limits, Micros, NewRequest, Party, Plan, RequestId, Row,
    RowResult, Sampling, StepResults, StopRule, TokenId,
};

pub(crate) const GROUP: GroupId = GroupId(0);
pub(crate) const STOP: TokenId = 99;

pub(crate) fn config() -> CoreConfig {
    let limits = Limits {
        slots: 16,
        tokens: 64,
        appends: 64,
        saves: 0,
        loads: 0,
        copies: 4,
        states: 8,
        biases: 4,
        suppressed: 4,
        history: 256,
        scores: 8,
        embeds: 8,
    };
    CoreConfig {
        block_size: 4,
        kinds: vec![Kind::Full],
        max_model_len: 64,
        limits,
        max_running: 4,
        max_waiting: 8,
        token_budget: 64,
        itl_target_us: None,
        hash_key: [1, 2],
        host_blocks: 0,
        disk_places: 0,
        drafts_max: 0,
        prefix_caching: true,
        pin_share: 50,
        tenant_cache_share: 100,
        tells_cache_changes: false,
    }
}

pub(crate) fn core(blocks: u32, config: CoreConfig) -> Core {
    let mut core = Core::new(config);
    core.add_group(GROUP, blocks, false);
    core
}

/// A request that draws up to 8 tokens and ends with `STOP`.
pub(crate) fn request(id: u64, prompt: impl IntoIterator<Item = TokenId>) -> NewRequest {
    NewRequest {
        id: RequestId(id),
        prompt: prompt.into_iter().collect(),
        generated: Vec::new(),
        scored: 0,
        goal: Goal::Tokens,
        sampling: Sampling::greedy(),
        stop: StopRule { max_tokens: 8, min_tokens: 0, stop_ids: Arc::new([STOP]) },
        masked: false,
        scope: CacheScope::default(),
        priority: 0,
        arrival: Micros(id),
        party: Party::default(),
        deadline: None,
    }
}

/// Results in which every sampling row draws `token`.
pub(crate) fn all_draw(plan: &Plan, token: TokenId) -> StepResults {
    let draw = |row: &Row| vec![row.samples.then_some(RowResult { token, logprobs: None }); row.results()];
    let draws = plan.rows.iter().flat_map(draw).collect();
    StepResults { step: plan.step, took_us: 0, draws, ..StepResults::default() }
}

pub(crate) fn commit(core: &mut Core, plan: &Plan, token: TokenId) {
    core.commit(GROUP, all_draw(plan, token)).expect("results of the step that is due");
    core.check();
}

/// Plans and commits one step.
pub(crate) fn step(core: &mut Core, token: TokenId) -> Plan {
    let plan = core.plan(GROUP, Micros(0)).expect("there is something to do");
    commit(core, &plan, token);
    plan
}
