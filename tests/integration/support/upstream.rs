// SPDX-License-Identifier: Apache-2.0
//! A scripted fake upstream that records the requests it receives.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinHandle, JoinSet};

/// A request that the upstream received.
#[derive(Debug, Clone, Default)]
pub struct UpstreamRequest {
    pub method: String,
    pub path: String,
    pub headers: Vec<(String, String)>,
    pub body: Vec<u8>,
}

impl UpstreamRequest {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    /// Whether tokentap sent it on its own behalf, not for a client: its HTTP client sets an Accept header.
    pub fn is_own(&self) -> bool {
        self.header("accept") == Some("*/*")
    }

    pub fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or(Value::Null)
    }
}

/// What the fake upstream does with a request.
#[derive(Debug, Clone)]
pub enum FakeReply {
    /// Sends an HTTP message in these pieces, and keeps the connection open.
    KeepAlive(Vec<Vec<u8>>),
    /// Sends these pieces, then closes the connection.
    Close(Vec<Vec<u8>>),
    /// Sends nothing until the connection closes.
    Silence,
    /// Sends the head of a reply, and nothing more until the connection closes.
    Head(&'static [u8]),
    /// Forwards the request to this server and returns its reply, then closes the connection.
    Forward(SocketAddr),
}

/// The properties of the fake engine that the probe detects.
#[derive(Debug, Clone)]
pub struct EngineProfile {
    pub vocab: Option<u32>,
    /// The served model name, also that of the tokenizer.
    pub model: &'static str,
    pub flat: bool,
    pub streaming: &'static str,
    /// The context length in tokens.
    pub context: u64,
    pub embeds: bool,
    pub jax: bool,
    pub original: bool,
    /// The plugin of tokentap is installed.
    pub plugin: bool,
    /// It returns the support of each token (`return_sampling_mask`).
    pub masks: bool,
    /// It refuses them within its limit, as with speculative decoding.
    pub refuses_masks: bool,
    /// It echoes the ids of a prompt on request.
    pub echoes_prompt: bool,
    /// It returns routed experts on request.
    pub returns_experts: bool,
    /// Its default sampling parameters (`preferred_sampling_params`).
    pub preferred: Value,
    /// No information route lists these defaults.
    pub hides_preferred: bool,
    pub server_info: Value,
    /// It has a tokenizer, which the script implements.
    pub tokenizes: bool,
    /// It behaves like sglang-router 0.3.2 in front of engines.
    pub router: Option<Router>,
    /// Whether the fake answers the probe; otherwise the script does.
    pub answers_probe: bool,
}

/// The behaviour of a fake router.
#[derive(Debug, Clone, Default)]
pub struct Router {
    /// `/workers` lists these; without a list it returns 404.
    pub workers: Option<Arc<Mutex<Vec<SocketAddr>>>>,
    /// `/get_model_info` is forwarded to this worker, which is the first. Without a worker the router answers.
    pub first: Option<SocketAddr>,
    /// Every request is answered with 503, as by an ingress without a running router.
    pub fails: Arc<AtomicBool>,
}

impl Router {
    /// A router that lists these workers.
    pub fn of(workers: &[SocketAddr]) -> Self {
        Self {
            workers: Some(Arc::new(Mutex::new(workers.to_vec()))),
            first: workers.first().copied(),
            fails: Arc::default(),
        }
    }

