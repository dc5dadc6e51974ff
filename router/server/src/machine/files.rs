//! How many files this process may have open; each connection is one.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Raises the soft limit to the hard one: the soft one is low for the sake of programs that use `select`. Returns what holds
/// now; `None`: no limit.
pub fn raise_open_files() -> Option<u64> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    if current == maximum || setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_err() {
        return current;
    }
    maximum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let before = getrlimit(Resource::Nofile);
        let raised = raise_open_files();
        assert_eq!(raised, before.maximum);
        assert_eq!(getrlimit(Resource::Nofile).current, before.maximum);
        assert_eq!(raise_open_files(), raised);
    }
}
