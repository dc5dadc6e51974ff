//! The simulator, as a test: some thousand worlds. More of them: `cargo run --release -p pelton-core --example worlds`.

mod sim;

/// Seeds of worlds that once found a bug.
const REGRESSIONS: [u64; 0] = [];

#[test]
fn in_every_world_each_request_gets_the_tokens_it_gets_alone_and_all_blocks_come_home() {
    let mut seen = sim::Seen::default();
    for seed in REGRESSIONS.into_iter().chain(0..1_500) {
        seen.add(&sim::live(seed, 1_000));
    }
    println!("{seen:#?}");
    assert_eq!(seen.missing(), [""; 0], "worlds in which these happen");
}

#[test]
fn the_same_seed_makes_the_same_world() {
    assert_eq!(format!("{:?}", sim::live(7, 1_000)), format!("{:?}", sim::live(7, 1_000)));
}
