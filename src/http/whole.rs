//! A reply that is read whole before any of it goes on.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::sglang::client::{Failure, ReplyBody, innermost};

/// A body read to its end, or up to the limit.
#[derive(Debug)]
pub enum Whole {
    /// All of it.
    All(Bytes),
    /// The rest is still to come.
    TooLarge {
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
pub async fn collect(mut body: ReplyBody, headers: &HeaderMap, limit: u64) -> Result<Whole, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Ok(Whole::TooLarge { head: Bytes::new(), rest: body });
    }
    let mut read = Vec::with_capacity(announced.and_then(|length| usize::try_from(length).ok()).unwrap_or(0));
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(innermost(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        read.extend_from_slice(&data);
        if read.len() as u64 > limit {
            return Ok(Whole::TooLarge { head: read.into(), rest: body });
        }
    }
    Ok(Whole::All(read.into()))
}
