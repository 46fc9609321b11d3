// SPDX-License-Identifier: Apache-2.0
//! Tests of the CUDA host code with a fake driver that runs the kernel sources on the CPU. It is not a GPU: these tests check copies,
//! launches, replies and driver failures, not speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::slices::Slice;
use crate::support::binary::Binary;
use crate::support::client::{get, post, request};
use crate::support::engine;
use crate::support::manual_upstream::soon;
use crate::support::upstream::{EngineProfile, Upstream};

/// The folder of the library, which is built on first use.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("stand-in");
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/cuda/stand_in.sh");
    let built = Command::new("bash").arg(script).arg(&folder).output().unwrap();
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    folder
});

fn folder(name: &str) -> String {
    FOLDER.join(name).to_str().unwrap().to_owned()
}

type Environment<'a> = &'a [(&'a str, &'a str)];

/// Runs tests of this program again with the fake driver.
fn again(filter: &str, arguments: &[&str], environment: Environment<'_>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(filter).args(arguments).args(["--test-threads", "2"]);
    command
        .env("LD_LIBRARY_PATH", folder(""))
        .env("PROPTEST_CASES", "60")
        .env("STAND_IN", "1")
        .envs(environment.iter().copied());
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(!text.contains("running 0 tests"), "{filter} names no test");
}

/// A fake device with memory for one slot: a quarter of 24 MiB.
const SMALL: (&str, &str) = ("STAND_IN_MEMORY", "25165824");
/// The log messages of an open device, of one that is slower than the CPU, and of a lost one.
const OPENED: &str = "the CUDA device is open; rows is the number of rows from which it is faster than the CPU";
const CLOSED: &str = "the CPU measures whole rows faster than the CUDA device, which is closed";
const LOST: &str = "the CUDA device is lost; rows are measured on the CPU until tokentap restarts";

const CUDA: [(&str, &str); 2] = [("TOKENTAP_ENTROPY_BACKEND", "cuda"), SMALL];

#[test]
fn gpu_tests_pass_on_the_fake_driver() {
    again("device::", &["--ignored"], &[]);
}

/// Starts tokentap with this driver in front of a scripted engine.
async fn serve(upstream: &Upstream, library: &str, environment: Environment<'_>) -> Binary {
    let folder = folder(library);
    let environment: Vec<(&str, &str)> =
        [("LD_LIBRARY_PATH", &*folder)].into_iter().chain(CUDA).chain(environment.iter().copied()).collect();
    Binary::serve(upstream.addr, &environment).await
}

