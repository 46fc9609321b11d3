// SPDX-License-Identifier: Apache-2.0
//! Slices of logits, and their results.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use futures_util::{StreamExt, stream};
use safetensors::tensor::Dtype as Stored;
use serde_json::{Value, json};
use tokentap::serve::connection::Phase;
use tokentap::serve::grpc::pb::{Dtype, Measurement, Slice};
use tokio::sync::Barrier;
use tonic::{Code, Streaming};

use super::client::entropy;
use crate::slices::Slice as Truth;
use crate::support::client::get;
use crate::support::manual_upstream::{ManualUpstream, soon};
use crate::support::proxy::Proxy;

pub(super) fn slice_of(id: u64, truth: &Truth) -> Slice {
    let dtype = if truth.dtype == Stored::F32 { Dtype::F32 } else { Dtype::Bf16 };
    Slice {
        id,
        dtype: dtype.into(),
        vocab: u32::try_from(truth.vocab).unwrap(),
        logits: truth.bytes.clone().into(),
        temperature: truth.temperature.clone(),
        token_ids: truth.token_ids.clone(),
    }
}

/// A measurement in the format of `POST /v1/entropy`.
pub(super) fn as_http_json(measured: &Measurement) -> Value {
    assert_eq!(measured.error, None);
    json!({
        "rows": measured.entropy.len(), "unit": "nats", "entropy": measured.entropy, "log_z": measured.log_z,
        "p_max": measured.p_max, "varentropy": measured.varentropy, "surprisal": measured.surprisal,
    })
}

pub(super) async fn next(answers: &mut Streaming<Measurement>) -> Measurement {
    soon("an answer", answers.message()).await.unwrap().expect("the stream continues")
}

/// The number of slices that were sent when their sender blocked: it sent none during a hundred other requests.
pub(super) async fn slices_until_blocked(proxy: &Proxy, sent: &AtomicUsize) -> usize {
    let (mut before, mut idle) = (0, 0);
    while idle < 100 {
        assert_eq!(get(proxy.control, "/livez").await.status, 200);
        let now = sent.load(Ordering::Relaxed);
        idle = if now == before { idle + 1 } else { 0 };
        before = now;
    }
    before
}

