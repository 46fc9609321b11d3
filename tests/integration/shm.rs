// SPDX-License-Identifier: Apache-2.0
//! Slices in files that another process wrote.

use std::fs::File;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokentap::logits::slices::{Intake, SliceColumns, SliceShape};

use crate::slices::Slice;
use crate::support::binary::output;
use crate::support::client::{Answer, Connection, request, written};
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

const JSON: (&str, &str) = ("content-type", "application/json");
const BINARY: (&str, &str) = ("content-type", "application/octet-stream");

/// A tokentap and its shared folder.
struct Shared {
    folder: TempDir,
    proxy: Proxy,
}

impl Shared {
    async fn start(flags: &[&str]) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().to_str().unwrap();
        let proxy = Proxy::start(ManualUpstream::start().await.addr, &[&["--shm-dir", path], flags].concat()).await;
        Self { folder, proxy }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) {
        std::fs::write(self.path(name), bytes).unwrap();
    }

    async fn ask(&self, shm: Value) -> Answer {
        self.send(json!({"shm": shm})).await
    }

    async fn send(&self, body: Value) -> Answer {
        let body = body.to_string();
        soon("an answer", request(self.proxy.control, "POST", "/v1/entropy", &[JSON], body.as_bytes())).await
    }

    /// Takes the only slot until the intake is dropped, so that readers of rows stop at their first piece.
    async fn occupy(&self) -> Intake {
        let rows = SliceShape::try_new(tokentap::entropy::Dtype::F32, 1, 2, 1).unwrap();
        let mut intake = Intake::open(&self.proxy.parts.slices, rows, SliceColumns::default()).unwrap();
        intake.push(&[0; 4]).await;
        intake
    }
}

