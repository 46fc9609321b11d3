// SPDX-License-Identifier: Apache-2.0
//! Custom tools and choices of tools, as Chat Completions and Responses have them.
//!
//! Chat templates know functions only. So a custom tool, whose input is a text, is shown as a function with one string.

use std::collections::HashSet;

use crate::api::body::invalid;
use crate::chat::tool_choice::ToolChoice;
use crate::chat::{RequestError, dumps};
use crate::json::Value;
use crate::session::TurnKey;

/// The parameter of a custom tool.
const INPUT: &str = "input";

/// The bit of the index in the id of a call that marks a call of a custom tool whose arguments hold no input.
const RAW_CALL: usize = 0x8000;

/// A tool in the format of chat templates.
pub(crate) fn definition(name: &str, description: &str, parameters: Value, strict: Option<Value>) -> Value {
    let members = [("name", name.into()), ("description", description.into()), ("parameters", parameters)];
    let function = Value::object(members.into_iter().chain(strict.map(|strict| ("strict", strict))));
    Value::object([("type", "function".into()), ("function", function)])
}

/// A custom tool in the format of chat templates, under the name that the model sees.
pub(crate) fn custom_definition(tool: &Value, shown: &str) -> Value {
    let text = |value: &Value, name: &str| value.get_str(name).map(str::to_owned);
    let format = tool.get("format").filter(|format| text(format, "type").as_deref() == Some("grammar"));
    // Chat Completions has an object around the grammar
    let grammar = format.map(|format| format.get("grammar").unwrap_or(format)).map(|grammar| {
        let syntax = text(grammar, "syntax").unwrap_or_else(|| "lark".to_owned());
        format!("The input must match this {syntax} grammar:\n{}", text(grammar, "definition").unwrap_or_default())
    });
    let description = text(tool, "description").filter(|description| !description.is_empty());
    let description = description.into_iter().chain(grammar).collect::<Vec<_>>().join("\n\n");
    let input =
        Value::object([("type", "string".into()), ("description", "The whole input of the tool, as text.".into())]);
    let parameters = Value::object([
        ("type", "object".into()),
        ("properties", Value::object([(INPUT, input)])),
        ("required", vec![INPUT.into()].into()),
    ]);
    definition(shown, &description, parameters, None)
}

/// A call of a custom tool in a reply.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct CustomCall {
    /// The id of the call.
    pub(crate) id: String,
    /// The text of the input.
    pub(crate) input: String,
    /// The input is the arguments that the model wrote, because they hold no input.
    pub(crate) is_raw: bool,
}

impl CustomCall {
    /// The call with this id and these arguments. The id of a raw call marks it, unless the model wrote the id.
    pub(crate) fn new(id: String, arguments: String) -> Self {
        match custom_input(&arguments) {
            Some(input) => Self { id, input, is_raw: false },
            None => {
                let key = TurnKey::in_call_id(&id);
                let id = key.map_or(id.clone(), |key| key.call_id(RAW_CALL | TurnKey::call_index(&id)));
                Self { id, input: arguments, is_raw: true }
            }
        }
    }
}

/// The arguments of a call of a custom tool that a client returns.
pub(crate) fn custom_arguments(input: &str, is_raw: bool) -> String {
    if is_raw { input.to_owned() } else { dumps(&Value::object([(INPUT, input.into())])) }
}

/// Whether the id of a call of a custom tool marks it as raw.
pub(crate) fn is_raw_call(call_id: &str) -> bool {
    TurnKey::in_call_id(call_id).is_some() && TurnKey::call_index(call_id) & RAW_CALL != 0
}

/// The input in the arguments of a call of a custom tool, which the model writes as the member `input` of an object. `None` if the arguments
/// are anything else.
fn custom_input(arguments: &str) -> Option<String> {
    match Value::parse(arguments.as_bytes()) {
        Ok(Value::Object(members)) => match <[(String, Value); 1]>::try_from(members) {
            Ok([(name, Value::String(text))]) if name == INPUT => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// Decodes `tool_choice`. `has_tools` is true if the request has a tool that the model may call, and `shown` returns the name that the
/// model sees for an object with the name of a tool.
///
/// # Errors
/// [`RequestError::Invalid`] when it is malformed, or when it names a tool that the request does not have.
pub(crate) fn tool_choice(
    choice: Option<&Value>,
    has_tools: bool,
    shown: impl Fn(&Value) -> Option<String>,
) -> Result<ToolChoice, RequestError> {
    let Some(choice) = choice else { return Ok(ToolChoice::Auto) };
    if let Some(mode) = choice.as_str() {
        return match mode {
            "auto" => Ok(ToolChoice::Auto),
            "none" => Ok(ToolChoice::None),
            "required" if has_tools => Ok(ToolChoice::Required),
            "required" => Err(invalid("Tools cannot be empty if tool choice is set to required.")),
            _ => Err(invalid(format!("tool_choice {mode:?} is not one of auto, none, required and an object"))),
        };
    }
    match choice.get("type").map_or(Some("function"), Value::as_str) {
        Some("function" | "custom") => {
            let tool = named_tool(choice);
            let name = tool.get_str("name").unwrap_or_default();
            if name.is_empty() {
                return Err(invalid("tool_choice.name must be a string"));
            }
            let shown = shown(tool).ok_or_else(|| invalid(format!("Tool '{name}' not found in tools list.")))?;
            Ok(ToolChoice::Named(shown))
        }
        Some("allowed_tools") => {
            let allowed = choice.get("allowed_tools").unwrap_or(choice);
            let named = allowed.get("tools").and_then(Value::as_array).unwrap_or_default();
            let names = named.iter().filter_map(|named| shown(named_tool(named))).collect::<HashSet<_>>();
            match allowed.get_str("mode") {
                Some("required") if names.is_empty() => {
                    Err(invalid("tool_choice: none of the allowed tools is a function or custom tool of the request"))
                }
                Some("required") => Ok(ToolChoice::OneOf(names)),
                // the tools stay in the prompt, so that it continues the earlier one; no grammar can forbid the others
                Some("auto") => Ok(ToolChoice::Auto),
                _ => Err(invalid("tool_choice: the mode of allowed_tools must be auto or required")),
            }
        }
        kind => Err(invalid(format!(
            "tool_choice.type {:?} is not one of function, custom, allowed_tools",
            kind.unwrap_or_default()
        ))),
    }
}

/// The object with the name of a tool. Chat Completions has it inside another one.
pub(crate) fn named_tool(tool: &Value) -> &Value {
    let inner = ["function", "custom"].iter().find_map(|name| tool.get(name));
    inner.filter(|inner| inner.get("name").is_some()).unwrap_or(tool)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn input_of_a_custom_tool_survives_the_round_trip() {
        for input in ["", "*** Begin Patch\n\"é\\\n", "{}", r#"{"input":"x"}"#] {
            assert_eq!(custom_input(&custom_arguments(input, false)).as_deref(), Some(input));
        }
        for arguments in ["no JSON", "[1]", r#"{"input":1}"#, r#"{"patch":"x"}"#, r#"{"input":"x","more":1}"#] {
            let call = CustomCall::new(TurnKey::of("rid", 0).call_id(1), arguments.to_owned());
            assert!(call.is_raw && is_raw_call(&call.id), "{arguments}");
            assert_eq!(custom_arguments(&call.input, is_raw_call(&call.id)), arguments);
        }
    }
}
