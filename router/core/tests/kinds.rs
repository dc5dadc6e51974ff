//! What layers keep of the past, case by case: windows that pass, states that move, hits that every kind can serve. The
//! worlds show that tokens are right; these show that blocks come home early and that hits are as long as they can be.

mod small;

use pelton_core::{Core, CoreConfig, Event, Kind, Limits, Micros, Plan, Refusal, RequestId, StateMode, TokenId};
use small::{GROUP, STOP, commit, config, core, request, step};

fn with(kinds: &[Kind]) -> CoreConfig {
    CoreConfig { kinds: kinds.to_vec(), ..config() }
}

const WINDOW: Kind = Kind::Window { tokens: 6 };
const ALL: Kind = Kind::State { mode: StateMode::All };
const ALIGN: Kind = Kind::State { mode: StateMode::Align };
const NONE: Kind = Kind::State { mode: StateMode::None };

/// Submits a request that draws `tokens` tokens, and lives until it has ended. Says how many blocks were held after each
/// of its steps.
fn held(core: &mut Core, id: u64, prompt: impl IntoIterator<Item = TokenId>, tokens: u32) -> Vec<usize> {
    let mut new = request(id, prompt);
    new.stop.max_tokens = tokens;
    core.submit(new).expect("room");
    let mut held = Vec::new();
    while core.counts().running + core.counts().waiting > 0 {
        step(core, 7);
        held.push(core.counts().blocks_held);
    }
    held
}

/// How many tokens of a prompt are found.
fn cached(core: &mut Core, id: u64, prompt: impl IntoIterator<Item = TokenId>) -> u32 {
    core.events().for_each(drop);
    core.submit(request(id, prompt)).expect("room");
    step(core, STOP);
    let admitted = core.events().find_map(|event| match event {
        Event::Admitted { cached, .. } => Some(cached),
        _ => None,
    });
    core.abort(RequestId(id));
    while let Some(plan) = core.plan(GROUP, Micros(0)) {
        commit(core, &plan, STOP);
    }
    admitted.expect("it was admitted")
}

#[test]
fn blocks_are_given_back_as_the_window_passes() {
    // Behind 8 tokens one sees 3 to 8, behind 9 of them 4 to 9, behind 13 of them 8 to 13.
    assert_eq!(held(&mut core(16, with(&[WINDOW])), 1, 0..8, 8), [2, 2, 2, 2, 2, 2, 2, 0]);
    assert_eq!(held(&mut core(16, with(&[Kind::Full])), 1, 0..8, 8), [2, 3, 3, 3, 3, 4, 4, 0]);
    assert_eq!(held(&mut core(16, with(&[Kind::Full, WINDOW])), 1, 0..8, 3), [4, 5, 0]);
}

#[test]
fn a_request_whose_layers_have_windows_only_runs_in_a_few_blocks_however_long_it_is() {
    let mut core = core(4, CoreConfig { token_budget: 5, ..with(&[WINDOW]) });
    let held = held(&mut core, 1, 0..50, 10);
    assert!(held.iter().all(|&held| held <= 3), "{held:?}");
}

#[test]
fn a_chunk_is_cut_rather_than_others_preempted_for_it() {
    let mut core = core(8, CoreConfig { token_budget: 64, ..with(&[WINDOW]) });
    core.submit(request(1, 100..104)).expect("room");
    step(&mut core, 7);
    core.submit(request(2, 0..50)).expect("room");
    let starts: Vec<(u32, u32)> = (0..3)
        .map(|_| {
            let rows = step(&mut core, 7).rows;
            (rows[1].start, rows[1].count)
        })
        .collect();
    assert_eq!(starts, [(0, 24), (24, 16), (40, 10)], "6 blocks are idle, then 4 beside the 2 of the window");
    assert_eq!(core.counts().preemptions, 0);
}

