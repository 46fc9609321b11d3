// SPDX-License-Identifier: Apache-2.0
//! The events of a generation. Each is parsed once: the native API splices its bytes, every other API reads its fields.

use std::borrow::Cow;
use std::ops::Range;

use bytes::Bytes;
use http::{HeaderMap, StatusCode};

use crate::engine::events::Chunk;
use crate::error::Error;
use crate::json::{Cursor, Malformed, Member, Object, Splice};

/// How a consumer accesses the events of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventAccess {
    /// Bytes in the engine's own format, in any pieces: a stream that needs no parsing has no events.
    Pieces,
    /// Bytes in the engine's own format, event by event: [`GenerationEvent::native`].
    Bytes,
    /// Parsed fields: [`GenerationEvent::kind`] and [`GenerationEvent::edited`].
    Fields,
}

/// One event of a generation. A reply that does not stream is a single event.
#[derive(Debug)]
pub struct GenerationEvent {
    /// A whole body, or a server-sent event with its blank line.
    raw: Bytes,
    /// The range of the JSON in `raw`; empty if it holds no JSON.
    json: Range<usize>,
    /// Members to add and to remove, for a consumer of fields. For a consumer of bytes they are already applied to `raw`.
    changes: Splice,
    /// What the event holds.
    pub kind: EventKind,
    /// After this event the client has everything it requested, although the stream may continue.
    pub completes: bool,
}

/// What an event holds.
#[derive(Debug)]
pub enum EventKind {
    /// The engine's objects: one per stream event, one per sequence in a reply that does not stream. Empty for a consumer of bytes.
    Outputs(Vec<Output>),
    /// `[DONE]`, which ends a stream.
    Done,
    /// Bytes that are not parsed.
    Unparsed(UnparsedReason),
    /// The trailers of the reply.
    Trailers(Box<HeaderMap>),
    /// tokentap ends the stream with an error. This is the last event.
    Failed(Error),
    /// The request was refused with this status after the stream had begun. The bytes are the body. This is the last event.
    Refused(StatusCode),
}

/// Bytes that an event takes beside its own bytes and outputs: itself, the counters of its `Arc`, and the pointers to it and to its bytes.
const EVENT_OVERHEAD: usize = size_of::<GenerationEvent>() + 4 * size_of::<usize>();

/// Why bytes are not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnparsedReason {
    /// A comment, or another event without one line of data.
    NoData,
    /// Data that is not in SGLang's format.
    Unreadable,
    /// A piece of a reply that is not parsed, such as an engine error or an event larger than the limit of a reply.
    Piece,
}

/// One object of the engine's reply.
#[derive(Debug)]
pub struct Output {
    /// The index of its sequence.
    pub index: usize,
    /// Its fields; spans are positions in the event's raw bytes.
    pub chunk: Chunk,
}

/// The parsed objects of a reply or an event, and the changes to its bytes.
#[derive(Debug, Default)]
pub struct ParsedOutputs {
    /// The objects, for a consumer of fields.
    pub outputs: Vec<Output>,
    /// Members to add and to remove.
    pub changes: Splice,
}

/// A server-sent event and the range of its JSON.
#[derive(Debug, Clone)]
pub struct EventFrame {
    /// A server-sent event with its blank line.
    pub raw: Bytes,
    /// The range of the JSON in `raw`.
    pub json: Range<usize>,
}

impl EventFrame {
    /// Applies changes that lie within the event's JSON, or remove the event.
    fn changed(self, changes: Splice) -> Self {
        if changes.is_empty() {
            return self;
        }
        let Self { raw, json } = self;
        let behind = raw.len() - json.end;
        let raw: Bytes = changes.apply(&raw).into();
        let json = if raw.is_empty() { 0..0 } else { json.start..raw.len() - behind };
        Self { raw, json }
    }

