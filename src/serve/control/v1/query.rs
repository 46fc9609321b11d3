// SPDX-License-Identifier: Apache-2.0
//! The query of a control route.

use http::Uri;

use crate::json::decode_query_value;
use crate::serve::problem::Problem;
use crate::session::{Classes, Conditions, Consumer};

/// The members of a query.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Query {
    /// `after`: the cursor of a page.
    pub after: Option<String>,
    /// `limit`: how many entries.
    pub limit: Option<usize>,
    /// `from`: the first token.
    pub from: Option<usize>,
    /// `recent`: how many of the newest entropies.
    pub recent: Option<usize>,
    /// `order=newest`: the newest first.
    pub newest: bool,
    /// `search`: a part of a session's name.
    pub search: Option<String>,
    /// `sort`: the order of a table or of groups.
    pub sort: Option<String>,
    /// `q`: what is searched.
    pub q: Option<String>,
    /// `regex`: whether it is a regular expression.
    pub regex: bool,
    /// `case`: whether upper and lower case differ.
    pub case: bool,
    /// `by`: what makes a step.
    pub by: Option<String>,
    /// `where`: the conditions of a table.
    pub conditions: Option<Conditions>,
    /// `same_prompt`: a turn whose prompt sessions have.
    pub same_prompt: Option<String>,
    /// `session`: only this session.
    pub session: Option<String>,
    /// `version` of a session.
    pub version: Option<u32>,
    /// `scores`: the teacher whose scores the paths have.
    pub scores: Option<String>,
    /// `since`: a cursor, or the number of a token.
    pub since: Option<String>,
    /// `index` of a sequence.
    pub index: Option<usize>,
    /// `partitions=INDEX/COUNT`: the paths of one of several consumers, from a shared ledger.
    pub consumer: Option<Consumer>,
    /// `classes`: names of classes of turns, separated by commas.
    pub classes: Classes,
}

impl Query {
    /// Parses the query of a URI. `names` are those that the route has.
    ///
    /// # Errors
    /// 400 for another name or an invalid value.
    pub(super) fn parse(uri: &Uri, names: &[&str]) -> Result<Self, Problem> {
        let mut query = Self::default();
        for pair in uri.query().unwrap_or_default().split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decode_query_value(value).into_owned();
            let bad = |expected: &str| Problem::bad_request(format!("{name}: must be {expected}, not {value:?}"));
            match name {
                _ if !names.contains(&name) => return Err(unknown(name, names)),
                "after" => query.after = Some(value).filter(|after| !after.is_empty()),
                "since" => query.since = Some(value),
                "index" => query.index = Some(value.parse().map_err(|_| bad("a number"))?),
                "search" => query.search = Some(value).filter(|part| !part.is_empty()),
                "by" => query.by = Some(value),
                "q" => query.q = Some(value),
                "regex" => query.regex = value.parse().map_err(|_| bad("true or false"))?,
                "case" => query.case = value.parse().map_err(|_| bad("true or false"))?,
                "sort" => query.sort = Some(value),
                "where" => {
                    let conditions = Conditions::parse(&value);
                    let conditions = conditions.map_err(|error| Problem::bad_request(format!("where: {error}")))?;
                    query.conditions = Some(conditions);
                }
                "same_prompt" => query.same_prompt = Some(value),
                "session" => query.session = Some(value),
                "scores" => query.scores = Some(value),
                "order" if value == "newest" => query.newest = true,
                "order" => return Err(bad("newest or absent")),
                "classes" => {
                    let names = value.split(',').map(str::trim).filter(|name| !name.is_empty());
                    query.classes =
                        Classes::parse(names).map_err(|error| Problem::bad_request(format!("classes: {error}")))?;
                }
                "partitions" => query.consumer = Some(value.parse().map_err(bad)?),
                "from" => query.from = Some(value.parse().map_err(|_| bad("a number of tokens"))?),
                "recent" => query.recent = Some(value.parse().map_err(|_| bad("a number of tokens"))?),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| *limit > 0);
                    query.limit = Some(limit.ok_or_else(|| bad("a number from 1"))?);
                }
                "version" => query.version = Some(value.parse().map_err(|_| bad("a version number, from 1"))?),
                _ => return Err(unknown(name, names)),
            }
        }
        Ok(query)
    }
}

/// The error for a name that the query of a route does not have.
fn unknown(name: &str, names: &[&str]) -> Problem {
    let known = match names {
        [] => "this request has no query".to_owned(),
        [only] => format!("the only member is {only}"),
        [first @ .., last] => format!("the members are {} and {last}", first.join(", ")),
    };
    Problem::bad_request(format!("unknown query member {name:?}; {known}"))
}
