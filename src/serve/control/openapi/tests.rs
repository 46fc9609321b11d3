// SPDX-License-Identifier: Apache-2.0
//! The document describes the routes that the code has.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::engine::sglang::routes;
use crate::export::flag_names;
use crate::serve::control::page;
use crate::serve::control_route::{self, ControlRoute, PROBES};
use crate::session::Fault;

/// The methods of a path item.
const METHODS: [&str; 5] = ["get", "put", "post", "delete", "patch"];

fn document() -> Value {
    serde_json::from_str(super::text()).unwrap()
}

/// A method and path with its query parameters.
type Operation = (String, BTreeSet<String>);

/// The operations of one port.
fn described(document: &Value, of_data_port: bool) -> BTreeSet<Operation> {
    let mut found = BTreeSet::new();
    for (path, item) in document["paths"].as_object().unwrap() {
        if item.get("servers").is_some() != of_data_port {
            continue;
        }
        for (method, operation) in item.as_object().unwrap().iter().filter(|(name, _)| METHODS.contains(&&***name)) {
            let parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
            let query = parameters.filter_map(|parameter| {
                let parameter = match parameter.get("$ref") {
                    Some(place) => document.pointer(place.as_str().unwrap().trim_start_matches('#')).unwrap(),
                    None => parameter,
                };
                (parameter["in"] == "query").then(|| parameter["name"].as_str().unwrap().to_owned())
            });
            found.insert((format!("{} {path}", method.to_uppercase()), query.collect()));
        }
    }
    found
}

fn operation(method: &str, path: &str, query: &[&str]) -> Operation {
    (format!("{method} {path}"), query.iter().map(|name| (*name).to_owned()).collect())
}

#[test]
fn flags_of_paths_are_all_described() {
    let document = document();
    let properties = |schema: &Value| schema.pointer("/properties/flags/description").map(ToString::to_string);
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut described = 0;
    for (name, schema) in schemas.iter().flat_map(|(name, schema)| {
        let parts = schema.get("allOf").or(schema.get("oneOf")).and_then(Value::as_array);
        std::iter::once((name, schema)).chain(parts.into_iter().flatten().map(move |part| (name, part)))
    }) {
        let Some(description) = properties(schema).filter(|text| text.contains("Properties of the path")) else {
            continue;
        };
        described += 1;
        for flag in flag_names().take_while(|flag| *flag != Fault::ALL[0].name()) {
            let is_of_an_export = ["repeats_sample", "advantage_lacks_entropy"].contains(&flag);
            assert!(is_of_an_export || description.contains(&format!("`{flag}`")), "{name}: {flag}");
        }
    }
    assert_eq!(described, 3);
}

#[test]
fn document_has_the_routes_methods_and_queries_of_the_control_port() {
    let mut served = BTreeSet::new();
    for ControlRoute { pattern, methods, query } in &control_route::ROUTES {
        for method in *methods {
            served.insert(operation(method.as_str(), pattern, if *method == http::Method::GET { query } else { &[] }));
        }
    }
    served.insert(operation("GET", super::PATH, &[]));
    served.extend(PROBES.iter().map(|(path, _)| operation("GET", path, &[])));
    for asset in &page::ASSETS {
        let path = if asset.path.starts_with("/page/") { "/page/{file}" } else { asset.path };
        served.insert(operation("GET", path, &[]));
    }
    assert_eq!(described(&document(), false), served);
}

#[test]
fn document_has_the_forwarded_routes() {
    let document = document();
    let forwarded = &document["x-forwarded-routes"];
    let paths = forwarded["paths"].as_array().unwrap().iter().map(|path| path.as_str().unwrap().to_owned());
    let prefixes = forwarded["prefixes"].as_array().unwrap();
    let examples = prefixes.iter().map(|prefix| format!("{}profile", prefix.as_str().unwrap()));
    for path in paths.chain(examples) {
        let route = routes::route(&path);
        assert!(route.kind == routes::RouteKind::Control || route.endpoint == "/detokenize", "{path}");
    }
}

#[test]
fn operation_ids_are_unique() {
    let document = document();
    let paths = document["paths"].as_object().unwrap().values();
    let operations = paths.flat_map(|item| item.as_object().unwrap().values());
    let ids: Vec<&str> = operations.filter_map(|operation| operation.get("operationId")?.as_str()).collect();
    let unique: BTreeSet<&&str> = ids.iter().collect();
    assert_eq!((ids.len(), ids.len() > 20), (unique.len(), true));
}

#[test]
fn every_error_code_is_listed_by_an_operation() {
    let document = document();
    let text = document["paths"].to_string();
    for code in document["components"]["schemas"]["ErrorCode"]["enum"].as_array().unwrap() {
        // a 405 is not a reply of an operation
        assert!(code == "method" || text.contains(&format!("\"{}\":{{\"value\"", code.as_str().unwrap())), "{code}");
    }
}

/// Asserts that the place of each `$ref` exists; returns their number.
fn check_references(document: &Value, value: &Value) -> usize {
    let below: Vec<&Value> = match value {
        Value::Object(members) => members.values().collect(),
        Value::Array(items) => items.iter().collect(),
        _ => return 0,
    };
    let place = value.get("$ref").and_then(Value::as_str);
    if let Some(place) = place {
        assert!(document.pointer(place.trim_start_matches('#')).is_some(), "{place} does not exist");
    }
    usize::from(place.is_some()) + below.into_iter().map(|value| check_references(document, value)).sum::<usize>()
}

#[test]
fn references_resolve() {
    let document = document();
    assert!(check_references(&document, &document) > 100);
}
