// SPDX-License-Identifier: Apache-2.0
//! Servers that belong to a test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::{RedisError, Value};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::super::connection::{Connection, Credentials};
use super::super::options::{Address, TlsFiles, ValkeyOptions};
use super::super::{Valkey, ValkeyObserver};

/// A server. It is killed when it is dropped.
pub(super) struct Process {
    child: Child,
    pub port: u16,
    folder: tempfile::TempDir,
}

/// The path of a server.
#[derive(Debug, Clone)]
pub(super) struct Binary(String);

impl Binary {
    /// The server of the tests.
    pub(super) fn any() -> Option<Self> {
        Self::of("VALKEY_SERVER")
    }

    /// A server with TLS.
    pub(super) fn with_tls() -> Option<Self> {
        Self::of("VALKEY_TLS_SERVER")
    }

    fn of(variable: &str) -> Option<Self> {
        let path = std::env::var(variable).ok();
        if path.is_none() {
            eprintln!("skipped: {variable} is not set");
        }
        path.map(Self)
    }

    /// Starts a server with some options.
    pub(super) fn start(&self, options: &[&str]) -> Process {
        on_free_port(|port| self.try_start(port, options))
    }

    /// Starts a server on a port.
    pub(super) fn start_on(&self, port: u16, options: &[&str]) -> Process {
        self.try_start(port, options).unwrap_or_else(|output| panic!("{output}"))
    }

    fn try_start(&self, port: u16, options: &[&str]) -> Result<Process, String> {
        let own = ["--save", "", "--appendonly", "no", "--repl-diskless-sync-delay", "0"];
        self.launch(port, &[&own[..], options].concat(), "Ready to accept connections")
    }

    /// Starts a Sentinel.
    pub(super) fn sentinel(&self, config: &str) -> Process {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("sentinel.conf");
        std::fs::write(&file, config).unwrap();
        let mut process = on_free_port(|port| self.launch(port, &[file.to_str().unwrap(), "--sentinel"], "+monitor"));
        // it rewrites its file
        process.folder = folder;
        process
    }

    /// Returns the output of a server that does not start.
    fn launch(&self, port: u16, options: &[&str], ready: &str) -> Result<Process, String> {
        let folder = tempfile::tempdir().unwrap();
        // a file of settings comes first
        let (file, options) = options.split_at(options.first().is_some_and(|first| Path::new(first).is_file()).into());
        let mut child = Command::new(&self.0)
            .args(file)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(folder.path())
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("{}: {error}", self.0));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains(ready) => break,
                Some(Ok(line)) => seen.push(line),
                _ => {
                    let _ = child.kill();
                    child.wait().unwrap();
                    return Err(format!("{} did not start:\n{}", self.0, seen.join("\n")));
                }
            }
        }
        // a full pipe would stop the server
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Ok(Process { child, port, folder })
    }
}

/// Starts a server on a free port, and on another one if a process has taken the port (or that of the cluster's bus) in the meantime.
fn on_free_port(mut start: impl FnMut(u16) -> Result<Process, String>) -> Process {
    for _ in 0..5 {
        match start(free_port()) {
            Err(output) if output.contains("Address already in use") => {}
            started => return started.unwrap_or_else(|output| panic!("{output}")),
        }
    }
    panic!("five ports in a row were taken");
}

impl Process {
    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Stops it without ending it, or continues it.
    pub(super) fn set_stopped(&self, stopped: bool) {
        let signal = if stopped { "-STOP" } else { "-CONT" };
        assert!(Command::new("kill").args([signal, &self.child.id().to_string()]).status().unwrap().success());
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection for commands of the test.
    pub(super) async fn raw(&self) -> Raw {
        Raw::open(self.port, &options(&self.url())).await
    }

    /// Starts a replica, and waits until it has all data.
    pub(super) async fn replica(&self, binary: &Binary) -> Process {
        let replica = binary.start(&["--replicaof", &format!("127.0.0.1 {}", self.port)]);
        let mut raw = self.raw().await;
        let before = replicas(&raw.info("connected_slaves").await);
        raw.send("SET tt:test 1").await;
        let Value::Int(count) = raw.send(&format!("WAIT {} 20000", before.max(1))).await else { panic!("WAIT counts") };
        assert!(count > 0, "the replica follows");
        replica
    }
}

fn replicas(count: &str) -> u32 {
    count.parse().unwrap()
}

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended already; one that is stopped can be killed too
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A connection for commands of the test.
pub(super) struct Raw {
    connection: Connection,
    _drivers: JoinSet<()>,
}

impl Raw {
    pub(super) async fn open(port: u16, options: &ValkeyOptions) -> Self {
        let mut drivers = JoinSet::new();
        let address = Address { host: "127.0.0.1".into(), port };
        let connection = Connection::open(&address, options, Credentials::OfServer, &mut drivers, || {}).await.unwrap();
        Self { connection, _drivers: drivers }
    }

    /// Sends a command whose arguments have no spaces.
    pub(super) async fn send(&mut self, command: &str) -> Value {
        self.try_send(command).await.unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    pub(super) async fn try_send(&mut self, command: &str) -> Result<Value, RedisError> {
        let mut parts = command.split(' ');
        let mut cmd = redis::cmd(parts.next().unwrap());
        for part in parts {
            cmd.arg(part);
        }
        self.connection.send(&cmd).await
    }

    /// A fact of `INFO`.
    pub(super) async fn info(&mut self, fact: &str) -> String {
        let Value::BulkString(text) = self.send("INFO everything").await else { panic!("INFO is text") };
        let text = String::from_utf8(text).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(fact)?.strip_prefix(':'));
        line.unwrap_or_default().to_owned()
    }
}

pub(super) fn options(url: &str) -> ValkeyOptions {
    ValkeyOptions {
        url: url.parse().unwrap(),
        password_file: None,
        tls: TlsFiles::default(),
        replicas: 0,
        timeout: Duration::from_secs(2),
        ttl: Duration::from_secs(3600),
        image_bytes: 512 << 10,
    }
}

/// A ledger, and what it reports.
pub(super) fn ledger(options: ValkeyOptions) -> (Valkey, Arc<Observer>) {
    let observer = Arc::new(Observer { up: watch::Sender::new(0), groups: AtomicUsize::new(0) });
    (Valkey::new(options, Arc::clone(&observer) as Arc<dyn ValkeyObserver>), observer)
}

#[derive(Debug)]
pub(super) struct Observer {
    /// The number of usable connections.
    up: watch::Sender<i32>,
    groups: AtomicUsize,
}

impl Observer {
    /// Resolves when `count` primaries are connected.
    pub(super) async fn until_up(&self, count: i32) {
        let mut up = self.up.subscribe();
        // a Sentinel that was not scheduled in time does nothing for 30 seconds
        let waited = tokio::time::timeout(Duration::from_secs(180), up.wait_for(|up| *up == count)).await;
        assert!(waited.is_ok(), "{} primaries are connected", *self.up.borrow());
    }

    pub(super) fn groups(&self) -> usize {
        self.groups.load(Ordering::Relaxed)
    }
}

impl ValkeyObserver for Observer {
    fn append_ended(&self, _outcome: &'static str, _elapsed: Duration) {}

    fn group_sent(&self, _appends: usize, _bytes: usize) {
        self.groups.fetch_add(1, Ordering::Relaxed);
    }

    fn connected(&self, is_connected: bool) {
        self.up.send_modify(|up| *up += if is_connected { 1 } else { -1 });
    }
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
