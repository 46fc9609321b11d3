// SPDX-License-Identifier: Apache-2.0
//! The program itself, as a separate process.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Output, Stdio};

use serde_json::Value;
use tokio::sync::mpsc;

use super::manual_upstream::soon;

/// The program of this build.
pub const PROGRAM: &str = env!("CARGO_BIN_EXE_tokentap");

/// A command line of the program, without settings from the environment.
fn command(args: &[&str]) -> Command {
    bare(PROGRAM, args)
}

/// A command line of another program, or of another build.
pub fn bare(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with("TOKENTAP_")) {
        command.env_remove(name);
    }
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command to its end.
pub async fn output(args: &[&str]) -> Output {
    output_with(args, &[]).await
}

/// As [`output`], with these environment variables.
pub async fn output_with(args: &[&str], environment: &[(&str, &str)]) -> Output {
    let mut command = command(args);
    command.envs(environment.iter().copied());
    let run = tokio::task::spawn_blocking(move || command.output().unwrap());
    soon("the command ends", run).await.unwrap()
}

/// A running program whose output is read line by line. It is killed on drop.
pub struct Printing {
    child: Child,
    lines: mpsc::UnboundedReceiver<String>,
}

impl Printing {
    pub fn start(args: &[&str]) -> Self {
        let mut child = command(args).stderr(Stdio::null()).spawn().unwrap();
        let read = BufReader::new(child.stdout.take().expect("standard output is piped")).lines();
        let (sender, lines) = mpsc::unbounded_channel();
        // this task ends with the process
        std::thread::spawn(move || read.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        Self { child, lines }
    }

    /// The next line with this prefix.
    pub async fn line(&mut self, prefix: &str) -> String {
        soon(prefix, async {
            loop {
                let line = self.lines.recv().await.unwrap_or_else(|| panic!("it ended without {prefix:?}"));
                if line.starts_with(prefix) {
                    return line;
                }
            }
        })
        .await
    }
}

impl Drop for Printing {
    fn drop(&mut self) {
        // both fail if the process has ended
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The command line of `tokentap serve` on any ports.
pub fn arguments(upstream: SocketAddr, flags: &[&str]) -> Vec<String> {
    let upstream = format!("http://{upstream}");
    let ports = ["--listen", "127.0.0.1:0", "--control-listen", "127.0.0.1:0", "--log-format", "json"];
    let fixed = ["serve", "--upstream", &upstream].into_iter().chain(ports);
    fixed.chain(flags.iter().copied()).map(str::to_owned).collect()
}

fn borrowed(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

/// A `tokentap serve` process, with its ports read from its log. It is killed on drop.
pub struct Binary {
    pub data: SocketAddr,
    pub control: SocketAddr,
    /// The log lines that [`Self::logged`] has skipped so far.
    pub skipped_lines: Vec<Value>,
    child: Child,
    log: mpsc::UnboundedReceiver<String>,
}

impl Binary {
    pub async fn serve(upstream: SocketAddr, environment: &[(&str, &str)]) -> Self {
        let args = arguments(upstream, &[]);
        Self::run(command(&borrowed(&args)).envs(environment.iter().copied())).await
    }

    /// Starts it with these flags; returns when it has probed its upstream.
    pub async fn with_flags(upstream: SocketAddr, flags: &[&str]) -> Self {
        let args = arguments(upstream, flags);
        Self::run(&mut command(&borrowed(&args))).await.probed().await
    }

    /// As [`Self::with_flags`], with the program of another build.
    pub async fn of(program: &str, upstream: SocketAddr, flags: &[&str]) -> Self {
        let args = arguments(upstream, flags);
        Self::run(&mut bare(program, &borrowed(&args))).await.probed().await
    }

    /// Starts it with these flags; returns when its ports are open.
    pub async fn listening(upstream: SocketAddr, flags: &[&str]) -> Self {
        let args = arguments(upstream, flags);
        Self::run(&mut command(&borrowed(&args))).await
    }

    /// As [`Self::with_flags`], with file sizes limited to `blocks` by the shell's `ulimit -f`.
    pub async fn with_small_files(upstream: SocketAddr, flags: &[&str], blocks: u32) -> Self {
        Self::within(upstream, flags, &format!("-f {blocks}")).await
    }

    /// As [`Self::with_flags`], under this limit of the shell's `ulimit`.
    pub async fn within(upstream: SocketAddr, flags: &[&str], limit: &str) -> Self {
        let script = format!("ulimit {limit} && exec \"$@\"");
        let args = arguments(upstream, flags);
        let args: Vec<&str> = ["-c", &script, "sh", PROGRAM].into_iter().chain(borrowed(&args)).collect();
        Self::run(&mut bare("sh", &args)).await.probed().await
    }

    /// Waits until it has probed its upstream.
    pub async fn probed(mut self) -> Self {
        self.logged("the upstream has been probed").await;
        self
    }

    async fn run(command: &mut Command) -> Self {
        let mut child = command.spawn().unwrap();
        let lines = BufReader::new(child.stderr.take().expect("standard error is piped")).lines();
        let (sender, log) = mpsc::unbounded_channel();
        // this task ends with the process
        std::thread::spawn(move || lines.map_while(Result::ok).try_for_each(|line| sender.send(line)));
        let nowhere = SocketAddr::from(([0; 4], 0));
        let mut binary = Self { data: nowhere, control: nowhere, skipped_lines: Vec::new(), child, log };
        let line = binary.logged("tokentap listens").await;
        let addr = |key: &str| line[key].as_str().unwrap().split_once("://").unwrap().1.parse().unwrap();
        (binary.data, binary.control) = (addr("data"), addr("control"));
        binary
    }

    /// Waits for the log line with this message.
    pub async fn logged(&mut self, message: &str) -> Value {
        self.logged_where(message, |line| line["message"] == message).await
    }

    /// The first log line with this message; waits for it, unless another wait has skipped it.
    pub async fn has_logged(&mut self, message: &str) -> Value {
        match self.skipped_lines.iter().find(|line| line["message"] == message) {
            Some(line) => line.clone(),
            None => self.logged(message).await,
        }
    }

    /// Waits for a log line; `what` describes it.
    pub async fn logged_where(&mut self, what: &str, is_it: impl Fn(&Value) -> bool) -> Value {
        soon(what, async {
            loop {
                let line = self.log.recv().await.unwrap_or_else(|| panic!("the log ended without {what:?}"));
                let line: Value = serde_json::from_str(&line).unwrap_or_else(|error| panic!("{error}: {line}"));
                if is_it(&line) {
                    return line;
                }
                self.skipped_lines.push(line);
            }
        })
        .await
    }

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGKILL, as a crash.
    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM.
    pub fn terminate(&self) {
        let status = Command::new("kill").args(["-TERM", &self.child.id().to_string()]).status().unwrap();
        assert!(status.success(), "the signal was sent");
    }

    /// Reads the log to its end, and returns the exit code.
    pub async fn code(&mut self) -> Option<i32> {
        soon("the process ends", async { while self.log.recv().await.is_some() {} }).await;
        self.child.wait().unwrap().code()
    }
}

impl Drop for Binary {
    fn drop(&mut self) {
        // both fail if the process has ended, as expected
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
