//! More worlds than the tests have time for: `cargo run --release -p pelton-core --example worlds -- [COUNT] [FIRST SEED]`.

#[path = "../tests/sim/mod.rs"]
mod sim;

use pelton_core::Core;

fn main() {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse().expect("COUNT and FIRST SEED are numbers"));
    let (count, first) = (numbers.next().unwrap_or(10_000), numbers.next().unwrap_or(0));
    let mut seen = sim::Seen::default();
    for seed in first..first + count {
        seen.add(&sim::live(seed, 2_000));
    }
    println!("{count} worlds: {seen:#?}\nnever seen: {:?}", seen.missing());
}
