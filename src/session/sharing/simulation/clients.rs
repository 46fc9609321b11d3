// SPDX-License-Identifier: Apache-2.0
//! The clients of a history: they call, read, tag, freeze and delete at random processes, and note the replies.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::faults::Loss;
use super::history::{Fleet, Settings};
use super::random::Random;
use crate::columns::Column;
use crate::images::Image;
use crate::session::ledger::AppendError;
use crate::session::{
    Call, Draft, Frozen, PromptImages, RewardScope, RewardTarget, ScoredTurn, SessionError, Sessions, Tags, Turn,
    TurnMetadata, TurnScores, Uid,
};

/// A turn as its client knows it.
#[derive(Debug, Clone)]
pub(super) struct ClientTurn {
    pub session: Arc<str>,
    pub prompt: Vec<u32>,
    pub response: Vec<u32>,
    pub begun: Instant,
    pub ended: Instant,
    /// Whether the ack was positive.
    pub acknowledged: bool,
    /// Whether the ack told that the turn is detached.
    pub detached: bool,
    /// Whether the ack told that the turn is lost, because the memory was full.
    pub left_out: bool,
    /// The process that recorded it, by its number of all processes so far.
    pub process: usize,
    /// The request id of the client.
    rid: Option<Box<str>>,
    /// The response of the earlier attempt with the same request id, which did not reach the client.
    pub retry_of: Option<Vec<u32>>,
}

/// A deletion that was acknowledged.
#[derive(Debug, Clone)]
pub(super) struct Deletion {
    pub session: Arc<str>,
    /// The birth of the session that the client saw.
    pub birth: Uid,
    /// The process that deleted it, by its number of all processes so far.
    pub process: usize,
    pub begun: Instant,
}

/// A read of a session that had no detached changes: the uids of its turns.
#[derive(Debug, Clone)]
pub(super) struct Read {
    pub session: Arc<str>,
    /// The process that answered, by its number of all processes so far.
    pub process: usize,
    pub birth: Uid,
    pub generation: u32,
    pub turns: Vec<Uid>,
}

/// Columns of scores that were acknowledged.
#[derive(Debug, Clone)]
pub(super) struct ScoredColumns {
    pub session: Arc<str>,
    pub turn: Uid,
    pub columns: Vec<Box<str>>,
    pub begun: Instant,
}

/// A frozen version as it was read: its rows as tokens and masks.
pub(super) type Rows = Vec<(Vec<u32>, Vec<bool>)>;

/// The requests of the clients and the replies.
#[derive(Default)]
pub(super) struct ClientLog {
    pub turns: Vec<ClientTurn>,
    pub reads: Vec<Read>,
    pub frozen: Vec<(Arc<str>, Uid, u32, Rows)>,
    pub deleted: Vec<Deletion>,
    pub scored: Vec<ScoredColumns>,
    /// Sessions that were marked as incomplete, and the processes that did it, by their numbers of all processes so far.
    pub incomplete: Vec<(Arc<str>, usize)>,
    /// The names of all sessions that a client asked to delete, and when the request ended.
    pub deletes: Vec<(Arc<str>, Instant)>,
    next: u32,
}

/// The pictures of a prompt: some of its tokens are one.
pub(super) fn images_of(prompt: &[u32]) -> Option<Box<PromptImages>> {
    let image = |(at, id): (u32, &u32)| (Arc::new(Image::new(id.to_le_bytes().repeat(20).into())), at..at + 1);
    let images: Vec<_> = (0..).zip(prompt).filter(|(_, id)| **id > 1_000_000 && **id % 3 == 0).map(image).collect();
    (!images.is_empty()).then(|| Box::new(PromptImages::new(prompt, images)))
}

pub(super) async fn client(fleet: Rc<Fleet>, settings: Settings, mut random: Random) {
    // the tokens of turns that this client knows, by session
    let mut known: BTreeMap<Arc<str>, Vec<Vec<u32>>> = BTreeMap::new();
    for _ in 0..settings.operations {
        sleep(Duration::from_millis(random.below(1500))).await;
        let session: Arc<str> = format!("s{}", random.index(settings.sessions)).into();
        let (process, store) = fleet.choose();
        let turns = known.entry(Arc::clone(&session)).or_default();
        let client = Client { fleet: &fleet, settings: &settings, session: &session };
        match random.below(24) {
            0 => freeze(&fleet, &store, &session).await,
            1 => reward(&store, &session, &mut random).await,
            2 => client.delete((process, &store), &mut random).await,
            3..=6 => read(&fleet, (process, &store), &session).await,
            7 => client.freeze_around_failover().await,
            8 => client.delete_during_partition(&mut random).await,
            9 => client.retry(turns, &mut random).await,
            10 => client.score(&store, &mut random).await,
            11 => tag(&store, &session, &mut random).await,
            _ => client.call((process, &store), turns, &mut random).await,
        }
    }
}

