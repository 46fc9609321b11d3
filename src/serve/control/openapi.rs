// SPDX-License-Identifier: Apache-2.0
//! The OpenAPI description of the HTTP routes that tokentap serves, at `/openapi.json` of the control port.
//!
//! The parts below `openapi/` are written by hand. [`compose`] merges them and adds what the code defines: the version, the enumerations
//! and the forwarded routes. It also writes out what many operations share: the `servers` and the `security` of a part, and the error
//! replies of an operation, which its member `errors` lists.

use std::sync::LazyLock;

use http::{HeaderValue, Request, Response};

use crate::columns::ColumnFault;
use crate::engine::reason::Reason;
use crate::engine::sglang::routes;
use crate::entropy::Estimator;
use crate::export::Format;
use crate::generation::generator::SESSION;
use crate::json::Value;
use crate::serve::body::Body;
use crate::serve::control::page::{file_response, file_tag};
use crate::session::{Cause, Fault, ReplyChange, RequestClass};

/// Where it is served.
pub(crate) const PATH: &str = "/openapi.json";

/// Information, servers, tags, security schemes, and the components that several parts use.
const BASE: &str = include_str!("openapi/base.json");

/// The codes of errors of the control port, and the statuses of errors of the data port.
const ERRORS: &str = include_str!("openapi/errors.json");

/// Paths and schemas, in the order of the document.
const PARTS: [&str; 7] = [
    include_str!("openapi/generate.json"),
    include_str!("openapi/dialects.json"),
    include_str!("openapi/probes.json"),
    include_str!("openapi/sessions.json"),
    include_str!("openapi/paths.json"),
    include_str!("openapi/training.json"),
    include_str!("openapi/entropy.json"),
];

static TEXT: LazyLock<String> =
    LazyLock::new(|| serde_json::to_string(&compose()).expect("a tree of JSON serializes without an error"));

static TAG: LazyLock<HeaderValue> = LazyLock::new(|| file_tag(text().bytes()));

/// The document as JSON text.
#[must_use]
pub fn text() -> &'static str {
    &TEXT
}

/// Serves the document.
pub(super) fn handle<B>(request: &Request<B>) -> Response<Body> {
    file_response(request, "application/json", text(), &TAG)
}

/// An object with these members.
fn object<const N: usize>(members: [(&str, Value); N]) -> Value {
    Value::Object(members.map(|(name, value)| (name.to_owned(), value)).into())
}

fn strings<T: AsRef<str>>(texts: impl IntoIterator<Item = T>) -> Value {
    Value::Array(texts.into_iter().map(|text| Value::from(text.as_ref())).collect())
}

fn parse(text: &str) -> Value {
    Value::parse(text.as_bytes()).expect("the parts of the document are JSON")
}

/// The members of the object below `names`.
fn members<'a>(value: &'a mut Value, names: &[&str]) -> &'a mut Vec<(String, Value)> {
    let Value::Object(list) = value else { panic!("{names:?} is in an object") };
    let Some((name, rest)) = names.split_first() else { return list };
    let (_, below) = list.iter_mut().find(|(key, _)| key == name).expect("the parts of the document have the member");
    members(below, rest)
}

/// Takes a member out of an object.
fn take(value: &mut Value, name: &str) -> Option<Value> {
    let list = members(value, &[]);
    let at = list.iter().position(|(key, _)| key == name)?;
    Some(list.remove(at).1)
}

fn compose() -> Value {
    let mut document = parse(BASE);
    let errors = parse(ERRORS);
    let list = |name| errors.get(name).and_then(Value::as_array).expect("a list of errors");
    let (control, data) = (list("control"), list("data"));
    members(&mut document, &["info"]).push(("version".to_owned(), env!("CARGO_PKG_VERSION").into()));
    for text in PARTS {
        let mut part = parse(text);
        let (servers, security) = (take(&mut part, "servers"), take(&mut part, "security"));
        let mut paths = std::mem::take(members(&mut part, &["paths"]));
        let of_path = paths.iter_mut().flat_map(|(_, path)| members(path, &[]));
        for (_, operation) in of_path.filter(|(_, member)| member.get("operationId").is_some()) {
            match take(operation, "errors") {
                Some(Value::Array(codes)) => add_control_errors(operation, &codes, control),
                Some(format) => add_data_errors(operation, &format, data),
                None => {}
            }
            if let Some(security) = &security {
                members(operation, &[]).push(("security".to_owned(), security.clone()));
            }
        }
        for (_, path) in &mut paths {
            if let Some(servers) = &servers {
                members(path, &[]).push(("servers".to_owned(), servers.clone()));
            }
        }
        members(&mut document, &["paths"]).append(&mut paths);
        members(&mut document, &["components", "schemas"]).append(members(&mut part, &["schemas"]));
    }
    let schemas = members(&mut document, &["components", "schemas"]);
    let mut codes: Vec<&str> = control.iter().map(|error| text_of(error, "code")).collect();
    codes.dedup();
    let codes = Value::Array(codes.into_iter().map(Value::from).collect());
    let enumerations = [
        ("ErrorCode", codes, "The name of an error of the control port."),
        ("Format", strings(Format::all().iter().map(ToString::to_string)), "The name of an export format."),
        ("Estimator", strings(Estimator::NAMED.map(Estimator::name)), "Which number the entropies are."),
        ("EntropyReason", strings(Reason::ALL.map(Reason::name)), "Why entropies or their temperature are missing."),
        ("Cause", strings(Cause::ALL.map(Cause::name)), "How a turn found its place in its session."),
        ("ColumnFault", strings(ColumnFault::ALL.map(ColumnFault::name)), "Why a token column is missing."),
        ("Fault", strings(Fault::ALL.map(Fault::name)), "Why a turn is not trained."),
        (
            "ReplyChange",
            strings(ReplyChange::ALL.map(ReplyChange::name)),
            "What a client changed in a reply before it returned the reply.",
        ),
        ("RequestClass", strings(RequestClass::ALL.map(RequestClass::name)), "What the request of a turn was for."),
    ];
    for (name, values, description) in enumerations {
        let schema = [("type", "string".into()), ("description", description.into()), ("enum", values)];
        schemas.push((name.to_owned(), object(schema)));
    }
    let forwarded = [
        ("paths", strings(routes::control_paths().chain(["/detokenize"]))),
        ("prefixes", strings(routes::CONTROL_PREFIXES)),
    ];
    members(&mut document, &[]).push(("x-forwarded-routes".to_owned(), object(forwarded)));
    document
}

