// SPDX-License-Identifier: Apache-2.0
//! The epochs that are remembered, and the update that is open.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use tokio::time::Instant;

use super::adapters::Adapters;
use super::spans::begun;

/// Epochs whose label and name are remembered: more than any request spans.
const REMEMBERED: usize = 1024;

#[derive(Debug, Clone)]
pub(super) struct Epoch {
    pub(super) number: u64,
    pub(super) label: Option<Box<str>>,
    pub(super) version: Option<Box<str>>,
    /// It began with a label that an engine reported, not with a call or on request.
    pub(super) by_label: bool,
    /// It began at the end of an update during which tokens may have been sampled.
    pub(super) is_gradual: bool,
}

/// An update that has begun and not ended.
#[derive(Debug)]
pub(super) struct OpenUpdate {
    /// Tokens may have been sampled since it began.
    pub(super) is_gradual: bool,
    /// The trainer's name of the epoch that begins if it succeeds.
    pub(super) version: Option<Box<str>>,
}

#[derive(Debug)]
pub(super) struct PolicyState {
    pub(super) epochs: VecDeque<Epoch>,
    pub(super) update: Option<OpenUpdate>,
    /// When the generation was paused through this tokentap.
    pub(super) paused_at: Option<Instant>,
    /// The last label of `/model_info`, and the epoch in which it was requested.
    pub(super) model_info: Option<(u64, Box<str>)>,
    pub(super) adapters: Adapters,
}

impl PolicyState {
    pub(super) fn last(&mut self) -> &mut Epoch {
        self.epochs.back_mut().expect("there is always an epoch")
    }

    /// Begins an epoch, and ends the open update without its name.
    pub(super) fn next(&mut self, label: Option<Box<str>>, version: Option<Box<str>>) -> Epoch {
        let is_gradual = self.update.take().is_some_and(|update| update.is_gradual);
        let number = self.last().number + 1;
        let epoch = Epoch { number, by_label: label.is_some(), label, version, is_gradual };
        self.epochs.push_back(epoch.clone());
        if self.epochs.len() > REMEMBERED {
            self.epochs.pop_front();
        }
        epoch
    }

    /// The generation may continue.
    pub(super) fn end_pause(&mut self) {
        self.paused_at = None;
        if let Some(update) = &mut self.update {
            update.is_gradual = true;
        }
    }

    pub(super) fn sampled_epochs(&mut self) -> RangeInclusive<u64> {
        let epoch = self.last().number;
        epoch..=epoch + u64::from(self.is_sampling_in_update())
    }

    /// Whether tokens may be sampled while weights are updated.
    pub(super) fn is_sampling_in_update(&self) -> bool {
        self.update.as_ref().is_some_and(|update| update.is_gradual)
    }

    /// Observes a label of one of several engines. Returns the epoch that began with it, if it is new since the last call that changed
    /// weights.
    pub(super) fn take_label_of_several(&mut self, asked: u64, label: &str) -> Option<Epoch> {
        let now = self.last().number;
        let begun = begun(&self.epochs, now);
        let known = |epoch: &Epoch| epoch.number >= begun && epoch.label.as_deref() == Some(label);
        // a late reply from before the call may have the label of either side
        if asked < begun || self.epochs.iter().any(known) {
            return None;
        }
        let newest = self.last();
        if newest.label.is_none() {
            newest.label = Some(label.into());
            return None;
        }
        Some(self.next(Some(label.into()), None))
    }
}
