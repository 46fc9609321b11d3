//! Calls the engine's tokenizer over HTTP.

use http::Method;
use serde::Deserialize;

use super::client::Client;

#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Tokens {
    One(Vec<u32>),
    Many(Vec<Vec<u32>>),
}

#[derive(Debug, Deserialize)]
struct TokenizeReply {
    tokens: Tokens,
}

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
    let answer: TokenizeReply = serde_json::from_slice(&answer).map_err(|error| format!("/tokenize: {error}"))?;
    Ok(match answer.tokens {
        Tokens::One(ids) => vec![ids],
        Tokens::Many(lists) => lists,
    })
}
