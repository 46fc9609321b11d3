// SPDX-License-Identifier: Apache-2.0
//! The canned engine: a separate process that answers with little CPU, on two ports with different capabilities.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};
use std::sync::Arc;
use std::time::Duration;

use memchr::memmem;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::time::Instant;

use crate::canned::{self, Columns, Sequence, Shape, VARIANTS, VOCAB};

/// The argument that makes this program the engine.
pub const ROLE: &str = "--upstream";
/// Connections that may wait to be accepted.
const BACKLOG: u32 = 4096;
/// Bytes of the buffer of a request.
const LARGEST: usize = 16 * 1024 * 1024;
/// The header that names the reply.
pub const CANNED: &str = "x-canned";

/// The capabilities of a port's engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Server {
    /// Flat base64 logprobs, and incremental streams.
    Flat,
    /// Nested logprobs for every request, and cumulative streams.
    Nested,
}

impl Server {
    pub const ALL: [Self; 2] = [Self::Flat, Self::Nested];
}

/// The reply to one request.
pub enum Canned {
    /// Headers and body.
    Whole(Vec<u8>),
    /// Events as chunks, with the headers before the first.
    Events(Vec<Vec<u8>>),
}

/// Replies by request; each is encoded once.
pub type ReplyCache = Arc<Mutex<HashMap<(Shape, Server, bool), Arc<Canned>>>>;

/// Serves until standard input ends, when the benchmark ends.
pub fn main() {
    std::thread::spawn(|| {
        let _ = std::io::stdin().read(&mut [0]);
        std::process::exit(0);
    });
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let cache = ReplyCache::default();
        let mut tasks = Vec::new();
        let mut ports = Vec::new();
        for server in Server::ALL {
            let socket = TcpSocket::new_v4().unwrap();
            socket.bind(([127, 0, 0, 1], 0).into()).unwrap();
            let listener = socket.listen(BACKLOG).unwrap();
            ports.push(listener.local_addr().unwrap().port().to_string());
            tasks.push(tokio::spawn(accept(listener, server, Arc::clone(&cache))));
        }
        println!("{}", ports.join(" "));
        std::io::stdout().flush().unwrap();
        for task in tasks {
            task.await.unwrap();
        }
    });
}

/// Answers requests on this listener with canned replies.
pub async fn accept(listener: TcpListener, server: Server, cache: ReplyCache) {
    loop {
        let (stream, _) = listener.accept().await.unwrap();
        stream.set_nodelay(true).unwrap();
        let cache = Arc::clone(&cache);
        // an error means that the proxy has ended
        tokio::spawn(async move { serve(stream, server, &cache).await.ok() });
    }
}

async fn serve(mut stream: TcpStream, server: Server, cache: &ReplyCache) -> std::io::Result<()> {
    let mut buffer = vec![0; 64 * 1024];
    let mut filled = 0;
    loop {
        let Some(length) = request_length(&buffer[..filled]) else {
            if filled == buffer.len() {
                assert!(filled < LARGEST, "a request is larger than any workload's");
                buffer.resize(2 * filled, 0);
            }
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                read => filled += read,
            }
            continue;
        };
        let request = &buffer[..length];
        let (canned, pace) = answer(request, server, cache);
        match &*canned {
            Canned::Whole(bytes) => stream.write_all(bytes).await?,
            Canned::Events(events) => {
                let start = Instant::now();
                for (at, event) in events.iter().enumerate() {
                    // the first token has no delay, so that the measured delay is the proxy's
                    if let Some(pace) = pace.filter(|_| at > 0) {
                        tokio::time::sleep_until(start + pace * at as u32).await;
                    }
                    stream.write_all(event).await?;
                }
            }
        }
        buffer.copy_within(length..filled, 0);
        filled -= length;
    }
}

/// The length of the request at the start of `bytes`, if it is complete.
pub fn request_length(bytes: &[u8]) -> Option<usize> {
    let head = memmem::find(bytes, b"\r\n\r\n")? + 4;
    let lines = bytes[..head].split(|byte| *byte == b'\n');
    let body = lines.filter_map(|line| {
        let (name, value) = line.split_at_checked(15)?;
        assert!(!line.to_ascii_lowercase().starts_with(b"transfer-encoding"), "requests have a length");
        name.eq_ignore_ascii_case(b"content-length:")
            .then(|| std::str::from_utf8(value).unwrap().trim().parse::<usize>().unwrap())
    });
    let length = head + body.sum::<usize>();
    (bytes.len() >= length).then_some(length)
}

