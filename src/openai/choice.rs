//! `tool_choice`, and the grammar of a call that is forced.

use super::{Unserved, wrong};
use crate::json::Value;

/// Whether the model may call, must call, or must call one tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may.
    Auto,
    /// It may not.
    None,
    /// It must.
    Required,
    /// It must call this one.
    Named(String),
}

impl ToolChoice {
    /// Reads `tool_choice`; every tool has a name.
    ///
    /// # Errors
    /// When it is no choice, or there is nothing to choose from.
    pub(super) fn read(value: Option<&Value>, tools: Option<&[Value]>) -> Result<Self, Unserved> {
        let tools = tools.unwrap_or_default();
        if let Some(at) = tools.iter().position(|tool| name(tool).is_none()) {
            return Err(wrong(format!("tools[{at}].function.name must be a string")));
        }
        let choice = match value {
            None => return Ok(Self::Auto),
            Some(Value::String(choice)) => match choice.as_str() {
                "auto" => return Ok(Self::Auto),
                "none" => return Ok(Self::None),
                "required" => Self::Required,
                other => {
                    return Err(wrong(format!("tool_choice {other:?} is none of auto, none, required and a function")));
                }
            },
            Some(choice) => {
                let name = name(choice).ok_or_else(|| wrong("tool_choice.function.name must be a string"))?;
                Self::Named(name.to_owned())
            }
        };
        match &choice {
            Self::Required if tools.is_empty() => {
                Err(wrong("Tools cannot be empty if tool choice is set to required."))
            }
            Self::Named(_) if tools.is_empty() => {
                Err(wrong("Tools cannot be empty if tool choice is set to a specific tool."))
            }
            Self::Named(named) if !tools.iter().any(|tool| name(tool) == Some(named)) => {
                Err(wrong(format!("Tool '{named}' not found in tools list.")))
            }
            _ => Ok(choice),
        }
    }

    /// Whether the reply is a list of calls and nothing else.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }

    /// The JSON schema of a forced reply: a list of calls, as SGLang has it where a format has no grammar of its own. The same for every
    /// format, because this one holds the model to the name and to the parameters.
    pub(super) fn schema(&self, tools: &[Value], parallel: bool) -> Option<Value> {
        if !self.is_forced() {
            return None;
        }
        let allowed = tools.iter().filter(|tool| match self {
            Self::Named(named) => name(tool) == Some(named),
            _ => true,
        });
        let calls: Vec<Value> = allowed.filter_map(call).collect();
        let items = match <[Value; 1]>::try_from(calls) {
            Ok([only]) => only,
            Err(calls) => object([("type", "object".into()), ("anyOf", calls.into())]),
        };
        let number = |text: &str| Value::Number(text.into());
        let mut schema = vec![("type", "array".into()), ("minItems", number("1"))];
        if !parallel || matches!(self, Self::Named(_)) {
            schema.push(("maxItems", number("1")));
        }
        schema.push(("items", items));
        Some(object(schema))
    }
}

/// `function.name`.
fn name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

/// The schema of a call of one tool.
fn call(tool: &Value) -> Option<Value> {
    let none = || object([("type", "object".into()), ("properties", Value::Object(Vec::new()))]);
    let parameters = tool.get("function")?.get("parameters").cloned().unwrap_or_else(none);
    let named = object([("type", "string".into()), ("enum", vec![name(tool)?.into()].into())]);
    let properties = object([("name", named), ("parameters", parameters)]);
    let required = vec!["name".into(), "parameters".into()];
    Some(object([("type", "object".into()), ("properties", properties), ("required", required.into())]))
}

fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
}
