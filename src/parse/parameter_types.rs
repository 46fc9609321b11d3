// SPDX-License-Identifier: Apache-2.0
//! The types of the parameters of tools, by which formats read values that are texts.
//!
//! A type follows from the schema of the parameter as in SGLang, which looks at `type` first, then at alternatives, then at the allowed
//! values. References within the tool are resolved.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use super::loads::loads;
use super::value::PythonValue;
use super::{Format, literal};
use crate::json::{Resolver, Value, pointer, python};

/// The type of a parameter, as far as it decides how a value is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ParameterType {
    /// The value is its text.
    Text,
    /// The value is its text, and `null` is null.
    OptionalText,
    Integer,
    Number,
    Boolean,
    /// The value is JSON, or a Python literal.
    Json,
}

/// The types of the parameters of a request's tools. The text that `Display` writes has a line for each tool. It omits types that the format
/// assumes without a schema, and names with control characters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ParameterTypes {
    tools: BTreeMap<Box<str>, BTreeMap<Box<str>, ParameterType>>,
}

impl ParameterType {
    const ALL: [Self; 6] = [Self::Text, Self::OptionalText, Self::Integer, Self::Number, Self::Boolean, Self::Json];

    /// The type of a parameter without a type.
    pub(super) fn untyped(format: Format) -> Self {
        // the parser that Qwen publishes reads text, and the one for GLM reads JSON
        if format == Format::Glm { Self::Json } else { Self::OptionalText }
    }

    /// Its letter in the text of [`ParameterTypes`].
    fn letter(self) -> &'static str {
        match self {
            Self::Text => "t",
            Self::OptionalText => "o",
            Self::Integer => "i",
            Self::Number => "n",
            Self::Boolean => "b",
            Self::Json => "j",
        }
    }

    /// Whether every text but `null` is a value.
    pub(super) fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::OptionalText)
    }

    /// The value of a whole text. A text that is not a value of the type is a string, and so is one with a number that is not finite, because
    /// JSON has no such number.
    pub(super) fn read(self, text: &str) -> PythonValue {
        if self != Self::Text && text.eq_ignore_ascii_case("null") {
            return PythonValue::Null;
        }
        let value = match self {
            Self::Text | Self::OptionalText => None,
            Self::Integer => integer(text).map(PythonValue::Number),
            Self::Number => number(text).map(PythonValue::Number),
            Self::Boolean if text.eq_ignore_ascii_case("true") => Some(PythonValue::Bool(true)),
            Self::Boolean if text.eq_ignore_ascii_case("false") => Some(PythonValue::Bool(false)),
            Self::Boolean => None,
            Self::Json => loads(text).ok().or_else(|| literal::value(text)),
        };
        value.filter(PythonValue::is_finite).unwrap_or_else(|| PythonValue::text(text))
    }
}

impl ParameterTypes {
    /// The types of the parameters of these tools, which are objects with `function`. Of tools with one name, the first counts.
    #[must_use]
    pub fn new(format: Format, tools: &[Value]) -> Self {
        let mut types = Self::default();
        for function in tools.iter().filter_map(|tool| tool.get("function")) {
            let Some(name) = function.get_str("name") else { continue };
            if types.tools.contains_key(name) {
                continue;
            }
            let mut parameters = BTreeMap::new();
            if let Some(root) = function.get("parameters") {
                let mut schema = SchemaReader { root, resolver: Resolver::default(), steps: MAX_STEPS, depth: 0 };
                schema.parameters(root, &mut |name, types| {
                    let parameter = types.parameter(format);
                    parameters.entry(Box::from(name)).or_insert(parameter);
                });
            }
            types.tools.insert(name.into(), parameters);
        }
        let untyped = ParameterType::untyped(format);
        types.tools.retain(|_, parameters| {
            parameters.retain(|_, parameter| *parameter != untyped);
            !parameters.is_empty()
        });
        types
    }
}

/// The types of the parameters of the tool that is called.
#[derive(Debug, Clone)]
pub(super) struct CalledTool {
    format: Format,
    types: Option<Arc<ParameterTypes>>,
    name: String,
}

impl CalledTool {
    /// A call whose name is not known yet. Without `types`, parameters have no type.
    pub(super) fn new(format: Format, types: Option<Arc<ParameterTypes>>) -> Self {
        Self { format, types, name: String::new() }
    }

    /// Sets the name of the tool.
    pub(super) fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    /// The type of a parameter. `None` if parameters have no type.
    pub(super) fn parameter(&self, name: &str) -> Option<ParameterType> {
        let parameters = self.types.as_ref()?.tools.get(&*self.name);
        let listed = parameters.and_then(|parameters| parameters.get(name)).copied();
        Some(listed.unwrap_or(ParameterType::untyped(self.format)))
    }
}

