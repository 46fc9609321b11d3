//! Exports sessions from a running tokentap, through its control port.

use std::collections::HashSet;

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connection::ControlPort;
use super::{Chunks, ExportSource, ExportSummary};
use crate::config::{ControlToken, ExportArgs, Secret};
use crate::engine::client::innermost;
use crate::export::Format;

/// The hint for a reply that is not from a control port.
const NOT_CONTROL: &str =
    "; this is not the control port of a tokentap: set --control to it (--control-listen of serve, 30002 by default)";

/// The number of sessions in a page of the list.
const PAGE_SIZE: usize = 1000;

/// A client of the control port of a running tokentap.
///
/// It does not use `engine::client`, whose requests to SGLang have the keys of SGLang.
#[derive(Debug)]
pub(super) struct Sidecar {
    port: ControlPort,
    token: Option<Secret>,
}

/// The body of the reply to an export request.
#[derive(Debug)]
pub(super) struct ExportBody(Incoming);

#[derive(Deserialize)]
struct Page {
    sessions: Vec<SessionEntry>,
    #[serde(default)]
    next: Value,
}

#[derive(Deserialize)]
struct SessionEntry {
    session: String,
}

impl ExportBody {
    /// Returns the next bytes; `None` at the end.
    pub(super) async fn chunk(&mut self) -> Result<Option<Bytes>, String> {
        while let Some(frame) = self.0.frame().await {
            let frame = frame.map_err(|error| format!("the export broke off: {}", innermost(&error)))?;
            if let Ok(chunk) = frame.into_data() {
                return Ok(Some(chunk));
            }
        }
        Ok(None)
    }
}

impl Sidecar {
    pub(super) fn try_new(args: &ExportArgs) -> Result<Self, String> {
        let token = args.control_token.as_ref().and_then(ControlToken::secret).cloned();
        Ok(Self { port: ControlPort::try_new(args)?, token })
    }

    /// Requests the export. The body of the reply is read later.
    pub(super) async fn open(&self, args: &ExportArgs, format: Format) -> Result<ExportSource, String> {
        let sessions = if args.session.is_empty() { self.sessions().await? } else { args.session.clone() };
        let count = sessions.len();
        let body = request_body(args, sessions, format).to_string();
        let request = Request::post("/v1/samples").header(header::CONTENT_TYPE, "application/json");
        let reply = self.send(request, body).await?;
        let summary = summary(count, reply.headers());
        let length = reply.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(ExportSource { length, chunks: Chunks::Remote(ExportBody(reply.into_body())), summary })
    }

    /// Returns the names of all sessions. Requests the list page by page. A shared session that is used meanwhile is listed again.
    async fn sessions(&self) -> Result<Vec<String>, String> {
        let (mut names, mut known) = (Vec::new(), HashSet::new());
        let mut after: Option<String> = None;
        loop {
            let after_it =
                after.as_deref().map(|after| format!("&after={}", percent_encoded(after))).unwrap_or_default();
            let target = format!("/v1/sessions?limit={PAGE_SIZE}{after_it}");
            let reply = self.send(Request::get(target), String::new()).await?;
            let bytes =
                reply.into_body().collect().await.map_err(|error| self.port.connection_error(&error))?.to_bytes();
            let page: Page = serde_json::from_slice(&bytes)
                .map_err(|error| format!("{}: /v1/sessions: {error}{NOT_CONTROL}", self.port.url()))?;
            let listed = page.sessions.into_iter().map(|entry| entry.session);
            names.extend(listed.filter(|name| known.insert(name.clone())));
            let next = match page.next {
                Value::Null => return Ok(names),
                Value::String(text) => text,
                other => other.to_string(),
            };
            if after.as_ref() == Some(&next) {
                return Err(format!("{}: the list of sessions does not end", self.port.url()));
            }
            after = Some(next);
        }
    }

    async fn send(&self, mut request: http::request::Builder, body: String) -> Result<Response<Incoming>, String> {
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(Full::from(body)).map_err(|error| format!("--control-token: {error}"))?;
        let reply = self.port.call(request).await?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        // if the body cannot be read, the status is reported without a message
        let body = reply.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        // without an error message the reply is from another server, or from the data port, which forwards the path to the engine
        let hint = if error_message(&body).is_empty() { NOT_CONTROL } else { "" };
        Err(format!("{} answered {}{}{hint}", self.port.url(), status.as_u16(), error_message(&body)))
    }
}

/// Percent-encodes a value for a query.
fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// The body of the export request.
fn request_body(args: &ExportArgs, sessions: Vec<String>, format: Format) -> Value {
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
    // set only if needed, because an older tokentap refuses unknown members
    if let Some(version) = args.version {
        body["version"] = version.into();
    }
    if args.text {
        body["text"] = true.into();
    }
    if !args.classes.is_empty() {
        body["classes"] = json!(args.classes);
    }
    body
}

/// Parses the summary from the headers of a reply: `tokentap-rows`, and `tokentap-refused`, a JSON object of counts by reason.
fn summary(sessions: usize, headers: &HeaderMap) -> ExportSummary {
    let text = |name| headers.get(name).and_then(|value| value.to_str().ok());
    ExportSummary {
        sessions,
        rows: text("tokentap-rows").and_then(|rows| rows.parse().ok()),
        refused: text("tokentap-refused").and_then(|refused| serde_json::from_str(refused).ok()).unwrap_or_default(),
    }
}

/// Returns `: ` and the message of `{"error":{"code","message"}}`; an empty string without a message.
fn error_message(body: &[u8]) -> String {
    let reply = serde_json::from_slice::<Value>(body).unwrap_or_default();
    reply["error"]["message"].as_str().map(|message| format!(": {}", message.replace('\n', " "))).unwrap_or_default()
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

    #[test]
    fn query_values_are_percent_encoded() {
        assert_eq!(percent_encoded("a+b~2 &\u{e4}"), "a%2Bb~2%20%26%C3%A4");
    }

    #[test]
    fn error_message_is_one_line() {
        assert_eq!(error_message(br#"{"error":{"code":"evicted","message":"it\nis gone"}}"#), ": it is gone");
        assert_eq!((error_message(b"<html>"), error_message(br#"{"error":"x"}"#)), (String::new(), String::new()));
    }
}
