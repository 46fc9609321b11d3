//! The host code over the CUDA driver, against a stand-in driver that runs the kernels' text on the CPU. IT IS NOT A GPU: it shows that
//! what is copied, launched and answered is right, and what happens when the driver fails; it says nothing of speed.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::LazyLock;

use safetensors::tensor::Dtype;
use serde_json::{Value, json};

use crate::slices::Slice;
use crate::support::binary::Binary;
use crate::support::client::{get, post, request};
use crate::support::engine;
use crate::support::upstream::{Nature, Upstream};

/// The folder of the library, built where it is not there yet.
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

/// Runs tests of this program again, with the stand-in for a driver.
fn again(filter: &str, arguments: &[&str], environment: Environment<'_>) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.arg(filter).args(arguments).args(["--test-threads", "2"]);
    command.env("LD_LIBRARY_PATH", folder("")).env("PROPTEST_CASES", "60").envs(environment.iter().copied());
    let done = command.stdin(Stdio::null()).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(!text.contains("running 0 tests"), "{filter} names no test");
}

const CUDA: [(&str, &str); 2] = [("TOKENTAP_ENTROPY_BACKEND", "cuda"), ("TOKENTAP_CUDA_MEMORY", "4MiB")];

#[test]
fn what_is_proved_on_a_gpu_holds_on_the_stand_in() {
    again("device::", &["--ignored"], &[]);
}

#[test]
fn recordings_and_the_demo_come_out_as_with_the_cpu() {
    for filter in ["recordings::", "truth::shapes::"] {
        again(filter, &[], &CUDA);
    }
}

/// A tokentap with this driver in front of a scripted engine.
async fn served(upstream: &Upstream, library: &str, environment: Environment<'_>) -> Binary {
    let folder = folder(library);
    let environment: Vec<(&str, &str)> =
        [("LD_LIBRARY_PATH", &*folder)].into_iter().chain(CUDA).chain(environment.iter().copied()).collect();
    Binary::serve(upstream.addr, &environment).await
}

async fn asked(binary: &Binary, text: &str) -> Value {
    let body = json!({"text": text, "sampling_params": {"max_new_tokens": 8}, "entropy_options": {"stats": true, "bounds": true}});
    let answer = post(binary.data, "/generate", body.to_string().as_bytes()).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    answer.json()["meta_info"].clone()
}

/// The log line with this message, which may have come before that of the ports.
async fn told(binary: &mut Binary, message: &str) -> Value {
    match binary.told.iter().find(|line| line["message"] == message) {
        Some(line) => line.clone(),
        None => binary.logged(message).await,
    }
}

/// The lines of /metrics that begin so, with their values.
async fn metrics(binary: &Binary, beginning: &str) -> String {
    let text = get(binary.control, "/metrics").await.text();
    text.lines().filter(|line| line.starts_with(beginning)).collect::<Vec<_>>().join("\n")
}

