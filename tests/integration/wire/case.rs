//! A case of the table: bytes of a client, and what may come of them.

/// Stands in the bytes of a case for five characters that are its own, so that whatever reaches the upstream can be told from what
/// other cases sent.
pub const TAG: &str = "TTTTT";

/// The target of the request that a case is about.
pub const TARGET: &str = "/p?TTTTT";

/// The target of a request that no client sent, but which one of two parsers might find in the bytes.
pub const HIDDEN: &str = "/smuggled?TTTTT";

/// What it comes through.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The data port, forwarded as it comes.
    Plain,
    /// The data port, read whole.
    Captured,
    /// The control port.
    Control,
}

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: &'static str,
    /// Where the rule stands: a section of RFC 9110, 9112 or 9113.
    pub rfc: &'static str,
    pub bytes: Vec<u8>,
    /// The sender ends with these bytes; otherwise one more request follows on the same connection.
    pub ends: bool,
    pub ports: &'static [Port],
    /// The statuses of the answers, that to the request behind left out.
    pub statuses: &'static [u16],
    /// The request behind is answered as well. If it is not, the connection was closed.
    pub kept: bool,
    /// Whether it is depends on what had been read.
    pub either: bool,
    /// The bodies of the requests that reach the upstream whole.
    pub bodies: Vec<Vec<u8>>,
    pub checks: Vec<Check>,
}

/// What is asked of each request that reaches the upstream.
#[derive(Debug, Clone)]
pub enum Check {
    With(&'static str, &'static str),
    Without(&'static str),
    Target(&'static str),
}

/// A case, and what comes of it by one of the functions below.
pub fn case(name: &'static str, rfc: &'static str, bytes: impl Into<Vec<u8>>, fate: Expected) -> Case {
    Case {
        name,
        rfc,
        bytes: bytes.into(),
        ends: false,
        ports: &[Port::Plain, Port::Captured, Port::Control],
        statuses: fate.statuses,
        kept: fate.kept,
        either: false,
        bodies: fate.bodies,
        checks: Vec::new(),
    }
}

/// What comes of a case.
#[derive(Debug)]
pub struct Expected {
    statuses: &'static [u16],
    kept: bool,
    bodies: Vec<Vec<u8>>,
}

/// Refused, and the connection closed: the start of the next request is unknown.
pub fn refused(statuses: &'static [u16]) -> Expected {
    Expected { statuses, kept: false, bodies: Vec::new() }
}

/// Answered without the upstream; the connection stays.
pub fn answered(statuses: &'static [u16]) -> Expected {
    Expected { statuses, kept: true, bodies: Vec::new() }
}

/// Passed on as one request with this body; the connection stays.
pub fn passed(body: &str) -> Expected {
    Expected { statuses: &[200], kept: true, bodies: vec![body.into()] }
}

/// The same, and the connection is closed behind it.
pub fn last(body: &str) -> Expected {
    Expected { kept: false, ..passed(body) }
}

impl Expected {
    /// With other statuses.
    pub fn saying(self, statuses: &'static [u16]) -> Self {
        Self { statuses, ..self }
    }

    /// And another request, with this body.
    pub fn and(mut self, body: &str) -> Self {
        self.bodies.push(body.into());
        self
    }
}

impl Case {
    /// Nothing follows: the bytes break off where a reader must wait for more.
    pub fn ending(self) -> Self {
        Self { ends: true, kept: false, ..self }
    }

    /// The connection may stay or be closed: it depends on how much of the body had come when the answer was written.
    pub fn either(self) -> Self {
        Self { either: true, ..self }
    }

    /// Only through the data port, forwarded: the path or the method is what the case is about.
    pub fn plain(self) -> Self {
        Self { ports: &[Port::Plain], ..self }
    }

    pub fn on(self, ports: &'static [Port]) -> Self {
        Self { ports, ..self }
    }

    pub fn with(mut self, name: &'static str, value: &'static str) -> Self {
        self.checks.push(Check::With(name, value));
        self
    }

    pub fn without(mut self, name: &'static str) -> Self {
        self.checks.push(Check::Without(name));
        self
    }

    pub fn target(mut self, target: &'static str) -> Self {
        self.checks.push(Check::Target(target));
        self
    }

    /// The bytes for a port, with a tag of their own, and with the request behind them.
    pub fn written(&self, port: Port, tag: &str) -> Vec<u8> {
        assert_eq!(tag.len(), TAG.len(), "lengths that the bytes name must stay true");
        let path: &[u8] = match port {
            Port::Plain => b"/p?",
            Port::Captured => b"/generate?",
            Port::Control => b"/flush_cache?",
        };
        let mut bytes = replaced(&self.bytes, b"/p?", path);
        if !self.ends {
            bytes.extend_from_slice(b"GET /livez?TTTTT HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        }
        replaced(&bytes, TAG.as_bytes(), tag.as_bytes())
    }

    /// The bodies that the upstream must see.
    pub fn bodies(&self, tag: &str) -> Vec<Vec<u8>> {
        self.bodies.iter().map(|body| replaced(body, TAG.as_bytes(), tag.as_bytes())).collect()
    }

    /// The method that the upstream must see.
    pub fn method(&self) -> String {
        let line = String::from_utf8_lossy(&self.bytes).into_owned();
        line.trim_start().split(' ').next().unwrap_or_default().to_owned()
    }
}

fn replaced(bytes: &[u8], old: &[u8], new: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(bytes.len());
    let mut from = 0;
    for at in memchr::memmem::find_iter(bytes, old) {
        out.extend_from_slice(&bytes[from..at]);
        out.extend_from_slice(new);
        from = at + old.len();
    }
    out.extend_from_slice(&bytes[from..]);
    out
}

/// A GET with these header lines besides `Host`.
pub fn get(lines: &str) -> Vec<u8> {
    format!("GET {TARGET} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
}

/// A POST with these header lines besides `Host`, and what follows the head.
pub fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST {TARGET} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{body}").into_bytes()
}

/// A whole request that must never reach the upstream.
pub fn hidden() -> String {
    format!("GET {HIDDEN} HTTP/1.1\r\nHost: localhost\r\nX: ")
}