/// One client's use of a session.
struct Client<'a> {
    fleet: &'a Fleet,
    settings: &'a Settings,
    session: &'a Arc<str>,
}

/// One attempt of a call.
#[derive(Debug, Clone, Default)]
struct Attempt {
    prompt: Vec<u32>,
    samples: usize,
    /// The request id of the client.
    rid: Option<Box<str>>,
    /// The client marks it as a retry.
    is_marked: bool,
    retry_of: Option<Vec<u32>>,
}

impl Client<'_> {
    /// A number that was not used before.
    fn fresh(&self) -> u32 {
        let mut client_log = self.fleet.client_log.borrow_mut();
        client_log.next += 1;
        client_log.next
    }

    /// A prompt that continues one of the turns that this client knows, or begins anew.
    fn prompt(&self, known: &[Vec<u32>], random: &mut Random) -> Vec<u32> {
        let mut prompt = match known.get(random.index(known.len().max(1))).filter(|_| random.chance(800)) {
            Some(tokens) => tokens.clone(),
            None => vec![1, 2],
        };
        if random.chance(900) {
            prompt.push(1_000_000 + self.fresh());
        }
        prompt
    }

    async fn call(&self, at: (usize, &Arc<Sessions>), known: &mut Vec<Vec<u32>>, random: &mut Random) {
        let attempt =
            Attempt { prompt: self.prompt(known, random), samples: 1 + random.index(2), ..Attempt::default() };
        known.extend(self.sample(at, attempt, random).await);
    }

    /// Sends a call, and another one at another process that is marked as a retry: with the request id of the first, whose reply did not
    /// reach the client, or without one, although the client has the first reply.
    async fn retry(&self, known: &mut Vec<Vec<u32>>, random: &mut Random) {
        let [(first, store), (second, other)] = self.fleet.choose_two();
        let has_id = random.chance(500);
        let rid = |number: u32| Some(format!("r{number}").into_boxed_str());
        let prompt = self.prompt(known, random);
        let attempt = Attempt { prompt, samples: 1, rid: rid(self.fresh()), ..Attempt::default() };
        let begun = self.fleet.client_log.borrow().turns.len();
        let replies = self.sample((first, &store), attempt.clone(), random).await;
        let own = |turn: &&ClientTurn| turn.rid == attempt.rid;
        let response = self.fleet.client_log.borrow().turns[begun..].iter().find(own).map(|turn| turn.response.clone());
        let retry = match has_id {
            true => Attempt { is_marked: true, retry_of: response, ..attempt },
            false => {
                known.extend(replies);
                Attempt { is_marked: true, rid: rid(self.fresh()), ..attempt }
            }
        };
        known.extend(self.sample((second, &other), retry, random).await);
    }

    /// Samples from a prompt. Returns the tokens up to the end of each acknowledged turn.
    async fn sample(
        &self,
        (process, store): (usize, &Arc<Sessions>),
        attempt: Attempt,
        random: &mut Random,
    ) -> Vec<Vec<u32>> {
        let Self { fleet, settings, session } = *self;
        let begun = Instant::now();
        if random.chance(500) {
            // as a chat does
            let _ = store.sharing().refresh(session).await;
        }
        let mut call = Call::new(Arc::clone(store), Arc::clone(session));
        if attempt.is_marked {
            call.mark_retry();
        }
        if random.chance(50) {
            call.mark_last();
        }
        if random.chance(300) {
            call.set_tags(tags(random));
        }
        sleep(Duration::from_millis(random.below(500))).await;
        let mut acks = Vec::new();
        for index in 0..u32::try_from(attempt.samples).expect("it is small") {
            let response = vec![self.fresh() + 10, 3];
            let about = TurnMetadata {
                finish: Some("stop".into()),
                rid: attempt.rid.clone(),
                index,
                images: images_of(&attempt.prompt),
                ..TurnMetadata::default()
            };
            let draft = Draft {
                prompt: Some(attempt.prompt.as_slice().into()),
                response: response.clone(),
                logprobs: vec![-1.0; 2],
                entropy: vec![0.5; 2],
                about,
                ..Draft::default()
            };
            acks.push((response, call.commit(draft).1));
        }
        if random.chance(30) {
            // another reply of the call was not recorded
            call.mark_incomplete();
            fleet.client_log.borrow_mut().incomplete.push((Arc::clone(session), process));
        }
        drop(call);
        let mut sampled = Vec::new();
        for (response, ack) in acks {
            // a process that crashed does not answer
            let outcome = tokio::time::timeout(Duration::from_secs(60), ack).await;
            let acknowledged = matches!(outcome, Ok(Ok(())));
            let has_crashed = !fleet.numbers.borrow().contains(&process);
            let detached = matches!(outcome, Ok(Err(AppendError::Detached))) && !has_crashed;
            let left_out = matches!(outcome, Ok(Err(AppendError::NoRoom)));
            let ended = Instant::now();
            if acknowledged && settings.loss == Loss::Unconfirmed && random.chance(50) {
                // the process and the primary are lost right after the reply: the replica has the turn
                fleet.crash_number(process);
                fleet.server.fail_over();
            }
            if detached && settings.loss == Loss::Unconfirmed && settings.has_logs && random.chance(100) {
                // the process and the primary are lost about when the primary has the turn: it is in the local log
                sleep(Duration::from_millis(random.below(3000))).await;
                fleet.crash_number(process);
                fleet.server.fail_over();
            }
            if acknowledged {
                sampled.push([&attempt.prompt[..], &response].concat());
            }
            fleet.client_log.borrow_mut().turns.push(ClientTurn {
                session: Arc::clone(session),
                prompt: attempt.prompt.clone(),
                response,
                begun,
                ended,
                acknowledged,
                detached,
                left_out,
                process,
                rid: attempt.rid.clone(),
                retry_of: attempt.retry_of.clone(),
            });
        }
        sampled
    }

    /// Two processes finish the session around a failover.
    async fn freeze_around_failover(&self) {
        let [(_, first), (_, second)] = self.fleet.choose_two();
        freeze(self.fleet, &first, self.session).await;
        self.fleet.server.fail_over();
        freeze(self.fleet, &second, self.session).await;
    }

    /// A process that is cut off records turns before and after another one deletes the session.
    async fn delete_during_partition(&self, random: &mut Random) {
        let [(cut_off, store), (other, reached)] = self.fleet.choose_two();
        let prompt = |client: &Self| vec![1, 2, 1_000_000 + client.fresh()];
        let attempt = |client: &Self| Attempt { prompt: prompt(client), samples: 1, ..Attempt::default() };
        self.sample((other, &reached), attempt(self), random).await;
        self.fleet.cut_off(cut_off, Duration::from_millis(4000 + random.below(6000)));
        self.sample((cut_off, &store), attempt(self), random).await;
        sleep(Duration::from_millis(random.below(4000))).await;
        self.delete((other, &reached), random).await;
        if random.chance(500) {
            self.sample((cut_off, &store), attempt(self), random).await;
        }
    }

    /// Asks a teacher for some columns of a turn, and for those that are stored. If another request stores further columns meanwhile, asks
    /// for these as well.
    async fn score(&self, store: &Arc<Sessions>, random: &mut Random) {
        let begun = Instant::now();
        let Some(session) = store.session(self.session) else { return };
        let count = session.state().forest.turns().len();
        let Some(uid) = session.state().forest.turns().get(random.index(count.max(1))).map(|turn| turn.about.uid)
        else {
            return;
        };
        let asked: Vec<&str> = SCORE_COLUMNS.into_iter().filter(|_| random.chance(400)).collect();
        loop {
            let Some(session) = store.session(self.session) else { return };
            // its number may have changed
            let turn = session.state().forest.turns().iter().find(|turn| turn.about.uid == uid).cloned();
            let Some(turn) = turn else { return };
            let stored = session.scores("t", u32::MAX).remove(&turn.id);
            let is_stored =
                |name: &str| stored.as_ref().is_some_and(|scores| Column::named(&scores.columns, name).is_some());
            let names = SCORE_COLUMNS.into_iter().filter(|name| asked.contains(name) || is_stored(name));
            let columns: Vec<Column> = names.map(|name| Column::of_floats(name, &scores_of(&turn))).collect();
            let columns_of = columns.iter().map(|column| column.name.clone()).collect();
            let scored = ScoredTurn { turn: turn.id, uid, weights: None, logprobs: scores_of(&turn).into(), columns };
            // while the teacher answers, other requests store theirs
            sleep(Duration::from_millis(random.below(1500))).await;
            let scores = TurnScores { teacher: "t".into(), turns: vec![scored], again: false };
            match store.sharing().score(self.session, &scores).await {
                Ok(()) => {
                    let session = Arc::clone(self.session);
                    let scored = ScoredColumns { session, turn: uid, columns: columns_of, begun };
                    return self.fleet.client_log.borrow_mut().scored.push(scored);
                }
                Err(SessionError::OtherColumns) => {}
                // the session may be another one of this name by now, or have lost the turn
                Err(SessionError::EvictedSession | SessionError::Unconfirmed | SessionError::NoTurn(_)) => return,
                Err(error) => panic!("{error}"),
            }
        }
    }

    async fn delete(&self, (process, store): (usize, &Arc<Sessions>), random: &mut Random) {
        let (fleet, name) = (self.fleet, self.session);
        let sharing = store.sharing();
        if sharing.refresh(name).await.is_err() {
            return;
        }
        let Some(birth) = store.session(name).map(|session| session.birth) else { return };
        let begun = Instant::now();
        let deleted = sharing.delete(name).await;
        fleet.client_log.borrow_mut().deletes.push((Arc::clone(name), Instant::now()));
        if deleted == Ok(true) {
            let session = Arc::clone(name);
            fleet.client_log.borrow_mut().deleted.push(Deletion { session, birth, process, begun });
            if self.settings.loss == Loss::All && random.chance(500) {
                sleep(Duration::from_millis(random.below(3000))).await;
                fleet.server.fail_over();
            }
        }
    }
}

