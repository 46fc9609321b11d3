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
const OPENED: &str = "the CUDA device is open; rows and top_k are the row counts from which it is faster than the CPU";
const CLOSED: &str = "the CPU measures whole rows faster than the CUDA device, which is closed";
const LOST: &str = "the CUDA device is lost; rows are measured on the CPU until tokentap restarts";

const CUDA: [(&str, &str); 2] = [("TOKENTAP_ENTROPY_BACKEND", "cuda"), SMALL];

#[test]
fn gpu_tests_pass_on_the_fake_driver() {
    again("device::", &["--ignored"], &[]);
}

#[test]
fn recordings_and_demo_match_on_the_fake_driver() {
    for filter in ["recordings::", "truth::shapes::"] {
        // several tests open the device at once, so it needs memory for more than one slot
        again(filter, &[], &[CUDA[0], ("STAND_IN_MEMORY", "100663296")]);
    }
}

/// Starts tokentap with this driver in front of a scripted engine.
async fn serve(upstream: &Upstream, library: &str, environment: Environment<'_>) -> Binary {
    let folder = folder(library);
    let environment: Vec<(&str, &str)> =
        [("LD_LIBRARY_PATH", &*folder)].into_iter().chain(CUDA).chain(environment.iter().copied()).collect();
    Binary::serve(upstream.addr, &environment).await
}

