// SPDX-License-Identifier: Apache-2.0
//! Converts the tools of a request to the format of chat templates.

use super::client_tools;
use crate::api::body::{SkippedParts, invalid};
use crate::api::openai::tools::definition;
use crate::chat::RequestError;
use crate::chat::tool_choice::{self, ToolChoice};
use crate::json::Value;

/// Converts `tools`. Tools of Anthropic that the client executes get their published schema. Those that Anthropic's servers execute are
/// skipped. Tools with `defer_loading` are shown like all others, so that the prompt does not change when the client refers to one. `None` if
/// no tool remains.
///
/// # Errors
/// [`RequestError::Invalid`].
pub(super) fn tools(tools: Option<Value>, skipped: &mut SkippedParts) -> Result<Option<Vec<Value>>, RequestError> {
    let Some(tools) = tools else { return Ok(None) };
    let Value::Array(tools) = tools else { return Err(invalid("tools: must be a list")) };
    let mut converted = Vec::with_capacity(tools.len());
    for (at, tool) in tools.iter().enumerate() {
        let kind = tool.get_str("type").unwrap_or("custom");
        if kind == "custom" || tool.get("input_schema").is_some() {
            converted.push(function(tool, at)?);
        } else if let Some(tool) = client_tools::with_schema(tool, kind, at)? {
            converted.push(function(&tool, at)?);
        } else {
            skipped.add(kind)?;
        }
    }
    Ok(Some(converted).filter(|tools| !tools.is_empty()))
}

fn function(tool: &Value, at: usize) -> Result<Value, RequestError> {
    let name = tool.get_str("name").filter(|name| !name.is_empty());
    let name = name.ok_or_else(|| invalid(format!("tools.{at}.name: Field required")))?;
    let Some(Value::Object(schema)) = tool.get("input_schema") else {
        return Err(invalid(format!("tools.{at}.input_schema: must be an object")));
    };
    let mut schema = schema.clone();
    if !schema.iter().any(|(name, _)| name == "type") {
        schema.push(("type".to_owned(), "object".into()));
    }
    let description = tool.get_str("description").unwrap_or_default();
    Ok(definition(name, description, Value::Object(schema), tool.get("strict").cloned()))
}

/// Which tools the model may or must call, and whether it may call several at once.
///
/// # Errors
/// [`RequestError::Invalid`] when a call is forced and the tool does not exist.
pub(super) fn choice(choice: Option<&Value>, tools: Option<&[Value]>) -> Result<(ToolChoice, bool), RequestError> {
    let Some(choice) = choice else { return Ok((ToolChoice::Auto, true)) };
    let parallel = choice.get("disable_parallel_tool_use") != Some(&Value::Bool(true));
    let kind = choice.get_str("type").unwrap_or_default();
    let choice = match kind {
        "auto" => ToolChoice::Auto,
        "none" => ToolChoice::None,
        "any" | "tool" if tools.is_none() => {
            return Err(invalid(format!(
                "tool_choice: {kind:?} needs at least one tool that Anthropic's servers do not execute"
            )));
        }
        "any" => ToolChoice::Required,
        "tool" => {
            let name = choice.get_str("name").unwrap_or_default();
            if !tools.unwrap_or_default().iter().any(|tool| tool_choice::name(tool) == Some(name)) {
                return Err(invalid(format!(
                    "tool_choice: there is no tool {name:?} that Anthropic's servers do not execute"
                )));
            }
            ToolChoice::Named(name.to_owned())
        }
        _ => return Err(invalid("tool_choice.type: must be auto, any, tool or none")),
    };
    Ok((choice, parallel))
}
