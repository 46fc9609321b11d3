// SPDX-License-Identifier: Apache-2.0
//! Runs the properties of the fuzz targets on their seeds, which include inputs that once failed.

#![expect(clippy::unwrap_used, reason = "a test that cannot read its files has failed")]
#![allow(unreachable_pub, reason = "a test binary exports nothing")]

use std::path::{Path, PathBuf};

#[path = "fuzz/properties/mod.rs"]
mod properties;

/// Names and paths of the entries of a folder of `tests/fuzz`.
fn list(folder: &str) -> Vec<(String, PathBuf)> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz").join(folder);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut found: Vec<_> = paths.map(|path| (path.file_stem().unwrap().to_str().unwrap().to_owned(), path)).collect();
    found.sort();
    found
}

#[test]
fn every_property_holds_on_every_seed() {
    let mut broken = Vec::new();
    for (target, property) in properties::ALL {
        let seeds = list(&format!("seeds/{target}"));
        assert!(seeds.len() > 2, "{target} has too few seeds");
        for (name, path) in seeds {
            let bytes = std::fs::read(path).unwrap();
            if std::panic::catch_unwind(|| property(&bytes)).is_err() {
                broken.push(format!("{target}/{name}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}

#[test]
fn every_property_has_a_fuzz_target() {
    let names: Vec<&str> = properties::ALL.iter().map(|(name, _)| *name).collect();
    assert_eq!(list("seeds").iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
    let targets = list("targets");
    assert_eq!(targets.iter().map(|(name, _)| &**name).collect::<Vec<_>>(), names);
    let manifest = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fuzz/Cargo.toml")).unwrap();
    for (target, path) in targets {
        let text = std::fs::read_to_string(path).unwrap();
        assert!(text.contains(&format!("tokentap_fuzz::{target}(bytes)")), "{target} does not call its own property");
        assert!(
            manifest.contains(&format!("path = \"targets/{target}.rs\"")),
            "tests/fuzz/Cargo.toml does not build {target}"
        );
    }
}
