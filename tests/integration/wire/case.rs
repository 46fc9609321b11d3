// SPDX-License-Identifier: Apache-2.0
//! A case of the table: the bytes that a client sends, and the expected outcome.

/// A placeholder for five characters that are unique to a case, which identify its bytes at the upstream.
pub const TAG: &str = "TTTTT";

/// The target of the request that a case is about.
pub const TARGET: &str = "/p?TTTTT";

/// The target of a hidden request, which a lax parser might find in the bytes.
pub const HIDDEN: &str = "/smuggled?TTTTT";

/// The port that a case is sent to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// The data port, with a body that is streamed.
    Plain,
    /// The data port, with a body that is buffered.
    Captured,
    /// The control port.
    Control,
}

/// One line of the table.
#[derive(Debug, Clone)]
pub struct Case {
    pub name: &'static str,
    /// The section of RFC 9110, 9112 or 9113 with the rule.
    pub rfc: &'static str,
    pub bytes: Vec<u8>,
    /// The client sends nothing after these bytes; otherwise another request follows on the connection.
    pub ends: bool,
    pub ports: &'static [Port],
    /// The statuses of the replies, without that of the following request.
    pub statuses: &'static [u16],
    /// The following request is answered as well; otherwise the connection is closed.
    pub kept: bool,
    /// The connection may stay open or be closed, depending on timing.
    pub either: bool,
    /// The bodies of the complete requests that reach the upstream.
    pub bodies: Vec<Vec<u8>>,
    pub checks: Vec<Check>,
}

/// An assertion on each request that reaches the upstream.
#[derive(Debug, Clone)]
pub enum Check {
    With(&'static str, &'static str),
    Without(&'static str),
    Target(&'static str),
}

/// A case with its expected outcome.
pub fn case(name: &'static str, rfc: &'static str, bytes: impl Into<Vec<u8>>, expected: Expected) -> Case {
    Case {
        name,
        rfc,
        bytes: bytes.into(),
        ends: false,
        ports: &[Port::Plain, Port::Captured, Port::Control],
        statuses: expected.statuses,
        kept: expected.kept,
        either: false,
        bodies: expected.bodies,
        checks: Vec::new(),
    }
}

/// The expected outcome of a case.
#[derive(Debug)]
pub struct Expected {
    statuses: &'static [u16],
    kept: bool,
    bodies: Vec<Vec<u8>>,
}

/// Rejected, and the connection is closed: the start of the next request is unknown.
pub fn refused(statuses: &'static [u16]) -> Expected {
    Expected { statuses, kept: false, bodies: Vec::new() }
}

/// Answered without the upstream; the connection stays open.
pub fn answered(statuses: &'static [u16]) -> Expected {
    Expected { statuses, kept: true, bodies: Vec::new() }
}

/// Forwarded as one request with this body; the connection stays open.
pub fn passed(body: &str) -> Expected {
    Expected { statuses: &[200], kept: true, bodies: vec![body.into()] }
}

/// As [`passed`], but the connection is closed after the reply.
pub fn last(body: &str) -> Expected {
    Expected { kept: false, ..passed(body) }
}

impl Expected {
    /// The same with other statuses.
    pub fn with_statuses(self, statuses: &'static [u16]) -> Self {
        Self { statuses, ..self }
    }

    /// Adds another request with this body.
    pub fn and(mut self, body: &str) -> Self {
        self.bodies.push(body.into());
        self
    }
}

impl Case {
    /// Ends the connection after these bytes, where a parser waits for more.
    pub fn ending(self) -> Self {
        Self { ends: true, kept: false, ..self }
    }

    /// The connection may stay open or be closed: it depends on how much of the body was received before the reply.
    pub fn either(self) -> Self {
        Self { either: true, ..self }
    }

    /// Only on the data port, streamed, for cases about the path or the method.
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

    /// The bytes for a port, with this tag, and with the following request.
    pub fn written(&self, port: Port, tag: &str) -> Vec<u8> {
        assert_eq!(tag.len(), TAG.len(), "lengths in the bytes must stay valid");
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

    /// The bodies that the upstream must receive.
    pub fn bodies(&self, tag: &str) -> Vec<Vec<u8>> {
        self.bodies.iter().map(|body| replaced(body, TAG.as_bytes(), tag.as_bytes())).collect()
    }

    /// The method that the upstream must receive.
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

/// A GET with `Host` and these header lines.
pub fn get(lines: &str) -> Vec<u8> {
    format!("GET {TARGET} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n").into_bytes()
}

/// A POST with `Host`, these header lines, and the bytes after the head.
pub fn post(lines: &str, body: &str) -> Vec<u8> {
    format!("POST {TARGET} HTTP/1.1\r\nHost: localhost\r\n{lines}\r\n{body}").into_bytes()
}

/// A complete request that must never reach the upstream.
pub fn hidden() -> String {
    format!("GET {HIDDEN} HTTP/1.1\r\nHost: localhost\r\nX: ")
}
