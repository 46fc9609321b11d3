// SPDX-License-Identifier: Apache-2.0
//! `tokentap score`: has a teacher score the recorded sessions of a running tokentap.

use serde_json::{Value, json};

use crate::cli::control::{ControlClient, percent_encoded};
use crate::cli::progress::Progress;
use crate::config::ScoreArgs;

/// Sessions of one request. The teacher is asked for several of their paths at once, and the bar moves after each request.
const BATCH: usize = 32;

/// The sessions of a page of the list.
const PAGE: usize = 1000;

/// Scores the sessions and prints the mismatch of all as a line of JSON. Paths that have scores are not sent again, so a command that was
/// interrupted continues.
///
/// # Errors
/// A line for the user.
pub async fn run(args: &ScoreArgs) -> Result<(), String> {
    let client = ControlClient::try_new(&args.port)?;
    let sessions = if args.session.is_empty() { sessions(&client).await? } else { args.session.clone() };
    if sessions.is_empty() {
        return Err(format!("{} has no sessions", client.url()));
    }
    let progress = Progress::sessions("scoring", sessions.len());
    let (mut scored, mut skipped, mut done, mut refused) = (0, 0, Scored::default(), Vec::new());
    for batch in sessions.chunks(BATCH) {
        let mut wanted = Scored { sessions: batch.to_vec(), rows: Vec::new() };
        let reply = score_present(&client, args, &mut wanted, args.again).await?;
        let rows = reply["rows"].as_array().map(Vec::as_slice).unwrap_or_default();
        for row in rows {
            scored += row["scored"].as_u64().unwrap_or(0);
            skipped += row["skipped"].as_u64().unwrap_or(0);
            if let Some(error) = row["error"].as_str() {
                refused.push(format!("path {} of session {}: {error}", row["leaf"], row["session"]));
            }
        }
        done.add(wanted.sessions, rows);
        progress.add(batch.len());
    }
    progress.clear();
    // all of them have scores now, so nothing is sent to the teacher
    if !done.is_empty() {
        let all = score_present(&client, args, &mut done, false).await?;
        crate::cli::print(&format!("{}\n", all["mismatch"]));
    }
    eprintln!("tokentap: {} scored {scored} tokens of {} sessions; {skipped} had scores", args.teacher, sessions.len());
    if refused.is_empty() {
        return Ok(());
    }
    let count = refused.len();
    refused.iter().for_each(|refusal| eprintln!("tokentap: {refusal}"));
    Err(format!("{} refused {count} of the paths", args.teacher))
}

/// The paths of a request: those of whole sessions, and single ones.
#[derive(Default)]
struct Scored {
    sessions: Vec<String>,
    rows: Vec<Value>,
}

impl Scored {
    /// Adds sessions with the rows of their reply. Of a session with a refused path only the others are added.
    fn add(&mut self, sessions: Vec<String>, rows: &[Value]) {
        let is_refused = |row: &Value| !row["error"].is_null();
        for session in sessions {
            let own: Vec<&Value> = rows.iter().filter(|row| row["session"] == *session).collect();
            if own.iter().any(|row| is_refused(row)) {
                let others = own.into_iter().filter(|row| !is_refused(row));
                self.rows.extend(others.map(|row| json!({"session": session, "leaf": row["leaf"]})));
            } else {
                self.sessions.push(session);
            }
        }
    }

    fn is_empty(&self) -> bool {
        self.sessions.is_empty() && self.rows.is_empty()
    }
}

/// Scores paths. Removes those whose sessions were listed, and are no longer there.
async fn score_present(
    client: &ControlClient,
    args: &ScoreArgs,
    paths: &mut Scored,
    again: bool,
) -> Result<Value, String> {
    loop {
        if paths.is_empty() {
            return Ok(Value::Null);
        }
        let error = match score(client, args, paths, again).await {
            Ok(reply) => return Ok(reply),
            Err(error) => error,
        };
        if !args.session.is_empty() {
            return Err(error);
        }
        let (listed, before) = (sessions(client).await?, paths.sessions.len() + paths.rows.len());
        let is_listed = |name: &str| listed.binary_search_by(|known| known.as_str().cmp(name)).is_ok();
        paths.sessions.retain(|name| is_listed(name));
        paths.rows.retain(|row| row["session"].as_str().is_some_and(is_listed));
        if paths.sessions.len() + paths.rows.len() == before {
            return Err(error);
        }
    }
}

async fn score(client: &ControlClient, args: &ScoreArgs, paths: &Scored, again: bool) -> Result<Value, String> {
    let mut body = json!({
        "teacher": args.teacher, "sessions": paths.sessions, "rows": paths.rows, "again": again, "classes": args.classes,
        "top_logprobs": args.top_logprobs, "logprobs_of_top_ids": args.logprobs_of_top_ids,
    });
    if let Some(key) = &args.teacher_key {
        body["key"] = key.expose().into();
    }
    if let Some(version) = args.version {
        body["version"] = version.into();
    }
    let reply = client.post("/v1/teacher-scores", body.to_string()).await?;
    let bytes = client.body(reply).await?;
    serde_json::from_slice(&bytes).map_err(|error| format!("{}: /v1/teacher-scores: {error}", client.url()))
}

/// The names of all sessions. A session that is used meanwhile may be listed twice.
async fn sessions(client: &ControlClient) -> Result<Vec<String>, String> {
    let (mut names, mut after) = (std::collections::BTreeSet::new(), None::<String>);
    loop {
        let from = after.as_deref().map(|after| format!("&after={}", percent_encoded(after))).unwrap_or_default();
        let page: Value = client.get(&format!("/v1/sessions?limit={PAGE}{from}")).await?;
        let listed = page["sessions"].as_array().into_iter().flatten();
        names.extend(listed.filter_map(|entry| entry["session"].as_str().map(str::to_owned)));
        let next = match &page["next"] {
            Value::Null => return Ok(names.into_iter().collect()),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        if after.as_ref() == Some(&next) {
            return Err(format!("{}: the list of sessions does not end", client.url()));
        }
        after = Some(next);
    }
}
