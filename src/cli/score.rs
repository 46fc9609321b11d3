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
    let (mut scored, mut skipped, mut complete, mut refused) = (0, 0, Vec::new(), Vec::new());
    for batch in sessions.chunks(BATCH) {
        let (mut present, reply) = score_present(&client, args, batch, args.again).await?;
        for row in reply["rows"].as_array().into_iter().flatten() {
            scored += row["scored"].as_u64().unwrap_or(0);
            skipped += row["skipped"].as_u64().unwrap_or(0);
            if let Some(error) = row["error"].as_str() {
                refused.push(format!("path {} of session {}: {error}", row["leaf"], row["session"]));
                present.retain(|name| row["session"] != **name);
            }
        }
        complete.append(&mut present);
        progress.add(batch.len());
    }
    progress.clear();
    // all of them have scores now, so nothing is sent to the teacher
    let (_, all) = score_present(&client, args, &complete, false).await?;
    crate::cli::print(&format!("{}\n", all["mismatch"]));
    eprintln!("tokentap: {} scored {scored} tokens of {} sessions; {skipped} had scores", args.teacher, sessions.len());
    if refused.is_empty() {
        return Ok(());
    }
    let count = refused.len();
    refused.iter().for_each(|refusal| eprintln!("tokentap: {refusal}"));
    Err(format!("{} refused {count} of the paths, which have no scores", args.teacher))
}

/// Scores sessions, and returns them with the reply. Sessions that were listed, and are no longer there, are left out.
async fn score_present(
    client: &ControlClient,
    args: &ScoreArgs,
    names: &[String],
    again: bool,
) -> Result<(Vec<String>, Value), String> {
    let mut names = names.to_vec();
    loop {
        if names.is_empty() {
            return Ok((names, Value::Null));
        }
        let error = match score(client, args, &names, again).await {
            Ok(reply) => return Ok((names, reply)),
            Err(error) => error,
        };
        if !args.session.is_empty() {
            return Err(error);
        }
        let (listed, before) = (sessions(client).await?, names.len());
        names.retain(|name| listed.binary_search(name).is_ok());
        if names.len() == before {
            return Err(error);
        }
    }
}

async fn score(client: &ControlClient, args: &ScoreArgs, sessions: &[String], again: bool) -> Result<Value, String> {
    let mut body = json!({
        "teacher": args.teacher, "sessions": sessions, "again": again, "classes": args.classes, "top_logprobs": args.top_logprobs,
        "logprobs_of_top_ids": args.logprobs_of_top_ids,
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