/// The reply, and the pause between the tokens of a stream.
pub fn answer(request: &[u8], server: Server, cache: &ReplyCache) -> (Arc<Canned>, Option<Duration>) {
    if !request.starts_with(b"POST /generate ") {
        return (Arc::new(Canned::Whole(about(request, server))), None);
    }
    let body = &request[memmem::find(request, b"\r\n\r\n").unwrap() + 4..];
    let has = |text: &str| memmem::find(body, text.as_bytes()).is_some();
    if has("\"logit_bias\":") {
        let refusal =
            format!(r#"{{"error":{{"message":"logit_bias must has keys in [0, {}], got 2000000000."}}}}"#, VOCAB - 1);
        return (Arc::new(Canned::Whole(reply("400 Bad Request", "refusal", refusal.as_bytes()))), None);
    }
    if has("\"return_sampling_mask\":true") && has("\"top_k\":-1") {
        let refusal = br#"{"error":{"message":"return_sampling_mask requires a finite support, top_k <= 1024"}}"#;
        return (Arc::new(Canned::Whole(reply("400 Bad Request", "refusal", refusal))), None);
    }
    let tokens = number(body, "\"max_new_tokens\":").unwrap() as usize;
    let stream = has("\"stream\":true");
    let k = has("\"return_logprob\":true").then(|| number(body, "\"top_logprobs_num\":").unwrap_or(0.0) as usize);
    let flat_asked =
        has("\"return_flat_raw_output_top_logprobs\":true") && has("\"return_flat_raw_top_logprobs_b64\":true");
    let flat = flat_asked && server == Server::Flat && !stream && k.is_some();
    let columns =
        Columns { mask: has("\"return_sampling_mask\":true"), experts: has("\"return_routed_experts\":true") };
    if tokens == 1 {
        let gap = 0.7 / number(body, "\"temperature\":").unwrap() as f32;
        let body = canned::probe_reply(k, flat, columns, gap);
        return (Arc::new(Canned::Whole(reply("200 OK", "probe", &body))), None);
    }
    let variant = number(body, "\"sampling_seed\":").unwrap_or(0.0) as u64 % VARIANTS;
    let shape = Shape { tokens, k, flat, columns, variant };
    let mut cache = cache.lock();
    let canned = cache.entry((shape, server, stream)).or_insert_with(|| Arc::new(encode(shape, server, stream)));
    let pace = number(body, "\"pace_us\":").map(|pace| Duration::from_micros(pace as u64));
    (Arc::clone(canned), pace)
}

fn encode(shape: Shape, server: Server, stream: bool) -> Canned {
    let sequence = Sequence::new(shape);
    if !stream {
        return Canned::Whole(reply("200 OK", &shape.label(), &sequence.whole()));
    }
    let kind = "content-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked";
    let mut chunks = Vec::new();
    for (at, event) in sequence.events(server == Server::Flat).iter().enumerate() {
        let mut chunk = if at == 0 { head("200 OK", kind, &shape.label()) } else { Vec::new() };
        chunk.extend_from_slice(format!("{:x}\r\n", event.len()).as_bytes());
        chunk.extend_from_slice(event);
        chunk.extend_from_slice(b"\r\n");
        chunks.push(chunk);
    }
    chunks.last_mut().unwrap().extend_from_slice(b"0\r\n\r\n");
    Canned::Events(chunks)
}

/// The information routes.
fn about(request: &[u8], server: Server) -> Vec<u8> {
    let target = request.split(|byte| *byte == b' ').nth(1).unwrap_or_default();
    let body = match target {
        b"/model_info" => r#"{"model_path":"/models/Qwen3-8B","served_model_name":"qwen","tokenizer_path":"/models/Qwen3-8B","is_generation":true,"preferred_sampling_params":null,"weight_version":"default","load_format":"auto","has_image_understanding":false,"has_audio_understanding":false,"model_type":"qwen3","architectures":["Qwen3ForCausalLM"]}"#.to_owned(),
        b"/v1/models" => r#"{"object":"list","data":[{"id":"qwen","object":"model","created":0,"owned_by":"sglang","root":"qwen","parent":null,"max_model_len":40960}]}"#.to_owned(),
        b"/server_info" => format!(
            r#"{{"model_path":"/models/Qwen3-8B","skip_tokenizer_init":false,"context_length":40960,"incremental_streaming_output":{},"stream_interval":1,"speculative_algorithm":null,"disaggregation_mode":"null","sampling_defaults":"openai","enable_return_routed_experts":true,"version":"0.5.23"}}"#,
            server == Server::Flat
        ),
        // sglang-router asks for it
        b"/health" => String::new(),
        _ => return reply("404 Not Found", "none", br#"{"detail":"Not Found"}"#),
    };
    reply("200 OK", "about", body.as_bytes())
}

fn reply(status: &str, label: &str, body: &[u8]) -> Vec<u8> {
    let kind = format!("content-type: application/json\r\ncontent-length: {}", body.len());
    let mut out = head(status, &kind, label);
    out.extend_from_slice(body);
    out
}

fn head(status: &str, kind: &str, label: &str) -> Vec<u8> {
    format!("HTTP/1.1 {status}\r\ndate: Fri, 21 Nov 2025 12:00:00 GMT\r\nserver: uvicorn\r\n{kind}\r\n{CANNED}: {label}\r\n\r\n")
        .into_bytes()
}

/// The number after `name`, which includes quotes and colon: all JSON here is compact.
pub fn number(body: &[u8], name: &str) -> Option<f64> {
    let rest = &body[memmem::find(body, name.as_bytes())? + name.len()..];
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit() || **byte == b'.').count();
    std::str::from_utf8(&rest[..digits]).unwrap().parse().ok()
}
