//! Against a small hub of the test's own, which breaks connections, lies about contents and asks for tokens.

use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};

use super::*;
use crate::config::{Surroundings, Url};

const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// What the hub does wrong.
#[derive(Default, Clone)]
struct Faults {
    /// Each answer about weights stops after this many bytes.
    cut_after: Option<usize>,
    /// The weights are not what the listing says.
    lies: bool,
    /// Only with this token.
    token: Option<&'static str>,
    /// Weights are somewhere else.
    redirects: bool,
    /// Ranges are not understood.
    no_ranges: bool,
    /// Every answer about weights has this status.
    status: Option<u16>,
    /// The answer about which files there are has this status.
    listing_status: Option<u16>,
    /// Files beside the usual ones.
    more: &'static [(&'static str, &'static str)],
}

struct TestHub {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

fn weights() -> Vec<u8> {
    (0..100_000u32).flat_map(u32::to_le_bytes).collect()
}

fn files() -> BTreeMap<&'static str, Vec<u8>> {
    BTreeMap::from([
        ("config.json", br#"{"model_type": "llama"}"#.to_vec()),
        ("tokenizer.json", b"{}".to_vec()),
        ("model.safetensors", weights()),
        ("pytorch_model.bin", b"a pickle".to_vec()),
        ("modeling.py", b"import os".to_vec()),
    ])
}

fn hex(digest: &ring::digest::Digest) -> String {
    digest.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

fn listing(files: &BTreeMap<&str, Vec<u8>>) -> String {
    let sibling = |(path, contents): (&&str, &Vec<u8>)| {
        if path.ends_with(".safetensors") {
            let sha = hex(&ring::digest::digest(&ring::digest::SHA256, contents));
            format!(
                r#"{{"rfilename":"{path}","size":{0},"blobId":"{COMMIT}","lfs":{{"sha256":"{sha}","size":{0},"pointerSize":134}}}}"#,
                contents.len()
            )
        } else {
            let object = [format!("blob {}\0", contents.len()).as_bytes(), contents].concat();
            let sha = hex(&ring::digest::digest(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY, &object));
            format!(r#"{{"rfilename":"{path}","size":{},"blobId":"{sha}"}}"#, contents.len())
        }
    };
    let siblings: Vec<String> = files.iter().map(sibling).collect();
    format!(r#"{{"id":"org/name","sha":"{COMMIT}","siblings":[{}]}}"#, siblings.join(","))
}

impl TestHub {
    fn start(faults: Faults) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = format!("http://{}", listener.local_addr().expect("bound"));
        let requests = Arc::new(Mutex::new(Vec::new()));
        let seen = Arc::clone(&requests);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (faults, seen) = (faults.clone(), Arc::clone(&seen));
                std::thread::spawn(move || answer(stream, &faults, &seen));
            }
        });
        Self { address, requests }
    }

    /// Requests for the weights: `from=BYTE` each.
    fn weight_requests(&self) -> Vec<String> {
        self.requests.lock().expect("whole").iter().filter(|line| line.contains(".safetensors ")).cloned().collect()
    }

    fn all_requests(&self) -> usize {
        self.requests.lock().expect("whole").len()
    }
}