impl fmt::Display for ParameterTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_plain = |name: &str| !name.contains(char::is_control);
        for (tool, parameters) in self.tools.iter().filter(|(tool, _)| is_plain(tool)) {
            f.write_str(tool)?;
            for (name, parameter) in parameters.iter().filter(|(name, _)| is_plain(name)) {
                write!(f, "\t{}{name}", parameter.letter())?;
            }
            f.write_str("\n")?;
        }
        Ok(())
    }
}

impl FromStr for ParameterTypes {
    type Err = Infallible;

    /// Parses the text that `Display` writes. Skips types of later versions.
    fn from_str(text: &str) -> Result<Self, Infallible> {
        let parameter = |text: &str| {
            let parameter = ParameterType::ALL.into_iter().find(|parameter| text.starts_with(parameter.letter()))?;
            Some((text[1..].into(), parameter))
        };
        let tool = |line: &str| {
            let mut parts = line.split('\t');
            Some((parts.next()?.into(), parts.filter_map(parameter).collect()))
        };
        Ok(Self { tools: text.lines().filter_map(tool).collect() })
    }
}

/// The maximum number of schemas that are read for the parameters of a tool.
const MAX_STEPS: usize = 10_000;

/// The maximum number of schemas within each other. Schemas may refer to themselves.
const MAX_SCHEMA_DEPTH: usize = 16;

/// Reads the schemas of one tool.
struct SchemaReader<'a> {
    /// The schema of all parameters, in which references are resolved.
    root: &'a Value,
    resolver: Resolver<'a>,
    /// The number of schemas that may still be read.
    steps: usize,
    depth: usize,
}

/// The JSON types that a schema allows; none if the schema has no type.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct JsonTypes {
    string: bool,
    null: bool,
    /// The first type that is neither of these.
    other: Option<ParameterType>,
}

impl JsonTypes {
    const STRING: Self = Self { string: true, null: false, other: None };
    const NULL: Self = Self { string: false, null: true, other: None };

    fn other(parameter: ParameterType) -> Self {
        Self { other: Some(parameter), ..Self::default() }
    }

    fn or(self, types: Self) -> Self {
        Self { string: self.string || types.string, null: self.null || types.null, other: self.other.or(types.other) }
    }

    /// The type of a parameter with these types. A value that may be a string is one, because its text is then certain to be kept.
    fn parameter(self, format: Format) -> ParameterType {
        match (format, self) {
            (_, types) if types == Self::default() => ParameterType::untyped(format),
            // in the format of Qwen, `null` is null also if the schema does not allow it
            (Format::Glm, Self { string: true, null: false, .. }) => ParameterType::Text,
            (_, Self { string: true, .. }) => ParameterType::OptionalText,
            (Format::Glm, _) => ParameterType::Json,
            (_, Self { other, .. }) => other.unwrap_or(ParameterType::Json),
        }
    }

    /// The type with this name in a schema. Other names than those of JSON Schema are common in schemas that databases generate; SGLang
    /// translates them.
    fn named(name: &str) -> Self {
        let name = name.split('(').next().unwrap_or_default().trim().to_ascii_lowercase();
        let begins = |prefixes: &[&str]| {
            let rest = prefixes.iter().find_map(|prefix| name.strip_prefix(prefix));
            rest.is_some_and(|rest| !rest.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_'))
        };
        match &*name {
            "null" => Self::NULL,
            "string" | "str" | "text" | "varchar" | "char" | "enum" | "uuid" | "date" | "datetime" | "time"
            | "timestamp" | "binary" | "blob" | "bytea" | "bytes" | "varbinary" => Self::STRING,
            "boolean" | "bool" => Self::other(ParameterType::Boolean),
            "integer" | "bigint" | "smallint" | "tinyint" => Self::other(ParameterType::Integer),
            "number" | "numeric" | "double" | "decimal" | "real" => Self::other(ParameterType::Number),
            _ if begins(&["int", "uint", "long", "short", "unsigned"]) => Self::other(ParameterType::Integer),
            _ if begins(&["num", "float"]) => Self::other(ParameterType::Number),
            _ => Self::other(ParameterType::Json),
        }
    }

    fn from_value(value: &Value) -> Self {
        match value {
            Value::Null => Self::NULL,
            Value::String(_) => Self::STRING,
            Value::Bool(_) => Self::other(ParameterType::Boolean),
            Value::Number(text) if text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-') => {
                Self::other(ParameterType::Integer)
            }
            Value::Number(_) => Self::other(ParameterType::Number),
            Value::Array(_) | Value::Object(_) => Self::other(ParameterType::Json),
        }
    }
}

