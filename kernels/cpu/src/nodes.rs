//! Memory nodes (NUMA): which processors are near to which memory, and threads that stay there.
//!
//! A page lies in the memory of the thread that touches it first. The same thread of a pool packs a panel of weights and multiplies with it,
//! so where a machine has several nodes, each thread of a pool stays in one. Where it has one, nobody is kept anywhere.

/// A node that has processors for this process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Node {
    /// The system's number of it.
    pub number: usize,
    /// Those that this thread may run on.
    pub processors: Vec<usize>,
}

impl Node {
    /// In which of them thread `thread` of so many stays: they are spread over all processors, neighbours beside each other. None: anywhere,
    /// since there is one node, or since nodes cannot have equal shares: several workers would then all crowd the same one.
    fn of(thread: usize, threads: usize, nodes: &[Self]) -> Option<&Self> {
        let all: usize = nodes.iter().map(|node| node.processors.len()).sum();
        let are_even = nodes.iter().all(|node| (threads * node.processors.len()).is_multiple_of(all));
        if nodes.len() < 2 || !are_even {
            return None;
        }
        let mut processor = (2 * thread + 1) * all / (2 * threads);
        nodes.iter().find(|node| {
            let is_there = processor < node.processors.len();
            processor = processor.saturating_sub(node.processors.len());
            is_there
        })
    }
}

pub(crate) use system::{Home, spread};
pub use system::{Stay, nodes};

#[cfg(target_os = "linux")]
mod system {
    use std::cell::Cell;
    use std::ffi::{c_long, c_ulong};
    use std::marker::PhantomData;
    use std::path::Path;

    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

    use super::Node;
    use crate::apart;

    /// The nodes with processors on which this thread may run.
    pub fn nodes() -> Vec<Node> {
        let may_run = sched_getaffinity(None).ok();
        let is_ours =
            |&processor: &usize| processor < CpuSet::MAX_CPU && may_run.is_none_or(|set| set.is_set(processor));
        nodes_in(Path::new("/sys/devices/system/node"), is_ours)
    }

    pub(super) fn nodes_in(folder: &Path, is_ours: impl Fn(&usize) -> bool) -> Vec<Node> {
        let list = |path: &str| list(&std::fs::read_to_string(folder.join(path)).unwrap_or_default());
        let node = |number| {
            let processors = list(&format!("node{number}/cpulist")).into_iter().filter(&is_ours).collect();
            Node { number, processors }
        };
        list("online").into_iter().map(node).filter(|node| !node.processors.is_empty()).collect()
    }

    /// "0-2,5": 0, 1, 2, 5. What is no number is left out.
    fn list(text: &str) -> Vec<usize> {
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(first.parse::<usize>().ok()?..=last.parse::<usize>().ok()?)
        };
        text.trim().split(',').filter_map(range).flatten().collect()
    }

    thread_local! {
        /// Whether this thread stays in a node.
        static STAYS: Cell<bool> = const { Cell::new(false) };
    }

    /// The processors of the node in which a thread of a pool stays.
    pub(crate) struct Home(CpuSet);

    impl Home {
        /// Of thread `thread` of so many. None: anywhere.
        pub(crate) fn of(thread: usize, threads: usize, nodes: &[Node]) -> Option<Self> {
            let node = Node::of(thread, threads, nodes)?;
            let mut processors = CpuSet::new();
            node.processors.iter().for_each(|&processor| processors.set(processor));
            Some(Self(processors))
        }

        /// This thread runs nowhere else until the result goes. Nothing, if it stays already.
        pub(crate) fn stay(&self) -> Option<Stay> {
            if STAYS.get() {
                return None;
            }
            let before = sched_getaffinity(None).ok()?;
            sched_setaffinity(None, &self.0).ok()?;
            STAYS.set(true);
            Some(Stay { before, of_this_thread: PhantomData })
        }
    }

    /// A thread stays in a node until this goes; then it may run where it could before.
    #[must_use]
    pub struct Stay {
        before: CpuSet,
        of_this_thread: PhantomData<*const ()>,
    }

    impl Drop for Stay {
        fn drop(&mut self) {
            STAYS.set(false);
            apart::allow(apart::this_thread(), self.before);
        }
    }

    /// Pages of this memory that are not there yet come from all nodes in turn, if there are several: threads of all nodes will read it.
    pub(crate) fn spread(start: *mut u8, len: usize, nodes: &[Node]) {
        const IS_KNOWN: bool = cfg!(any(target_arch = "x86_64", target_arch = "aarch64", target_arch = "riscv64"));
        const INTERLEAVE: c_long = 3;
        const BITS: usize = c_ulong::BITS as usize;
        let Some(last) = nodes.iter().map(|node| node.number).max().filter(|_| IS_KNOWN && nodes.len() > 1) else {
            return;
        };
        let mut mask: Vec<c_ulong> = vec![0; last / BITS + 1];
        nodes.iter().for_each(|node| mask[node.number / BITS] |= 1 << (node.number % BITS));
        let bits = mask.len() * BITS + 1; // the system takes one less
        // A refusal (Docker's usual filter of calls) costs speed and nothing else.
        // SAFETY: the call says where pages come from, and changes nothing in them; it reads `mask`, which is `bits` - 1 long.
        let _ = unsafe { syscall(MBIND, start, len, INTERLEAVE, mask.as_ptr(), bits, 0 as c_long) };
    }

    const MBIND: c_long = if cfg!(target_arch = "x86_64") { 237 } else { 235 };

    unsafe extern "C" {
        pub(super) fn syscall(number: c_long, ...) -> c_long;
    }
}

