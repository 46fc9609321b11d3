// SPDX-License-Identifier: Apache-2.0
//! Fits the limits of connections and requests to the number of file descriptors that the process may open.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::config::{LimitConfig, control_connections};

/// Descriptors that are reserved for files and the runtime. The rest is for connections of clients and to the upstream.
const RESERVED_DESCRIPTORS: u64 = 128;

/// Raises the soft limit of open files to the hard limit, and lowers `limits` to the available descriptors. Without free descriptors no
/// port can accept connections, probes are not answered, and the upstream cannot be reached.
///
/// The system keeps the soft limit low for programs that cannot use more descriptors; tokentap can.
pub(super) fn fit_limits(limits: &mut LimitConfig) {
    let limit = getrlimit(Resource::Nofile);
    if limit.current != limit.maximum
        && let Err(error) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit })
    {
        tracing::warn!(%error, "the limit of open files stays where it is");
    }
    let Some(descriptors) = getrlimit(Resource::Nofile).current else { return };
    let wanted = (limits.max_connections, limits.max_requests);
    let (connections, requests) = affordable(descriptors, limits.max_connections, limits.max_requests);
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

/// Returns the number of connections to the data port and of requests that `descriptors` allow. A request uses one descriptor, for its
/// connection to the upstream. Requests get at most half of the descriptors, and the connections to both ports share the rest.
fn affordable(descriptors: u64, connections: usize, requests: usize) -> (usize, usize) {
    let available = usize::try_from(descriptors.saturating_sub(RESERVED_DESCRIPTORS)).unwrap_or(usize::MAX);
    let requests = requests.min((available / 2).max(1));
    let left = available - requests.min(available);
    let data = (left * 8 / 9).min(left.saturating_sub(control_connections(0)));
    (connections.min(data.max(1)), requests)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_and_requests_are_within_the_descriptor_limit() {
        let affordable = |descriptors| affordable(descriptors, 8192, 4096);
        let usual = (8192, 4096);
        assert_eq!(affordable(1 << 20), usual);
        assert_eq!(affordable(8192 + 1024 + 4096 + RESERVED_DESCRIPTORS), usual);
        assert_eq!(affordable(1024), (398, 448));
        assert_eq!([affordable(0), affordable(130)], [(1, 1); 2]);
        for descriptors in 200..20_000 {
            let (data, requests) = affordable(descriptors);
            let used = data + control_connections(data) + requests;
            assert!(used as u64 + RESERVED_DESCRIPTORS <= descriptors, "{descriptors}: {data}, {requests}");
        }
    }
}
