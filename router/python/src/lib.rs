//! The router as a Python extension: the `pelton` command of the wheel, and the engine behind `pelton.LLM`.
//!
//! Thin: it converts and calls. Bodies and answers are JSON in the form of the HTTP API, so that a field means the same
//! in both. Every call that waits lets other Python threads run, and returns after its timeout so that signals are seen.
#![forbid(unsafe_code)]

use std::{ffi::OsString, path::PathBuf, process::ExitCode, time::Duration};

use pelton_server::{
    config::{Surroundings, Wheel},
    offline::{Kind, Loading, Offline, OfflineError},
};
use pyo3::{
    exceptions::{PyRuntimeError, PyValueError},
    prelude::*,
};

/// Runs the command line; returns the exit code.
#[pyfunction]
fn main(py: Python<'_>, argv: Vec<OsString>, python: PathBuf, demo_dir: PathBuf) -> u8 {
    let code = py.detach(|| pelton_server::run_from_wheel(argv, Wheel { python, demo_dir }));
    match code {
        code if code == ExitCode::SUCCESS => 0,
        code if code == ExitCode::from(2) => 2,
        _ => 1,
    }
}

/// An engine in this process, with its worker beside it.
#[pyclass(frozen, module = "pelton._pelton")]
struct Router {
    offline: Offline,
}

#[pymethods]
impl Router {
    /// Starts loading and returns. Settings are those of `pelton serve`, by field name.
    #[new]
    fn new(py: Python<'_>, settings: Vec<(String, String)>, python: PathBuf, demo_dir: PathBuf) -> PyResult<Self> {
        let offline = py.detach(|| {
            let around = Surroundings::new(std::env::vars_os(), Some(Wheel { python, demo_dir }));
            Offline::start(&settings, &around.map_err(|error| OfflineError::Invalid(error.to_string()))?)
        });
        Ok(Self { offline: offline.map_err(raised)? })
    }

    /// Waits for the model: None once it is loaded, else stage, bytes done and bytes in all after the timeout.
    fn wait_loaded(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<(String, u64, u64)>> {
        let loading = py.detach(|| self.offline.wait_loaded(Duration::from_secs_f64(timeout_s))).map_err(raised)?;
        Ok(loading.map(|Loading { stage, done, total }| (stage, done, total)))
    }

    /// Starts one completion; returns its ticket.
    fn complete(&self, body: &str) -> u64 {
        self.offline.submit(Kind::Completion, body.as_bytes().to_vec())
    }

    /// Starts one chat; returns its ticket.
    fn chat(&self, body: &str) -> u64 {
        self.offline.submit(Kind::Chat, body.as_bytes().to_vec())
    }

    /// The next answer that is complete, as ticket and JSON; None after the timeout.
    fn next(&self, py: Python<'_>, timeout_s: f64) -> PyResult<Option<(u64, String)>> {
        let Some((ticket, answer)) = py.detach(|| self.offline.next(Duration::from_secs_f64(timeout_s))) else {
            return Ok(None);
        };
        Ok(Some((ticket, answer.map_err(raised)?)))
    }

    /// Aborts a request; its answer will not come.
    fn cancel(&self, ticket: u64) {
        self.offline.cancel(ticket);
    }

    /// Ends the engine and its worker. Calls after it raise.
    fn close(&self, py: Python<'_>) {
        py.detach(|| self.offline.close());
    }
}

fn raised(error: OfflineError) -> PyErr {
    match error {
        OfflineError::Invalid(message) => PyValueError::new_err(message),
        OfflineError::Failed(message) => PyRuntimeError::new_err(message),
    }
}

#[pymodule]
fn _pelton(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add_function(wrap_pyfunction!(main, module)?)?;
    module.add_class::<Router>()
}
