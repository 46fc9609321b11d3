// SPDX-License-Identifier: Apache-2.0
//! Compares the generated code with the `.proto`. `UPDATE=1 cargo test --test codegen` writes the code again.

#![allow(clippy::unwrap_used, reason = "a test that cannot continue has failed")]

use std::path::{Path, PathBuf};

use prost_types::FileDescriptorSet;
use protox::Compiler;

const PROTO: &str = "tokentap/v1/tokentap.proto";
const MARK: &str = "// Generated from proto/tokentap/v1/tokentap.proto: UPDATE=1 cargo test --test codegen\n";

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// The compiled descriptors; `comments` includes the comments, which become doc comments of the code.
fn descriptors(comments: bool) -> Compiler {
    let mut compiler = Compiler::new([root().join("proto")]).unwrap();
    compiler.include_source_info(comments).include_imports(true).open_file(PROTO).unwrap();
    compiler
}

fn generated(configure: impl FnOnce(tonic_prost_build::Builder) -> tonic_prost_build::Builder) -> Vec<u8> {
    let folder = tempfile::tempdir().unwrap();
    let set: FileDescriptorSet = descriptors(true).file_descriptor_set();
    let builder = tonic_prost_build::configure()
        .build_transport(false)
        .emit_rerun_if_changed(false)
        // fields of type `bytes::Bytes`, so that payloads are not copied
        .bytes(".")
        .btree_map(".")
        .out_dir(folder.path());
    configure(builder).compile_fds(set).unwrap();
    let code = std::fs::read_to_string(folder.path().join("tokentap.v1.rs")).unwrap();
    format!("{MARK}{code}").into_bytes()
}

/// Compares the file with the generated content; with `UPDATE=1` writes the content instead.
fn compare_or_update(path: &str, fresh: &[u8]) {
    let file: PathBuf = root().join(path);
    if std::env::var_os("UPDATE").is_some_and(|value| value == "1") {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, fresh).unwrap();
        return;
    }
    let found = std::fs::read(&file).unwrap_or_default();
    assert!(found == fresh, "{path} differs from {PROTO}: UPDATE=1 cargo test --test codegen writes it again");
}

#[test]
fn services_and_messages_match_the_proto() {
    compare_or_update("src/serve/grpc/pb/tokentap.v1.rs", &generated(|builder| builder.build_client(false)));
}

#[test]
fn reflection_descriptors_match_the_proto() {
    compare_or_update("src/serve/grpc/pb/tokentap.v1.bin", &descriptors(false).encode_file_descriptor_set());
}

#[test]
fn test_client_matches_the_proto() {
    let client =
        generated(|builder| builder.build_server(false).extern_path(".tokentap.v1", "::tokentap::serve::grpc::pb"));
    compare_or_update("tests/integration/grpc/client/tokentap.v1.rs", &client);
}
