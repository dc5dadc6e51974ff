//! Host memory and a disk below small devices, under workers that die and lie: blocks move all the time, and a block that
//! held other tokens than it should would draw other tokens. (Every rig has host memory; here it is needed.)

use std::fs;

use pelton_engine::{DiskOptions, Stats};

use crate::{
    model::answer,
    rig::{Case, Outcome, POISON, Rig, below, innocents, play},
    worker::{Deed, Fault, Play},
};

/// A device that holds a few requests at once and no prefix for long.
fn cramped(fault: Fault, lives: u32) -> Play {
    Play { blocks: 40, blocks_later: 40, ..play(fault, lives) }
}

/// Conversations over eight beginnings, in rounds: when a beginning comes again, others have taken its blocks.
fn rounds() -> Vec<Vec<Case>> {
    let beginnings: Vec<Vec<u32>> = (0..8).map(|seed| answer(&[seed, 7], 40)).collect();
    let case = |round: u32, beginning: &Vec<u32>| Case::new([&beginning[..], &[round, round + 1]].concat(), 6);
    (0..6).map(|round| beginnings.iter().map(|beginning| case(round, beginning)).collect()).collect()
}

#[track_caller]
fn serve(rig: &Rig, rounds: &[Vec<Case>]) {
    for cases in rounds {
        for (case, outcome) in cases.iter().zip(rig.serve(cases)) {
            outcome.is_undisturbed(case);
        }
    }
}

#[test]
fn what_the_device_gives_up_comes_back_from_host_memory() {
    let rig = Rig::start(&[cramped(Fault::Nowhere, 0)]);
    serve(&rig, &rounds());
    let stats = rig.stop();
    assert!(stats.host_hit_tokens > 0 && stats.loads > 0 && stats.saves >= stats.loads.min(8 * 10), "{stats:?}");
    assert_eq!((stats.worker_restarts, stats.host_blocks, stats.disk_hit_tokens), (0, 256, 0));
}

#[test]
fn workers_that_die_or_lie_leave_nothing_wrong_in_host_memory() {
    for deed in [Deed::Die, Deed::ForgeChecksum, Deed::Duplicate, Deed::Fail, Deed::DrawNonsense] {
        let plays = [cramped(Fault::At(9, deed), 3), cramped(Fault::At(14, deed), 2)];
        let rig = Rig::start(&plays);
        serve(&rig, &rounds());
        let stats = rig.stop();
        assert!(stats.worker_restarts > 0 && stats.saves > 0 && stats.bugs == 0, "{deed:?}: {stats:?}");
    }
}

#[test]
fn after_an_assertion_host_memory_begins_anew() {
    let rig = Rig::start(&[cramped(Fault::Nowhere, 0), cramped(Fault::Nowhere, 0)]);
    serve(&rig, &rounds());
    let cases = innocents(40);
    let answers: Vec<_> = cases.iter().map(|case| rig.submit(case)).collect();
    rig.engine.plant_bug();
    for (case, answer) in cases.iter().zip(answers) {
        Outcome::of(answer).is_undisturbed(case);
    }
    serve(&rig, &rounds());
    let stats = rig.stop();
    assert_eq!((stats.bugs, stats.host_blocks), (1, 256));
}

/// An engine with a disk, over some rounds; then its end in order, or by an assertion and an end.
fn life(home: &std::path::Path, places: u64, fault: Fault, rounds: &[Vec<Case>], has_bug: bool) -> Stats {
    const FILE: u64 = 104 + 4 * 4 + 16 + 16 + 16;
    let disk = DiskOptions { folder: home.join("kv"), limit_bytes: places * FILE };
    let rig = Rig::start_with(&[cramped(fault, 2)], &home.join("model"), below(Some(disk)));
    serve(&rig, rounds);
    if has_bug {
        rig.engine.plant_bug();
        serve(&rig, rounds);
    }
    rig.stop()
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir().expect("a temporary folder");
    fs::create_dir(home.path().join("model")).expect("a folder of ours");
    fs::write(home.path().join("model/config.json"), "{}").expect("a file of ours");
    home
}

#[test]
fn the_disk_serves_one_life_after_the_other() {
    let home = home();
    let rounds = rounds();
    let first = life(home.path(), 1_000, Fault::At(20, Deed::Die), &rounds, false);
    assert!(first.disk_writes > 0 && first.disk_faults == 0, "{first:?}");
    let second = life(home.path(), 1_000, Fault::At(5, Deed::ForgeStep), &rounds, true);
    assert!(second.disk_hit_tokens > 0 && second.disk_reads > 0 && second.bugs == 1, "{second:?}");
    // A smaller limit, and damage: what is left of it is right.
    let files: Vec<_> = walk(&home.path().join("kv")).into_iter().filter(|path| path.ends_with(".kv")).collect();
    for (at, path) in files.iter().enumerate() {
        let mut bytes = fs::read(path).expect("a file of ours");
        match at % 4 {
            0 => bytes[at % 150] ^= 1,
            1 => bytes.truncate(at % 150),
            _ => continue,
        }
        fs::write(path, bytes).expect("a file of ours");
    }
    let third = life(home.path(), 30, Fault::Nowhere, &rounds, false);
    assert!(third.disk_places == 30 && third.disk_blocks <= 30, "{third:?}");
    assert!(walk(&home.path().join("kv")).iter().filter(|path| path.ends_with(".kv")).count() <= 30);
}

#[test]
fn blocks_of_weights_that_were_replaced_are_found_no_more_and_the_disk_takes_none_of_the_new_ones() {
    let case = |seed: u32, end: u32| Case::new([&answer(&[seed, 7], 40)[..], &[end]].concat(), 6);
    let seeds: Vec<u32> = (0..).filter(|&seed| (0..2).all(|end| !case(seed, end).is_poisonous())).take(8).collect();
    let [before, after] = [0, 1].map(|end| seeds.iter().map(|&seed| case(seed, end)).collect::<Vec<_>>());
    for are_replaced in [false, true] {
        let home = home();
        let weights = home.path().join("model/model.safetensors");
        fs::write(&weights, "the weights").expect("a file of ours");
        let disk = DiskOptions { folder: home.path().join("kv"), limit_bytes: 1 << 20 };
        let plays = [cramped(Fault::Of(POISON, Deed::Die), 1)];
        let rig = Rig::start_with(&plays, &home.path().join("model"), below(Some(disk)));
        serve(&rig, std::slice::from_ref(&before));
        if are_replaced {
            fs::write(&weights, "other weights").expect("a file of ours");
        }
        serve(&rig, &[vec![Case::new(vec![POISON], 1)], after.clone()]);
        let stats = rig.stop();
        assert_eq!(stats.worker_restarts, 1);
        assert_eq!(
            (stats.host_hit_tokens + stats.disk_hit_tokens > 0, stats.disk_faults > 0),
            (!are_replaced, are_replaced)
        );
    }
}

/// All files below a folder, as text.
fn walk(folder: &std::path::Path) -> Vec<String> {
    let mut found = Vec::new();
    for path in fs::read_dir(folder).expect("a folder of ours").map(|entry| entry.expect("an entry").path()) {
        if path.is_dir() {
            found.extend(walk(&path));
        } else {
            found.push(path.display().to_string());
        }
    }
    found.sort();
    found
}
