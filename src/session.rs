// SPDX-License-Identifier: Apache-2.0
//! Trajectories: all prompt and response tokens, as sessions of turns.
//!
//! A *turn* is one sampled response with the part of its prompt that is new. Turns form a *forest*: a call attaches to the deepest turn
//! whose tokens are a prefix of its prompt. A *path* is what a trainer gets: the turns from a root to a leaf, with exactly the tokens of
//! the engine. This module does not depend on HTTP, and never tokenises text.

mod chat;
mod conditions;
mod error;
mod forest;
mod groups;
mod histogram;
mod ids;
mod labels;
pub mod ledger;
mod path;
mod policy;
mod restore;
mod reward;
mod scores;
mod session_row;
mod sessions;
mod sharing;
mod snapshot;
mod sorted_page;
mod state;
mod steps;
mod store;
mod table;
mod tags;
mod thinking;
mod totals;
mod turn;
mod view;

pub use chat::{CallerKey, Chat, Digest, ParseOptions, SharedItems, StoredItem, StoredRequest};
pub use conditions::{Conditions, FieldValue, InvalidConditions, SessionFacts, SessionField};
pub use error::SessionError;
use forest::LazyForest;
pub use forest::{Fingerprint, HistoryChange, Prefix};
pub use groups::{
    GroupColumn, GroupCursor, GroupOrder, GroupPage, GroupQuery, InvalidGroupOrder, PASS_ABOVE, SampleGroup,
};
pub use histogram::Histogram;
pub(crate) use ids::routing_key;
pub use ids::{LONGEST_NAME, ProcessId, Uid, is_name};
pub use labels::{Classes, Dialect, Labels, RequestClass, fill_label};
pub use path::{Advantages, ExportMarks, Path, PathImage, Segment, Step, TokenAdvantages};
pub use policy::{
    AdapterCall, AdapterSpan, EpochMark, INITIAL_WEIGHT_VERSION, Policy, ReportedVersions, RequestedAdapter, Span,
    WeightCall, WeightCallOutcome,
};
pub(crate) use reward::reward_number;
pub use reward::{Reward, RewardSamples, RewardScope, RewardTarget};
pub use scores::{ScoredTurn, Scores, TurnScores, WeightEpochs};
pub use sessions::{
    Call, FinishedCursor, FinishedError, FinishedItem, FinishedLimits, FinishedList, FinishedPartitions, LedgerStatus,
    ListCursor, ListError, ListQuery, ListScope, ListedPage, ListedPath, ListedSession, NoPath, Sessions, Turns,
};
pub use sharing::{Consumer, Imported, Importer, SharedLedger, SharingCounts, SharingLimits, SkipReason};
pub use snapshot::{ExcludedLeaf, Row, Snapshot, Summary};
pub use sorted_page::{ForeignCursor, PageCursor};
pub use state::{ExportedRow, ExportedRows, Frozen, RecordedPrefix, ReplyDigests, ReplyTurns, Session};
pub use steps::{MOST_STEPS, Numbers, StepKey, StepList, StepQuery, TrainingStep};
pub use store::{
    CommittedTurn, EvictedSession, NoObserver, Restoration, RestoreProgress, StoreLimits, StoreObserver, now_ms,
};
pub use table::{InvalidOrder, TableCursor, TableOrder, TablePage, TableQuery};
pub use tags::{InvalidTags, MOST_TAGS, Tags};
pub use thinking::{ThinkSpans, ThinkToken, ThinkTokens};
pub use totals::{EntropyTotals, Totals};
pub use turn::{
    Cause, Draft, EntropyMethod, FORWARDED_REASON, Fault, MOST_TURNS, PromptImages, ReplyChange, ReplyChanges,
    SamplingSource, SamplingSources, Turn, TurnImage, TurnKey, TurnMetadata, UnexpandedPath,
};
pub use view::TurnSelection;

#[cfg(test)]
mod tests;
