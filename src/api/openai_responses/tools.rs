//! Converts the tools of a request to the format of chat templates, and their names back.
//!
//! Templates know functions only. So a custom tool is shown as a function with one string, and the name of a tool in a namespace begins with
//! the namespace.

use std::collections::{HashMap, HashSet};

use crate::api::body::invalid;
use crate::api::skipped_parts::SkippedParts;
use crate::chat::tool_choice::ToolChoice;
use crate::chat::{RequestError, dumps, quoted};
use crate::json::Value;
use crate::session::Digest;

/// The text between a namespace and the name of its tool.
const SEPARATOR: &str = "__";

/// The maximum length of a name in bytes. Longer names end with a hash.
const MAX_NAME: usize = 128;

/// The parameter of a custom tool.
const INPUT: &str = "input";

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
    pub(super) fn of(value: &Value) -> Option<Self> {
        let text = |name: &str| value.get(name).and_then(Value::as_str).filter(|text| !text.is_empty());
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
        let kind = tool.get("type").and_then(Value::as_str).unwrap_or("function");
        // some clients send the tools of a chat request
        let tool = tool.get("function").filter(|function| function.get("name").is_some()).unwrap_or(tool);
        if !matches!(kind, "function" | "custom" | "namespace") {
            return skipped.add(kind);
        }
        let name = ToolName::of(tool).ok_or_else(|| invalid(format!("{place}.name must be a string")))?;
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
        let definition = if is_custom { custom(tool, &shown) } else { function(tool, &shown) };
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
}

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Choice {
    /// The choice for the prompt.
    pub(super) tool_choice: ToolChoice,
    /// The names of the tools to which a forced call is restricted, as the model sees them. `None` for all tools.
    allowed: Option<HashSet<String>>,
}

impl Choice {
    /// Reads `tool_choice`.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] when it is malformed, or when it names a tool that the request does not have.
    pub(super) fn of(choice: Option<&Value>, tools: &Tools) -> Result<Self, RequestError> {
        let all = |tool_choice| Ok(Self { tool_choice, allowed: None });
        let required = |allowed: Option<HashSet<String>>| match &allowed {
            None if tools.list.is_empty() => {
                Err(invalid("tool_choice: a required call needs a function or custom tool"))
            }
            Some(allowed) if allowed.is_empty() => {
                Err(invalid("tool_choice: none of the allowed tools is a function or custom tool of the request"))
            }
            _ => Ok(Self { tool_choice: ToolChoice::Required, allowed }),
        };
        let Some(choice) = choice else { return all(ToolChoice::Auto) };
        if let Some(mode) = choice.as_str() {
            return match mode {
                "auto" => all(ToolChoice::Auto),
                "none" => all(ToolChoice::None),
                "required" => required(None),
                _ => Err(invalid(format!("tool_choice {mode:?} is none of auto, none, required"))),
            };
        }
        match choice.get("type").and_then(Value::as_str) {
            Some("function" | "custom") => {
                let name = ToolName::of(choice.get("function").unwrap_or(choice));
                let name = name.ok_or_else(|| invalid("tool_choice.name must be a string"))?;
                let shown = tools.shown(&name);
                let shown = shown.ok_or_else(|| invalid(format!("tool_choice: there is no tool {:?}", name.name)))?;
                all(ToolChoice::Named(shown.to_owned()))
            }
            Some("allowed_tools") => {
                let named = choice.get("tools").and_then(Value::as_array).unwrap_or_default();
                let names = named.iter().filter_map(|tool| ToolName::of(tool.get("function").unwrap_or(tool)));
                let allowed = names.filter_map(|name| tools.shown(&name).map(str::to_owned)).collect();
                match choice.get("mode").and_then(Value::as_str) {
                    Some("required") => required(Some(allowed)),
                    // the tools stay in the prompt, so that it continues the earlier one; no grammar can forbid the others
                    _ => all(ToolChoice::Auto),
                }
            }
            kind => Err(invalid(format!(
                "tool_choice.type {:?} is none of function, custom, allowed_tools",
                kind.unwrap_or_default()
            ))),
        }
    }

