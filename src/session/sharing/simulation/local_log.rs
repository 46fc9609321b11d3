// SPDX-License-Identifier: Apache-2.0
//! A local log that survives the crash of its process.

use std::sync::Arc;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::faults::Server;
use crate::session::ledger::{Ack, Change, Health, LogRecord, ProcessRecord, Record, RecordLog, RecordLogStats};
use crate::session::store::now_ms;
use crate::session::{ProcessId, Turn, TurnMetadata};

/// The log. Clones are the same log.
#[derive(Debug, Clone)]
pub(super) struct LocalLog {
    server: Arc<Server>,
    /// The records, and when each was appended.
    records: Arc<Mutex<Vec<(Instant, LogRecord)>>>,
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
    pub(super) fn restored(&self) -> Vec<LogRecord> {
        let restored = |(appended, record): (Instant, LogRecord)| match record {
            LogRecord::Session(Record { session, birth, change: Change::Turn(turn) }) => {
                let age = u64::try_from(appended.elapsed().as_millis()).expect("a history is short");
                let about = TurnMetadata { started_ms: now_ms() - age, ..turn.about.clone() };
                let turn = Arc::new(Turn { about, ..(*turn).clone() });
                Record { session, birth, change: Change::Turn(turn) }.into()
            }
            other => other,
        };
        self.records().into_iter().map(restored).collect()
    }

    fn records(&self) -> Vec<(Instant, LogRecord)> {
        self.records.lock().clone()
    }
}

impl RecordLog for LocalLog {
    fn append(&self, record: LogRecord) -> Ack {
        let mut records = self.records.lock();
        if let LogRecord::Process(ProcessRecord::Settled { session: settled }) = &record {
            // up to the one before
            let turns = records.iter().rev().filter_map(|(_, record)| match record {
                LogRecord::Session(Record { session, change: Change::Turn(turn), .. }) if session == settled => {
                    Some(Some(turn.about.uid))
                }
                LogRecord::Process(ProcessRecord::Settled { session }) if session == settled => Some(None),
                _ => None,
            });
            self.server.forget(settled, turns.map_while(|uid| uid));
        }
        records.push((Instant::now(), record));
        Ack::done()
    }

    fn written(&self) -> Ack {
        Ack::done()
    }

    fn read(&self, each: &mut dyn FnMut(LogRecord)) -> std::io::Result<()> {
        self.restored().into_iter().for_each(each);
        Ok(())
    }

    fn id(&self) -> ProcessId {
        "0000000000000001".parse().expect("16 digits")
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
