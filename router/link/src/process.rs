//! A worker as a process: a child, started so that it cannot outlive us and ended so that nothing of it is left; or a
//! neighbour that others started, whose end alone is our business.
#![allow(unsafe_code)] // two blocks: what a child does between fork and exec, and a descriptor that stays open

use std::{
    ffi::OsString,
    io,
    os::fd::OwnedFd,
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::{ExitStatus, Stdio},
    time::Duration,
};

use rustix::process::{Pid, PidfdFlags, Signal};
use rustix::thread::{CpuSet, sched_setaffinity};
use tokio::{
    io::{Interest, unix::AsyncFd},
    net::UnixStream,
    process::{Child, Command},
    task::JoinHandle,
    time::timeout,
};

use crate::{
    error::{Ending, Trouble},
    output::{LastLines, follow},
};

/// How long after a worker's end its pipes may stay open (a grandchild holds them) before we stop reading.
const OUTPUT_DEADLINE: Duration = Duration::from_millis(500);
const SIGKILL: i32 = 9;

/// A dying process's connections may end before its exit is seen, and the exit says more: it is waited for so long.
pub(crate) const EXIT_AFTER_HANG_UP: Duration = Duration::from_millis(500);

pub(crate) struct Process {
    child: Child,
    program: PathBuf,
    pid: Pid,
    last_lines: LastLines,
    followers: Vec<JoinHandle<()>>,
}

impl Process {
    /// Must be called on a thread that lasts as long as the worker: its end kills the worker.
    pub(crate) fn spawn(
        program: &Path,
        arguments: &[OsString],
        env: &[(OsString, OsString)],
        processors: &[usize],
        socket: &Path,
    ) -> Result<Self, Trouble> {
        let mut listen = OsString::from("unix://");
        listen.push(socket);
        let mut command = Command::new(program);
        command
            .args(arguments)
            .arg("--listen")
            .arg(listen)
            .envs(env.iter().map(|(name, value)| (name, value)))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0) // Ctrl-C in a terminal is for the router, which then ends its workers in order
            .kill_on_drop(true);
        let router = rustix::process::getpid();
        let mut set = CpuSet::new();
        for &processor in processors.iter().filter(|&&processor| processor < CpuSet::MAX_CPU) {
            set.set(processor);
        }
        let is_bound = set.count() > 0;
        // SAFETY: the closure makes system calls and allocates nothing, as is allowed between fork and exec.
        unsafe {
            command.pre_exec(move || {
                rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
                if is_bound {
                    // Where the system refuses, a worker is slower, and no less right.
                    let _ = sched_setaffinity(None, &set);
                }
                // Had the router died before that call, no signal would come.
                if rustix::process::getppid() == Some(router) {
                    Ok(())
                } else {
                    Err(io::Error::from(rustix::io::Errno::SRCH))
                }
            });
        }
        let mut child = command.spawn().map_err(|error| Trouble::Spawn { program: program.to_owned(), error })?;
        let id = child.id().expect("nobody has waited for it");
        let pid = i32::try_from(id).ok().and_then(Pid::from_raw).expect("the kernel's process ids are positive");
        let last_lines = LastLines::default();
        let out = child.stdout.take().expect("piped above");
        let err = child.stderr.take().expect("piped above");
        let followers =
            vec![tokio::spawn(follow(out, id, last_lines.clone())), tokio::spawn(follow(err, id, last_lines.clone()))];
        Ok(Self { child, program: program.to_owned(), pid, last_lines, followers })
    }

    /// Waits for its end and reaps it. May be dropped and called again.
    pub(crate) async fn ended(&mut self) -> Ending {
        let (how, was_killed, has_left) = match self.child.wait().await {
            Ok(status) => (describe(status), status.signal() == Some(SIGKILL), status.code().is_some()),
            Err(error) => (format!("cannot be waited for: {error}"), false, false),
        };
        for follower in &mut self.followers {
            // Late lines are worth a short wait, and no more.
            let _ = timeout(OUTPUT_DEADLINE, follower).await;
        }
        self.followers.clear();
        let last_lines = self.last_lines.read();
        // Ours say why they end. Another program, a Python of another kind for one, may not.
        let is_silent = has_left && last_lines.is_empty();
        let how = if is_silent { format!("{how} without a word; it was {}", self.program.display()) } else { how };
        Ending { how, was_killed, last_lines }
    }

    /// SIGKILL, to it and to what it has started; then reaps it.
    pub(crate) async fn kill(&mut self) -> Ending {
        // Only while it is unreaped is its number its own.
        if self.child.id().is_some() {
            // The group has gone with its last process, which is what we want.
            let _ = rustix::process::kill_process_group(self.pid, Signal::KILL);
            let _ = self.child.start_kill();
        }
        self.ended().await
    }
}

/// The process at the other end of a socket.
pub(crate) struct Neighbour(AsyncFd<OwnedFd>);

impl Neighbour {
    /// None: it cannot be seen from here (it lives in another container).
    pub(crate) fn behind(stream: &UnixStream) -> Option<Self> {
        let pid = stream.peer_cred().ok()?.pid().and_then(Pid::from_raw)?;
        let handle = rustix::process::pidfd_open(pid, PidfdFlags::NONBLOCK).ok()?;
        // SAFETY: the `AsyncFd` owns the descriptor, whose number never changes, and closes it when it is dropped.
        let registered = unsafe { AsyncFd::register_with_interest(handle, Interest::READABLE) };
        registered.ok().map(Self)
    }

    /// SIGKILL. Its end is seen by `ended`.
    pub(crate) fn kill(&self) {
        // It may have ended meanwhile, which is what we want.
        let _ = rustix::process::pidfd_send_signal(&self.0, Signal::KILL);
    }

    pub(crate) async fn ended(&self) -> Trouble {
        match self.0.readable().await {
            Ok(_) => Trouble::Ended(Ending { how: "has ended".to_owned(), was_killed: false, last_lines: Vec::new() }),
            Err(error) => Trouble::System { call: "polling a pidfd", error },
        }
    }
}

fn describe(status: ExitStatus) -> String {
    match (status.signal(), status.code()) {
        (Some(SIGKILL), _) => "was killed (signal 9: by hand, or by the kernel for want of memory)".to_owned(),
        (Some(signal), _) => format!("was ended by signal {signal}"),
        (None, Some(code)) => format!("has exited with code {code}"),
        (None, None) => format!("has ended: {status}"),
    }
}