/// One request per connection.
fn answer(mut stream: TcpStream, faults: &Faults, seen: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().expect("cloned")).lines().map_while(Result::ok);
    let Some(request) = lines.next() else { return };
    let headers: Vec<String> = lines.take_while(|line| !line.is_empty()).map(|line| line.to_lowercase()).collect();
    let header =
        |name: &str| headers.iter().find_map(|line| line.strip_prefix(&format!("{name}: ")).map(str::to_owned));
    let path = request.split(' ').nth(1).expect("a path").to_owned();
    let mut files = files();
    files.extend(faults.more.iter().map(|(path, text)| (*path, text.as_bytes().to_vec())));
    let from: usize =
        header("range").map_or(0, |range| range["bytes=".len()..range.len() - 1].parse().expect("a number"));
    seen.lock().expect("whole").push(format!("{path} from={from}"));

    let mut head = |status: u16, extra: String, length: usize| {
        _ = write!(stream, "HTTP/1.1 {status} X\r\ncontent-length: {length}\r\nconnection: close\r\n{extra}\r\n");
    };
    if let Some(token) = faults.token
        && header("authorization") != Some(format!("bearer {token}"))
    {
        return head(401, String::new(), 0);
    }
    if path == "/api/models/org/name/revision/main?blobs=true" {
        if let Some(status) = faults.listing_status {
            return head(status, String::new(), 0);
        }
        let body = listing(&files);
        head(200, String::new(), body.len());
        _ = stream.write_all(body.as_bytes());
        return;
    }
    let here = format!("/org/name/resolve/{COMMIT}/");
    let file = path.strip_prefix(&here).or_else(|| path.strip_prefix("/elsewhere/"));
    let Some((file, mut contents)) = file.and_then(|file| Some((file, files.remove(file)?))) else {
        return head(404, String::new(), 0);
    };
    let is_weights = file.ends_with(".safetensors");
    if let (true, Some(status)) = (is_weights, faults.status) {
        return head(status, String::new(), 0);
    }
    if is_weights && faults.redirects && path.starts_with(&here) {
        return head(302, format!("location: /elsewhere/{file}\r\n"), 0);
    }
    if is_weights && faults.lies {
        contents[7] ^= 1;
    }
    let from = if faults.no_ranges { 0 } else { from };
    let (status, range) = match from {
        0 => (200, String::new()),
        from => (206, format!("content-range: bytes {from}-{}/{}\r\n", contents.len() - 1, contents.len())),
    };
    let rest = &contents[from..];
    head(status, range, rest.len());
    let sent = faults.cut_after.filter(|_| is_weights).unwrap_or(rest.len()).min(rest.len());
    _ = stream.write_all(&rest[..sent]);
}

fn settings(address: &str, cache: &Path) -> config::Hub {
    let mut hub = config::Config::from_arguments(&[], &Surroundings::default()).expect("defaults").hub;
    hub.hub_endpoint = Url(address.to_owned());
    hub.hub_cache = cache.to_owned();
    hub.hub_token_file = None;
    hub
}

fn fetch(settings: &config::Hub) -> Result<PathBuf, HubError> {
    locate("org/name", settings, &|_, _, _| ())
}

#[test]
fn a_model_is_downloaded_once_and_found_from_then_on() {
    let (hub, cache) = (TestHub::start(Faults::default()), tempfile::tempdir().expect("a folder"));
    let mut settings = settings(&hub.address, cache.path());
    let told = Mutex::new(Vec::new());
    let folder = locate("org/name", &settings, &|stage, done, total| {
        told.lock().expect("whole").push((stage.to_owned(), done, total))
    });
    let folder = folder.expect("downloaded");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("there"), weights());
    let mut names: Vec<_> =
        std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").file_name()).collect();
    names.sort();
    assert_eq!(names, ["config.json", "model.safetensors", "tokenizer.json"], "no pickle and no code"); // B:A7
    let (stage, done, total) = told.into_inner().expect("whole").pop().expect("progress was told");
    assert_eq!((stage.as_str(), done), ("downloading model.safetensors", total));

    let before = hub.all_requests();
    assert_eq!(fetch(&settings).expect("cached"), folder);
    settings.offline = true;
    assert_eq!(fetch(&settings).expect("cached"), folder);
    settings.revision = COMMIT.into();
    assert_eq!(fetch(&settings).expect("cached by its commit"), folder);
    assert_eq!(hub.all_requests(), before, "the cache needs no network");
}

#[test]
fn a_transfer_that_breaks_off_goes_on_from_there() {
    let third = weights().len() / 3 + 1;
    let hub = TestHub::start(Faults { cut_after: Some(third), ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let folder = fetch(&settings(&hub.address, cache.path())).expect("whole in the end");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("there"), weights());
    let starts: Vec<_> =
        hub.weight_requests().iter().map(|line| line.rsplit('=').next().expect("from=").to_owned()).collect();
    assert_eq!(starts, ["0".to_owned(), third.to_string(), (2 * third).to_string()]);
}

#[test]
fn a_download_that_was_given_up_is_resumed_by_the_next_start() {
    let cache = tempfile::tempdir().expect("a folder");
    let half = weights().len() / 2;
    let sha = hex(&ring::digest::digest(&ring::digest::SHA256, &weights()));
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).expect("made");
    std::fs::write(blobs.join(format!("{sha}.incomplete")), &weights()[..half]).expect("written");
    let hub = TestHub::start(Faults::default());
    let folder = fetch(&settings(&hub.address, cache.path())).expect("whole");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("there"), weights());
    assert_eq!(hub.weight_requests().len(), 1);
    assert!(hub.weight_requests()[0].ends_with(&format!("from={half}")));
}

