//! Memory nodes (NUMA): which processors are near to which memory.

use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity};

/// The processors of each node that this process may run on; nodes that have none are left out.
pub fn nodes() -> Vec<Vec<usize>> {
    let may_run = sched_getaffinity(None).ok();
    let is_ours = |&processor: &usize| may_run.is_none_or(|set| processor < CpuSet::MAX_CPU && set.is_set(processor));
    nodes_in(Path::new("/sys/devices/system/node"), is_ours)
}

fn nodes_in(folder: &Path, is_ours: impl Fn(&usize) -> bool) -> Vec<Vec<usize>> {
    let list = |path: &str| list(&std::fs::read_to_string(folder.join(path)).unwrap_or_default());
    let processors = |node: usize| list(&format!("node{node}/cpulist")).into_iter().filter(&is_ours).collect();
    list("online").into_iter().map(processors).filter(|node: &Vec<usize>| !node.is_empty()).collect()
}

/// "0-2,5": 0, 1, 2, 5. What is no number is left out.
fn list(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_are_those_with_processors_of_ours() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("online"), "0-1,3-4\n").expect("ours");
        for (node, processors) in [(0, "0-2,8\n"), (1, "3-5\n"), (3, "\n")] {
            let node = folder.path().join(format!("node{node}"));
            std::fs::create_dir(&node).expect("ours");
            std::fs::write(node.join("cpulist"), processors).expect("ours");
        }
        assert_eq!(nodes_in(folder.path(), |_| true), [vec![0, 1, 2, 8], vec![3, 4, 5]]);
        assert_eq!(nodes_in(folder.path(), |&processor| processor >= 5), [vec![8], vec![5]]);
        assert_eq!(nodes_in(folder.path(), |&processor| processor < 3), [vec![0, 1, 2]]);
        assert!(nodes_in(Path::new("/nowhere"), |_| true).is_empty());
    }

    #[test]
    fn this_machine_has_all_its_processors_in_nodes() {
        let nodes = nodes();
        if !nodes.is_empty() {
            let processors = nodes.iter().map(Vec::len).sum::<usize>();
            assert!(processors >= std::thread::available_parallelism().map_or(1, usize::from));
        }
    }
}
