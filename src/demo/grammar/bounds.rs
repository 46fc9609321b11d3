//! The bounds of a number in a JSON schema.

use serde_json::{Map, Value};

/// Numbers between two bounds.
const NUMBERS: u8 = 10;

/// Whether a bound is beyond the integers that are written.
pub(super) fn are_beyond_64_bits(object: &Map<String, Value>) -> bool {
    let names = ["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"];
    let mut bounds = names.iter().filter_map(|name| object.get(*name).and_then(Value::as_f64));
    bounds.any(|bound| bound.abs() >= 2_f64.powi(63))
}

/// Some numbers between the bounds; `None` where there are no bounds.
pub(super) fn numbers(object: &Map<String, Value>, whole: bool) -> Option<Vec<Value>> {
    let bound = |name: &str| object.get(name).and_then(Value::as_f64);
    let step = if whole { 1.0 } else { 0.1 };
    let least = [bound("minimum"), bound("exclusiveMinimum").map(|bound| bound + step)];
    let most = [bound("maximum"), bound("exclusiveMaximum").map(|bound| bound - step)];
    let least = least.into_iter().flatten().reduce(f64::max);
    let most = most.into_iter().flatten().reduce(f64::min);
    let span = f64::from(NUMBERS) * step;
    let (least, most) = match (least, most) {
        (None, None) => return None,
        (Some(least), None) => (least, least + span),
        (None, Some(most)) => (most - span, most),
        (Some(least), Some(most)) => (least, most),
    };
    let between = (0..=NUMBERS).map(|at| least + (most - least) * f64::from(at) / f64::from(NUMBERS));
    let mut values: Vec<Value> = Vec::new();
    for number in between {
        let number = if whole { number.floor().max(least.ceil()) } else { (number * 100.0).round() / 100.0 };
        let value = if whole { Value::from(number as i64) } else { Value::from(number) };
        if number >= least && number <= most && !values.contains(&value) {
            values.push(value);
        }
    }
    Some(values)
}
