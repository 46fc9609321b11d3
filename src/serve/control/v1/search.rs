//! `/v1/search`: finds a text, a regular expression or token ids in the turns of the sessions in memory.

use std::ops::Range;
use std::sync::{Arc, LazyLock};

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
use crate::session::{Conditions, Session, Turn, Uid};

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

/// The memory of a compiled expression, and that of its cache of states, in bytes. A larger expression, or a smaller cache, makes a search slow.
const EXPRESSION_BYTES: (usize, usize) = (256 << 10, 8 << 20);

/// The most matches of a part that are counted.
const MOST_COUNTED: usize = 100;

/// Characters of a match that are shown, and those on either side of it.
const SHOWN: (usize, usize) = (200, 60);

/// This run of the process, which numbers the sessions.
static RUN: LazyLock<Uid> = LazyLock::new(Uid::unique);

/// What is searched.
enum Needle {
    Text { expression: Box<Regex>, decoder: Decoder },
    Tokens(Vec<u32>),
}

/// The tokenizer does not decode some ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Undecoded;

/// Where a search continues: before the session with this number, or in it from this turn on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct SearchPosition {
    run: Uid,
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
    let needle = {
        let (proxy, q) = (Arc::clone(proxy), q.clone());
        // it may take some milliseconds
        offload_export(move || Needle::new(&proxy, &q, regex, case)).await?
    };
    let position = match after {
        None => SearchPosition { run: *RUN, session: u64::MAX, turn: 0 },
        Some(after) => SearchPosition::parse(&after).filter(|position| position.run == *RUN).ok_or_else(|| {
            Problem::bad_request(format!(
                "after: must be the next of a reply since tokentap has started, not {after:?}"
            ))
        })?,
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
    let reply = offload_export(move || {
        ok(&json!({
            "q": q,
            "by": by,
            "matches": search.matches,
            "next": search.position.map(|position| position.to_string()),
            "sessions": search.sessions,
            "tokens": search.tokens,
            "undecoded_turns": search.undecoded,
        }))
    });
    Ok(reply.await)
}

impl std::fmt::Display for SearchPosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}-{}", self.run, self.session, self.turn)
    }
}

impl SearchPosition {
    fn parse(text: &str) -> Option<Self> {
        let mut parts = text.split('-');
        let (run, session, turn) = (parts.next()?, parts.next()?, parts.next()?);
        let position = Self { run: run.parse().ok()?, session: session.parse().ok()?, turn: turn.parse().ok()? };
        parts.next().is_none().then_some(position)
    }
}

impl Needle {
    fn new(proxy: &Proxy, q: &str, is_expression: bool, has_case: bool) -> Result<Self, Problem> {
        let decoder = match decoder(proxy) {
            Ok(decoder) => decoder,
            Err(_) => {
                let ids: Option<Vec<u32>> = q.split(',').map(|id| id.trim().parse().ok()).collect();
                let message =
                    "no tokenizer is loaded, see --tokenizer; q: must be token ids, such as 299,467, without regex";
                let ids = ids.filter(|_| !is_expression);
                return ids.map(Self::Tokens).ok_or_else(|| Problem::new(ErrorCode::NO_TOKENIZER, message));
            }
        };
        let pattern = if is_expression { q.to_owned() } else { regex::escape(q) };
        Self::of_text(decoder, &pattern, has_case)
    }

    fn of_text(decoder: Decoder, pattern: &str, has_case: bool) -> Result<Self, Problem> {
        let built = RegexBuilder::new(pattern)
            .case_insensitive(!has_case)
            .size_limit(EXPRESSION_BYTES.0)
            .dfa_size_limit(EXPRESSION_BYTES.1)
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
    ///
    /// # Errors
    /// If the tokenizer does not decode the ids.
    fn find(&self, ids: &[u32]) -> Result<Option<Value>, Undecoded> {
        Ok(match self {
            Self::Text { expression, decoder } => {
                let text = (decoder.decode)(ids).ok_or(Undecoded)?;
                let Some(first) = expression.find(&text) else { return Ok(None) };
                let (before, found, after) = excerpt(&text, first.range());
                // a next match may take as long as the first one, for the whole text
                let count = expression.find_iter(&text).take(MOST_COUNTED).count();
                Some(json!({"before": before, "match": found, "after": after, "count": count}))
            }
            Self::Tokens(wanted) => {
                let starts = |at: &usize| ids[*at..].starts_with(wanted);
                let Some(last) = ids.len().checked_sub(wanted.len()) else { return Ok(None) };
                let Some(at) = (0..=last).find(starts) else { return Ok(None) };
                Some(json!({"token": at, "count": (at..=last).filter(starts).take(MOST_COUNTED).count()}))
            }
        })
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
            while is_chosen && let Some(next) = session.turn(turn) {
                if self.tokens >= end || self.matches.len() >= self.limit {
                    self.position = Some(SearchPosition { session: number, turn, ..position });
                    return;
                }
                self.sessions += usize::from(turn == 0);
                self.search_turn(&session, &next);
                turn += 1;
            }
            self.position = number.checked_sub(1).map(|session| SearchPosition { session, turn: 0, ..position });
        }
        if is_last {
            self.position = None;
        }
    }

    fn search_turn(&mut self, session: &Session, turn: &Turn) {
        // so that a search of turns without tokens ends as well
        self.tokens += 1;
        if let Needle::Text { decoder, .. } = &self.needle
            && turn.about.model != decoder.model
        {
            self.undecoded += 1;
            return;
        }
        for (kind, ids) in [("prompt", &turn.prompt[..]), ("response", &turn.response[..])] {
            self.tokens += ids.len();
            match self.needle.find(ids) {
                Ok(Some(mut found)) => {
                    (found["session"], found["turn"], found["kind"]) =
                        (json!(&*session.id), turn.id.into(), kind.into());
                    self.matches.push(found);
                }
                Ok(None) => {}
                Err(Undecoded) => {
                    self.undecoded += 1;
                    return;
                }
            }
        }
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
        assert_eq!(needle.find(&[1, 2, 3, 2, 3]), Ok(Some(json!({"token": 1, "count": 2}))));
        assert_eq!([&[2][..], &[3, 2], &[]].map(|ids| needle.find(ids)), [Ok(None), Ok(None), Ok(None)]);
        let count = needle.find(&[2, 3].repeat(1000)).expect("ids need no tokenizer").expect("it is there");
        assert_eq!(count["count"], 100);
    }

    /// The documentation of `regex` has this expression, for which each of the matches searches the whole rest of the text.
    #[test]
    fn expression_whose_matches_search_the_whole_text_takes_no_long_time() {
        let decode = Arc::new(|ids: &[u32]| Some("x".repeat(ids.len())));
        let decoder = Decoder { tokenizer: "t".into(), model: "m".into(), decode };
        let needle = Needle::of_text(decoder, "(?s).*\\x00|.", false).expect("it is valid");
        let begun = std::time::Instant::now();
        let found = needle.find(&[1; 1 << 17]).expect("it is decoded").expect("it matches");
        assert_eq!(found["count"], 100);
        assert!(begun.elapsed().as_secs() < 20, "{:?}: all matches would take an hour", begun.elapsed());
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
        let position = SearchPosition { run: Uid::unique(), session: 7, turn: 3 };
        assert_eq!(SearchPosition::parse(&position.to_string()), Some(position));
        for text in ["7", "a-1-2", &format!("{position}-1")] {
            assert_eq!(SearchPosition::parse(text), None, "{text}");
        }
    }
}
