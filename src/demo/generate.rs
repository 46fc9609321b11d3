// SPDX-License-Identifier: Apache-2.0
//! The `/generate` route: parses the body and returns a reply or a stream.

use std::sync::Arc;

use bytes::Bytes;
use http::{Response, StatusCode};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::control::Registration;
use super::engine::Engine;
use super::item::Item;
use super::refusal::Refusal;
use super::request::GenerateBody;
use super::routes::{ReplyBody, refuse, respond};
use super::sequence::{Sequence, now};

/// The maximum number of events in the buffer of a stream. While it is full, the engine waits for the client.
const MAX_BUFFERED_EVENTS: usize = 16;

pub(super) async fn generate(engine: Arc<Engine>, body: Bytes) -> Response<ReplyBody> {
    let received = now();
    let request = match GenerateBody::parse(&body, engine.options().dialect) {
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
        Ok(items) => generate_all(&engine, items, received).await,
        Err(refusal) => Err(refusal),
    };
    match sequences {
        Ok(sequences) => {
            let mut out = Vec::new();
            let mut replies = sequences.iter().map(|sequence| sequence.full_reply(&engine));
            match (indexed, replies.next()) {
                (false, Some(reply)) => engine.wire().object(&mut out, &reply),
                (_, first) => engine.wire().batch(&mut out, first.into_iter().chain(replies)),
            }
            respond(StatusCode::OK, "application/json", out)
        }
        Err(refusal) => refuse(&refusal),
    }
}

/// Generates all sequences to their ends. Dropping the future cancels them.
async fn generate_all(engine: &Arc<Engine>, items: Vec<Item>, received: f64) -> Result<Vec<Sequence>, Refusal> {
    let (registrations, _gate) = admit(engine, &items).await?;
    let mut running = JoinSet::new();
    for (index, (item, registration)) in items.into_iter().zip(registrations).enumerate() {
        let engine = engine.clone();
        running.spawn(async move {
            let mut sequence = Sequence::new(item, &engine, received);
            run(&engine, &mut sequence, registration, None).await;
            sequence.record_send_time();
            (index, sequence)
        });
    }
    let mut sequences = running.join_all().await;
    sequences.sort_by_key(|(index, _)| *index);
    Ok(sequences.into_iter().map(|(_, sequence)| sequence).collect())
}

fn stream(engine: Arc<Engine>, items: Vec<Item>, indexed: bool, received: f64) -> Response<ReplyBody> {
    let (events, receiver) = mpsc::channel(MAX_BUFFERED_EVENTS);
    let mut work = JoinSet::new();
    work.spawn(async move {
        let (registrations, _gate) = match admit(&engine, &items).await {
            Ok(admitted) => admitted,
            Err(refusal) => {
                let error = refusal.event(engine.options().dialect).unwrap_or_default();
                // an error of the channel means that the client has disconnected
                let _ = events.send(error.into()).await;
                return;
            }
        };
        let mut running = JoinSet::new();
        for (index, (item, registration)) in items.into_iter().zip(registrations).enumerate() {
            let (engine, events) = (engine.clone(), events.clone());
            running.spawn(async move {
                let mut sequence = Sequence::new(item, &engine, received);
                let sender = EventSender { events, index: indexed.then_some(index) };
                run(&engine, &mut sequence, registration, Some(sender)).await;
            });
        }
        drop(events);
        // not `join_all`: it panics on a task that a shutdown has cancelled
        while running.join_next().await.is_some() {}
    });
    event_stream(ReplyBody::events(receiver, work))
}

/// Waits until no pause and no weight update is active, and registers the id of each item.
async fn admit(
    engine: &Engine,
    items: &[Item],
) -> Result<(Vec<Registration>, tokio::sync::OwnedRwLockReadGuard<()>), Refusal> {
    engine.control.wait_unpaused().await;
    let registrations = engine.control.register(items.iter().map(|item| item.rid.as_str()))?;
    Ok((registrations, engine.control.read_gate().await))
}

/// Sends the events of one sequence to the client.
#[derive(Debug)]
struct EventSender {
    events: mpsc::Sender<Bytes>,
    /// The `index` member of the events; `None` for a single sequence.
    index: Option<usize>,
}

/// Generates a sequence to its end. With a `sender` it sends each event that is due, and returns early once the client has disconnected.
async fn run(engine: &Engine, sequence: &mut Sequence, mut registration: Registration, sender: Option<EventSender>) {
    debug_assert_eq!(sequence.rid(), registration.rid(), "a registration is for one sequence");
    let mut retractions = engine.control.retractions();
    while !sequence.is_finished() {
        tokio::select! {
            biased;
            () = registration.aborted() => sequence.abort(engine),
            () = wait_for_next_step(engine) => {}
        }
        let retractions_now = engine.control.retractions();
        sequence.retract(retractions_now - retractions);
        retractions = retractions_now;
        if !sequence.is_finished() {
            sequence.step(engine, &engine.control.weights());
        }
        let is_due = !sequence.is_finished() && sequence.is_event_due(engine);
        if let Some(sender) = sender.as_ref().filter(|_| is_due)
            && !sender.send(sequence, engine).await
        {
            return;
        }
    }
    // as in SGLang, the id is free before the client knows of the end
    drop(registration);
    if let Some(sender) = sender {
        sender.send(sequence, engine).await;
    }
}

impl EventSender {
    /// Sends the next event. Returns false if the client has disconnected.
    async fn send(&self, sequence: &mut Sequence, engine: &Engine) -> bool {
        self.events.send(sequence.event(engine, self.index).into()).await.is_ok()
    }
}

/// Waits before a token: for the token delay, or one turn of the scheduler without a delay, and until generation is not paused.
async fn wait_for_next_step(engine: &Engine) {
    match engine.options().token_delay {
        Some(delay) => tokio::time::sleep(delay).await,
        None => tokio::task::yield_now().await,
    }
    engine.control.wait_unpaused().await;
}

/// Returns a refused stream. A value error is an event after status 200; other errors have their own status.
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