#[cfg(not(target_os = "linux"))]
mod system {
    use super::Node;

    /// Unknown, so nobody is kept anywhere.
    pub fn nodes() -> Vec<Node> {
        Vec::new()
    }

    pub(crate) struct Home;

    impl Home {
        pub(crate) fn of(thread: usize, threads: usize, nodes: &[Node]) -> Option<Self> {
            Node::of(thread, threads, nodes).map(|_| Self)
        }

        pub(crate) fn stay(&self) -> Option<Stay> {
            None
        }
    }

    /// No thread stays in a node here.
    pub struct Stay(());

    pub(crate) fn spread(_: *mut u8, _: usize, _: &[Node]) {}
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::ffi::c_long;
    use std::path::Path;

    use rustix::thread::sched_getaffinity;

    use super::system::{nodes_in, syscall};
    use super::{Home, Node, nodes, spread};
    use crate::{Arena, Bf16, Buffer, Cpu, Isa, Matrix, PackedWeight};

    fn node(number: usize, processors: &[usize]) -> Node {
        Node { number, processors: processors.to_vec() }
    }

    #[test]
    fn nodes_are_those_with_processors_of_ours() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        std::fs::write(folder.path().join("online"), "0-1,3-4\n").expect("ours");
        for (node, processors) in [(0, "0-2,8\n"), (1, "3-5\n"), (3, "\n")] {
            let node = folder.path().join(format!("node{node}"));
            std::fs::create_dir(&node).expect("ours");
            std::fs::write(node.join("cpulist"), processors).expect("ours");
        }
        assert_eq!(nodes_in(folder.path(), |_| true), [node(0, &[0, 1, 2, 8]), node(1, &[3, 4, 5])]);
        assert_eq!(nodes_in(folder.path(), |&processor| processor >= 5), [node(0, &[8]), node(1, &[5])]);
        assert_eq!(nodes_in(folder.path(), |&processor| processor < 3), [node(0, &[0, 1, 2])]);
        assert!(nodes_in(Path::new("/nowhere"), |_| true).is_empty());
    }

    #[test]
    fn this_machine_has_all_its_processors_in_nodes() {
        let nodes = nodes();
        if !nodes.is_empty() {
            let processors = nodes.iter().map(|node| node.processors.len()).sum::<usize>();
            assert!(processors >= std::thread::available_parallelism().map_or(1, usize::from));
        }
    }

    #[test]
    fn threads_are_spread_over_all_nodes_and_neighbours_share_one() {
        let nodes = [node(0, &[0, 1, 2, 8]), node(1, &[3, 4]), node(5, &[6, 7])];
        let of = |threads| -> Vec<usize> {
            let number = |thread| Node::of(thread, threads, &nodes).expect("there are several").number;
            (0..threads).map(number).collect()
        };
        assert_eq!(of(8), [0, 0, 0, 0, 1, 1, 5, 5]);
        assert_eq!(of(4), [0, 0, 1, 5]);
        assert_eq!(of(16).iter().filter(|&&number| number == 0).count(), 8);
        assert_eq!([1, 2, 5, 6].map(|threads| Node::of(0, threads, &nodes)), [None; 4], "2 of 8 processors are 1 of 4");
        assert_eq!(Node::of(1, 8, &nodes[..1]), None);
        assert_eq!(Node::of(1, 8, &[]), None);
    }

    #[test]
    fn a_thread_stays_until_it_need_no_longer() {
        let machine = sched_getaffinity(None).expect("said to everybody");
        let all: Vec<_> = nodes().into_iter().flat_map(|node| node.processors).collect();
        let (Some(&first), Some(&last)) = (all.first(), all.last()) else { return }; // a system without nodes
        let nodes = [node(0, &[first]), node(1, &[last])];
        let homes = [0, 1].map(|thread| Home::of(thread, 2, &nodes).expect("there are two"));
        let processors = || sched_getaffinity(None).expect("said to everybody");
        for (home, processor) in homes.iter().zip([first, last]) {
            let stay = home.stay().expect("it does not stay yet");
            assert!(processors().count() == 1 && processors().is_set(processor));
            assert!(homes.iter().all(|other| other.stay().is_none()), "it stays already");
            assert!(processors().is_set(processor));
            drop(stay);
            assert_eq!(processors(), machine);
        }
    }

    /// The node of the page that a byte lies in. None: this process may not know (Docker's usual filter of calls).
    fn node_of(byte: *const u8) -> Option<usize> {
        const MOVE_PAGES: c_long = if cfg!(target_arch = "x86_64") { 279 } else { 239 };
        let (nowhere, none): (*const i32, c_long) = (std::ptr::null(), 0);
        let mut node = -1;
        // SAFETY: without nodes to move it to, the call only says where one page of this process is.
        let done = unsafe { syscall(MOVE_PAGES, none, 1 as c_long, &raw const byte, nowhere, &raw mut node, none) };
        let is_forbidden = std::io::Error::last_os_error().kind() == std::io::ErrorKind::PermissionDenied;
        assert!(done == 0 || is_forbidden);
        (done == 0).then(|| usize::try_from(node).expect("the page is there"))
    }

    /// Asserts that each thread's part of these bytes, but for pages that it shares with a neighbour's, lies in its node.
    fn assert_near(bytes: &[u8], threads: usize, nodes: &[Node]) {
        const HUGE_PAGE: usize = 2 << 20;
        for thread in 0..threads {
            let part = crate::split::part(bytes.len(), threads, thread);
            assert!(part.len() > 2 * HUGE_PAGE, "there is something to look at");
            let expected = Node::of(thread, threads, nodes).unwrap_or(&nodes[0]).number;
            for place in (part.start + HUGE_PAGE..part.end - HUGE_PAGE).step_by(64 << 10) {
                let found = node_of(&raw const bytes[place]).unwrap_or(expected);
                assert_eq!(found, expected, "thread {thread} of {threads}, {place}");
            }
        }
    }

    #[test]
    fn weights_lie_near_to_who_reads_them_and_keys_in_all_nodes() {
        let nodes = nodes();
        if nodes.is_empty() {
            return; // a system without nodes
        }
        let threads = nodes.iter().map(|node| node.processors.len()).sum::<usize>().max(2);
        let mut cpu = Cpu::new(Isa::best(), threads);
        let depth = 2048;
        let values: Vec<_> = (0..threads * 1536 * depth).map(|at| Bf16::from_f32((at % 251) as f32 - 125.0)).collect();
        let packed = PackedWeight::<Bf16>::pack(&mut cpu, &Matrix::of(&values, depth));
        assert_near(packed.data(), threads, &nodes);

        let mut kept = cpu.memory_for_weights(threads * (5 << 20));
        kept.as_mut_slice::<u8>().fill(1); // whoever does
        assert_near(kept.as_slice(), threads, &nodes);

        let arena = Arena::new(nodes.len() * (16 << 20), 1, threads);
        let (start, len) = arena.span();
        let has = |node: &Node| {
            let is_there = |at| node_of((start + at) as *const u8).is_none_or(|found| found == node.number);
            (0..len).step_by(1 << 20).any(is_there)
        };
        assert!(nodes.iter().all(has));
    }

    #[test]
    fn memory_that_is_spread_can_be_written() {
        let mut buffer = Buffer::zeroed(5 << 20);
        let bytes = buffer.as_mut_slice::<u8>();
        // Whether the system takes nodes that are not there or refuses, nothing that is written changes.
        for nodes in [nodes(), vec![node(0, &[0]), node(900, &[1])]] {
            spread(bytes.as_mut_ptr(), bytes.len(), &nodes);
            assert!(bytes.iter().all(|&byte| byte == 0));
        }
        bytes.fill(7);
        assert!(bytes.iter().all(|&byte| byte == 7));
    }
}
