// SPDX-License-Identifier: Apache-2.0
//! Clients that disconnect, in every way that a connection can end.

use super::doors::RequestKind;
use super::stage::{assert_next_request, metric, turns, wait_until_idle};
use crate::support::client::{Connection, written};
use crate::support::manual_upstream::{Call, ManualUpstream, soon};
use crate::support::proxy::Proxy;

pub const HALF_CLOSE: &str = "the client closes its side after its request";
pub const RESET: &str = "the client resets";
pub const UPLOAD: &str = "the client aborts its upload";
pub const SILENCE: &str = "the engine sends its head and then nothing, and the client leaves";

/// How much of its reply the engine has sent when the client leaves.
#[derive(Debug, Clone, Copy)]
enum Progress {
    Nothing,
    Head,
    Piece,
}

/// Sends a request and the first part of its reply.
async fn begin_exchange(
    upstream: &mut ManualUpstream,
    mut client: Connection,
    request: &[u8],
    kind: RequestKind,
    progress: Progress,
) -> (Connection, Call) {
    client.send(request).await;
    let mut call = upstream.next().await;
    match progress {
        Progress::Nothing => {}
        Progress::Head => call.send(&kind.head(None)).await,
        Progress::Piece => call.send(&kind.prefix(1)).await,
    }
    if kind != RequestKind::Whole {
        let last = match progress {
            Progress::Nothing => return (client, call),
            Progress::Head => b"\r\n\r\n".to_vec(),
            Progress::Piece if kind.is_stream() => b"\n\n\r\n".to_vec(),
            Progress::Piece => kind.pieces()[0].clone(),
        };
        assert!(soon("the sent part is delivered", client.read_until(|read| read.ends_with(&last))).await);
    }
    (client, call)
}

/// Asserts that the engine gets the aborts, all permits are released, and the next client is served.
async fn assert_abandoned(
    upstream: &mut ManualUpstream,
    proxy: &Proxy,
    kind: RequestKind,
    session: &str,
    progress: Progress,
    about: &str,
) {
    let named = kind.is_stream() && matches!(progress, Progress::Piece);
    // one abort by the id that tokentap assigned, one by the id that the engine reported
    let aborts = if kind == RequestKind::Forward { 0 } else { 1 + usize::from(named) };
    for _ in 0..aborts {
        let abort = upstream.next().await;
        abort.aborted();
        abort.ok().await;
    }
    wait_until_idle(proxy.control).await;
    let mut aborting = proxy.parts.generator.context.aborting.subscribe();
    soon("aborts are done", aborting.wait_for(|count| *count == 0)).await.unwrap();
    let recorded: Vec<_> = turns(proxy.control, session).await;
    let expected = if named { vec![(1, Some("disconnected".to_owned()))] } else { Vec::new() };
    assert_eq!(recorded, expected, "{about}: recorded turns");
    assert_eq!(
        proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await,
        0.0,
        "{about}: not a failure of the engine"
    );
    assert_next_request(upstream, &mut Connection::open(proxy.data).await, proxy.data, about).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn disconnect_of_any_kind_cuts_the_reply_and_aborts_the_generation() {
    for (streaming, kinds) in RequestKind::ALL {
        let mut upstream = ManualUpstream::streaming(streaming).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let mut generated = 0.0;
        for kind in kinds {
            for progress in [Progress::Nothing, Progress::Head, Progress::Piece] {
                for way in [HALF_CLOSE, RESET, SILENCE] {
                    leave(&mut upstream, &proxy, *kind, progress, way).await;
                    generated += f64::from(u8::from(*kind != RequestKind::Forward));
                }
            }
        }
        let disconnects = metric(proxy.control, "tokentap_client_disconnects_total", "").await;
        assert_eq!(disconnects, generated, "all generations are counted");
        assert!(!upstream.has_more());
    }
}

/// Opens a connection that can be closed in this way.
async fn open(proxy: &Proxy, way: &str) -> Connection {
    if way == RESET { Connection::abrupt(proxy.data).await } else { Connection::open(proxy.data).await }
}

async fn leave(upstream: &mut ManualUpstream, proxy: &Proxy, kind: RequestKind, progress: Progress, way: &str) {
    let about = format!("{kind:?}, {progress:?}: {way}");
    let session = format!("{kind:?}-{progress:?}-{}", way.len());
    let client = open(proxy, way).await;
    let (mut client, call) =
        begin_exchange(upstream, client, &kind.request(proxy.data, &session), kind, progress).await;
    match way {
        // tokentap cannot distinguish a half-closed client from one that is gone
        HALF_CLOSE => {
            client.finish().await;
            let answer = soon("an end", client.answer()).await;
            assert!(!answer.complete, "{about}: the reply is cut and does not look complete: {}", answer.text());
        }
        _ => drop(client),
    }
    call.closed().await;
    assert_abandoned(upstream, proxy, kind, &session, progress, &about).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn aborted_upload_generates_nothing() {
    let mut upstream = ManualUpstream::start().await;
    let proxy = Proxy::probed(upstream.addr, &[]).await;
    for path in ["/a/path/of/its/own", "/generate"] {
        for way in [HALF_CLOSE, RESET] {
            let about = format!("{UPLOAD}: {path}, {way}");
            let mut client = open(&proxy, way).await;
            let request = written(proxy.data, "POST", path, &[("x-session-id", "s")], b"{\"input_ids\":[1,2,3]}");
            client.send(&request[..request.len() - 5]).await;
            let call = if path == "/generate" {
                // tokentap reads the whole body before it contacts the engine
                let served =
                    async { while metric(proxy.control, "tokentap_http_requests_active", path).await != 1.0 {} };
                soon("it is being served", served).await;
                None
            } else {
                Some(upstream.next().await)
            };
            if way == RESET {
                drop(client);
            } else {
                client.finish().await;
                let answer = soon("an end", client.answer()).await;
                assert_ne!(answer.status, 200, "{about}: {}", answer.text());
            }
            if let Some(call) = call {
                call.closed().await;
            }
            wait_until_idle(proxy.control).await;
            assert!(!upstream.has_more(), "{about}: the engine generates nothing, so nothing is aborted");
            assert_eq!(turns(proxy.control, "s").await, vec![], "{about}");
            assert_next_request(&mut upstream, &mut Connection::open(proxy.data).await, proxy.data, &about).await;
        }
    }
    assert_eq!(metric(proxy.control, "tokentap_upstream_errors_total", "").await, 0.0, "no failure of the engine");
}