    /// The JSON schema of a forced call; `None` if no call is forced. With `parallel`, there may be several calls.
    pub(super) fn schema(&self, tools: &Tools, parallel: bool) -> Option<Value> {
        let is_allowed = |tool: &&Tool| self.allowed.as_ref().is_none_or(|allowed| allowed.contains(&tool.shown));
        let definitions: Vec<Value> =
            tools.list.iter().filter(is_allowed).map(|tool| tool.definition.clone()).collect();
        self.tool_choice.schema(&definitions, parallel)
    }
}

/// A function in the format of chat templates.
fn function(tool: &Value, shown: &str) -> Value {
    let parameters = tool.get("parameters").filter(|parameters| **parameters != Value::Null).cloned();
    let empty = || object([("type", "object".into()), ("properties", Value::Object(Vec::new()))]);
    let description = tool.get("description").and_then(Value::as_str).unwrap_or_default();
    let strict = tool.get("strict").filter(|strict| **strict != Value::Null).cloned();
    definition(shown, description, parameters.unwrap_or_else(empty), strict)
}

/// A custom tool as a function with one string.
fn custom(tool: &Value, shown: &str) -> Value {
    let text = |value: &Value, name: &str| value.get(name).and_then(Value::as_str).map(str::to_owned);
    let grammar = tool.get("format").filter(|format| text(format, "type").as_deref() == Some("grammar"));
    let grammar = grammar.map(|format| {
        let syntax = text(format, "syntax").unwrap_or_else(|| "lark".to_owned());
        format!("The input must match this {syntax} grammar:\n{}", text(format, "definition").unwrap_or_default())
    });
    let description = text(tool, "description").filter(|description| !description.is_empty());
    let description = description.into_iter().chain(grammar).collect::<Vec<_>>().join("\n\n");
    let input = object([("type", "string".into()), ("description", "The whole input of the tool, as text.".into())]);
    let parameters = object([
        ("type", "object".into()),
        ("properties", object([(INPUT, input)])),
        ("required", vec![INPUT.into()].into()),
    ]);
    definition(shown, &description, parameters, None)
}

fn definition(name: &str, description: &str, parameters: Value, strict: Option<Value>) -> Value {
    let members = [("name", name.into()), ("description", description.into()), ("parameters", parameters)];
    let function = object(members.into_iter().chain(strict.map(|strict| ("strict", strict))));
    object([("type", "function".into()), ("function", function)])
}

/// The input in the arguments of a call of a custom tool, which the model writes as the member `input` of an object. `None` if the arguments
/// are anything else; then they are the input themselves.
pub(super) fn custom_input(arguments: &str) -> Option<String> {
    match Value::parse(arguments.as_bytes()) {
        Ok(Value::Object(members)) => match <[(String, Value); 1]>::try_from(members) {
            Ok([(name, Value::String(text))]) if name == INPUT => Some(text),
            _ => None,
        },
        _ => None,
    }
}

/// The arguments with this input: the reverse of [`custom_input`].
pub(super) fn custom_arguments(input: &str) -> String {
    dumps(&object([(INPUT, input.into())]))
}

fn object(members: impl IntoIterator<Item = (&'static str, Value)>) -> Value {
    Value::Object(members.into_iter().map(|(name, value)| (name.to_owned(), value)).collect())
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

    #[test]
    fn input_of_a_custom_tool_survives_the_round_trip() {
        for input in ["", "*** Begin Patch\n\"é\\\n", "{}", r#"{"input":"x"}"#] {
            assert_eq!(custom_input(&custom_arguments(input)).as_deref(), Some(input));
        }
        for arguments in ["no JSON", "[1]", r#"{"input":1}"#, r#"{"patch":"x"}"#, r#"{"input":"x","more":1}"#] {
            assert_eq!(custom_input(arguments), None, "{arguments}");
        }
    }
}
