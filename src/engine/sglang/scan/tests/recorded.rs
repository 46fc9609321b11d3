// SPDX-License-Identifier: Apache-2.0
//! Compares the scanner with `serde_json`, on replies recorded from real servers.

use super::{agree, oracle};
use std::path::Path;

#[test]
fn recorded_replies_agree_with_serde_json() {
    let checked = recorded(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures"));
    assert!(checked.values > 0, "the recorded replies should be in tests/fixtures");
}

#[derive(Debug, Default)]
struct Checked {
    files: usize,
    lists: usize,
    values: usize,
}

/// Checks every logprob list of every `response.body` below `directory`, plain replies and events alike.
fn recorded(directory: &Path) -> Checked {
    let mut checked = Checked::default();
    let mut directories = vec![directory.to_owned()];
    while let Some(directory) = directories.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                directories.push(path);
            } else if path.ends_with("response.body") {
                checked.files += 1;
                body(&std::fs::read(&path).unwrap(), &mut checked);
            }
        }
    }
    checked
}

/// Checks every logprob list of a reply. The key cannot match inside a string, where its quotes would be escaped.
fn body(bytes: &[u8], checked: &mut Checked) {
    for event in bytes.split(|&byte| byte == b'\n') {
        for key in
            ["put_top_logprobs", "put_token_logprobs", "put_token_ids_logprobs", "output_ids", "prompt_token_ids"]
        {
            let key = format!("{key}\":");
            let mut from = 0;
            while let Some(found) = event[from..].windows(key.len()).position(|window| window == key.as_bytes()) {
                from += found + key.len();
                if event.get(from) == Some(&b'[') {
                    agree(event, from);
                    checked.lists += 1;
                    let (list, _) = oracle::document(&event[from..]).expect("a recorded list is JSON");
                    checked.values += oracle::rows(&list).unwrap_or_default().iter().map(Vec::len).sum::<usize>();
                    checked.values += oracle::triples(&list).unwrap_or_default().0.len();
                }
            }
        }
    }
}
