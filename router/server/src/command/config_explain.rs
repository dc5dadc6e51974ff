//! `pelton config explain` and `pelton config docs`: what is set, by whom, and the page that lists all settings.

use std::ffi::OsString;
use std::process::ExitCode;

use super::{Line, Trouble, print, resolve, tree};
use crate::config::{self, Surroundings, server_settings};

const USAGE: &str = "\
pelton config explain [MODEL] [FLAGS]: every setting, its value, and where it came from, as `pelton serve` with the same flags would
have it. Secrets are masked.
";

/// Shows the settings that `pelton serve` would run with; refuses what it would refuse.
pub(super) fn explain(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let settings = server_settings();
    if let Line::Run(values) = resolve(USAGE, args, Some("model"), &settings, around)? {
        tree(&values)?;
        print(config::explain(&settings, &values))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Prints docs/flags.md.
pub(super) fn docs(args: &[OsString]) -> Result<ExitCode, Trouble> {
    if !args.is_empty() {
        return Err(Trouble::Usage("`pelton config docs` takes no flags".into()));
    }
    print(config::flags_page(&server_settings()))?;
    Ok(ExitCode::SUCCESS)
}
