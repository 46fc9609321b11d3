//! `/v1/search`: finds a text, a regular expression or token ids in the turns of the sessions in memory.

use std::ops::Range;
use std::sync::Arc;

use http::Response;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use super::samples::decoder;
use crate::export::Decoder;
use crate::long_work::offload_export;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::session::{Conditions, Session, Turn};

/// The default and the maximum number of matches of a reply.
const MATCHES: (usize, usize) = (100, 1000);

/// Tokens after which a reply ends, and another request continues.
const MOST_TOKENS: usize = 1 << 20;

/// Tokens that are searched in one step. If the client has left, no further step begins.
const STEP_TOKENS: usize = 1 << 15;

/// Sessions that are looked at in one step.
const STEP_SESSIONS: usize = 256;

/// The most bytes of what is searched.
const LONGEST: usize = 1024;

/// The memory of a compiled expression, in bytes.
const EXPRESSION_BYTES: usize = 1 << 20;

/// Characters of a match that are shown, and those on either side of it.
const SHOWN: (usize, usize) = (200, 60);

/// What is searched.
enum Needle {
    Text { expression: Box<Regex>, decoder: Decoder },
    Tokens(Vec<u32>),
}

/// Where a search continues: before the session with this number, or in it from this turn on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SearchPosition {
    session: u64,
    turn: u32,
}

/// A search that has not ended.
struct Search {
    proxy: Arc<Proxy>,
    needle: Needle,
    conditions: Option<Conditions>,
    limit: usize,
    /// `None` at the end.
    position: Option<SearchPosition>,
    matches: Vec<Value>,
    sessions: usize,
    tokens: usize,
    /// Turns whose ids the loaded tokenizer does not decode.
    undecoded: usize,
}

/// Searches sessions, the latest first.
pub(super) async fn find(proxy: &Arc<Proxy>, query: Query) -> Result<Response<Body>, Problem> {
    let Query { q, regex, case, conditions, limit, after, .. } = query;
    let q = q
        .filter(|q| !q.is_empty())
        .ok_or_else(|| Problem::bad_request("q: is what to search, and must not be empty"))?;
    if q.len() > LONGEST {
        return Err(Problem::bad_request(format!("q: is longer than {LONGEST} bytes")));
    }
    let needle = Needle::new(proxy, &q, regex, case)?;
    let position = match after {
        None => SearchPosition { session: u64::MAX, turn: 0 },
        Some(after) => SearchPosition::parse(&after)
            .ok_or_else(|| Problem::bad_request(format!("after: must be the next of a reply, not {after:?}")))?,
    };
    let by = needle.name();
    let mut search = Search {
        proxy: Arc::clone(proxy),
        needle,
        conditions,
        limit: limit.unwrap_or(MATCHES.0).clamp(1, MATCHES.1),
        position: Some(position),
        matches: Vec::new(),
        sessions: 0,
        tokens: 0,
        undecoded: 0,
    };
    while search.position.is_some() && search.matches.len() < search.limit && search.tokens < MOST_TOKENS {
        // a client that leaves drops this future between two steps
        search = offload_export(move || {
            search.step();
            search
        })
        .await;
    }
    Ok(ok(&json!({
        "q": q,
        "by": by,
        "matches": search.matches,
        "next": search.position.map(|position| position.to_string()),
        "sessions": search.sessions,
        "tokens": search.tokens,
        "undecoded_turns": search.undecoded,
    })))
}

impl std::fmt::Display for SearchPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.session, self.turn)
    }
}

impl SearchPosition {
    fn parse(text: &str) -> Option<Self> {
        let (session, turn) = text.split_once('-')?;
        Some(Self { session: session.parse().ok()?, turn: turn.parse().ok()? })
    }
}

impl Needle {
    fn new(proxy: &Proxy, q: &str, is_expression: bool, has_case: bool) -> Result<Self, Problem> {
        let decoder = match decoder(proxy) {
            Ok(decoder) => decoder,
            Err(error) if is_expression => return Err(error),
            Err(_) => {
                let ids = q.split(',').map(|id| id.trim().parse()).collect::<Result<_, _>>();
                let message = "no tokenizer is loaded, see --tokenizer; q: must be token ids, such as 299,467";
                return ids.map(Self::Tokens).map_err(|_| Problem::new(ErrorCode::NO_TOKENIZER, message));
            }
        };
        let pattern = if is_expression { q.to_owned() } else { regex::escape(q) };
        let built = RegexBuilder::new(&pattern)
            .case_insensitive(!has_case)
            .size_limit(EXPRESSION_BYTES)
            .dfa_size_limit(EXPRESSION_BYTES)
            .build();
        let expression = built.map_err(|error| Problem::bad_request(format!("q: {error}")))?;
        Ok(Self::Text { expression: Box::new(expression), decoder })
    }