async fn freeze(fleet: &Fleet, store: &Arc<Sessions>, name: &Arc<str>) {
    let sharing = store.sharing();
    let Ok(Frozen { version, .. }) = sharing.freeze(name).await else { return };
    let Some(session) = store.session(name) else { return };
    if session.state().is_detached {
        return;
    }
    let Ok(snapshot) = session.snapshot(Some(version)) else { return };
    let rows = rows(&snapshot);
    fleet.client_log.borrow_mut().frozen.push((Arc::clone(name), session.birth, version, rows));
}

/// The exported rows of a snapshot.
pub(super) fn rows(snapshot: &Arc<crate::session::Snapshot>) -> Rows {
    let row = |path: &crate::session::Path| {
        let ids = path.segments().flat_map(|segment| segment.ids.to_vec()).collect();
        let mask = path.segments().flat_map(|segment| vec![segment.trained; segment.ids.len()]).collect();
        (ids, mask)
    };
    snapshot.paths(true).0.iter().map(row).collect()
}

async fn reward(store: &Arc<Sessions>, name: &Arc<str>, random: &mut Random) {
    let sharing = store.sharing();
    let turn = u32::try_from(random.below(4)).expect("it is small");
    let scopes = [RewardScope::Session, RewardScope::Leaf(turn), RewardScope::Turn(turn)];
    let scope = scopes[usize::try_from(random.below(3)).expect("it is small")];
    let value = serde_json::json!(random.below(100));
    match sharing.reward(name, RewardTarget { scope, generation: None }, value).await {
        Ok(()) | Err(SessionError::EvictedSession | SessionError::Unconfirmed | SessionError::NoTurn(_)) => {}
        Err(SessionError::Frozen | SessionError::OtherGeneration(_)) => {}
        Err(error) => panic!("{error}"),
    }
}

