//! When steps are planned.

use std::{thread, time::Duration};

use pelton_engine::{Answer, Output};

use crate::{
    model::answer,
    rig::{Case, Rig, play},
    worker::{Deed, Fault},
};

/// Waits for the next token.
#[track_caller]
fn next(answer: &mut Answer) -> u32 {
    loop {
        match answer.blocking_next() {
            Some(Output::Admitted { .. }) => {}
            Some(Output::Token { token, .. }) => return token,
            other => panic!("{other:?} instead of a token"),
        }
    }
}

#[test]
fn who_comes_while_a_long_step_runs_is_in_the_next_one() {
    let rig = Rig::start(&[play(Fault::Always(Deed::Linger), 1)]);
    let (first, second) = (Case::new(answer(&[1], 5), 8), Case::new(answer(&[2], 5), 2));
    let mut running = rig.submit(&first);
    // So many steps tell what the next ones take.
    for &token in &first.tokens()[..6] {
        assert_eq!(next(&mut running), token);
    }
    // The seventh is being drawn, and has been for longer than it takes to plan a step.
    thread::sleep(Duration::from_millis(20));
    rig.serve(std::slice::from_ref(&second))[0].is_undisturbed(&second);
    assert_eq!([next(&mut running), next(&mut running)], first.tokens()[6..]);
    assert_eq!(rig.stop().steps, 8 + 1, "a step was planned before the second request came, that had to wait for it");
}
