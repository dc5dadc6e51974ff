//! Downloads a model into the cache: the list of files, then each file, resumed where it broke off, checked before it counts.
//!
//! A file's life: `HASH.incomplete` grows under a lock → all bytes are there → its hash is right → renamed to `HASH` → linked into
//! the snapshot. A branch is noted last, so a snapshot that is found by its branch is whole.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use ::http::header::{AUTHORIZATION, CONTENT_RANGE, RANGE, USER_AGENT};
use ::http::{HeaderValue, Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;

use super::cache::{Cache, is_revision, make_parent};
use super::listing::{Listing, RemoteFile, files_of_modules};
use super::{HubError, ModelName, Progress};
use crate::client::{Client, ClientError, read_body};
use crate::config;

/// A silent connection is a broken one.
const SILENCE_MAX: Duration = Duration::from_secs(60);
/// Tries in a row that bring not one byte.
const FRUITLESS_MAX: u32 = 4;
/// A listing of ten thousand files has about 3 MB.
const LISTING_BYTES_MAX: usize = 16 << 20;

/// Brings `name` into the cache and returns its snapshot.
pub(super) async fn download(
    name: &ModelName,
    settings: &config::Hub,
    cache: &Cache,
    token: Option<config::Secret>,
    progress: Progress<'_>,
) -> Result<PathBuf, HubError> {
    let revision = settings.revision.as_str();
    let endpoint = settings.hub_endpoint.0.as_str();
    let hub = Hub { client: Client::new(true), endpoint, name, revision, token, cache };
    progress("asking the hub", 0, 0);
    let listing = hub.listing().await?;

    let mut files = listing.small_files();
    let unusable = |missing: &str| HubError::Unusable { name: name.clone(), missing: missing.to_owned() };
    if !files.iter().any(|file| file.path == "config.json") {
        return Err(unusable("config.json"));
    }
    // These say what else belongs to it, so they come first.
    let index = hub.text(&listing.sha, &files, "model.safetensors.index.json").await?;
    let modules = hub.text(&listing.sha, &files, "modules.json").await?;
    let weights = listing.weights(index.as_deref());
    if weights.is_empty() {
        return Err(unusable("*.safetensors"));
    }
    files.extend(weights);
    let of_modules = modules.as_deref().map(files_of_modules).unwrap_or_default();
    files.extend(listing.named(&of_modules));
    if let Some(missing) = of_modules.iter().find(|path| !files.iter().any(|file| file.path == **path)) {
        return Err(unusable(missing));
    }
    hub.check_disk(&files)?;

    let total: u64 = files.iter().map(|file| file.size).sum();
    let mut before = 0;
    for file in &files {
        let stage = format!("downloading {}", file.path);
        hub.fetch(&listing.sha, file, &|done| progress(&stage, before + done, total)).await?;
        before += file.size;
        progress(&stage, before, total);
    }
    cache.note(revision, &listing.sha)?;
    cache.find(revision).ok_or_else(|| unusable("complete set of weights"))
}

struct Hub<'a> {
    client: Client,
    endpoint: &'a str,
    name: &'a ModelName,
    revision: &'a str,
    token: Option<config::Secret>,
    cache: &'a Cache,
}