async fn tag(store: &Arc<Sessions>, name: &Arc<str>, random: &mut Random) {
    match store.sharing().set_tags(name, &tags(random)).await {
        Ok(()) | Err(SessionError::EvictedSession | SessionError::Unconfirmed | SessionError::TagsFrozen) => {}
        Err(error) => panic!("{error}"),
    }
}

/// One or two of three tags.
fn tags(random: &mut Random) -> Tags {
    let list = format!("tag{}={},tag{}=x", random.below(3), random.below(5), random.below(3));
    Tags::parse_list(list.as_bytes()).expect("they are valid")
}

/// The columns that the requests of clients differ in.
const SCORE_COLUMNS: [&str; 3] = ["one", "two", "three"];

/// The scores of a turn, by which [`check`](super::check) recognises it under any number.
pub(super) fn scores_of(turn: &Turn) -> Vec<f32> {
    turn.response.iter().map(|id| -f64::from(*id) as f32).collect()
}

async fn read(fleet: &Fleet, (process, store): (usize, &Arc<Sessions>), name: &Arc<str>) {
    if store.sharing().refresh(name).await.is_err() {
        return;
    }
    let Some(session) = store.session(name) else { return };
    let state = session.state();
    if state.is_detached || state.removed {
        return;
    }
    let turns = state.forest.turns().iter().map(|turn| turn.about.uid).collect();
    let (birth, generation) = (session.birth, state.generation);
    drop(state);
    fleet.client_log.borrow_mut().reads.push(Read { session: Arc::clone(name), process, birth, generation, turns });
}
