//! Clients that leave in every way that a connection has.

use super::doors::Door;
use super::stage::{goes_on, idle, metric, turns};
use crate::support::client::{Connection, written};
use crate::support::hand::{Call, Hand, soon};
use crate::support::proxy::Proxy;

pub const HALF_CLOSE: &str = "the client closes its side behind its request";
pub const RESET: &str = "the client resets";
pub const UPLOAD: &str = "the client breaks off its upload";
pub const SILENCE: &str = "the engine sends its head and then nothing, and the client leaves";

/// How far the engine has come when the client leaves.
#[derive(Debug, Clone, Copy)]
enum Come {
    Nothing,
    Head,
    Piece,
}

/// Begins an exchange.
async fn begun(hand: &mut Hand, mut client: Connection, request: &[u8], door: Door, come: Come) -> (Connection, Call) {
    client.send(request).await;
    let mut call = hand.next().await;
    match come {
        Come::Nothing => {}
        Come::Head => call.say(&door.head(None)).await,
        Come::Piece => call.say(&door.begun(1)).await,
    }
    if door != Door::Whole {
        let last = match come {
            Come::Nothing => return (client, call),
            Come::Head => b"\r\n\r\n".to_vec(),
            Come::Piece if door.is_stream() => b"\n\n\r\n".to_vec(),
            Come::Piece => door.pieces()[0].clone(),
        };
        assert!(soon("what came is delivered", client.read_until(|read| read.ends_with(&last))).await);
    }
    (client, call)
}

/// The engine has been told, nothing is held, and the next client is served.
async fn ended(hand: &mut Hand, proxy: &Proxy, door: Door, session: &str, come: Come, about: &str) {
    let named = door.is_stream() && matches!(come, Come::Piece);
    // by the id that tokentap gave it, and by the one that the engine names
    let aborts = if door == Door::Forward { 0 } else { 1 + usize::from(named) };
    for _ in 0..aborts {
        let abort = hand.next().await;
        abort.aborted();
        abort.ok().await;
    }
    idle(proxy.control).await;
    let mut aborting = proxy.parts.generator.aborting.subscribe();
    soon("aborts are through", aborting.wait_for(|count| *count == 0)).await.unwrap();
    let kept: Vec<_> = turns(proxy.control, session).await;
    let expected = if named { vec![(1, Some("disconnected".to_owned()))] } else { Vec::new() };
    assert_eq!(kept, expected, "{about}: what is kept");
    assert_eq!(proxy.metric("tokentap_upstream_errors_total{kind=\"reset\"}").await, 0.0, "{about}: not the engine's");
    goes_on(hand, &mut Connection::open(proxy.data).await, proxy.data, about).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_leaves_has_left_in_whatever_way_and_gets_no_end_of_a_reply() {
    for (streaming, doors) in Door::ALL {
        let mut hand = Hand::streaming(streaming).await;
        let proxy = Proxy::probed(hand.addr, &[]).await;
        let mut generated = 0.0;
        for door in doors {
            for come in [Come::Nothing, Come::Head, Come::Piece] {
                for way in [HALF_CLOSE, RESET, SILENCE] {
                    leave(&mut hand, &proxy, *door, come, way).await;
                    generated += f64::from(u8::from(*door != Door::Forward));
                }
            }
        }
        let left = metric(proxy.control, "tokentap_client_disconnects_total", "").await;
        assert_eq!(left, generated, "all that generated are counted");
        assert!(!hand.has_more());
    }
}

/// A connection that can be left in this way.
async fn opened(proxy: &Proxy, way: &str) -> Connection {
    if way == RESET { Connection::abrupt(proxy.data).await } else { Connection::open(proxy.data).await }
}

async fn leave(hand: &mut Hand, proxy: &Proxy, door: Door, come: Come, way: &str) {
    let about = format!("{door:?}, {come:?}: {way}");
    let session = format!("{door:?}-{come:?}-{}", way.len());
    let client = opened(proxy, way).await;
    let (mut client, call) = begun(hand, client, &door.request(proxy.data, &session), door, come).await;
    match way {
        // a client that is gone looks the same from here
        HALF_CLOSE => {
            client.finish().await;
            let answer = soon("an end", client.answer()).await;
            assert!(!answer.complete, "{about}: it is cut, not ended: {}", answer.text());
        }
        _ => drop(client),
    }
    call.gone().await;
    ended(hand, proxy, door, &session, come, &about).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_upload_that_breaks_off_generates_nothing() {
    let mut hand = Hand::start().await;
    let proxy = Proxy::probed(hand.addr, &[]).await;
    for path in ["/a/path/of/its/own", "/generate"] {
        for way in [HALF_CLOSE, RESET] {
            let about = format!("{UPLOAD}: {path}, {way}");
            let mut client = opened(&proxy, way).await;
            let request = written(proxy.data, "POST", path, &[("x-session-id", "s")], b"{\"input_ids\":[1,2,3]}");
            client.send(&request[..request.len() - 5]).await;
            let call = if path == "/generate" {
                // it is read before anybody is asked
                let served =
                    async { while metric(proxy.control, "tokentap_http_requests_active", path).await != 1.0 {} };
                soon("it is being served", served).await;
                None
            } else {
                Some(hand.next().await)
            };
            if way == RESET {
                drop(client);
            } else {
                client.finish().await;
                let answer = soon("an end", client.answer()).await;
                assert_ne!(answer.status, 200, "{about}: {}", answer.text());
            }
            if let Some(call) = call {
                call.gone().await;
            }
            idle(proxy.control).await;
            assert!(!hand.has_more(), "{about}: the engine generates nothing, so nothing is aborted");
            assert_eq!(turns(proxy.control, "s").await, vec![], "{about}");
            goes_on(&mut hand, &mut Connection::open(proxy.data).await, proxy.data, &about).await;
        }
    }
    assert_eq!(metric(proxy.control, "tokentap_upstream_errors_total", "").await, 0.0, "the engine is not blamed");
}
