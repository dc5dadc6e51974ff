//! Time that is told without anything ending by it.

mod small;

use pelton_core::{Event, Micros, NewRequest, RequestId};
use small::{GROUP, STOP, commit, config, core, request, step};

#[test]
fn a_result_has_come_when_it_was_heard_and_counts_though_its_deadline_has_passed() {
    let mut core = core(16, config());
    for id in [1, 2] {
        core.submit(NewRequest { arrival: Micros(5), deadline: Some(Micros(100)), ..request(id, [id as u32, 2, 3]) })
            .expect("room");
    }
    let plan = core.plan(GROUP, Micros(10)).expect("both");
    core.clock(Micros(150));
    commit(&mut core, &plan, STOP);
    let ended: Vec<_> = core.events().filter(|event| !matches!(event, Event::Admitted { .. })).collect();
    for (events, id) in ended.chunks(2).zip([1, 2]) {
        let [Event::Token { request, .. }, Event::Finished { explanation, .. }] = events else { panic!("{events:?}") };
        assert_eq!((*request, explanation.first_token), (RequestId(id), Some(Micros(150))));
        assert_eq!((explanation.admitted, explanation.until), (Some(Micros(10)), Micros(150)));
    }
}

#[test]
fn nothing_ends_before_the_tick() {
    let mut core = core(16, config());
    core.submit(NewRequest { deadline: Some(Micros(100)), ..request(1, [1, 2, 3]) }).expect("room");
    step(&mut core, 7);
    core.events().for_each(drop);
    core.clock(Micros(150));
    assert_eq!((core.events().count(), core.next_deadline()), (0, Some(Micros(100))));
    core.tick(Micros(150));
    assert!(matches!(core.events().next(), Some(Event::Expired { request: RequestId(1), .. })));
}
