//! Workers on this host that others start.

use std::{fs, path::PathBuf, time::Duration};

use pelton_link::{LinkOptions, WorkerSpec};

use crate::rig::{Process, Rig, is_gone, options, process};

/// A folder that goes with the test.
pub(crate) struct Home(PathBuf);

impl Home {
    pub(crate) fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("pelton-link-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn start(&self) -> Process {
        self.start_with("")
    }

    pub(crate) fn start_with(&self, fault: &str) -> Process {
        for name in ["worker.sock", "worker.sock.memory"] {
            let _ = fs::remove_file(self.0.join(name)); // what a killed worker has left
        }
        let listen = format!("unix://{}", self.0.join("worker.sock").display());
        process("worker_process", "listening", &[("LISTEN", &listen), ("FAULT", fault)]).0
    }

    pub(crate) fn link(&self) -> LinkOptions {
        options(WorkerSpec::Unix { path: self.0.join("worker.sock") })
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        fs::remove_dir_all(&self.0).unwrap();
    }
}

#[test]
fn a_worker_outlives_its_router_and_serves_the_next_one() {
    let home = Home::new("outlives");
    let _worker = home.start();
    for _ in 0..2 {
        let rig = Rig::start(home.link());
        let mut worker = rig.attached();
        worker.take_steps(100);
        rig.link.shutdown(Duration::from_secs(30));
        assert!(!is_gone(worker.pid()), "it is not ours to end");
        assert!(home.0.join("worker.sock").exists(), "nor is its socket");
    }
}

#[test]
fn a_worker_that_died_is_attached_again_when_others_have_started_it() {
    let home = Home::new("again");
    let mut process = home.start();
    let rig = Rig::start(home.link());
    let mut worker = rig.attached();
    worker.submit(1).unwrap();
    worker.result();
    process.kill();
    let (_, reason) = rig.lost();
    assert!(reason.contains("has ended"), "{reason}");
    let _process = home.start();
    let mut next = rig.attached();
    assert!(next.epoch > worker.epoch);
    next.take_steps(10);
}

#[test]
fn replacing_a_worker_of_others_is_a_fresh_start_with_it() {
    let home = Home::new("fresh");
    let _worker = home.start();
    let rig = Rig::start(home.link());
    let first = rig.attached();
    rig.link.replace("garbage".to_owned());
    assert_eq!(rig.lost(), (1, "garbage".to_owned()));
    let mut second = rig.attached();
    assert_eq!((second.epoch, second.pid()), (2, first.pid()));
    second.take_steps(10);
}
