//! `pelton doctor`: what this machine is, what Pelton will use of it, and what is wrong.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};

use serde_json::{Value, json};

use super::serve::{Share, refused_here, worker_finds_memory};
use super::{Line, NO_MODULES_OF_THIS_FOLDER, Trouble, print, resolve, tree};
use crate::config::{Config, Settings as _, Surroundings, server_settings, settings};
use crate::display::bytes;
use crate::machine::{self, Gpu, Memory, Processor};

const USAGE: &str = "\
pelton doctor [FLAGS]: what this machine is, what Pelton will use of it, and what is wrong. Takes the flags of `pelton serve` too, and
looks at the machine with them. The exit code is 1 if something is wrong.
";

settings! {
    /// Doctor
    section Options ("doctor", CommandLine) {
        /// Print one JSON object instead of a table.
        json: bool = "false";
    }
}

/// Looks, and reports.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().chain(server_settings()).collect();
    let Line::Run(values) = resolve(USAGE, args, None, &settings, around)? else { return Ok(ExitCode::SUCCESS) };
    let findings = Findings::look(&tree(&values)?);
    let wrong = findings.wrong();
    if Options::take(&values).json {
        print(format_args!("{:#}\n", findings.json(&wrong)))?;
    } else {
        print(findings.table(&wrong))?;
    }
    Ok(if wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Everything that was looked at.
struct Findings {
    processor: Processor,
    kernels: &'static str,
    memory: Option<Memory>,
    memory_nodes: usize,
    gpus: Vec<Gpu>,
    /// None: the workers run already, with whatever they run on.
    python: Option<Python>,
    cache: Cache,
    workers: u32,
    /// Of this machine nothing is a worker's.
    has_worker_elsewhere: bool,
    worker_finds_memory: bool,
    /// Of all workers together, beside which each has its share.
    host_bytes: u64,
    /// Of a worker, where they are set.
    threads: Option<u32>,
    memory_limit: Option<u64>,
    /// Why `pelton serve` would not start here.
    refused: Vec<String>,
}

/// The worker's interpreter.
struct Python {
    program: String,
    /// Its version, and those of the packages it has; or why it cannot be asked.
    seen: Result<Value, String>,
}

/// The disk that downloads go to.
struct Cache {
    folder: String,
    free_bytes: Option<u64>,
}

/// Asks without importing torch, which takes seconds.
const QUESTION: &str = "\
import importlib.metadata as m, json, sys
def version(name):
    try: return m.version(name)
    except m.PackageNotFoundError: return None
print(json.dumps({'python': sys.version.split()[0], **{n: version(n) for n in ('pelton', 'pelton-kernels', 'torch', 'triton')}}))
";

impl Findings {
    fn look(config: &Config) -> Self {
        Self {
            processor: machine::processor(),
            kernels: pelton_cpu::Isa::best().name(),
            memory: machine::memory(),
            memory_nodes: pelton_cpu::nodes().len(),
            gpus: machine::gpus(),
            python: config.worker.worker.is_empty().then(|| Python::ask(&config.worker.python)),
            cache: Cache::look(&config.hub.hub_cache),
            workers: config.workers(),
            has_worker_elsewhere: config.has_worker_elsewhere(),
            worker_finds_memory: worker_finds_memory(config),
            host_bytes: config.engine.kv_host_memory.map_or(0, |bytes| bytes.0),
            threads: config.worker.threads.said().map(|threads| threads.0),
            memory_limit: config.engine.memory_limit.said().map(|bytes| bytes.0),
            refused: refused_here(config),
        }
    }

    /// Each with what to do.
    fn wrong(&self) -> Vec<String> {
        let mut wrong = self.refused.clone();
        wrong.extend(self.python.iter().flat_map(Python::wrong));
        match &self.memory {
            _ if self.worker_finds_memory => {}
            None => wrong.push("/proc/meminfo cannot be read: set --memory-limit".into()),
            Some(memory) if memory.available_bytes < 1 << 30 => {
                wrong.push(format!(
                    "only {} of memory are available: end something, or raise the cgroup's limit",
                    bytes(memory.available_bytes)
                ));
            }
            Some(_) => {}
        }
        wrong
    }

    fn table(&self, wrong: &[String]) -> String {
        let mut rows = vec![
            ("pelton", env!("CARGO_PKG_VERSION").to_owned()),
            ("processor", self.processor.name.clone()),
            (
                "cores",
                format!(
                    "{} usable, of {} cores and {} threads",
                    self.processor.usable, self.processor.physical, self.processor.logical
                ),
            ),
            ("instructions", some(&self.processor.instruction_sets.join(", "), "none that kernels can use")),
        ];
        match &self.memory {
            Some(memory) => {
                let limit = memory
                    .cgroup_limit_bytes
                    .map_or("no cgroup limit".into(), |limit| format!("cgroup limit {}", bytes(limit)));
                rows.push((
                    "memory",
                    format!("{} available of {}; {limit}", bytes(memory.available_bytes), bytes(memory.total_bytes)),
                ));
                rows.push((
                    "huge pages",
                    if memory.has_huge_pages { "yes" } else { "no: weights are read a little slower" }.into(),
                ));
            }
            None => rows.push(("memory", "unknown".into())),
        }
        if self.memory_nodes > 1 {
            let nodes = self.memory_nodes;
            let text =
                format!("{nodes}: threads are spread over them; with --workers {nodes} each worker keeps to one");
            rows.push(("memory nodes", text));
        }
        let gpu = |gpu: &Gpu| match gpu.memory {
            Some((total, free)) => format!("{} ({} free of {})", gpu.name, bytes(free), bytes(total)),
            None => gpu.name.clone(),
        };
        rows.push(("GPU", some(&self.gpus.iter().map(gpu).collect::<Vec<_>>().join(", "), "none")));
        rows.extend(self.python.iter().flat_map(Python::rows));
        let free = self.cache.free_bytes.map_or("unknown".into(), bytes);
        rows.push(("hub cache", format!("{} ({free} free on its disk)", self.cache.folder)));
        rows.push(("will use", self.plan()));
        let mut page: String = rows.iter().map(|(name, value)| format!("{name:<15} {value}\n")).collect();
        match wrong {
            [] => page.push_str("\nNothing is wrong.\n"),
            wrong => page.extend(wrong.iter().map(|one| format!("\nWRONG: {one}")).chain(["\n".into()])),
        }
        page
    }

    /// What each worker will take: threads, and the most memory; None: what it finds.
    fn share(&self) -> (Option<u32>, Option<u64>) {
        let memory = self.memory.filter(|_| !self.worker_finds_memory);
        let memory = memory.map(|memory| memory.worker_limit_bytes().saturating_sub(self.host_bytes));
        let share = Share::out_of(memory.unwrap_or(0), self.processor.usable as u32, self.workers);
        let threads = self.threads.or((!self.has_worker_elsewhere).then_some(share.threads));
        (threads, self.memory_limit.or(memory.map(|_| share.memory_bytes)))
    }

    /// What `pelton serve` will take with these settings.
    fn plan(&self) -> String {
        let (threads, limit) = self.share();
        if self.has_worker_elsewhere {
            return format!("{} elsewhere, with what is there", workers(self.workers));
        }
        let threads = threads.expect("of this machine's processor");
        let limit = limit.map_or("what the worker finds".into(), bytes);
        let many = if self.workers == 1 { String::new() } else { format!("{}, each with ", workers(self.workers)) };
        let cpu = format!("{many}{threads} threads with {} kernels, up to {limit} of memory", self.kernels);
        if self.gpus.is_empty() { cpu } else { format!("the first GPU if PyTorch can use it, else {cpu}") }
    }

    fn json(&self, wrong: &[String]) -> Value {
        let memory = self.memory.map(|memory| {
            json!({
                "total_bytes": memory.total_bytes,
                "available_bytes": memory.available_bytes,
                "cgroup_limit_bytes": memory.cgroup_limit_bytes,
                "worker_limit_bytes": memory.worker_limit_bytes(),
                "huge_pages": memory.has_huge_pages,
            })
        });
        let gpu = |gpu: &Gpu| json!({ "name": gpu.name, "total_bytes": gpu.memory.map(|memory| memory.0), "free_bytes": gpu.memory.map(|memory| memory.1) });
        json!({
            "pelton": env!("CARGO_PKG_VERSION"),
            "processor": {
                "name": self.processor.name,
                "usable_cores": self.processor.usable,
                "cores": self.processor.physical,
                "threads": self.processor.logical,
                "instruction_sets": self.processor.instruction_sets,
                "kernels": self.kernels,
            },
            "memory": memory,
            "memory_nodes": self.memory_nodes,
            "gpus": self.gpus.iter().map(gpu).collect::<Vec<_>>(),
            "python": self.python.as_ref().map(Python::json),
            "hub_cache": { "folder": self.cache.folder, "free_bytes": self.cache.free_bytes },
            "workers": self.workers,
            "worker": { "threads": self.share().0, "memory_limit_bytes": self.share().1 },
            "wrong": wrong,
        })
    }
}

impl Python {
    fn ask(program: &Path) -> Self {
        let asked =
            Command::new(program).args([NO_MODULES_OF_THIS_FOLDER, "-c", QUESTION]).stdin(Stdio::null()).output();
        let seen = match asked {
            Err(error) => Err(error.to_string()),
            Ok(output) => serde_json::from_slice(&output.stdout).map_err(|_| {
                String::from_utf8_lossy(&output.stderr).lines().last().unwrap_or("it said nothing").to_owned()
            }),
        };
        Self { program: program.display().to_string(), seen }
    }

    /// Each with what to do.
    fn wrong(&self) -> Vec<String> {
        let program = &self.program;
        let seen = match &self.seen {
            Err(reason) => {
                return vec![format!("{program} cannot be asked ({reason}): set --python to Python 3.11 or newer")];
            }
            Ok(seen) => seen,
        };
        let lacking = ["torch", "pelton", "pelton-kernels"].into_iter().filter(|package| seen[*package].is_null());
        let lacking = lacking.map(|package| {
            format!("{program} has no package {package}: install it there, or set --python to one that has it")
        });
        let old = (version(&seen["python"]) < (3, 11))
            .then(|| format!("{program} is Python {}: 3.11 or newer is needed", text(&seen["python"])));
        lacking.chain(old).collect()
    }

    fn rows(&self) -> Vec<(&'static str, String)> {
        let seen = match &self.seen {
            Err(reason) => return vec![("python", format!("{}: {reason}", self.program))],
            Ok(seen) => seen,
        };
        let packages = ["torch", "triton", "pelton-kernels"].map(|name| (name, some(&text(&seen[name]), "not found")));
        let python = ("python", format!("{} ({})", text(&seen["python"]), self.program));
        [python].into_iter().chain(packages).collect()
    }

    fn json(&self) -> Value {
        json!({ "program": self.program, "seen": self.seen.as_ref().ok(), "error": self.seen.as_ref().err() })
    }
}

impl Cache {
    /// The folder may not exist yet; then the disk is that of the nearest one that does.
    fn look(folder: &Path) -> Self {
        let disk = folder.ancestors().find_map(|folder| rustix::fs::statvfs(folder).ok());
        Self { folder: folder.display().to_string(), free_bytes: disk.map(|disk| disk.f_bavail * disk.f_frsize) }
    }
}

fn workers(count: u32) -> String {
    if count == 1 { "1 worker".to_owned() } else { format!("{count} workers") }
}

fn some(text: &str, none: &str) -> String {
    if text.is_empty() { none.to_owned() } else { text.to_owned() }
}

fn text(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// "3.11.7" is (3, 11).
fn version(value: &Value) -> (u32, u32) {
    let text = text(value);
    let mut parts = text.split('.').map(|part| part.parse().unwrap_or(0));
    (parts.next().unwrap_or(0), parts.next().unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(seen: Result<Value, String>, available_bytes: u64) -> Findings {
        Findings {
            processor: Processor {
                name: "Some CPU".into(),
                usable: 2,
                logical: 4,
                physical: 2,
                instruction_sets: vec!["AVX2"],
            },
            kernels: "avx2",
            memory: Some(Memory {
                total_bytes: 16 << 30,
                available_bytes,
                cgroup_limit_bytes: Some(8 << 30),
                has_huge_pages: true,
            }),
            memory_nodes: 1,
            gpus: vec![Gpu { name: "A Card".into(), memory: Some((8 << 30, 4 << 30)) }],
            python: Some(Python { program: "python3".into(), seen }),
            cache: Cache { folder: "/cache".into(), free_bytes: Some(1 << 40) },
            workers: 1,
            has_worker_elsewhere: false,
            worker_finds_memory: false,
            host_bytes: 0,
            threads: None,
            memory_limit: None,
            refused: Vec::new(),
        }
    }

    fn whole() -> Value {
        json!({ "python": "3.12.1", "pelton": "0.1.0", "pelton-kernels": "0.1.0", "torch": "2.15.0", "triton": null })
    }

    #[test]
    fn a_healthy_machine_is_described() {
        let findings = findings(Ok(whole()), 4 << 30);
        let page = findings.table(&findings.wrong());
        for part in [
            "2 usable, of 2 cores",
            "AVX2",
            "4.00 GiB available of 16.0 GiB; cgroup limit 8.00 GiB",
            "A Card (4.00 GiB free",
            "2.15.0",
            "2 threads with avx2 kernels",
            "Nothing is wrong.",
        ] {
            assert!(page.contains(part), "{part} in\n{page}");
        }
        assert_eq!(findings.json(&findings.wrong())["memory"]["available_bytes"], 4u64 << 30);
    }

    #[test]
    fn several_workers_share_what_is_there() {
        let findings = Findings { workers: 2, memory_nodes: 2, gpus: Vec::new(), ..findings(Ok(whole()), 4 << 30) };
        let page = findings.table(&[]);
        assert!(page.contains("2: threads are spread over them; with --workers 2 each worker keeps to one"), "{page}");
        assert!(page.contains("2 workers, each with 1 threads with avx2 kernels, up to 1.80 GiB of memory"), "{page}");
        assert_eq!(findings.json(&[])["workers"], 2);
        let beside = Findings { host_bytes: 1 << 30, ..findings };
        assert!(beside.table(&[]).contains("up to 1.30 GiB of memory"), "{}", beside.table(&[]));
        let said = Findings { threads: Some(3), memory_limit: Some(1 << 30), ..beside };
        assert_eq!(said.json(&[])["worker"], json!({ "threads": 3, "memory_limit_bytes": 1 << 30 }));
    }

    #[test]
    fn what_workers_need_that_run_already_is_not_looked_for_here() {
        let config = |arguments: &[(&str, &str)]| {
            let python = [("python", "/no/python")];
            let said = arguments.iter().chain(&python).map(|(name, text)| ((*name).to_owned(), (*text).to_owned()));
            Config::from_arguments(&said.collect::<Vec<_>>(), &Surroundings::default()).expect("valid")
        };
        let look = |arguments: &[(&str, &str)]| Findings::look(&config(arguments));
        assert!(look(&[]).wrong().iter().any(|wrong| wrong.starts_with("/no/python cannot be asked")));

        let near = look(&[("worker", "unix:///a.sock"), ("threads", "3")]);
        let page = near.table(&near.wrong());
        assert!(page.contains("3 threads with") && page.contains("up to what the worker finds of memory"), "{page}");
        assert!(page.contains("Nothing is wrong."), "{page}");

        let far = look(&[("worker", "tcp://far:7000"), ("worker_token_file", "/token")]);
        let page = far.table(&far.wrong());
        assert!(page.contains("1 worker elsewhere, with what is there"), "{page}");
        assert!(page.contains("Nothing is wrong.") && !page.contains("/no/python"), "{page}");
        assert_eq!(far.json(&[])["worker"], json!({ "threads": null, "memory_limit_bytes": null }));
        assert_eq!(far.json(&[])["python"], Value::Null);
    }

    #[test]
    fn what_is_wrong_says_what_to_do() {
        for (seen, available, expected) in [
            (Err("No such file".into()), 4 << 30, "python3 cannot be asked (No such file): set --python"),
            (
                Ok(json!({ "python": "3.9.1", "pelton": "1", "pelton-kernels": "1", "torch": "2" })),
                4 << 30,
                "python3 is Python 3.9.1: 3.11 or newer",
            ),
            (
                Ok(json!({ "python": "3.11.1", "pelton": "1", "pelton-kernels": "1" })),
                4 << 30,
                "python3 has no package torch: install it",
            ),
            (Ok(whole()), 100 << 20, "only 100 MiB of memory are available"),
        ] {
            let wrong = findings(seen, available).wrong();
            assert!(wrong.len() == 1 && wrong[0].starts_with(expected), "{wrong:?}");
        }
    }
}
