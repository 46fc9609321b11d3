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
    /// The process that recorded it, by its number of all processes so far.
    pub process: usize,
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
    /// Births of deleted sessions, if known, and the time of the acknowledgement.
    pub deleted: Vec<(Arc<str>, Uid, Instant)>,
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
    pub client_log: ClientLog,
}

struct Fleet {
    server: Arc<Server>,
    calm: Arc<AtomicBool>,
    processes: RefCell<Vec<Process>>,
    /// The number of each process among all processes so far.
    numbers: RefCell<Vec<usize>>,
    crashed: RefCell<Vec<usize>>,
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
            log.records().into_iter().for_each(|record| sharing.restore(record));
            shared_log.set(log.clone());
        }
        let background = tokio::task::spawn_local(sharing.run(Arc::clone(&store)));
        Process { store, log, kill, cut, background }
    }

    fn choose(&self) -> (usize, Arc<Store>) {
        let processes = self.processes.borrow();
        let at = self.random.borrow_mut().index(processes.len());
        (self.numbers.borrow()[at], Arc::clone(&processes[at].store))
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
            sleep(Duration::from_secs(10)).await;
            for process in &fleet.processes.borrow()[1..] {
                process.background.abort();
            }
            sleep(IDLE * 2).await;
            fleet.processes.borrow()[0].background.abort();
        };
        local.run_until(run).await;
        drop(local);
        let fleet = Rc::into_inner(fleet).expect("all tasks have ended");
        let Fleet { processes, crashed, client_log, .. } = fleet;
        let (processes, crashed, client_log) = (processes.into_inner(), crashed.into_inner(), client_log.into_inner());
        Self { settings, server, processes, crashed, client_log }
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
                let cut = Arc::clone(&fleet.processes.borrow()[random.index(count)].cut);
                cut.store(true, Ordering::Relaxed);
                let duration = Duration::from_millis(random.below(8000));
                tokio::task::spawn_local(async move {
                    sleep(duration).await;
                    cut.store(false, Ordering::Relaxed);
                });
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
        match random.below(20) {
            0 => freeze(&fleet, &store, &session).await,
            1 => reward(&store, &session, &mut random).await,
            2 => delete(&fleet, &store, &session).await,
            3..=6 => read(&fleet, (process, &store), &session).await,
            _ => {
                let turns = known.entry(Arc::clone(&session)).or_default();
                call(&fleet, &settings, (process, &store), &session, turns, &mut random).await;
            }
        }
    }
}

async fn call(
    fleet: &Fleet,
    settings: &Settings,
    (process, store): (usize, &Arc<Store>),
    session: &Arc<str>,
    known: &mut Vec<Vec<u32>>,
    random: &mut Random,
) {
    let begun = Instant::now();
    if random.chance(500) {
        // as a chat does
        let _ = store.sharing().expect("it is shared").refresh(store, session).await;
    }
    let fresh = |fleet: &Fleet| {
        let mut client_log = fleet.client_log.borrow_mut();
        client_log.next += 1;
        client_log.next
    };
    let mut prompt = match known.get(random.index(known.len().max(1))).filter(|_| random.chance(800)) {
        Some(tokens) => tokens.clone(),
        None => vec![1, 2],
    };
    if random.chance(900) {
        prompt.push(1_000_000 + fresh(fleet));
    }
    let mut call = Call::new(Arc::clone(store), Arc::clone(session));
    if random.chance(50) {
        call.mark_last();
    }
    sleep(Duration::from_millis(random.below(500))).await;
    let samples = 1 + random.index(2);
    let mut acks = Vec::new();
    for _ in 0..samples {
        let response = vec![fresh(fleet) + 10, 3];
        let about = TurnMetadata { finish: Some("stop".into()), ..TurnMetadata::default() };
        let draft = Draft {
            prompt: Some(prompt.as_slice().into()),
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
    for (response, ack) in acks {
        // a process that crashed does not answer
        let outcome = tokio::time::timeout(Duration::from_secs(60), ack).await;
        let acknowledged = matches!(outcome, Ok(Ok(())));
        let has_crashed = !fleet.numbers.borrow().contains(&process);
        let detached = matches!(outcome, Ok(Err(AppendError::Detached))) && !has_crashed;
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
            known.push([&prompt[..], &response].concat());
        }
        fleet.client_log.borrow_mut().turns.push(ClientTurn {
            session: Arc::clone(session),
            prompt: prompt.clone(),
            response,
            begun,
            ended: Instant::now(),
            acknowledged,
            detached,
            process,
        });
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

async fn delete(fleet: &Fleet, store: &Arc<Store>, name: &Arc<str>) {
    let sharing = store.sharing().expect("it is shared");
    if sharing.refresh(store, name).await.is_err() {
        return;
    }
    let Some(birth) = store.session(name).and_then(|session| session.birth) else { return };
    let deleted = sharing.delete(store, name).await;
    fleet.client_log.borrow_mut().deletes.push((Arc::clone(name), Instant::now()));
    if deleted == Ok(true) {
        fleet.client_log.borrow_mut().deleted.push((Arc::clone(name), birth, Instant::now()));
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