    /// Parses the event's object without its numbers, and without changes.
    ///
    /// # Errors
    /// When the JSON is not an object.
    pub fn outline(&self, reads: EventAccess) -> Result<ParsedOutputs, Malformed> {
        let mut cursor = Cursor::at(&self.raw[..self.json.end], self.json.start);
        let chunk = Chunk::outline(&mut cursor)?;
        cursor.end()?;
        let mut parsed = ParsedOutputs::default();
        parsed.add(reads, None, chunk);
        Ok(parsed)
    }
}

impl ParsedOutputs {
    /// Adds an object for a consumer of fields. `index` is the index of its sequence, if the object does not state it.
    pub(super) fn add(&mut self, reads: EventAccess, index: Option<usize>, chunk: Chunk) {
        if reads == EventAccess::Fields {
            self.outputs.push(Output { index: index.unwrap_or(chunk.index), chunk });
        }
    }
}

/// Calls `read` at each object of a whole reply: one, or a list of them.
///
/// # Errors
/// When the reply is neither, or `read` fails.
pub(super) fn for_each_object<E: From<Malformed>>(
    mut cursor: Cursor<'_>,
    mut read: impl FnMut(&mut Cursor<'_>, usize) -> Result<(), E>,
) -> Result<(), E> {
    if cursor.take(b'[') {
        let mut at = 0;
        while !cursor.take(b']') {
            if at > 0 {
                cursor.expect(b',')?;
            }
            read(&mut cursor, at)?;
            at += 1;
        }
    } else {
        read(&mut cursor, 0)?;
    }
    Ok(cursor.end()?)
}

impl GenerationEvent {
    /// A reply that does not stream.
    #[must_use]
    pub fn whole(body: Bytes, parsed: ParsedOutputs, reads: EventAccess) -> Self {
        let json = 0..body.len();
        Self::streamed(EventFrame { raw: body, json }, parsed, reads)
    }

    /// An event of a stream.
    #[must_use]
    pub fn streamed(framed: EventFrame, parsed: ParsedOutputs, reads: EventAccess) -> Self {
        let ParsedOutputs { outputs, changes } = parsed;
        let (framed, changes) = match reads {
            EventAccess::Pieces | EventAccess::Bytes => (framed.changed(changes), Splice::default()),
            EventAccess::Fields => (framed, changes),
        };
        let EventFrame { raw, json } = framed;
        Self { raw, json, changes, kind: EventKind::Outputs(outputs), completes: false }
    }

    /// The same event with its changes applied, which takes fewer bytes. `None` if it has no changes.
    #[must_use]
    pub fn compacted(&self) -> Option<Self> {
        let EventKind::Outputs(outputs) = &self.kind else { return None };
        if self.changes.is_empty() {
            return None;
        }
        let framed = EventFrame { raw: self.raw.clone(), json: self.json.clone() }.changed(self.changes.clone());
        let mut parsed = ParsedOutputs::default();
        let mut indexes = outputs.iter().map(|output| output.index);
        let cursor = Cursor::at(&framed.raw[..framed.json.end], framed.json.start);
        for_each_object(cursor, |cursor, _| {
            parsed.add(EventAccess::Fields, indexes.next(), Chunk::outline(cursor)?);
            Ok::<_, Malformed>(())
        })
        .ok()?;
        Some(Self { completes: self.completes, ..Self::streamed(framed, parsed, EventAccess::Fields) })
    }

    /// Parses a reply that does not stream without its numbers, and without changes.
    ///
    /// # Errors
    /// When it is neither an object nor a list of objects.
    pub fn outline(body: Bytes, reads: EventAccess) -> Result<Self, Malformed> {
        let mut parsed = ParsedOutputs::default();
        for_each_object(Cursor::new(&body), |cursor, at| {
            parsed.add(reads, Some(at), Chunk::outline(cursor)?);
            Ok::<_, Malformed>(())
        })?;
        Ok(Self::whole(body, parsed, reads))
    }

    /// Bytes that are forwarded unchanged.
    #[must_use]
    pub fn unparsed(raw: Bytes, why: UnparsedReason) -> Self {
        Self::plain(raw, EventKind::Unparsed(why))
    }

    /// An event whose data is not in SGLang's format.
    #[must_use]
    pub fn unreadable(framed: EventFrame) -> Self {
        Self { json: framed.json, ..Self::unparsed(framed.raw, UnparsedReason::Unreadable) }
    }

    /// The event that ends a stream.
    #[must_use]
    pub fn done(raw: Bytes) -> Self {
        Self::plain(raw, EventKind::Done)
    }

    /// The trailers of a reply.
    #[must_use]
    pub fn trailers(trailers: HeaderMap) -> Self {
        Self::plain(Bytes::new(), EventKind::Trailers(Box::new(trailers)))
    }

    /// The error event with which tokentap ends a stream.
    #[must_use]
    pub fn failed(error: Error) -> Self {
        let body = error.body();
        let raw = [b"data: ", &body[..], b"\n\n"].concat();
        let json = 6..6 + body.len();
        Self { json, ..Self::plain(raw.into(), EventKind::Failed(error)) }
    }

    /// The only event of a reply that tokentap replaces with an error.
    #[must_use]
    pub fn failed_whole(error: Error) -> Self {
        let body: Bytes = error.body().into();
        Self { json: 0..body.len(), ..Self::plain(body, EventKind::Failed(error)) }
    }

    /// The only event of a stream whose request was refused with this status and body.
    #[must_use]
    pub fn refused(status: StatusCode, body: Bytes) -> Self {
        Self { json: 0..body.len(), ..Self::plain(body, EventKind::Refused(status)) }
    }

    /// Passes the event's bytes to `count` if changes made a copy of the `received` bytes.
    #[must_use]
    pub fn counted(mut self, received: &Bytes, count: impl FnOnce(Bytes) -> Bytes) -> Self {
        if self.raw.as_ptr() != received.as_ptr() {
            self.raw = count(self.raw);
        }
        self
    }

    fn plain(raw: Bytes, kind: EventKind) -> Self {
        Self { raw, json: 0..0, changes: Splice::default(), kind, completes: false }
    }

    /// The event in the engine's own format, for a client of the native API. Only for a consumer of bytes.
    #[must_use]
    pub fn native(&self) -> &Bytes {
        &self.raw
    }

    /// The JSON of [`Self::native`], without the framing of server-sent events.
    #[must_use]
    pub fn native_json(&self) -> Bytes {
        self.raw.slice(self.json.clone())
    }

    /// The memory that the event uses in an `Arc`, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        let members = |object: &Object| object.members.len() * size_of::<Member>();
        let fields = |output: &Output| {
            let chunk = &output.chunk;
            size_of::<Output>() + members(&chunk.object) + chunk.meta.as_ref().map_or(0, members)
        };
        let outputs: usize = match &self.kind {
            EventKind::Outputs(outputs) => outputs.iter().map(fields).sum(),
            _ => 0,
        };
        EVENT_OVERHEAD + self.raw.len() + outputs
    }

    /// The bytes that the spans of the outputs refer to.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The bytes of a span of `raw` with its changes applied.
    #[must_use]
    pub fn edited(&self, span: Range<usize>) -> Vec<u8> {
        self.changes.within(&self.raw, span)
    }
}

