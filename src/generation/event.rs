//! The events of a generation, each parsed once: the native API splices their bytes, every other API reads their fields.

use std::ops::Range;

use bytes::Bytes;
use http::HeaderMap;

use crate::engine::response::Chunk;
use crate::error::Error;
use crate::json::{Cursor, Malformed, Member, Object, Splice};

/// What the consumer of a generation reads of its events.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Reads {
    /// Bytes in the engine's own format: [`GenerationEvent::native`].
    Bytes,
    /// Parsed fields: [`GenerationEvent::kind`] and [`GenerationEvent::edited`].
    Fields,
}

/// One event of a generation. A reply that does not stream is a single event.
#[derive(Debug)]
pub struct GenerationEvent {
    /// A whole body, or a server-sent event with its blank line.
    raw: Bytes,
    /// The JSON in `raw`; empty if it holds no JSON.
    json: Range<usize>,
    /// Members to add and to remove, for a consumer that reads fields; for one that reads bytes they are applied to `raw`.
    changes: Splice,
    /// What the event holds.
    pub kind: EventKind,
    /// With this event the client has everything it asked for, although the stream may go on.
    pub completes: bool,
}

/// What an event holds.
#[derive(Debug)]
pub enum EventKind {
    /// Objects of the engine: one in a stream, one for each sequence in a reply that does not stream. Empty for a consumer that reads bytes.
    Outputs(Vec<Output>),
    /// `[DONE]`, which ends a stream.
    Done,
    /// Bytes that are not parsed.
    Unparsed(Unparsed),
    /// The trailers of the reply.
    Trailers(Box<HeaderMap>),
    /// tokentap ends the stream; the last event.
    Failed(Error),
}

/// Why bytes are not parsed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unparsed {
    /// A comment, or another event without one line of data.
    NoData,
    /// Data that is not what SGLang writes.
    Unreadable,
    /// A piece of a reply that is not parsed, such as an error of the engine's or an event larger than `--max-reply-bytes`.
    Piece,
}

/// One object of the engine.
#[derive(Debug)]
pub struct Output {
    /// The sequence it belongs to.
    pub index: usize,
    /// Its fields; spans are positions in the event's raw bytes.
    pub chunk: Chunk,
}

/// What was parsed of a reply or of an event.
#[derive(Debug, Default)]
pub struct Parsed {
    /// The objects, for a consumer that reads fields.
    pub outputs: Vec<Output>,
    /// Members to add and to remove.
    pub changes: Splice,
}

/// Where the JSON of an event lies.
#[derive(Debug, Clone)]
pub struct Framed {
    /// A server-sent event with its blank line.
    pub raw: Bytes,
    /// The JSON in it.
    pub json: Range<usize>,
}

impl Framed {
    /// The event with the changes, which lie within its JSON.
    fn changed(self, changes: Splice) -> Self {
        if changes.is_empty() {
            return self;
        }
        let Self { raw, json } = self;
        let behind = raw.len() - json.end;
        let raw: Bytes = changes.apply(&raw).into();
        let json = json.start..raw.len() - behind;
        Self { raw, json }
    }

    /// The object of the event, without its numbers and without changes.
    ///
    /// # Errors
    /// When it is no object.
    pub fn outline(&self, reads: Reads) -> Result<Parsed, Malformed> {
        let mut cursor = Cursor::at(&self.raw[..self.json.end], self.json.start);
        let chunk = Chunk::outline(&mut cursor)?;
        cursor.end()?;
        let mut parsed = Parsed::default();
        parsed.add(reads, None, chunk);
        Ok(parsed)
    }
}