    fn name(&self) -> &'static str {
        match self {
            Self::Text { .. } => "text",
            Self::Tokens(_) => "tokens",
        }
    }

    /// The first match in a part of a turn, and the number of matches; `None` without a match.
    fn find(&self, ids: &[u32]) -> Option<Value> {
        match self {
            Self::Text { expression, decoder } => {
                let text = (decoder.decode)(ids)?;
                let first = expression.find(&text)?;
                let (before, found, after) = excerpt(&text, first.range());
                let count = expression.find_iter(&text).count();
                Some(json!({"before": before, "match": found, "after": after, "count": count}))
            }
            Self::Tokens(wanted) => {
                let starts = |at: &usize| ids[*at..].starts_with(wanted);
                let last = ids.len().checked_sub(wanted.len())?;
                let at = (0..=last).find(starts)?;
                Some(json!({"token": at, "count": (at..=last).filter(starts).count()}))
            }
        }
    }
}

impl Search {
    /// Searches some sessions.
    fn step(&mut self) {
        let Some(position) = self.position else { return };
        let (end, most) = ((self.tokens + STEP_TOKENS).min(MOST_TOKENS), STEP_SESSIONS);
        // the session at which the search stopped is before the next number
        let page = self.proxy.sessions.latest_before(position.session.saturating_add(1), most);
        let mut turn = position.turn;
        let is_last = page.len() < most;
        for (number, session) in page {
            if number != position.session {
                turn = 0;
            }
            let is_chosen = self.conditions.as_ref().is_none_or(|conditions| session.meets(conditions));
            self.sessions += usize::from(is_chosen && turn == 0);
            while is_chosen && let Some(next) = session.turn(turn) {
                if self.tokens >= end || self.matches.len() >= self.limit {
                    self.position = Some(SearchPosition { session: number, turn });
                    return;
                }
                self.search_turn(&session, &next);
                turn += 1;
            }
            self.position = number.checked_sub(1).map(|session| SearchPosition { session, turn: 0 });
        }
        if is_last {
            self.position = None;
        }
    }

    fn search_turn(&mut self, session: &Session, turn: &Turn) {
        if let Needle::Text { decoder, .. } = &self.needle
            && turn.about.model != decoder.model
        {
            self.undecoded += 1;
            return;
        }
        for (kind, ids) in [("prompt", &turn.prompt[..]), ("response", &turn.response[..])] {
            self.tokens += ids.len();
            if let Some(mut found) = self.needle.find(ids) {
                (found["session"], found["turn"], found["kind"]) = (json!(&*session.id), turn.id.into(), kind.into());
                self.matches.push(found);
            }
        }
        // so that a search of empty turns ends as well
        self.tokens += 1;
    }
}

/// A match, and the text around it.
fn excerpt(text: &str, found: Range<usize>) -> (String, String, String) {
    let (shown, around) = SHOWN;
    let mut before: Vec<char> = text[..found.start].chars().rev().take(around).collect();
    before.reverse();
    let after = text[found.end..].chars().take(around).collect();
    (before.into_iter().collect(), text[found].chars().take(shown).collect(), after)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_found_where_they_are_adjacent() {
        let needle = Needle::Tokens(vec![2, 3]);
        assert_eq!(needle.find(&[1, 2, 3, 2, 3]), Some(json!({"token": 1, "count": 2})));
        assert_eq!((needle.find(&[2]), needle.find(&[3, 2]), needle.find(&[])), (None, None, None));
    }

    #[test]
    fn excerpt_has_whole_characters() {
        let text = format!("{}\u{e4}needle\u{e4}{}", "x".repeat(100), "y".repeat(100));
        let at = text.find("needle").expect("it is there");
        let (before, found, after) = excerpt(&text, at..at + 6);
        assert_eq!((before.chars().count(), &*found, after.chars().count()), (60, "needle", 60));
        assert!(before.ends_with('\u{e4}') && after.starts_with('\u{e4}'));
    }

    #[test]
    fn positions_survive_their_text() {
        let position = SearchPosition { session: 7, turn: 3 };
        assert_eq!(SearchPosition::parse(&position.to_string()), Some(position));
        assert_eq!((SearchPosition::parse("7"), SearchPosition::parse("a-1")), (None, None));
    }
}
