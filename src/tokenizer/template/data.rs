// SPDX-License-Identifier: Apache-2.0
//! Template values of a conversation: dicts and lists that print as in Python.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

use super::python;
use crate::json;

/// Converts a JSON value.
pub(super) fn from_json(value: &json::Value) -> Value {
    match value {
        json::Value::Null => Value::from(()),
        json::Value::Bool(value) => Value::from(*value),
        json::Value::Number(text) => number(text),
        json::Value::String(text) => Value::from(text.as_str()),
        json::Value::Array(items) => from_json_list(items),
        json::Value::Object(members) => {
            let keys = members.iter().map(|(key, _)| Value::from(key.as_str())).collect();
            let values = members.iter().map(|(key, member)| (key.as_str().into(), from_json(member))).collect();
            Value::from_object(Dict { keys, values })
        }
    }
}

/// Converts a list of JSON values.
pub(super) fn from_json_list(items: &[json::Value]) -> Value {
    list(items.iter().map(from_json).collect())
}

/// A list of values.
pub(super) fn list(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// Converts a number to the narrowest type that fits. Integers beyond 128 bits become doubles.
fn number(text: &str) -> Value {
    let integer = text.parse::<i64>().map(Value::from).or_else(|_| text.parse::<i128>().map(Value::from));
    integer.unwrap_or_else(|_| {
        match text {
            "NaN" => f64::NAN,
            "Infinity" => f64::INFINITY,
            "-Infinity" => f64::NEG_INFINITY,
            _ => text.parse().unwrap_or(f64::NAN),
        }
        .into()
    })
}

#[derive(Debug)]
struct List(Vec<Value>);

impl Object for List {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Seq
    }

    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.0.get(key.as_usize()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Seq(self.0.len())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::str(&Value::from_dyn_object(self.clone())))
    }
}

#[derive(Debug)]
struct Dict {
    /// The keys in their order.
    keys: Vec<Value>,
    values: HashMap<Box<str>, Value>,
}

impl Object for Dict {
    fn get_value(self: &Arc<Self>, key: &Value) -> Option<Value> {
        self.values.get(key.as_str()?).cloned()
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.keys.clone())
    }

    fn render(self: &Arc<Self>, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&python::str(&Value::from_dyn_object(self.clone())))
    }
}

/// A Python iterable that is not a list. It cannot be indexed or written as JSON.
#[derive(Debug)]
pub(super) struct PythonIterable {
    items: Vec<Value>,
    /// Whether it is a view of a dict, which is false if empty. Otherwise it is a generator, which is always true.
    is_view: bool,
}

impl PythonIterable {
    /// The result of a filter that returns a generator in Python.
    pub(super) fn generator(items: Vec<Value>) -> Value {
        Value::from_object(Self { items, is_view: false })
    }

    /// The result of `keys`, `values` or `items` of a dict.
    pub(super) fn view(items: Vec<Value>) -> Value {
        Value::from_object(Self { items, is_view: true })
    }

    /// Whether a value is a [`PythonIterable`].
    pub(super) fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Self>().is_some()
    }
}

impl Object for PythonIterable {
    fn repr(self: &Arc<Self>) -> ObjectRepr {
        ObjectRepr::Iterable
    }

    fn enumerate(self: &Arc<Self>) -> Enumerator {
        Enumerator::Values(self.items.clone())
    }

    fn is_true(self: &Arc<Self>) -> bool {
        !(self.is_view && self.items.is_empty())
    }
}
