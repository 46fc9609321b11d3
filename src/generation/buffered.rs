//! Buffers a reply before any of it is returned.

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body_util::BodyExt;

use crate::budget::BodyBuffer;
use crate::budget::Share;
use crate::engine::reason::Reason;
use crate::engine::transport::client::ReplyBody;
use crate::engine::transport::failure::{Failure, innermost};
use crate::engine::transport::pool::READ_BUFFER;

/// A piece of this size is not copied if it is the whole body. A smaller one is, because it would keep a whole read buffer in use.
const LARGE_PIECE: usize = READ_BUFFER / 4;

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

/// Reads a body to its end, or until it exceeds a limit.
///
/// # Errors
/// When it breaks off.
pub(crate) async fn collect(
    mut body: ReplyBody,
    headers: &HeaderMap,
    limit: u64,
    share: Share,
) -> Result<BufferedReply, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit) {
        return Ok(BufferedReply::Passing { reason: Reason::TooLarge, head: Bytes::new(), rest: body });
    }
    let mut buffer = BodyBuffer::new(Some(share), announced);
    if buffer.reserve().is_err() {
        return Ok(BufferedReply::Passing { reason: Reason::NoRoom, head: Bytes::new(), rest: body });
    }
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| Failure::Broken(innermost(&error)))?;
        let Ok(data) = frame.into_data() else { continue };
        if data.len() >= LARGE_PIECE {
            match buffer.whole_piece(&data, READ_BUFFER) {
                Ok(all) => return Ok(BufferedReply::All(all)),
                Err(unchanged) => buffer = unchanged,
            }
        }
        let full = buffer.push(&data).is_err();
        if full || buffer.len() as u64 > limit {
            let reason = if full { Reason::NoRoom } else { Reason::TooLarge };
            if full {
                buffer.insist(&data);
            }
            return Ok(BufferedReply::Passing { reason, head: buffer.into_bytes(), rest: body });
        }
    }
    Ok(BufferedReply::All(buffer.into_bytes()))
}
