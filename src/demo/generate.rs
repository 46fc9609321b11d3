//! The `/generate` route: from a body to a reply or a stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::body::ReplyBody;
use super::control::Ticket;
use super::engine::Engine;
use super::item::Item;
use super::refusal::Refusal;
use super::request::GenerateRequest;
use super::routes::{answer, refuse};
use super::sequence::{Sequence, now};

/// Events that may wait for a reader before the engine waits for it.
const EVENTS_AHEAD: usize = 16;

pub(super) async fn generate(engine: Arc<Engine>, body: Bytes) -> Response<ReplyBody> {
    let received = now();
    let request = match GenerateRequest::parse(&body, engine.options().dialect) {
        Ok(request) => request,
        Err(refusal) => return refuse(&refusal),
    };
    let single = request.single;
    let items = Item::expand(&request, &engine);
    let indexed = !single || items.as_ref().is_ok_and(|items| items.len() > 1);
    if request.stream {
        return match items {
            Ok(items) => stream(engine, items, indexed, received),
            Err(refusal) => refuse_in_stream(&engine, &refusal),
        };
    }
    let sequences = match items {
        Ok(items) => whole(&engine, items, received).await,
        Err(refusal) => Err(refusal),
    };
    match sequences {
        Ok(sequences) => {
            let mut out = Vec::new();
            let mut replies = sequences.iter().map(|sequence| sequence.whole(&engine));
            match (indexed, replies.next()) {
                (false, Some(reply)) => engine.wire().object(&mut out, &reply),
                (_, first) => engine.wire().batch(&mut out, first.into_iter().chain(replies)),
            }
            answer(StatusCode::OK, "application/json", out)
        }
        Err(refusal) => refuse(&refusal),
    }
}

/// Runs all items to their ends. Dropping the future ends them early.
async fn whole(engine: &Arc<Engine>, items: Vec<Item>, received: f64) -> Result<Vec<Sequence>, Refusal> {
    let (tickets, _gate) = admit(engine, &items).await?;
    let mut running = JoinSet::new();
    for (index, (item, ticket)) in items.into_iter().zip(tickets).enumerate() {
        let engine = engine.clone();
        running.spawn(async move {
            let mut sequence = Sequence::new(item, &engine, received);
            run(&engine, &mut sequence, ticket, None).await;
            sequence.stamp();
            (index, sequence)
        });
    }
    let mut sequences = running.join_all().await;
    sequences.sort_by_key(|(index, _)| *index);
    Ok(sequences.into_iter().map(|(_, sequence)| sequence).collect())
}

fn stream(engine: Arc<Engine>, items: Vec<Item>, indexed: bool, received: f64) -> Response<ReplyBody> {
    let (events, receiver) = mpsc::channel(EVENTS_AHEAD);
    let mut work = JoinSet::new();
    work.spawn(async move {
        let (tickets, _gate) = match admit(&engine, &items).await {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let error = refusal.event(engine.options().dialect).unwrap_or_default();
                // A reader that has left does not mind.
                let _ = events.send(error.into()).await;
                return;
            }
        };
        let mut running = JoinSet::new();
        for (index, (item, ticket)) in items.into_iter().zip(tickets).enumerate() {
            let (engine, events) = (engine.clone(), events.clone());
            running.spawn(async move {
                let mut sequence = Sequence::new(item, &engine, received);
                let listener = ClientGuard { events, index: indexed.then_some(index) };
                run(&engine, &mut sequence, ticket, Some(listener)).await;
            });
        }
        drop(events);
        // not join_all, which panics on what a shutdown has cancelled
        while running.join_next().await.is_some() {}
    });
    event_stream(ReplyBody::events(receiver, work))
}

/// Waits for the end of a pause and of a weight update, and takes a place for each item.
async fn admit(
    engine: &Engine,
    items: &[Item],
) -> Result<(Vec<Ticket>, tokio::sync::OwnedRwLockReadGuard<()>), Refusal> {
    engine.control().unpaused().await;
    let tickets = engine.control().register(items.iter().map(|item| item.rid.as_str()))?;
    Ok((tickets, engine.control().read_gate().await))
}

/// Whom the events of one sequence go to.
#[derive(Debug)]
struct ClientGuard {
    events: mpsc::Sender<Bytes>,
    index: Option<usize>,
}

async fn run(engine: &Engine, sequence: &mut Sequence, mut ticket: Ticket, listener: Option<ClientGuard>) {
    debug_assert_eq!(sequence.rid(), ticket.rid(), "a ticket is for one sequence");
    let mut retracted = engine.control().retracted();
    while !sequence.is_finished() {
        tokio::select! {
            biased;
            () = ticket.aborted() => sequence.abort(engine),
            () = pace(engine) => {}
        }
        let now_retracted = engine.control().retracted();
        sequence.retract(now_retracted - retracted);
        retracted = now_retracted;
        if !sequence.is_finished() {
            sequence.step(engine, &engine.control().weights());
        }
        if let Some(ClientGuard { events, index }) = &listener
            && sequence.is_due(engine)
            && events.send(sequence.event(engine, *index).into()).await.is_err()
        {
            return;
        }
    }
}

/// Waits between two tokens: the delay, or at least a turn for other tasks, and a pause.
async fn pace(engine: &Engine) {
    match engine.options().token_delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => tokio::task::yield_now().await,
    }
    engine.control().unpaused().await;
}

/// Value errors come inside the stream, behind a 200.
fn refuse_in_stream(engine: &Engine, refusal: &Refusal) -> Response<ReplyBody> {
    match refusal.event(engine.options().dialect) {
        Some(mut event) => {
            event.extend_from_slice(super::wire::DONE);
            event_stream(ReplyBody::whole(event))
        }
        None => refuse(refusal),
    }
}

fn event_stream(body: ReplyBody) -> Response<ReplyBody> {
    let mut response = Response::new(body);
    let kind = http::HeaderValue::from_static("text/event-stream; charset=utf-8");
    response.headers_mut().insert(http::header::CONTENT_TYPE, kind);
    response
}
