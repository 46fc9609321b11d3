// SPDX-License-Identifier: Apache-2.0
//! The time from the start of the process to its first reply, the memory of an idle process, and the size of the binary.
//!
//! `cargo bench --bench start`. `TOKENTAP=PATH` measures another tokentap binary, such as that of a wheel.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "a bench reports to its terminal, and fails loudly")]

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts of each command.
const STARTS: usize = 20;

/// How long a process is idle before its memory is read.
const IDLE: Duration = Duration::from_secs(2);

/// The limit of a start.
const LIMIT: Duration = Duration::from_secs(10);

/// A port on which no engine listens.
const NO_ENGINE: &str = "http://127.0.0.1:9";

const GENERATE: &str = r#"{"text":"The lamp","sampling_params":{"max_new_tokens":8,"ignore_eos":true}}"#;

/// A running tokentap, ended when dropped.
struct Running {
    process: Child,
    data: u16,
    control: u16,
}

impl Running {
    fn start(binary: &str, arguments: &[&str]) -> Self {
        let [data, control] = [free_port(), free_port()];
        let process = Command::new(binary)
            .args(arguments)
            .arg(format!("--listen=127.0.0.1:{data}"))
            .arg(format!("--control-listen=127.0.0.1:{control}"))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        Self { process, data, control }
    }

    /// A value of `/proc/PID/status` in MB.
    fn memory(&self, name: &str) -> f64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        let kib: f64 = line.trim_matches(|c: char| !c.is_ascii_digit()).parse().unwrap();
        kib * 1024.0 / 1e6
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A port that was free a moment ago.
fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Sends a request until the port answers it, for at most [`LIMIT`]; returns the reply.
fn first_reply(port: u16, request: &str) -> String {
    let end = Instant::now() + LIMIT;
    loop {
        if let Ok(mut connection) = TcpStream::connect(("127.0.0.1", port)) {
            let mut reply = String::new();
            connection.write_all(request.as_bytes()).unwrap();
            connection.read_to_string(&mut reply).unwrap();
            return reply;
        }
        assert!(Instant::now() < end, "tokentap does not listen on port {port}");
        // the resolution of the measurement
        std::thread::sleep(Duration::from_micros(200));
    }
}

fn request(method: &str, path: &str, body: &str) -> String {
    let length = body.len();
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    )
}

/// Starts a command [`STARTS`] times and prints the milliseconds to its first reply, and the memory of the last process when idle.
fn measure(
    name: &str,
    binary: &str,
    arguments: &[&str],
    port: impl Fn(&Running) -> u16,
    request: &str,
    expected: &str,
) {
    let mut times = Vec::new();
    for round in 0..STARTS {
        let start = Instant::now();
        let running = Running::start(binary, arguments);
        let reply = first_reply(port(&running), request);
        times.push(start.elapsed().as_secs_f64() * 1e3);
        assert!(reply.starts_with("HTTP/1.1 200") && reply.contains(expected), "{reply}");
        if round + 1 == STARTS {
            std::thread::sleep(IDLE);
            let [all, own] = ["VmRSS:", "RssAnon:"].map(|value| running.memory(value));
            times.sort_by(f64::total_cmp);
            let [median, last] = [times[STARTS / 2], times[STARTS - 1]];
            println!(
                "{name}: median {median:.0} ms, maximum {last:.0} ms; idle {all:.1} MB, of which {own:.1} MB are not files"
            );
        }
    }
}

fn main() {
    let binary = std::env::var("TOKENTAP").unwrap_or_else(|_| env!("CARGO_BIN_EXE_tokentap").to_owned());
    let size = std::fs::metadata(&binary).unwrap().len();
    #[expect(clippy::cast_precision_loss, reason = "a size in MB")]
    let size = size as f64 / 1e6;
    println!("{binary}: {size:.1} MB");
    let serve = ["serve", "--upstream", NO_ENGINE];
    measure("serve, until /livez", &binary, &serve, |running| running.control, &request("GET", "/livez", ""), "ok");
    let generate = request("POST", "/generate", GENERATE);
    measure("demo, until a generation", &binary, &["demo"], |running| running.data, &generate, "output_token_entropy");
}
