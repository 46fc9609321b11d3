//! A reply that is read whole before any of it goes on.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::generation::reason::Reason;
use crate::http::budget::Share;
use crate::sglang::client::{Failure, ReplyBody, innermost};

/// A body read to its end, or as far as there is room for it.
#[derive(Debug)]
pub enum Whole {
    /// All of it.
    All(Bytes),
    /// The rest is still to come.
    Passing {
        /// Why it is not read.
        reason: Reason,
        /// What was read.
        head: Bytes,
        /// What was not.
        rest: ReplyBody,
    },
}

/// Reads a body to its end.
///
/// # Errors
/// When it breaks off.
pub async fn collect(mut body: ReplyBody, headers: &HeaderMap, limit: u64, mut share: Share) -> Result<Whole, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    let reason = match announced {
        Some(length) if length > limit => Some(Reason::TooLarge),
        Some(length) if !share.has_room(length) => Some(Reason::NoRoom),
        _ => None,
    };
    if let Some(reason) = reason {
        return Ok(Whole::Passing { reason, head: Bytes::new(), rest: body });
    }
    let mut read = Vec::with_capacity(announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(0));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(innermost(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        read.extend_from_slice(&data);
        let room = share.grow(data.len());
        let reason =
            if read.len() as u64 > limit { Some(Reason::TooLarge) } else { room.err().map(|_| Reason::NoRoom) };
        if let Some(reason) = reason {
            return Ok(Whole::Passing { reason, head: share.hold(read), rest: body });
        }
    }
    Ok(Whole::All(share.hold(read)))
}
