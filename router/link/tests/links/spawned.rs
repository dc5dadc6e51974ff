//! Workers that are children of the router.

use std::{io::Write, time::Duration};

use pelton_link::{LinkEvent, WorkerSpec};
use rustix::process::{Pid, Signal, kill_process};

use crate::rig::{Rig, folder, is_gone, options, process, spawned, stop, wait_for_end};
use crate::worker::CONTEXT;

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_worker_loads_takes_steps_and_leaves_nothing() {
    let rig = Rig::start(spawned(""));
    let mut heard = Vec::new();
    let mut worker = loop {
        match rig.events.recv_timeout(LONG).unwrap() {
            LinkEvent::Progress { stage, .. } => heard.push(stage),
            LinkEvent::Budget(budget) => heard.push(format!("{} blocks", budget.blocks)),
            LinkEvent::Attached { epoch, port, report, .. } => break rig.of(epoch, port, report),
            LinkEvent::Lost { reason, .. } | LinkEvent::GaveUp { reason } => panic!("{reason}"),
        }
    };
    assert_eq!(heard[..2], ["starting the worker", "128 blocks"]);
    assert!(heard[2].starts_with("reading weights"), "{}", heard[2]);
    assert_eq!((worker.epoch, worker.report.blocks, worker.report.dtype.as_str()), (1, 128, "float32"));
    assert!(!folder(&worker.report.family).exists(), "sockets go as soon as both connections stand");
    worker.take_steps(1000);
    rig.link.shutdown(LONG);
    assert!(is_gone(worker.pid()));
    assert!(rig.events.try_recv().is_err(), "an end in order is no loss");
}

#[test]
fn a_killed_worker_is_replaced_and_the_next_one_has_a_memory_of_its_own() {
    let rig = Rig::start(spawned(""));
    let mut first = rig.attached();
    first.take_steps(10);
    kill_process(first.pid(), Signal::KILL).unwrap();
    let (epoch, reason) = rig.lost();
    assert_eq!(epoch, 1);
    assert!(reason.contains("signal 9"), "{reason}");
    assert!(is_gone(first.pid()));

    let mut second = rig.attached();
    assert_eq!(second.epoch, 2);
    first.submit(1).unwrap(); // nobody reads it any more
    second.take_steps(10);
    assert!(first.port.poll().is_none());
}

#[test]
fn a_worker_that_dies_in_a_step_says_its_last_words() {
    let rig = Rig::start(spawned("aborts in a step"));
    let mut worker = rig.attached();
    for token in 1..=3 {
        worker.submit(token).unwrap();
    }
    let (_, reason) = rig.lost();
    assert!(reason.contains("signal 6") && reason.contains("the model is on fire"), "{reason}");
    // What it had published before still counts.
    assert_eq!((worker.result().step, worker.result().step), (1, 2));
    assert!(worker.port.poll().is_none());
    rig.attached().take_steps(1);
}

#[test]
fn a_worker_whose_step_loop_ends_hangs_up_and_is_replaced() {
    let rig = Rig::start(spawned("hangs up in a step"));
    let mut worker = rig.attached();
    for token in 1..=3 {
        worker.submit(token).unwrap();
    }
    let (_, reason) = rig.lost();
    assert!(reason.contains("memory socket"), "{reason}");
    assert!(is_gone(worker.pid()));
    rig.attached().take_steps(1);
}

/// Stands still with a step in flight: stopped by a signal, or stuck in it while its control thread answers.
fn stalls(fault: &str, step: Duration, stop: impl Fn(Pid), words: &str) {
    let mut options = spawned(fault);
    options.deadlines.watch_interval = Duration::from_millis(50);
    options.deadlines.heartbeat = Duration::from_secs(2); // the step thread beats every half second while it waits
    options.deadlines.step = step;
    let rig = Rig::start(options);
    let mut worker = rig.attached();
    worker.take_steps(2);
    stop(worker.pid());
    worker.submit(1).unwrap();
    let (_, reason) = rig.lost();
    assert!(reason.contains(words), "{reason}");
    assert!(is_gone(worker.pid()));
    rig.attached().take_steps(1);
}

#[test]
fn a_stopped_worker_with_a_step_in_flight_is_replaced() {
    let step = Duration::from_secs(600); // it need not pass first
    stalls("", step, stop, "somebody has stopped the worker's process");
}

