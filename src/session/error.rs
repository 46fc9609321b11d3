// SPDX-License-Identifier: Apache-2.0
//! Why a request for a session cannot be served.

use super::MOST_TAGS;

/// Why a request for a session cannot be served.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum SessionError {
    /// There is no such session.
    #[error("there is no such session")]
    Unknown,
    /// There is no such version. It has the versions from 1 to this one.
    #[error("there is no such version; {}", versions(*.0))]
    NoVersion(u32),
    /// There is no such turn. It has this number of turns.
    #[error("there is no such turn; {}", turns(*.0))]
    NoTurn(u32),
    /// The last version is frozen and nothing was added after it.
    #[error(
        "the session is frozen; a reward belongs to a version that is still open; POST /v1/advantages, and the advantages of an export, \
         take a reward as groups[].samples[].reward"
    )]
    Frozen,
    /// A version is frozen, and its exports have the tags.
    #[error("the session has a frozen version, so its tags are final; tag a session before it is frozen")]
    TagsFrozen,
    /// The session has this number of tags, and no room for those of a call.
    #[error(
        "the session has {0} tags, and with those of the call more than {MOST_TAGS}; replace them by PUT /v1/sessions/{{id}}/tags"
    )]
    TooManyTags(usize),
    /// The session has been deleted or evicted in the meantime.
    #[error("the session was evicted or deleted")]
    EvictedSession,
    /// The shared ledger did not confirm the change in time. It may be made later or not.
    #[error("the shared ledger did not confirm the change; read the session, and try again")]
    Unconfirmed,
    /// The number of the turn may mean another turn: the shared ledger had lost entries.
    #[error("the numbers of its turns have changed; read them again, and send \"generation\": {0}")]
    OtherGeneration(u32),
    /// Scores lack a column that other scores of the turn have got meanwhile.
    #[error("another request has added columns to the scores of the same teacher")]
    OtherColumns,
    /// Only the numbers of turns of shared sessions have generations.
    #[error("generation: sessions are not shared, see --ledger")]
    NoGenerations,
}

fn versions(last: u32) -> String {
    if last == 1 { "the only version is 1".to_owned() } else { format!("its versions are 1 to {last}") }
}

fn turns(count: u32) -> String {
    match count {
        0 => "it has none yet".to_owned(),
        1 => "the only turn is 0".to_owned(),
        _ => format!("its turns are 0 to {}", count - 1),
    }
}
