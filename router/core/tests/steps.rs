//! What stands in a step, case by case. The worlds show that tokens are right; these show that work is not wasted, that
//! nobody is held up, and that things come home exactly when they may.

mod small;

use pelton_core::{
    BlockId, CommitError, Copy, Core, CoreConfig, Event, FinishReason, GroupId, Limits, Micros, NewRequest, Plan,
    Refusal, RequestId, Row, RowResult, Sampling, SlotId, StepId, StepResults, StopRule,
};
use small::{GROUP, STOP, all_draw, commit, config, core, request, step};

fn row(slot: u32, start: u32, count: u32, known: u32, samples: bool) -> Row {
    Row {
        slot: SlotId(slot),
        start,
        count,
        known,
        drafts: 0,
        samples,
        masked: false,
        pools: false,
        scores: 0,
        embeds: 0,
        next: None,
    }
}

fn admitted(plan: &Plan) -> Vec<u64> {
    plan.admits.iter().map(|admit| admit.request.0).collect()
}

fn finished(core: &mut Core) -> Vec<(u64, FinishReason)> {
    let finished = |event| match event {
        Event::Finished { request, reason, .. } => Some((request.0, reason)),
        _ => None,
    };
    core.events().filter_map(finished).collect()
}

#[test]
fn a_prompt_of_one_token_is_computed_like_any_other() {
    // B:SC2
    let mut core = core(16, config());
    core.submit(request(1, [7])).expect("room");
    let plan = core.plan(GROUP, Micros(0)).expect("one request");
    assert_eq!((plan.step, &plan.rows[..], &plan.tokens[..]), (StepId(1), &[row(0, 0, 1, 1, true)][..], &[7][..]));
}

#[test]
fn a_prompt_longer_than_the_budget_comes_in_chunks_and_only_the_last_one_samples() {
    let mut core = core(16, CoreConfig { token_budget: 10, ..config() });
    core.submit(request(1, 0..25)).expect("room");
    let plans = [step(&mut core, 7), step(&mut core, 7), step(&mut core, 7), step(&mut core, 7)];
    let rows: Vec<Row> = plans.iter().map(|plan| plan.rows[0]).collect();
    assert_eq!(
        rows,
        [row(0, 0, 10, 10, false), row(0, 10, 10, 10, false), row(0, 20, 5, 5, true), row(0, 25, 1, 1, true)]
    );
    let appends: Vec<usize> = plans.iter().map(|plan| plan.appends.len()).collect();
    assert_eq!(appends, [3, 2, 2, 0], "the worker hears of blocks when it needs them");
}

