// SPDX-License-Identifier: Apache-2.0
//! Logs, ledgers and archives that another build has written: this build continues them, or refuses them by name and changes nothing.
//!
//! [`kept`] opens the files below `tests/fixtures/upgrade`, [`builds`] runs two programs on the same data, and [`refusals`] makes data of a
//! later version. `OLD` is the path of the earlier build's program; without it both are this build. Tests of a ledger need `VALKEY_SERVER`.

mod builds;
mod kept;
mod refusals;
mod sessions;

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

use crate::support::binary::{Binary, PROGRAM};

/// The files below a folder, without the lock of a log.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(next) = folders.pop() {
        for entry in std::fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => folders.push(path),
                false if path.ends_with("lock") => {}
                false => {
                    let name = path.strip_prefix(folder).unwrap().to_str().unwrap().to_owned();
                    found.insert(name, std::fs::read(&path).unwrap());
                }
            }
        }
    }
    found
}

/// Whether all files of an earlier process are unchanged. The log removes a file that has only its first line.
fn are_kept(before: &BTreeMap<String, Vec<u8>>, after: &BTreeMap<String, Vec<u8>>) -> bool {
    let is_empty = |name: &str, bytes: &[u8]| name.ends_with(".log") && bytes.len() <= FIRST_LINE;
    before.iter().all(|(name, bytes)| is_empty(name, bytes) || after.get(name) == Some(bytes))
}

/// Bytes of the first line of a file of the log.
const FIRST_LINE: usize = 58;

/// Copies the files below a folder to another one.
fn copy(from: &Path, to: &Path) {
    for (name, bytes) in tree(from) {
        let path = to.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

/// Whether `all` has each member of `part` with the same value: a later build may add members, and changes none.
fn contains(all: &Value, part: &Value) -> Result<(), String> {
    match (all, part) {
        (Value::Object(all), Value::Object(part)) => part.iter().try_for_each(|(name, part)| {
            let all = all.get(name).ok_or_else(|| format!(".{name} is missing"))?;
            contains(all, part).map_err(|error| format!(".{name}{error}"))
        }),
        (Value::Array(all), Value::Array(part)) if all.len() == part.len() => all
            .iter()
            .zip(part)
            .enumerate()
            .try_for_each(|(at, (all, part))| contains(all, part).map_err(|error| format!("[{at}]{error}"))),
        _ if all == part => Ok(()),
        _ => Err(format!(" is {all} instead of {part}")),
    }
}

/// The program of the earlier build.
fn old() -> String {
    std::env::var("OLD").unwrap_or_else(|_| PROGRAM.to_owned())
}

async fn end(mut binary: Binary) {
    binary.terminate();
    assert_eq!(binary.code().await, Some(0));
}