#[tokio::test(flavor = "multi_thread")]
async fn slices_get_the_reference_numbers_on_both_ports() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let truths: Vec<Truth> =
        [(Stored::F32, 7, 1000), (Stored::BF16, 3, 50_257), (Stored::BF16, 1, 1), (Stored::F32, 90, 151)]
            .into_iter()
            .map(|(dtype, rows, vocab)| Truth::new(dtype, rows, vocab))
            .collect();
    for addr in [proxy.data, proxy.control] {
        let slices: Vec<Slice> = truths.iter().zip(0..).map(|(truth, id)| slice_of(id, truth)).collect();
        let mut answers = entropy(addr).await.compute(stream::iter(slices)).await.unwrap().into_inner();
        for _ in &truths {
            let measured = next(&mut answers).await;
            truths[usize::try_from(measured.id).unwrap()].check(&as_http_json(&measured));
        }
        assert_eq!(soon("the end", answers.message()).await.unwrap(), None);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn invalid_slice_does_not_affect_its_neighbours() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let good = Truth::new(Stored::F32, 2, 10);
    let wrong = |change: fn(&mut Slice)| {
        let mut slice = slice_of(0, &good);
        change(&mut slice);
        slice
    };
    let cases = [
        (wrong(|slice| slice.dtype = 0), "dtype 0 is not one of"),
        (wrong(|slice| slice.dtype = 9), "dtype 9 is not one of"),
        (wrong(|slice| slice.vocab = 0), "no whole rows of 0 values in F32"),
        (wrong(|slice| slice.vocab = 7), "logits of 80 bytes are no whole rows of 7 values in F32"),
        (wrong(|slice| slice.vocab = u32::MAX), "no whole rows"),
        (wrong(|slice| slice.temperature = vec![1.0, 2.0, 3.0]), "temperature has 3 values for 2 rows"),
        (wrong(|slice| slice.temperature = vec![-1.0]), "temperature[0] is -1"),
        (wrong(|slice| slice.token_ids = vec![0, 10]), "token_ids[1] is 10: the rows have 10 logits"),
    ];
    let slices = cases.iter().zip(1..).flat_map(|((slice, _), id)| [Slice { id, ..slice.clone() }, slice_of(0, &good)]);
    let slices: Vec<Slice> = slices.collect();
    let mut answers = entropy(proxy.data).await.compute(stream::iter(slices)).await.unwrap().into_inner();
    let mut refused = 0;
    for _ in 0..2 * cases.len() {
        let measured = next(&mut answers).await;
        match usize::try_from(measured.id).unwrap().checked_sub(1) {
            None => good.check(&as_http_json(&measured)),
            Some(case) => {
                let error = measured.error.unwrap();
                assert_eq!(error.code, Code::InvalidArgument as u32);
                assert!(error.message.contains(cases[case].1), "{:?} in {:?}", cases[case].1, error.message);
                refused += 1;
            }
        }
    }
    assert_eq!(refused, cases.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn message_size_is_limited_to_one_slot_of_logits() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let compute = async |slice: Slice| {
        let mut client = entropy(proxy.data).await;
        let mut answers = client.compute(stream::iter([slice])).await.unwrap().into_inner();
        soon("an answer", answers.message()).await.map(|answer| answer.expect("one for each"))
    };
    // the widest row, and the most rows with the longest ids
    for (rows, vocab, id) in [(1, 1 << 20, (1 << 20) - 1), (1 << 16, 16, -1)] {
        let slice = Slice {
            id: u64::MAX,
            dtype: Dtype::F32.into(),
            vocab,
            logits: vec![0; 4 << 20].into(),
            temperature: vec![0.5; rows],
            token_ids: vec![id; rows],
        };
        let measured = compute(slice).await.unwrap();
        assert_eq!((measured.error, measured.entropy.len(), measured.surprisal.len()), (None, rows, rows));
        let uniform = f64::from(vocab).ln();
        assert!(measured.entropy.iter().all(|entropy| (entropy - uniform).abs() < 5e-6), "{vocab}");
    }
    let large = Slice { dtype: Dtype::F32.into(), vocab: 16, logits: vec![0; 5 << 20].into(), ..Slice::default() };
    let status = compute(large).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange);
    assert_eq!(status.metadata().get("tokentap-http-status").unwrap(), "413");
    // token_ids that expand while they are decoded are rejected by their count
    let logits = vec![0; 64].into();
    let many = Slice { dtype: Dtype::F32.into(), vocab: 16, logits, token_ids: vec![1; 5_000_000], ..Slice::default() };
    let error = compute(many).await.unwrap().error.expect("they are no ids of one row");
    assert_eq!(error.message, "token_ids has 5000000 values for 1 rows: one a row");
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_concurrent_small_slices_are_all_answered() {
    const CALLERS: usize = 20;
    const EACH: usize = 500;
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "16MiB"]).await;
    let truth = Arc::new(Truth::new(Stored::F32, 2, 64));
    let (sent, all_sent) = (Arc::new(AtomicUsize::new(0)), Arc::new(Barrier::new(CALLERS)));
    let callers = (0..CALLERS).map(|caller| {
        let (truth, sent, all_sent) = (Arc::clone(&truth), Arc::clone(&sent), Arc::clone(&all_sent));
        let addr = if caller % 2 == 0 { proxy.data } else { proxy.control };
        tokio::spawn(async move {
            let slices = stream::iter(0..EACH as u64).map({
                let (truth, sent) = (Arc::clone(&truth), Arc::clone(&sent));
                move |id| {
                    sent.fetch_add(1, Ordering::Relaxed);
                    slice_of(id, &truth)
                }
            });
            let mut answers = entropy(addr).await.compute(slices).await.unwrap().into_inner();
            // All ten thousand are sent before the first answer is read. Of each caller's 300 kB tokentap has read its read-ahead
            // (16 slices, and those whose answers fit the caller's windows); the remainder waits in the window of its stream,
            // which holds a megabyte.
            soon("all are sent", async {
                while sent.load(Ordering::Relaxed) < CALLERS * EACH {
                    tokio::task::yield_now().await;
                }
            })
            .await;
            all_sent.wait().await;
            let mut seen = vec![false; EACH];
            while let Some(measured) = soon("an answer", answers.message()).await.unwrap() {
                truth.check(&as_http_json(&measured));
                let before = std::mem::replace(&mut seen[usize::try_from(measured.id).unwrap()], true);
                assert!(!before, "{} was answered twice", measured.id);
            }
            assert!(seen.iter().all(|seen| *seen), "each is answered");
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn caller_that_does_not_read_is_blocked_and_can_resume() {
    const ALL: usize = 400;
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "4MiB"]).await;
    // a megabyte a slice, so that socket buffers matter little
    let truth = Truth::new(Stored::F32, 4000, 64);
    let sent = Arc::new(AtomicUsize::new(0));
    let slices = stream::iter(0..ALL as u64).map({
        let (sent, slice) = (Arc::clone(&sent), slice_of(0, &truth));
        move |id| {
            sent.fetch_add(1, Ordering::Relaxed);
            Slice { id, ..slice.clone() }
        }
    });
    let mut answers = entropy(proxy.data).await.compute(slices).await.unwrap().into_inner();
    let before = slices_until_blocked(&proxy, &sent).await;
    assert!(0 < before && before < ALL / 2, "{before} slices were taken from a caller that reads no answer");
    // a blocked caller does not block others
    let small = Truth::new(Stored::F32, 3, 100);
    let mut others =
        entropy(proxy.control).await.compute(stream::iter([slice_of(7, &small)])).await.unwrap().into_inner();
    small.check(&as_http_json(&next(&mut others).await));
    let mut read = 0;
    while let Some(measured) = soon("an answer", answers.message()).await.unwrap() {
        assert_eq!(measured.entropy.len(), 4000);
        read += 1;
    }
    assert_eq!(read, ALL, "all answers arrived");
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_that_leave_midway_release_their_memory() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &["limit:slice-memory", "4MiB"]).await;
    let truth = Truth::new(Stored::BF16, 40, 50_257);
    for _ in 0..5 {
        let (slice, addr) = (slice_of(0, &truth), proxy.data);
        let caller = tokio::task::spawn_blocking(move || {
            // simulates a process: its end closes its connections, with slices in progress
            let process = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            process.block_on(async {
                let slices = stream::iter(0..100).map(move |id| Slice { id, ..slice.clone() });
                let mut answers = entropy(addr).await.compute(slices).await.unwrap().into_inner();
                assert!(next(&mut answers).await.error.is_none());
            });
        });
        caller.await.unwrap();
    }
    let mut answers =
        entropy(proxy.control).await.compute(stream::iter([slice_of(1, &truth)])).await.unwrap().into_inner();
    truth.check(&as_http_json(&next(&mut answers).await));
    assert_eq!(soon("the end", answers.message()).await.unwrap(), None);
    // with the maximum number of calls open, another one is refused
    let mut client = entropy(proxy.data).await;
    let mut open = Vec::new();
    let refused = loop {
        match client.compute(stream::pending::<Slice>()).await {
            Ok(call) => open.push(call),
            Err(status) => break status,
        }
    };
    assert_eq!(refused.code(), Code::Unavailable);
    assert!(open.len() > 50 && open.len() <= 64, "{} calls", open.len());
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_ends_a_call_after_its_pending_answers() {
    let proxy = Proxy::start(ManualUpstream::start().await.addr, &[]).await;
    let truth = Truth::new(Stored::F32, 2, 10);
    let slices = stream::iter([slice_of(1, &truth)]).chain(stream::pending());
    let mut answers = entropy(proxy.control).await.compute(slices).await.unwrap().into_inner();
    truth.check(&as_http_json(&next(&mut answers).await));
    let slices = stream::iter([slice_of(2, &truth)]).chain(stream::pending());
    let mut agents = entropy(proxy.data).await.compute(slices).await.unwrap().into_inner();
    truth.check(&as_http_json(&next(&mut agents).await));
    proxy.phase.send_replace(Phase::Draining);
    for answers in [&mut agents, &mut answers] {
        let status = soon("the end", answers.message()).await.unwrap_err();
        assert_eq!((status.code(), status.message()), (Code::Unavailable, "tokentap is stopping"));
    }
    assert_eq!(soon("tokentap ends", proxy.task).await.unwrap(), 0, "nothing was left to cut");
}
