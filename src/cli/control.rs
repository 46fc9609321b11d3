//! A client of the control port of a running tokentap.

mod connection;
#[cfg(not(feature = "tls"))]
#[path = "control/tls_disabled.rs"]
mod tls;
#[cfg(feature = "tls")]
mod tls;

use std::time::Duration;

use bytes::Bytes;
use http::{Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::terminal::printable;
use crate::config::{ControlPortArgs, ControlToken, Secret};
use connection::ControlPort;

/// The timeout of replies that are not exports.
const REPLY_TIMEOUT: Duration = Duration::from_secs(60);

/// The hint for a reply that is not from a control port.
const NOT_CONTROL: &str =
    "; this is not the control port of a tokentap: set --control to it (--control-listen of serve, 30002 by default)";

/// A client of the control port of a running tokentap.
///
/// It does not use `engine::client`, whose requests to SGLang have the keys of SGLang.
#[derive(Debug)]
pub(super) struct ControlClient {
    port: ControlPort,
    token: Option<Secret>,
}

impl ControlClient {
    /// Reads the CA certificates, if any. Connects later.
    ///
    /// # Errors
    /// A line for the user when the address is no URL, or the CA file cannot be used.
    pub(super) fn try_new(args: &ControlPortArgs) -> Result<Self, String> {
        let token = args.control_token.as_ref().and_then(ControlToken::secret).cloned();
        Ok(Self { port: ControlPort::try_new(args)?, token })
    }

    /// The value of `--control`.
    pub(super) fn url(&self) -> &str {
        self.port.url()
    }

    /// Sends GET and parses the JSON reply.
    ///
    /// # Errors
    /// A line for the user when there is no connection, the reply is an error, or it is not the expected JSON.
    pub(super) async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, String> {
        let read = async { self.body(self.send(Request::get(target), String::new()).await?).await };
        let bytes = self.in_time(read).await?;
        let path = target.split('?').next().unwrap_or_default();
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {path}: {error}{NOT_CONTROL}", self.url()))
    }

    /// Sends GET and returns the status and the text of the reply, whatever the status is.
    ///
    /// # Errors
    /// A line for the user when there is no connection.
    pub(super) async fn status(&self, target: &str) -> Result<(StatusCode, String), String> {
        let reply = self.call(Request::get(target), String::new()).await?;
        let status = reply.status();
        let bytes = self.body(reply).await?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Sends POST with JSON and returns the reply, whose body has not been read yet.
    ///
    /// # Errors
    /// A line for the user when there is no connection, or the reply is an error.
    pub(super) async fn post(&self, target: &str, body: String) -> Result<Response<Incoming>, String> {
        self.send(Request::post(target).header(header::CONTENT_TYPE, "application/json"), body).await
    }

    /// Waits for a reply that is short, for at most [`REPLY_TIMEOUT`].
    ///
    /// # Errors
    /// That of the reply, or a line for the user after the timeout.
    pub(super) async fn in_time<T>(&self, reply: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = || format!("{} did not answer within {} s", self.url(), REPLY_TIMEOUT.as_secs());
        tokio::time::timeout(REPLY_TIMEOUT, reply).await.unwrap_or_else(|_| Err(late()))
    }

    /// Reads the body of a reply.
    pub(super) async fn body(&self, reply: Response<Incoming>) -> Result<Bytes, String> {
        let body = reply.into_body().collect().await;
        body.map(http_body_util::Collected::to_bytes).map_err(|error| self.port.connection_error(&error))
    }

    async fn send(&self, request: http::request::Builder, body: String) -> Result<Response<Incoming>, String> {
        let reply = self.call(request, body).await?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        // if the body cannot be read, the status is reported without a message
        let body = self.body(reply).await.unwrap_or_default();
        // without an error message the reply is from another server, or from the data port, which forwards the path to the engine
        let hint = if error_message(&body).is_empty() { NOT_CONTROL } else { "" };
        Err(format!("{} answered {}{}{hint}", self.url(), status.as_u16(), error_message(&body)))
    }

    async fn call(&self, mut request: http::request::Builder, body: String) -> Result<Response<Incoming>, String> {
        if let Some(token) = &self.token {
            request = request.header(header::AUTHORIZATION, format!("Bearer {}", token.expose()));
        }
        let request = request.body(Full::from(body)).map_err(|error| format!("--control-token: {error}"))?;
        self.port.call(request).await
    }
}

/// Percent-encodes a value for a path or a query.
pub(super) fn percent_encoded(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    text.bytes().map(|byte| if plain(byte) { char::from(byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

/// Returns `: ` and the message of `{"error":{"code","message"}}`; an empty string without a message.
fn error_message(body: &[u8]) -> String {
    let reply = serde_json::from_slice::<Value>(body).unwrap_or_default();
    let line = |message: &str| format!(": {}", printable(&message.replace(['\n', '\r', '\t'], " ")));
    reply["error"]["message"].as_str().map(line).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_values_are_percent_encoded() {
        assert_eq!(percent_encoded("a+b~2 &\u{e4}"), "a%2Bb~2%20%26%C3%A4");
    }

    #[test]
    fn error_message_is_one_line() {
        assert_eq!(error_message(br#"{"error":{"code":"evicted","message":"it\nis gone"}}"#), ": it is gone");
        assert_eq!(error_message(br#"{"error":{"message":"\u001b[31mred"}}"#), ": <U+001B>[31mred");
        assert_eq!((error_message(b"<html>"), error_message(br#"{"error":"x"}"#)), (String::new(), String::new()));
    }
}
