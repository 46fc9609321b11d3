//! One history: processes, clients, and the replies to the clients.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

use super::faults::{Connection, Loss, Server};
use super::local_log::LocalLog;
use super::random::Random;
use crate::session::ledger::{AppendError, SharedLog};
use crate::session::observer::NoObserver;
use crate::session::{Call, Draft, SessionError, SharingLimits, Store, StoreLimits, TurnMetadata, Uid};

/// The unused time after which a session has finished.
pub(super) const IDLE: Duration = Duration::from_secs(20);

/// What a history is made of.
#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub loss: Loss,
    /// Whether each process has a local log, which its successor after a crash restores.
    pub has_logs: bool,
    processes: usize,
    clients: usize,
    sessions: usize,
    operations: usize,
    random: Random,
}

impl Settings {
    pub(super) fn from_seed(seed: u64, loss: Loss) -> Self {
        let mut random = Random::new(seed);
        Self {
            loss,
            processes: 2 + random.index(4),
            clients: 1 + random.index(4),
            sessions: 1 + random.index(3),
            operations: 3 + random.index(8),
            has_logs: random.chance(500),
            random,
        }
    }
}

/// A process: its store, and its connection to the ledger.
pub(super) struct Process {
    pub store: Arc<Store>,
    log: Option<LocalLog>,
    kill: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    background: JoinHandle<()>,
}

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
    pub birth: Option<Uid>,
    pub generation: u32,
    pub turns: Vec<Uid>,
}

/// A frozen version as it was read: its rows as tokens and masks.
pub(super) type Rows = Vec<(Vec<u32>, Vec<bool>)>;

/// The requests of the clients and the replies.
#[derive(Default)]
pub(super) struct ClientLog {
    pub turns: Vec<ClientTurn>,
    pub reads: Vec<Read>,
    pub frozen: Vec<(Arc<str>, Option<Uid>, u32, Rows)>,
    pub deleted: Vec<Deletion>,
    /// Sessions that were marked as incomplete, and the processes that did it, by their numbers of all processes so far.
    pub incomplete: Vec<(Arc<str>, usize)>,
    /// The names of all sessions that a client asked to delete, and when the request ended.
    pub deletes: Vec<(Arc<str>, Instant)>,
    next: u32,
}

/// A history after its end.
pub(super) struct History {
    pub settings: Settings,
    pub server: Arc<Server>,
    pub processes: Vec<Process>,
    /// Processes that crashed, by their number of all processes so far.
    pub crashed: Vec<usize>,
    /// Processes that were cut off, by their number of all processes so far, from when and until when.
    pub cuts: Vec<(usize, Instant, Instant)>,
    pub client_log: ClientLog,
}

struct Fleet {
    server: Arc<Server>,
    calm: Arc<AtomicBool>,
    processes: RefCell<Vec<Process>>,
    /// The number of each process among all processes so far.
    numbers: RefCell<Vec<usize>>,
    crashed: RefCell<Vec<usize>>,
    cuts: RefCell<Vec<(usize, Instant, Instant)>>,
    client_log: RefCell<ClientLog>,
    random: RefCell<Random>,
}

impl Fleet {
    fn process(&self, log: Option<LocalLog>) -> Process {
        // some processes have room for a few turns only, so that they evict; what the ledger has lost must be in memory
        let evicts = !self.server.loses_confirmed() && self.random.borrow_mut().chance(300);
        let bytes = if evicts { 3000 } else { u64::MAX };
        let limits = StoreLimits { bytes, ttl: Duration::from_secs(1 << 30), idle: IDLE };
        let shared_log = SharedLog::default();
        let store = Arc::new(Store::with(limits, shared_log.clone(), Arc::new(NoObserver)));
        let connection = Connection::new(&self.server, self.random.borrow_mut().fork(), &self.calm);
        let (kill, cut) = (connection.kill_switch(), connection.cut_switch());
        store.share(Arc::new(connection), SharingLimits { timeout: Duration::from_secs(2), idle: IDLE });
        let sharing = Arc::clone(store.sharing().expect("it is shared"));
        if let Some(log) = &log {
            log.restored().into_iter().for_each(|record| sharing.restore(&store, record));
            shared_log.set(log.clone());
        }
        let background = tokio::task::spawn_local(sharing.run(Arc::clone(&store)));
        Process { store, log, kill, cut, background }
    }

