// SPDX-License-Identifier: Apache-2.0
//! A Valkey server that belongs to a test.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// The name of a dump in the folder of a server.
const DUMP: &str = "dump.rdb";

/// The server. It is killed when it is dropped.
pub(crate) struct Server {
    binary: String,
    child: Child,
    port: u16,
    folder: tempfile::TempDir,
    options: Vec<String>,
}

impl Server {
    /// Starts a server; `None` if `VALKEY_SERVER` is not set.
    pub(crate) fn start() -> Option<Self> {
        Self::start_with("VALKEY_SERVER", &[])
    }

    /// Starts the server that the environment variable names, with options; `None` if it is not set.
    pub(crate) fn start_with(variable: &str, options: &[&str]) -> Option<Self> {
        let Ok(binary) = std::env::var(variable) else {
            eprintln!("skipped: {variable} is not set");
            return None;
        };
        Some(Self::launched(binary, tempfile::tempdir().unwrap(), options))
    }

    /// Starts a server with the data of a dump; `None` if `VALKEY_SERVER` is not set.
    pub(crate) fn start_from(dump: &Path, options: &[&str]) -> Option<Self> {
        let Ok(binary) = std::env::var("VALKEY_SERVER") else {
            eprintln!("skipped: VALKEY_SERVER is not set");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        std::fs::copy(dump, folder.path().join(DUMP)).unwrap();
        Some(Self::launched(binary, folder, options))
    }

    fn launched(binary: String, folder: tempfile::TempDir, options: &[&str]) -> Self {
        // the server cannot report the port that the system chose
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
        let child = launch(&binary, port, &folder, &options);
        Self { binary, child, port, folder, options }
    }

    /// Writes a dump of its data, and returns the path.
    pub(crate) fn save(&self) -> PathBuf {
        assert!(self.ask(&["SAVE"]).starts_with("+OK"));
        self.folder.path().join(DUMP)
    }

    pub(crate) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Kills it. Its data is lost.
    pub(crate) fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Starts it again without data.
    pub(crate) fn restart(&mut self) {
        self.child = launch(&self.binary, self.port, &self.folder, &self.options);
    }

    /// The number of keys of this pattern.
    pub(crate) fn keys(&self, pattern: &str) -> usize {
        let answer = self.ask(&["KEYS", pattern]);
        let count = answer.lines().next().and_then(|line| line.strip_prefix('*')).expect("a list of keys");
        count.parse().unwrap()
    }

    /// The answer to a command, in the protocol.
    pub(crate) fn ask(&self, command: &[&str]) -> String {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).unwrap();
        let part = |part: &&str| format!("${}\r\n{part}\r\n", part.len());
        let parts: String = command.iter().map(part).collect();
        write!(stream, "*{}\r\n{parts}*1\r\n$4\r\nQUIT\r\n", command.len()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }
}

fn launch(binary: &str, port: u16, folder: &tempfile::TempDir, options: &[String]) -> Child {
    let mut child = Command::new(binary)
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir"])
        .arg(folder.path())
        .args(options)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap_or_else(|error| panic!("{binary}: {error}"));
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines
        .find(|line| line.as_ref().is_ok_and(|line| line.contains("Ready to accept connections")))
        .expect("it starts")
        .unwrap();
    // its later lines are not read, and a full pipe would stop it
    std::thread::spawn(move || lines.for_each(drop));
    child
}

impl Drop for Server {
    fn drop(&mut self) {
        // it may have been killed before
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
