// SPDX-License-Identifier: Apache-2.0
//! One history: processes with a ledger that fails, and their clients.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::task::{JoinHandle, LocalSet};
use tokio::time::{Instant, sleep};

use super::super::image_sync::EXPECTED;
use super::clients::{ClientLog, client};
use super::faults::{Connection, Loss, Server};
use super::local_log::LocalLog;
use super::random::Random;
use crate::session::ledger::SharedLog;
use crate::session::store::NoObserver;
use crate::session::{Sessions, SharedLedger, SharingLimits, StoreLimits};

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
    pub sessions: usize,
    pub operations: usize,
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
    pub store: Arc<Sessions>,
    log: Option<LocalLog>,
    kill: Arc<AtomicBool>,
    cut: Arc<AtomicBool>,
    background: JoinHandle<()>,
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

pub(super) struct Fleet {
    pub server: Arc<Server>,
    calm: Arc<AtomicBool>,
    pub processes: RefCell<Vec<Process>>,
    /// The number of each process among all processes so far.
    pub numbers: RefCell<Vec<usize>>,
    crashed: RefCell<Vec<usize>>,
    cuts: RefCell<Vec<(usize, Instant, Instant)>>,
    pub client_log: RefCell<ClientLog>,
    random: RefCell<Random>,
}

impl Fleet {
    fn process(&self, log: Option<LocalLog>) -> Process {
        // some processes have room for a few turns only, so that they evict; what the ledger has lost must be in memory
        let evicts = !self.server.loses_confirmed() && self.random.borrow_mut().chance(300);
        let bytes = if evicts { 3000 } else { u64::MAX };
        let limits = StoreLimits { bytes, ttl: Duration::from_secs(1 << 30), idle: IDLE };
        let shared_log = SharedLog::default();
        let connection = Connection::new(&self.server, self.random.borrow_mut().fork(), &self.calm);
        let (kill, cut) = (connection.kill_switch(), connection.cut_switch());
        let sharing = SharingLimits { timeout: Duration::from_secs(2), idle: IDLE };
        let ledger = SharedLedger { ledger: Arc::new(connection), limits: sharing };
        let store = Arc::new(Sessions::shared(limits, shared_log.clone(), Arc::new(NoObserver), ledger));
        if let Some(log) = &log {
            log.restored().into_iter().for_each(|record| store.restore(record));
            shared_log.set(log.clone());
        }
        let background = tokio::task::spawn_local(Arc::clone(&store).run());
        Process { store, log, kill, cut, background }
    }

    pub(super) fn choose(&self) -> (usize, Arc<Sessions>) {
        let count = self.processes.borrow().len();
        self.process_at(self.random.borrow_mut().index(count))
    }

    /// Two processes.
    pub(super) fn choose_two(&self) -> [(usize, Arc<Sessions>); 2] {
        let count = self.processes.borrow().len();
        let mut random = self.random.borrow_mut();
        let first = random.index(count);
        let second = (first + 1 + random.index(count - 1)) % count;
        [self.process_at(first), self.process_at(second)]
    }

    fn process_at(&self, at: usize) -> (usize, Arc<Sessions>) {
        (self.numbers.borrow()[at], Arc::clone(&self.processes.borrow()[at].store))
    }

    /// Cuts the process with this number off for some time, if it runs.
    pub(super) fn cut_off(&self, number: usize, duration: Duration) {
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

    /// Replaces the process with this number, if it runs.
    pub(super) fn crash_number(&self, number: usize) {
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
            // every process settles, and finishes paths without pictures that no process has; then one finishes the idle sessions of all
            sleep(Duration::from_secs(20) + EXPECTED).await;
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