#[test]
fn the_worker_hears_of_each_kinds_blocks_by_place_and_of_none_that_a_window_has_passed() {
    let mut core = core(16, with(&[Kind::Full, WINDOW]));
    held(&mut core, 1, 0..12, 1);
    core.submit(request(2, 0..14)).expect("room");
    let plan = step(&mut core, 7);
    let told: Vec<(u32, u32)> = plan.appends.iter().map(|append| (append.kind, append.at)).collect();
    assert_eq!(
        told,
        [(0, 0), (0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (1, 3)],
        "behind 12 tokens, 7 is the oldest seen"
    );
    assert_eq!(plan.rows[0].start, 12);
}

#[test]
fn a_hit_is_as_long_as_every_kind_can_serve() {
    for (kinds, expected) in [
        (&[Kind::Full][..], 13),
        (&[Kind::Full, WINDOW], 13),
        (&[WINDOW, Kind::Window { tokens: 9 }], 13),
        (&[Kind::Full, ALL], 12),
        (&[Kind::Full, ALIGN], 12),
        (&[ALL], 12),
        (&[ALIGN, WINDOW], 12),
        (&[Kind::Full, NONE], 0),
        (&[NONE], 0),
    ] {
        let mut core = core(32, with(kinds));
        held(&mut core, 1, 0..13, 1);
        assert_eq!(cached(&mut core, 2, 0..14), expected, "{kinds:?}");
    }
}

#[test]
fn states_are_found_after_each_full_block_or_where_a_chunk_ended_as_the_mode_says() {
    for (mode, asked, expected) in
        [(ALL, 9, 8), (ALL, 5, 4), (ALIGN, 9, 8), (ALIGN, 21, 16), (ALIGN, 5, 0), (NONE, 21, 0)]
    {
        // Align: chunks of 8, 8 and 4 tokens, then one.
        let mut core = core(32, CoreConfig { token_budget: 10, ..with(&[Kind::Full, mode]) });
        core.submit(request(1, 0..21)).expect("room");
        let mut ends = Vec::new();
        while core.counts().running + core.counts().waiting > 0 {
            let row = step(&mut core, STOP).rows[0];
            ends.push(row.start + row.count);
        }
        assert_eq!(ends, if mode == ALIGN { vec![8, 16, 20, 21] } else { vec![10, 20, 21] });
        let other = (0..asked - 1).chain([99]);
        let expected = if (mode, asked) == (ALIGN, 21) { 20 } else { expected };
        assert_eq!(cached(&mut core, 2, other), expected, "{mode:?}, of {asked}");
    }
}

fn moves(plan: &Plan) -> Vec<(bool, u32)> {
    plan.states.iter().map(|told| (told.from.is_some(), told.until)).collect()
}

#[test]
fn a_state_begins_as_zeros_and_goes_on_from_what_was_found() {
    // B:KV1, C:K8
    let mut core = core(32, with(&[Kind::Full, ALL]));
    core.submit(request(1, 0..9)).expect("room");
    let first = step(&mut core, STOP);
    assert_eq!(moves(&first), [(false, 4), (true, 8), (true, 9)]);
    core.submit(request(2, (0..8).chain([50]))).expect("room");
    let second = step(&mut core, STOP);
    assert_eq!(moves(&second), [(true, 9)]);
    assert_eq!(second.states[0].from, Some(first.states[1].to), "the state after 8 tokens");
    assert_ne!(second.states[0].from, Some(second.states[0].to), "others may find it again");
    core.submit(request(3, [60])).expect("room");
    assert_eq!(moves(&step(&mut core, STOP)), [(false, 1)], "whatever its block contains");
}

#[test]
fn what_is_needed_of_each_kind_is_what_is_asked_for_before_a_request_is_taken() {
    let refused = |blocks, kinds: &[Kind]| {
        let mut new = request(1, 0..40);
        new.stop.max_tokens = 9; // 48 tokens with KV: 12 blocks
        core(blocks, with(kinds)).submit(new)
    };
    for (kinds, needed) in [
        (&[Kind::Full][..], 12),
        (&[Kind::Full, Kind::Full], 24),
        (&[Kind::Full, WINDOW], 12 + 3),
        (&[WINDOW], 3),
        (&[Kind::Full, ALL, ALIGN, NONE], 12 + 2 + 2 + 1),
    ] {
        assert_eq!(refused(u32::try_from(needed).expect("few"), kinds), Ok(()));
        let blocks = needed - 1;
        let refusal = Refusal::NeverFits { needed, blocks };
        assert_eq!(refused(u32::try_from(blocks).expect("few"), kinds), Err(refusal), "{kinds:?}");
    }
}

#[test]
fn blocks_of_every_kind_come_back_from_the_hosts_memory() {
    for (kind, loads) in [(WINDOW, 3 + 2), (ALL, 3 + 1), (ALIGN, 3 + 1)] {
        let limits = Limits { saves: 8, loads: 8, ..config().limits };
        let mut core = Core::new(CoreConfig { host_blocks: 64, limits, ..with(&[Kind::Full, kind]) });
        core.add_group(GROUP, 12, true);
        for id in 1..6 {
            held(&mut core, id, (0..14).map(|at| 100 * id as TokenId + at), 3);
        }
        core.submit(request(6, 100..114)).expect("room");
        let plan = step(&mut core, STOP);
        assert_eq!((plan.loads.len(), plan.rows[0].start), (loads, 12), "{kind:?}");
        if let Kind::State { .. } = kind {
            let loaded: Vec<_> = plan.loads.iter().map(|load| Some(load.to)).collect();
            assert!(loaded.contains(&plan.states[0].from), "it goes on from the state that came back");
        }
    }
}

#[test]
fn a_prefix_comes_back_whole_or_not_at_all_where_kinds_need_parts_of_it() {
    // Nothing of the state after 12 tokens is left: the blocks of the full kind alone are worth nothing.
    let limits = Limits { saves: 1, loads: 8, ..config().limits };
    let mut core = Core::new(CoreConfig { host_blocks: 3, limits, ..with(&[Kind::Full, ALL]) });
    core.add_group(GROUP, 10, true);
    core.submit(request(1, 0..14)).expect("room");
    step(&mut core, 7);
    let save = step(&mut core, STOP).saves; // of all, the first block of the full kind
    assert_eq!(save.len(), 1);
    for id in 2..5 {
        held(&mut core, id, (0..14).map(|at| 100 * id as TokenId + at), 1);
    }
    core.submit(request(6, 0..14)).expect("room");
    let plan = step(&mut core, STOP);
    assert_eq!((plan.loads.len(), plan.rows[0].start), (0, 0));
}
