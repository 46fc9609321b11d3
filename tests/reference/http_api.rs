// SPDX-License-Identifier: Apache-2.0
//! The page of the HTTP API, from the document at `/openapi.json`. Its examples are the requests and replies of the document; `tests/book.rs`
//! sends them.

use std::fmt::Write;

use tokentap::json::Value;

/// The members of an object; none of any other value.
fn members(value: Option<&Value>) -> &[(String, Value)] {
    match value {
        Some(Value::Object(members)) => members,
        _ => &[],
    }
}

fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn list<'a>(value: &'a Value, name: &str) -> &'a [Value] {
    value.get(name).and_then(Value::as_array).unwrap_or_default()
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|").replace('\n', " ")
}

/// A value as JSON text.
fn compact(value: &Value) -> String {
    serde_json::to_string(value).unwrap()
}

/// The document, and the page that describes it.
pub(crate) struct Page {
    document: Value,
    out: String,
}

impl Page {
    /// Appends the description of all operations and schemas to the first lines of the page.
    pub(crate) fn write(first_lines: String) -> String {
        let document = Value::parse(tokentap::serve::control::openapi::text().as_bytes()).unwrap();
        let mut page = Self { document, out: first_lines };
        let tags = list(&page.document, "tags").to_vec();
        for tag in &tags {
            page.tag(tag);
        }
        page.out.push_str("\n## Schemas\n");
        let schemas = page.document.get("components").and_then(|components| components.get("schemas")).cloned();
        for (name, schema) in members(schemas.as_ref()) {
            write!(page.out, "\n### {name}\n\n{}\n", describe(schema)).unwrap();
            page.schema(schema);
        }
        page.out
    }

    fn tag(&mut self, tag: &Value) {
        write!(self.out, "\n## {}\n\n{}\n", text(tag, "name"), text(tag, "description")).unwrap();
        for (path, item) in members(self.document.clone().get("paths")) {
            for (method, operation) in members(Some(item)) {
                if list(operation, "tags").contains(&text(tag, "name").into()) {
                    let is_of_data_port = item.get("servers").is_some();
                    self.operation((&method.to_uppercase(), path, is_of_data_port), operation);
                }
            }
        }
    }

    fn operation(&mut self, route: (&str, &str, bool), operation: &Value) {
        let (method, path, _) = route;
        write!(self.out, "\n### {method} {path}\n\n{}.", text(operation, "summary")).unwrap();
        if let Some(description) = operation.get("description").and_then(Value::as_str) {
            write!(self.out, " {description}").unwrap();
        }
        self.out.push('\n');
        let parameters: Vec<Value> = list(operation, "parameters").iter().map(|value| self.resolve(value)).collect();
        if !parameters.is_empty() {
            self.out.push_str("\n| parameter | in | type | description |\n|---|---|---|---|\n");
        }
        for parameter in &parameters {
            let (name, place) = (text(parameter, "name"), text(parameter, "in"));
            let kind = kind(parameter.get("schema").unwrap());
            writeln!(self.out, "| `{name}` | {place} | {kind} | {} |", cell(text(parameter, "description"))).unwrap();
        }
        let request = operation.get("requestBody").and_then(|body| body.get("content"));
        if request.is_some() {
            self.out.push_str("\n| body | type |\n|---|---|\n");
        }
        for (media_type, media) in members(request) {
            writeln!(self.out, "| `{media_type}` | {} |", kind(media.get("schema").unwrap())).unwrap();
        }
        self.out.push_str("\n| status | body | description |\n|---|---|---|\n");
        for (status, reply) in members(operation.get("responses")) {
            let reply = self.resolve(reply);
            let bodies: Vec<String> = members(reply.get("content"))
                .iter()
                .map(|(media_type, media)| match &*kind(media.get("schema").unwrap()) {
                    kind if media_type == "application/json" => kind.to_owned(),
                    _ => format!("`{media_type}`"),
                })
                .collect();
            let description = cell(text(&reply, "description"));
            writeln!(self.out, "| {status} | {} | {description} |", bodies.join(", ")).unwrap();
        }
        self.example(route, operation, &parameters);
    }

