//! Rows that are drawn within masks: what becomes of one whose mask does not come in time.

mod small;

use pelton_core::{Event, Micros, NewRequest, Plan, RowResult, StepResults, TokenId};

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
