//! `pelton worker ...`: becomes `python -m pelton.worker ...`. Its flags are the worker's own.

use std::ffi::OsString;
use std::os::unix::process::CommandExt as _;
use std::process::{Command, ExitCode};

use super::{NO_MODULES_OF_THIS_FOLDER, Trouble};
use crate::config::{Config, Surroundings};

/// Replaces this process; returns only if that fails.
pub(super) fn run(args: &[OsString], around: &Surroundings) -> Result<ExitCode, Trouble> {
    let python = Config::from_arguments(&[], around)?.worker.python;
    let error = Command::new(&python).args([NO_MODULES_OF_THIS_FOLDER, "-m", "pelton.worker"]).args(args).exec();
    Err(Trouble::Failed(format!(
        "cannot run `{} -m pelton.worker`: {error}; set PELTON_PYTHON to a Python that has the package `pelton`",
        python.display()
    )))
}
