// SPDX-License-Identifier: Apache-2.0
//! The routes that only the control port has.

use http::Method;

use crate::engine::sglang::routes::Route;
use crate::json::percent_decode;
use crate::serve::request_info::Access;

/// The routes of probes and metrics.
pub(crate) const PROBES: [(&str, Access); 3] =
    [("/livez", Access::Open), ("/readyz", Access::Open), ("/metrics", Access::Metrics)];

/// A route below `/v1/`.
#[derive(Debug)]
pub(crate) struct ControlRoute {
    /// Its path, with a name in braces for each variable part.
    pub pattern: &'static str,
    /// Its methods. GET includes HEAD.
    pub methods: &'static [Method],
    /// The names that the query of a GET may have. Other methods have no query.
    pub query: &'static [&'static str],
}

/// The route of the live entropies of a request.
const ENTROPY: ControlRoute =
    ControlRoute { pattern: "/v1/requests/{rid}/entropy", methods: &[Method::GET], query: &["since", "index"] };

/// The routes below `/v1/`.
pub(crate) static ROUTES: [ControlRoute; 21] = [
    ENTROPY,
    ControlRoute {
        pattern: "/v1/sessions",
        methods: &[Method::GET],
        query: &["after", "limit", "order", "search", "sort", "where", "same_prompt"],
    },
    ControlRoute {
        pattern: "/v1/search",
        methods: &[Method::GET],
        query: &["q", "regex", "case", "where", "limit", "after"],
    },
    ControlRoute { pattern: "/v1/groups", methods: &[Method::GET], query: &["by", "where", "sort", "limit", "after"] },
    ControlRoute { pattern: "/v1/high-entropy-tokens", methods: &[Method::GET], query: &["where", "limit", "after"] },
    ControlRoute { pattern: "/v1/steps", methods: &[Method::GET], query: &["by", "where", "scores", "limit"] },
    ControlRoute { pattern: "/v1/sessions/{id}", methods: &[Method::GET, Method::DELETE], query: &["version"] },
    ControlRoute {
        pattern: "/v1/sessions/{id}/trajectories",
        methods: &[Method::GET],
        query: &["version", "classes", "scores"],
    },
    ControlRoute {
        pattern: "/v1/sessions/{id}/paths/{leaf}",
        methods: &[Method::GET],
        query: &["version", "classes", "from", "limit"],
    },
    ControlRoute { pattern: "/v1/sessions/{id}/images/{sha256}", methods: &[Method::GET], query: &[] },
    ControlRoute { pattern: "/v1/sessions/{id}/freeze", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/sessions/{id}/reward", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/sessions/{id}/tags", methods: &[Method::PUT], query: &[] },
    ControlRoute {
        pattern: "/v1/trajectories",
        methods: &[Method::GET],
        query: &["since", "limit", "classes", "partitions"],
    },
    ControlRoute { pattern: "/v1/requests", methods: &[Method::GET], query: &["session", "limit", "recent"] },
    ControlRoute { pattern: "/v1/samples", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/teacher-scores", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/advantages", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/entropy", methods: &[Method::POST], query: &[] },
    ControlRoute { pattern: "/v1/data-port", methods: &[Method::GET], query: &[] },
    ControlRoute { pattern: "/v1/policy", methods: &[Method::GET, Method::POST], query: &[] },
];

/// Finds the route of a path below `/v1/`.
pub(crate) fn below_v1(path: &str) -> Option<&'static ControlRoute> {
    ROUTES.iter().find(|route| route.matches(path))
}

/// The route below `/v1/` with which a request was classified.
pub(crate) fn of(route: Route) -> Option<&'static ControlRoute> {
    ROUTES.iter().find(|known| known.pattern == route.endpoint)
}

impl ControlRoute {
    fn matches(&self, path: &str) -> bool {
        if self.pattern == ENTROPY.pattern {
            return rid_of_entropy(path).is_some();
        }
        let mut parts = path.split('/');
        let same = self.pattern.split('/').all(|name| {
            let part = parts.next();
            part.is_some_and(|part| name.starts_with('{') || percent_decode(part) == name)
        });
        same && parts.next().is_none()
    }
}

/// Whether the control port itself serves this path.
pub(crate) fn is_route(path: &str) -> bool {
    let path = path.trim_end_matches('/');
    let is_probe = PROBES.iter().any(|(probe, _)| *probe == path);
    is_probe || below_v1(path).is_some()
}

/// The request id in a path of live entropies. The id may contain slashes.
pub(crate) fn rid_of_entropy(path: &str) -> Option<&str> {
    path.strip_prefix("/v1/requests/")?.strip_suffix("/entropy")
}
