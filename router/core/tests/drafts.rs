//! Rows with drafts, by hand: what is drawn in their places decides how many count.

mod small;

use pelton_core::{
    CommitError, Core, CoreConfig, Event, FinishReason, Micros, Plan, Row, RowResult, SlotId, StepResults,
};
use pelton_core::{NewRequest, TokenId};

use small::{GROUP, STOP, all_draw, config, core, request, step};

fn drafting(drafts_max: u32) -> CoreConfig {
    CoreConfig { drafts_max, ..config() }
}

/// A prompt whose end has come by before, with 4, 5, 6, 7 behind it.
fn repeats(id: u64) -> NewRequest {
    request(id, [1, 2, 3, 4, 5, 6, 7, 1, 2])
}

fn draws(plan: &Plan, tokens: &[TokenId]) -> StepResults {
    let draws = tokens.iter().map(|&token| Some(RowResult { token, logprobs: None })).collect();
    StepResults { step: plan.step, took_us: 0, draws, ..StepResults::default() }
}

fn told(core: &mut Core) -> Vec<TokenId> {
    let events = core.events().filter_map(|event| match event {
        Event::Token { token, .. } => Some(token),
        _ => None,
    });
    events.collect()
}

fn next(core: &mut Core) -> Plan {
    core.plan(GROUP, Micros(0)).expect("there is something to do")
}

#[test]
fn of_the_drafts_of_a_row_those_count_that_are_drawn_and_one_token_behind_them() {
    for (drawn, expected, accepted) in [
        ([4, 5, 6, 7], &[4, 5, 6, 7][..], 3),
        ([4, 5, 9, 7], &[4, 5, 9], 2),
        ([4, 9, 6, 7], &[4, 9], 1),
        ([9, 5, 6, 7], &[9], 0),
    ] {
        let mut core = core(16, drafting(3));
        core.submit(repeats(1)).expect("room");
        step(&mut core, 3);
        told(&mut core);
        let plan = next(&mut core);
        let row = Row {
            slot: SlotId(0),
            start: 9,
            count: 4,
            known: 4,
            drafts: 3,
            samples: true,
            masked: false,
            pools: false,
            scores: 0,
            embeds: 0,
            next: None,
        };
        assert_eq!((&plan.rows[..], &plan.tokens[..]), (&[row][..], &[3, 4, 5, 6][..]));
        assert_eq!(core.plan(GROUP, Micros(0)), None, "nothing is planned behind drafts");
        for wrong in [&drawn[..3], &[4, 5, 6, 7, 8]] {
            let error = core.commit(GROUP, draws(&plan, wrong)).expect_err("a token for each draft, and one");
            assert_eq!(error, CommitError::WrongCount { expected: 4, got: wrong.len() });
        }
        core.commit(GROUP, draws(&plan, &drawn)).expect("as many as there should be");
        core.check();
        assert_eq!(told(&mut core), expected);
        assert_eq!((core.counts().drafted_tokens, core.counts().accepted_tokens), (3, accepted));
        let plan = next(&mut core);
        let row = plan.rows[0];
        assert_eq!(row.start as usize, 9 + expected.len(), "behind what counts");
        assert_eq!(plan.tokens[0], expected[expected.len() - 1]);
    }
}

#[test]
fn a_stop_among_the_drafts_ends_the_request_there() {
    let mut core = core(16, drafting(3));
    core.submit(request(1, [1, 2, 3, 4, STOP, 6, 7, 1, 2])).expect("room");
    step(&mut core, 3);
    let plan = next(&mut core);
    assert_eq!(plan.tokens, [3, 4, STOP, 6]);
    told(&mut core);
    core.commit(GROUP, draws(&plan, &[4, STOP, 6, 7])).expect("as many as there should be");
    core.check();
    let events: Vec<Event> = core.events().collect();
    assert!(matches!(events[..2], [Event::Token { token: 4, .. }, Event::Token { token: STOP, .. }]), "{events:?}");
    let [.., Event::Finished { reason, explanation, .. }] = &events[..] else { panic!("{events:?}") };
    assert_eq!((*reason, explanation.drafted, explanation.accepted), (FinishReason::StopToken(STOP), 3, 2));
    assert_eq!(events.len(), 3);
}

