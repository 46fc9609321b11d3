// SPDX-License-Identifier: Apache-2.0
//! Buffers a reply before any of it is returned.

use std::future::poll_fn;

use bytes::Bytes;
use http_body::Body as _;

use crate::budget::Share;
use crate::engine::reason::Reason;
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::failure::Failure;

/// A completely buffered body, or the part that fits the limits.
#[derive(Debug)]
pub(crate) enum BufferedReply {
    /// The whole body.
    All(Bytes),
    /// A body that exceeds a limit, read in part.
    Passing {
        /// The limit that it exceeds.
        reason: Reason,
        /// The bytes that were read.
        head: Bytes,
        /// The remaining body.
        rest: ReplyBody,
    },
}

/// Reads a body to its end, or until it exceeds a limit. `share` counts the memory.
///
/// # Errors
/// When it breaks off.
pub(crate) async fn collect(mut body: ReplyBody, limit: u64, mut share: Share) -> Result<BufferedReply, Failure> {
    let passing = |reason, head, rest| Ok(BufferedReply::Passing { reason, head, rest });
    let mut bytes = Vec::new();
    if let Some(announced) = body.size_hint().exact() {
        let length = usize::try_from(announced).unwrap_or(usize::MAX);
        if announced > limit {
            return passing(Reason::TooLarge, Bytes::new(), body);
        }
        if share.resize(length).is_err() {
            return passing(Reason::NoRoom, Bytes::new(), body);
        }
        bytes.reserve_exact(length);
    }
    while let Some(read) = poll_fn(|cx| body.poll_read(cx, &mut bytes)).await {
        read?;
        let is_full = share.resize(bytes.capacity()).is_err();
        if is_full {
            share.insist(bytes.capacity());
        }
        if is_full || bytes.len() as u64 > limit {
            let reason = if is_full { Reason::NoRoom } else { Reason::TooLarge };
            return passing(reason, share.hold(bytes), body);
        }
    }
    // the bytes are held for as long as a client reads; a copy costs less
    if bytes.capacity() > bytes.len() / 4 * 5 {
        bytes.shrink_to_fit();
        share.insist(bytes.capacity());
    }
    Ok(BufferedReply::All(share.hold(bytes)))
}
