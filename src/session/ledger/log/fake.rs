// SPDX-License-Identifier: Apache-2.0
//! Example records, and a simulated disk with failures that a test sets.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::disk::{Create, Medium};
use crate::session::ledger::{Change, LogRecord, Record};
use crate::session::{Turn, TurnMetadata};

/// The birth of the sessions.
pub(in crate::session::ledger) const BIRTH: &str = "000000000000000000000000000000b1";

/// A change of a session.
pub(in crate::session::ledger) fn record(session: &str, change: Change) -> Record {
    Record::new(session, BIRTH.parse().unwrap(), change)
}

/// A turn without tokens.
pub(in crate::session::ledger) fn bare_turn(id: u32) -> Turn {
    let empty = || Box::<[f32]>::default();
    Turn {
        id,
        parent: None,
        prompt: Arc::default(),
        response: Box::default(),
        logprobs: empty(),
        entropy: empty(),
        about: TurnMetadata { uid: format!("{id:032x}").parse().unwrap(), ..TurnMetadata::default() },
    }
}

/// A turn that samples `tokens` tokens.
pub(in crate::session::ledger) fn turn(session: &str, id: u32, tokens: u32) -> LogRecord {
    let numbers = || (0..tokens).map(|at| (at as f32 * 0.37).sin()).collect();
    let turn = Turn {
        parent: id.checked_sub(1),
        prompt: (0..tokens / 2).map(|at| at * 7 % 150_000).collect(),
        response: (0..tokens).map(|at| at * 31 % 150_000).collect(),
        logprobs: numbers(),
        entropy: numbers(),
        ..bare_turn(id)
    };
    record(session, Change::Turn(Arc::new(turn))).into()
}

/// A small record with a number.
pub(in crate::session::ledger) fn finished(number: u64) -> LogRecord {
    record("s", Change::Finished { leaf: 1, turns: 2, number }).into()
}

/// A simulated disk over real files. Cheap to clone.
#[derive(Debug, Clone, Default)]
pub(super) struct Disk(Arc<(Mutex<State>, Condvar)>);

/// The failures of the disk, and counts of its operations.
#[derive(Debug, Default)]
pub(super) struct State {
    /// Bytes that still fit; `None` is unlimited. A write that does not fit is done in part, and then the disk is full.
    pub(super) room: Option<usize>,
    /// Whether syncing fails.
    pub(super) unsyncable: bool,
    /// Whether truncating a file fails.
    pub(super) untruncatable: bool,
    /// Whether writes wait.
    pub(super) gated: bool,
    /// Writes that have begun.
    pub(super) begun: usize,
    /// Writes that have finished.
    pub(super) writes: usize,
    /// Syncs that have finished.
    pub(super) syncs: usize,
}

struct FakeFile {
    file: File,
    disk: Disk,
}

impl Disk {
    pub(super) fn create(&self) -> Create {
        let disk = self.clone();
        Box::new(move |path: &Path| {
            let file = OpenOptions::new().write(true).create_new(true).open(path)?;
            Ok(Box::new(FakeFile { file, disk: disk.clone() }))
        })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.0.0.lock()
    }

    /// Changes the state.
    pub(super) fn set(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.0.1.notify_all();
    }

    /// Waits until `condition` holds.
    pub(super) fn until(&self, condition: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.state();
        self.0.1.wait_while(&mut state, |state| !condition(state));
        state
    }
}

impl Medium for FakeFile {
    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.disk.set(|state| state.begun += 1);
        let mut state = self.disk.until(|state| !state.gated);
        let fits = state.room.map_or(bytes.len(), |room| room.min(bytes.len()));
        self.file.write_all(&bytes[..fits])?;
        state.room = state.room.map(|room| room - fits);
        if fits < bytes.len() {
            return Err(io::ErrorKind::StorageFull.into());
        }
        state.writes += 1;
        Ok(())
    }

    fn truncate(&mut self, bytes: u64) -> io::Result<()> {
        if self.disk.state().untruncatable { Err(io::ErrorKind::Unsupported.into()) } else { self.file.truncate(bytes) }
    }

    fn sync(&mut self) -> io::Result<()> {
        if self.disk.state().unsyncable {
            return Err(io::Error::other("no sync"));
        }
        self.file.sync()?;
        self.disk.set(|state| state.syncs += 1);
        Ok(())
    }

    fn is_detached(&self, path: &Path) -> bool {
        self.file.is_detached(path)
    }
}
