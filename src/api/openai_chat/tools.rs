// SPDX-License-Identifier: Apache-2.0
//! Decodes the tools of a chat request.

use std::collections::HashSet;
use std::sync::Arc;

use crate::api::body::invalid;
use crate::api::openai::tools::{self, named_tool};
use crate::chat::RequestError;
use crate::chat::tool_choice::{ToolChoice, name};
use crate::json::Value;

/// The tools of a request.
#[derive(Debug, Default)]
pub(super) struct ChatTools {
    /// The tools in the format of chat templates: functions as the client wrote them, and custom tools as functions.
    pub(super) definitions: Option<Vec<Value>>,
    /// The names of the functions.
    functions: HashSet<String>,
    /// The names of the custom tools.
    pub(super) custom: Arc<HashSet<String>>,
}

impl ChatTools {
    /// Decodes `tools`.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when a tool is neither a function nor a custom tool, when it has no name, or when a custom tool has the
    /// name of another tool.
    pub(super) fn parse(tools: Option<Value>) -> Result<Self, RequestError> {
        let tools = match tools {
            None => return Ok(Self::default()),
            Some(Value::Array(tools)) => tools,
            Some(_) => return Err(invalid("tools must be a list")),
        };
        let (mut definitions, mut custom) = (Vec::with_capacity(tools.len()), HashSet::new());
        let mut functions = HashSet::new();
        for (at, tool) in tools.into_iter().enumerate() {
            let is_custom = match tool.get_str("type") {
                Some("custom") => true,
                None | Some("function") => false,
                // like SGLang, tokentap takes any tool with a function for one
                Some(_) if name(&tool).is_some() => false,
                Some(other) => {
                    return Err(invalid(format!(
                        "tools[{at}].type {other:?} is not supported; send a function or a custom tool"
                    )));
                }
            };
            let definition = if is_custom {
                let tool = named_tool(&tool);
                tools::custom_definition(tool, tool.get_str("name").unwrap_or_default())
            } else {
                tool
            };
            let kind = if is_custom { "custom" } else { "function" };
            let missing = || invalid(format!("tools[{at}].{kind}.name must be a string"));
            let name = name(&definition).filter(|name| !is_custom || !name.is_empty()).ok_or_else(missing)?;
            let (own, others) = if is_custom { (&mut custom, &functions) } else { (&mut functions, &custom) };
            if others.contains(name) {
                return Err(invalid(format!("tools[{at}].{kind}.name: another tool, of another type, has this name")));
            }
            own.insert(name.to_owned());
            definitions.push(definition);
        }
        let definitions = Some(definitions).filter(|definitions| !definitions.is_empty());
        Ok(Self { definitions, functions, custom: Arc::new(custom) })
    }

    /// Decodes `tool_choice`.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is malformed, or when it names a tool that the request does not have.
    pub(super) fn choice(&self, choice: Option<&Value>) -> Result<ToolChoice, RequestError> {
        let shown = |tool: &Value| {
            let name = tool.get_str("name")?;
            (self.functions.contains(name) || self.custom.contains(name)).then(|| name.to_owned())
        };
        tools::tool_choice(choice, self.definitions.is_some(), shown)
    }
}
