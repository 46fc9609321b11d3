// SPDX-License-Identifier: Apache-2.0
//! Exports sessions from the log in `--data-dir`, without a running tokentap.

use std::collections::{HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use super::{Chunks, ExportSource, ExportSummary, conditions};
use crate::cli::import::check_log;
use crate::cli::progress::Progress;
use crate::config::{ExportArgs, ThinkIds};
use crate::export::{Batch, Exclusions, ExportOption, Shape};
use crate::json::decode;
use crate::rl::{self, AdvantageOptions};
use crate::session::ThinkTokens;
use crate::session::ledger::{Change, LogRecord, ProcessRecord, Record, log};
use crate::session::{Classes, Session, Sessions, StoreLimits, TurnSelection};

/// Reads the log and prepares the export.
pub(super) fn open(dir: &Path, args: &ExportArgs) -> Result<ExportSource, String> {
    let classes =
        Classes::parse(args.classes.iter().map(String::as_str)).map_err(|error| format!("--classes: {error}"))?;
    args.format.check(|option| sets(args, option)).map_err(|error| {
        // the flags have the names of the members of a request
        format!("--{}: {error}", error.option.name().replace('_', "-"))
    })?;
    let selection = TurnSelection { classes, resumed: args.train_resumed };
    let exclusions =
        Exclusions::parse(args.exclude.iter().map(String::as_str)).map_err(|error| format!("--exclude: {error}"))?;
    let conditions = conditions(args)?;
    let store = Sessions::new(StoreLimits::UNLIMITED);
    let mut names = SessionNames::default();
    let failed = |error| format!("--data-dir: {error}");
    let progress = Progress::bytes("reading the log", Some(log::size(dir).map_err(failed)?));
    let restore = |bytes, record| {
        progress.set(bytes);
        names.rename(record).into_iter().for_each(|record| store.restore(record));
    };
    let found = log::read(dir, restore).map_err(failed)?;
    progress.clear();
    check_log(dir, &found)?;
    let mut sessions = select(&store, &args.session)?;
    if let Some(conditions) = conditions {
        sessions.retain(|session| session.meets(&conditions));
    }
    let tokens = args.think_tokens.map(|ThinkIds { start, end }| ThinkTokens { start, end });
    let mut batch = Batch {
        shape: Shape {
            pad_token_id: args.pad_token_id.unwrap_or_default(),
            max_prompt_length: args.max_prompt_length,
            max_response_length: args.max_response_length,
            entropies: false,
        },
        images: args.images.unwrap_or_default(),
        // the same statistics as from a running tokentap
        annotate: Some(Arc::new(move |path| rl::thinking(path, tokens, rl::HIGH_ENTROPY))),
        ..Batch::default()
    };
    let options = args.advantages.as_deref().map(|text| decode::<AdvantageOptions>(text.as_bytes())).transpose();
    let mut options = options.map_err(|error| format!("--advantages: {error}"))?;
    let of_advantages = options.as_ref().and_then(|options| options.teacher.clone());
    let teacher = rl::one_teacher(args.scores.as_deref(), of_advantages.as_deref())?;
    for session in &sessions {
        let mut snapshot = session
            .snapshot_of(args.version, selection)
            .map_err(|error| format!("session {:?}: {error}", session.id))?;
        if let Some(teacher) = teacher {
            snapshot = session.scored(&snapshot, teacher);
        }
        let (mut rows, mut refused) = snapshot.rows(!args.no_branches);
        batch.rows.append(&mut rows);
        batch.refused.append(&mut refused);
    }
    if let Some(teacher) = &args.scores {
        rl::check_scored(&batch.rows, teacher).map_err(|error| format!("--{error}"))?;
    }
    if let Some(options) = &mut options {
        options.set_default_think_tokens(tokens);
        rl::add_advantages(&mut batch, options).map_err(|error| format!("--advantages: {error}"))?;
    }
    exclusions.apply(&mut batch);
    let export = args.format.export(batch).within(args.max_export_bytes).map_err(|error| error.to_string())?;
    let summary = ExportSummary::new(sessions.len(), &export.tally);
    Ok(ExportSource { length: export.length, chunks: Chunks::Local(export.chunks), summary })
}

/// Whether the command line sets an option. It has no flag for entropies.
fn sets(args: &ExportArgs, option: ExportOption) -> bool {
    match option {
        ExportOption::Text => args.text,
        ExportOption::Advantages => args.advantages.is_some(),
        ExportOption::Scores => args.scores.is_some(),
        ExportOption::Images => args.images.is_some(),
        ExportOption::Entropies => false,
        ExportOption::PadTokenId => args.pad_token_id.is_some(),
        ExportOption::MaxPromptLength => args.max_prompt_length.is_some(),
        ExportOption::MaxResponseLength => args.max_response_length.is_some(),
    }
}

/// Makes session names unique. The log still has the sessions that tokentap evicted from memory, so a later session may have the same
/// name. It is renamed to `name~2`.
#[derive(Debug, Default)]
struct SessionNames {
    /// Names of evicted sessions, until another session with the name begins.
    evicted: HashSet<Arc<str>>,
    /// By reused name: the number of the latest session with this name.
    numbers: HashMap<Arc<str>, u32>,
}

impl SessionNames {
    /// Returns the change of a session with its unique name; `None` for other records, and for an eviction.
    fn rename(&mut self, record: LogRecord) -> Option<Record> {
        let Record { session, birth, change } = match record {
            LogRecord::Session(Record { session, change: Change::Evicted, .. })
            | LogRecord::Process(ProcessRecord::Settled { session }) => {
                self.evicted.insert(session);
                return None;
            }
            LogRecord::Process(ProcessRecord::Epoch { .. } | ProcessRecord::AdapterEpoch { .. }) => return None,
            LogRecord::Session(record) => record,
        };
        let begins = matches!(&change, Change::Turn(turn) if turn.id == 0);
        if begins && self.evicted.remove(&session) {
            *self.numbers.entry(Arc::clone(&session)).or_insert(1) += 1;
        }
        let number = self.numbers.get(&session);
        let session = number.map_or_else(|| Arc::clone(&session), |number| format!("{session}~{number}").into());
        Some(Record { session, birth, change })
    }
}

/// Returns the sessions with these names; all sessions if there are no names.
///
/// # Errors
/// A line for the user when the log has no session with one of the names.
fn select(store: &Sessions, names: &[String]) -> Result<Vec<Arc<Session>>, String> {
    if names.is_empty() {
        return Ok(store.in_memory());
    }
    let known = |name: &String| store.session(name).ok_or_else(|| format!("the log has no session {name:?}"));
    names.iter().map(known).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::{Turn, TurnMetadata, Uid};

    #[test]
    fn session_with_the_name_of_an_evicted_session_is_renamed() {
        let birth: Uid = "00000000000000000000000000000001".parse().unwrap();
        let record = |change| Record::new("s", birth, change);
        let turn = |id| {
            let none = (Arc::default(), Box::default(), Box::default(), Box::default());
            let (prompt, response, logprobs, entropy) = none;
            let turn = Turn { id, parent: None, prompt, response, logprobs, entropy, about: TurnMetadata::default() };
            record(Change::Turn(Arc::new(turn)))
        };
        let mut names = SessionNames::default();
        let mut name = |record: Record| Some(names.rename(record.into())?.session.to_string());
        assert_eq!(name(turn(0)).as_deref(), Some("s"));
        assert_eq!(name(record(Change::Evicted)), None);
        assert_eq!(name(turn(0)).as_deref(), Some("s~2"));
        assert_eq!(name(turn(1)).as_deref(), Some("s~2"));
    }
}
