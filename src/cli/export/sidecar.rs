// SPDX-License-Identifier: Apache-2.0
//! Exports sessions from a running tokentap, through its control port.

use std::collections::HashSet;

use bytes::Bytes;
use reqwest::Response;
use reqwest::header::{self, HeaderMap};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Chunks, ExportSource, ExportSummary, conditions};
use crate::cli::control::{ControlClient, percent_encoded};
use crate::config::ExportArgs;
use crate::engine::transport::failure::innermost;
use crate::session::{Conditions, FieldValue, SessionFacts, SessionField};

/// The number of sessions in a page of the list.
const PAGE_SIZE: usize = 1000;

/// A running tokentap.
#[derive(Debug)]
pub(super) struct Sidecar(ControlClient);

/// The body of the reply to an export request.
#[derive(Debug)]
pub(super) struct ExportBody(Response);

#[derive(Deserialize)]
struct Page {
    sessions: Vec<SessionEntry>,
    #[serde(default)]
    next: Value,
}

#[derive(Deserialize)]
struct SessionEntry {
    session: String,
    /// The other members; only those of the list itself if no process that was asked has read the session.
    #[serde(flatten)]
    members: Map<String, Value>,
}

impl SessionFacts for SessionEntry {
    fn field(&self, field: SessionField) -> Option<FieldValue<'_>> {
        let member = || self.members.get(field.name());
        match field {
            SessionField::Session => Some(FieldValue::Text((&*self.session).into())),
            _ => match member()? {
                Value::Number(number) => number.as_f64().map(FieldValue::Number),
                Value::Bool(flag) => Some(FieldValue::Text(flag.to_string().into())),
                Value::String(text) => Some(FieldValue::Text(text.into())),
                // counts by name
                Value::Object(counts) => Some(FieldValue::Number(counts.values().filter_map(Value::as_f64).sum())),
                Value::Array(names) => Some(FieldValue::Names(names.iter().filter_map(Value::as_str).collect())),
                Value::Null => None,
            },
        }
    }

    fn tag(&self, name: &str) -> Option<&str> {
        self.members.get("tags")?.get(name)?.as_str()
    }
}

impl SessionEntry {
    /// Whether other processes may have changed the session since the one that was asked has read it.
    fn is_shared(&self) -> bool {
        self.members.contains_key("used_ms")
    }
}

impl ExportBody {
    /// Returns the next bytes; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        self.0.chunk().await.map_err(|error| format!("the export broke off: {}", innermost(&error)))
    }
}

impl Sidecar {
    pub(super) fn try_new(args: &ExportArgs) -> Result<Self, String> {
        Ok(Self(ControlClient::try_new(&args.port)?))
    }

    /// Requests the export. The body of the reply is read later.
    pub(super) async fn open(&self, args: &ExportArgs) -> Result<ExportSource, String> {
        let conditions = conditions(args)?;
        let sessions = match args.session.is_empty() {
            true => self.sessions(conditions.as_ref()).await?,
            false => args.session.clone(),
        };
        let count = sessions.len();
        let body = request_body(args, sessions)?.to_string();
        let reply = self.0.post("/v1/samples", body).await?;
        let summary = summary(count, reply.headers());
        let length = reply.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(ExportSource { length, chunks: Chunks::Remote(ExportBody(reply)), summary })
    }

    /// Returns the names of all sessions that meet the conditions. Requests the list page by page. A shared session that is used meanwhile
    /// is listed again.
    async fn sessions(&self, conditions: Option<&Conditions>) -> Result<Vec<String>, String> {
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        let mut after: Option<String> = None;
        loop {
            let after_it =
                after.as_deref().map(|after| format!("&after={}", percent_encoded(after))).unwrap_or_default();
            let target = format!("/v1/sessions?limit={PAGE_SIZE}{after_it}");
            let page: Page = self.0.get(&target).await?;
            for mut entry in page.sessions {
                if !known.insert(entry.session.clone()) {
                    continue;
                }
                if conditions.is_some() && entry.is_shared() {
                    entry = self.0.get(&format!("/v1/sessions/{}", percent_encoded(&entry.session))).await?;
                }
                if conditions.is_none_or(|conditions| conditions.accept(&entry)) {
                    names.push(entry.session);
                }
            }
            let next = match page.next {
                Value::Null => return Ok(names),
                Value::String(text) => text,
                other => other.to_string(),
            };
            if after.as_ref() == Some(&next) {
                return Err(format!("{}: the list of sessions does not end", self.0.url()));
            }
            after = Some(next);
        }
    }
}

/// The body of the export request.
///
/// # Errors
/// A line for the user when `--advantages` is not JSON.
fn request_body(args: &ExportArgs, sessions: Vec<String>) -> Result<Value, String> {
    let mut body = json!({
        "sessions": sessions,
        "format": args.format.to_string(),
        "include_branches": !args.no_branches,
    });
    let lengths = [("max_prompt_length", args.max_prompt_length), ("max_response_length", args.max_response_length)];
    for (name, length) in lengths {
        if let Some(length) = length {
            body[name] = length.into();
        }
    }
    // set only if needed, because an older tokentap refuses unknown members
    if let Some(id) = args.pad_token_id {
        body["pad_token_id"] = id.into();
    }
    if let Some(version) = args.version {
        body["version"] = version.into();
    }
    if args.text {
        body["text"] = true.into();
    }
    if let Some(images) = args.images {
        body["images"] = images.to_string().into();
    }
    if !args.classes.is_empty() {
        body["classes"] = json!(args.classes);
    }
    if !args.exclude.is_empty() {
        body["exclude"] = json!(args.exclude);
    }
    if let Some(scores) = &args.scores {
        body["scores"] = scores.as_str().into();
    }
    if args.train_resumed {
        body["train_resumed"] = true.into();
    }
    if let Some(options) = &args.advantages {
        body["advantages"] = serde_json::from_str(options).map_err(|error| format!("--advantages: {error}"))?;
    }
    Ok(body)
}

/// Parses the summary from the headers of a reply: `tokentap-rows`, and `tokentap-refused` and `tokentap-incomplete`, JSON objects of
/// counts by reason.
fn summary(sessions: usize, headers: &HeaderMap) -> ExportSummary {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let counts = |name| text(name).and_then(|counts| serde_json::from_str(counts).ok()).unwrap_or_default();
    ExportSummary {
        sessions,
        rows: text("tokentap-rows").and_then(|rows| rows.parse().ok()),
        refused: counts("tokentap-refused"),
        incomplete: counts("tokentap-incomplete"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn summary_is_parsed_from_the_reply_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(summary(2, &headers).to_string(), "2 sessions");
        headers.insert("tokentap-rows", "7".parse().unwrap());
        headers.insert("tokentap-refused", r#"{"aborted":2}"#.parse().unwrap());
        assert_eq!(summary(2, &headers).to_string(), "7 rows of 2 sessions, refused: 2 aborted");
        headers.insert("tokentap-refused", "2".parse().unwrap());
        assert_eq!(summary(2, &headers).to_string(), "7 rows of 2 sessions");
    }
}