    /// Writes the example request, if it has an example reply.
    fn example(
        &mut self,
        (method, path, is_of_data_port): (&str, &str, bool),
        operation: &Value,
        parameters: &[Value],
    ) {
        let content = operation.get("responses").and_then(|replies| replies.get("200")?.get("content"));
        let Some(reply) = members(content).iter().find_map(|(_, media)| media.get("example")) else { return };
        let (mut target, mut query, mut headers) = (path.to_owned(), Vec::new(), String::new());
        for parameter in parameters {
            let Some(example) = parameter.get("example") else { continue };
            let (name, value) =
                (text(parameter, "name"), example.as_str().map_or_else(|| compact(example), str::to_owned));
            match text(parameter, "in") {
                "path" => target = target.replace(&format!("{{{name}}}"), &value),
                "query" => query.push(format!("{name}={value}")),
                _ => write!(headers, " -H '{}: {value}'", name.to_lowercase()).unwrap(),
            }
        }
        if !query.is_empty() {
            target = format!("{target}?{}", query.join("&"));
        }
        let port = if is_of_data_port { 30001 } else { 30002 };
        let url = format!("http://127.0.0.1:{port}{target}");
        let url = if url.contains(['?', '&']) { format!("'{url}'") } else { url };
        let request = operation.get("requestBody").and_then(|body| body.get("content")?.get("application/json"));
        let body = request.and_then(|media| media.get("example"));
        let method = if method == "GET" || (method == "POST" && body.is_some()) {
            String::new()
        } else {
            format!(" -X {method}")
        };
        let data = body.map(|body| format!(" -H 'content-type: application/json' -d '{}'", compact(body)));
        let reply = reply.as_str().map_or_else(|| compact(reply), |text| text.trim_end().to_owned());
        write!(self.out, "\n```console\n$ curl -s{method} {url}{headers}{}\n{reply}\n```\n", data.unwrap_or_default())
            .unwrap();
    }

    /// Writes the members of an object, the values of an enumeration, or the alternatives.
    fn schema(&mut self, schema: &Value) {
        let values: Vec<String> =
            list(schema, "enum").iter().map(|value| format!("`{}`", value.as_str().unwrap())).collect();
        if !values.is_empty() {
            writeln!(self.out, "\nOne of {}.", values.join(", ")).unwrap();
        }
        let alternatives: Vec<String> = list(schema, "oneOf").iter().map(kind).collect();
        if !alternatives.is_empty() {
            writeln!(self.out, "\nOne of {}.", alternatives.join(", ")).unwrap();
        }
        if schema.get("properties").is_none() {
            return;
        }
        self.out.push_str("\n| member | type | description |\n|---|---|---|\n");
        self.rows("", schema);
    }

    /// Writes a row for each member of an object, and of the objects without a name in it.
    fn rows(&mut self, prefix: &str, schema: &Value) {
        let required = list(schema, "required");
        for (name, member) in members(schema.get("properties")) {
            let optional = if required.contains(&(&**name).into()) { "" } else { ", may be absent" };
            let description = cell(&describe(member));
            writeln!(self.out, "| `{prefix}{name}` | {}{optional} | {description} |", kind(member)).unwrap();
            self.rows(&format!("{prefix}{name}."), member);
            if let Some(items) = member.get("items") {
                self.rows(&format!("{prefix}{name}[]."), items);
            }
        }
    }

    /// The object at the place of a `$ref`, or the object itself.
    fn resolve(&self, value: &Value) -> Value {
        let Some(place) = value.get("$ref").and_then(Value::as_str) else { return value.clone() };
        let mut found = &self.document;
        for name in place.trim_start_matches("#/").split('/') {
            found = found.get(name).unwrap();
        }
        found.clone()
    }
}

/// The description of a schema, with its default and limits.
fn describe(schema: &Value) -> String {
    let mut text = text(schema, "description").to_owned();
    for (name, phrase) in [("default", "The default is"), ("minimum", "At least"), ("maximum", "At most")] {
        // 0 is the least number of everything that is counted
        if let Some(value) = schema.get(name).map(compact).filter(|value| name == "default" || value != "0") {
            write!(text, " {phrase} {}.", value.trim_matches('"')).unwrap();
        }
    }
    text.trim().to_owned()
}

/// The type of a schema, with links to named ones.
fn kind(schema: &Value) -> String {
    if let Some(place) = schema.get("$ref").and_then(Value::as_str) {
        let name = place.rsplit('/').next().unwrap();
        return format!("[{name}](#{})", name.to_lowercase());
    }
    let alternatives = list(schema, "oneOf").iter().chain(list(schema, "anyOf"));
    let alternatives: Vec<String> = alternatives.map(kind).collect();
    if !alternatives.is_empty() {
        return alternatives.join(" or ");
    }
    if let Some(value) = schema.get("const") {
        return format!("`{}`", compact(value).trim_matches('"'));
    }
    let values: Vec<String> =
        list(schema, "enum").iter().map(|value| format!("`{}`", compact(value).trim_matches('"'))).collect();
    if !values.is_empty() {
        return values.join(" or ");
    }
    if text(schema, "format") == "binary" {
        return "bytes".to_owned();
    }
    let types: Vec<&str> = match schema.get("type") {
        Some(Value::Array(types)) => types.iter().filter_map(Value::as_str).collect(),
        Some(one) => one.as_str().into_iter().collect(),
        None => vec!["any"],
    };
    let named = types.into_iter().map(|name| match (name, schema.get("items")) {
        ("array", Some(items)) => format!("list of {}", kind(items)),
        (name, _) => name.to_owned(),
    });
    named.collect::<Vec<_>>().join(" or ")
}