#[test]
fn no_draft_goes_beyond_the_last_token_that_a_request_may_have() {
    let mut core = core(16, drafting(8));
    core.submit(repeats(1)).expect("room"); // it draws 8 tokens
    let plan = step(&mut core, 3);
    assert_eq!(plan.rows[0].drafts, 0);
    let plan = next(&mut core);
    assert_eq!(plan.rows[0].drafts, 6, "six, and the one behind them");
    core.commit(GROUP, draws(&plan, &[4, 5, 6, 7, 1, 2, 3])).expect("all of them");
    core.check();
    assert_eq!(core.counts().running, 0);
}

#[test]
fn a_request_is_held_back_while_its_row_in_flight_may_confirm_a_guess() {
    let mut core = core(16, drafting(3));
    core.submit(request(1, [1, 2, 3, 4, 5, 6, 1, 2, 9])).expect("room");
    step(&mut core, 1); // no guess: what follows runs ahead
    let (first, second) = (next(&mut core), next(&mut core));
    assert_eq!((first.rows[0].known, second.rows[0].known), (1, 0));
    core.commit(GROUP, all_draw(&first, 2)).expect("due");
    core.check();
    assert_eq!(next(&mut core).rows[0].drafts, 0);

    let mut core = self::core(16, drafting(3));
    core.submit(request(1, [1, 2, 3, 4, 5, 6, 7, 8, 1])).expect("room");
    step(&mut core, 2);
    let (first, second) = (next(&mut core), next(&mut core));
    core.commit(GROUP, all_draw(&first, 3)).expect("due"); // 1, 2, 3: and 4 is in flight, perhaps
    core.check();
    assert_eq!(core.plan(GROUP, Micros(0)), None);
    core.commit(GROUP, all_draw(&second, 4)).expect("due");
    core.check();
    assert_eq!(next(&mut core).tokens, [4, 5, 6, 7]);
}

#[test]
fn requests_with_masks_or_penalties_have_no_drafts() {
    let mut penalized = repeats(1);
    penalized.sampling.presence_penalty = 0.5;
    for new in [NewRequest { masked: true, ..repeats(1) }, penalized] {
        let mut core = core(16, drafting(3));
        core.submit(new).expect("room");
        step(&mut core, 3);
        assert_eq!(next(&mut core).rows[0].drafts, 0);
        assert_eq!(next(&mut core).rows[0].known, 0, "one step ahead");
    }
}

#[test]
fn drafts_take_no_block_that_others_may_want() {
    for (blocks, waits, drafts) in [(6, false, 2), (4, false, 1), (6, true, 1)] {
        let mut core = core(blocks, CoreConfig { prefix_caching: false, max_running: 1, ..drafting(3) });
        let mut new = request(1, [1, 2, 3, 4, 5, 6, 7, 8, 1, 2]);
        new.stop.max_tokens = 4; // 4 blocks of 4 tokens in the end, and 3 with the first one
        core.submit(new).expect("room");
        step(&mut core, 3);
        if waits {
            core.submit(request(2, 20..27)).expect("room");
        }
        let row = next(&mut core).rows[0];
        assert_eq!((row.start, row.drafts), (10, drafts), "{blocks} blocks; another one waits: {waits}");
    }
}

#[test]
fn what_is_rejected_is_not_found_by_others() {
    let mut core = core(16, drafting(3));
    core.submit(repeats(1)).expect("room");
    step(&mut core, 3);
    let plan = next(&mut core);
    core.commit(GROUP, draws(&plan, &[4, 9, 6, 7])).expect("one counts");
    core.check();
    core.abort(pelton_core::RequestId(1));
    // Its tokens are 1 to 7, 1, 2, 3, 4, 9: with KV up to 4, and that of 5 where 9 should stand.
    for (text, cached) in [([3, 4, 5, 6], 11), ([3, 4, 9, 6], 11)] {
        core.submit(request(2 + u64::from(text[2]), [1, 2, 3, 4, 5, 6, 7, 1, 2].into_iter().chain(text)))
            .expect("room");
        let plan = next(&mut core);
        assert_eq!(plan.rows[0].start, cached, "{text:?}");
        core.commit(GROUP, all_draw(&plan, STOP)).expect("due");
        core.check();
    }
}
