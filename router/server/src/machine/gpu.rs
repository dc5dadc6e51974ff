//! GPUs, as their driver describes them.

use std::path::Path;
use std::process::{Command, Stdio};

/// One GPU.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpu {
    /// "NVIDIA H200".
    pub name: String,
    /// Total and free memory, if the driver's tool could be asked.
    pub memory: Option<(u64, u64)>,
}

/// All NVIDIA GPUs: from `nvidia-smi`, else the driver's own list, which knows only their names.
pub fn gpus() -> Vec<Gpu> {
    ask_tool().unwrap_or_else(|| from_driver(Path::new("/proc/driver/nvidia/gpus")))
}

fn ask_tool() -> Option<Vec<Gpu>> {
    let query = ["--query-gpu=name,memory.total,memory.free", "--format=csv,noheader,nounits"];
    let output = Command::new("nvidia-smi").args(query).stdin(Stdio::null()).stderr(Stdio::null()).output().ok()?;
    output.status.success().then(|| parse(&String::from_utf8_lossy(&output.stdout)))
}

/// Lines `NVIDIA H200, 143771, 143155`, memory in MiB.
fn parse(text: &str) -> Vec<Gpu> {
    let gpu = |line: &str| {
        let mut fields = line.rsplitn(3, ',').map(str::trim);
        let (free, total, name) = (fields.next()?, fields.next()?, fields.next()?);
        let bytes = |mib: &str| mib.parse::<u64>().ok().map(|mib| mib << 20);
        Some(Gpu { name: name.to_owned(), memory: bytes(total).zip(bytes(free)) })
    };
    text.lines().filter_map(gpu).collect()
}

fn from_driver(folder: &Path) -> Vec<Gpu> {
    let Ok(entries) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut names: Vec<String> = entries
        .filter_map(|entry| std::fs::read_to_string(entry.ok()?.path().join("information")).ok())
        .map(|text| text.lines().find_map(|line| line.strip_prefix("Model:")).unwrap_or("NVIDIA GPU").trim().to_owned())
        .collect();
    names.sort();
    names.into_iter().map(|name| Gpu { name, memory: None }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tools_lines_become_gpus() {
        let gpus = parse("NVIDIA H200, 143771, 143155\nOdd, Name, [N/A], [N/A]\n\n");
        assert_eq!(gpus[0], Gpu { name: "NVIDIA H200".into(), memory: Some((143_771 << 20, 143_155 << 20)) });
        assert_eq!(gpus[1], Gpu { name: "Odd, Name".into(), memory: None });
        assert_eq!(gpus.len(), 2);
    }

    #[test]
    fn the_drivers_list_is_enough_for_names() {
        let folder = tempfile::tempdir().expect("a folder");
        let one = folder.path().join("0000:01:00.0");
        std::fs::create_dir(&one).expect("made");
        std::fs::write(one.join("information"), "Model: \t\t NVIDIA H200\nIRQ: 1\n").expect("written");
        assert_eq!(from_driver(folder.path()), [Gpu { name: "NVIDIA H200".into(), memory: None }]);
        assert_eq!(from_driver(Path::new("/no/such")), []);
    }
}