async fn generate(binary: &Binary, text: &str) -> Value {
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 8}, "entropy_options": {"stats": true, "bounds": true}});
    let answer = post(binary.data, "/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["meta_info"].clone()
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

fn entropies(meta_info: &Value) -> Vec<f64> {
    let members = ["output_token_entropy", "output_token_entropy_lower", "output_token_entropy_upper"];
    let of = |name: &str| meta_info[name].as_array().unwrap_or_else(|| panic!("{name} in {meta_info}")).clone();
    members.into_iter().flat_map(of).map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
}

/// Asserts that both measured the same values.
fn same(ours: &Value, theirs: &Value, context: &str) {
    assert_eq!(ours["output_token_stats"]["flags"], theirs["output_token_stats"]["flags"]);
    let (ours, theirs) = (entropies(ours), entropies(theirs));
    assert_eq!(ours.len(), theirs.len());
    for (ours, theirs) in ours.iter().zip(theirs) {
        let same = (ours - theirs).abs() <= 1e-5 || (ours.is_nan() && theirs.is_nan());
        assert!(same, "{context}: {ours} is not {theirs}");
    }
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
        assert!(entropies(&generate(&binary, "a").await).iter().any(|entropy| entropy.is_finite()), "the CPU measures");
        let used = metrics(&binary, "tokentap_entropy_backend").await;
        assert!(!used.contains("backend=\"cuda\"") || used.contains("backend=\"cuda\",work=\"top_k\"} 0"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_continue_after_the_device_is_lost() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    for failure in ["launch:30=700", "copy:110=719", "sync:40=999"] {
        let mut device = serve(&upstream, "", &[("STAND_IN_FAIL", failure)]).await;
        log_line(&mut device, OPENED).await;
        let mut cpu = Binary::serve(upstream.addr, &[]).await;
        // before the probe, both report bounds as estimates
        log_line(&mut device, "the upstream has been probed").await;
        log_line(&mut cpu, "the upstream has been probed").await;
        for at in 0..60 {
            let text = format!("prompt {at}");
            same(&generate(&device, &text).await, &generate(&cpu, &text).await, &format!("{failure}, {text}"));
        }
        let code = &failure[failure.len() - 3..];
        let line = log_line(&mut device, LOST).await;
        assert!(line["error"].as_str().unwrap().contains(code), "{line}");
        let errors = metrics(&device, "tokentap_cuda_errors_total").await;
        assert_eq!(errors, format!("tokentap_cuda_errors_total{{code=\"{code}\"}} 1"));
        assert!(metrics(&device, "tokentap_slice_fallbacks_total").await.contains("no_device"));
        let used = metrics(&device, "tokentap_entropy_backend").await;
        assert!(used.contains("{backend=\"cuda\",work=\"top_k\"} 0"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_slots_of_a_lost_device_are_measured_on_the_cpu() {
    let upstream = Upstream::start(EngineProfile::default(), engine::answer).await;
    for failure in ["launch:30=700", "copy:110=719", "sync:40=999"] {
        let mut device = serve(&upstream, "", &[("STAND_IN_FAIL", failure)]).await;
        log_line(&mut device, OPENED).await;
        assert!(!metrics(&device, "tokentap_slice_rows_total").await.contains("cuda"), "calibration is not counted");
        let slices = [(Dtype::F32, 5, 3000), (Dtype::BF16, 40, 2000), (Dtype::F32, 9, 777)];
        let slices = slices.map(|(dtype, rows, vocab)| Slice::new(dtype, rows, vocab));
        for at in 0..40 {
            let slice = &slices[at % 3];
            check_upload(&device, slice, at % 2 == 0).await;
        }
        log_line(&mut device, LOST).await;
        for histogram in ["wait_seconds", "batch_rows", "compute_seconds"] {
            let name = format!("tokentap_slice_{histogram}_count{{backend=\"cuda\",work=\"rows\"}}");
            let line = metrics(&device, &name).await;
            let count: f64 = line.rsplit(' ').next().unwrap().parse().unwrap();
            // one observation per batch or entry
            assert!(count > 0.0 && count <= 40.0, "{line}");
        }
        let counted = metrics(&device, "tokentap_slice_rows_total").await;
        assert!(counted.contains("backend=\"cuda\",work=\"rows\"") && counted.contains("backend=\"cpu"), "{counted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn hung_device_delays_replies_once() {
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
    let mut cpu = Binary::serve(upstream.addr, &[]).await;
    log_line(&mut device, "the upstream has been probed").await;
    log_line(&mut cpu, "the upstream has been probed").await;
    let truth = generate(&cpu, "a").await;
    while launched().len() < HANGS_FROM - 1 {
        same(&generate(&device, "a").await, &truth, "before the device hangs");
    }
    let slice = Slice::new(Dtype::F32, 5, 3000);
    let begin = Instant::now();
    let top_k = async {
        same(&generate(&device, "a").await, &truth, "in the batch that hangs");
        begin.elapsed()
    };
    let rows = async {
        soon("the top-k rows are launched", async {
            while launched().len() < HANGS_FROM {
                assert_eq!(get(device.control, "/livez").await.status, 200);
            }
        })
        .await;
        check_upload(&device, &slice, false).await;
        begin.elapsed()
    };
    let (top_k, rows) = soon("both replies", async { tokio::join!(top_k, rows) }).await;
    assert!(
        launched().last().unwrap().starts_with("entropy_top_k "),
        "the device hangs in the batch of the generation"
    );
    for elapsed in [top_k, rows] {
        assert!(
            timeout <= elapsed && elapsed < 2 * timeout - Duration::from_millis(500),
            "{elapsed:?}: one timeout of {timeout:?}"
        );
    }
    let line = log_line(&mut device, LOST).await;
    assert_eq!(line["error"], "the device hangs");
    let fallbacks = metrics(&device, "tokentap_slice_fallbacks_total").await;
    for (reason, rows) in [("no_device", 4), ("device_lost", 5)] {
        let line = format!("tokentap_slice_fallbacks_total{{reason=\"{reason}\"}} {rows}");
        assert!(fallbacks.contains(&line), "{line} in {fallbacks}: the rows of the generation, and those in slots");
    }
    let begin = Instant::now();
    for late in [false, true] {
        same(&generate(&device, "a").await, &truth, "after the device is lost");
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
    let kernels = ["rows_f32", "rows_bf16", "rows_f16", "split_f32", "split_bf16", "split_f16", "top_k"];
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
        generate(&binary, "a").await;
        check_upload(&binary, &Slice::new(Dtype::F32, 5, 3000), false).await;
        // the fake device may or may not be faster than the CPU, but these rows are too few for a device in any case
        assert!(!metrics(&binary, "tokentap_slice_rows_total").await.contains("cuda"));
        let used = metrics(&binary, "tokentap_entropy_backend").await;
        assert!(!used.contains("{backend=\"cuda\",work=\"top_k\"} 1"), "{used}");
        if device.is_some() {
            log_line_of(&mut binary, &[OPENED, CLOSED]).await;
        }
        binary.terminate();
        assert_eq!(binary.code().await, Some(0));
        assert_eq!(journal.exists(), device.is_some(), "{device:?}: what was launched");
    }
}