fn entropies(meta_info: &Value) -> Vec<f64> {
    let members = ["output_token_entropy", "output_token_entropy_lower", "output_token_entropy_upper"];
    let of = |name: &str| meta_info[name].as_array().unwrap_or_else(|| panic!("{name} in {meta_info}")).clone();
    members.into_iter().flat_map(of).map(|value| value.as_f64().unwrap_or(f64::NAN)).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_device_the_cpu_goes_on_and_the_log_says_why() {
    let upstream = Upstream::start(Nature::default(), engine::answer).await;
    let cases: [(&str, Environment<'_>, &str); 11] = [
        ("broken", &[], "the CUDA driver is broken: "),
        ("", &[("STAND_IN_DEVICES", "0")], "the CUDA driver knows no device"),
        ("", &[("STAND_IN_INIT", "34")], "answers cuInit with error 34"),
        ("", &[("STAND_IN_INIT", "226")], "answers cuInit with error 226"),
        ("", &[("STAND_IN_DRIVER", "11080")], "is for CUDA 11.8; 12.0 (driver 525) or newer is needed"),
        ("", &[("STAND_IN_MEMORY", "1000000")], "--cuda-memory: "),
        ("", &[("STAND_IN_FAIL", "load:1=218")], "answers cuModuleLoadData with error 218"),
        ("", &[("STAND_IN_FAIL", "alloc:7=2")], "with error 2"),
        ("", &[("TOKENTAP_CUDA_DEVICE", "3")], "--cuda-device 3: there is no such device; the driver knows 0 GPU-"),
        ("", &[("TOKENTAP_CUDA_DEVICE", "GPU-0")], "--cuda-device GPU-0: there is no such device"),
        ("", &[("STAND_IN_FAIL", "launch:1=700")], "it was lost while it was being measured"),
    ];
    for (library, environment, words) in cases {
        let mut binary = served(&upstream, library, environment).await;
        let line = told(&mut binary, "no CUDA device; the CPU measures").await;
        let error = line["error"].as_str().unwrap();
        assert!(error.contains(words), "{words:?} in {error:?}");
        assert!(entropies(&asked(&binary, "a").await).iter().any(|entropy| entropy.is_finite()), "the CPU measures");
        let used = metrics(&binary, "tokentap_entropy_backend").await;
        assert!(!used.contains("backend=\"cuda\"") || used.contains("backend=\"cuda\",work=\"top_k\"} 0"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_device_that_is_lost_at_work_costs_no_reply() {
    let upstream = Upstream::start(Nature::default(), engine::answer).await;
    for failure in ["launch:30=700", "copy:110=719", "sync:40=999"] {
        let mut device = served(&upstream, "", &[("STAND_IN_FAIL", failure)]).await;
        told(&mut device, "a CUDA device measures rows; it is faster from so many on").await;
        let mut cpu = Binary::serve(upstream.addr, &[]).await;
        // before that both say bounds for estimates
        told(&mut device, "the upstream has been probed").await;
        told(&mut cpu, "the upstream has been probed").await;
        for at in 0..60 {
            let text = format!("prompt {at}");
            let (ours, theirs) = (asked(&device, &text).await, asked(&cpu, &text).await);
            assert_eq!(ours["output_token_stats"]["flags"], theirs["output_token_stats"]["flags"]);
            let (ours, theirs) = (entropies(&ours), entropies(&theirs));
            assert_eq!(ours.len(), theirs.len());
            for (ours, theirs) in ours.iter().zip(theirs) {
                let same = (ours - theirs).abs() <= 1e-5 || (ours.is_nan() && theirs.is_nan());
                assert!(same, "{failure}, {text}: {ours} is not {theirs}");
            }
        }
        let code = &failure[failure.len() - 3..];
        let line = told(&mut device, "the CUDA device is lost; the CPU goes on, and a restart opens it again").await;
        assert!(line["error"].as_str().unwrap().contains(code), "{line}");
        let errors = metrics(&device, "tokentap_cuda_errors_total").await;
        assert_eq!(errors, format!("tokentap_cuda_errors_total{{code=\"{code}\"}} 1"));
        assert!(metrics(&device, "tokentap_slice_fallbacks_total").await.contains("device_error"));
        let used = metrics(&device, "tokentap_entropy_backend").await;
        assert!(used.contains("{backend=\"cuda\",work=\"top_k\"} 0"), "{used}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_in_the_slots_of_a_device_that_is_lost_are_measured_all_the_same() {
    let upstream = Upstream::start(Nature::default(), engine::answer).await;
    for failure in ["launch:30=700", "copy:110=719", "sync:40=999"] {
        let mut device = served(&upstream, "", &[("STAND_IN_FAIL", failure)]).await;
        told(&mut device, "a CUDA device measures rows; it is faster from so many on").await;
        assert!(!metrics(&device, "tokentap_slice_rows_total").await.contains("cuda"), "trying it out is not counted");
        let slices = [(Dtype::F32, 5, 3000), (Dtype::BF16, 40, 2000), (Dtype::F32, 9, 777)];
        let slices = slices.map(|(dtype, rows, vocab)| Slice::new(dtype, rows, vocab));
        for at in 0..40 {
            let slice = &slices[at % 3];
            let kind = ("content-type", "application/octet-stream");
            let answer = request(device.control, "POST", "/v1/entropy", &[kind], &slice.file(at % 2 == 0)).await;
            assert_eq!(answer.status, 200, "{failure}: {}", answer.text());
            slice.check(&answer.json());
        }
        told(&mut device, "the CUDA device is lost; the CPU goes on, and a restart opens it again").await;
        let counted = metrics(&device, "tokentap_slice_rows_total").await;
        assert!(counted.contains("backend=\"cuda\",work=\"rows\"") && counted.contains("backend=\"cpu"), "{counted}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn auto_opens_no_device_that_is_not_named() {
    let upstream = Upstream::start(Nature::default(), engine::answer).await;
    let folder = folder("");
    let named = [("LD_LIBRARY_PATH", &*folder), ("TOKENTAP_CUDA_MEMORY", "4MiB"), ("TOKENTAP_CUDA_DEVICE", "0")];
    let unnamed = Binary::serve(upstream.addr, &named[..2]).await;
    assert!(!metrics(&unnamed, "tokentap_entropy_backend").await.contains("cuda"));
    let mut named = Binary::serve(upstream.addr, &named).await;
    told(&mut named, "a CUDA device measures rows; it is faster from so many on").await;
    let used = metrics(&named, "tokentap_entropy_backend").await;
    assert!(used.contains("{backend=\"cuda\",work=\"top_k\"} 0"), "top-k stays with the CPU: {used}");
    let counted = metrics(&named, "tokentap_slice_rows_total").await;
    asked(&named, "a").await;
    assert_eq!(
        metrics(&named, "tokentap_slice_rows_total").await,
        counted,
        "no row of a generation went to the device"
    );
}