impl<'a> SchemaReader<'a> {
    /// Reads a schema within the current one. Returns `None` if a maximum is reached.
    fn within<T>(&mut self, read: impl FnOnce(&mut Self) -> T) -> Option<T> {
        if self.steps == 0 || self.depth == MAX_SCHEMA_DEPTH {
            return None;
        }
        (self.steps, self.depth) = (self.steps - 1, self.depth + 1);
        let result = read(self);
        self.depth -= 1;
        Some(result)
    }

    /// Passes each property of a schema to `put`. A schema without properties may have them in its alternatives.
    fn parameters(&mut self, schema: &'a Value, put: &mut impl FnMut(&str, JsonTypes)) {
        if let Some(Value::Object(properties)) = schema.get("properties") {
            for (name, property) in properties {
                let types = self.within(|schema| schema.types(property)).unwrap_or_default();
                put(name, types);
            }
            return;
        }
        let target = schema.get("$ref").and_then(|reference| self.target(reference));
        let branches = ["anyOf", "oneOf", "allOf"].into_iter().filter_map(|keyword| schema.get(keyword)?.as_array());
        for branch in target.into_iter().chain(branches.flatten()) {
            self.within(|schema| schema.parameters(branch, put));
        }
    }

    /// The types that a schema allows.
    fn types(&mut self, schema: &'a Value) -> JsonTypes {
        match schema.get("type") {
            Some(Value::String(name)) => return JsonTypes::named(name),
            Some(Value::Array(names)) => {
                // the first type counts
                let types: Vec<JsonTypes> = names.iter().filter_map(Value::as_str).map(JsonTypes::named).collect();
                let null = types.contains(&JsonTypes::NULL);
                let first = types.into_iter().find(|types| *types != JsonTypes::NULL);
                return JsonTypes { null, ..first.unwrap_or(JsonTypes::STRING) };
            }
            _ => {}
        }
        if let Some(target) = schema.get("$ref").and_then(|reference| self.target(reference)) {
            return self.within(|schema| schema.types(target)).unwrap_or_default();
        }
        for keyword in ["anyOf", "oneOf"] {
            let types = self.union(schema.get(keyword));
            if types != JsonTypes::default() {
                return types;
            }
        }
        let values = schema.get("const").map(std::slice::from_ref).or_else(|| schema.get("enum")?.as_array());
        if let Some(values) = values {
            return values.iter().map(JsonTypes::from_value).fold(JsonTypes::default(), JsonTypes::or);
        }
        let types = self.union(schema.get("allOf"));
        if types != JsonTypes::default() {
            return types;
        }
        match schema.get("properties").or_else(|| schema.get("items")) {
            Some(_) => JsonTypes::other(ParameterType::Json),
            None => JsonTypes::default(),
        }
    }

    fn union(&mut self, schemas: Option<&'a Value>) -> JsonTypes {
        let schemas = schemas.and_then(Value::as_array).unwrap_or_default();
        let within = |schema: &'a Value| self.within(|reader| reader.types(schema)).unwrap_or_default();
        schemas.iter().map(within).fold(JsonTypes::default(), JsonTypes::or)
    }

    /// The schema of a reference within the tool, such as `#/$defs/NAME`.
    fn target(&mut self, reference: &Value) -> Option<&'a Value> {
        self.resolver.resolve(self.root, &pointer(reference.as_str()?)?)
    }
}

/// The number that Python's `int` reads from a text, as Python writes it.
fn integer(text: &str) -> Option<String> {
    let (sign, digits) = split_sign(python::strip(text));
    let digits = without_underscores(digits)?;
    if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let significant = digits.trim_start_matches('0');
    python::number(&format!("{sign}{}", if significant.is_empty() { "0" } else { significant }))
}

/// The number that Python's `float` reads from a text, as Python writes it. An integer stays one.
fn number(text: &str) -> Option<String> {
    integer(text).or_else(|| {
        let (sign, digits) = split_sign(python::strip(text));
        let digits = without_underscores(digits).filter(|digits| !digits.starts_with(['+', '-']))?;
        Some(python::float(format!("{sign}{digits}").parse().ok()?))
    })
}

/// Splits a number after its sign. A plus is left out.
fn split_sign(text: &str) -> (&str, &str) {
    match text.strip_prefix('+') {
        Some(digits) => ("", digits),
        None => text.split_at(usize::from(text.starts_with('-'))),
    }
}

/// The text without the underscores between digits. `None` if an underscore is in another place.
fn without_underscores(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let is_digit = |at: Option<usize>| at.and_then(|at| bytes.get(at)).is_some_and(u8::is_ascii_digit);
    let is_valid = |at: usize| is_digit(at.checked_sub(1)) && is_digit(at.checked_add(1));
    text.match_indices('_').all(|(at, _)| is_valid(at)).then(|| text.replace('_', ""))
}
