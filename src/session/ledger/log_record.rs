// SPDX-License-Identifier: Apache-2.0
//! The records of the log of one process.

use std::io;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::record::append_head;
use crate::session::is_name;
use crate::session::ledger::Record;

/// See [`LogRecord::kind`].
const SESSION: u8 = 0;
/// See [`LogRecord::kind`].
const PROCESS: u8 = 1;

/// A record of the log of one process.
#[derive(Debug, Clone, PartialEq)]
pub enum LogRecord {
    /// A change of a session.
    Session(Record),
    /// A fact that belongs to no session.
    Process(ProcessRecord),
}

/// A fact that belongs to no session, and that a shared ledger does not have.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRecord {
    /// A policy epoch began.
    Epoch {
        /// tokentap's policy epoch.
        number: u64,
        /// The trainer's name of the epoch.
        version: Option<Box<str>>,
    },
    /// An epoch of an adapter began. The number alone is recorded: after a restart every adapter has a later epoch.
    AdapterEpoch {
        /// The epoch of the adapter.
        number: u64,
    },
    /// The shared ledger has all turns of sessions of this name that precede this record.
    Settled {
        /// The name.
        session: Arc<str>,
    },
}

impl From<Record> for LogRecord {
    fn from(record: Record) -> Self {
        Self::Session(record)
    }
}

impl From<ProcessRecord> for LogRecord {
    fn from(record: ProcessRecord) -> Self {
        Self::Process(record)
    }
}

impl LogRecord {
    /// The approximate bytes that it takes in memory, for limits.
    pub(super) fn bytes(&self) -> u64 {
        match self {
            Self::Session(record) => record.bytes(),
            Self::Process(_) => size_of::<Self>() as u64 + 256,
        }
    }

    /// Whether a tokentap can have written it, as [`Record::is_plausible`].
    pub(super) fn is_plausible(&self) -> bool {
        match self {
            Self::Session(record) => record.is_plausible(),
            Self::Process(ProcessRecord::Settled { session }) => is_name(session),
            Self::Process(ProcessRecord::Epoch { .. } | ProcessRecord::AdapterEpoch { .. }) => true,
        }
    }

    /// The number of its kind, with which it is decoded.
    pub(super) fn kind(&self) -> u8 {
        match self {
            Self::Session(_) => SESSION,
            Self::Process(_) => PROCESS,
        }
    }

    /// Appends the record's bytes to `out`, as [`Record::encode`].
    pub(super) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        match self {
            Self::Session(record) => record.encode(out),
            Self::Process(record) => append_head(record, out),
        }
    }

    /// Decodes a record of a kind; `None` if this build cannot read it.
    pub(super) fn decode(kind: u8, bytes: &[u8]) -> Option<Self> {
        match kind {
            SESSION => Record::decode(bytes).map(Self::Session),
            PROCESS => {
                let (record, rest) = postcard::take_from_bytes(bytes).ok()?;
                rest.is_empty().then_some(Self::Process(record))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_of_the_process_survive_encoding() {
        let records = [
            ProcessRecord::Epoch { number: 3, version: Some("three".into()) },
            ProcessRecord::Epoch { number: u64::MAX, version: None },
            ProcessRecord::AdapterEpoch { number: 7 },
            ProcessRecord::Settled { session: "s".into() },
        ];
        let first: Vec<Vec<u8>> = records
            .iter()
            .map(|record| postcard::to_allocvec(record).unwrap())
            .map(|bytes| bytes[..2].into())
            .collect();
        assert_eq!(first, [[0, 3], [0, 255], [1, 7], [2, 1]], "a new layout needs a new SCHEMA");
        assert!(
            (3..=u8::MAX).all(|kind| LogRecord::decode(PROCESS, &[kind, 0]).is_none()),
            "a new record needs a new SCHEMA"
        );
        for record in records {
            let (record, mut bytes) = (LogRecord::from(record), Vec::new());
            record.encode(&mut bytes).unwrap();
            assert_eq!(LogRecord::decode(record.kind(), &bytes), Some(record.clone()));
            for cut in 0..bytes.len() {
                assert_eq!(LogRecord::decode(record.kind(), &bytes[..cut]), None, "cut at {cut}");
            }
        }
    }
}
