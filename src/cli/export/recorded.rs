//! Sessions from the log in a folder, without a tokentap.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use super::{Chunks, ExportSource, Outcome};
use crate::config::{ExportArgs, ThinkIds};
use crate::export::{Batch, Format, Shape};
use crate::rl::{self, ThinkTokens};
use crate::session::ledger::Record;
use crate::session::ledger::log;
use crate::session::{Session, Store, StoreLimits};

/// Nothing leaves: what the log holds is what is exported.
const LIMITS: StoreLimits = StoreLimits { bytes: u64::MAX, ttl: Duration::MAX, idle: Duration::MAX };

/// Reads the log, and lays out the export.
pub(super) fn open(dir: &Path, args: &ExportArgs, format: Format) -> Result<ExportSource, String> {
    let store = Store::new(LIMITS);
    let mut names = Names::default();
    let found = log::read(dir, |record| names.kept(record).into_iter().for_each(|record| store.restore(record)))
        .map_err(|error| format!("--data-dir: {error}"))?;
    if found.segments == 0 {
        return Err(format!("--data-dir {}: holds no log", dir.display()));
    }
    for torn in &found.torn {
        tracing::warn!(%torn, "not all of the log can be read");
    }
    for damaged in &found.damaged {
        tracing::warn!(%damaged, "not all of the log can be read");
    }
    if found.unknown > 0 {
        tracing::warn!(records = found.unknown, "the log holds records of a later version, which are left out");
    }
    let sessions = chosen(&store, &args.session)?;
    let tokens = args.think_tokens.map(|ThinkIds { start, end }| ThinkTokens { start, end });
    let mut batch = Batch {
        shape: Shape {
            pad_token_id: args.pad_token_id,
            max_prompt_length: args.max_prompt_length,
            max_response_length: args.max_response_length,
            entropies: false,
        },
        // as a running tokentap does
        annotate: Some(Arc::new(move |path| rl::thinking(path, tokens, rl::HIGH_ENTROPY))),
        ..Batch::default()
    };
    for session in &sessions {
        let snapshot = session.snapshot(args.version).map_err(|error| format!("session {:?}: {error}", session.id))?;
        let (mut rows, mut refused) = snapshot.rows(!args.no_branches);
        batch.rows.append(&mut rows);
        batch.refused.append(&mut refused);
    }
    let export = format.export(batch).within(args.max_export_bytes).map_err(|error| error.to_string())?;
    let outcome = Outcome::of(sessions.len(), &export.tally);
    Ok(ExportSource { length: export.length, chunks: Chunks::Made(export.chunks), outcome })
}

/// Sessions that left the memory of the tokentap that wrote the log are still in it. One that came later under the same name is another,
/// `name~2`.
#[derive(Debug, Default)]
struct Names {
    evicted: HashSet<Arc<str>>,
    lives: HashMap<Arc<str>, u32>,
}

impl Names {
    /// The record as it is to be restored; `None` for an eviction.
    fn kept(&mut self, mut record: Record) -> Option<Record> {
        let begins = matches!(&record, Record::Turn { turn, .. } if turn.id == 0);
        let session = match &mut record {
            Record::Evicted { session } => {
                self.evicted.insert(Arc::clone(&session.name));
                return None;
            }
            Record::Turn { session, .. }
            | Record::Reward { session, .. }
            | Record::Freeze { session, .. }
            | Record::Incomplete { session }
            | Record::Deleted { session }
            | Record::Finished { session, .. } => session,
            Record::Policy { .. } => return Some(record),
        };
        if begins && self.evicted.remove(&session.name) {
            *self.lives.entry(Arc::clone(&session.name)).or_insert(1) += 1;
        }
        if let Some(life) = self.lives.get(&session.name) {
            session.name = format!("{}~{life}", session.name).into();
        }
        Some(record)
    }
}

fn chosen(store: &Store, names: &[String]) -> Result<Vec<Arc<Session>>, String> {
    if names.is_empty() {
        return Ok(store.page(0, usize::MAX).into_iter().map(|(_, session)| session).collect());
    }
    let known = |name: &String| store.session(name).ok_or_else(|| format!("the log has no session {name:?}"));
    names.iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Turn, TurnMetadata};

    #[test]
    fn a_session_that_was_evicted_is_exported_beside_its_successor() {
        let turn = |id| {
            let none = (Arc::default(), Box::default(), Box::default(), Box::default());
            let (prompt, response, logprobs, entropy) = none;
            let turn = Turn { id, parent: None, prompt, response, logprobs, entropy, about: TurnMetadata::default() };
            Record::Turn { session: "s".into(), turn: Arc::new(turn) }
        };
        let mut names = Names::default();
        let mut name = |record| match names.kept(record) {
            Some(Record::Turn { session, .. }) => Some(session.name.to_string()),
            _ => None,
        };
        assert_eq!(name(turn(0)).as_deref(), Some("s"));
        assert_eq!(name(Record::Evicted { session: "s".into() }), None);
        assert_eq!(name(turn(0)).as_deref(), Some("s~2"));
        assert_eq!(name(turn(1)).as_deref(), Some("s~2"));
    }
}
