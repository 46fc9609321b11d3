// SPDX-License-Identifier: Apache-2.0
//! A strict request parser: it accepts one request line, one `Host`, one framing, no hop-by-hop header, and no ambiguous spelling.

use std::collections::VecDeque;

/// A request that the upstream received.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ReceivedRequest {
    pub method: String,
    pub target: String,
    pub headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
}

impl ReceivedRequest {
    pub fn values(&self, name: &str) -> Vec<&[u8]> {
        self.headers.iter().filter(|(key, _)| key == name).map(|(_, value)| value.as_slice()).collect()
    }

    /// Whether tokentap sent it for itself: only those requests have an Accept header.
    pub fn is_own(&self) -> bool {
        self.values("accept") == [b"*/*"]
    }
}

/// How a body is framed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Framing {
    Length(usize),
    Chunked,
}

/// The parser of a connection.
#[derive(Debug)]
pub struct Strict {
    host: String,
    read: VecDeque<u8>,
    /// A head whose body is incomplete.
    head: Option<(ReceivedRequest, Framing)>,
}

const HOP_BY_HOP: [&str; 7] =
    ["connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "trailer", "upgrade"];

impl Strict {
    /// A parser of requests to `host`.
    pub fn new(host: String) -> Self {
        Self { host, read: VecDeque::new(), head: None }
    }

    pub fn feed(&mut self, bytes: &[u8]) {
        self.read.extend(bytes);
    }

    /// The incomplete request: its head, if it is complete, and the bytes not parsed yet.
    pub fn rest(&mut self) -> (Option<&ReceivedRequest>, &[u8]) {
        (self.head.as_ref().map(|(seen, _)| seen), self.read.make_contiguous())
    }

    /// The next complete request, or the reason why it is malformed.
    pub fn next(&mut self) -> Result<Option<ReceivedRequest>, String> {
        if self.head.is_none() {
            let Some(end) = memchr::memmem::find(self.read.make_contiguous(), b"\r\n\r\n") else { return Ok(None) };
            let head: Vec<u8> = self.read.drain(..end + 4).collect();
            self.head = Some(self.parsed(&head).map_err(|wrong| format!("{wrong} in {}", head.escape_ascii()))?);
        }
        let Some((seen, framing)) = &mut self.head else { return Ok(None) };
        match framing {
            Framing::Length(length) => {
                if self.read.len() < *length {
                    return Ok(None);
                }
                seen.body.extend(self.read.drain(..*length));
            }
            Framing::Chunked => loop {
                let read = self.read.make_contiguous();
                let Some(end) = memchr::memmem::find(read, b"\r\n") else { return Ok(None) };
                let digits = &read[..end];
                let plain = (1..=8).contains(&end) && digits.iter().all(u8::is_ascii_hexdigit);
                let size = plain.then(|| usize::from_str_radix(str::from_utf8(digits).ok()?, 16).ok()).flatten();
                let size = size.ok_or_else(|| {
                    format!("a chunk of size {:?} for {}", digits.escape_ascii().to_string(), seen.target)
                })?;
                if read.len() < end + size + 4 {
                    return Ok(None);
                }
                if &read[end + 2 + size..end + size + 4] != b"\r\n" {
                    return Err(format!("a chunk that does not end where it should, or trailers, for {}", seen.target));
                }
                seen.body.extend(&read[end + 2..end + 2 + size]);
                self.read.drain(..end + size + 4);
                if size == 0 {
                    break;
                }
            },
        }
        Ok(self.head.take().map(|(seen, _)| seen))
    }

    fn parsed(&self, head: &[u8]) -> Result<(ReceivedRequest, Framing), String> {
        let head = &head[..head.len() - 4];
        if head.windows(2).any(|pair| (pair[0] == b'\r') != (pair[1] == b'\n')) {
            return Err("a bare CR or LF".to_owned());
        }
        let mut lines = head.split(|byte| *byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
        let first = lines.next().and_then(|line| str::from_utf8(line).ok()).ok_or("no request line")?;
        let words: Vec<&str> = first.split(' ').collect();
        let [method, target, "HTTP/1.1"] = words[..] else { return Err(format!("the request line {first:?}")) };
        if !is_token(method.as_bytes()) {
            return Err(format!("the method {method:?}"));
        }
        if !target.starts_with('/') || !target.bytes().all(|byte| byte.is_ascii_graphic() && byte != b'#') {
            return Err(format!("the target {target:?}"));
        }
        let mut seen =
            ReceivedRequest { method: method.to_owned(), target: target.to_owned(), ..ReceivedRequest::default() };
        for line in lines {
            seen.headers.push(header(line)?);
        }
        let framing = self.framing(&seen)?;
        Ok((seen, framing))
    }

    fn framing(&self, seen: &ReceivedRequest) -> Result<Framing, String> {
        if seen.values("host") != [self.host.as_bytes()] {
            return Err(format!("{} hosts, or the wrong host", seen.values("host").len()));
        }
        if let Some(name) = HOP_BY_HOP.iter().find(|name| !seen.values(name).is_empty()) {
            return Err(format!("the hop-by-hop header {name}"));
        }
        if seen.values("te").iter().any(|te| *te != b"trailers") {
            return Err("the hop-by-hop header te".to_owned());
        }
        match (&seen.values("content-length")[..], &seen.values("transfer-encoding")[..]) {
            ([], []) => Ok(Framing::Length(0)),
            ([], [b"chunked"]) => Ok(Framing::Chunked),
            ([length], []) => {
                let digits = str::from_utf8(length).unwrap_or_default();
                let canonical = digits.parse::<usize>().ok().filter(|length| length.to_string() == digits);
                canonical.map(Framing::Length).ok_or_else(|| format!("the length {digits:?}"))
            }
            (lengths, codings) => Err(format!("{} lengths and {} transfer codings", lengths.len(), codings.len())),
        }
    }
}

fn header(line: &[u8]) -> Result<(String, Vec<u8>), String> {
    let wrong = || format!("the header line {:?}", line.escape_ascii().to_string());
    let at = memchr::memchr(b':', line).ok_or_else(wrong)?;
    let (name, value) = (&line[..at], line[at + 1..].trim_ascii());
    let printable = value.iter().all(|byte| *byte == b'\t' || *byte >= b' ' && *byte != 0x7f);
    if !is_token(name) || !printable {
        return Err(wrong());
    }
    Ok((String::from_utf8_lossy(name).to_ascii_lowercase(), value.to_vec()))
}

fn is_token(text: &[u8]) -> bool {
    !text.is_empty() && text.iter().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &str) -> Result<usize, String> {
        let mut strict = Strict::new("u:1".to_owned());
        strict.feed(bytes.as_bytes());
        let mut whole = 0;
        while strict.next()?.is_some() {
            whole += 1;
        }
        let (head, rest) = strict.rest();
        assert!(head.is_none() && rest.is_empty(), "nothing is left over");
        Ok(whole)
    }

    #[test]
    fn parser_accepts_exactly_well_formed_requests() {
        assert_eq!(
            read("GET / HTTP/1.1\r\nhost: u:1\r\n\r\nPOST /a?b HTTP/1.1\r\nhost: u:1\r\ncontent-length: 1\r\n\r\nx"),
            Ok(2)
        );
        assert_eq!(
            read("POST / HTTP/1.1\r\nHost: u:1\r\ntransfer-encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n\r\n"),
            Ok(1)
        );
        for wrong in [
            "GET http://u:1/ HTTP/1.1\r\nhost: u:1\r\n\r\n",
            "GET  / HTTP/1.1\r\nhost: u:1\r\n\r\n",
            "GET / HTTP/1.0\r\nhost: u:1\r\n\r\n",
            "GET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:2\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\nhost: u:1\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\na : b\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\na: b\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\na: b\rc\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\na: b\r\n c\r\n\r\n",
            "GET / HTTP/1.1\r\nhost: u:1\r\nconnection: close\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: u:1\r\ncontent-length: 01\r\n\r\nx",
            "POST / HTTP/1.1\r\nhost: u:1\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
            "POST / HTTP/1.1\r\nhost: u:1\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: u:1\r\ntransfer-encoding: Chunked\r\n\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: u:1\r\ntransfer-encoding: chunked\r\n\r\n1;a\r\nx\r\n0\r\n\r\n",
            "POST / HTTP/1.1\r\nhost: u:1\r\ntransfer-encoding: chunked\r\n\r\n0\r\na: b\r\n\r\n",
        ] {
            assert!(read(wrong).is_err(), "{wrong:?}");
        }
    }
}
