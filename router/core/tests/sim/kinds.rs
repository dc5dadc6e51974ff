//! Which kinds of layers a world's model has, and what becomes of their blocks in its steps.

use pelton_core::{Append, CoreConfig, Kind, Plan, StateMode};

use super::Seen;
use super::random::Random;

/// Half of the models have nothing but full attention.
pub(crate) fn kinds(random: &mut Random) -> Vec<Kind> {
    if random.once_in(2) {
        return vec![Kind::Full];
    }
    let modes = [StateMode::None, StateMode::All, StateMode::All, StateMode::Align, StateMode::Align];
    let mode = *random.pick(&modes).expect("there are modes");
    let kind = |random: &mut Random| match random.within(0..=4) {
        0 | 1 => Kind::Full,
        2 | 3 => Kind::Window { tokens: random.within(1..=20) },
        _ => Kind::State { mode },
    };
    (0..random.within(1..=3)).map(|_| kind(random)).collect()
}

/// How many of them have tables.
pub(crate) fn tables(kinds: &[Kind]) -> u32 {
    kinds.iter().filter(|kind| !matches!(kind, Kind::State { .. })).count() as u32
}

/// The most blocks that a request of so many tokens needs, token by token.
pub(crate) fn blocks_needed(config: &CoreConfig, tokens: u32) -> usize {
    let place = |token: u32| token / config.block_size;
    let at = |token: u32, kind: &Kind| match *kind {
        Kind::Full => place(token) + 1,
        Kind::Window { tokens } => place(token) + 1 - place((token + 1).saturating_sub(tokens)),
        Kind::State { mode: StateMode::None } => 1,
        Kind::State { .. } => place(token) + 1 - place(token.saturating_sub(1)),
    };
    let most = |kind| (0..tokens).map(|token| at(token, kind) as usize).max().unwrap_or(0);
    config.kinds.iter().map(most).sum()
}

/// Counts what a world is there for.
pub(crate) fn note(seen: &mut Seen, kinds: &[Kind], plan: &Plan) {
    seen.copies_of_two_kinds += u64::from(plan.copies.len() > 1 && kinds.len() > 1);
    for append in &plan.appends {
        if let Kind::Window { .. } = kinds[append.kind as usize] {
            seen.windows += 1;
            let is_first = plan.appends.iter().find(|other| (other.slot, other.kind) == (append.slot, append.kind));
            let enters = plan.admits.iter().any(|admit| admit.slot == append.slot);
            seen.holes += u64::from(enters && is_first == Some(append) && append.at > 0);
        }
    }
    for load in &plan.loads {
        let is_window = |append: &&Append| matches!(kinds[append.kind as usize], Kind::Window { .. });
        let windows = plan.appends.iter().filter(is_window).filter(|append| append.block == load.to);
        seen.windows_loaded += windows.count() as u64;
        seen.states_loaded += plan.states.iter().filter(|told| told.from == Some(load.to)).count() as u64;
    }
    for told in &plan.states {
        let Kind::State { mode } = kinds[told.kind as usize] else { panic!("{told:?} is of a kind with a state") };
        match mode {
            StateMode::None => seen.states_of_mode_none += 1,
            StateMode::All => seen.states_of_mode_all += 1,
            StateMode::Align => seen.states_of_mode_align += 1,
        }
        seen.states_of_zeros += u64::from(told.from.is_none());
        let enters = plan.admits.iter().any(|admit| admit.slot == told.slot);
        let is_first = plan.states.iter().find(|other| (other.slot, other.kind) == (told.slot, told.kind));
        seen.states_found += u64::from(enters && is_first == Some(told) && told.from.is_some());
    }
    let has_state = tables(kinds) < kinds.len() as u32;
    let in_place = plan.rows.iter().filter(|row| !plan.states.iter().any(|told| told.slot == row.slot));
    seen.states_in_place += if has_state { in_place.count() as u64 } else { 0 };
}
