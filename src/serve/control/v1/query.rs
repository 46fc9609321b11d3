//! The query of a control route.

use http::Uri;

use super::Problem;
use crate::engine::routes;

/// What a query may say.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Query {
    /// `after`: where a page begins.
    pub after: Option<String>,
    /// `limit`: how many entries.
    pub limit: Option<usize>,
    /// `from`: the first token.
    pub from: Option<usize>,
    /// `order=newest`: the latest first.
    pub newest: bool,
    /// `search`: a part of a session's name.
    pub search: Option<String>,
    /// `session`: of this one only.
    pub session: Option<String>,
    /// `version` of a session.
    pub version: Option<u32>,
    /// `since`: a cursor.
    pub since: Option<String>,
}

impl Query {
    pub(super) fn of(uri: &Uri) -> Result<Self, Problem> {
        let mut query = Self::default();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = routes::decode(value).into_owned();
            let bad = |what: &str| Problem::bad(format!("{name}: {what}, not {value:?}"));
            match name {
                "after" => query.after = Some(value),
                "since" => query.since = Some(value).filter(|since| !since.is_empty()),
                "search" => query.search = Some(value),
                "session" => query.session = Some(value),
                "order" if value == "newest" => query.newest = true,
                "order" => return Err(bad("newest, or left out")),
                "from" => query.from = Some(value.parse().map_err(|_| bad("a number of tokens"))?),
                "limit" => query.limit = Some(value.parse().map_err(|_| bad("a number of entries"))?),
                "version" => query.version = Some(value.parse().map_err(|_| bad("a version, from 1"))?),
                _ => {
                    return Err(Problem::bad(format!(
                        "{name:?} is none of after, from, limit, order, search, session, since, version"
                    )));
                }
            }
        }
        Ok(query)
    }
}