/// Waits until this process, which runs the tokentap, has opened or closed the file.
async fn until_open(path: &Path, open: bool) {
    let is_open = || {
        let files = std::fs::read_dir("/proc/self/fd").unwrap();
        files.filter_map(|file| std::fs::read_link(file.ok()?.path()).ok()).any(|file| file == path)
    };
    soon("the file is opened or closed", async {
        while is_open() != open {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

const ONE_SLOT: &[&str] = &["limit:slice-memory", "4MiB", "--entropy-backend", "cpu"];

#[tokio::test(flavor = "multi_thread")]
async fn shm_slice_matches_the_reference() {
    let shared = Shared::start(&[]).await;
    for dtype in [Dtype::F32, Dtype::BF16] {
        for (rows, vocab) in [(1, 1), (5, 1000), (40, 50_257)] {
            let slice = Slice::new(dtype, rows, vocab);
            for late in [false, true] {
                shared.write("slice-1", &slice.file(late));
                let answer = shared.ask(json!({"name": "slice-1"})).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                slice.check(&answer.json());
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shm_slice_gets_the_same_reply_as_an_upload() {
    let shared = Shared::start(&[]).await;
    let file = Slice::new(Dtype::BF16, 9, 4000).file(false);
    shared.write("A.b_c-1", &file);
    for accept in ["application/json", "application/octet-stream"] {
        let headers = |kind| [kind, ("accept", accept)];
        let control = shared.proxy.control;
        let sent = request(control, "POST", "/v1/entropy", &headers(BINARY), &file).await;
        let shm = request(control, "POST", "/v1/entropy", &headers(JSON), br#"{"shm":{"name":"A.b_c-1"}}"#).await;
        assert_eq!((shm.status, shm.header("content-type")), (200, Some(accept)));
        assert_eq!(shm.body, sent.body);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn file_can_contain_several_slices() {
    let shared = Shared::start(&[]).await;
    let slices = [Slice::new(Dtype::F32, 3, 7), Slice::new(Dtype::BF16, 20, 50_000), Slice::new(Dtype::F32, 2, 999)];
    let files = slices.each_ref().map(|slice| slice.file(false));
    shared.write("ring", &files.concat());
    let mut offset = 0;
    for (slice, file) in slices.iter().zip(&files) {
        slice.check(&shared.ask(json!({"name": "ring", "offset": offset, "bytes": file.len()})).await.json());
        offset += file.len();
    }
    let last = offset - files[2].len();
    slices[2].check(&shared.ask(json!({"name": "ring", "offset": last})).await.json());
    slices[2].check(&shared.ask(json!({"name": "ring", "offset": last, "bytes": null})).await.json());
    for (range, words) in [
        (json!({"name": "ring", "offset": offset + 1}), format!("it has {offset} bytes")),
        (json!({"name": "ring", "offset": last, "bytes": files[2].len() + 1}), format!("begins at {last} with ")),
        (json!({"name": "ring", "offset": 1, "bytes": u64::MAX}), format!("with {} bytes", u64::MAX)),
        (json!({"name": "ring", "offset": offset}), "the body ends early, in the length of its header".to_owned()),
        (json!({"name": "ring", "bytes": files[0].len() - 1}), "the body ends early, in logits".to_owned()),
        (json!({"name": "ring", "bytes": files[0].len() + 1}), "follow the last tensor".to_owned()),
    ] {
        let answer = shared.ask(range.clone()).await;
        assert_eq!(answer.status, 400, "{range}");
        assert!(answer.text().contains(&words), "{words:?} in {}", answer.text());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_shm_slices_are_refused_with_the_reason() {
    let shared = Shared::start(&["limit:max-slice-bytes", "1MiB"]).await;
    let good = Slice::new(Dtype::F32, 2, 50);
    shared.write("good", &good.file(false));
    shared.write(".hidden", &good.file(false));
    shared.write("short", &good.file(false)[..300]);
    shared.write("text", b"this is a text, not a slice");
    shared.write("large", &Slice::new(Dtype::F32, 3, 100_000).file(false));
    symlink(shared.path("good"), shared.path("link")).unwrap();
    std::fs::create_dir(shared.path("folder")).unwrap();
    std::fs::copy(shared.path("good"), shared.path("folder").join("inner")).unwrap();
    let made = Command::new("mkfifo").arg(shared.path("pipe")).status().unwrap();
    assert!(made.success(), "a pipe was made");
    let _listener = UnixListener::bind(shared.path("socket")).unwrap();
    let long = "x".repeat(129);
    for (status, name, words) in [
        (400, "", "A-Z a-z 0-9 . _ -"),
        (400, ".hidden", "does not start with a dot"),
        (400, "folder/inner", "A-Z a-z 0-9 . _ -"),
        (400, "../good", "A-Z a-z 0-9 . _ -"),
        (400, "good\0", "A-Z a-z 0-9 . _ -"),
        (400, &long, "1 to 128"),
        (400, "link", "not a regular file"),
        (400, "folder", "not a regular file"),
        (400, "pipe", "not a regular file"),
        (400, "socket", "not a regular file"),
        (400, "short", "the body ends early, in logits"),
        (400, "text", "not a safetensors file"),
        (404, "nothing", "--shm-dir has no file of this name"),
        (413, "large", "are more than the limit"),
    ] {
        let answer = shared.ask(json!({"name": name})).await;
        assert_eq!(answer.status, status, "{name:?}: {}", answer.text());
        let error = answer.json()["error"]["message"].as_str().unwrap().to_owned();
        assert!(error.contains(words), "{words:?} in {error:?}");
    }
    for (body, words) in [
        (json!({"shm": {"name": "good"}, "temperature": [1]}), "nothing goes with shm"),
        (json!({"shm": {"name": "good", "length": 1}}), "unknown field"),
        (json!({"shm": {"name": "good", "offset": -1}}), "-1"),
        (json!({"shm": {}}), "missing field `name`"),
    ] {
        let answer = shared.send(body).await;
        assert_eq!(answer.status, 400, "{words}");
        assert!(answer.text().contains(words), "{words:?} in {}", answer.text());
    }
    good.check(&shared.ask(json!({"name": "good"})).await.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn shm_without_the_flag_is_403() {
    let folder = tempfile::tempdir().unwrap();
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let shared = Shared { folder, proxy };
    shared.write("good", &Slice::new(Dtype::F32, 2, 50).file(false));
    let answer = shared.ask(json!({"name": "good"})).await;
    assert_eq!(answer.status, 403);
    assert!(answer.text().contains("shm needs --shm-dir"), "{}", answer.text());
}

#[tokio::test(flavor = "multi_thread")]
async fn file_truncated_during_the_read_fails_only_its_call() {
    let shared = Shared::start(ONE_SLOT).await;
    let slice = Slice::new(Dtype::F32, 20, 100_000);
    let file = slice.file(false);
    shared.write("slice", &file);
    let occupied = shared.occupy().await;
    let truncate = async {
        until_open(&shared.path("slice"), true).await;
        let length = file.len() as u64 / 2;
        File::options().write(true).open(shared.path("slice")).unwrap().set_len(length).unwrap();
        drop(occupied);
    };
    let (answer, ()) = tokio::join!(shared.ask(json!({"name": "slice"})), truncate);
    assert_eq!(answer.status, 400);
    assert!(answer.text().contains("ends early"), "{}", answer.text());
    shared.write("slice", &file);
    slice.check(&shared.ask(json!({"name": "slice"})).await.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_closes_the_file() {
    let shared = Shared::start(ONE_SLOT).await;
    let slice = Slice::new(Dtype::F32, 20, 100_000);
    shared.write("slice", &slice.file(false));
    let occupied = shared.occupy().await;
    let mut connection = Connection::open(shared.proxy.control).await;
    let asked = written(shared.proxy.control, "POST", "/v1/entropy", &[JSON], br#"{"shm":{"name":"slice"}}"#);
    connection.send(&asked).await;
    until_open(&shared.path("slice"), true).await;
    drop(connection);
    until_open(&shared.path("slice"), false).await;
    drop(occupied);
    slice.check(&shared.ask(json!({"name": "slice"})).await.json());
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_shm_dir_is_a_configuration_error() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("file"), b"").unwrap();
    for name in ["file", "nothing"] {
        let path = folder.path().join(name);
        let done = output(&["serve", "--shm-dir", path.to_str().unwrap()]).await;
        assert_eq!(done.status.code(), Some(64), "{name}");
        let line = String::from_utf8(done.stderr).unwrap();
        assert!(line.starts_with("tokentap: --shm-dir cannot be '"), "{line}");
        assert_eq!(line.matches('\n').count(), 1, "{line}");
    }
}
