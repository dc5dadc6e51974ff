//! A link under test, and processes around it. Waits have a minute: a bound on hanging that no sound run reaches.

use std::{
    env, fs,
    io::{BufRead, BufReader},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Duration,
};

use crossbeam_channel::Receiver;
use pelton_frame::{Bell, Capacities, FrameError, HostMemory, Load, PlanView, Results, RouterEnd, Row, Save, Woken};
use pelton_link::{FirstContext, LinkEvent, LinkHandle, LinkOptions, LoadOptions, ModelReport, WorkerSpec};
use pelton_link_testing::this_binary;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open},
};

use crate::worker::drawn;

const LONG: Duration = Duration::from_secs(60);

pub(crate) fn options(spec: WorkerSpec) -> LinkOptions {
    let capacities = Capacities {
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
        scores: 4,
        embeds: 0,
        embed_width: 0,
        saves: 4,
        loads: 4,
    };
    let load = LoadOptions {
        model_path: "/models/none".into(),
        dtype: "float32".to_owned(),
        max_model_len: 0,
        first_context: FirstContext::default(),
        kv_bytes: 0,
        memory_limit_bytes: 1 << 30,
        block_size: 0,
        threads: 1,
        slots: 8,
        token_budget: 64,
        scores: 8,
        device: "cpu".to_owned(),
        quantize: "auto".to_owned(),
        quantize_skip: "head".to_owned(),
        kv_dtype: "auto".to_owned(),
        kept_folder: std::path::PathBuf::new(),
        kept_bytes: 0,
        model_backend: "auto".to_owned(),
        trust_remote_code: false,
        task: "auto".to_owned(),
        pooling: String::new(),
    };
    LinkOptions::new(spec, load, capacities, Arc::new(Bell::create().unwrap()))
}

/// This binary as a worker.
pub(crate) fn spawned(fault: &str) -> LinkOptions {
    let (program, arguments) = this_binary("worker_process");
    options(WorkerSpec::Spawn { program, arguments, env: vec![("FAULT".into(), fault.into())], processors: Vec::new() })
}