#[test]
fn a_server_without_ranges_is_read_from_the_start_again() {
    let cache = tempfile::tempdir().expect("a folder");
    let sha = hex(&ring::digest::digest(&ring::digest::SHA256, &weights()));
    let blobs = cache.path().join("models--org--name/blobs");
    std::fs::create_dir_all(&blobs).expect("made");
    std::fs::write(blobs.join(format!("{sha}.incomplete")), b"begin").expect("written");
    let hub = TestHub::start(Faults { no_ranges: true, ..Faults::default() });
    let folder = fetch(&settings(&hub.address, cache.path())).expect("whole");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("there"), weights());
}

#[test]
fn contents_with_another_hash_are_thrown_away() {
    let hub = TestHub::start(Faults { lies: true, ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let refused = fetch(&settings(&hub.address, cache.path())).expect_err("damaged");
    assert!(matches!(&refused, HubError::Damaged { file, .. } if file == "model.safetensors"), "{refused}");
    let left: Vec<_> =
        std::fs::read_dir(cache.path().join("models--org--name/blobs")).expect("a folder").flatten().collect();
    assert!(left.iter().all(|entry| entry.metadata().expect("there").len() < 1000), "no damaged weights are kept");
    assert!(!cache.path().join("models--org--name/refs/main").exists());
}

#[test]
fn redirects_are_followed() {
    let hub = TestHub::start(Faults { redirects: true, ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let folder = fetch(&settings(&hub.address, cache.path())).expect("elsewhere");
    assert_eq!(std::fs::read(folder.join("model.safetensors")).expect("there"), weights());
}

#[test]
fn a_model_that_needs_a_token_says_so_and_gets_it() {
    let hub = TestHub::start(Faults { token: Some("hf_x"), ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let mut settings = settings(&hub.address, cache.path());
    let refused = fetch(&settings).expect_err("no token").to_string();
    assert!(refused.contains("status 401") && refused.ends_with("set `hub-token-file`"), "{refused}");
    let token = cache.path().join("token");
    std::fs::write(&token, "hf_x\n").expect("written");
    settings.hub_token_file = Some(token.clone());
    fetch(&settings).expect("allowed");
    std::fs::write(&token, "hf_wrong").expect("written");
    settings.hub_cache = cache.path().join("other");
    let refused = fetch(&settings).expect_err("the wrong token").to_string();
    assert!(refused.ends_with("the token in `hub-token-file` may not") && !refused.contains("hf_"), "{refused}");
}

#[test]
fn an_unknown_model_is_not_found() {
    let hub = TestHub::start(Faults::default());
    let cache = tempfile::tempdir().expect("a folder");
    let refused = locate("org/nmae", &settings(&hub.address, cache.path()), &|_, _, _| ()).expect_err("unknown");
    assert!(matches!(refused, HubError::NotFound { .. }), "{refused}");
}

#[test]
fn a_hub_that_is_not_well_is_told_from_one_that_is_none() {
    for (status, says) in [(500, "(status 500); try again later"), (418, "makes no sense: status 418")] {
        let hub = TestHub::start(Faults { listing_status: Some(status), ..Faults::default() });
        let cache = tempfile::tempdir().expect("a folder");
        let refused = fetch(&settings(&hub.address, cache.path())).expect_err("broken").to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

#[test]
fn a_server_that_keeps_failing_is_given_up() {
    let hub = TestHub::start(Faults { status: Some(503), ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let refused = fetch(&settings(&hub.address, cache.path())).expect_err("broken").to_string();
    assert!(refused.contains("model.safetensors broke off (status 503"), "{refused}");
}

#[test]
fn without_a_network_the_message_says_what_to_do() {
    let free = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = format!("http://{}", free.local_addr().expect("bound"));
    drop(free);
    let cache = tempfile::tempdir().expect("a folder");
    let mut settings = settings(&address, cache.path());
    let refused = fetch(&settings).expect_err("nobody there").to_string();
    assert!(
        refused.contains("Connection refused") && refused.ends_with("give a folder instead: pelton serve ./FOLDER"),
        "{refused}"
    );
    settings.offline = true;
    let refused = fetch(&settings).expect_err("offline").to_string();
    assert!(refused.contains("`offline` is set"), "{refused}");
    let refused = locate("/no/such/folder", &settings, &|_, _, _| ()).expect_err("no folder").to_string();
    assert!(refused.starts_with("there is no folder `/no/such/folder`"), "{refused}");
}

#[test]
fn a_snapshot_of_which_other_tools_fetched_a_part_is_not_taken_for_whole() {
    let cache = tempfile::tempdir().expect("a folder");
    let model = cache.path().join("models--org--name");
    let snapshot = model.join("snapshots").join(COMMIT);
    std::fs::create_dir_all(&snapshot).expect("made");
    std::fs::create_dir_all(model.join("refs")).expect("made");
    std::fs::write(model.join("refs/main"), COMMIT).expect("written");
    std::fs::write(snapshot.join("config.json"), "{}").expect("written");
    let name: ModelName = "org/name".parse().expect("a name");
    let found = || cache::Cache::new(cache.path(), &name).find("main");
    assert_eq!(found(), None);
    let index = r#"{"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}"#;
    std::fs::write(snapshot.join("model.safetensors.index.json"), index).expect("written");
    std::fs::write(snapshot.join("m-1.safetensors"), "x").expect("written");
    assert_eq!(found(), None);
    std::fs::write(snapshot.join("m-2.safetensors"), "x").expect("written");
    assert_eq!(found(), Some(snapshot));
}

const MODULES: &str = r#"[{"type": "x.Transformer", "path": ""}, {"type": "x.Pooling", "path": "1_Pooling"}, {"type": "x.Dense", "path": "2_Dense"}, {"type": "x.Normalize", "path": "3_Normalize"}]"#;

#[test]
fn the_modules_behind_a_model_come_with_it_and_are_missed_where_they_lack() {
    let more = &[
        ("modules.json", MODULES),
        ("1_Pooling/config.json", "{}"),
        ("1_Pooling/README.md", "not read"),
        ("2_Dense/config.json", "{\"bias\": true}"),
        ("2_Dense/model.safetensors", "a layer"),
        ("2_Dense/pytorch_model.bin", "a pickle"),
        ("onnx/config.json", "{}"),
    ];
    let hub = TestHub::start(Faults { more, ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let mut settings = settings(&hub.address, cache.path());
    let folder = fetch(&settings).expect("downloaded");
    let layer = folder.join("2_Dense/model.safetensors");
    assert_eq!(std::fs::read(&layer).expect("there"), b"a layer");
    for (path, text) in more {
        let read = ["modules.json", "1_Pooling/config.json", "2_Dense/config.json", "2_Dense/model.safetensors"];
        let expected = read.contains(path).then(|| (*text).to_owned());
        assert_eq!(std::fs::read_to_string(folder.join(path)).ok(), expected, "{path}");
    }
    std::fs::remove_file(&layer).expect("it was there");
    assert_eq!(fetch(&settings).expect("fetched again"), folder);
    assert!(layer.exists(), "a snapshot without it is not whole");
    std::fs::remove_file(folder.join("1_Pooling/config.json")).expect("it was there");
    settings.offline = true;
    assert!(matches!(fetch(&settings), Err(HubError::Offline { .. })));
}

#[test]
fn a_module_that_the_hub_does_not_have_is_named() {
    let more = &[("modules.json", MODULES), ("1_Pooling/config.json", "{}"), ("2_Dense/config.json", "{}")];
    let hub = TestHub::start(Faults { more, ..Faults::default() });
    let cache = tempfile::tempdir().expect("a folder");
    let refused = fetch(&settings(&hub.address, cache.path())).expect_err("a layer lacks").to_string();
    assert!(refused.starts_with("org/name has no 2_Dense/model.safetensors; "), "{refused}");
    assert_eq!(hub.weight_requests().len(), 0, "it is told before the weights come");
}

#[test]
fn two_at_once_download_each_file_once() {
    let hub = TestHub::start(Faults::default());
    let cache = tempfile::tempdir().expect("a folder");
    let settings = settings(&hub.address, cache.path());
    std::thread::scope(|scope| {
        let both = [scope.spawn(|| fetch(&settings)), scope.spawn(|| fetch(&settings))];
        for one in both {
            one.join().expect("no panic").expect("downloaded");
        }
    });
    assert_eq!(hub.weight_requests().len(), 1);
}