    fn answer(&self, path: &str) -> Option<FakeReply> {
        if self.fails.load(Ordering::Relaxed) {
            return Some(json_message(503, b"{}"));
        }
        match path {
            "/workers" => self.workers.as_ref().map(|workers| {
                let worker =
                    |addr: &SocketAddr| json!({"url": format!("http://{addr}"), "is_healthy": true, "load": 0});
                let workers: Vec<Value> = workers.lock().iter().map(worker).collect();
                json_message(200, json!({"total": workers.len(), "workers": workers}).to_string().as_bytes())
            }),
            "/get_model_info" => self.first.map(FakeReply::Forward),
            "/get_server_info" => {
                let reply = br#"{"router_manager":true,"routers_count":1,"workers_count":2}"#;
                Some(FakeReply::KeepAlive(vec![message(200, &[("content-type", "text/plain; charset=utf-8")], reply)]))
            }
            _ => None,
        }
        .or_else(|| {
            let lacking = ["/workers", "/model_info", "/server_info", "/tokenize", "/abort_request"].contains(&path);
            lacking.then(|| FakeReply::KeepAlive(vec![message(404, &[], b"")]))
        })
    }
}

impl Default for EngineProfile {
    fn default() -> Self {
        Self {
            vocab: Some(151_936),
            model: "tiny",
            flat: true,
            streaming: "cumulative",
            context: 2048,
            embeds: false,
            jax: false,
            original: false,
            plugin: false,
            masks: false,
            refuses_masks: false,
            echoes_prompt: false,
            returns_experts: false,
            preferred: Value::Null,
            hides_preferred: false,
            server_info: json!({}),
            tokenizes: false,
            router: None,
            answers_probe: true,
        }
    }
}

type Script = dyn Fn(&UpstreamRequest) -> FakeReply + Send + Sync;

/// A fake upstream: it answers the probe from its [`EngineProfile`], and other requests from its script.
pub struct Upstream {
    pub addr: SocketAddr,
    asked: Arc<Mutex<Vec<UpstreamRequest>>>,
    task: JoinHandle<()>,
}

/// A complete HTTP message.
pub fn message(status: u16, headers: &[(&str, &str)], body: &[u8]) -> Vec<u8> {
    let mut head = format!("HTTP/1.1 {status} X\r\n");
    for (key, value) in headers {
        head += &format!("{key}: {value}\r\n");
    }
    if !headers.iter().any(|(key, _)| *key == "content-length" || *key == "transfer-encoding") {
        head += &format!("content-length: {}\r\n", body.len());
    }
    [head.as_bytes(), b"\r\n", body].concat()
}

/// A JSON answer.
pub fn json_message(status: u16, body: &[u8]) -> FakeReply {
    FakeReply::KeepAlive(vec![message(status, &[("content-type", "application/json")], body)])
}

/// A complete event stream in these pieces.
pub fn stream(pieces: &[&[u8]]) -> FakeReply {
    let mut reply = vec![message(
        200,
        &[("content-type", "text/event-stream; charset=utf-8"), ("transfer-encoding", "chunked")],
        b"",
    )];
    for piece in pieces.iter().filter(|piece| !piece.is_empty()) {
        reply.push([format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat());
    }
    reply.push(b"0\r\n\r\n".to_vec());
    FakeReply::KeepAlive(reply)
}

/// A stream that is truncated after these pieces.
pub fn torn_stream(pieces: &[&[u8]]) -> FakeReply {
    match stream(pieces) {
        FakeReply::KeepAlive(mut reply) => {
            reply.pop();
            FakeReply::Close(reply)
        }
        other => other,
    }
}

impl Upstream {
    pub async fn start(
        profile: EngineProfile,
        script: impl Fn(&UpstreamRequest) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        Self::on(TcpListener::bind("127.0.0.1:0").await.unwrap(), profile, script)
    }

    /// Starts one on an open listener.
    pub fn on(
        listener: TcpListener,
        profile: EngineProfile,
        script: impl Fn(&UpstreamRequest) -> FakeReply + Send + Sync + 'static,
    ) -> Self {
        let addr = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<UpstreamRequest>>> = Arc::default();
        let script: Arc<Script> = Arc::new(script);
        let log = Arc::clone(&asked);
        let task = tokio::spawn(async move {
            // dropping the set closes the connections
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let (log, script, profile) = (Arc::clone(&log), Arc::clone(&script), profile.clone());
                connections.spawn(async move { serve(stream, &log, &profile, script.as_ref()).await });
            }
        });
        Self { addr, asked, task }
    }

    /// Closes its port and its connections.
    pub async fn stop(self) {
        self.task.abort();
        // the task was cancelled
        let _ = self.task.await;
    }

    /// The requests received so far, without those of the probe.
    pub fn asked(&self) -> Vec<UpstreamRequest> {
        self.asked.lock().clone()
    }

    /// The bodies of the generations received so far.
    pub fn generations(&self) -> Vec<Value> {
        self.asked().iter().filter(|asked| asked.path.starts_with("/generate")).map(UpstreamRequest::json).collect()
    }
}

/// Serves one connection until either side closes it.
async fn serve(mut stream: TcpStream, log: &Mutex<Vec<UpstreamRequest>>, profile: &EngineProfile, script: &Script) {
    let mut read = Vec::new();
    loop {
        let Some(asked) = next(&mut stream, &mut read).await else { return };
        let fake_reply = profile.answer(&asked).unwrap_or_else(|| {
            log.lock().push(asked.clone());
            script(&asked)
        });
        let (reply, close) = match fake_reply {
            FakeReply::KeepAlive(reply) => (reply, false),
            FakeReply::Close(reply) => (reply, true),
            FakeReply::Silence => (Vec::new(), false),
            FakeReply::Head(head) => (vec![head.to_vec()], false),
            FakeReply::Forward(server) => return forward(&asked, server, &mut stream).await,
        };
        let silent = reply.is_empty();
        for piece in reply {
            if stream.write_all(&piece).await.is_err() {
                return;
            }
            tokio::task::yield_now().await;
        }
        if close || asked.header("connection") == Some("close") && !silent {
            return;
        }
        if silent {
            let mut byte = [0];
            // the connection ends when the peer closes it
            let _ = stream.read(&mut byte).await;
            return;
        }
    }
}

/// Forwards a request to `server` and its reply to `client`.
async fn forward(asked: &UpstreamRequest, server: SocketAddr, client: &mut TcpStream) {
    let mut head = format!("{} {} HTTP/1.1\r\n", asked.method, asked.path);
    let hop = ["connection", "content-length", "transfer-encoding"];
    for (name, value) in asked.headers.iter().filter(|(name, _)| !hop.contains(&name.as_str())) {
        head += &format!("{name}: {value}\r\n");
    }
    head += &format!("content-length: {}\r\nconnection: close\r\n\r\n", asked.body.len());
    let mut upstream = TcpStream::connect(server).await.unwrap();
    upstream.write_all(&[head.as_bytes(), &asked.body].concat()).await.unwrap();
    // fails if the client has disconnected
    let _ = tokio::io::copy(&mut upstream, client).await;
}

async fn next(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<UpstreamRequest> {
    let end = loop {
        if let Some(end) = memchr::memmem::find(read, b"\r\n\r\n") {
            break end;
        }
        more(stream, read).await?;
    };
    let head = String::from_utf8(read.drain(..end + 4).collect()).unwrap();
    let mut lines = head.trim_end().split("\r\n");
    let mut first = lines.next()?.split(' ');
    let mut asked = UpstreamRequest {
        method: first.next()?.to_owned(),
        path: first.next()?.to_owned(),
        ..UpstreamRequest::default()
    };
    asked.headers = lines
        .filter_map(|line| line.split_once(": "))
        .map(|(key, value)| (key.to_lowercase(), value.to_owned()))
        .collect();
    if let Some(length) = asked.header("content-length").and_then(|length| length.parse::<usize>().ok()) {
        while read.len() < length {
            more(stream, read).await?;
        }
        asked.body = read.drain(..length).collect();
    } else if asked.header("transfer-encoding") == Some("chunked") {
        loop {
            let end = loop {
                if let Some(end) = memchr::memmem::find(read, b"\r\n") {
                    break end;
                }
                more(stream, read).await?;
            };
            let line = String::from_utf8(read.drain(..end + 2).collect()).unwrap();
            let size = usize::from_str_radix(line.trim(), 16).unwrap();
            while read.len() < size + 2 {
                more(stream, read).await?;
            }
            asked.body.extend(read.drain(..size + 2).take(size));
            if size == 0 {
                break;
            }
        }
    }
    Some(asked)
}

async fn more(stream: &mut TcpStream, read: &mut Vec<u8>) -> Option<()> {
    let mut buffer = vec![0; 64 * 1024];
    match stream.read(&mut buffer).await {
        Ok(0) | Err(_) => None,
        Ok(length) => {
            read.extend_from_slice(&buffer[..length]);
            Some(())
        }
    }
}

impl EngineProfile {
    /// The reply to a request of the probe.
    pub fn answer(&self, asked: &UpstreamRequest) -> Option<FakeReply> {
        if asked.header("x-recording").is_some() || !self.answers_probe {
            return None; // sent by a test, not by the probe
        }
        let body = asked.json();
        let sampling = &body["sampling_params"];
        if let Some(answer) = self.router.as_ref().and_then(|router| router.answer(&asked.path)) {
            return Some(answer);
        }
        let mut info = json!({"model_path": "/nowhere", "tokenizer_path": format!("/nowhere/{}", self.model), "is_generation": !self.embeds});
        if !self.hides_preferred {
            info["preferred_sampling_params"] = self.preferred.clone();
        }
        match asked.path.as_str() {
            "/model_info" if self.jax => return Some(json_message(404, br#"{"detail":"Not Found"}"#)),
            "/model_info" => {
                info["weight_version"] = json!("default");
                info["served_model_name"] = json!(self.model);
                return Some(json_message(200, info.to_string().as_bytes()));
            }
            "/get_model_info" => return Some(json_message(200, info.to_string().as_bytes())),
            "/v1/models" => {
                let models = json!({"object": "list", "data": [{"id": self.model, "max_model_len": self.context}]});
                return Some(json_message(200, models.to_string().as_bytes()));
            }
            "/server_info" if self.jax => return Some(json_message(404, br#"{"detail":"Not Found"}"#)),
            // a request with a JSON content type comes from an agent: the test answers it
            "/server_info" | "/get_server_info" if asked.header("accept") == Some("application/json") => return None,
            "/server_info" | "/get_server_info" => {
                let mut info = self.server_info.clone();
                info["incremental_streaming_output"] = json!(self.streaming == "incremental");
                info["stream_output"] = json!(self.streaming == "ids");
                return Some(json_message(200, info.to_string().as_bytes()));
            }
            "/workers" if asked.is_own() => return Some(json_message(404, br#"{"detail":"Not Found"}"#)),
            // requested for the ids of a recorded prompt
            "/tokenize" if asked.is_own() && !self.tokenizes => {
                return Some(json_message(404, br#"{"detail":"Not Found"}"#));
            }
            "/generate" => {}
            _ => return None,
        }
        if !sampling["logit_bias"]["2000000000"].is_null() {
            let refusal = match self.vocab {
                Some(vocab) => format!("logit_bias must has keys in [0, {}], got 2000000000.", vocab - 1),
                None => "logit_bias: no".to_owned(),
            };
            return Some(json_message(400, json!({"error": {"message": refusal}}).to_string().as_bytes()));
        }
        let probes_mask = body["return_sampling_mask"] == true && body["input_ids"] == json!([10, 11, 12]);
        if self.refuses_masks && probes_mask && sampling["top_k"] == 2 {
            let refusal = "return_sampling_mask is not supported with speculative decoding.";
            return Some(json_message(400, json!({"error": {"message": refusal}}).to_string().as_bytes()));
        }
        if self.masks && probes_mask && sampling["top_k"] == 2 {
            let meta = json!({"id": "probe", "completion_tokens": 1, "output_token_sampling_mask": [[1, 2]]});
            return Some(json_message(
                200,
                json!({"text": "", "output_ids": [1], "meta_info": meta}).to_string().as_bytes(),
            ));
        }
        let open = sampling["top_k"] == -1 || self.hides_preferred && sampling["top_k"].is_null();
        let probing = body["input_ids"] == json!([10, 11, 12]) && sampling["max_new_tokens"] == 1 && open;
        if !probing {
            return None;
        }
        if self.masks && body["return_sampling_mask"] == true {
            let refusal = "return_sampling_mask requires top_k=1 for greedy sampling or finite 1 < top_k <= 4096; got";
            return Some(json_message(400, json!({"error": {"message": refusal}}).to_string().as_bytes()));
        }
        let default = self.preferred["temperature"].as_f64().unwrap_or(1.0);
        let temperature = sampling["temperature"].as_f64().unwrap_or(default);
        let gap = if self.original { -1.5 } else { -1.5 / temperature };
        let mut meta = json!({"id": "probe", "output_token_logprobs": [[-0.1, 1, null]]});
        if self.flat && body["return_flat_raw_top_logprobs_b64"] == true {
            let raw: Vec<u8> = [-0.1_f32, -0.1 + gap as f32].iter().flat_map(|value| value.to_le_bytes()).collect();
            meta["output_top_logprobs_val_flat_b64"] = json!(base64_simd::STANDARD.encode_to_string(raw));
        } else {
            meta["output_top_logprobs"] = json!([[[-0.1, 1, null], [-0.1 + gap, 2, null]]]);
        }
        if self.returns_experts && body["return_routed_experts"] == true {
            meta["routed_experts"] = json!("AAAAAA==");
        }
        if self.plugin && sampling["custom_params"]["tokentap_entropy"] == "full" {
            // consistent with the two logprobs above at either temperature
            meta["output_token_entropy"] = json!([0.4135]);
        }
        let mut reply = json!({"text": "", "output_ids": [1], "meta_info": meta});
        if self.echoes_prompt && body["return_prompt_token_ids"] == true {
            reply["prompt_token_ids"] = body["input_ids"].clone();
        }
        Some(json_message(200, reply.to_string().as_bytes()))
    }
}
