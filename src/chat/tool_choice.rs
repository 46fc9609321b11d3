//! Which tools the model may call, and the JSON schema of forced calls.

use crate::json::Value;

/// Which tools the model may or must call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// It may call any tool.
    Auto,
    /// It may not call a tool.
    None,
    /// It must call at least one tool.
    Required,
    /// It must call this tool.
    Named(String),
}

impl ToolChoice {
    /// Whether a call is forced: the reply is then a JSON list of calls and nothing else.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }

    /// The JSON schema of forced calls, a list; `None` if no call is forced. It is SGLang's schema for formats without a grammar. It is
    /// used for every format, because it constrains the name and the parameters. With `parallel`, the list may have several calls.
    #[must_use]
    pub fn schema(&self, tools: &[Value], parallel: bool) -> Option<Value> {
        if !self.is_forced() {
            return None;
        }
        let allowed = tools.iter().filter(|tool| match self {
            Self::Named(named) => name(tool) == Some(named),
            _ => true,
        });
        let calls: Vec<Value> = allowed.filter_map(call_schema).collect();
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

/// `function.name` of a tool.
#[must_use]
pub(crate) fn name(tool: &Value) -> Option<&str> {
    tool.get("function")?.get("name")?.as_str()
}

/// The schema of a call of this tool.
fn call_schema(tool: &Value) -> Option<Value> {
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
