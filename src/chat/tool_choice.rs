//! Which tools may be called, and the grammar of a call that is forced.

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
    /// Whether the reply is a list of calls and nothing else.
    #[must_use]
    pub fn is_forced(&self) -> bool {
        matches!(self, Self::Required | Self::Named(_))
    }

    /// The JSON schema of a forced reply: a list of calls, as SGLang has it where a format has no grammar. The same for every
    /// format, because this one holds the model to the name and to the parameters.
    #[must_use]
    pub fn schema(&self, tools: &[Value], parallel: bool) -> Option<Value> {
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

/// `function.name` of a tool.
#[must_use]
pub(crate) fn name(tool: &Value) -> Option<&str> {
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
