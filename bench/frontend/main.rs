//! How fast texts become tokens on one thread, by the way that a request's prompt goes (goal W6). Run by `frontend.py`.
//!
//!     cargo run --release -p pelton-text --example bench_tokenise -- TOKENIZER_FOLDER DOCUMENTS.json PASSES
//!
//! Documents are a list of texts. A first pass is not counted: a tokenizer may remember words, and caches fill. What is printed is JSON: the thread's processor time
//! of each pass, and how many tokens there were, with a sum over them that shows whether two tokenizers agree.

use std::path::Path;

use pelton_text::Tokenizer;
use serde_json::json;

/// Nanoseconds that the main thread, which does all the work, has run.
fn thread_ns() -> u64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    u64::try_from(time.tv_sec * 1_000_000_000 + time.tv_nsec).expect("threads do not run backwards")
}

fn main() {
    let mut arguments = std::env::args().skip(1);
    let mut next = || arguments.next().expect("TOKENIZER_FOLDER DOCUMENTS.json PASSES");
    let tokenizer = Tokenizer::open(Path::new(&next())).expect("a tokenizer");
    let documents = std::fs::read(next()).expect("the documents");
    let documents: Vec<String> = serde_json::from_slice(&documents).expect("a list of texts");
    let passes: usize = next().parse().expect("a number of passes");

    let (mut times, mut tokens, mut sum) = (Vec::new(), 0, 0_u64);
    for pass in 0..=passes {
        let began = thread_ns();
        let encoded: Vec<Vec<u32>> =
            documents.iter().map(|text| tokenizer.encode(text, false).expect("any text")).collect();
        let took = thread_ns() - began;
        if pass == 0 {
            tokens = encoded.iter().map(Vec::len).sum();
            sum = encoded.iter().flatten().fold(0, |sum: u64, &id| sum.wrapping_mul(31).wrapping_add(u64::from(id)));
        } else {
            times.push(took);
        }
    }
    println!("{}", json!({ "ns": times, "tokens": tokens, "sum": sum }));
}
