// SPDX-License-Identifier: Apache-2.0
//! The table of the APIs on the data port.

use std::sync::Arc;

use crate::api::Apis;
use crate::api::anthropic_messages::AnthropicMessages;
use crate::api::openai_chat::OpenAiChat;
use crate::api::openai_completions::OpenAiCompletions;
use crate::api::openai_responses::{OpenAiResponses, StoredResponses};
use crate::chat::ChatService;
use crate::engine::sglang::routes;
use crate::serve::proxy::Proxy;

/// The APIs of the data port by path, except SGLang's native API.
pub(super) fn apis(proxy: &Proxy) -> Apis {
    let (config, upstream) = (Arc::clone(&proxy.config), proxy.upstream.clone());
    let chats = Arc::new(ChatService::new(Arc::clone(&config), Arc::clone(&proxy.metrics), proxy.chats.clone()));
    let messages =
        |counts_tokens| AnthropicMessages { chats: Arc::clone(&chats), upstream: upstream.clone(), counts_tokens };
    let (messages, count_tokens) = (messages(false), messages(true));
    let responses = |counts_tokens| OpenAiResponses {
        chats: Arc::clone(&chats),
        budget: proxy.budget.clone(),
        upstream: upstream.clone(),
        counts_tokens,
    };
    let (responses, input_tokens) = (responses(false), responses(true));
    let stored = |shows_input| StoredResponses {
        responses: responses.clone(),
        sessions: Arc::clone(&proxy.sessions),
        shows_input,
    };
    let (stored_response, input_items) = (stored(false), stored(true));
    let chat = OpenAiChat { chats, upstream: upstream.clone() };
    let completions = OpenAiCompletions { config, upstream };
    Apis::default()
        .with(routes::CHAT, Arc::new(chat))
        .with(routes::COMPLETIONS, Arc::new(completions))
        .with(routes::RESPONSES, Arc::new(responses))
        .with(routes::INPUT_TOKENS, Arc::new(input_tokens))
        .with(routes::RESPONSE, Arc::new(stored_response))
        .with(routes::INPUT_ITEMS, Arc::new(input_items))
        .with(routes::MESSAGES, Arc::new(messages))
        .with(routes::COUNT_TOKENS, Arc::new(count_tokens))
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;
    use std::net::SocketAddr;

    use http::uri::PathAndQuery;
    use serde_json::json;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpStream;
    use tokio::sync::watch;

    use super::*;
    use crate::app::App;
    use crate::chat::model::Chats;
    use crate::demo::{Engine, EngineOptions, Model, Streaming};
    use crate::engine::sglang::response::read_on_this_thread;
    use crate::serve::connection::Phase;
    use crate::serve::grpc::pb;
    use crate::tokenizer::Renderer;
    use crate::{cli, config};

    /// The number of tokens of a reply.
    const TOKENS: usize = 12;

    /// Sends a request over a new connection. Returns the complete reply.
    async fn ask(addr: SocketAddr, path: &str, body: &serde_json::Value) -> String {
        let body = body.to_string();
        let head = format!(
            "POST {path} HTTP/1.1\r\nhost: a\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {}",
            body.len()
        );
        let mut connection = TcpStream::connect(addr).await.unwrap();
        connection.write_all(format!("{head}\r\n\r\n{body}").as_bytes()).await.unwrap();
        let mut reply = String::new();
        connection.read_to_string(&mut reply).await.unwrap();
        assert!(reply.starts_with("HTTP/1.1 200"), "{path}: {reply}");
        reply
    }

    /// Sends a gRPC call over a new connection. Returns the number of its replies.
    async fn ask_grpc(addr: SocketAddr, body: &serde_json::Value) -> usize {
        let channel =
            tonic::transport::Endpoint::from_shared(format!("http://{addr}")).unwrap().connect().await.unwrap();
        let mut client = tonic::client::Grpc::new(channel);
        client.ready().await.unwrap();
        let call = pb::GenerateRequest { json: body.to_string().into(), session: "s".to_owned() };
        let codec = tonic_prost::ProstCodec::<pb::GenerateRequest, pb::GenerateReply>::default();
        let path = PathAndQuery::from_static("/tokentap.v1.Generate/Generate");
        let mut replies = client.server_streaming(tonic::Request::new(call), path, codec).await.unwrap().into_inner();
        let mut count = 0;
        while replies.message().await.unwrap().is_some() {
            count += 1;
        }
        count
    }

    // on one thread, because the counter of parsed objects is per thread
    #[tokio::test]
    async fn each_api_parses_each_object_of_a_reply_once() {
        let (_stop, phase) = watch::channel(Phase::Serving);
        let options = EngineOptions { streaming: Streaming::Incremental, ..EngineOptions::default() };
        let (engine, _) = cli::demo::engine(Engine::new(options), phase.clone()).await.unwrap();
        let upstream = format!("http://{engine}");
        let flags = [
            "tokentap",
            "serve",
            "--upstream",
            &upstream,
            "--listen",
            "127.0.0.1:0",
            "--control-listen",
            "127.0.0.1:0",
        ];
        let cli = config::load(flags.map(OsString::from)).unwrap();
        let app = App::bind(cli.command.config().unwrap().clone(), phase).await.unwrap();
        let app = app.with_renderer(Renderer::new(Model::folder()));
        let (data, proxy) = (app.data_addr().unwrap(), Arc::clone(app.proxy()));
        tokio::spawn(app.run());
        drop(proxy.upstream.clone().wait_for(|found| found.original_logprobs.is_some()).await.unwrap());
        drop(proxy.chats.clone().wait_for(|chats| matches!(&**chats, Chats::Rendered(_))).await.unwrap());

        let sampling = json!({"max_new_tokens": TOKENS, "ignore_eos": true});
        let native = json!({"input_ids": [10, 11, 12], "sampling_params": sampling});
        let text = json!({"model": "m", "prompt": "The lamp", "max_tokens": TOKENS, "ignore_eos": true});
        let chat = json!({"model": "m", "messages": [{"role": "user", "content": "The lamp"}], "max_tokens": TOKENS,
            "ignore_eos": true});
        let mut two_with_logprobs = chat.clone();
        two_with_logprobs["n"] = 2.into();
        two_with_logprobs["logprobs"] = true.into();
        two_with_logprobs["top_logprobs"] = 3.into();
        const GRPC: &str = "gRPC";
        for (path, call, sequences) in [
            ("/generate", &native, 1),
            ("/sessions/s/generate", &native, 1),
            (GRPC, &native, 1),
            ("/sessions/s/v1/completions", &text, 1),
            ("/v1/chat/completions", &chat, 1),
            ("/sessions/s/v1/chat/completions", &chat, 1),
            ("/v1/chat/completions", &two_with_logprobs, 2),
        ] {
            let mut counts = Vec::new();
            for stream in [false, true] {
                let mut call = call.clone();
                call["stream"] = stream.into();
                let before = read_on_this_thread();
                if path == GRPC {
                    assert_eq!(ask_grpc(data, &call).await, if stream { TOKENS } else { 1 });
                } else {
                    ask(data, path, &call).await;
                }
                counts.push(read_on_this_thread() - before);
            }
            assert_eq!(
                counts,
                [sequences, sequences * TOKENS],
                "{path}: of a whole reply, and of a stream with an event for each token"
            );
        }
    }
}
