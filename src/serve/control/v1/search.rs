// SPDX-License-Identifier: Apache-2.0
//! `/v1/search`: finds a text, a regular expression or token ids in the turns of the sessions in memory.

use std::ops::Range;
use std::sync::Arc;

use http::Response;
use regex::{Regex, RegexBuilder};
use serde_json::{Value, json};

use super::ok;
use super::query::Query;
use super::samples::decoder;
use super::turn_walk::{TurnVisitor, TurnWalk};
use crate::export::Decoder;
use crate::long_work::offload_export;
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::session::{Session, Turn};

/// The default and the maximum number of matches of a reply.
const MATCHES: (usize, usize) = (100, 1000);

/// The most bytes of what is searched.
const LONGEST: usize = 1024;

/// The memory of a compiled expression, and that of its cache of states, in bytes. A larger expression, or a smaller cache, makes a search slow.
const EXPRESSION_BYTES: (usize, usize) = (256 << 10, 8 << 20);

/// The most matches of a part that are counted.
const MOST_COUNTED: usize = 100;

/// Characters of a match that are shown, and those on either side of it.
const SHOWN: (usize, usize) = (200, 60);

/// What is searched.
enum Needle {
    Text { expression: Box<Regex>, decoder: Decoder },
    Tokens(Vec<u32>),
}

/// The tokenizer does not decode some ids.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Undecoded;

/// The matches of a reply.
struct Search {
    needle: Needle,
    limit: usize,
    matches: Vec<Value>,
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
    let (by, limit) = (needle.name(), limit.unwrap_or(MATCHES.0).clamp(1, MATCHES.1));
    let walk = TurnWalk::new(proxy, conditions, after)?;
    let (walk, search) = walk.run(Search { needle, limit, matches: Vec::new(), undecoded: 0 }).await;
    let reply = offload_export(move || {
        ok(&json!({
            "q": q,
            "by": by,
            "matches": search.matches,
            "next": walk.next(),
            "sessions": walk.sessions,
            "tokens": walk.tokens,
            "undecoded_turns": search.undecoded,
        }))
    });
    Ok(reply.await)
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

impl TurnVisitor for Search {
    const MOST_TOKENS: usize = 1 << 20;
    const STEP_TOKENS: usize = 1 << 15;

    fn is_full(&self) -> bool {
        self.matches.len() >= self.limit
    }

    fn visit(&mut self, session: &Arc<Session>, turn: &Arc<Turn>) -> usize {
        if let Needle::Text { decoder, .. } = &self.needle
            && turn.about.model != decoder.model
        {
            self.undecoded += 1;
            return 0;
        }
        for (kind, ids) in [("prompt", &turn.prompt[..]), ("response", &turn.response[..])] {
            match self.needle.find(ids) {
                Ok(Some(mut found)) => {
                    (found["session"], found["turn"], found["kind"]) =
                        (json!(&*session.id), turn.id.into(), kind.into());
                    self.matches.push(found);
                }
                Ok(None) => {}
                Err(Undecoded) => {
                    self.undecoded += 1;
                    break;
                }
            }
        }
        turn.prompt.len() + turn.response.len()
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
}