/// One of the ignored tests of this binary as a process of its own. Returns it with its first line that has `word`.
pub(crate) fn process(test: &str, word: &str, env: &[(&str, &str)]) -> (Process, String) {
    let mut command = Command::new(env::current_exe().unwrap());
    command.args(["--exact", test, "--ignored", "--nocapture"]).envs(env.iter().copied()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    let line = lines.find(|line| line.contains(word)).unwrap_or_else(|| panic!("{test} says nothing of `{word}`"));
    std::thread::spawn(move || lines.for_each(drop)); // until its end, so that it never blocks
    (Process(child), line)
}

pub(crate) struct Process(Child);

impl Process {
    pub(crate) fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A link and what it has attached.
pub(crate) struct Rig {
    pub(crate) link: LinkHandle,
    pub(crate) events: Receiver<LinkEvent>,
    pub(crate) bell: Arc<Bell>,
}

impl Rig {
    pub(crate) fn start(options: LinkOptions) -> Self {
        let bell = Arc::clone(&options.bell);
        let (link, events) = pelton_link::start(options).unwrap();
        Self { link, events, bell }
    }

    /// The next event that is no progress.
    pub(crate) fn next(&self) -> LinkEvent {
        loop {
            match self.events.recv_timeout(LONG).expect("an event comes") {
                LinkEvent::Progress { .. } | LinkEvent::Budget(_) => {}
                event => return event,
            }
        }
    }

    pub(crate) fn attached(&self) -> Attached {
        match self.next() {
            LinkEvent::Attached { epoch, port, report, host, .. } => Attached { host, ..self.of(epoch, port, report) },
            LinkEvent::Lost { reason, .. } | LinkEvent::GaveUp { reason } => panic!("not attached: {reason}"),
            _ => unreachable!("skipped by `next`"),
        }
    }

    pub(crate) fn of(&self, epoch: u32, port: RouterEnd, report: ModelReport) -> Attached {
        Attached { epoch, port, report, host: None, bell: Arc::clone(&self.bell), step: 0 }
    }

    pub(crate) fn lost(&self) -> (u32, String) {
        match self.next() {
            LinkEvent::Lost { epoch, reason } => (epoch, reason),
            LinkEvent::GaveUp { reason } => panic!("given up: {reason}"),
            _ => panic!("attached, and should be lost"),
        }
    }

    pub(crate) fn gave_up(&self) -> String {
        match self.next() {
            LinkEvent::GaveUp { reason } => reason,
            LinkEvent::Lost { reason, .. } => panic!("not given up, only lost: {reason}"),
            _ => panic!("attached, and should be given up"),
        }
    }
}

/// A worker that takes steps.
pub(crate) struct Attached {
    pub(crate) epoch: u32,
    pub(crate) port: RouterEnd,
    pub(crate) report: ModelReport,
    pub(crate) host: Option<Arc<HostMemory>>,
    bell: Arc<Bell>,
    step: u64,
}

impl Attached {
    /// The fake tells it in a field that holds any text.
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_raw(self.report.device_name.parse().unwrap()).unwrap()
    }

    pub(crate) fn submit(&mut self, token: u32) -> Result<(), FrameError> {
        self.step += 1;
        let row = Row { slot: 1, start: 5, count: 1, known: 1, flags: 1, ..Row::default() };
        self.port.submit(&PlanView { step: self.step, rows: &[row], tokens: &[token], ..PlanView::default() })
    }

    /// A step that moves blocks and computes nothing.
    pub(crate) fn move_blocks(&mut self, saves: &[Save], loads: &[Load]) -> Results {
        self.step += 1;
        self.port.submit(&PlanView { step: self.step, saves, loads, ..PlanView::default() }).unwrap();
        self.result()
    }

    pub(crate) fn result(&mut self) -> Results {
        loop {
            let seen = self.bell.read();
            if let Some(result) = self.port.poll() {
                return result.unwrap();
            }
            assert_eq!(self.bell.wait(seen, LONG), Woken::Rung, "a result comes");
        }
    }

    /// Up to 1000 steps that queue one ahead, as the engine's do; every result is what the worker draws.
    pub(crate) fn take_steps(&mut self, count: u32) {
        self.submit(0).unwrap();
        for token in 1..count {
            self.submit(token).unwrap();
            assert_eq!(self.result().sampled, [drawn(token - 1)]);
        }
        assert_eq!(self.result().sampled, [drawn(count - 1)]);
    }
}

/// Waits until a process has ended; it may be anybody's child.
pub(crate) fn wait_for_end(pid: Pid) {
    let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else { return };
    let minute = Timespec { tv_sec: 60, tv_nsec: 0 };
    let ended = poll(&mut [PollFd::new(&handle, PollFlags::IN)], Some(&minute)).unwrap();
    assert_eq!(ended, 1, "process {pid:?} lives on");
}

/// Stops a process, and returns once no thread of it runs.
pub(crate) fn stop(pid: Pid) {
    kill_process(pid, Signal::STOP).unwrap();
    let is_stopped = |task: &fs::DirEntry| {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        status.lines().any(|line| line.starts_with("State:\tT"))
    };
    let tasks = format!("/proc/{}/task", pid.as_raw_nonzero());
    while !fs::read_dir(&tasks).unwrap().all(|task| is_stopped(&task.unwrap())) {
        std::thread::yield_now();
    }
}

pub(crate) fn is_gone(pid: Pid) -> bool {
    rustix::process::test_kill_process(pid).is_err()
}

/// The folder of a worker's sockets, as its memory socket's path tells.
pub(crate) fn folder(memory_socket: &str) -> PathBuf {
    PathBuf::from(memory_socket).parent().unwrap().to_owned()
}
