// SPDX-License-Identifier: Apache-2.0
//! One keep-alive HTTP/1.1 connection that reads replies without storing them.

use std::io::{Error, ErrorKind, Result};
use std::time::Instant;

use memchr::memmem;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

/// A connection.
pub struct Connection {
    stream: TcpStream,
    buffer: Vec<u8>,
    head: Vec<u8>,
    /// When the last byte of the last request was written.
    pub sent: Instant,
}

impl Connection {
    pub async fn open(port: u16) -> Result<Self> {
        let stream = TcpStream::connect(("127.0.0.1", port)).await?;
        stream.set_nodelay(true)?;
        Ok(Self { stream, buffer: vec![0; 256 * 1024], head: Vec::new(), sent: Instant::now() })
    }

    /// Sends a request and passes the pieces of the reply's body to `body` as they arrive; returns the status.
    pub async fn exchange(&mut self, request: &[u8], mut body: impl FnMut(&[u8])) -> Result<u16> {
        self.stream.write_all(request).await?;
        self.sent = Instant::now();
        let mut filled = 0;
        let end = loop {
            filled += self.read(filled).await?;
            if let Some(at) = memmem::find(&self.buffer[..filled], b"\r\n\r\n") {
                break at + 4;
            }
        };
        self.head.clear();
        self.head.extend_from_slice(&self.buffer[..end]);
        let mut framing = self.framing()?;
        let mut done = framing.feed(&self.buffer[end..filled], &mut body)?;
        while !done {
            let read = self.read(0).await?;
            done = framing.feed(&self.buffer[..read], &mut body)?;
        }
        let status = self.head.get(9..12).and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
        status.ok_or_else(|| broken("no status"))
    }

    /// A header of the last reply.
    pub fn header(&self, name: &str) -> Option<&str> {
        let head = std::str::from_utf8(&self.head).ok()?;
        let mut fields = head.split("\r\n").filter_map(|line| line.split_once(':'));
        fields.find(|(key, _)| key.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim())
    }

    async fn read(&mut self, at: usize) -> Result<usize> {
        match self.stream.read(&mut self.buffer[at..]).await? {
            0 => Err(ErrorKind::UnexpectedEof.into()),
            read => Ok(read),
        }
    }

    fn framing(&self) -> Result<Framing> {
        if let Some(length) = self.header("content-length") {
            return Ok(Framing::Length(length.parse().map_err(|_| broken("content-length"))?));
        }
        match self.header("transfer-encoding") {
            Some(coding) if coding.eq_ignore_ascii_case("chunked") => Ok(Framing::Size(0)),
            _ => Err(broken("the reply has neither a length nor chunks")),
        }
    }
}

/// The next part of a body.
enum Framing {
    /// The remaining bytes of the body.
    Length(usize),
    /// The line with a chunk's size, and its value so far.
    Size(usize),
    /// The remaining bytes of a chunk, including its line end.
    Chunk(usize),
    /// The empty line after the last chunk.
    End,
}

impl Framing {
    /// Parses the bytes read; returns whether the body has ended.
    fn feed(&mut self, mut bytes: &[u8], body: &mut impl FnMut(&[u8])) -> Result<bool> {
        loop {
            match self {
                Self::Length(left) => {
                    if !bytes.is_empty() {
                        body(bytes);
                    }
                    *left = left.checked_sub(bytes.len()).ok_or_else(|| broken("more than its content-length"))?;
                    return Ok(*left == 0);
                }
                Self::Size(size) => {
                    let Some((byte, rest)) = bytes.split_first() else { return Ok(false) };
                    bytes = rest;
                    match byte {
                        b'\r' => {}
                        b'\n' => *self = if *size == 0 { Self::End } else { Self::Chunk(*size + 2) },
                        digit => {
                            let digit =
                                char::from(*digit).to_digit(16).ok_or_else(|| broken("invalid size of a chunk"))?;
                            *size = *size * 16 + digit as usize;
                        }
                    }
                }
                Self::Chunk(left) => {
                    let taken = bytes.len().min(*left);
                    let data = bytes.len().min(left.saturating_sub(2));
                    if data > 0 {
                        body(&bytes[..data]);
                    }
                    bytes = &bytes[taken..];
                    *left -= taken;
                    if *left > 0 {
                        return Ok(false);
                    }
                    *self = Self::Size(0);
                }
                Self::End => return Ok(bytes.contains(&b'\n')),
            }
        }
    }
}

fn broken(what: &str) -> Error {
    Error::new(ErrorKind::InvalidData, what.to_owned())
}
