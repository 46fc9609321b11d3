//! Members of chat replies that tokentap serializes. Members from the engine are copied as JSON text.

use serde::Serialize;

/// `message` of a reply that does not stream.
#[derive(Debug, Serialize)]
pub(super) struct MessageMember<'a> {
    pub(super) role: &'static str,
    pub(super) content: &'a str,
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub(super) tool_calls: Vec<ToolCallMember<'a>>,
}

/// `delta` of a chunk.
#[derive(Debug, Default, Serialize)]
pub(super) struct Delta<'a> {
    pub(super) reasoning_content: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) role: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) content: Option<&'a str>,
    #[serde(skip_serializing_if = "<[_]>::is_empty")]
    pub(super) tool_calls: &'a [ToolCallMember<'a>],
}

/// A tool call, or the part of a tool call in a chunk.
#[derive(Debug, Serialize)]
pub(super) struct ToolCallMember<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) id: Option<&'a str>,
    pub(super) index: usize,
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub(super) kind: Option<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) function: Option<FunctionMember<'a>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) custom: Option<CustomMember<'a>>,
}

/// `function` of a tool call.
#[derive(Debug, Serialize)]
pub(super) struct FunctionMember<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) name: Option<&'a str>,
    pub(super) arguments: &'a str,
}

/// `custom` of a tool call.
#[derive(Debug, Serialize)]
pub(super) struct CustomMember<'a> {
    pub(super) name: &'a str,
    pub(super) input: &'a str,
}

impl<'a> ToolCallMember<'a> {
    /// A call, or the first part of one: with its id and name.
    pub(super) fn with_name(id: &'a str, index: usize, name: &'a str, arguments: &'a str) -> Self {
        let function = FunctionMember { name: Some(name), arguments };
        Self { id: Some(id), index, kind: Some("function"), function: Some(function), custom: None }
    }

    /// A call of a custom tool.
    pub(super) fn custom(id: &'a str, index: usize, name: &'a str, input: &'a str) -> Self {
        let custom = CustomMember { name, input };
        Self { id: Some(id), index, kind: Some("custom"), function: None, custom: Some(custom) }
    }

    /// A later part of a call: only arguments.
    pub(super) fn arguments(index: usize, arguments: &'a str) -> Self {
        let function = FunctionMember { name: None, arguments };
        Self { id: None, index, kind: None, function: Some(function), custom: None }
    }
}
