// SPDX-License-Identifier: Apache-2.0
//! A client of the control port of a running tokentap.

use std::time::Duration;

use bytes::Bytes;
use reqwest::{Client, RequestBuilder, Response, StatusCode, header};
use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::cli::terminal::printable;
use crate::config::{ControlPortArgs, ControlToken, Secret};
use crate::engine::transport::failure::innermost;
use crate::tls_client;

/// The timeout of opening a connection. The request has no timeout, because the reply of an export is encoded while it is read.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

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
    client: Client,
    /// The value of `--control`.
    url: String,
    token: Option<Secret>,
}

impl ControlClient {
    /// Reads the CA certificates, if any. Connects later.
    ///
    /// # Errors
    /// A line for the user when the CA file cannot be used.
    pub(super) fn try_new(args: &ControlPortArgs) -> Result<Self, String> {
        tls_client::install_provider();
        let mut builder = Client::builder()
            .no_proxy()
            .redirect(reqwest::redirect::Policy::none())
            .http1_only()
            .connect_timeout(CONNECT_TIMEOUT)
            // the server may close an idle connection when the next request is sent
            .pool_max_idle_per_host(0);
        if let Some(ca) = &args.control_ca {
            let config = tls_client::config(ca, None).map_err(|error| format!("--control-ca {error}"))?;
            builder = builder.tls_backend_preconfigured(config);
        }
        let client = builder.build().map_err(|error| format!("--control: {}", innermost(&error)))?;
        let token = args.control_token.as_ref().and_then(ControlToken::secret).cloned();
        Ok(Self { client, url: args.control.clone(), token })
    }

    /// The value of `--control`.
    pub(super) fn url(&self) -> &str {
        &self.url
    }

    /// Sends GET and parses the JSON reply.
    ///
    /// # Errors
    /// A line for the user when there is no connection, the reply is an error, or it is not the expected JSON.
    pub(super) async fn get<T: DeserializeOwned>(&self, target: &str) -> Result<T, String> {
        // tokentap does not log it: `tokentap top` repeats it every second
        let request = self.client.get(self.at(target)).header("x-tokentap-viewer", "cli");
        let read = async { self.body(self.successful(request).await?).await };
        let bytes = self.in_time(read).await?;
        let path = target.split('?').next().unwrap_or_default();
        serde_json::from_slice(&bytes).map_err(|error| format!("{}: {path}: {error}{NOT_CONTROL}", self.url))
    }

    /// Sends GET and returns the status and the text of the reply, whatever the status is.
    ///
    /// # Errors
    /// A line for the user when there is no connection.
    pub(super) async fn status(&self, target: &str) -> Result<(StatusCode, String), String> {
        let reply = self.send(self.client.get(self.at(target))).await?;
        let status = reply.status();
        let bytes = self.body(reply).await?;
        Ok((status, String::from_utf8_lossy(&bytes).into_owned()))
    }

    /// Sends POST with JSON and returns the reply, whose body has not been read yet.
    ///
    /// # Errors
    /// A line for the user when there is no connection, or the reply is an error.
    pub(super) async fn post(&self, target: &str, body: String) -> Result<Response, String> {
        let request = self.client.post(self.at(target)).header(header::CONTENT_TYPE, "application/json");
        self.successful(request.body(body)).await
    }

    /// Waits for a reply that is short, for at most [`REPLY_TIMEOUT`].
    ///
    /// # Errors
    /// That of the reply, or a line for the user after the timeout.
    pub(super) async fn in_time<T>(&self, reply: impl Future<Output = Result<T, String>>) -> Result<T, String> {
        let late = || format!("{} did not answer within {} s", self.url, REPLY_TIMEOUT.as_secs());
        tokio::time::timeout(REPLY_TIMEOUT, reply).await.unwrap_or_else(|_| Err(late()))
    }

    /// Reads the body of a reply.
    pub(super) async fn body(&self, reply: Response) -> Result<Bytes, String> {
        reply.bytes().await.map_err(|error| self.connection_error(&error))
    }

    fn at(&self, target: &str) -> String {
        format!("{}{target}", self.url)
    }

    async fn successful(&self, request: RequestBuilder) -> Result<Response, String> {
        let reply = self.send(request).await?;
        let status = reply.status();
        if status.is_success() {
            return Ok(reply);
        }
        // if the body cannot be read, the status is reported without a message
        let body = self.body(reply).await.unwrap_or_default();
        // without an error message the reply is from another server, or from the data port, which forwards the path to the engine
        let hint = if error_message(&body).is_empty() { NOT_CONTROL } else { "" };
        Err(format!("{} answered {}{}{hint}", self.url, status.as_u16(), error_message(&body)))
    }

    async fn send(&self, mut request: RequestBuilder) -> Result<Response, String> {
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        request.send().await.map_err(|error| match () {
            () if error.is_builder() => format!("--control or --control-token: {}", innermost(&error)),
            () if error.is_connect() => {
                let cause = innermost(&error);
                format!("cannot connect to the tokentap at {}: {cause}; --control names its control port", self.url)
            }
            () => self.connection_error(&error),
        })
    }

    fn connection_error(&self, error: &reqwest::Error) -> String {
        format!("the connection failed to the tokentap at {}: {}", self.url, innermost(error))
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
