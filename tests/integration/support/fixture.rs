// SPDX-License-Identifier: Apache-2.0
//! Exchanges recorded from real servers: see `tests/fixtures/README.md`.

use std::path::{Path, PathBuf};

use serde_json::Value;

/// One recorded exchange.
#[derive(Debug, Clone)]
pub struct Fixture {
    /// `server/set/case`.
    pub name: String,
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// The body of the request.
    pub body: Vec<u8>,
    pub status: u16,
    pub reply_headers: Vec<(String, String)>,
    pub reply: Vec<u8>,
    pub truth: Option<Value>,
}

/// The folder of the recordings. cargo sets the variable for tests as well; a test program that was carried to another machine gets it
/// there.
fn root() -> PathBuf {
    let repository = std::env::var("CARGO_MANIFEST_DIR").unwrap_or_else(|_| env!("CARGO_MANIFEST_DIR").to_owned());
    Path::new(&repository).join("tests/fixtures")
}

impl Fixture {
    /// Every recording whose server answered.
    pub fn all() -> Vec<Self> {
        let root = root();
        let mut found: Vec<Self> = folders(&root).iter().filter_map(|folder| Self::read(&root, folder)).collect();
        found.sort_by(|a, b| a.name.cmp(&b.name));
        assert!(found.len() > 400, "there are {} recordings", found.len());
        found
    }

    /// The recording with this name.
    pub fn named(name: &str) -> Self {
        let root = root();
        Self::read(&root, &root.join(name)).unwrap_or_else(|| panic!("no recording {name}"))
    }

    fn read(root: &Path, folder: &Path) -> Option<Self> {
        let text = |file: &str| std::fs::read(folder.join(file)).ok();
        let request: Value = serde_json::from_slice(&text("request.json")?).unwrap();
        let status: u16 = String::from_utf8(text("response.status")?).unwrap().trim().parse().unwrap();
        if status == 0 {
            return None; // the request crashed the server
        }
        let body = match (&request["body"], &request["body_raw"]) {
            (Value::Null, Value::Null) => Vec::new(),
            (Value::Null, raw) => raw.as_str().unwrap().as_bytes().to_vec(),
            (body, _) => body.to_string().into_bytes(),
        };
        let headers = request["headers"].as_object().map(|headers| {
            headers
                .iter()
                .map(|(key, value)| (key.to_lowercase(), value.as_str().unwrap_or_default().to_owned()))
                .collect()
        });
        let reply_headers = String::from_utf8(text("response.headers")?).unwrap();
        Some(Self {
            name: folder.strip_prefix(root).unwrap().to_str().unwrap().to_owned(),
            method: request["method"].as_str().unwrap().to_owned(),
            path: request["path"].as_str().unwrap().to_owned(),
            headers: headers.unwrap_or_default(),
            body,
            status,
            reply_headers: reply_headers
                .lines()
                .skip(1)
                .filter_map(|line| line.split_once(": "))
                .map(|(key, value)| (key.to_lowercase(), value.to_owned()))
                .collect(),
            reply: text("response.body")?,
            truth: text("truth.json").map(|truth| serde_json::from_slice(&truth).unwrap()),
        })
    }

    pub fn request(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }

    pub fn is_generate(&self) -> bool {
        self.path == "/generate" && (self.method == "POST" || self.method == "PUT")
    }

    pub fn is_stream(&self) -> bool {
        self.reply.starts_with(b"data:")
    }

    /// Whether the generation succeeded.
    pub fn is_success(&self) -> bool {
        self.is_generate() && self.status == 200 && memchr::memmem::find(&self.reply, b"\"meta_info\"").is_some()
    }

    pub fn server(&self) -> &str {
        self.name.split('/').next().unwrap()
    }

    /// The objects of the reply: items, or events.
    pub fn objects(&self) -> Vec<Value> {
        if self.is_stream() {
            return super::client::events(&self.reply)
                .iter()
                .map(|event| serde_json::from_slice(event).unwrap())
                .collect();
        }
        match serde_json::from_slice(&self.reply).unwrap() {
            Value::Array(items) => items,
            single => vec![single],
        }
    }
}

fn folders(root: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(root).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            if path.join("request.json").exists() {
                found.push(path);
            } else {
                found.extend(folders(&path));
            }
        }
    }
    found
}
