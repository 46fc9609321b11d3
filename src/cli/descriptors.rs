//! File descriptors: as many as this process may have, and no more connections and requests than they are enough for.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{LimitConfig, control_connections};

/// What is neither a connection of a port nor a request's to the upstream: files, and what the runtime itself has.
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
/// them to connections, which get what is left, and of which the control port has its part.
fn most(descriptors: u64, (connections, requests): (usize, usize)) -> (usize, usize) {
    let there = usize::try_from(descriptors.saturating_sub(OTHERS)).unwrap_or(usize::MAX);
    let requests = requests.min((there / 2).max(1));
    let left = there - requests.min(there);
    let agents = (left * 8 / 9).min(left.saturating_sub(control_connections(0)));
    (connections.min(agents.max(1)), requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_requests_fit_the_descriptor_limit() {
        let usual = (8192, 4096);
        assert_eq!(most(1 << 20, usual), usual);
        assert_eq!(most(8192 + 1024 + 4096 + OTHERS, usual), usual);
        assert_eq!(most(1024, usual), (398, 448));
        assert_eq!([most(0, usual), most(130, usual)], [(1, 1); 2]);
        for descriptors in 200..20_000 {
            let (agents, requests) = most(descriptors, usual);
            let taken = agents + control_connections(agents) + requests;
            assert!(taken as u64 + OTHERS <= descriptors, "{descriptors}: {agents}, {requests}");
        }
    }
}
