//! Sessions from a running tokentap, by its control port.

use std::time::Duration;

use bytes::Bytes;
use http::header;
use serde::Deserialize;
use serde_json::{Value, json};

use super::{Chunks, Outcome, Source};
use crate::config::{ExportArgs, Secret};
use crate::sglang::client::innermost;
use crate::trajectory::export::Format;

/// Sessions of one page.
const PAGE: usize = 1000;

/// The control port.
///
/// It has a client of its own: the one in `sglang::client` speaks as tokentap to SGLang, with SGLang's keys.
#[derive(Debug)]
pub(super) struct Sidecar {
    client: reqwest::Client,
    url: String,
    token: Option<Secret>,
}

/// The body of an export.
#[derive(Debug)]
pub(super) struct Reply(reqwest::Response);

#[derive(Deserialize)]
struct Page {
    sessions: Vec<Entry>,
    #[serde(default)]
    next: Value,
}

#[derive(Deserialize)]
struct Entry {
    session: String,
}

impl Reply {
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        self.0.chunk().await.map_err(|error| format!("the export broke off: {}", innermost(&error)))
    }
}

impl Sidecar {
    pub(super) fn try_new(args: &ExportArgs) -> Result<Self, String> {
        // as long as it takes: the sidecar makes an export while it is read
        let client = reqwest::Client::builder()
            .http1_only()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .connect_timeout(Duration::from_secs(5))
            .build()
            .map_err(|error| format!("cannot set up the HTTP client: {error}"))?;
        Ok(Self { client, url: args.control.clone(), token: args.control_token.clone() })
    }

    /// Asks for the export; its body is still to come.
    pub(super) async fn open(&self, args: &ExportArgs, format: Format) -> Result<Source, String> {
        let sessions = if args.session.is_empty() { self.sessions().await? } else { args.session.clone() };
        let count = sessions.len();
        let body = asked(args, sessions, format).to_string();
        let request = self.client.post(format!("{}/v1/samples", self.url)).body(body);
        let reply = self.send(request.header(header::CONTENT_TYPE, "application/json")).await?;
        let outcome = outcome(count, reply.headers());
        Ok(Source { length: reply.content_length(), chunks: Chunks::Sent(Reply(reply)), outcome })
    }

    /// All sessions, page by page.
    async fn sessions(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let mut url = reqwest::Url::parse(&format!("{}/v1/sessions", self.url))
                .map_err(|error| format!("--control {}: {error}", self.url))?;
            url.query_pairs_mut().append_pair("limit", &PAGE.to_string());
            if let Some(after) = &after {
                url.query_pairs_mut().append_pair("after", after);
            }
            let reply = self.send(self.client.get(url)).await?;
            let bytes = reply.bytes().await.map_err(|error| self.broken(&error))?;
            let page: Page = serde_json::from_slice(&bytes)
                .map_err(|error| format!("{} is no tokentap's control port: /v1/sessions: {error}", self.url))?;
            names.extend(page.sessions.into_iter().map(|entry| entry.session));
            let next = match page.next {
                Value::Null => return Ok(names),
                Value::String(text) => text,
                other => other.to_string(),
            };
            if after.as_ref() == Some(&next) {
                return Err(format!("{}: the list of sessions does not end", self.url));
            }
            after = Some(next);
        }
    }

    async fn send(&self, mut request: reqwest::RequestBuilder) -> Result<reqwest::Response, String> {
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let reply = request.send().await.map_err(|error| self.broken(&error))?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        // whatever cannot be read says less than the status does
        let body = reply.bytes().await.unwrap_or_default();
        Err(format!("{} answered {}{}", self.url, status.as_u16(), explained(&body)))
    }

    fn broken(&self, error: &reqwest::Error) -> String {
        let failed = if error.is_connect() { "cannot connect to" } else { "the connection failed to" };
        format!("{failed} the tokentap at {}: {}", self.url, innermost(error))
    }
}

fn asked(args: &ExportArgs, sessions: Vec<String>, format: Format) -> Value {
    let mut body = json!({
        "sessions": sessions,
        "format": format.name(),
        "pad_token_id": args.pad_token_id,
        "include_branches": !args.no_branches,
    });
    let lengths = [("max_prompt_length", args.max_prompt_length), ("max_response_length", args.max_response_length)];
    for (name, length) in lengths {
        if let Some(length) = length {
            body[name] = length.into();
        }
    }
    // a tokentap that does not know the member refuses it
    if let Some(version) = args.version {
        body["version"] = version.into();
    }
    body
}

/// What a sidecar says of the rows before it sends them: `tokentap-rows`, and `tokentap-refused`, an object of counts by reason.
fn outcome(sessions: usize, headers: &http::HeaderMap) -> Outcome {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    Outcome {
        sessions,
        rows: text("tokentap-rows").and_then(|rows| rows.parse().ok()),
        refused: text("tokentap-refused").and_then(|refused| serde_json::from_str(refused).ok()).unwrap_or_default(),
    }
}

/// The words of `{"error":{"code","message"}}`, or nothing.
fn explained(body: &[u8]) -> String {
    let said = serde_json::from_slice::<Value>(body).unwrap_or_default();
    said["error"]["message"].as_str().map(|message| format!(": {}", message.replace('\n', " "))).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_says_what_became_of_the_rows() {
        let mut headers = http::HeaderMap::new();
        assert_eq!(outcome(2, &headers).to_string(), "2 sessions");
        headers.insert("tokentap-rows", "7".parse().unwrap());
        headers.insert("tokentap-refused", r#"{"aborted":2}"#.parse().unwrap());
        assert_eq!(outcome(2, &headers).to_string(), "7 rows of 2 sessions, refused: 2 aborted");
        headers.insert("tokentap-refused", "2".parse().unwrap());
        assert_eq!(outcome(2, &headers).to_string(), "7 rows of 2 sessions");
    }

    #[test]
    fn errors_are_one_line() {
        assert_eq!(explained(br#"{"error":{"code":"evicted","message":"it\nis gone"}}"#), ": it is gone");
        assert_eq!((explained(b"<html>"), explained(br#"{"error":"x"}"#)), (String::new(), String::new()));
    }
}
