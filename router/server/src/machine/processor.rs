//! The processor: its name, its cores, and the instruction sets that kernels choose by.

use std::collections::BTreeSet;

/// A processor, as it describes itself.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Processor {
    /// "AMD EPYC ..."; what kind it is where it has no name.
    pub name: String,
    /// Cores that this process may use, within affinity and the cgroup's share.
    pub usable: usize,
    /// Logical processors of the machine.
    pub logical: usize,
    /// Cores of the machine, not counting hyper-threads.
    pub physical: usize,
    /// Those of `KNOWN` that it has.
    pub instruction_sets: Vec<&'static str>,
}

/// The kernel's name for each instruction set that a kernel of ours may use, and ours.
const KNOWN: [(&str, &str); 8] = [
    ("avx2", "AVX2"),
    ("fma", "FMA"),
    ("avx512f", "AVX-512"),
    ("avx512_bf16", "AVX-512 BF16"),
    ("avx512_vnni", "AVX-512 VNNI"),
    ("amx_tile", "AMX"),
    ("amx_bf16", "AMX BF16"),
    ("amx_int8", "AMX INT8"),
];

/// This machine's processor.
pub fn processor() -> Processor {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let usable = std::thread::available_parallelism().map_or(1, usize::from);
    describe(&text, usable)
}

fn describe(cpuinfo: &str, usable: usize) -> Processor {
    let values = |name: &'static str| {
        cpuinfo.lines().filter_map(move |line| {
            let (key, value) = line.split_once(':')?;
            (key.trim() == name).then(|| value.trim())
        })
    };
    let logical = values("processor").count().max(usable);
    // A core is a pair of package and core id; machines that tell neither count each logical processor.
    let cores: BTreeSet<_> = values("physical id").zip(values("core id")).collect();
    let flags: BTreeSet<&str> = values("flags").next().unwrap_or_default().split_whitespace().collect();
    let has = |(kernel, _): &&(&str, &str)| flags.contains(kernel);
    Processor {
        name: values("model name").next().unwrap_or(std::env::consts::ARCH).to_owned(),
        usable,
        logical,
        physical: if cores.is_empty() { logical } else { cores.len() },
        instruction_sets: KNOWN.iter().filter(has).map(|(_, ours)| *ours).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hyper_threads_are_no_cores_and_flags_become_names() {
        let one = |logical: u32, core: u32| {
            format!(
                "processor\t: {logical}\nmodel name\t: Some CPU\nphysical id\t: 0\ncore id\t\t: {core}\nflags\t\t: fpu avx2 fma avx512f avx512_bf16\n\n"
            )
        };
        let text = [one(0, 0), one(1, 0), one(2, 1), one(3, 1)].concat();
        let seen = describe(&text, 3);
        assert_eq!((seen.name.as_str(), seen.usable, seen.logical, seen.physical), ("Some CPU", 3, 4, 2));
        assert_eq!(seen.instruction_sets, ["AVX2", "FMA", "AVX-512", "AVX-512 BF16"]);
    }

    #[test]
    fn a_processor_that_says_little_is_still_described() {
        let seen = describe("processor\t: 0\nprocessor\t: 1\nFeatures\t: fp asimd\n", 2);
        assert_eq!((seen.logical, seen.physical, seen.instruction_sets.len()), (2, 2, 0));
    }
}
