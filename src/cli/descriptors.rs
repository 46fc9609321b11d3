//! File descriptors: as many as this process may have, and no more connections and requests than they are enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::LimitConfig;

/// What is neither an agent's connection nor a request's to the upstream: the control port's, files, and what the runtime itself has.
const OTHERS: u64 = 128;

/// Raises the soft limit, which is kept low for programs that could not do with more, to the hard one, and lowers `limits` to what there
/// is: where descriptors run out no port can accept, probes are not answered, and the upstream is not reached.
pub(super) fn suffice(limits: &mut LimitConfig) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, "the limit of open files stays where it is");
    }
    let Some(descriptors) = getrlimit(Resource::Nofile).current else { return };
    let wanted = (limits.max_connections, limits.max_requests);
    let (connections, requests) = most(descriptors, wanted);
    if (connections, requests) != wanted {
        tracing::warn!(
            descriptors,
            connections,
            requests,
            "too few files may be open for what is configured; see ulimit -n"
        );
    }
    (limits.max_connections, limits.max_requests) = (connections, requests);
}

/// How many connections and requests so many descriptors are enough for: a request has one to the upstream. Requests leave half of
/// them to connections, which get what is left.
fn most(descriptors: u64, (connections, requests): (usize, usize)) -> (usize, usize) {
    let there = usize::try_from(descriptors.saturating_sub(OTHERS)).unwrap_or(usize::MAX);
    let requests = requests.min((there / 2).max(1));
    (connections.min((there - requests.min(there)).max(1)), requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_always_room_for_both_and_for_others() {
        let usual = (8192, 4096);
        assert_eq!(most(1 << 20, usual), usual);
        assert_eq!(most(8192 + 4096 + OTHERS, usual), usual);
        assert_eq!(most(10_000, usual), (5776, 4096));
        assert_eq!(most(1024, usual), (448, 448));
        assert_eq!([most(0, usual), most(130, usual)], [(1, 1); 2]);
    }
}
