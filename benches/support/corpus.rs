// SPDX-License-Identifier: Apache-2.0
//! Text for the messages of chats.

use std::path::Path;

/// Text for messages: the project's code and prose, which repeats itself about as much as real chats.
pub fn corpus() -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut text: String =
        ["README.md", "CONTRIBUTING.md"].map(|name| std::fs::read_to_string(root.join(name)).unwrap()).concat();
    let mut folders = vec![root.join("src")];
    while let Some(folder) = folders.pop() {
        let mut paths: Vec<_> = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
        paths.sort();
        for path in paths {
            match path.extension().and_then(|extension| extension.to_str()) {
                _ if path.is_dir() => folders.push(path),
                Some("rs") => text.push_str(&std::fs::read_to_string(path).unwrap()),
                _ => {}
            }
        }
    }
    text
}
