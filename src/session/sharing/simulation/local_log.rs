//! A local log that survives the crash of its process.

use std::sync::{Arc, Mutex, PoisonError};

use super::faults::Server;
use crate::session::ledger::{Ack, Health, Record, RecordLog, RecordLogStats};

/// The log. Clones are the same log.
#[derive(Debug, Clone)]
pub(super) struct LocalLog {
    server: Arc<Server>,
    records: Arc<Mutex<Vec<Record>>>,
}

impl LocalLog {
    pub(super) fn new(server: &Arc<Server>) -> Self {
        Self { server: Arc::clone(server), records: Arc::default() }
    }

    /// What a crash leaves. The tasks of the process that crashed may go on, and write to the log before it.
    pub(super) fn after_crash(&self) -> Self {
        Self { server: Arc::clone(&self.server), records: Arc::new(Mutex::new(self.records())) }
    }

    /// All records so far.
    pub(super) fn records(&self) -> Vec<Record> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RecordLog for LocalLog {
    fn append(&self, record: Record) -> Ack {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if let Record::Evicted { session: ended } = &record {
            let of_session =
                records.iter().rev().filter(|record| record.session().is_some_and(|key| key.name == ended.name));
            let turns = of_session.map_while(|record| match record {
                Record::Turn { turn, .. } => turn.about.uid,
                _ => None,
            });
            self.server.forget(&ended.name, turns);
        }
        records.push(record);
        Ack::done()
    }

    fn written(&self) -> Ack {
        Ack::done()
    }

    fn id(&self) -> &str {
        "0000000000000000"
    }

    fn health(&self) -> Health {
        Health::Ok
    }

    fn stats(&self) -> RecordLogStats {
        RecordLogStats::default()
    }

    fn is_behind(&self) -> bool {
        false
    }
}
