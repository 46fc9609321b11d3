// SPDX-License-Identifier: Apache-2.0
//! The sources of `cuda/`: their checked-in PTX, and a comparison with float64 on the CPU.

use std::path::Path;
use std::process::Command;

fn folder(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// The first line of each PTX names its sources and their hash.
#[test]
fn ptx_matches_its_sources() {
    for (ptx, sources) in [("entropy.ptx", ["load.cu", "entropy.cu"]), ("read.ptx", ["load.cu", "read.cu"])] {
        let text = std::fs::read_to_string(folder("cuda").join(ptx)).unwrap();
        let cat = sources.iter().map(|source| std::fs::read(folder("cuda").join(source)).unwrap()).collect::<Vec<_>>();
        let names = sources.join(" ");
        let expected = format!("// {names} sha256:{} nvrtc 12.0.140 compute_80", sha256(&cat.concat()));
        assert_eq!(text.lines().next(), Some(&*expected), "{ptx} is not that of its sources: make ptx");
        assert!(text.contains("\n.version 8.0\n.target sm_80\n"), "{ptx} is for every driver from 12.0 on");
    }
    // compares every byte if the compiler is installed
    let version = "import importlib.metadata as m; print(m.version('nvidia-cuda-nvrtc-cu12'))";
    let compiler = Command::new("python3").args(["-c", version]).output();
    if compiler.is_ok_and(|done| done.stdout.starts_with(b"12.0.140")) {
        let done = Command::new("python3").arg(folder("cuda/ptx.py")).arg("--check").output().unwrap();
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
}

fn sha256(bytes: &[u8]) -> String {
    use std::io::Write;
    let mut child = Command::new("sha256sum")
        .stdin(std::process::Stdio::piped())
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let done = child.wait_with_output().unwrap();
    String::from_utf8(done.stdout).unwrap().split(' ').next().unwrap().to_owned()
}

/// `tests/cuda/run.sh` runs the unmodified sources as C++, with one fibre for each CUDA thread.
#[test]
fn kernels_agree_with_float64() {
    let done = Command::new("bash").arg(folder("tests/cuda/run.sh")).output().unwrap();
    let text = String::from_utf8_lossy(&done.stdout);
    assert!(done.status.success(), "{text}\n{}", String::from_utf8_lossy(&done.stderr));
    assert!(text.contains("rows"), "it reports its checks: {text}");
}