    fn choose(&self) -> (usize, Arc<Store>) {
        let count = self.processes.borrow().len();
        self.process_at(self.random.borrow_mut().index(count))
    }

    /// Two processes.
    fn choose_two(&self) -> [(usize, Arc<Store>); 2] {
        let count = self.processes.borrow().len();
        let mut random = self.random.borrow_mut();
        let first = random.index(count);
        let second = (first + 1 + random.index(count - 1)) % count;
        [self.process_at(first), self.process_at(second)]
    }

    fn process_at(&self, at: usize) -> (usize, Arc<Store>) {
        (self.numbers.borrow()[at], Arc::clone(&self.processes.borrow()[at].store))
    }

    /// Cuts the process with this number off for some time, if it runs.
    fn cut_off(&self, number: usize, duration: Duration) {
        let Some(at) = self.numbers.borrow().iter().position(|running| *running == number) else { return };
        let cut = Arc::clone(&self.processes.borrow()[at].cut);
        self.cuts.borrow_mut().push((number, Instant::now(), Instant::now() + duration));
        cut.store(true, Ordering::Relaxed);
        tokio::task::spawn_local(async move {
            sleep(duration).await;
            cut.store(false, Ordering::Relaxed);
        });
    }

    /// Replaces a process by a new one.
    fn crash(&self, at: usize) {
        let log = self.processes.borrow()[at].log.as_ref().map(LocalLog::after_crash);
        let process = self.process(log);
        let before = std::mem::replace(&mut self.processes.borrow_mut()[at], process);
        before.kill.store(true, Ordering::Relaxed);
        before.background.abort();
        let mut numbers = self.numbers.borrow_mut();
        let next = numbers.iter().chain(&*self.crashed.borrow()).max().map_or(0, |last| last + 1);
        self.crashed.borrow_mut().push(std::mem::replace(&mut numbers[at], next));
    }
}

impl Fleet {
    /// Replaces the process with this number, if it runs.
    fn crash_number(&self, number: usize) {
        let at = self.numbers.borrow().iter().position(|running| *running == number);
        at.into_iter().for_each(|at| self.crash(at));
    }
}

impl History {
    /// Runs a history until all faults have ended and every process had time to settle.
    pub(super) async fn run(mut settings: Settings) -> Self {
        let server = Arc::new(Server::new(settings.loss, settings.random.fork()));
        let fleet = Rc::new(Fleet {
            server: Arc::clone(&server),
            calm: Arc::default(),
            processes: RefCell::default(),
            numbers: RefCell::new((0..settings.processes).collect()),
            crashed: RefCell::default(),
            cuts: RefCell::default(),
            client_log: RefCell::default(),
            random: RefCell::new(settings.random.fork()),
        });
        let local = LocalSet::new();
        let run = async {
            for _ in 0..settings.processes {
                let process = fleet.process(settings.has_logs.then(|| LocalLog::new(&fleet.server)));
                fleet.processes.borrow_mut().push(process);
            }
            let mut clients = Vec::new();
            for _ in 0..settings.clients {
                let client = client(Rc::clone(&fleet), settings.clone(), settings.random.fork());
                clients.push(tokio::task::spawn_local(client));
            }
            let faults = tokio::task::spawn_local(faults(Rc::clone(&fleet), settings.random.fork()));
            for client in clients {
                client.await.expect("a client does not panic");
            }
            faults.abort();
            fleet.calm.store(true, Ordering::Relaxed);
            fleet.server.set_refuses(false);
            fleet.server.set_lags(false);
            for process in &*fleet.processes.borrow() {
                process.cut.store(false, Ordering::Relaxed);
            }
            // every process settles, then one of them finishes the idle sessions of all
            sleep(Duration::from_secs(20)).await;
            for process in &fleet.processes.borrow()[1..] {
                process.background.abort();
            }
            sleep(IDLE * 2).await;
            fleet.processes.borrow()[0].background.abort();
        };
        local.run_until(run).await;
        drop(local);
        let fleet = Rc::into_inner(fleet).expect("all tasks have ended");
        let Fleet { processes, crashed, cuts, client_log, .. } = fleet;
        let (processes, crashed, client_log) = (processes.into_inner(), crashed.into_inner(), client_log.into_inner());
        Self { settings, server, processes, crashed, cuts: cuts.into_inner(), client_log }
    }
}

