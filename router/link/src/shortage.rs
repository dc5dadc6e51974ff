//! Workers that the kernel kills for want of memory: how that is seen, and how much less the next one takes.
//!
//! The kernel counts such kills and names nobody. So a worker that ended by a SIGKILL which was not ours, while the count of
//! our cgroup grew (of the machine, where no cgroup counts), is taken for one of them. If it was a neighbour after all, the
//! next worker has a smaller prefix cache than it could have, and nothing else.

use std::path::{Path, PathBuf};

use crate::{Budget, error::Trouble};

/// What is left of the KV arena after each such kill, in quarters.
const QUARTERS_LEFT: u64 = 3;

/// The kernel's count, as it was when a worker started.
pub(crate) struct Kills {
    counter: Option<PathBuf>,
    before: u64,
}

impl Kills {
    /// Begins to watch.
    pub(crate) fn so_far() -> Self {
        Self::below(Path::new("/"))
    }

    fn below(root: &Path) -> Self {
        let counter = counters(root).into_iter().find(|counter| count(counter).is_some());
        let before = counter.as_deref().and_then(count).unwrap_or(0);
        Self { counter, before }
    }

    /// Whether it was for want of memory that the worker has ended.
    pub(crate) fn explain(&self, trouble: &Trouble) -> bool {
        let was_killed = matches!(trouble, Trouble::Ended(ending) if ending.was_killed);
        was_killed && self.counter.as_deref().and_then(count).is_some_and(|now| now > self.before)
    }
}

/// How large the KV arena of the next worker is to be, after one with this budget was too large. None: one request of the
/// longest context needs all of it.
pub(crate) fn smaller_kv(budget: &Budget) -> Option<u64> {
    let longest = u64::from(budget.blocks_per_request) * budget.kv_bytes_per_block;
    let smaller = (budget.kv_bytes / 4 * QUARTERS_LEFT).max(longest);
    (smaller < budget.kv_bytes).then_some(smaller)
}

/// Where the kernel counts, the nearest first.
fn counters(root: &Path) -> Vec<PathBuf> {
    let text = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
    let mut all = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(id), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
        let (mount, file) = match controllers {
            "" if id == "0" => ("sys/fs/cgroup", "memory.events"),
            _ if controllers.split(',').any(|controller| controller == "memory") => {
                ("sys/fs/cgroup/memory", "memory.oom_control")
            }
            _ => continue,
        };
        // Inside a container the path may be the host's; the mount's root is the container's own group then.
        let mount = root.join(mount);
        all.extend([mount.join(path.trim_start_matches('/')).join(file), mount.join(file)]);
    }
    all.push(root.join("proc/vmstat"));
    all
}

/// The line `oom_kill N`, which all of them have.
fn count(counter: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(counter).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.trim().parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Ending;

    fn ended(was_killed: bool) -> Trouble {
        Trouble::Ended(Ending { how: String::new(), was_killed, last_lines: Vec::new() })
    }

    fn write(root: &Path, path: &str, text: &str) {
        let path = root.join(path);
        std::fs::create_dir_all(path.parent().expect("below the root")).expect("made");
        std::fs::write(path, text).expect("written");
    }

    /// Counts before and after in `counter`; whether a worker's end by SIGKILL, and by itself, is explained by it.
    fn explained(files: &[(&str, &str)], counter: &str, after: &str) -> (bool, bool) {
        let root = tempfile::tempdir().expect("a folder");
        files.iter().for_each(|(path, text)| write(root.path(), path, text));
        let kills = Kills::below(root.path());
        write(root.path(), counter, after);
        (kills.explain(&ended(true)), kills.explain(&ended(false)))
    }

    #[test]
    fn a_killed_worker_is_explained_by_the_count_of_its_own_cgroup_if_it_has_one() {
        let v2 =
            [("proc/self/cgroup", "0::/pods/one\n"), ("sys/fs/cgroup/pods/one/memory.events", "oom 4\noom_kill 2\n")];
        assert_eq!(explained(&v2, "sys/fs/cgroup/pods/one/memory.events", "oom 4\noom_kill 3\n"), (true, false));
        assert_eq!(explained(&v2, "sys/fs/cgroup/pods/one/memory.events", "oom 5\noom_kill 2\n"), (false, false));
        assert_eq!(explained(&v2, "proc/vmstat", "oom_kill 9\n"), (false, false), "a neighbour's");
        let v1 = [
            ("proc/self/cgroup", "4:memory:/docker/of-the-host\n0::/\n"),
            ("sys/fs/cgroup/memory/memory.oom_control", "under_oom 0\noom_kill 0\n"),
        ];
        assert_eq!(explained(&v1, "sys/fs/cgroup/memory/memory.oom_control", "oom_kill 1\n"), (true, false));
    }

    #[test]
    fn without_a_cgroup_the_machines_count_decides_and_without_any_nothing_is_explained() {
        let bare = [("proc/self/cgroup", "0::/\n"), ("proc/vmstat", "nr_free_pages 7\noom_kill 5\n")];
        assert_eq!(explained(&bare, "proc/vmstat", "nr_free_pages 7\noom_kill 6\n"), (true, false));
        assert_eq!(explained(&[], "elsewhere", ""), (false, false));
    }

    #[test]
    fn each_time_a_quarter_less_down_to_one_request_of_the_longest_context() {
        let budget = |kv_bytes| Budget {
            weights_bytes: 0,
            activation_bytes: 0,
            kv_bytes,
            kv_bytes_per_block: 100,
            blocks: 0,
            block_size: 32,
            max_model_len: 65,
            memory_limit_bytes: 0,
            blocks_per_request: 3,
        };
        assert_eq!(smaller_kv(&budget(1_600)), Some(1_200));
        assert_eq!(smaller_kv(&budget(380)), Some(300));
        assert_eq!(smaller_kv(&budget(300)), None);
    }
}