#[test]
fn the_next_step_is_planned_before_the_token_is_known_and_the_one_after_it_is_not() {
    let mut core = core(16, config());
    core.submit(request(1, 0..3)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("the prompt");
    let second = core.plan(GROUP, Micros(0)).expect("one step ahead");
    assert_eq!((&second.rows[..], second.tokens.len()), (&[row(0, 3, 1, 0, true)][..], 0));
    assert_eq!((core.plan(GROUP, Micros(0)), core.in_flight(GROUP)), (None, 2));
    commit(&mut core, &first, 7);
    assert_eq!(core.plan(GROUP, Micros(0)).expect("room again").rows, [row(0, 4, 1, 0, true)]);
}

#[test]
fn nothing_is_computed_after_the_last_token_that_a_request_can_have() {
    let end_of = |prompt: u32, max_tokens: u32| {
        let mut core = core(16, config());
        let mut new = request(1, 0..prompt);
        new.stop.max_tokens = max_tokens;
        core.submit(new).expect("room");
        let mut plans = Vec::new();
        while let Some(plan) = core.plan(GROUP, Micros(0)) {
            plans.push(plan); // never more than one in flight ends it
            if core.in_flight(GROUP) == 2 {
                let due = plans[plans.len() - 2].clone();
                commit(&mut core, &due, 7);
            }
        }
        let last = plans.last().expect("at least one").clone();
        commit(&mut core, &last, 7);
        assert_eq!(finished(&mut core), [(1, FinishReason::Length)]);
        assert_eq!(core.counts().blocks_held, 0);
        let row = last.rows[0];
        row.start + row.count
    };
    assert_eq!(end_of(5, 3), 7, "5 tokens of the prompt and 2 of 3 drawn ones");
    assert_eq!(end_of(5, 1), 5, "the one token drawn has no KV");
    assert_eq!(end_of(60, 8), 63, "the context is full with 64");
}

#[test]
fn what_was_drawn_past_a_stop_is_told_to_nobody_and_blocks_come_home_with_the_last_step() {
    let mut core = core(16, config());
    core.submit(request(1, 0..3)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("the prompt");
    let second = core.plan(GROUP, Micros(0)).expect("one step ahead");
    commit(&mut core, &first, STOP);
    assert_eq!(finished(&mut core), [(1, FinishReason::StopToken(STOP))]);
    assert_eq!((core.counts().running, core.counts().blocks_held), (0, 1), "a step in flight names them");
    commit(&mut core, &second, 7);
    assert_eq!((core.events().count(), core.counts().blocks_held, core.counts().generated_tokens), (0, 0, 1));
}

#[test]
fn an_aborted_request_keeps_slot_and_blocks_until_the_last_step_that_names_them_has_committed() {
    let mut core = core(16, CoreConfig { max_running: 1, ..config() });
    core.submit(request(1, 0..3)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("the prompt");
    let second = core.plan(GROUP, Micros(0)).expect("one step ahead");
    core.abort(RequestId(1));
    core.submit(request(2, 10..13)).expect("room");
    commit(&mut core, &first, 7);
    assert_eq!((core.plan(GROUP, Micros(0)), core.counts().blocks_held), (None, 1), "the only slot is still named");
    commit(&mut core, &second, 7);
    let plan = core.plan(GROUP, Micros(0)).expect("the slot is free");
    assert_eq!((&plan.drops[..], admitted(&plan)), (&[SlotId(0)][..], vec![2]));
    assert_eq!(core.counts().aborted, 1);
    core.abort(RequestId(1));
    assert_eq!(core.counts().aborted, 1, "an abort that comes too late does nothing");
}

#[test]
fn those_that_draw_go_before_a_prompt_of_higher_priority() {
    let mut core = core(32, CoreConfig { token_budget: 8, ..config() });
    core.submit(request(5, 100..104)).expect("room");
    core.submit(request(6, 200..204)).expect("room");
    step(&mut core, 7);
    let long = NewRequest { priority: -1, ..request(9, 0..40) };
    core.submit(long).expect("room");
    let entering = step(&mut core, 7);
    assert_eq!(entering.rows, [row(0, 4, 1, 1, true), row(1, 4, 1, 1, true), row(2, 0, 6, 6, false)]);
    let going_on = step(&mut core, 7);
    assert_eq!(going_on.rows, [row(0, 5, 1, 1, true), row(1, 5, 1, 1, true), row(2, 6, 6, 6, false)]);
}

#[test]
fn a_common_prefix_is_shared_by_blocks_and_copied_to_the_token() {
    for (prompt, shared, copied) in [
        (vec![0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 50], 2, Some(2)), // 8 in full blocks, 8 and 9 from the tail
        (vec![0, 1, 2, 3, 4, 5, 50], 1, Some(2)),             // the start of a full block
        (vec![0, 1, 2, 3, 4, 5, 6, 7], 1, Some(3)),           // all is known, and one token must be computed
        (vec![0, 1, 2, 3, 50], 1, None),
        (vec![50, 1, 2, 3], 0, None),
        (vec![0], 0, None),
    ] {
        let mut core = core(16, config());
        core.submit(request(1, 0..10)).expect("room");
        step(&mut core, STOP);
        assert_eq!(core.counts().blocks_held, 0);
        core.events().for_each(drop);
        core.submit(request(2, prompt.clone())).expect("room");
        let plan = core.plan(GROUP, Micros(0)).expect("one request");
        let cached = shared * 4 + copied.unwrap_or(0);
        let len = prompt.len() as u32;
        assert_eq!(plan.rows, [row(plan.rows[0].slot.0, cached, len - cached, len - cached, true)], "{prompt:?}");
        assert_eq!(
            plan.copies.iter().map(|copy| copy.tokens).collect::<Vec<_>>(),
            Vec::from_iter(copied),
            "{prompt:?}"
        );
        assert_eq!(core.events().next(), Some(Event::Admitted { request: RequestId(2), cached }));
        assert_eq!(
            (core.counts().prompt_tokens, core.counts().cached_tokens),
            (10 + u64::from(len), u64::from(cached))
        );
        core.check();
    }
}

#[test]
fn the_source_of_a_copy_is_held_until_the_step_has_committed() {
    let mut core = core(16, config());
    core.submit(request(1, 0..3)).expect("room");
    step(&mut core, STOP);
    core.submit(request(2, [0, 1, 50])).expect("room");
    let plan = core.plan(GROUP, Micros(0)).expect("one request");
    let [Copy { from, to, tokens: 2 }] = plan.copies[..] else { panic!("{:?}", plan.copies) };
    assert_eq!((plan.appends[0].block, core.counts().blocks_held), (to, 2));
    assert_ne!(from, to);
    commit(&mut core, &plan, 7);
    assert_eq!(core.counts().blocks_held, 1);
}

#[test]
fn what_another_request_is_computing_is_waited_for_and_shared() {
    let mut core = core(32, CoreConfig { token_budget: 8, ..config() });
    core.submit(request(1, 0..22)).expect("room");
    for id in 2..4 {
        core.submit(request(id, 0..22)).expect("room");
    }
    core.submit(request(4, (0..12).chain([50, 51]))).expect("room");
    core.submit(request(5, [60])).expect("room");
    let mut starts = Vec::new();
    while core.counts().waiting > 0 {
        let plan = step(&mut core, 7);
        for admit in &plan.admits {
            let row = plan.rows.iter().find(|row| row.slot == admit.slot).expect("who enters has a row");
            starts.push((admit.request.0, row.start));
        }
    }
    assert_eq!(starts, [(1, 0), (5, 0), (2, 21), (4, 12), (3, 21)], "nobody computes what 1 has computed");
    assert_eq!(core.counts().cached_tokens, 12 + 21 + 21);
}

#[test]
fn what_no_step_has_committed_is_not_found() {
    let mut core = core(16, config());
    core.submit(request(1, 0..8)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("the prompt");
    core.abort(RequestId(1));
    core.submit(request(2, 0..9)).expect("room");
    let second = core.plan(GROUP, Micros(0)).expect("the second one enters");
    assert_eq!(second.rows[0].start, 0, "the first has left: nobody waits for what it was computing");
    core.abort(RequestId(2));
    commit(&mut core, &first, STOP);
    commit(&mut core, &second, 7);
    core.submit(request(3, 0..10)).expect("room");
    assert_eq!(step(&mut core, 7).rows[0].start, 0, "it was computed for those that were aborted, and never committed");
}

#[test]
fn a_leaf_is_given_up_before_its_root() {
    let mut core = core(5, config());
    core.submit(request(1, 0..11)).expect("room");
    let table: Vec<BlockId> = step(&mut core, STOP).appends.iter().map(|append| append.block).collect();
    core.submit(request(2, 100..110)).expect("room");
    let taken: Vec<BlockId> = step(&mut core, STOP).appends.iter().map(|append| append.block).collect();
    assert_eq!((taken.len(), taken[2]), (3, table[2]), "the two blank ones, then the last block of the chain");
    core.submit(request(3, 0..12)).expect("room");
    assert_eq!(step(&mut core, STOP).rows[0].start, 8);
}

#[test]
fn without_prefix_caching_nothing_is_found() {
    let mut core = core(16, CoreConfig { prefix_caching: false, ..config() });
    core.submit(request(1, 0..10)).expect("room");
    step(&mut core, STOP);
    core.submit(request(2, 0..10)).expect("room");
    assert_eq!(step(&mut core, STOP).rows[0].start, 0);
}

#[test]
fn a_lost_worker_costs_no_committed_token_and_the_next_one_hears_everything_anew() {
    let mut core = core(16, config());
    let mut new = request(1, 0..5);
    new.sampling.presence_penalty = 0.5;
    new.stop.min_tokens = 2;
    core.submit(new).expect("room");
    let plan = step(&mut core, 7);
    assert_eq!((&plan.admits[0].history[..], plan.admits[0].suppress_until), (&[0, 1, 2, 3, 4][..], 7));
    assert_eq!(plan.admits[0].suppressed[..], [STOP]);
    core.plan(GROUP, Micros(0)).expect("in flight when the worker dies");
    core.worker_lost(GROUP);
    core.check();
    assert_eq!((core.plan(GROUP, Micros(0)), core.in_flight(GROUP), core.counts().waiting), (None, 0, 1));
    let late = StepResults { step: StepId(2), took_us: 0, draws: vec![None], ..StepResults::default() };
    assert!(core.commit(GROUP, late).is_err());

    core.worker_back(GROUP, 16, false);
    let plan = step(&mut core, 8);
    assert_eq!((plan.step, &plan.tokens[..]), (StepId(1), &[0, 1, 2, 3, 4, 7][..]));
    assert_eq!((&plan.admits[0].history[..], plan.admits[0].prompt_len), (&[0, 1, 2, 3, 4, 7][..], 5));
    assert_eq!(plan.admits[0].suppressed[..], [STOP], "one of two tokens is drawn");
    core.worker_lost(GROUP);
    core.worker_back(GROUP, 16, false);
    assert_eq!(step(&mut core, 9).admits[0].suppressed[..], [], "min_tokens is reached");
    assert_eq!(core.counts().replayed, 2);
    let admissions = core.events().filter(|event| matches!(event, Event::Admitted { .. })).count();
    assert_eq!(admissions, 1, "only the first is told");
}

#[test]
fn a_request_from_an_earlier_life_goes_on_where_it_was() {
    let mut core = core(16, config());
    let mut new = request(1, 0..5);
    new.generated = vec![7, 7, 7];
    new.stop.max_tokens = 4;
    core.submit(new).expect("room");
    assert_eq!(step(&mut core, 7).rows, [row(0, 0, 8, 8, true)]);
    assert_eq!(finished(&mut core), [(1, FinishReason::Length)]);
}

#[test]
fn what_can_never_be_served_is_refused_with_the_reason() {
    let sampled = |bias: usize| Sampling { logit_bias: vec![(1, 0.5); bias], ..Sampling::greedy() };
    let stopped = |ids: usize| StopRule { max_tokens: 8, min_tokens: 0, stop_ids: vec![STOP; ids].into() };
    for (new, expected) in [
        (request(1, 0..63), Err(Refusal::NeverFits { needed: 16, blocks: 15 })),
        (request(1, 0..53), Ok(())), // 60 tokens with KV
        (request(1, 0..54), Err(Refusal::NeverFits { needed: 16, blocks: 15 })),
        (request(1, 0..64), Err(Refusal::TooLong { tokens: 64, limit: 64 })),
        (NewRequest { sampling: sampled(4), ..request(1, [1]) }, Ok(())),
        (
            NewRequest { sampling: sampled(5), ..request(1, [1]) },
            Err(Refusal::TooMany { param: "logit_bias", got: 5, limit: 4 }),
        ),
        (
            NewRequest { stop: stopped(5), ..request(1, [1]) },
            Err(Refusal::TooMany { param: "stop_token_ids", got: 5, limit: 4 }),
        ),
    ] {
        assert_eq!(core(15, config()).submit(new), expected);
    }
    let mut core = core(15, CoreConfig { max_waiting: 1, ..config() });
    core.submit(request(1, [1])).expect("room");
    assert_eq!(core.submit(request(2, [1])), Err(Refusal::QueueFull { waiting: 1, limit: 1 }));
}

#[test]
fn a_new_worker_with_fewer_blocks_refuses_those_that_wait_and_fit_no_more() {
    let mut core = core(16, config());
    core.submit(request(1, 0..20)).expect("room");
    core.submit(request(2, 0..5)).expect("room");
    core.worker_lost(GROUP);
    core.worker_back(GROUP, 4, false);
    let refusal = Refusal::NeverFits { needed: 7, blocks: 4 };
    assert_eq!(core.events().collect::<Vec<_>>(), [Event::Refused { request: RequestId(1), refusal }]);
    assert_eq!(admitted(&step(&mut core, 7)), [2]);
}

#[test]
fn results_of_another_step_or_shape_change_nothing() {
    let drawn = || Some(RowResult { token: 7, logprobs: None });
    let results = |step, draws| StepResults { step: StepId(step), took_us: 0, draws, ..StepResults::default() };
    for (garbled, expected) in [
        (results(2, vec![drawn()]), CommitError::WrongStep { expected: StepId(1), got: StepId(2) }),
        (results(1, vec![]), CommitError::WrongCount { expected: 1, got: 0 }),
        (results(1, vec![drawn(), None]), CommitError::WrongCount { expected: 1, got: 2 }),
        (results(1, vec![None]), CommitError::WrongRow { row: 0, samples: true }),
    ] {
        let mut core = core(16, config());
        assert_eq!(core.commit(GROUP, results(1, vec![drawn()])), Err(CommitError::NothingInFlight { got: StepId(1) }));
        core.submit(request(1, 0..3)).expect("room");
        let plan = core.plan(GROUP, Micros(0)).expect("one request");
        let before = core.counts();
        assert_eq!(core.commit(GROUP, garbled), Err(expected));
        assert_eq!((core.counts(), core.in_flight(GROUP)), (before, 1));
        commit(&mut core, &plan, 7);
    }
}

#[test]
fn a_request_goes_to_the_group_that_has_its_prefix_unless_that_one_has_too_much_to_do() {
    let other = GroupId(1);
    let mut core = core(64, config());
    core.add_group(other, 64, false);
    let planned = |core: &mut Core, new: NewRequest| {
        core.submit(new).expect("room");
        let plans = [GROUP, other].map(|group| core.plan(group, Micros(0)));
        core.check();
        let groups = plans.each_ref().map(|plan| plan.as_ref().map_or(vec![], admitted));
        (groups, plans)
    };
    let (groups, [plan, _]) = planned(&mut core, request(1, 0..12));
    assert_eq!(groups, [vec![1], vec![]], "of equals the first");
    let first = plan.expect("admitted");
    let (groups, [ahead, plan]) = planned(&mut core, request(2, 100..120));
    assert_eq!(groups, [vec![], vec![2]], "the one with less to do");
    commit(&mut core, &first, STOP);
    commit(&mut core, &ahead.expect("the draw of 1 is not known"), 7);
    let done = plan.expect("admitted");
    core.commit(other, all_draw(&done, STOP)).expect("as planned");

    let (groups, _) = planned(&mut core, request(3, 100..121));
    assert_eq!(groups, [vec![], vec![3]], "it computes one token there, and 21 elsewhere");
    let (groups, _) = planned(&mut core, request(4, (100..120).chain(300..310)));
    assert_eq!(groups, [vec![], vec![4]], "its prefix outweighs what runs there");
    let (groups, _) = planned(&mut core, request(5, (100..104).chain(400..404)));
    assert_eq!(groups, [vec![5], vec![]], "this one's does not");
}

#[test]
fn a_backlog_fills_every_group_with_its_first_plan() {
    let groups = [0, 1, 2, 3].map(GroupId);
    let mut core = Core::new(CoreConfig { max_waiting: 100, ..config() });
    groups.into_iter().for_each(|group| core.add_group(group, 64, false));
    (0..40_u32).for_each(|id| core.submit(request(id.into(), [id; 6])).expect("room"));
    let plans = groups.map(|group| core.plan(group, Micros(0)).expect("there is enough for all"));
    // Each one leaves to others what they are to compute, and all that it could take besides is its own.
    assert_eq!(plans.map(|plan| plan.rows.len()), [4; 4]);
    core.check();
}

#[test]
fn a_request_is_left_to_the_group_that_has_its_prefix_however_often_another_one_is_planned_meanwhile() {
    let other = GroupId(1);
    let mut core = core(64, config());
    core.submit(request(1, 0..30)).expect("room");
    let first = core.plan(GROUP, Micros(0)).expect("of equals the first");
    core.add_group(other, 64, false);
    core.submit(request(2, 100..120)).expect("room");
    core.submit(request(3, 300..305)).expect("room");
    let done = core.plan(other, Micros(0)).expect("the one with less to do");
    assert_eq!(admitted(&done), [2, 3]);
    let mut results = all_draw(&done, 7);
    results.draws[0] = Some(RowResult { token: STOP, logprobs: None });
    core.commit(other, results).expect("as planned");
    commit(&mut core, &first, STOP);
    let in_flight = [(); 2].map(|()| core.plan(other, Micros(0)).expect("3 goes on"));

    core.submit(request(4, 100..121)).expect("room");
    for _ in 0..40 {
        assert!(core.plan(GROUP, Micros(0)).is_none(), "one token there, and 21 here");
    }
    core.commit(other, all_draw(&in_flight[0], 7)).expect("as planned");
    assert_eq!(core.plan(other, Micros(0)).map(|plan| admitted(&plan)), Some(vec![4]));
}

#[test]
fn nobody_waits_for_the_group_that_has_its_prefix_once_that_hangs() {
    let other = GroupId(1);
    let mut core = core(64, config());
    core.add_group(other, 64, false);
    core.submit(request(1, 0..20)).expect("room");
    let done = core.plan(GROUP, Micros(0)).expect("of equals the first");
    commit(&mut core, &done, STOP);
    core.submit(request(2, 0..21)).expect("room");
    core.plan(GROUP, Micros(0)).expect("it has the prefix");
    core.submit(request(3, 0..22)).expect("room");
    assert!(core.plan(other, Micros(100_000)).is_none(), "it is better off where its prefix is");
    let plan = core.plan(other, Micros(60_000_000)).expect("a step of a few tokens does not take a minute");
    assert_eq!(admitted(&plan), [3]);
    core.check();
}

#[test]
fn what_a_group_has_computed_is_no_load_of_it_any_more() {
    let other = GroupId(1);
    let mut core = core(64, config());
    core.add_group(other, 64, false);
    core.submit(request(1, 0..5)).expect("room");
    core.plan(GROUP, Micros(0)).expect("of equals the first");
    core.submit(request(2, 100..130)).expect("room");
    let plan = core.plan(other, Micros(0)).expect("the one with less to do");
    core.commit(other, all_draw(&plan, 7)).expect("as planned");
    core.submit(request(3, 300..304)).expect("room");
    let plans = [GROUP, other].map(|group| core.plan(group, Micros(0)).map(|plan| admitted(&plan)));
    assert_eq!(plans, [Some(vec![]), Some(vec![3])], "5 tokens are to be computed here, 30 were there");
}

/// In which of three rounds request 9 is let in, and where, if each group is planned while its step runs, with one in flight while the
/// other one is planned.
fn let_in_by_turns(core: &mut Core, groups: [GroupId; 2], mut in_flight: [Plan; 2]) -> Option<(u32, GroupId)> {
    for round in 0..3 {
        for (group, running) in groups.into_iter().zip(&mut in_flight) {
            let next = core.plan(group, Micros(0)).expect("there is enough to do");
            if admitted(&next) == [9] {
                return Some((round, group));
            }
            let done = std::mem::replace(running, next);
            core.commit(group, all_draw(&done, 7)).expect("as planned");
        }
    }
    None
}

#[test]
fn groups_that_are_planned_in_turn_do_not_pass_a_request_to_and_fro() {
    let groups = [GROUP, GroupId(1)];
    let mut core = core(64, config());
    core.add_group(groups[1], 64, false);
    (0..4).for_each(|id| core.submit(request(id, [id as u32; 5])).expect("room"));
    let in_flight = groups.map(|group| core.plan(group, Micros(0)).expect("two for each"));
    assert_eq!(in_flight.each_ref().map(|plan| plan.rows.len()), [2, 2]);
    core.submit(request(9, 100..105)).expect("room");
    // What the one that is planned draws a step later than the other is no load of it: of equals the first.
    assert_eq!(let_in_by_turns(&mut core, groups, in_flight), Some((0, GROUP)));
}

#[test]
fn nor_do_groups_with_long_prompts_whose_steps_end_in_turn() {
    let groups = [GROUP, GroupId(1)];
    let limits = Limits { appends: 128, history: 512, ..config().limits };
    let mut core = Core::new(CoreConfig { token_budget: 16, max_model_len: 512, limits, ..config() });
    groups.into_iter().for_each(|group| core.add_group(group, 128, false));
    // Whoever is planned has computed less of what it began with, by a part of a step, than the other will have by its turn.
    core.submit(request(0, 0..408)).expect("room");
    core.submit(request(1, 1000..1400)).expect("room");
    let in_flight = groups.map(|group| core.plan(group, Micros(0)).expect("a long prompt for each"));
    core.submit(request(9, 3000..3005)).expect("room");
    assert_eq!(let_in_by_turns(&mut core, groups, in_flight).map(|(round, _)| round), Some(0));
    core.check();
}

#[test]
fn requests_wait_for_the_first_group() {
    let mut core = Core::new(config());
    core.submit(request(1, [1])).expect("nobody knows yet what fits");
    assert!(!core.has_group(GROUP));
    core.add_group(GROUP, 4, false);
    assert_eq!(admitted(&step(&mut core, 7)), [1]);
}
