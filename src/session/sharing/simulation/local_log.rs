//! A local log that survives the crash of its process.

use std::sync::{Arc, Mutex, PoisonError};

use tokio::time::Instant;

use super::faults::Server;
use crate::session::ledger::{Ack, Health, Record, RecordLog, RecordLogStats};
use crate::session::store::now_ms;
use crate::session::{Turn, TurnMetadata};

/// The log. Clones are the same log.
#[derive(Debug, Clone)]
pub(super) struct LocalLog {
    server: Arc<Server>,
    /// The records, and when each was appended.
    records: Arc<Mutex<Vec<(Instant, Record)>>>,
}

impl LocalLog {
    pub(super) fn new(server: &Arc<Server>) -> Self {
        Self { server: Arc::clone(server), records: Arc::default() }
    }

    /// What a crash leaves. The tasks of the process that crashed may go on, and write to the log before it.
    pub(super) fn after_crash(&self) -> Self {
        Self { server: Arc::clone(&self.server), records: Arc::new(Mutex::new(self.records())) }
    }

    /// The records that a restart reads. The clock of the history is virtual, that of the metadata of turns is not.
    pub(super) fn restored(&self) -> Vec<Record> {
        let restored = |(appended, record): (Instant, Record)| match record {
            Record::Turn { session, turn } => {
                let age = u64::try_from(appended.elapsed().as_millis()).expect("a history is short");
                let about = TurnMetadata { started_ms: now_ms() - age, ..turn.about.clone() };
                Record::Turn { session, turn: Arc::new(Turn { about, ..(*turn).clone() }) }
            }
            other => other,
        };
        self.records().into_iter().map(restored).collect()
    }

    fn records(&self) -> Vec<(Instant, Record)> {
        self.records.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl RecordLog for LocalLog {
    fn append(&self, record: Record) -> Ack {
        let mut records = self.records.lock().unwrap_or_else(PoisonError::into_inner);
        if let Record::Evicted { session: ended } = &record {
            let of_session =
                records.iter().rev().filter(|(_, record)| record.session().is_some_and(|key| key.name == ended.name));
            let turns = of_session.map_while(|(_, record)| match record {
                Record::Turn { turn, .. } => turn.about.uid,
                _ => None,
            });
            self.server.forget(&ended.name, turns);
        }
        records.push((Instant::now(), record));
        Ack::done()
    }

    fn written(&self) -> Ack {
        Ack::done()
    }

    fn read(&self, each: &mut dyn FnMut(Record)) -> std::io::Result<()> {
        self.restored().into_iter().for_each(each);
        Ok(())
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