impl Hub<'_> {
    async fn listing(&self) -> Result<Listing, HubError> {
        if !is_revision(self.revision) {
            return Err(HubError::NotFound { name: self.name.clone(), revision: self.revision.to_owned() });
        }
        let revision = self.revision.replace('/', "%2F");
        let address = format!("{}/api/models/{}/revision/{revision}?blobs=true", self.endpoint, self.name);
        let unreachable = |reason: String| HubError::Unreachable { name: self.name.clone(), reason };
        let response = self.get(&address, None).await.map_err(|error| unreachable(error.to_string()))?;
        self.check_status(&address, &response)?;
        let body =
            read_body(response.into_body(), LISTING_BYTES_MAX).await.map_err(|error| unreachable(error.to_string()))?;
        let answer = |reason: String| HubError::Answer { what: address.clone(), reason };
        let listing: Listing = serde_json::from_slice(&body).map_err(|error| answer(error.to_string()))?;
        if !super::cache::is_hash(&listing.sha) {
            return Err(answer(format!("`sha` is `{}`", listing.sha)));
        }
        Ok(listing)
    }

    async fn get(&self, address: &str, from: Option<u64>) -> Result<Response<Incoming>, ClientError> {
        let mut request = Request::get(address).body(()).map_err(|error| ClientError::Body(error.to_string()))?;
        let headers = request.headers_mut();
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("pelton/", env!("CARGO_PKG_VERSION"))));
        if let Some(token) = &self.token
            && let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.reveal()))
        {
            value.set_sensitive(true);
            headers.insert(AUTHORIZATION, value);
        }
        if let Some(from) = from {
            headers.insert(RANGE, HeaderValue::try_from(format!("bytes={from}-")).expect("digits"));
        }
        let silent = || ClientError::Body(format!("no answer within {} s", SILENCE_MAX.as_secs()));
        tokio::time::timeout(SILENCE_MAX, self.client.get(&request)).await.map_err(|_| silent())?
    }

    fn check_status(&self, what: &str, response: &Response<Incoming>) -> Result<(), HubError> {
        let status = response.status();
        match status {
            StatusCode::OK | StatusCode::PARTIAL_CONTENT => Ok(()),
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => {
                let advice =
                    if self.token.is_some() { "the token in `hub-token-file` may not" } else { "set `hub-token-file`" };
                Err(HubError::Denied { name: self.name.clone(), status: status.as_u16(), advice })
            }
            StatusCode::NOT_FOUND => {
                Err(HubError::NotFound { name: self.name.clone(), revision: self.revision.to_owned() })
            }
            _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => {
                Err(HubError::Failing { what: what.to_owned(), status: status.as_u16() })
            }
            _ => Err(HubError::Answer { what: what.to_owned(), reason: format!("status {status}") }),
        }
    }

    /// Refuses before the first byte rather than after the last that fits.
    fn check_disk(&self, files: &[RemoteFile]) -> Result<(), HubError> {
        let folder = self.cache.folder();
        make_parent(&folder.join("blobs"))?;
        let here = |path: PathBuf| fs::metadata(path).map_or(0, |kept| kept.len());
        let missing = |file: &RemoteFile| {
            let kept = here(self.cache.blob(&file.hash)).max(here(self.cache.incomplete(&file.hash)));
            file.size.saturating_sub(kept)
        };
        let needed: u64 = files.iter().map(missing).sum();
        let disk = rustix::fs::statvfs(folder).map_err(|error| HubError::file(folder)(error.into()))?;
        let free = disk.f_bavail * disk.f_frsize;
        if needed > free {
            return Err(HubError::DiskFull { name: self.name.clone(), needed, free, folder: folder.to_owned() });
        }
        Ok(())
    }

    /// What the file at `path` says, if it is one of `files`.
    async fn text(&self, commit: &str, files: &[RemoteFile], path: &str) -> Result<Option<String>, HubError> {
        let Some(file) = files.iter().find(|file| file.path == path) else { return Ok(None) };
        self.fetch(commit, file, &|_| ()).await?;
        let blob = self.cache.blob(&file.hash);
        fs::read_to_string(&blob).map(Some).map_err(HubError::file(&blob))
    }

    /// Brings one file into the snapshot; `done` is told how many of its bytes are here.
    async fn fetch(&self, commit: &str, file: &RemoteFile, done: &(dyn Fn(u64) + Sync)) -> Result<(), HubError> {
        let blob = self.cache.blob(&file.hash);
        let is_here = || fs::metadata(&blob).is_ok_and(|kept| kept.len() == file.size);
        if !is_here() {
            // This runtime has no other task, so waiting for the lock here stops nobody.
            let _lock =
                self.cache.lock(&file.hash, || eprintln!("{}: somebody else is downloading it; waiting", file.path))?;
            if !is_here() {
                let incomplete = self.cache.incomplete(&file.hash);
                self.fill(commit, file, &incomplete, done).await?;
                self.check_hash(file, &incomplete)?;
                fs::rename(&incomplete, &blob).map_err(HubError::file(&blob))?;
            }
        }
        self.cache.link(commit, &file.path, &file.hash)
    }

    /// Tries until all bytes are there, as long as tries bring something.
    async fn fill(
        &self,
        commit: &str,
        file: &RemoteFile,
        path: &Path,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<(), HubError> {
        make_parent(path)?;
        let mut kept = File::options().create(true).append(true).open(path).map_err(HubError::file(path))?;
        let mut length = kept.metadata().map_err(HubError::file(path))?.len();
        let mut fruitless = 0;
        while length != file.size {
            if length > file.size {
                kept.set_len(0).map_err(HubError::file(path))?;
                length = 0;
            }
            let start = length;
            match self.take(commit, file, &mut kept, &mut length, done).await {
                Ok(()) if length == file.size => break,
                Ok(()) | Err(Interrupted::Retry(_)) if length > start => fruitless = 0,
                Err(Interrupted::Fatal(error)) => return Err(error),
                result if fruitless + 1 == FRUITLESS_MAX => {
                    let reason = match result {
                        Err(Interrupted::Retry(reason)) => reason,
                        _ => "the answer was empty".to_owned(),
                    };
                    return Err(HubError::Broken { file: file.path.clone(), reason });
                }
                _ => {
                    fruitless += 1;
                    tokio::time::sleep(Duration::from_millis(250) * fruitless).await;
                }
            }
        }
        kept.sync_all().map_err(HubError::file(path))
    }

    /// One request: appends what comes.
    async fn take(
        &self,
        commit: &str,
        file: &RemoteFile,
        kept: &mut File,
        length: &mut u64,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Interrupted> {
        let address = format!("{}/{}/resolve/{commit}/{}", self.endpoint, self.name, file.path);
        let broken = |error: ClientError| Interrupted::Retry(error.to_string());
        let response = self.get(&address, (*length > 0).then_some(*length)).await.map_err(broken)?;
        let status = response.status();
        if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS {
            return Err(Interrupted::Retry(format!("status {status}")));
        }
        let path = self.cache.incomplete(&file.hash);
        let failed = |error| Interrupted::Fatal(HubError::file(&path)(error));
        let is_continued = status == StatusCode::PARTIAL_CONTENT && starts_at(&response, *length);
        if *length > 0 && !is_continued {
            kept.set_len(0).map_err(failed)?;
            *length = 0;
            if status == StatusCode::RANGE_NOT_SATISFIABLE || status == StatusCode::PARTIAL_CONTENT {
                return Err(Interrupted::Retry("the server cannot go on from there".into()));
            }
        }
        self.check_status(&address, &response).map_err(Interrupted::Fatal)?;
        let mut body = response.into_body();
        loop {
            let frame = tokio::time::timeout(SILENCE_MAX, body.frame()).await;
            let frame =
                frame.map_err(|_| Interrupted::Retry(format!("nothing came for {} s", SILENCE_MAX.as_secs())))?;
            let Some(frame) = frame else { return Ok(()) };
            let frame = frame.map_err(|error| Interrupted::Retry(error.to_string()))?;
            if let Ok(bytes) = frame.into_data() {
                kept.write_all(&bytes).map_err(failed)?;
                *length += bytes.len() as u64;
                done(*length);
            }
        }
    }

    fn check_hash(&self, file: &RemoteFile, path: &Path) -> Result<(), HubError> {
        let got = hash_of(path, file).map_err(HubError::file(path))?;
        if got == file.hash {
            return Ok(());
        }
        fs::remove_file(path).map_err(HubError::file(path))?;
        let what = format!("hash {got}, expected {}", file.hash);
        Err(HubError::Damaged { name: self.name.clone(), file: file.path.clone(), what })
    }
}

/// Why one request did not bring the whole rest.
enum Interrupted {
    /// The network's fault: worth another try.
    Retry(String),
    /// Another try would end the same.
    Fatal(HubError),
}

fn starts_at(response: &Response<Incoming>, from: u64) -> bool {
    let range = response.headers().get(CONTENT_RANGE).and_then(|value| value.to_str().ok());
    range.is_some_and(|range| range.starts_with(&format!("bytes {from}-")))
}

/// SHA-256 of the contents, or git's SHA-1 over a header and the contents, by which the hash is.
fn hash_of(path: &Path, file: &RemoteFile) -> std::io::Result<String> {
    let mut context = if file.hash.len() == 64 {
        ring::digest::Context::new(&ring::digest::SHA256)
    } else {
        let mut git = ring::digest::Context::new(&ring::digest::SHA1_FOR_LEGACY_USE_ONLY);
        git.update(format!("blob {}\0", file.size).as_bytes());
        git
    };
    let mut contents = File::open(path)?;
    let mut piece = vec![0; 1 << 20];
    loop {
        match contents.read(&mut piece)? {
            0 => break,
            length => context.update(&piece[..length]),
        }
    }
    Ok(context.finish().as_ref().iter().map(|byte| format!("{byte:02x}")).collect())
}