/// The text of a member that every part of the document has.
fn text_of<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_else(|| panic!("{name} is a text"))
}

fn reference(place: &str) -> Value {
    object([("$ref", place.into())])
}

/// Adds a reply for each status of these codes, and of the codes that all operations with a control token or with a body have. A code
/// with several statuses is listed alone, or with one of them.
fn add_control_errors(operation: &mut Value, codes: &[Value], errors: &[Value]) {
    // an operation that does not say otherwise needs the control token
    let (needs_token, has_body) = (operation.get("security").is_none(), operation.get("requestBody").is_some());
    let applies = |error: &&Value| {
        let (code, status) = (text_of(error, "code"), text_of(error, "status"));
        let is_listed = codes.iter().filter_map(Value::as_str).any(|listed| match listed.split_once(' ') {
            Some(listed) => listed == (code, status),
            None => listed == code,
        });
        is_listed
            || match error.get("of").and_then(Value::as_str) {
                Some("control") => needs_token,
                Some("body") => has_body,
                _ => false,
            }
    };
    let mut statuses: Vec<(&str, Vec<&Value>)> = Vec::new();
    for error in errors.iter().filter(applies) {
        let status = text_of(error, "status");
        match statuses.iter_mut().find(|(known, _)| *known == status) {
            Some((_, list)) => list.push(error),
            None => statuses.push((status, vec![error])),
        }
    }
    statuses.sort_by_key(|(status, _)| *status);
    for (status, errors) in statuses {
        let descriptions: Vec<String> = errors
            .iter()
            .map(|error| format!("`{}`: {}", text_of(error, "code"), text_of(error, "description")))
            .collect();
        let examples = errors.iter().map(|error| {
            let members = [("code", text_of(error, "code").into()), ("message", text_of(error, "example").into())];
            (text_of(error, "code").to_owned(), object([("value", object([("error", object(members))]))]))
        });
        let mut reply = error_reply(status, &descriptions.join(" "), "ControlError", false);
        members(&mut reply, &["content", "application/json"])
            .push(("examples".to_owned(), Value::Object(examples.collect())));
        let codes = errors.iter().map(|error| text_of(error, "code").into()).collect();
        members(&mut reply, &[]).push(("x-error-codes".to_owned(), Value::Array(codes)));
        members(operation, &["responses"]).push((status.to_owned(), reply));
    }
}

/// Adds a reply of the data port for each of the statuses of `format`, which also names the schema of the errors. A status that has another
/// meaning on some routes is listed with the name of the meaning, and may have another schema.
fn add_data_errors(operation: &mut Value, format: &Value, errors: &[Value]) {
    let statuses = format.get("statuses").and_then(Value::as_array).expect("a list of statuses");
    let headers = operation.get("responses").and_then(|replies| replies.get("200")?.get("headers"));
    let has_session = headers.is_some_and(|headers| headers.get(SESSION.as_str()).is_some());
    for error in errors {
        let status = text_of(error, "status");
        let of = error.get("of").and_then(Value::as_str);
        let listed = of.map_or_else(|| status.to_owned(), |of| format!("{status} {of}"));
        if !statuses.contains(&(&*listed).into()) {
            continue;
        }
        let schema = error.get("schema").and_then(Value::as_str).unwrap_or_else(|| text_of(format, "schema"));
        // those of the engine
        let has_session = has_session && ["400", "default"].contains(&status);
        let reply = error_reply(status, text_of(error, "description"), schema, has_session);
        members(operation, &["responses"]).push((status.to_owned(), reply));
    }
}

fn error_reply(status: &str, description: &str, schema: &str, has_session: bool) -> Value {
    let schema = reference(&format!("#/components/schemas/{schema}"));
    let mut reply = object([
        ("description", description.into()),
        ("content", object([("application/json", object([("schema", schema)]))])),
    ]);
    let session = SESSION;
    let header = match status {
        "401" => Some(("WWW-Authenticate", "WWW-Authenticate")),
        "503" | "529" => Some(("Retry-After", "Retry-After")),
        _ if has_session => Some((session.as_str(), "Session")),
        _ => None,
    };
    if let Some((name, component)) = header {
        let place = reference(&format!("#/components/headers/{component}"));
        members(&mut reply, &[]).insert(1, ("headers".to_owned(), object([(name, place)])));
    }
    reply
}

#[cfg(test)]
mod tests;
