// SPDX-License-Identifier: Apache-2.0
//! Converts the tools of a request to the format of chat templates, and their names back.
//!
//! Templates know functions only. So the name of a tool in a namespace begins with the namespace.

use std::collections::HashMap;

use crate::api::body::{SkippedParts, invalid};
use crate::api::openai::tools;
use crate::chat::tool_choice::ToolChoice;
use crate::chat::{RequestError, quoted};
use crate::json::Value;
use crate::session::Digest;

/// The text between a namespace and the name of its tool.
const SEPARATOR: &str = "__";

/// The maximum length of a name in bytes. Longer names end with a hash.
const MAX_NAME: usize = 128;

/// Tools of OpenAI that the client executes. Without them an agent could not work, so they are not left out.
const CLIENT_TOOLS: [&str; 5] = ["local_shell", "shell", "apply_patch", "computer", "computer_use_preview"];

/// The tools of a request, in the order in which they occur.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Tools {
    list: Vec<Tool>,
    /// The indexes of the tools by the names that the client knows.
    by_name: HashMap<ToolName, usize>,
    /// The indexes of the tools by the names that the model sees.
    by_shown: HashMap<String, usize>,
    /// By a name that several tools would have: the number of these tools.
    equal_names: HashMap<String, u32>,
}

/// A tool of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tool {
    /// The name that the model sees.
    shown: String,
    /// The namespace and the name that the client knows.
    pub(super) name: ToolName,
    /// It is a custom tool, whose input is a text.
    pub(super) is_custom: bool,
    /// The tool in the format of chat templates.
    definition: Value,
}

/// The name of a tool as the client knows it.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct ToolName {
    pub(super) namespace: Option<String>,
    pub(super) name: String,
}

impl ToolName {
    /// Reads `name` and `namespace` of a tool, a call, or a choice. `None` without a name.
    pub(super) fn parse(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get_str(name).filter(|text| !text.is_empty());
        Some(Self { namespace: text("namespace").map(str::to_owned), name: text("name")?.to_owned() })
    }

    /// The members of a call, as JSON text.
    pub(super) fn members(&self) -> String {
        let namespace = self.namespace.as_ref().map(|namespace| format!(",\"namespace\":{}", quoted(namespace)));
        format!("\"name\":{}{}", quoted(&self.name), namespace.unwrap_or_default())
    }

    /// The name with its namespace.
    fn flat(&self) -> String {
        let flat = match &self.namespace {
            None => self.name.clone(),
            Some(namespace) if namespace.ends_with(SEPARATOR) => format!("{namespace}{}", self.name),
            Some(namespace) => format!("{namespace}{SEPARATOR}{}", self.name),
        };
        short(flat)
    }
}

/// A name that is not longer than [`MAX_NAME`].
fn short(name: String) -> String {
    if name.len() <= MAX_NAME {
        return name;
    }
    let hash = Digest::sha256(name.as_bytes());
    let hash: String = hash.as_bytes()[..8].iter().map(|byte| format!("{byte:02x}")).collect();
    let length = (0..MAX_NAME - hash.len()).rev().find(|length| name.is_char_boundary(*length));
    format!("{}_{hash}", &name[..length.unwrap_or_default()])
}

impl Tools {
    /// Adds the tools of a list. Tools that OpenAI's servers execute are skipped.
    ///
    /// # Errors
    /// [`RequestError::Invalid`].
    pub(super) fn add(
        &mut self,
        tools: Option<&Value>,
        place: &str,
        skipped: &mut SkippedParts,
    ) -> Result<(), RequestError> {
        let Some(tools) = tools else { return Ok(()) };
        let Some(tools) = tools.as_array() else { return Err(invalid(format!("{place} must be a list"))) };
        for (at, tool) in tools.iter().enumerate() {
            self.add_tool(tool, None, &format!("{place}[{at}]"), skipped)?;
        }
        Ok(())
    }

    fn add_tool(
        &mut self,
        tool: &Value,
        namespace: Option<&str>,
        place: &str,
        skipped: &mut SkippedParts,
    ) -> Result<(), RequestError> {
        let kind = tool.get_str("type").unwrap_or("function");
        // some clients send the tools of a chat request
        let tool = tools::named_tool(tool);
        if CLIENT_TOOLS.contains(&kind) {
            return Err(invalid(format!(
                "{place}.type: the client executes {kind:?}, and its calls are not supported; send a function or a custom tool"
            )));
        }
        if !matches!(kind, "function" | "custom" | "namespace") {
            return skipped.add(kind);
        }
        let name = ToolName::parse(tool).ok_or_else(|| invalid(format!("{place}.name must be a string")))?;
        if kind == "namespace" {
            let tools = tool.get("tools").and_then(Value::as_array).unwrap_or_default();
            for (at, tool) in tools.iter().enumerate() {
                self.add_tool(tool, Some(&name.name), &format!("{place}.tools[{at}]"), skipped)?;
            }
            return Ok(());
        }
        let name = ToolName { namespace: namespace.map(str::to_owned), ..name };
        let is_custom = kind == "custom";
        if let Some(known) = self.by_name.get(&name) {
            return match self.list[*known].is_custom == is_custom {
                // clients repeat tools in the input
                true => Ok(()),
                false => Err(invalid(format!("{place}.name: another tool, of another type, has this name"))),
            };
        }
        let flat = name.flat();
        let mut shown = flat.clone();
        while self.named(&shown).is_some() {
            let count = self.equal_names.entry(flat.clone()).or_insert(1);
            *count += 1;
            shown = short(format!("{flat}_{count}"));
        }
        let definition = if is_custom { tools::custom_definition(tool, &shown) } else { function(tool, &shown) };
        self.by_name.insert(name.clone(), self.list.len());
        self.by_shown.insert(shown.clone(), self.list.len());
        self.list.push(Tool { shown, name, is_custom, definition });
        Ok(())
    }

