//! Rows that are drawn within masks: what becomes of one whose mask does not come in time.

mod small;

use pelton_core::{Event, FinishReason, Micros, NewRequest, Plan, RequestId, RowResult, StepResults, TokenId};

use small::{GROUP, commit, config, core, request, step};

/// A request whose tokens are drawn within masks.
fn masked(id: u64, prompt: std::ops::Range<TokenId>) -> NewRequest {
    NewRequest { masked: true, ..request(id, prompt) }
}

#[test]
fn a_row_whose_mask_misses_is_drawn_a_step_later_and_what_was_planned_behind_it_counts_for_nothing() {
    let mut core = core(16, config());
    core.submit(masked(1, 0..4)).expect("room");
    core.submit(request(2, 10..12)).expect("room");
    step(&mut core, 7);
    let [first, ahead] = [(); 2].map(|()| core.plan(GROUP, Micros(0)).expect("both draw"));
    assert_eq!(ahead.rows.iter().map(|row| (row.start, row.known)).collect::<Vec<_>>(), [(5, 0), (3, 0)]);
    let drawn = |token| Some(RowResult { token, logprobs: None });
    let results = |plan: &Plan, draws| StepResults { step: plan.step, took_us: 0, draws, ..StepResults::default() };
    core.events().for_each(drop);
    core.commit(GROUP, results(&first, vec![None, drawn(8)])).expect("a mask may miss");
    core.check();
    let again = core.plan(GROUP, Micros(0)).expect("it is computed again");
    let rows: Vec<_> =
        again.rows.iter().map(|row| (row.start, row.count, row.known, row.samples, row.masked)).collect();
    assert_eq!(rows, [(4, 1, 1, true, true), (4, 1, 0, true, false)], "from its last known token on");
    // What the row behind it came to is nobody's token, whether it was drawn or not.
    core.commit(GROUP, results(&ahead, vec![drawn(66), drawn(9)])).expect("it is passed over");
    core.check();
    commit(&mut core, &again, 11);
    let told = |id| move |event: &Event| matches!(event, Event::Token { request, .. } if request.0 == id);
    let events: Vec<Event> = core.events().collect();
    let token = |event: &Event| if let Event::Token { token, .. } = event { *token } else { unreachable!("filtered") };
    assert_eq!(events.iter().filter(|event| told(1)(event)).map(token).collect::<Vec<_>>(), [11]);
    assert_eq!(events.iter().filter(|event| told(2)(event)).map(token).collect::<Vec<_>>(), [8, 9, 11]);
    assert_eq!(core.counts().unsampled, 1);
}

#[test]
fn a_prompt_whose_first_mask_misses_leaves_its_last_token_out_of_the_cache() {
    let mut core = core(16, config());
    core.submit(masked(1, 0..8)).expect("room");
    let prompt = core.plan(GROUP, Micros(0)).expect("a prompt");
    core.commit(GROUP, StepResults { step: prompt.step, took_us: 0, draws: vec![None], ..StepResults::default() })
        .expect("a mask may miss");
    core.check();
    core.submit(request(2, 0..12)).expect("room");
    let plan = core.plan(GROUP, Micros(0)).expect("both");
    let rows: Vec<_> = plan.rows.iter().map(|row| (row.start, row.count)).collect();
    assert_eq!(rows[0], (7, 1));
    commit(&mut core, &plan, 7);
}

/// Twelve tokens of an answer are certain: they take one row, once what is in flight of their request is back.
#[test]
fn tokens_that_are_certain_stand_in_one_row() {
    let mut core = core(16, config());
    let mut new = masked(1, 0..4);
    new.stop.max_tokens = 40;
    core.submit(new).expect("room");
    core.submit(request(2, 10..12)).expect("room");
    step(&mut core, 7);
    let first = core.plan(GROUP, Micros(0)).expect("both draw");
    core.force(RequestId(1), 1, (30..42).collect());
    let ahead = core.plan(GROUP, Micros(0)).expect("the other one draws");
    let slots = |plan: &Plan| plan.rows.iter().map(|row| row.slot).collect::<Vec<_>>();
    assert_eq!((slots(&first).len(), slots(&ahead)), (2, vec![first.rows[1].slot]), "the first one waits");
    core.events().for_each(drop);
    commit(&mut core, &first, 30);
    core.check();
    let told = |core: &mut pelton_core::Core| {
        let mine = |event| match event {
            Event::Token { request: RequestId(1), token, logprobs: None } => Some(token),
            _ => None,
        };
        core.events().filter_map(mine).collect::<Vec<_>>()
    };
    assert_eq!(told(&mut core), (30..42).collect::<Vec<_>>());
    let row =
        core.plan(GROUP, Micros(0)).expect("it goes on").rows.into_iter().find(|row| row.masked).expect("it draws");
    assert_eq!((row.start, row.count, row.known, row.samples), (5, 12, 12, true));
    assert_eq!(core.counts().forced_tokens, 11);
}

#[test]
fn a_run_that_is_short_or_old_or_wrong_or_of_nobody_changes_nothing() {
    let mut core = core(16, config());
    core.submit(masked(1, 0..4)).expect("room");
    step(&mut core, 7);
    let first = core.plan(GROUP, Micros(0)).expect("it draws");
    for (drawn, run) in [(1, vec![30, 31, 32]), (0, vec![7]), (0, vec![9, 9, 9, 9, 9, 9]), (1, vec![])] {
        core.force(RequestId(1), drawn, run.clone());
        core.force(RequestId(9), drawn, run);
    }
    core.force(RequestId(1), 1, vec![30, 31, 32]);
    let ahead = core.plan(GROUP, Micros(0)).expect("no pause for two tokens");
    commit(&mut core, &first, 30);
    commit(&mut core, &ahead, 31);
    core.check();
    assert_eq!(core.counts().forced_tokens, 1, "the last one, since nothing of it was in flight");
    core.force(RequestId(1), 0, vec![7, 9, 9, 9, 9, 9]);
    step(&mut core, 33);
    assert_eq!(core.counts().forced_tokens, 1);
}

#[test]
fn certain_tokens_end_their_request_as_drawn_ones_do() {
    for (stop_ids, max_tokens, reason, count) in
        [(vec![33], 99, FinishReason::StopToken(33), 5), (vec![], 4, FinishReason::Length, 4)]
    {
        let mut core = core(16, config());
        let mut new = masked(1, 0..4);
        (new.stop.stop_ids, new.stop.max_tokens) = (stop_ids.into(), max_tokens);
        core.submit(new).expect("room");
        step(&mut core, 7);
        let first = core.plan(GROUP, Micros(0)).expect("it draws");
        core.force(RequestId(1), 1, (30..40).collect());
        commit(&mut core, &first, 30);
        core.check();
        let events: Vec<Event> = core.events().collect();
        let tokens = events.iter().filter(|event| matches!(event, Event::Token { .. })).count();
        assert_eq!(tokens, count);
        assert!(matches!(events.last(), Some(Event::Finished { reason: got, .. }) if *got == reason));
        assert_eq!(core.counts().blocks_held, 0);
    }
}
