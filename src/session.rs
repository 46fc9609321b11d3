//! Trajectories: all prompt and response tokens, as sessions of turns.
//!
//! A *turn* is one sampled response with the part of its prompt that is new. Turns form a *forest*: a call attaches to the deepest turn
//! whose tokens are a prefix of its prompt. A *path* is what a trainer gets: the turns from a root to a leaf, with exactly the tokens of
//! the engine. This module does not depend on HTTP, and never tokenises text.

mod annotations;
mod call;
mod change_feed;
mod chat;
mod classes;
mod conversation;
mod counts;
mod eviction;
mod fault;
mod finished;
mod finished_paths;
mod forest;
mod incremental_map;
mod labels;
pub mod ledger;
mod lineage;
mod list;
mod name;
mod observer;
mod order_index;
mod path;
mod pending;
mod policy;
mod process_id;
mod publication;
mod publishing;
mod replies;
mod reply_change;
mod restoration;
mod restore;
mod rewards;
mod row;
mod sampling_sources;
mod segmented_vec;
mod sessions;
mod sharing;
mod snapshot;
mod state;
mod store;
mod stored_request;
mod trained_turns;
mod turn;
mod turn_key;
mod uid;
mod view;

pub use call::{Call, Turns};
pub use change_feed::CommittedTurn;
pub use chat::{Chat, Digest, ParseOptions};
pub use classes::Classes;
pub use conversation::{Fingerprint, HistoryChange, Prefix};
pub use counts::TurnCounts;
pub use fault::Fault;
pub use finished::{
    FinishedCursor, FinishedError, FinishedItem, FinishedLimits, FinishedList, FinishedPartitions, ListedPath, NoPath,
};
pub use forest::{Forest, Placement};
pub use labels::{Dialect, Labels, RequestClass, fill_label};
pub use list::{ListCursor, ListError, ListQuery, ListScope, ListedPage, ListedSession};
pub use name::{LONGEST_NAME, is_name};
pub use observer::{NoObserver, StoreObserver};
pub use order_index::EvictedSession;
pub use path::{Path, Segment, Step};
pub use policy::{EpochMark, INITIAL_WEIGHT_VERSION, Policy, ReportedVersions, Span, WeightCall, WeightCallOutcome};
pub use process_id::{InvalidProcessId, ProcessId};
pub use replies::{ReplyDigests, ReplyTurns};
pub use reply_change::{ReplyChange, ReplyChanges};
pub use restoration::RestoreProgress;
pub use row::{ExcludedLeaf, Row};
pub use sampling_sources::{SamplingSource, SamplingSources};
pub use sessions::{LedgerStatus, Sessions};
pub use sharing::{Consumer, Imported, Importer, SharedLedger, SharingCounts, SharingLimits, SkipReason};
pub use snapshot::{Snapshot, Summary};
pub use state::{Frozen, Reward, RewardTarget, Session, SessionError};
pub use store::{StoreLimits, now_ms};
pub use stored_request::{CallerKey, SharedItems, StoredRequest};
pub use trained_turns::TurnSelection;
pub use turn::{Cause, Draft, EntropyMethod, MOST_TURNS, Turn, TurnMetadata};
pub use turn_key::TurnKey;
pub use uid::Uid;
pub use view::{Leaves, View};

#[cfg(test)]
mod tests;
