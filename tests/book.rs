//! Runs the commands of README.md and docs/, and compares what they print with what the pages show.
//!
//! A fenced block named `console` holds commands, each after `$ `, and their output. Every page has a fresh `tokentap demo`. Outputs are
//! compared by shape: JSON by members and types, and by the values of a few members; other lines without the values of their digits. A line `...` matches any number of lines.

#![expect(clippy::unwrap_used, clippy::expect_used, reason = "a test that cannot run a command has failed")]

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
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

/// The examples of a page.
fn examples(text: &str) -> Vec<Example> {
    let mut found: Vec<Example> = Vec::new();
    let mut fence = None;
    let mut continues = false;
    for line in text.lines() {
        if let Some(info) = line.strip_prefix("```") {
            fence = if fence.is_none() { Some(info.trim().to_owned()) } else { None };
            continues = false;
            continue;
        }
        if fence.as_deref() != Some("console") {
            continue;
        }
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
    found
}

/// Members whose values are the same in every run, because the demo samples with fixed seeds.
const FIXED: [&str; 4] = ["completion_tokens", "mean", "output_ids", "output_tokens"];

/// The text of a value that is compared. The last digits of a mean depend on the instruction set.
fn fixed(value: &Value) -> String {
    value.as_f64().map_or_else(|| value.to_string(), |number| format!("{number:.4}"))
}

/// The names and types of the members of JSON, with values only for [`FIXED`] ones. An array has the type of its first element.
fn shape(value: &Value) -> String {
    match value {
        Value::Null => "null".to_owned(),
        Value::Bool(_) => "bool".to_owned(),
        Value::Number(_) => "number".to_owned(),
        Value::String(_) => "string".to_owned(),
        Value::Array(items) => format!("[{}]", items.first().map(shape).unwrap_or_default()),
        Value::Object(members) => {
            let of = |name: &str, value| if FIXED.contains(&name) { fixed(value) } else { shape(value) };
            let members: BTreeMap<&String, String> =
                members.iter().map(|(name, value)| (name, of(name, value))).collect();
            format!("{members:?}")
        }
    }
}

/// A line without the parts that differ from run to run.
fn normalized(line: &str) -> String {
    let (prefix, rest) = line.strip_prefix("data: ").map_or(("", line), |rest| ("data: ", rest));
    if let Ok(value @ (Value::Object(_) | Value::Array(_))) = serde_json::from_str(rest) {
        return format!("{prefix}{}", shape(&value));
    }
    let mut text = String::new();
    for word in line.trim_end().split_inclusive(|c: char| !c.is_ascii_alphanumeric()) {
        let is_varying = word.chars().any(|c| c.is_ascii_digit());
        let end = word.chars().last().filter(|c| !c.is_ascii_alphanumeric());
        if is_varying {
            text.push('0');
            text.extend(end);
        } else {
            text.push_str(word);
        }
    }
    text
}

/// Whether the output of a command matches the lines of its page.
fn matches(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((first, rest)) if first.trim() == "..." => (0..=printed.len()).any(|at| matches(rest, &printed[at..])),
        Some((first, rest)) => printed.split_first().is_some_and(|(line, more)| first == line && matches(rest, more)),
    }
}

/// A running `tokentap demo`.
struct Demo {
    child: Child,
    data: String,
    control: String,
}

impl Demo {
    fn start() -> Self {
        let mut child = Command::new(env!("CARGO_BIN_EXE_tokentap"))
            .args(["demo", "--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log", "off"])
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

fn without_blank(lines: &[String]) -> Vec<String> {
    lines.iter().filter(|line| !line.trim().is_empty()).map(|line| normalized(line)).collect()
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
        let examples = examples(&std::fs::read_to_string(page).unwrap());
        if examples.is_empty() {
            continue;
        }
        let (demo, folder) = (Demo::start(), tempfile::tempdir().unwrap());
        for Example { command, output } in examples {
            count += 1;
            let printed = run(&demo, folder.path(), &command);
            if !matches(&without_blank(&output), &without_blank(&printed)) {
                failed.push(format!("{}: $ {command}\n{}", page.display(), printed.join("\n")));
            }
        }
    }
    assert!(count > 10, "the pages have commands");
    assert!(failed.is_empty(), "{} of {count} commands print different output:\n{}", failed.len(), failed.join("\n\n"));
}

#[test]
fn outputs_are_compared_by_shape() {
    let lines = |text: &str| without_blank(&text.lines().map(str::to_owned).collect::<Vec<_>>());
    assert!(matches(&lines("{\"a\":[1,2],\"b\":\"x\"}"), &lines("{\"b\":\"yy\",\"a\":[3]}")));
    assert!(!matches(&lines("{\"a\":1}"), &lines("{\"a\":1,\"b\":2}")), "an additional member");
    assert!(!matches(&lines("{\"a\":1}"), &lines("{\"a\":\"1\"}")), "another type");
    assert!(matches(&lines("{\"a\":{\"mean\":0.12341}}"), &lines("{\"a\":{\"mean\":0.12339}}")));
    assert!(!matches(&lines("{\"a\":{\"mean\":0.1234}}"), &lines("{\"a\":{\"mean\":0.1236}}")), "another mean");
    assert!(!matches(&lines("{\"output_ids\":[1,2]}"), &lines("{\"output_ids\":[1,3]}")), "another id");
    assert!(matches(&lines("wrote 12 rows in 5ms"), &lines("wrote 7 rows in 31ms")));
    assert!(!matches(&lines("wrote 12 rows"), &lines("read 12 rows")));
    assert!(matches(&lines("first\n...\nlast"), &lines("first\na\nb\nlast")));
    assert!(!matches(&lines("first\n...\nlast"), &lines("first\na")));
}