    /// The tools in the format of chat templates. `None` without tools.
    pub(super) fn definitions(&self) -> Option<Vec<Value>> {
        let definitions: Vec<Value> = self.list.iter().map(|tool| tool.definition.clone()).collect();
        Some(definitions).filter(|definitions| !definitions.is_empty())
    }

    /// The tool with the name that the model sees.
    pub(super) fn named(&self, shown: &str) -> Option<&Tool> {
        self.by_shown.get(shown).map(|at| &self.list[*at])
    }

    /// The name that the model sees for a tool, which may be missing in this request.
    pub(super) fn shown_name(&self, name: &ToolName) -> String {
        self.shown(name).map_or_else(|| name.flat(), str::to_owned)
    }

    fn shown(&self, name: &ToolName) -> Option<&str> {
        self.by_name.get(name).map(|at| self.list[*at].shown.as_str())
    }

    /// Decodes `tool_choice`.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is malformed, or when it names a tool that the request does not have.
    pub(super) fn choice(&self, choice: Option<&Value>) -> Result<ToolChoice, RequestError> {
        let shown = |tool: &Value| self.shown(&ToolName::parse(tool)?).map(str::to_owned);
        tools::tool_choice(choice, !self.list.is_empty(), shown)
    }
}

/// A function in the format of chat templates.
fn function(tool: &Value, shown: &str) -> Value {
    let parameters = tool.get("parameters").filter(|parameters| **parameters != Value::Null).cloned();
    let empty = || Value::object([("type", "object".into()), ("properties", Value::Object(Vec::new()))]);
    let description = tool.get_str("description").unwrap_or_default();
    let strict = tool.get("strict").filter(|strict| **strict != Value::Null).cloned();
    tools::definition(shown, description, parameters.unwrap_or_else(empty), strict)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tools(list: &str) -> Tools {
        let mut tools = Tools::default();
        tools.add(Some(&Value::parse(list.as_bytes()).unwrap()), "tools", &mut SkippedParts::new(false)).unwrap();
        tools
    }

    fn name(namespace: Option<&str>, name: &str) -> ToolName {
        ToolName { namespace: namespace.map(str::to_owned), name: name.to_owned() }
    }

    #[test]
    fn names_of_namespaced_tools_are_flattened_and_split_back() {
        let long = "x".repeat(200);
        let list = format!(
            r#"[{{"type":"namespace","name":"a","tools":[{{"type":"function","name":"f"}},{{"type":"function","name":"{long}"}}]}},
                {{"type":"namespace","name":"mcp__b__","tools":[{{"type":"custom","name":"f"}}]}},
                {{"type":"function","name":"a__f"}},{{"type":"web_search"}},{{"type":"function","name":"a__f"}}]"#
        );
        let tools = tools(&list);
        for (shown, expected) in
            [("a__f", name(Some("a"), "f")), ("mcp__b__f", name(Some("mcp__b__"), "f")), ("a__f_2", name(None, "a__f"))]
        {
            assert_eq!(tools.named(shown).map(|tool| &tool.name), Some(&expected), "{shown}");
            assert_eq!(tools.shown_name(&expected), shown);
        }
        let shown = tools.shown_name(&name(Some("a"), &long));
        assert_eq!((shown.len(), &shown[..4]), (MAX_NAME, "a__x"));
        assert_eq!(tools.list.len(), 4, "a repeated tool is listed once, and a hosted tool is skipped");
        assert_eq!(tools.shown_name(&name(Some("gone"), "f")), "gone__f");
    }

    #[test]
    fn equal_names_of_many_tools_get_different_short_names() {
        let long = "x".repeat(200);
        let namespaced = |at: usize| {
            format!(
                r#"{{"type":"namespace","name":"{}","tools":[{{"type":"function","name":"{}"}}]}}"#,
                "a_".repeat(at + 1),
                "f"
            )
        };
        let list: Vec<String> = (0..200).map(namespaced).collect();
        let tools = tools(&format!(r#"[{},{{"type":"function","name":"{long}"}}]"#, list.join(",")));
        assert_eq!(tools.by_shown.len(), 201);
        assert!(tools.list.iter().all(|tool| tool.shown.len() <= MAX_NAME));
        let equal = r#"[{"type":"function","name":"a__b"},{"type":"namespace","name":"a","tools":[{"type":"function","name":"b"}]},
            {"type":"namespace","name":"a__","tools":[{"type":"function","name":"b"}]}]"#;
        let tools = super::tests::tools(equal);
        let shown: Vec<&str> = tools.list.iter().map(|tool| tool.shown.as_str()).collect();
        assert_eq!(shown, ["a__b", "a__b_2", "a__b_3"]);
    }

    #[test]
    fn tools_of_two_types_cannot_have_one_name() {
        let list = Value::parse(br#"[{"type":"function","name":"f"},{"type":"custom","name":"f"}]"#).unwrap();
        let error = Tools::default().add(Some(&list), "tools", &mut SkippedParts::new(false)).unwrap_err();
        assert!(error.to_string().starts_with("tools[1].name"), "{error}");
    }
}
