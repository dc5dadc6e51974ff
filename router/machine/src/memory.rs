//! Memory that is there to be used: the machine's, or less if a cgroup says so.

use std::path::{Path, PathBuf};

/// One reading, so that its numbers belong together. // C:H2
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Memory {
    /// The machine's memory.
    pub total_bytes: u64,
    /// What could be taken now without swapping, within the cgroup's limit.
    pub available_bytes: u64,
    /// The tightest limit of the cgroups this process is in.
    pub cgroup_limit_bytes: Option<u64>,
    /// Whether the kernel gives 2 MiB pages, by itself or when asked.
    pub has_huge_pages: bool,
}

impl Memory {
    /// The most that a worker should take when nobody said: what is available less a tenth, and at least 256 MiB,
    /// for the router, the page cache and the neighbours.
    pub fn worker_limit_bytes(&self) -> u64 {
        const RESERVE_LEAST: u64 = 256 << 20;
        let reserve = (self.available_bytes / 10).max(RESERVE_LEAST).min(self.available_bytes / 2);
        self.available_bytes - reserve
    }
}

/// The machine's memory now; `None` where there is no /proc.
pub fn memory() -> Option<Memory> {
    read(Path::new("/"))
}

fn read(root: &Path) -> Option<Memory> {
    let info = std::fs::read_to_string(root.join("proc/meminfo")).ok()?;
    let field = |name: &str| {
        let line = info.lines().find_map(|line| line.strip_prefix(name))?;
        Some(line.trim().trim_end_matches("kB").trim().parse::<u64>().ok()? * 1024)
    };
    let total_bytes = field("MemTotal:")?;
    let mut available_bytes = field("MemAvailable:")?;
    let mut cgroup_limit_bytes: Option<u64> = None;
    for cgroup in cgroups(root) {
        let limits = cgroup.limits.iter().filter_map(|name| number(&cgroup.folder.join(name)));
        let Some(limit) = limits.min().filter(|limit| *limit < total_bytes) else { continue };
        cgroup_limit_bytes = Some(cgroup_limit_bytes.map_or(limit, |tightest| tightest.min(limit)));
        let used = number(&cgroup.folder.join(cgroup.usage)).unwrap_or(0);
        // Page cache is given up before anything else: of files that were read once, and of those that were read again (a model's, at each
        // start).
        let statistics = cgroup.folder.join("memory.stat");
        let idle: u64 = cgroup.file_cache.iter().map(|name| statistic(&statistics, name)).sum();
        available_bytes = available_bytes.min(limit.saturating_sub(used.saturating_sub(idle)));
    }
    let huge = std::fs::read_to_string(root.join("sys/kernel/mm/transparent_hugepage/enabled")).unwrap_or_default();
    let has_huge_pages = huge.contains("[always]") || huge.contains("[madvise]");
    Some(Memory { total_bytes, available_bytes, cgroup_limit_bytes, has_huge_pages })
}

struct Cgroup {
    folder: PathBuf,
    /// Beyond the first it is killed, beyond the second it is slowed until it crawls.
    limits: &'static [&'static str],
    usage: &'static str,
    file_cache: [&'static str; 2],
}

/// All cgroups, from this process's own to the root, that may limit memory. Inside a container the path in
/// /proc/self/cgroup may be the host's and not exist; then the mount's root is the container's own group.
fn cgroups(root: &Path) -> Vec<Cgroup> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let v2 = id == "0" && controllers.is_empty();
        if !v2 && !controllers.split(',').any(|controller| controller == "memory") {
            continue;
        }
        let mount = root.join(if v2 { "sys/fs/cgroup" } else { "sys/fs/cgroup/memory" });
        let own = mount.join(path.trim_start_matches('/'));
        for folder in own.ancestors().take_while(|folder| folder.starts_with(&mount)) {
            let folder = folder.to_owned();
            all.push(if v2 {
                Cgroup {
                    folder,
                    limits: &["memory.max", "memory.high"],
                    usage: "memory.current",
                    file_cache: ["inactive_file", "active_file"],
                }
            } else {
                Cgroup {
                    folder,
                    limits: &["memory.limit_in_bytes"],
                    usage: "memory.usage_in_bytes",
                    file_cache: ["total_inactive_file", "total_active_file"],
                }
            });
        }
    }
    all
}

