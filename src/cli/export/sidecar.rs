//! Sessions from a running tokentap, by its control port.

use bytes::Bytes;
use http::{HeaderMap, Request, Response, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::Deserialize;
use serde_json::{Value, json};

use super::connection::Port;
use super::{Chunks, ExportSource, Outcome};
use crate::config::{ControlToken, ExportArgs, Secret};
use crate::engine::client::innermost;
use crate::export::Format;

/// What to do where the answer is not that of a control port.
const NOT_CONTROL: &str =
    "; this is not the control port of a tokentap: set --control to it (--control-listen of serve, 30002 by default)";

/// Sessions of one page.
const PAGE: usize = 1000;

/// The control port.
///
/// It does not share connections with the client in `engine::client`, which speaks as tokentap to SGLang, with SGLang's keys.
#[derive(Debug)]
pub(super) struct Sidecar {
    port: Port,
    token: Option<Secret>,
}

/// The body of an export.
#[derive(Debug)]
pub(super) struct Reply(Incoming);

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

impl Reply {
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
        Ok(Self { port: Port::try_new(args)?, token })
    }

    /// Asks for the export; its body is still to come.
    pub(super) async fn open(&self, args: &ExportArgs, format: Format) -> Result<ExportSource, String> {
        let sessions = if args.session.is_empty() { self.sessions().await? } else { args.session.clone() };
        let count = sessions.len();
        let body = asked(args, sessions, format).to_string();
        let request = Request::post("/v1/samples").header(header::CONTENT_TYPE, "application/json");
        let reply = self.send(request, body).await?;
        let outcome = outcome(count, reply.headers());
        let length = reply.headers().get(header::CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Ok(ExportSource { length, chunks: Chunks::Sent(Reply(reply.into_body())), outcome })
    }

    /// All sessions, page by page.
    async fn sessions(&self) -> Result<Vec<String>, String> {
        let mut names = Vec::new();
        let mut after: Option<String> = None;
        loop {
            let after_it = after.as_deref().map(|after| format!("&after={}", escaped(after))).unwrap_or_default();
            let target = format!("/v1/sessions?limit={PAGE}{after_it}");
            let reply = self.send(Request::get(target), String::new()).await?;
            let bytes = reply.into_body().collect().await.map_err(|error| self.port.broken(&error))?.to_bytes();
            let page: Page = serde_json::from_slice(&bytes)
                .map_err(|error| format!("{}: /v1/sessions: {error}{NOT_CONTROL}", self.port.url()))?;
            names.extend(page.sessions.into_iter().map(|entry| entry.session));
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
        // a body that cannot be read has less information than the status
        let body = reply.into_body().collect().await.map(|body| body.to_bytes()).unwrap_or_default();
        // another server, or the data port, which forwards the path to the engine
        let elsewhere = if explained(&body).is_empty() { NOT_CONTROL } else { "" };
        Err(format!("{} answered {}{}{elsewhere}", self.port.url(), status.as_u16(), explained(&body)))
    }
}

/// A value, percent-encoded for a query.
fn escaped(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
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
    if args.text {
        body["text"] = true.into();
    }
    body
}

/// The summary of the rows in the headers of a sidecar's reply: `tokentap-rows`, and `tokentap-refused`, an object of counts by reason.
fn outcome(sessions: usize, headers: &HeaderMap) -> Outcome {
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
    fn outcome_is_read_from_the_reply_headers() {
        let mut headers = HeaderMap::new();
        assert_eq!(outcome(2, &headers).to_string(), "2 sessions");
        headers.insert("tokentap-rows", "7".parse().unwrap());
        headers.insert("tokentap-refused", r#"{"aborted":2}"#.parse().unwrap());
        assert_eq!(outcome(2, &headers).to_string(), "7 rows of 2 sessions, refused: 2 aborted");
        headers.insert("tokentap-refused", "2".parse().unwrap());
        assert_eq!(outcome(2, &headers).to_string(), "7 rows of 2 sessions");
    }

    #[test]
    fn query_values_are_percent_encoded() {
        assert_eq!(escaped("a+b~2 &\u{e4}"), "a%2Bb~2%20%26%C3%A4");
    }

    #[test]
    fn errors_are_one_line() {
        assert_eq!(explained(br#"{"error":{"code":"evicted","message":"it\nis gone"}}"#), ": it is gone");
        assert_eq!((explained(b"<html>"), explained(br#"{"error":"x"}"#)), (String::new(), String::new()));
    }
}
