//! A reply that is read whole before any of it goes on.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::generation::reason::Reason;
use crate::http::budget::Share;
use crate::http::gathered::Gathered;
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
pub async fn collect(mut body: ReplyBody, headers: &HeaderMap, limit: u64, share: Share) -> Result<Whole, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Ok(Whole::Passing { reason: Reason::TooLarge, head: Bytes::new(), rest: body });
    }
    let mut gathered = Gathered::new(Some(share), announced);
    if gathered.reserve().is_err() {
        return Ok(Whole::Passing { reason: Reason::NoRoom, head: Bytes::new(), rest: body });
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
            return Ok(Whole::Passing { reason, head: gathered.into_bytes(), rest: body });
        }
    }
    Ok(Whole::All(gathered.into_bytes()))
}