#[test]
fn a_worker_that_is_stuck_in_a_step_is_replaced() {
    let step = Duration::from_millis(100);
    stalls("is stuck in a step", step, |_| {}, "with 1 in flight");
}

#[test]
fn a_stopped_idle_worker_is_replaced_before_anybody_needs_it() {
    let mut options = spawned("");
    options.deadlines.watch_interval = Duration::from_millis(50);
    options.deadlines.heartbeat = Duration::from_secs(2);
    let rig = Rig::start(options);
    let worker = rig.attached();
    stop(worker.pid());
    let (_, reason) = rig.lost();
    assert!(reason.contains("no sign of life"), "{reason}");
    rig.attached().take_steps(1);
}

#[test]
fn all_workers_of_a_server_and_all_their_lives_have_the_first_ones_context() {
    let first = spawned("");
    let [mut other, mut stubborn] = ["has a longer context", "insists on a longer context"].map(spawned);
    for later in [&mut other, &mut stubborn] {
        later.load.first_context = first.load.first_context.clone();
    }
    let first = Rig::start(first);
    assert_eq!(first.attached().report.max_model_len, CONTEXT);

    // It would have had room for more, as a process does that takes a little less.
    let rig = Rig::start(other);
    let worker = rig.attached();
    assert_eq!((worker.epoch, worker.report.max_model_len), (1, CONTEXT), "it was told at once");
    kill_process(worker.pid(), Signal::KILL).unwrap();
    rig.lost();
    assert_eq!(rig.attached().report.max_model_len, CONTEXT);

    let rig = Rig::start(stubborn);
    assert!(rig.lost().1.contains("plans a context of 4160 tokens; it was told that this server's is 4096"));
    rig.gave_up();
}

#[test]
fn a_worker_that_has_begun_beside_the_first_one_loads_again_for_its_context() {
    let [first, other] = ["", "has a longer context, late"].map(spawned);
    let other = pelton_link::LinkOptions {
        load: pelton_link::LoadOptions { first_context: first.load.first_context.clone(), ..other.load.clone() },
        ..other
    };
    let rig = Rig::start(other);
    loading(&rig); // it has been told of none
    let first = Rig::start(first);
    assert_eq!(first.attached().report.max_model_len, CONTEXT);
    assert!(rig.lost().1.contains("planned a context of 4160 tokens, and another worker of 4096"));
    let worker = rig.attached();
    assert_eq!((worker.epoch, worker.report.max_model_len), (2, CONTEXT));
}

#[test]
fn the_engine_may_have_a_worker_replaced() {
    let rig = Rig::start(spawned(""));
    rig.link.replace("means nothing before one is attached".to_owned());
    let worker = rig.attached();
    rig.link.replace("its tokens are garbage".to_owned());
    assert_eq!(rig.lost(), (1, "its tokens are garbage".to_owned()));
    assert!(is_gone(worker.pid()));
    assert_eq!(rig.attached().epoch, 2);
}

#[test]
fn what_no_second_try_would_mend_is_given_up_at_once() {
    let cases = [("other version", ["9.9.9", "protocol 99"]), ("no such model", ["there is no model in", "/nowhere"])];
    for (fault, words) in cases {
        let rig = Rig::start(spawned(fault));
        let (_, reason) = rig.lost();
        assert_eq!(rig.gave_up(), reason);
        assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
    }
    let spec = WorkerSpec::Spawn {
        program: "/nowhere/python".into(),
        arguments: Vec::new(),
        env: Vec::new(),
        processors: Vec::new(),
    };
    let rig = Rig::start(options(spec));
    assert!(rig.lost().1.contains("/nowhere/python"));
    assert!(rig.gave_up().contains("No such file"));
}

#[test]
fn what_might_mend_is_tried_again_and_then_given_up() {
    for (fault, words) in
        [("exits at start", ["code 3", "no module named `torch`"]), ("another nonce", ["refuses the memory", "nonce"])]
    {
        let mut options = spawned(fault);
        options.failed_starts_max = 2;
        let rig = Rig::start(options);
        for life in 1..=2 {
            let (epoch, reason) = rig.lost();
            assert_eq!(epoch, life);
            assert!(words.iter().all(|word| reason.contains(word)), "{reason}");
        }
        assert!(rig.gave_up().contains(words[0]));
        rig.link.shutdown(LONG); // of what has ended already
    }
}

