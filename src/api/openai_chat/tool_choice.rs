//! Decodes `tool_choice`.

use crate::chat::RequestError;
use crate::chat::tool_choice::{ToolChoice, name};
use crate::json::Value;

/// Decodes `tool_choice`, after checking that each tool has a name.
///
/// # Errors
/// [`RequestError::Invalid`] when a tool has no name, the choice is unknown, or the chosen tool is not in `tools`.
pub(super) fn tool_choice(value: Option<&Value>, tools: Option<&[Value]>) -> Result<ToolChoice, RequestError> {
    let tools = tools.unwrap_or_default();
    if let Some(at) = tools.iter().position(|tool| name(tool).is_none()) {
        return Err(RequestError::invalid(format!("tools[{at}].function.name must be a string")));
    }
    let choice = match value {
        None => return Ok(ToolChoice::Auto),
        Some(Value::String(choice)) => match choice.as_str() {
            "auto" => return Ok(ToolChoice::Auto),
            "none" => return Ok(ToolChoice::None),
            "required" => ToolChoice::Required,
            other => {
                return Err(RequestError::invalid(format!(
                    "tool_choice {other:?} is none of auto, none, required and a function"
                )));
            }
        },
        Some(choice) => {
            let name =
                name(choice).ok_or_else(|| RequestError::invalid("tool_choice.function.name must be a string"))?;
            ToolChoice::Named(name.to_owned())
        }
    };
    match &choice {
        ToolChoice::Required if tools.is_empty() => {
            Err(RequestError::invalid("Tools cannot be empty if tool choice is set to required."))
        }
        ToolChoice::Named(_) if tools.is_empty() => {
            Err(RequestError::invalid("Tools cannot be empty if tool choice is set to a specific tool."))
        }
        ToolChoice::Named(named) if !tools.iter().any(|tool| name(tool) == Some(named)) => {
            Err(RequestError::invalid(format!("Tool '{named}' not found in tools list.")))
        }
        _ => Ok(choice),
    }
}