async fn faults(fleet: Rc<Fleet>, mut random: Random) {
    loop {
        sleep(Duration::from_millis(200 + random.below(3000))).await;
        let count = fleet.processes.borrow().len();
        match random.below(10) {
            0..=2 => fleet.server.fail_over(),
            3 => fleet.crash(random.index(count)),
            4..=6 => {
                let (number, _) = fleet.process_at(random.index(count));
                fleet.cut_off(number, Duration::from_millis(random.below(8000)));
            }
            7 => {
                fleet.server.set_refuses(true);
                sleep(Duration::from_millis(random.below(4000))).await;
                fleet.server.set_refuses(false);
            }
            8 if fleet.server.loses_unconfirmed() => {
                fleet.server.set_lags(true);
                sleep(Duration::from_millis(random.below(6000))).await;
                fleet.server.set_lags(false);
            }
            _ => {}
        }
    }
}

async fn client(fleet: Rc<Fleet>, settings: Settings, mut random: Random) {
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

    async fn call(&self, at: (usize, &Arc<Store>), known: &mut Vec<Vec<u32>>, random: &mut Random) {
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
        (process, store): (usize, &Arc<Store>),
        attempt: Attempt,
        random: &mut Random,
    ) -> Vec<Vec<u32>> {
        let Self { fleet, settings, session } = *self;
        let begun = Instant::now();
        if random.chance(500) {
            // as a chat does
            let _ = store.sharing().expect("it is shared").refresh(store, session).await;
        }
        let mut call = Call::new(Arc::clone(store), Arc::clone(session));
        if attempt.is_marked {
            call.mark_retry();
        }
        if random.chance(50) {
            call.mark_last();
        }
        sleep(Duration::from_millis(random.below(500))).await;
        let mut acks = Vec::new();
        for index in 0..u32::try_from(attempt.samples).expect("it is small") {
            let response = vec![self.fresh() + 10, 3];
            let about = TurnMetadata {
                finish: Some("stop".into()),
                rid: attempt.rid.clone(),
                index,
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

    async fn delete(&self, (process, store): (usize, &Arc<Store>), random: &mut Random) {
        let (fleet, name) = (self.fleet, self.session);
        let sharing = store.sharing().expect("it is shared");
        if sharing.refresh(store, name).await.is_err() {
            return;
        }
        let Some(birth) = store.session(name).and_then(|session| session.birth) else { return };
        let begun = Instant::now();
        let deleted = sharing.delete(store, name).await;
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

async fn freeze(fleet: &Fleet, store: &Arc<Store>, name: &Arc<str>) {
    let sharing = store.sharing().expect("it is shared");
    let Ok((version, _)) = sharing.freeze(store, name).await else { return };
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

async fn reward(store: &Arc<Store>, name: &Arc<str>, random: &mut Random) {
    let sharing = store.sharing().expect("it is shared");
    let leaf = random.chance(500).then(|| u32::try_from(random.below(4)).expect("it is small"));
    let value = serde_json::json!(random.below(100));
    match sharing.reward(store, name, (leaf, None), value).await {
        Ok(()) | Err(SessionError::EvictedSession | SessionError::Unconfirmed | SessionError::NoTurn) => {}
        Err(SessionError::Frozen | SessionError::OtherGeneration(_)) => {}
        Err(error @ SessionError::NoVersion) => panic!("{error}"),
    }
}

async fn read(fleet: &Fleet, (process, store): (usize, &Arc<Store>), name: &Arc<str>) {
    if store.sharing().expect("it is shared").refresh(store, name).await.is_err() {
        return;
    }
    let Some(session) = store.session(name) else { return };
    let state = session.state();
    if state.is_detached || state.removed {
        return;
    }
    let turns = state.forest.turns().iter().filter_map(|turn| turn.about.uid).collect();
    let (birth, generation) = (session.birth, state.generation);
    drop(state);
    fleet.client_log.borrow_mut().reads.push(Read { session: Arc::clone(name), process, birth, generation, turns });
}
