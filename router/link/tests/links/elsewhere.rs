//! Workers over TCP with TLS and a token; frames travel inline.

use std::{sync::LazyLock, time::Duration};

use pelton_link::{LinkOptions, Tls, Token, WorkerSpec};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};

use crate::rig::{Process, Rig, is_gone, options, process, stop};

const TOKEN: &str = "a token of these tests";

/// An authority, and the certificate of a worker that it has signed.
struct Papers {
    ca: String,
    cert: String,
    key: String,
}

static PAPERS: LazyLock<Papers> = LazyLock::new(Papers::draw_up);

impl Papers {
    fn draw_up() -> Self {
        let mut authority = CertificateParams::default();
        authority.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(authority, KeyPair::generate().unwrap()).unwrap();
        let key = KeyPair::generate().unwrap();
        let cert = CertificateParams::new(vec!["worker.test".to_owned()]).unwrap().signed_by(&key, &authority).unwrap();
        Self { ca: authority.pem(), cert: cert.pem(), key: key.serialize_pem() }
    }
}

/// Returns the worker and its address.
fn start(address: &str, fault: &str) -> (Process, String) {
    let listen = format!("tcp://{address}");
    let env =
        [("LISTEN", listen.as_str()), ("FAULT", fault), ("TOKEN", TOKEN), ("CERT", &PAPERS.cert), ("KEY", &PAPERS.key)];
    let (worker, line) = process("worker_process", "listening on ", &env);
    (worker, line.rsplit(' ').next().unwrap().to_owned())
}

fn link(address: &str, token: &str, ca: &str) -> LinkOptions {
    let tls = Tls { ca_pem: ca.into(), name: Some("worker.test".to_owned()) };
    options(WorkerSpec::Tcp { address: address.to_owned(), token: Token(token.to_owned()), tls: Some(tls) })
}

#[test]
fn steps_travel_inline_and_the_worker_outlives_its_router() {
    let (_worker, address) = start("127.0.0.1:0", "");
    for _ in 0..2 {
        let rig = Rig::start(link(&address, TOKEN, &PAPERS.ca));
        let mut worker = rig.attached();
        worker.take_steps(300);
        rig.link.shutdown(Duration::from_secs(30));
        assert!(!is_gone(worker.pid()));
    }
}

#[test]
fn a_wrong_token_is_given_up() {
    let (_worker, address) = start("127.0.0.1:0", "");
    let rig = Rig::start(link(&address, "another token", &PAPERS.ca));
    rig.lost();
    let reason = rig.gave_up();
    assert!(reason.contains("wrong token") && !reason.contains("another token"), "{reason}");
}

#[test]
fn a_worker_that_another_authority_has_signed_is_not_talked_to() {
    let (_worker, address) = start("127.0.0.1:0", "");
    let rig = Rig::start(link(&address, TOKEN, &Papers::draw_up().ca));
    let (_, reason) = rig.lost();
    assert!(reason.contains("cannot connect") && reason.contains("certificate"), "{reason}");
}

#[test]
fn a_killed_worker_is_noticed_by_its_stream_and_attached_again() {
    let (mut process, address) = start("127.0.0.1:0", "");
    let rig = Rig::start(link(&address, TOKEN, &PAPERS.ca));
    let mut worker = rig.attached();
    worker.take_steps(5);
    process.kill();
    let (epoch, _) = rig.lost();
    assert_eq!(epoch, worker.epoch);
    let _process = start(&address, "");
    // Until it is there again, tries to connect fail.
    let mut next = loop {
        match rig.next() {
            pelton_link::LinkEvent::Lost { reason, .. } => assert!(reason.contains("cannot connect"), "{reason}"),
            pelton_link::LinkEvent::Attached { epoch, port, report, host, .. } => {
                assert!(host.is_none(), "a worker elsewhere reaches no host memory");
                break rig.of(epoch, port, report);
            }
            _ => panic!("a worker of others is waited for"),
        }
    };
    assert!(next.epoch > epoch);
    next.take_steps(5);
}

#[test]
fn an_idle_worker_that_stops_answering_is_lost() {
    let (process, address) = start("127.0.0.1:0", "");
    let mut options = link(&address, TOKEN, &PAPERS.ca);
    options.deadlines.watch_interval = Duration::from_millis(50);
    options.deadlines.heartbeat = Duration::from_secs(1);
    let rig = Rig::start(options);
    let mut worker = rig.attached();
    worker.take_steps(1);
    stop(worker.pid());
    let (_, reason) = rig.lost();
    assert!(reason.contains("no sign of life"), "{reason}");
    drop(process);
}
