//! Servers that belong to a test.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use redis::Value;
use tokio::task::JoinSet;

use super::super::connection::{Connection, Credentials};
use super::super::options::{Address, TlsFiles, ValkeyOptions};
use super::super::{NoValkeyObserver, Valkey};

/// A server. It is killed when it is dropped.
pub(super) struct Process {
    child: Child,
    pub port: u16,
    _folder: tempfile::TempDir,
}

/// Options without persistence.
const PLAIN: &[&str] = &["--save", "", "--appendonly", "no"];

impl Process {
    /// Starts a server with more options. `None` if no server is given.
    pub(super) fn start(options: &[&str]) -> Option<Self> {
        Self::start_on(free_port(), options)
    }

    /// Starts a server on a port.
    pub(super) fn start_on(port: u16, options: &[&str]) -> Option<Self> {
        let Ok(binary) = std::env::var("TOKENTAP_VALKEY_SERVER") else {
            eprintln!("skipped: TOKENTAP_VALKEY_SERVER is not set");
            return None;
        };
        let folder = tempfile::tempdir().unwrap();
        let mut child = Command::new(&binary)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--dir"])
            .arg(folder.path())
            .args(PLAIN)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap_or_else(|error| panic!("TOKENTAP_VALKEY_SERVER={binary}: {error}"));
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut seen = Vec::new();
        loop {
            match lines.next() {
                Some(Ok(line)) if line.contains("Ready to accept connections") => break,
                Some(Ok(line)) => seen.push(line),
                _ => panic!("{binary} did not start:\n{}", seen.join("\n")),
            }
        }
        // a full pipe would stop the server
        std::thread::spawn(move || lines.map_while(Result::ok).for_each(drop));
        Some(Self { child, port, _folder: folder })
    }

    pub(super) fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    pub(super) fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// A connection for commands of the test.
    pub(super) async fn raw(&self) -> Raw {
        Raw::open(self.port, &options(&self.url())).await
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // it may have ended already
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
        let connection =
            Connection::open((&address, options, Credentials::OfServer), &mut drivers, || {}).await.unwrap();
        Self { connection, _drivers: drivers }
    }

    /// Sends a command whose arguments have no spaces.
    pub(super) async fn send(&mut self, command: &str) -> Value {
        let mut parts = command.split(' ');
        let mut cmd = redis::cmd(parts.next().unwrap());
        parts.for_each(|part| drop(cmd.arg(part)));
        self.connection.send(&cmd).await.unwrap_or_else(|error| panic!("{command}: {error}"))
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
    }
}

pub(super) fn ledger(options: ValkeyOptions) -> Valkey {
    Valkey::try_new(options, Arc::new(NoValkeyObserver)).unwrap()
}

pub(super) fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}
