//! The binary `pelton`.
fn main() {}
