//! Calls the engine's tokenizer over HTTP.

use http::Method;

use crate::engine::transport::client::Client;
use crate::json::Object;

/// Returns the ids that /generate would use for a prompt, or for a list of prompts. `text` is its JSON text.
///
/// # Errors
/// A line for the log when the engine has no such route or no tokenizer.
pub(crate) async fn tokenize(client: &Client, text: &str) -> Result<Vec<Vec<u32>>, String> {
    let body = format!("{{\"prompt\":{text},\"add_special_tokens\":true}}");
    let answer = client.call(Method::POST, "/tokenize", Some(body)).await;
    let (status, answer) = answer.map_err(|error| error.to_string())?;
    if !status.is_success() {
        return Err(format!("/tokenize answered {status}"));
    }
    let object = Object::parse(&answer).map_err(|error| format!("/tokenize: the reply is {error}"))?;
    let tokens = object.get(&answer, "tokens").ok_or("/tokenize: the reply has no tokens")?;
    // a derived enumeration of both forms would copy the list into values of 32 bytes
    let is_nested = tokens.strip_prefix(b"[").is_some_and(|inner| inner.trim_ascii_start().starts_with(b"["));
    let lists = match is_nested {
        true => serde_json::from_slice(tokens),
        false => serde_json::from_slice(tokens).map(|ids| vec![ids]),
    };
    lists.map_err(|error| format!("/tokenize: {error}"))
}
