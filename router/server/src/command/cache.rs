//! `pelton cache list FOLDER` and `pelton cache purge FOLDER`: the folder that `--kv-disk` names.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::SystemTime;

use pelton_kv_store::Kept;

use super::{Line, Trouble, print, resolve};
use crate::config::{Settings as _, Surroundings, settings};
use crate::display;

const LIST: &str = "\
pelton cache list FOLDER: what a folder of `pelton serve --kv-disk FOLDER` holds, by model, also while a server uses it.
";
const PURGE: &str = "\
pelton cache purge FOLDER: removes every KV block from a folder of `pelton serve --kv-disk FOLDER`, and the key that their names were made
with. The server that uses it has to be stopped first. What others have put there stays.
";

settings! {
    /// Cache
    section Options ("cache", CommandLine) {
        /// The folder.
        folder: Option<PathBuf>;
    }
}

/// Shows.
pub(super) fn list(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let Some(folder) = folder("list", LIST, args, around)? else { return Ok(ExitCode::SUCCESS) };
    let kept = pelton_kv_store::list(&folder)
        .map_err(|error| Trouble::Failed(format!("{} cannot be read: {error}", folder.display())))?;
    print(table(&kept, SystemTime::now()))?;
    Ok(ExitCode::SUCCESS)
}

/// Empties.
pub(super) fn purge(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let Some(folder) = folder("purge", PURGE, args, around)? else { return Ok(ExitCode::SUCCESS) };
    let kept = pelton_kv_store::purge(&folder).map_err(|error| Trouble::Failed(error.to_string()))?;
    let (blocks, bytes) = total(&kept);
    print(format_args!("removed {blocks} blocks, {}\n", display::bytes(bytes)))?;
    Ok(ExitCode::SUCCESS)
}

fn folder(verb: &str, usage: &str, args: &[OsString], around: &Surroundings) -> Result<Option<PathBuf>, Trouble> {
    let settings: Vec<_> = Options::ALL.iter().collect();
    let Line::Run(values) = resolve(usage, args, Some("folder"), &settings, around)? else { return Ok(None) };
    let folder = Options::take(&values).folder;
    folder.map(Some).ok_or_else(|| Trouble::Usage(format!("say which folder: `pelton cache {verb} FOLDER`")))
}

fn table(kept: &[Kept], now: SystemTime) -> String {
    let mut page = String::new();
    for model in kept {
        let age = model.last_used.and_then(|used| now.duration_since(used).ok());
        let used = age.map_or("never used".to_owned(), |age| format!("last used {} min ago", age.as_secs() / 60));
        page += &format!("{} blocks, {}, {used}: {}\n", model.blocks, display::bytes(model.bytes), model.about);
    }
    let (blocks, bytes) = total(kept);
    page + &format!("{blocks} blocks in all, {}\n", display::bytes(bytes))
}

fn total(kept: &[Kept]) -> (u64, u64) {
    kept.iter().fold((0, 0), |(blocks, bytes), kept| (blocks + kept.blocks, bytes + kept.bytes))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn each_model_has_a_line_and_there_is_a_total() {
        let now = SystemTime::now();
        let kept = |blocks, last_used| Kept {
            name: "00".to_owned(),
            about: "cpu-avx2-float32-1, blocks of 32 tokens".to_owned(),
            blocks,
            bytes: blocks << 20,
            last_used,
        };
        let page = table(&[kept(3, Some(now - Duration::from_secs(125))), kept(0, None)], now);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0], "3 blocks, 3.00 MiB, last used 2 min ago: cpu-avx2-float32-1, blocks of 32 tokens");
        assert!(lines[1].starts_with("0 blocks, ") && lines[1].contains("never used"), "{page}");
        assert!(lines[2].starts_with("3 blocks in all, 3"), "{page}");
    }
}