impl Output {
    /// The engine's error as JSON text, if the object reports one: the member `error` of an object without a result, or an object like it
    /// for a sequence that ended with a `status_code`.
    #[must_use]
    pub fn error<'a>(&self, event: &'a GenerationEvent) -> Option<Cow<'a, str>> {
        let bytes = event.raw();
        if self.chunk.meta.is_none() {
            return std::str::from_utf8(self.chunk.error(bytes)?).ok().map(Cow::Borrowed);
        }
        let finish = self.chunk.finish.as_ref()?;
        let status = finish.status_code?;
        let message = finish.message.clone().and_then(|span| std::str::from_utf8(&bytes[span]).ok());
        let message = message.unwrap_or(r#""the engine failed""#);
        Some(Cow::Owned(format!("{{\"message\":{message},\"code\":{status}}}")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Edit;

    /// An event of a stream whose `meta_info` loses `id` and gains `entropy`.
    fn event(reads: EventAccess) -> GenerationEvent {
        let raw = Bytes::from_static(b"data: {\"index\":3,\"meta_info\":{\"id\":\"r\",\"n\":1}}\n\n");
        let framed = EventFrame { json: 6..raw.len() - 2, raw };
        let mut parsed = framed.outline(EventAccess::Fields).unwrap();
        let meta = parsed.outputs[0].chunk.meta.clone().unwrap();
        let mut edit = Edit::new(&framed.raw, &meta);
        edit.remove(|key| key.is("id"));
        edit.append("entropy", b"[0.5]");
        edit.finish(&mut parsed.changes);
        if reads == EventAccess::Bytes {
            parsed.outputs.clear();
        }
        GenerationEvent::streamed(framed, parsed, reads)
    }

    #[test]
    fn consumer_of_bytes_gets_the_changes_applied() {
        let event = event(EventAccess::Bytes);
        assert_eq!(event.native(), "data: {\"index\":3,\"meta_info\":{\"n\":1,\"entropy\":[0.5]}}\n\n");
        assert_eq!(event.native_json(), "{\"index\":3,\"meta_info\":{\"n\":1,\"entropy\":[0.5]}}");
        assert!(matches!(&event.kind, EventKind::Outputs(outputs) if outputs.is_empty()));
    }

    #[test]
    fn consumer_of_fields_gets_the_members_with_their_changes() {
        let event = event(EventAccess::Fields);
        let EventKind::Outputs(outputs) = &event.kind else { panic!("an object was parsed") };
        assert_eq!((outputs.len(), outputs[0].index), (1, 3));
        let span = outputs[0].chunk.meta.as_ref().unwrap().span.clone();
        assert_eq!(event.edited(span), b"{\"n\":1,\"entropy\":[0.5]}");
        let compacted = event.compacted().unwrap();
        let EventKind::Outputs(outputs) = &compacted.kind else { panic!("an object was parsed") };
        assert_eq!((outputs.len(), outputs[0].index), (1, 3));
        let span = outputs[0].chunk.meta.as_ref().unwrap().span.clone();
        assert_eq!(compacted.edited(span), b"{\"n\":1,\"entropy\":[0.5]}", "the same member");
        assert_eq!(compacted.raw(), "data: {\"index\":3,\"meta_info\":{\"n\":1,\"entropy\":[0.5]}}\n\n");
        assert!(compacted.compacted().is_none(), "it has no changes");
    }

    #[test]
    fn error_object_is_distinguished_from_a_result() {
        let error =
            GenerationEvent::outline(Bytes::from_static(b"{\"error\":{\"message\":\"m\"}}"), EventAccess::Fields)
                .unwrap();
        let EventKind::Outputs(outputs) = &error.kind else { panic!("an object was parsed") };
        assert_eq!(outputs[0].error(&error).as_deref(), Some("{\"message\":\"m\"}"));
        let failed = GenerationEvent::failed(Error::Strict { reason: "missing_rows".to_owned() });
        assert!(
            failed.native().starts_with(b"data: {") && failed.native_json().ends_with(b"}"),
            "{:?}",
            failed.native()
        );
    }

    #[test]
    fn list_of_objects_is_one_event() {
        let list = GenerationEvent::outline(Bytes::from_static(b"[{\"index\":0},{\"index\":0}]"), EventAccess::Fields)
            .unwrap();
        let EventKind::Outputs(outputs) = &list.kind else { panic!("objects were parsed") };
        let indexes: Vec<usize> = outputs.iter().map(|output| output.index).collect();
        assert_eq!(indexes, [0, 1], "by position in the list");
        assert!(GenerationEvent::outline(Bytes::from_static(b"[{]"), EventAccess::Fields).is_err());
    }
}
