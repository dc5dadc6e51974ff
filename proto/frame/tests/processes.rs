//! Router and worker as two processes over one memory: wake-ups across them, and a worker that dies.
//!
//! The worker is this test binary again, told by the environment where the files are: it opens them through /proc.

use std::{
    env,
    fs::OpenOptions,
    io::{BufRead, BufReader, Lines},
    os::fd::{AsRawFd, BorrowedFd, OwnedFd},
    process::{Child, ChildStdout, Command, Stdio, abort},
    time::Duration,
};

use pelton_frame::*;

const LONG: Duration = Duration::from_secs(60); // a bound on hanging, never waited for in full

fn capacities() -> Capacities {
    Capacities {
        frames: 4,
        slots: 8,
        tokens: 64,
        appends: 16,
        copies: 4,
        biases: 8,
        suppressed: 8,
        history: 32,
        top_logprobs: 3,
        pooled_width: 4,
        embeds: 0,
        embed_width: 0,
        scores: 4,
        saves: 4,
        loads: 4,
    }
}

struct Pair {
    router: RouterEnd,
    bell: Bell,
    child: Child,
    output: Lines<BufReader<ChildStdout>>, // kept open: the child's test harness prints at its end
}

impl Pair {
    /// A memory, and a child that serves `steps` steps from it and then does what `then` says.
    fn start(epoch: u32, steps: u32, then: &str) -> Self {
        let router = RouterEnd::new(Memory::create(&Layout::new(capacities()).unwrap(), epoch).unwrap());
        let bell = Bell::create().unwrap();
        let path = |fd: BorrowedFd<'_>| format!("/proc/{}/fd/{}", std::process::id(), fd.as_raw_fd());
        let mut child = Command::new(env::current_exe().unwrap())
            .args(["--exact", "worker_process", "--ignored", "--nocapture"])
            .env("MEMORY", path(router.memory().fd().unwrap()))
            .env("BELL", path(bell.fd()))
            .env("STEPS", steps.to_string())
            .env("THEN", then)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(output.by_ref().map_while(Result::ok).any(|line| line.contains("attached")), "the child attaches");
        Self { router, bell, child, output }
    }

    fn submit(&mut self, step: u64) {
        let row = Row { slot: 1, start: 5, count: 1, known: 1, ..Row::default() };
        self.router.submit(&PlanView { step, rows: &[row], tokens: &[step as u32], ..PlanView::default() }).unwrap();
    }

    fn result(&mut self) -> Results {
        loop {
            let seen = self.bell.read();
            if let Some(result) = self.router.poll() {
                return result.unwrap();
            }
            assert_eq!(self.bell.wait(seen, LONG), Woken::Rung, "a ring was lost");
        }
    }
}

impl Drop for Pair {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[test]
#[ignore = "the other process of these tests"]
fn worker_process() {
    let open =
        |name| -> OwnedFd { OpenOptions::new().read(true).write(true).open(env::var(name).unwrap()).unwrap().into() };
    let memory = Memory::from_fd(open("MEMORY")).unwrap();
    let mut worker = WorkerEnd::new(memory, Some(Bell::from_fd(open("BELL")).unwrap()));
    println!("attached");
    for _ in 0..env::var("STEPS").unwrap().parse::<u32>().unwrap() {
        let Waited::Step(frame) = worker.wait(LONG).unwrap() else { panic!("a submission was lost") };
        worker.publish(frame, STATUS_OK, Duration::ZERO).unwrap();
    }
    match env::var("THEN").unwrap().as_str() {
        "wait" => assert_eq!(worker.wait(LONG), Ok(Waited::Detached)),
        "die in a step" => {
            assert!(matches!(worker.wait(LONG), Ok(Waited::Step(_))));
            abort();
        }
        other => panic!("{other}"),
    }
}

#[test]
fn twenty_thousand_round_trips_between_two_processes_lose_no_wake_up() {
    const STEPS: u32 = 20_000;
    let mut pair = Pair::start(1, STEPS, "wait");
    for step in 1..=u64::from(STEPS) {
        pair.submit(step);
        assert_eq!(pair.result().step, step);
    }
    pair.router.memory().detach();
    assert!(pair.output.by_ref().all(|line| line.is_ok())); // to its end
    assert!(pair.child.wait().unwrap().success());
}

#[test]
fn a_worker_that_dies_in_a_step_leaves_its_results_and_the_next_life_serves() {
    let mut pair = Pair::start(1, 1, "die in a step");
    pair.submit(1);
    pair.submit(2);
    assert!(!pair.child.wait().unwrap().success());
    // What it published before it died still counts; the step it died in never comes.
    assert_eq!(pair.result().step, 1);
    assert!(pair.router.poll().is_none());
    assert_eq!(pair.router.in_flight(), 1);

    let mut next = Pair::start(2, 1, "wait");
    next.submit(1);
    assert_eq!(next.result().step, 1);
}

#[test]
fn a_worker_that_is_killed_in_its_sleep_blocks_nobody() {
    let mut pair = Pair::start(1, 0, "wait");
    pair.child.kill().unwrap();
    pair.child.wait().unwrap();
    for step in 1..=4 {
        pair.submit(step);
    }
    assert!(!pair.router.free_frame());
    assert!(pair.router.poll().is_none());
}
