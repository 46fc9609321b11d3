//! The values of a conversation in a template: dicts and lists that are printed as Python prints them.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use minijinja::Value;
use minijinja::value::{Enumerator, Object, ObjectRepr};

use super::python;
use crate::json;

/// Converts a JSON value.
pub(super) fn value(value: &json::Value) -> Value {
    match value {
        json::Value::Null => Value::from(()),
        json::Value::Bool(value) => Value::from(*value),
        json::Value::Number(text) => number(text),
        json::Value::String(text) => Value::from(text.as_str()),
        json::Value::Array(items) => list(items),
        json::Value::Object(members) => {
            let keys = members.iter().map(|(key, _)| Value::from(key.as_str())).collect();
            let values = members.iter().map(|(key, member)| (key.as_str().into(), self::value(member))).collect();
            Value::from_object(Dict { keys, values })
        }
    }
}

/// Converts a list of JSON values.
pub(super) fn list(items: &[json::Value]) -> Value {
    list_of(items.iter().map(value).collect())
}

/// A list.
pub(super) fn list_of(items: Vec<Value>) -> Value {
    Value::from_object(List(items))
}

/// A number in the narrowest type that fits. Integers beyond 128 bits become doubles.
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
    /// The members in their order.
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

/// An iterable of Python that is not a list: it has no indices and cannot be JSON.
#[derive(Debug)]
pub(super) struct Iterated {
    items: Vec<Value>,
    /// A view of a dict, which is false if it is empty. Otherwise a generator, which is always true.
    is_view: bool,
}

impl Iterated {
    /// The result of a filter that is a generator in Python.
    pub(super) fn generator(items: Vec<Value>) -> Value {
        Value::from_object(Self { items, is_view: false })
    }

    /// The result of `keys`, `values` or `items`.
    pub(super) fn view(items: Vec<Value>) -> Value {
        Value::from_object(Self { items, is_view: true })
    }

    /// Whether a value is such an iterable.
    pub(super) fn is(value: &Value) -> bool {
        value.downcast_object_ref::<Self>().is_some()
    }
}

impl Object for Iterated {
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
