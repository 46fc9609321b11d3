//! Values within the bounds of a number in a JSON schema.

use serde_json::{Map, Value};

/// The number of steps between the smallest and the greatest value.
const STEPS: u8 = 10;

/// The smallest integer that the engine can write.
const MIN_INTEGER: i128 = i64::MIN as i128;

/// The greatest integer that the engine can write.
const MAX_INTEGER: i128 = u64::MAX as i128;

/// The error if all integers within the bounds need more than 64 bits.
#[derive(Debug, PartialEq)]
pub(super) struct Beyond64Bits;

/// Some integers within the bounds, empty if the bounds exclude all; `None` without bounds.
///
/// # Errors
/// [`Beyond64Bits`] if all integers within the bounds need more than 64 bits.
pub(super) fn integers(object: &Map<String, Value>) -> Result<Option<Vec<Value>>, Beyond64Bits> {
    let bound = |name: &str, up: bool| object.get(name).and_then(|value| integer(value, up));
    // an exclusive bound with a fraction excludes no integer
    let least = [bound("minimum", true), bound("exclusiveMinimum", false).map(|bound| bound.saturating_add(1))];
    let most = [bound("maximum", false), bound("exclusiveMaximum", true).map(|bound| bound.saturating_sub(1))];
    let least = least.into_iter().flatten().max();
    let most = most.into_iter().flatten().min();
    let span = i128::from(STEPS);
    let (least, most) = match (least, most) {
        (None, None) => return Ok(None),
        (Some(least), None) => (least, least.saturating_add(span).max(MIN_INTEGER + span)),
        (None, Some(most)) => (most.saturating_sub(span).min(MAX_INTEGER - span), most),
        (Some(least), Some(most)) => (least, most),
    };
    if least > most {
        return Ok(Some(Vec::new()));
    }
    let (least, most) = (least.max(MIN_INTEGER), most.min(MAX_INTEGER));
    if least > most {
        return Err(Beyond64Bits);
    }
    let mut between: Vec<i128> = (0..=span).map(|at| least + (most - least) * at / span).collect();
    between.dedup();
    let written = |number: i128| u64::try_from(number).map_or_else(|_| Value::from(number as i64), Value::from);
    Ok(Some(between.into_iter().map(written).collect()))
}

/// A bound as an integer. A bound with a fraction or beyond 64 bits is a float, and is rounded up or down.
fn integer(value: &Value, up: bool) -> Option<i128> {
    let whole = value.as_i64().map(i128::from).or_else(|| value.as_u64().map(i128::from));
    let rounded = |bound: f64| if up { bound.ceil() } else { bound.floor() };
    whole.or_else(|| value.as_f64().map(|bound| rounded(bound) as i128))
}

/// Some numbers with two decimals within the bounds; `None` without bounds.
pub(super) fn numbers(object: &Map<String, Value>) -> Option<Vec<Value>> {
    let bound = |name: &str| object.get(name).and_then(Value::as_f64);
    let step = 0.1;
    let least = [bound("minimum"), bound("exclusiveMinimum").map(|bound| bound + step)];
    let most = [bound("maximum"), bound("exclusiveMaximum").map(|bound| bound - step)];
    let least = least.into_iter().flatten().reduce(f64::max);
    let most = most.into_iter().flatten().reduce(f64::min);
    let span = f64::from(STEPS) * step;
    let (least, most) = match (least, most) {
        (None, None) => return None,
        (Some(least), None) => (least, least + span),
        (None, Some(most)) => (most - span, most),
        (Some(least), Some(most)) => (least, most),
    };
    let between = (0..=STEPS).map(|at| least + (most - least) * f64::from(at) / f64::from(STEPS));
    let mut values: Vec<Value> = Vec::new();
    for number in between {
        let number = (number * 100.0).round() / 100.0;
        let value = Value::from(number);
        if number >= least && number <= most && !values.contains(&value) {
            values.push(value);
        }
    }
    Some(values)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The first and the last of the returned integers.
    fn ends(schema: &Value) -> Result<Option<(Value, Value)>, Beyond64Bits> {
        let found = integers(schema.as_object().unwrap())?;
        Ok(found.and_then(|found| Some((found.first()?.clone(), found.last()?.clone()))))
    }

    #[test]
    fn integers_are_within_the_bounds_and_64_bits() {
        let exact = (1_i64 << 53) + 1;
        for (schema, least, most) in [
            (json!({"minimum": i64::MIN, "maximum": i64::MAX}), json!(i64::MIN), json!(i64::MAX)),
            (json!({"minimum": exact, "maximum": exact}), json!(exact), json!(exact)),
            (json!({"exclusiveMinimum": exact, "exclusiveMaximum": exact + 2}), json!(exact + 1), json!(exact + 1)),
            (json!({"minimum": 0.5, "maximum": 2.5}), json!(1), json!(2)),
            (json!({"exclusiveMinimum": 0.5, "exclusiveMaximum": 2.5}), json!(1), json!(2)),
            (json!({"minimum": 5}), json!(5), json!(15)),
            (json!({"maximum": u64::MAX}), json!(u64::MAX - 10), json!(u64::MAX)),
            (json!({"minimum": u64::MAX}), json!(u64::MAX), json!(u64::MAX)),
            (json!({"minimum": -1e300, "maximum": 7}), json!(i64::MIN), json!(7)),
            (json!({"minimum": -1e300}), json!(i64::MIN), json!(i64::MIN + 10)),
        ] {
            assert_eq!(ends(&schema), Ok(Some((least, most))), "{schema}");
        }
        assert_eq!(integers(json!({"minimum": 1, "exclusiveMaximum": 1}).as_object().unwrap()), Ok(Some(Vec::new())));
        assert_eq!(integers(json!({}).as_object().unwrap()), Ok(None));
        for schema in [json!({"minimum": 1e300}), json!({"maximum": -1e300})] {
            assert_eq!(ends(&schema), Err(Beyond64Bits), "{schema}");
        }
    }
}
