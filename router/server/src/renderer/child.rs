//! The process that runs one template and ends.

use std::io::{self, Read, Write};
use std::process::ExitCode;

use pelton_text::OwnTemplate;
use rustix::process::{Resource, Rlimit, Signal};

use super::{Answer, MEMORY_MAX};

/// Reads a job, writes its answer. Whoever runs it by hand gets what it would get.
pub(crate) fn run() -> io::Result<ExitCode> {
    bound_itself()?;
    let mut job = Vec::new();
    io::stdin().lock().read_to_end(&mut job)?;
    let job: OwnTemplate = serde_json::from_slice(&job)?;
    let answer = match job.render() {
        Ok(text) => Answer::Text(text),
        Err(refused) => Answer::Refused(refused),
    };
    let mut out = io::stdout().lock();
    out.write_all(&serde_json::to_vec(&answer)?)?;
    out.flush()?;
    Ok(ExitCode::SUCCESS)
}

/// Takes from this process what no template needs, before it has seen one.
fn bound_itself() -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::KILL))?;
    let most = |bytes| Rlimit { current: Some(bytes), maximum: Some(bytes) };
    rustix::process::setrlimit(Resource::Data, most(MEMORY_MAX))?;
    rustix::process::setrlimit(Resource::Fsize, most(0))?;
    rustix::process::setrlimit(Resource::Core, most(0))?;
    // Those who read streams come first.
    rustix::process::nice(10)?;
    Ok(())
}
