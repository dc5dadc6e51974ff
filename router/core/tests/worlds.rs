//! The simulator, as a test: five thousand worlds. More of them: `cargo run --release -p pelton-core --example worlds`.

mod sim;

use std::sync::atomic::{AtomicU64, Ordering};

use pelton_core::Core;

/// Seeds of worlds that once found a bug.
const REGRESSIONS: [u64; 4] = [6760, 751, 2976, 8400];
const WORLDS: u64 = 5_000;
/// Of each: after so many most of what can happen in a world has. The example lives longer.
const ACTIONS: usize = 600;

#[test]
fn in_every_world_each_request_gets_the_tokens_it_gets_alone_and_all_blocks_come_home() {
    let next = AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let live_on = || {
        let mut seen = sim::Seen::default();
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= WORLDS {
                return seen;
            }
            seen.add(&sim::live(seed, ACTIONS));
        }
    };
    let mut seen = sim::Seen::default();
    REGRESSIONS.into_iter().for_each(|seed| seen.add(&sim::live(seed, ACTIONS)));
    std::thread::scope(|scope| {
        let lives: Vec<_> = (0..threads).map(|_| scope.spawn(live_on)).collect();
        lives.into_iter().for_each(|lived| seen.add(&lived.join().expect("the world's seed was printed")));
    });
    println!("{seen:#?}");
    assert_eq!(seen.missing(), [""; 0], "worlds in which these happen");
}

#[test]
fn the_same_seed_makes_the_same_world() {
    assert_eq!(format!("{:?}", sim::live(7, 1_000)), format!("{:?}", sim::live(7, 1_000)));
}
