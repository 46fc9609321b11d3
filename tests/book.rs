// SPDX-License-Identifier: Apache-2.0
//! Runs the commands of README.md and docs/, and compares what they print with what the pages show.
//!
//! A fenced block named `console` holds commands, each after `$ `, and their output. Every page has a fresh `tokentap demo`, with the flags
//! that the page names: those of the first line `tokentap demo ...` in a block named `sh`. JSON is compared by value, except for ids and
//! times; other lines are equal. A line `...` matches any number of lines.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot run a command has failed")]

use std::io::{BufRead, BufReader};
use std::mem;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;

/// A command of a page, and its output there.
#[derive(Debug)]
struct Example {
    command: String,
    output: Vec<String>,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// The lines of each fenced block of a page with this name.
fn blocks<'a>(text: &'a str, name: &str) -> Vec<Vec<&'a str>> {
    let mut blocks = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(info) = line.strip_prefix("```") {
            let block = lines.by_ref().take_while(|line| !line.starts_with("```")).collect();
            if info.trim() == name {
                blocks.push(block);
            }
        }
    }
    blocks
}

/// The examples of a page.
fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    for block in blocks(text, "console") {
        let mut continues = false;
        for line in block {
            if continues {
                let example = found.last_mut().unwrap();
                example.command.push('\n');
                example.command.push_str(line);
            } else if let Some(command) = line.strip_prefix("$ ") {
                found.push(Example { command: command.to_owned(), output: Vec::new() });
            } else {
                found.last_mut().expect("a console block begins with a command").output.push(line.to_owned());
                continue;
            }
            continues = line.ends_with('\\');
        }
    }
    found
}

/// The flags of the `tokentap demo` that a page tells its reader to start.
fn demo_flags(text: &str) -> Vec<String> {
    let flags = blocks(text, "sh").concat().into_iter().find_map(|line| line.strip_prefix("tokentap demo "));
    flags.unwrap_or_default().split_whitespace().map(str::to_owned).collect()
}

/// Members whose values differ from run to run: ids, times, versions of programs and sizes in memory.
const VARYING: [&str; 16] = [
    "age_ms",
    "bytes",
    "client",
    "completed_at",
    "created",
    "created_at",
    "created_ms",
    "cursor",
    "e2e_latency",
    "elapsed_ms",
    "first_ms",
    "id",
    "response_sent_to_client_ts",
    "rid",
    "row_key",
    "started_ms",
];

/// A line of output.
#[derive(Debug)]
enum Line {
    /// JSON, and the text before it: `data: ` in a stream.
    Json(&'static str, Value),
    Text(String),
    /// `...` on a page: any number of lines.
    Any,
}

impl Line {
    fn parse(line: &str) -> Self {
        let line = line.trim();
        let (prefix, rest) = line.strip_prefix("data: ").map_or(("", line), |rest| ("data: ", rest));
        match serde_json::from_str(rest) {
            Ok(value @ (Value::Object(_) | Value::Array(_))) => Self::Json(prefix, value),
            _ if line == "..." => Self::Any,
            _ => Self::Text(line.to_owned()),
        }
    }

    fn matches(&self, printed: &Self) -> bool {
        match (self, printed) {
            (Self::Json(mine, shown), Self::Json(theirs, printed)) => mine == theirs && equal(shown, printed),
            (Self::Text(shown), Self::Text(printed)) => shown == printed,
            _ => false,
        }
    }
}

/// Whether two JSON values are equal, except for the values of [`VARYING`] members, which have equal types, and for the last digits of
/// logprobs and entropies, which depend on the instruction set.
fn equal(shown: &Value, printed: &Value) -> bool {
    match (shown, printed) {
        (Value::Object(shown), Value::Object(printed)) => {
            shown.len() == printed.len()
                && shown.iter().all(|(name, value)| {
                    printed.get(name).is_some_and(|other| {
                        let varies = VARYING.contains(&name.as_str());
                        if varies { mem::discriminant(value) == mem::discriminant(other) } else { equal(value, other) }
                    })
                })
        }
        (Value::Array(shown), Value::Array(printed)) => {
            shown.len() == printed.len() && shown.iter().zip(printed).all(|(value, other)| equal(value, other))
        }
        (Value::Number(shown), Value::Number(printed)) if shown.is_f64() && printed.is_f64() => {
            let [shown, printed] = [shown, printed].map(|number| number.as_f64().unwrap());
            (shown - printed).abs() <= 1e-5 + 1e-4 * shown.abs()
        }
        _ => shown == printed,
    }
}

/// Whether the output of a command matches the lines of its page.
fn matches(shown: &[Line], printed: &[Line]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((Line::Any, rest)) => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        Some((first, rest)) => {
            printed.split_first().is_some_and(|(line, more)| first.matches(line) && matches(rest, more))
        }
    }
}