/// A file that holds one number; "max" is none.
fn number(path: &Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn statistic(path: &Path, name: &str) -> u64 {
    let text = std::fs::read_to_string(path).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
    line.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// A machine of 16 GiB with 10 available, and these files besides.
    fn check(files: &[(&str, &str)], available: u64, limit: Option<u64>) {
        let folder = tempfile::tempdir().expect("a folder");
        let meminfo = ("proc/meminfo", "MemTotal:       16777216 kB\nMemFree:  1 kB\nMemAvailable:   10485760 kB\n");
        for (path, text) in [meminfo].iter().chain(files) {
            let path = folder.path().join(path);
            std::fs::create_dir_all(path.parent().expect("below the folder")).expect("made");
            std::fs::write(path, text).expect("written");
        }
        let memory = read(folder.path()).expect("readable");
        assert_eq!(
            (memory.available_bytes, memory.cgroup_limit_bytes, memory.total_bytes),
            (available, limit, 16 * GIB)
        );
    }

    #[test]
    fn without_a_limit_it_is_the_machines() {
        check(&[], 10 * GIB, None);
        check(&[("proc/self/cgroup", "0::/a\n"), ("sys/fs/cgroup/a/memory.max", "max\n")], 10 * GIB, None);
    }

    #[test]
    fn a_limit_counts_less_what_is_in_use_and_not_idle_cache() {
        let files = [
            ("proc/self/cgroup", "0::/pods/one\n"),
            ("sys/fs/cgroup/pods/one/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/pods/one/memory.current", "4294967296\n"),
            ("sys/fs/cgroup/pods/one/memory.stat", "anon 5\ninactive_file 805306368\nactive_file 268435456\n"),
        ];
        check(&files, 5 * GIB, Some(8 * GIB));
    }

    #[test]
    fn the_tightest_of_all_groups_above_decides() {
        let files = [
            ("proc/self/cgroup", "0::/pods/one\n"),
            ("sys/fs/cgroup/pods/one/memory.max", "8589934592\n"),
            ("sys/fs/cgroup/pods/memory.max", "2147483648\n"),
        ];
        check(&files, 2 * GIB, Some(2 * GIB));
    }

    #[test]
    fn where_a_group_is_slowed_before_it_is_full_that_decides() {
        let files = [
            ("proc/self/cgroup", "0::/service\n"),
            ("sys/fs/cgroup/service/memory.max", "max\n"),
            ("sys/fs/cgroup/service/memory.high", "2147483648\n"),
        ];
        check(&files, 2 * GIB, Some(2 * GIB));
    }

    #[test]
    fn a_path_of_the_host_falls_back_to_the_mounts_root() {
        let files = [("proc/self/cgroup", "0::/../../system.slice/x\n"), ("sys/fs/cgroup/memory.max", "1073741824")];
        check(&files, GIB, Some(GIB));
    }

    #[test]
    fn the_first_version_of_cgroups_is_understood() {
        let files = [
            ("proc/self/cgroup", "5:cpu,cpuacct:/x\n4:memory:/docker/one\n"),
            ("sys/fs/cgroup/memory/docker/one/memory.limit_in_bytes", "3221225472\n"),
            ("sys/fs/cgroup/memory/docker/one/memory.usage_in_bytes", "1073741824\n"),
            ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n"),
        ];
        check(&files, 2 * GIB, Some(3 * GIB));
    }

    #[test]
    fn something_is_left_for_the_others() {
        let memory = |available_bytes| Memory {
            total_bytes: 0,
            available_bytes,
            cgroup_limit_bytes: None,
            has_huge_pages: true,
        };
        assert_eq!(memory(10 * GIB).worker_limit_bytes(), 9 * GIB);
        assert_eq!(memory(GIB).worker_limit_bytes(), GIB - (256 << 20));
        assert_eq!(memory(256 << 20).worker_limit_bytes(), 128 << 20);
    }
}
