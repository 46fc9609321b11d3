//! A reply that is read whole before any of it is handed out.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::budget::BodyBuffer;
use crate::budget::Share;
use crate::engine::client::{Failure, ReplyBody, innermost};
use crate::generation::reason::Reason;

/// A body read to its end, or as far as there is room for it.
#[derive(Debug)]
pub enum BufferedReply {
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
pub async fn collect(
    mut body: ReplyBody,
    headers: &HeaderMap,
    limit: u64,
    share: Share,
) -> Result<BufferedReply, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Ok(BufferedReply::Passing { reason: Reason::TooLarge, head: Bytes::new(), rest: body });
    }
    let mut gathered = BodyBuffer::new(Some(share), announced);
    if gathered.reserve().is_err() {
        return Ok(BufferedReply::Passing { reason: Reason::NoRoom, head: Bytes::new(), rest: body });
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(innermost(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        let full = gathered.push(&data).is_err();
        if full || gathered.len() as u64 > limit {
            let reason = if full { Reason::NoRoom } else { Reason::TooLarge };
            if full {
                gathered.insist(&data);
            }
            return Ok(BufferedReply::Passing { reason, head: gathered.into_bytes(), rest: body });
        }
    }
    Ok(BufferedReply::All(gathered.into_bytes()))
}