#[test]
fn a_worker_runs_on_the_processors_that_it_is_given() {
    let ours = rustix::thread::sched_getaffinity(None).unwrap();
    let last = (0..rustix::thread::CpuSet::MAX_CPU).rfind(|&processor| ours.is_set(processor)).unwrap();
    let mut options = spawned("loads for ever");
    let WorkerSpec::Spawn { processors, .. } = &mut options.spec else { unreachable!("made above") };
    *processors = vec![last];
    let rig = Rig::start(options);
    let (pid, _) = loading(&rig);
    let status = std::fs::read_to_string(format!("/proc/{}/status", pid.as_raw_nonzero())).unwrap();
    let allowed = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap();
    assert_eq!(allowed.trim(), last.to_string());
}

#[test]
fn a_program_that_leaves_without_a_word_is_named() {
    let spec = WorkerSpec::Spawn {
        program: "/bin/false".into(),
        arguments: Vec::new(),
        env: Vec::new(),
        processors: Vec::new(),
    };
    let mut options = crate::rig::options(spec);
    options.failed_starts_max = 1;
    let reason = Rig::start(options).lost().1;
    assert!(reason.ends_with("has exited with code 1 without a word; it was /bin/false"), "{reason}");
}

#[test]
fn every_wait_for_a_worker_has_a_deadline_with_a_name() {
    let mut options = spawned("loads for ever");
    options.deadlines.load_progress = Duration::from_millis(200);
    options.failed_starts_max = 1;
    assert!(Rig::start(options).lost().1.contains("`load-progress`"));

    let spec = WorkerSpec::Spawn {
        program: "/bin/sh".into(),
        arguments: vec!["-c".into(), "sleep 60".into()],
        env: Vec::new(),
        processors: Vec::new(),
    };
    let mut options = crate::rig::options(spec); // never listens
    options.deadlines.connect = Duration::from_millis(200);
    options.failed_starts_max = 1;
    assert!(Rig::start(options).lost().1.contains("`connect`"));
}

/// The first progress of the worker itself: its pid, and its memory socket's path.
fn loading(rig: &Rig) -> (Pid, String) {
    loop {
        if let LinkEvent::Progress { stage, .. } = rig.events.recv_timeout(LONG).unwrap()
            && let Some(words) = stage.strip_prefix("reading weights ")
        {
            let (pid, path) = words.split_once(' ').unwrap();
            return (Pid::from_raw(pid.parse().unwrap()).unwrap(), path.to_owned());
        }
    }
}

#[test]
fn a_worker_that_still_loads_is_ended_at_once() {
    let rig = Rig::start(spawned("loads for ever"));
    let (pid, _) = loading(&rig);
    rig.link.shutdown(LONG);
    assert!(is_gone(pid));
}

#[test]
fn a_worker_that_will_not_end_is_killed() {
    let rig = Rig::start(spawned("deaf"));
    let worker = rig.attached();
    rig.link.shutdown(Duration::from_millis(100));
    assert!(is_gone(worker.pid()));
}

#[test]
fn dropping_the_handle_ends_the_worker() {
    let rig = Rig::start(spawned(""));
    let worker = rig.attached();
    drop(rig);
    assert!(is_gone(worker.pid()));
}

/// The process that the next test kills: tells of its worker while it loads, and never ends.
pub(crate) fn router_that_is_killed() {
    let rig = Rig::start(spawned("loads for ever"));
    let (pid, path) = loading(&rig);
    println!("worker {} {path}", pid.as_raw_nonzero());
    std::io::stdout().flush().unwrap();
    loop {
        std::thread::park();
    }
}

#[test]
fn nothing_is_left_of_a_router_that_is_killed_while_its_worker_loads() {
    let (mut router, line) = process("router_process", "worker ", &[]);
    let words: Vec<&str> = line.rsplit("worker ").next().unwrap().split(' ').collect();
    let pid = Pid::from_raw(words[0].parse().unwrap()).unwrap();
    assert!(!is_gone(pid));
    router.kill();
    wait_for_end(pid);
    assert!(!folder(words[1]).exists());
}
