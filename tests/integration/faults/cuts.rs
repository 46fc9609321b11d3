// SPDX-License-Identifier: Apache-2.0
//! A stream that is cut at each of its bytes.

use super::doors::{RequestKind, TOKENS};
use super::stage::metric;
use crate::support::client::Connection;
use crate::support::manual_upstream::{ManualUpstream, chunk, soon};
use crate::support::proxy::Proxy;
use tokentap::session::Fault;

#[tokio::test(flavor = "multi_thread")]
async fn stream_cut_at_any_byte_delivers_and_records_its_complete_events() {
    for (streaming, kind) in [("incremental", RequestKind::Incremental), ("cumulative", RequestKind::Cumulative)] {
        let mut upstream = ManualUpstream::streaming(streaming).await;
        let proxy = Proxy::probed(upstream.addr, &[]).await;
        let pieces = kind.pieces();
        let body = pieces.concat();
        let mut client = Connection::open(proxy.data).await;
        client.send(&kind.request(proxy.data, &format!("{kind:?}"))).await;
        upstream.next().await.reply(&kind.healthy()).await;
        let healthy = client.answer().await.text();
        let events: Vec<&str> = healthy.split_inclusive("\n\n").collect();
        for at in 0..=body.len() {
            let ends = pieces.iter().scan(0, |end, piece| {
                *end += piece.len();
                Some(*end)
            });
            let whole = ends.filter(|end| *end <= at).count();
            let session = format!("{kind:?}-{at}");
            let mut client = Connection::open(proxy.data).await;
            client.send(&kind.request(proxy.data, &session)).await;
            let mut call = upstream.next().await;
            let sent = if at == 0 { Vec::new() } else { chunk(&body[..at]) };
            call.send(&[kind.head(None), sent].concat()).await;
            drop(call);
            let answer = soon("the stream is cut", client.answer()).await;
            assert_eq!((answer.status, answer.complete), (200, false), "{kind:?} cut at {at}");
            assert_eq!(answer.text(), events[..whole].concat(), "{kind:?} cut at {at}");
            let tokens = whole.min(TOKENS);
            let session = proxy.parts.sessions.session(&session);
            let snapshot = session.map(|session| session.snapshot(None).unwrap());
            let turns = snapshot.iter().flat_map(|snapshot| snapshot.turns().iter());
            let turns: Vec<_> = turns.map(|turn| (turn.response.len(), turn.about.fault)).collect();
            let fault = (tokens < TOKENS).then_some(Fault::Broken);
            assert_eq!(turns, if tokens > 0 { vec![(tokens, fault)] } else { vec![] }, "{kind:?} cut at {at}");
        }
        assert_eq!(metric(proxy.control, "tokentap_aborts_sent_total", "").await, 0.0);
        let broken = metric(proxy.control, "tokentap_upstream_errors_total", "reset").await;
        assert_eq!(broken, (body.len() + 1) as f64, "{kind:?}: each is the engine's failure");
        assert!(!upstream.has_more(), "{kind:?}: each was sent once");
    }
}