/// A running `tokentap demo`.
struct Demo {
    child: Child,
    data: String,
    control: String,
}

impl Demo {
    fn start(flags: &[String]) -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tokentap"))
            .args(["demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "off"])
            .args(flags)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut ports = Vec::new();
        while ports.len() < 2 {
            let line = lines.next().expect("demo prints both of its ports").unwrap();
            for word in line.split(|c: char| !(c.is_ascii_digit() || ".:".contains(c))) {
                let is_port = word.strip_prefix("127.0.0.1:").is_some_and(|port| port.parse::<u16>().is_ok());
                if is_port && !ports.iter().any(|known| known == word) {
                    ports.push(word.to_owned());
                }
            }
        }
        // the remaining output is read and discarded, because a full pipe would block the demo
        std::thread::spawn(move || lines.for_each(drop));
        let [data, control] = [ports.remove(0), ports.remove(0)];
        Self { child, data, control }
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn run(demo: &Demo, folder: &Path, command: &str) -> Vec<String> {
    let command = command.replace("127.0.0.1:30001", &demo.data).replace("127.0.0.1:30002", &demo.control);
    let binary = Path::new(env!("CARGO_BIN_EXE_tokentap")).parent().unwrap();
    let path = format!("{}:{}", binary.display(), std::env::var("PATH").unwrap());
    let done = Command::new("bash")
        .args(["-c", &command])
        .current_dir(folder)
        .env("PATH", path)
        .env("TOKENTAP_CONTROL", format!("http://{}", demo.control))
        .env("TOKENTAP_LOG", "off")
        .output()
        .unwrap();
    let text = String::from_utf8(done.stdout).unwrap() + &String::from_utf8(done.stderr).unwrap();
    text.replace(&demo.data, "127.0.0.1:30001")
        .replace(&demo.control, "127.0.0.1:30002")
        .lines()
        .map(str::to_owned)
        .collect()
}

fn lines(text: &[String]) -> Vec<Line> {
    text.iter().filter(|line| !line.trim().is_empty()).map(|line| Line::parse(line)).collect()
}

#[test]
fn commands_match_the_pages() {
    let mut pages = vec![root().join("README.md")];
    let mut folders = vec![root().join("docs")];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() { folders.push(path) } else { pages.push(path) }
        }
    }
    pages.sort();
    let mut failed = Vec::new();
    let mut count = 0;
    for page in pages.iter().filter(|page| page.extension().is_some_and(|extension| extension == "md")) {
        let text = std::fs::read_to_string(page).unwrap();
        let examples = examples(&text);
        if examples.is_empty() {
            continue;
        }
        let (demo, folder) = (Demo::start(&demo_flags(&text)), tempfile::tempdir().unwrap());
        for Example { command, output } in examples {
            count += 1;
            let printed = run(&demo, folder.path(), &command);
            if !matches(&lines(&output), &lines(&printed)) {
                failed.push(format!("{}: $ {command}\n{}", page.display(), printed.join("\n")));
            }
        }
    }
    assert!(count > 10, "the pages have commands");
    assert!(failed.is_empty(), "{} of {count} commands print different output:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn outputs_are_compared_by_value_except_for_varying_members() {
    let matches = |shown: &str, printed: &str| {
        let [shown, printed] = [shown, printed].map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
        matches(&lines(&shown), &lines(&printed))
    };
    assert!(matches("{\"a\":[1,2],\"id\":\"x\"}", "{\"id\":\"yy\",\"a\":[1,2]}"));
    assert!(!matches("{\"id\":\"x\"}", "{\"id\":null}"), "another type");
    assert!(!matches("{\"a\":1}", "{\"a\":1,\"b\":2}"), "an additional member");
    assert!(!matches("{\"a\":1}", "{\"a\":2}"), "another count");
    assert!(!matches("{\"a\":[1]}", "{\"a\":[1,1]}"), "another length");
    assert!(!matches("{\"message\":\"x\"}", "{\"message\":\"y\"}"), "another message");
    assert!(matches("{\"mean\":0.123412}", "{\"mean\":0.123409}"));
    assert!(!matches("{\"mean\":0.5130}", "{\"mean\":0.4588}"), "another estimate");
    assert!(!matches("data: {\"a\":1}", "{\"a\":1}"), "no event");
    assert!(!matches("wrote 12 rows", "wrote 7 rows"));
    assert!(matches("first\n...\nlast", "first\na\nb\nlast"));
    assert!(!matches("first\n...\nlast", "first\na"));
}