/// Uploads a slice and compares its numbers with the reference.
async fn check_upload(binary: &Binary, slice: &Slice, late: bool) {
    let kind = ("content-type", "application/octet-stream");
    let answer = request(binary.control, "POST", "/v1/entropy", &[kind], &slice.file(late)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    slice.check(&answer.json());
}

/// The log line with this message. It may precede the line with the ports.
async fn log_line(binary: &mut Binary, message: &str) -> Value {
    log_line_of(binary, &[message]).await
}

/// The log line with one of these messages.
async fn log_line_of(binary: &mut Binary, messages: &[&str]) -> Value {
    let is_one = |line: &Value| messages.iter().any(|message| line["message"] == *message);
    match binary.skipped_lines.iter().find(|line| is_one(line)) {
        Some(line) => line.clone(),
        None => binary.logged_where(messages[0], is_one).await,
    }
}

/// The lines of /metrics with this prefix.
async fn metrics(binary: &Binary, prefix: &str) -> String {
    let text = get(binary.control, "/metrics").await.text();
    text.lines().filter(|line| line.starts_with(prefix)).collect::<Vec<_>>().join("\n")
}

#[tokio::test(flavor = "multi_thread")]
async fn missing_device_falls_back_to_the_cpu_with_the_reason() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let cases: [(&str, Environment<'_>, &str); 11] = [
        ("broken", &[], "the CUDA driver is broken: "),
        ("", &[("STAND_IN_DEVICES", "0")], "the CUDA driver found no device"),
        ("", &[("STAND_IN_INIT", "34")], "returned error 34 for cuInit"),
        ("", &[("STAND_IN_INIT", "226")], "returned error 226 for cuInit"),
        ("", &[("STAND_IN_DRIVER", "11080")], "is for CUDA 11.8; 12.0 (driver 525) or newer is needed"),
        ("", &[("STAND_IN_MEMORY", "1000000")], "memory of the device: "),
        ("", &[("STAND_IN_FAIL", "load:1=218")], "returned error 218 for cuModuleLoadData"),
        ("", &[("STAND_IN_FAIL", "alloc:7=2")], "returned error 2 for"),
        ("", &[("TOKENTAP_ENTROPY_BACKEND", "cuda:3")], "--entropy-backend: no device 3; the driver reports 0 GPU-"),
        ("", &[("TOKENTAP_ENTROPY_BACKEND", "cuda:GPU-0")], "--entropy-backend: no device GPU-0"),
        ("", &[("STAND_IN_FAIL", "launch:1=700")], "returned error 700 for a launch"),
    ];
    for (library, environment, words) in cases {
        let mut binary = serve(&upstream, library, environment).await;
        let line = log_line(&mut binary, "no CUDA device; rows are measured on the CPU").await;
        let error = line["error"].as_str().unwrap();
        assert!(error.contains(words), "{words:?} in {error:?}");
        check_upload(&binary, &Slice::new(Dtype::F32, 5, 3000), false).await;
        let used = metrics(&binary, "tokentap_entropy_backend").await;
        assert!(!used.contains("backend=\"cuda\"") && used.contains("backend=\"cpu/"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_slots_of_a_lost_device_are_measured_on_the_cpu() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    for failure in ["launch:30=700", "copy:110=719", "sync:40=999"] {
        let mut device = serve(&upstream, "", &[("STAND_IN_FAIL", failure)]).await;
        log_line(&mut device, OPENED).await;
        assert!(!metrics(&device, "tokentap_slice_rows_total").await.contains("cuda"), "calibration is not counted");
        let used = metrics(&device, "tokentap_entropy_backend").await;
        assert!(used.contains("{backend=\"cuda\"} 1"), "{used}");
        let slices = [(Dtype::F32, 5, 3000), (Dtype::BF16, 40, 2000), (Dtype::F32, 9, 777)];
        let slices = slices.map(|(dtype, rows, vocab)| Slice::new(dtype, rows, vocab));
        for at in 0..40 {
            let slice = &slices[at % 3];
            check_upload(&device, slice, at % 2 == 0).await;
        }
        let code = &failure[failure.len() - 3..];
        let line = log_line(&mut device, LOST).await;
        assert!(line["error"].as_str().unwrap().contains(code), "{line}");
        let errors = metrics(&device, "tokentap_cuda_errors_total").await;
        assert_eq!(errors, format!("tokentap_cuda_errors_total{{code=\"{code}\"}} 1"));
        let used = metrics(&device, "tokentap_entropy_backend").await;
        assert!(used.contains("{backend=\"cuda\"} 0"), "{used}");
        for histogram in ["wait_seconds", "batch_rows", "compute_seconds"] {
            let name = format!("tokentap_slice_{histogram}_count{{backend=\"cuda\"}}");
            let line = metrics(&device, &name).await;
            let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            // one observation per batch or entry
            assert!(count > 0.0 && count <= 40.0, "{line}");
        }
        let counted = metrics(&device, "tokentap_slice_rows_total").await;
        assert!(counted.contains("backend=\"cuda\"") && counted.contains("backend=\"cpu"), "{counted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_device_delays_slices_once() {
    const HANGS_FROM: usize = 30;
    let timeout = Duration::from_secs(5);
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("launches");
    let launched = || std::fs::read_to_string(&journal).unwrap().lines().map(str::to_owned).collect::<Vec<_>>();
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let number = HANGS_FROM.to_string();
    let environment = [("STAND_IN_HANG", &*number), ("STAND_IN_JOURNAL", journal.to_str().unwrap())];
    let mut device = serve(&upstream, "", &environment).await;
    log_line(&mut device, OPENED).await;
    let slice = Slice::new(Dtype::F32, 5, 3000);
    while launched().len() < HANGS_FROM - 1 {
        check_upload(&device, &slice, false).await;
    }
    let begin = Instant::now();
    let first = async {
        check_upload(&device, &slice, false).await;
        begin.elapsed()
    };
    let second = async {
        soon("the first slice is launched", async {
            while launched().len() < HANGS_FROM {
                assert_eq!(get(device.control, "/livez").await.status, 200);
            }
        })
        .await;
        let body = json!({"text": "a", "sampling_params": {"max_new_tokens": 8}}).to_string();
        assert_eq!(post(device.data, "/generate", body.as_bytes()).await.status, 200);
        assert!(begin.elapsed() < timeout, "a generation does not wait for the device");
        check_upload(&device, &Slice::new(Dtype::F32, 4, 3000), false).await;
        begin.elapsed()
    };
    let (first, second) = soon("both replies", async { tokio::join!(first, second) }).await;
    for elapsed in [first, second] {
        assert!(
            timeout <= elapsed && elapsed < 2 * timeout - Duration::from_millis(500),
            "{elapsed:?}: one timeout of {timeout:?}"
        );
    }
    let line = log_line(&mut device, LOST).await;
    assert_eq!(line["error"], "the device hangs");
    let fallbacks = metrics(&device, "tokentap_slice_fallbacks_total").await;
    for (reason, rows) in [("device_error", 5), ("device_lost", 4)] {
        let line = format!("tokentap_slice_fallbacks_total{{reason=\"{reason}\"}} {rows}");
        assert!(
            fallbacks.contains(&line),
            "{line} in {fallbacks}: the rows of the batch that hangs, and those after it"
        );
    }
    let begin = Instant::now();
    for late in [false, true] {
        check_upload(&device, &slice, late).await;
    }
    assert!(begin.elapsed() < timeout, "no reply waits for the device");
    assert_eq!(launched().len(), HANGS_FROM, "nothing else is launched");
    let begin = Instant::now();
    device.terminate();
    assert_eq!(device.code().await, Some(0));
    assert!(begin.elapsed() < timeout, "{:?}: shutdown does not wait for the device", begin.elapsed());
}

#[tokio::test(flavor = "multi_thread")]
async fn device_with_wrong_results_is_not_used() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let kernels = ["rows_f32", "rows_bf16", "rows_f16", "split_f32", "split_bf16", "split_f16"];
    for kernel in kernels {
        let mut device = serve(&upstream, "", &[("STAND_IN_WRONG", &format!("entropy_{kernel}"))]).await;
        let line = log_line(&mut device, "no CUDA device; rows are measured on the CPU").await;
        let error = line["error"].as_str().unwrap();
        assert!(error.starts_with("the device and the CPU differ by "), "{kernel}: {error}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_waits_for_a_device_that_is_being_opened() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let folder = tempfile::tempdir().unwrap();
    let journal = folder.path().join("launches");
    let environment = [("STAND_IN_HANG", "1"), ("STAND_IN_JOURNAL", journal.to_str().unwrap())];
    let mut device = serve(&upstream, "", &environment).await;
    soon("the first launch", async {
        while !journal.exists() {
            assert_eq!(get(device.control, "/livez").await.status, 200);
        }
    })
    .await;
    device.terminate();
    // the driver timeout began with the launch, so it ends before the limit of the shutdown
    log_line(&mut device, "no CUDA device; rows are measured on the CPU").await;
    assert_eq!(device.code().await, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_opens_only_a_configured_device() {
    let folder = folder("");
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    let journals = tempfile::tempdir().unwrap();
    // the last one is the UUID of the fake device
    let cases = [None, Some("auto"), Some("auto:gpu-7374616e-642d-696e-2064-657669636530")];
    for (at, device) in cases.into_iter().enumerate() {
        let journal = journals.path().join(at.to_string());
        let mut environment =
            vec![("LD_LIBRARY_PATH", &*folder), SMALL, ("STAND_IN_JOURNAL", journal.to_str().unwrap())];
        environment.extend(device.map(|device| ("TOKENTAP_ENTROPY_BACKEND", device)));
        let mut binary = Binary::serve(upstream.addr, &environment).await;
        check_upload(&binary, &Slice::new(Dtype::F32, 5, 3000), false).await;
        // the fake device may or may not be faster than the CPU, but these rows are too few for a device in any case
        assert!(!metrics(&binary, "tokentap_slice_rows_total").await.contains("cuda"));
        if device.is_some() {
            log_line_of(&mut binary, &[OPENED, CLOSED]).await;
        }
        binary.terminate();
        assert_eq!(binary.code().await, Some(0));
        assert_eq!(journal.exists(), device.is_some(), "{device:?}: what was launched");
    }
}