impl Parsed {
    /// Keeps an object where the consumer reads it; `index` is that of its sequence where the object does not say it.
    pub(super) fn add(&mut self, reads: Reads, index: Option<usize>, chunk: Chunk) {
        if reads == Reads::Fields {
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
    pub fn whole(body: Bytes, parsed: Parsed, reads: Reads) -> Self {
        let json = 0..body.len();
        Self::streamed(Framed { raw: body, json }, parsed, reads)
    }

    /// An event of a stream.
    #[must_use]
    pub fn streamed(framed: Framed, parsed: Parsed, reads: Reads) -> Self {
        let Parsed { outputs, changes } = parsed;
        let (framed, changes) = match reads {
            Reads::Bytes => (framed.changed(changes), Splice::default()),
            Reads::Fields => (framed, changes),
        };
        let Framed { raw, json } = framed;
        Self { raw, json, changes, kind: EventKind::Outputs(outputs), completes: false }
    }

    /// The same event in fewer bytes: without the members that are removed from it. `None` where it has no changes.
    #[must_use]
    pub fn compacted(&self) -> Option<Self> {
        let EventKind::Outputs(outputs) = &self.kind else { return None };
        if self.changes.is_empty() {
            return None;
        }
        let framed = Framed { raw: self.raw.clone(), json: self.json.clone() }.changed(self.changes.clone());
        let mut parsed = Parsed::default();
        let mut indexes = outputs.iter().map(|output| output.index);
        let cursor = Cursor::at(&framed.raw[..framed.json.end], framed.json.start);
        for_each_object(cursor, |cursor, _| {
            parsed.add(Reads::Fields, indexes.next(), Chunk::outline(cursor)?);
            Ok::<_, Malformed>(())
        })
        .ok()?;
        Some(Self { completes: self.completes, ..Self::streamed(framed, parsed, Reads::Fields) })
    }

    /// A reply that does not stream, without its numbers and without changes.
    ///
    /// # Errors
    /// When it is neither an object nor a list of objects.
    pub fn outline(body: Bytes, reads: Reads) -> Result<Self, Malformed> {
        let mut parsed = Parsed::default();
        for_each_object(Cursor::new(&body), |cursor, at| {
            parsed.add(reads, Some(at), Chunk::outline(cursor)?);
            Ok::<_, Malformed>(())
        })?;
        Ok(Self::whole(body, parsed, reads))
    }

    /// Bytes that are passed unchanged.
    #[must_use]
    pub fn unparsed(raw: Bytes, why: Unparsed) -> Self {
        Self::plain(raw, EventKind::Unparsed(why))
    }

    /// An event whose data is not what SGLang writes.
    #[must_use]
    pub fn unreadable(framed: Framed) -> Self {
        Self { json: framed.json, ..Self::unparsed(framed.raw, Unparsed::Unreadable) }
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

    /// The event by which tokentap ends a stream.
    #[must_use]
    pub fn failed(error: Error) -> Self {
        let body = error.body();
        let raw = [b"data: ", &body[..], b"\n\n"].concat();
        let json = 6..6 + body.len();
        Self { json, ..Self::plain(raw.into(), EventKind::Failed(error)) }
    }

    /// The one event of a reply in whose place tokentap answers with an error.
    #[must_use]
    pub fn failed_whole(error: Error) -> Self {
        let body: Bytes = error.body().into();
        Self { json: 0..body.len(), ..Self::plain(body, EventKind::Failed(error)) }
    }

    /// The event of a reply that was `received`, with its bytes counted by `count` where changes made others.
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

    /// The event in the engine's own format, as a client of the native API gets it. Only for a consumer that reads bytes.
    #[must_use]
    pub fn native(&self) -> &Bytes {
        &self.raw
    }

    /// The JSON of [`Self::native`], without the framing of server-sent events.
    #[must_use]
    pub fn native_json(&self) -> Bytes {
        self.raw.slice(self.json.clone())
    }

    /// Bytes of memory that the event holds.
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
        self.raw.len() + outputs
    }

    /// The bytes that the spans of the outputs refer to.
    #[must_use]
    pub fn raw(&self) -> &Bytes {
        &self.raw
    }

    /// The bytes of a span of `raw` with the changes that lie within it.
    #[must_use]
    pub fn edited(&self, span: Range<usize>) -> Vec<u8> {
        self.changes.within(&self.raw, span)
    }
}

impl Output {
    /// `error`, as JSON text: the object says why nothing follows.
    #[must_use]
    pub fn error<'a>(&self, event: &'a GenerationEvent) -> Option<&'a str> {
        let object: &Object = &self.chunk.object;
        if self.chunk.meta.is_some() {
            return None;
        }
        std::str::from_utf8(object.get(event.raw(), "error")?).ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::Edit;

    /// An event of a stream whose `meta_info` loses `id` and gains `entropy`.
    fn event(reads: Reads) -> GenerationEvent {
        let raw = Bytes::from_static(b"data: {\"index\":3,\"meta_info\":{\"id\":\"r\",\"n\":1}}\n\n");
        let framed = Framed { json: 6..raw.len() - 2, raw };
        let mut parsed = framed.outline(Reads::Fields).unwrap();
        let meta = parsed.outputs[0].chunk.meta.clone().unwrap();
        let mut edit = Edit::new(&framed.raw, &meta);
        edit.remove(|key| key.is("id"));
        edit.append("entropy", b"[0.5]");
        edit.finish(&mut parsed.changes);
        if reads == Reads::Bytes {
            parsed.outputs.clear();
        }
        GenerationEvent::streamed(framed, parsed, reads)
    }

    #[test]
    fn a_consumer_of_bytes_gets_the_changes_applied() {
        let event = event(Reads::Bytes);
        assert_eq!(event.native(), "data: {\"index\":3,\"meta_info\":{\"n\":1,\"entropy\":[0.5]}}\n\n");
        assert_eq!(event.native_json(), "{\"index\":3,\"meta_info\":{\"n\":1,\"entropy\":[0.5]}}");
        assert!(matches!(&event.kind, EventKind::Outputs(outputs) if outputs.is_empty()));
    }

    #[test]
    fn a_consumer_of_fields_gets_the_members_with_their_changes() {
        let event = event(Reads::Fields);
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
    fn an_error_object_is_told_from_a_result() {
        let error =
            GenerationEvent::outline(Bytes::from_static(b"{\"error\":{\"message\":\"m\"}}"), Reads::Fields).unwrap();
        let EventKind::Outputs(outputs) = &error.kind else { panic!("an object was parsed") };
        assert_eq!(outputs[0].error(&error), Some("{\"message\":\"m\"}"));
        let failed = GenerationEvent::failed(Error::Strict { reason: "missing_rows".to_owned() });
        assert!(
            failed.native().starts_with(b"data: {") && failed.native_json().ends_with(b"}"),
            "{:?}",
            failed.native()
        );
    }

    #[test]
    fn a_list_of_objects_is_one_event() {
        let list =
            GenerationEvent::outline(Bytes::from_static(b"[{\"index\":0},{\"index\":0}]"), Reads::Fields).unwrap();
        let EventKind::Outputs(outputs) = &list.kind else { panic!("objects were parsed") };
        let indexes: Vec<usize> = outputs.iter().map(|output| output.index).collect();
        assert_eq!(indexes, [0, 1], "by their place in the list");
        assert!(GenerationEvent::outline(Bytes::from_static(b"[{]"), Reads::Fields).is_err());
    }
}
