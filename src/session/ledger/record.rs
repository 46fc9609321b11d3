// SPDX-License-Identifier: Apache-2.0
//! The records of sessions, and their encoding.
//!
//! A record is encoded as a head in the format of postcard, the token columns of a turn or its scores in the order in which the head describes them,
//! and the bytes of the pictures that no earlier turn of the session has.
//! An id takes as many bytes as the largest id of its list needs. Floats are little-endian, so a NaN keeps its bits.
//! The head has no names of members: a change to a type in it is a change of [`SCHEMA`].

use std::borrow::Cow;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use postcard::ser_flavors::Flavor;
use serde::{Deserialize, Serialize};

use crate::columns::{Column, NumberType, Shape};
use crate::session::{MOST_TAGS, MOST_TURNS, PromptImages, RewardScope, Scores, Tags, Turn, Uid, is_name};

/// The number of the layout of records, in the log and in the shared ledger. A log or a ledger with another number is not read.
pub const SCHEMA: u64 = 8;

/// One change of a session.
#[derive(Debug, Clone, PartialEq)]
pub struct Record {
    /// The name of the session.
    pub session: Arc<str>,
    /// The birth of the session, which distinguishes sessions of one name.
    pub birth: Uid,
    /// The change.
    pub change: Change,
}

/// The kind of a change. Its serialized form has no token columns.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// The session begins. Only in shared ledgers, as the first record of the session.
    Begin {
        /// Its start: milliseconds since 1970.
        created_ms: u64,
    },
    /// The records after this one were appended again, because the ledger had lost them. Numbers of turns may have changed.
    Healed,
    /// A turn was added.
    Turn(Arc<Turn>),
    /// A reward was set.
    Reward {
        /// What it is for.
        scope: RewardScope,
        /// A number or an object.
        #[serde(with = "json_text")]
        reward: Arc<serde_json::Value>,
        /// The version of the session it is for.
        version: u32,
    },
    /// A version was frozen.
    Freeze {
        /// The number of turns of that version.
        turns: u32,
    },
    /// A generation was not recorded.
    Incomplete,
    /// The stored response of a turn was deleted.
    ResponseDeleted {
        /// The turn.
        turn: u32,
    },
    /// The session was deleted.
    Deleted,
    /// The session was evicted from memory; its name is free for another.
    Evicted,
    /// A path has finished and was published to trainers.
    Finished {
        /// Its last turn.
        leaf: u32,
        /// The number of turns of the session at that time.
        turns: u32,
        /// Its position in the order of all finished paths.
        number: u64,
    },
    /// A teacher has scored a turn.
    Scored(Arc<Scores>),
    /// All tags of the session were replaced. Those of a call are in its turn.
    Tags(Tags),
}

/// The part of a record before the token columns.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    session: Arc<str>,
    birth: Uid,
    change: Cow<'a, Change>,
    /// The columns that each turn has.
    tokens: Option<TokenHead>,
    /// The other columns.
    columns: Vec<ColumnHead<'a>>,
}

/// The description of the columns that each turn has, in their order.
#[derive(Serialize, Deserialize)]
struct TokenHead {
    prompt: IdsHead,
    response: IdsHead,
    /// The number of logprobs.
    logprobs: u32,
    /// The number of entropies.
    entropy: u32,
}

/// The description of a list of ids.
#[derive(Clone, Copy, Serialize, Deserialize)]
struct IdsHead {
    count: u32,
    /// The bytes of an id, from 1 to 4.
    width: u8,
}

/// The description of a column.
#[derive(Serialize, Deserialize)]
struct ColumnHead<'a> {
    name: Cow<'a, str>,
    number: NumberType,
    tokens: Range<i32>,
    /// See [`Shape`]; `None` is [`Shape::Ragged`].
    dimensions: Option<Cow<'a, [u32]>>,
    bytes: u32,
}

/// The text of a JSON value, whose type the format of the head cannot tell.
mod json_text {
    use std::sync::Arc;

    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::Value;

    pub(super) fn serialize<S: Serializer>(value: &Arc<Value>, serializer: S) -> Result<S::Ok, S::Error> {
        serde_json::to_string(value).map_err(S::Error::custom)?.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Arc<Value>, D::Error> {
        serde_json::from_str(<&str>::deserialize(deserializer)?).map_err(D::Error::custom)
    }
}

impl Record {
    /// A change of a session.
    #[must_use]
    pub fn new(session: impl Into<Arc<str>>, birth: Uid, change: Change) -> Self {
        Self { session: session.into(), birth, change }
    }

    /// The approximate bytes that it takes in memory, for limits.
    pub(super) fn bytes(&self) -> u64 {
        let own = size_of::<Self>() as u64;
        match &self.change {
            Change::Turn(turn) => own + turn.record_bytes(),
            Change::Scored(scores) => own + scores.bytes(),
            Change::Tags(tags) => own + tags.bytes() as u64,
            // values are small, and measuring one would mean a walk over it
            _ => own + 256,
        }
    }

    /// Whether a tokentap can have written it. Names of a damaged or foreign log must not become file names, and its numbers must not
    /// become millions of placeholder turns.
    pub(in crate::session) fn is_plausible(&self) -> bool {
        let numbers = match &self.change {
            Change::Turn(turn) => turn.id < MOST_TURNS,
            Change::Reward { scope, .. } => scope.turn().is_none_or(|turn| turn < MOST_TURNS),
            Change::ResponseDeleted { turn } => *turn < MOST_TURNS,
            Change::Scored(scores) => scores.turn < MOST_TURNS,
            Change::Freeze { turns } => *turns <= MOST_TURNS,
            Change::Tags(tags) => tags.len() <= MOST_TAGS,
            Change::Finished { leaf, turns, .. } => leaf < turns && *turns <= MOST_TURNS,
            _ => true,
        };
        numbers && is_name(&self.session)
    }

    /// The record with references to pictures only.
    pub(in crate::session) fn without_image_bytes(&self) -> Cow<'_, Self> {
        let Change::Turn(turn) = &self.change else { return Cow::Borrowed(self) };
        let has_bytes = |images: &PromptImages| images.stored().next().is_some();
        if !turn.about.images.as_deref().is_some_and(has_bytes) {
            return Cow::Borrowed(self);
        }
        let mut turn = Turn::clone(turn);
        turn.about.images.iter_mut().for_each(|images| images.mark_stored(|_| true));
        Cow::Owned(Self { change: Change::Turn(Arc::new(turn)), session: Arc::clone(&self.session), birth: self.birth })
    }

    /// Appends the record's bytes to `out`.
    ///
    /// # Errors
    /// When a length does not fit into 32 bits. `out` may have a part of the record then.
    pub(in crate::session) fn encode(&self, out: &mut Vec<u8>) -> io::Result<()> {
        let turn = if let Change::Turn(turn) = &self.change { Some(turn) } else { None };
        let columns = match &self.change {
            Change::Turn(turn) => &turn.about.columns[..],
            Change::Scored(scores) => &scores.columns,
            _ => &[],
        };
        let tokens = turn.map(|turn| TokenHead::try_new(turn)).transpose()?;
        let (prompt, response) = tokens.as_ref().map(|tokens| (tokens.prompt, tokens.response)).unzip();
        let head = Head {
            session: Arc::clone(&self.session),
            birth: self.birth,
            change: Cow::Borrowed(&self.change),
            tokens,
            columns: columns.iter().map(ColumnHead::try_new).collect::<Result<_, _>>()?,
        };
        append_head(&head, out)?;
        if let Some(turn) = turn {
            prompt.iter().for_each(|head| head.push(&turn.prompt, out));
            response.iter().for_each(|head| head.push(&turn.response, out));
            push::<4>(out, turn.logprobs.iter().map(|nats| nats.to_bits()));
            push::<4>(out, turn.entropy.iter().map(|nats| nats.to_bits()));
        }
        columns.iter().for_each(|column| out.extend_from_slice(&column.data));
        let images = turn.and_then(|turn| turn.about.images.as_ref());
        for image in images.into_iter().flat_map(|images| images.stored()) {
            out.extend_from_slice(image.bytes.as_ref().expect("a stored picture has its bytes"));
        }
        Ok(())
    }

    /// Decodes a record; `None` if this build cannot read it.
    pub(in crate::session) fn decode(bytes: &[u8]) -> Option<Self> {
        let (Head { session, birth, change, tokens, columns }, mut rest) = postcard::take_from_bytes(bytes).ok()?;
        let mut change = change.into_owned();
        let read_columns =
            |rest: &mut &[u8]| columns.into_iter().map(|column| column.with_data(rest)).collect::<Option<Vec<_>>>();
        match &mut change {
            Change::Turn(turn) => {
                let turn = Arc::get_mut(turn).expect("it was made by the decoder");
                let TokenHead { prompt, response, logprobs, entropy } = tokens?;
                turn.prompt = prompt.read(&mut rest)?;
                turn.response = response.read(&mut rest)?;
                turn.logprobs = read::<4, _, _>(&mut rest, logprobs, f32::from_bits)?;
                turn.entropy = read::<4, _, _>(&mut rest, entropy, f32::from_bits)?;
                turn.about.columns = read_columns(&mut rest)?;
                if let Some(images) = &mut turn.about.images {
                    images.set_keys(&turn.prompt);
                    for image in images.stored_mut() {
                        let (bytes, after) = rest.split_at_checked(usize::try_from(image.size).ok()?)?;
                        image.bytes = Some(Bytes::copy_from_slice(bytes));
                        rest = after;
                    }
                }
            }
            Change::Scored(scores) => {
                let scores = Arc::get_mut(scores).expect("it was made by the decoder");
                scores.columns = read_columns(&mut rest)?;
            }
            _ => {}
        }
        rest.is_empty().then_some(Self { session, birth, change })
    }
}

impl TokenHead {
    fn try_new(turn: &Turn) -> io::Result<Self> {
        Ok(Self {
            prompt: IdsHead::try_new(&turn.prompt)?,
            response: IdsHead::try_new(&turn.response)?,
            logprobs: fit(turn.logprobs.len())?,
            entropy: fit(turn.entropy.len())?,
        })
    }
}

impl IdsHead {
    fn try_new(ids: &[u32]) -> io::Result<Self> {
        let bits = u32::BITS - ids.iter().fold(0, |bits, id| bits | id).leading_zeros();
        let width = u8::try_from(bits.div_ceil(8).max(1)).expect("an id has four bytes");
        Ok(Self { count: fit(ids.len())?, width })
    }

    fn push(self, ids: &[u32], out: &mut Vec<u8>) {
        let ids = ids.iter().copied();
        match self.width {
            1 => push::<1>(out, ids),
            2 => push::<2>(out, ids),
            3 => push::<3>(out, ids),
            _ => push::<4>(out, ids),
        }
    }

    fn read<C: FromIterator<u32>>(self, rest: &mut &[u8]) -> Option<C> {
        match self.width {
            1 => read::<1, _, _>(rest, self.count, |id| id),
            2 => read::<2, _, _>(rest, self.count, |id| id),
            3 => read::<3, _, _>(rest, self.count, |id| id),
            4 => read::<4, _, _>(rest, self.count, |id| id),
            _ => None,
        }
    }
}

impl<'a> ColumnHead<'a> {
    fn try_new(column: &'a Column) -> io::Result<Self> {
        let Column { name, number, tokens, shape, data } = column;
        let dimensions = match shape {
            Shape::Ragged => None,
            Shape::Fixed(dimensions) => Some(Cow::Borrowed(&**dimensions)),
        };
        let (name, number, tokens) = (Cow::Borrowed(&**name), *number, tokens.clone());
        Ok(Self { name, number, tokens, dimensions, bytes: fit(data.len())? })
    }

    /// The column, whose data are the next bytes of `rest`.
    fn with_data(self, rest: &mut &[u8]) -> Option<Column> {
        let (data, after) = rest.split_at_checked(usize::try_from(self.bytes).ok()?)?;
        *rest = after;
        let Self { name, number, tokens, dimensions, .. } = self;
        let shape = dimensions.map_or(Shape::Ragged, |dimensions| Shape::Fixed(dimensions.into_owned().into()));
        Some(Column { name: name.into(), number, tokens, shape, data: Bytes::copy_from_slice(data) })
    }
}

/// Appends to a buffer.
struct Appender<'a>(&'a mut Vec<u8>);

impl Flavor for Appender<'_> {
    type Output = ();

    fn try_push(&mut self, byte: u8) -> postcard::Result<()> {
        self.0.push(byte);
        Ok(())
    }

    fn try_extend(&mut self, bytes: &[u8]) -> postcard::Result<()> {
        self.0.extend_from_slice(bytes);
        Ok(())
    }

    fn finalize(self) -> postcard::Result<()> {
        Ok(())
    }
}

/// Appends a head to `out`.
pub(super) fn append_head(head: &impl Serialize, out: &mut Vec<u8>) -> io::Result<()> {
    postcard::serialize_with_flavor(head, Appender(out)).map_err(io::Error::other)
}

fn fit(length: usize) -> io::Result<u32> {
    u32::try_from(length).map_err(|_| io::ErrorKind::FileTooLarge.into())
}

/// Appends the lowest `N` bytes of each value.
fn push<const N: usize>(out: &mut Vec<u8>, values: impl ExactSizeIterator<Item = u32>) {
    let start = out.len();
    out.resize(start + N * values.len(), 0);
    for (place, value) in out[start..].as_chunks_mut::<N>().0.iter_mut().zip(values) {
        place.copy_from_slice(&value.to_le_bytes()[..N]);
    }
}

/// The next `count` values of `rest`, of `N` bytes each.
fn read<const N: usize, T, C: FromIterator<T>>(rest: &mut &[u8], count: u32, value: impl Fn(u32) -> T) -> Option<C> {
    let bytes = usize::try_from(count).ok()?.checked_mul(N)?;
    let (values, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    let widened = |bytes: &[u8; N]| {
        let mut wide = [0; 4];
        wide[..N].copy_from_slice(bytes);
        value(u32::from_le_bytes(wide))
    };
    Some(values.as_chunks::<N>().0.iter().map(widened).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::columns::ColumnFault;
    use crate::images::Image;
    use crate::session::ledger::log::fake;
    use crate::session::{AdapterSpan, TurnMetadata, WeightEpochs};
    use crate::session::{
        CallerKey, Cause, Chat, Dialect, Digest, EntropyMethod, Fault, Fingerprint, Labels, ParseOptions, ReplyChange,
        ReplyChanges, RequestClass, SamplingSource, SamplingSources, SharedItems, Span, StoredRequest, TurnKey,
    };

    fn bytes(record: &Record) -> Vec<u8> {
        let mut bytes = Vec::new();
        record.encode(&mut bytes).unwrap();
        bytes
    }

    fn text() -> impl Strategy<Value = Box<str>> {
        "\\PC{0,8}".prop_map(Into::into)
    }

    fn about() -> impl Strategy<Value = TurnMetadata> {
        let span = (any::<[u32; 2]>(), any::<[u64; 2]>(), prop::option::of(text())).prop_map(
            |([start, end], [epoch, until], version)| Span {
                start,
                end,
                epoch,
                until,
                weight_version: version.clone(),
                version: version.clone(),
                process: format!("{until:016x}").parse().ok().filter(|_| start % 2 == 1),
                adapter: (end % 2 == 1).then(|| {
                    let name = version.as_deref().unwrap_or("a").into();
                    Box::new(AdapterSpan { name, epoch: until, until: epoch, version: version.clone() })
                }),
            },
        );
        let measured = prop::option::of((-1e3..1e3f64).prop_map(|temperature| EntropyMethod {
            source: "top_k".into(),
            estimator: "estimate".into(),
            temperature: Some(temperature),
            top_k: (temperature > 0.0).then_some(20),
            reason: None,
        }));
        let fault = prop::option::of(prop::sample::select(&Fault::ALL[..]));
        let names = (prop::option::of(text()), text(), prop::collection::btree_map(text(), text(), 0..3));
        let numbers = (any::<[u32; 2]>(), any::<u64>(), prop::option::of(any::<u64>()));
        let cause = prop::sample::select(&Cause::ALL[..]);
        (names, numbers, cause, fault, measured, prop::collection::vec(span, 0..3)).prop_map(
            |((rid, model, extras), ([index, other], started_ms, first_ms), cause, fault, measured, policy)| {
                TurnMetadata {
                    uid: Uid::unique(),
                    engine: rid.as_deref().map(Into::into),
                    rid: rid.clone(),
                    index,
                    cause,
                    predecessor: first_ms.map(|_| other),
                    finish: rid.clone(),
                    fault,
                    supersedes: vec![other; (other % 3) as usize],
                    policy,
                    measured: measured.map(Arc::new),
                    sampling: rid.as_deref().map(Into::into),
                    model: model.into(),
                    lora_path: rid.as_deref().map(Into::into),
                    started_ms,
                    first_ms,
                    elapsed_ms: started_ms,
                    cached_tokens: first_ms,
                    chat: chat(index, started_ms),
                    labels: labels(index, rid.as_deref()),
                    tags: tags(index),
                    columns: columns(index),
                    missing_columns: missing_columns(index),
                    extras,
                    images: None,
                }
            },
        )
    }

    fn tags(number: u32) -> Tags {
        let tags: Vec<String> = (0..number % 4).map(|at| format!("tag{at}={number}")).collect();
        Tags::parse_list(tags.join(",").as_bytes()).expect("they are valid")
    }

    fn missing_columns(index: u32) -> BTreeMap<Box<str>, ColumnFault> {
        ColumnFault::ALL.into_iter().take(index as usize % 4).map(|fault| (fault.name().into(), fault)).collect()
    }

    fn columns(index: u32) -> Vec<Column> {
        let column = |at: u32| Column {
            name: format!("column_{at}").into(),
            number: NumberType::ALL[at as usize % NumberType::ALL.len()],
            tokens: -1..at.cast_signed(),
            shape: if at.is_multiple_of(2) { Shape::Ragged } else { Shape::Fixed([at, 2].into()) },
            data: vec![at as u8; at as usize].into(),
        };
        (0..index % 15).map(column).collect()
    }

    fn labels(index: u32, text: Option<&str>) -> Option<Arc<Labels>> {
        let class = RequestClass::ALL.into_iter().nth(index as usize % 5);
        index.is_multiple_of(3).then(|| {
            Arc::new(Labels {
                dialect: index.is_multiple_of(2).then_some(Dialect::Messages),
                client: text.map(Into::into),
                request_class: class,
                after_compaction: index.is_multiple_of(5),
                ..Labels::default()
            })
        })
    }

    fn chat(index: u32, number: u64) -> Option<Box<Chat>> {
        let reading = ParseOptions {
            format: number.is_multiple_of(3).then(|| "hermes".into()),
            parameters: number.is_multiple_of(31).then(|| "f\tia\n".into()),
            separate: number.is_multiple_of(2),
            opened: number.is_multiple_of(5),
            skip_special: number.is_multiple_of(7),
            keep_stop: number.is_multiple_of(11),
        };
        let conversation = Digest::of(&[number.to_le_bytes(), number.to_be_bytes()].concat());
        let mut reply_changes = ReplyChanges::default();
        reply_changes.extend(ReplyChange::ALL.into_iter().nth(index as usize % 6));
        index.is_multiple_of(2).then(|| {
            Box::new(Chat {
                conversation,
                tools: number.is_multiple_of(13),
                reading,
                retokenised: number.is_multiple_of(17),
                foreign_text: number.is_multiple_of(19),
                inserted_end_of_turn: index,
                reply_changes,
                fingerprint: Fingerprint {
                    body: conversation,
                    tool_bytes: number,
                    messages: index,
                    ..Fingerprint::default()
                },
                sampling_sources: sampling_sources(number),
                stored: number.is_multiple_of(29).then(|| Arc::new(stored(number))),
                session_number: None,
                history_changes: Vec::new(),
            })
        })
    }

    fn sampling_sources(number: u64) -> Option<SamplingSources> {
        let mut sources = SamplingSources::default();
        if number.is_multiple_of(2) {
            sources.set("top_p", SamplingSource::Model);
        }
        number.is_multiple_of(3).then_some(sources)
    }

    fn stored(number: u64) -> StoredRequest {
        let key = TurnKey::of(&number.to_string(), 0);
        StoredRequest {
            members: number.is_multiple_of(2).then(|| "{}".into()),
            members_of: (!number.is_multiple_of(2)).then_some(3),
            adds_tools: number.is_multiple_of(7),
            completes_at_length: number.is_multiple_of(11),
            previous: number.is_multiple_of(3).then_some(key),
            shared: number.is_multiple_of(5).then_some(SharedItems { turn: 3, count: 7 }),
            items: vec![Arc::<str>::from("\"\\n\"").into(); (number % 3) as usize],
            caller: CallerKey::new(b"salt", &number.to_le_bytes()),
        }
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let ids = || prop::collection::vec(any::<u32>(), 0..40);
        // every bit pattern, including all NaNs
        let numbers = || prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..40);
        (any::<u32>(), any::<Option<u32>>(), ids(), ids(), numbers(), numbers(), about()).prop_map(
            |(id, parent, prompt, response, logprobs, entropy, mut about)| {
                about.images = images(id, &prompt);
                Turn {
                    id,
                    parent,
                    prompt: prompt.into(),
                    response: response.into(),
                    logprobs: logprobs.into(),
                    entropy: entropy.into(),
                    about,
                }
            },
        )
    }

    /// No picture, or up to three with ranges of any size; one of them has no bytes.
    fn images(number: u32, prompt: &[u32]) -> Option<Box<PromptImages>> {
        let image = |at: u32| {
            let mut image = Image::new(vec![at as u8; at as usize + 1].into());
            image.bytes = image.bytes.filter(|_| at != 1);
            (Arc::new(image), number % 50..(number % 50).saturating_add(number >> 8))
        };
        let count = number % 4;
        let settings = (!number.is_multiple_of(3)).then(|| "{}".into());
        (count > 0).then(|| Box::new(PromptImages::new(prompt, (0..count).map(image)).with_settings(settings)))
    }

    fn record() -> impl Strategy<Value = Record> {
        let reward = prop_oneof![
            (-1e9..1e9f64).prop_map(serde_json::Value::from),
            (text(), any::<i64>()).prop_map(|(name, value)| serde_json::json!({ &*name: [value, null] })),
        ];
        let scope = prop_oneof![
            Just(RewardScope::Session),
            any::<u32>().prop_map(RewardScope::Leaf),
            any::<u32>().prop_map(RewardScope::Turn),
        ];
        let change = prop_oneof![
            turn().prop_map(|turn| Change::Turn(Arc::new(turn))),
            (scope, reward, any::<u32>())
                .prop_map(|(scope, reward, version)| { Change::Reward { scope, reward: Arc::new(reward), version } }),
            any::<u64>().prop_map(|created_ms| Change::Begin { created_ms }),
            any::<u32>().prop_map(|turns| Change::Freeze { turns }),
            any::<u32>().prop_map(|number| Change::Tags(tags(number))),
            any::<u32>().prop_map(|turn| Change::ResponseDeleted { turn }),
            (any::<u32>(), text(), prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..20)).prop_map(
                |(turn, teacher, logprobs)| {
                    let (teacher, logprobs, columns) = (teacher.into(), logprobs.into(), columns(turn % 4));
                    let base = u64::from(turn);
                    let weights =
                        [None, Some(1)].get(turn as usize % 3).map(|adapter| WeightEpochs { base, adapter: *adapter });
                    Change::Scored(Arc::new(Scores { turn, teacher, weights, logprobs, columns }))
                }
            ),
            (any::<[u32; 2]>(), any::<u64>()).prop_map(|([leaf, turns], number)| Change::Finished {
                leaf,
                turns,
                number
            }),
            prop::sample::select(vec![Change::Healed, Change::Incomplete, Change::Deleted, Change::Evicted]),
        ];
        (text(), change).prop_map(|(session, change)| Record::new(&*session, Uid::unique(), change))
    }

    proptest! {
        #[test]
        fn records_survive_encoding(record in record()) {
            let written = bytes(&record);
            let read = Record::decode(&written).expect("it was written by this build");
            // NaN is not equal to itself, so bytes are compared
            prop_assert_eq!(&bytes(&read), &written);
            let exact = |record: &Record| format!("{record:?}");
            prop_assert_eq!(exact(&read), exact(&record));
        }

        #[test]
        fn decoding_arbitrary_bytes_does_not_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Some(record) = Record::decode(&bytes) {
                // a record without arrays is a few bytes, which occur by chance
                prop_assert!(self::bytes(&record).len() <= bytes.len());
            }
        }

        #[test]
        fn truncated_record_is_not_decoded(record in record(), cut in any::<prop::sample::Index>()) {
            let whole = bytes(&record);
            let cut = cut.index(whole.len());
            prop_assert!(Record::decode(&whole[..cut]).is_none());
        }
    }

    #[test]
    fn nan_keeps_its_bits() {
        let nan = f32::from_bits(0x7fc0_1234);
        let turn = Turn { logprobs: [nan].into(), ..fake::bare_turn(0) };
        let record = fake::record("s", Change::Turn(Arc::new(turn)));
        let Some(Change::Turn(turn)) = Record::decode(&bytes(&record)).map(|record| record.change) else { panic!() };
        assert_eq!(turn.logprobs[0].to_bits(), nan.to_bits());
    }

    /// The layout has no names, so a member that is added, removed or moved changes the meaning of all bytes after it.
    #[test]
    fn layout_changes_with_the_schema_only() {
        let span = Span {
            start: 0,
            end: 1,
            epoch: 3,
            until: 4,
            weight_version: Some("w".into()),
            version: None,
            process: "0123456789abcdef".parse().ok(),
            adapter: Some(Box::new(AdapterSpan { name: "a".into(), epoch: 5, until: 6, version: Some("v".into()) })),
        };
        let mut reply_changes = ReplyChanges::default();
        reply_changes.extend([ReplyChange::WhiteSpace]);
        let images = PromptImages::new(&[1, 0x1_0000], [(Arc::new(Image::new(b"a"[..].into())), 0..2)]);
        let about = TurnMetadata {
            uid: "00000000000000000000000000000007".parse().unwrap(),
            rid: Some("r".into()),
            finish: Some("stop".into()),
            fault: Some(Fault::Aborted),
            policy: vec![span],
            sampling: Some("{}".into()),
            model: "m".into(),
            started_ms: 300,
            chat: Some(Box::new(Chat {
                reply_changes,
                sampling_sources: sampling_sources(6),
                stored: Some(Arc::new(StoredRequest {
                    items: vec![Arc::<str>::from("1").into()],
                    ..StoredRequest::default()
                })),
                ..Chat::default()
            })),
            labels: labels(6, Some("c")),
            extras: [("x".into(), "[]".into())].into(),
            columns: columns(3),
            missing_columns: missing_columns(2),
            images: Some(Box::new(images.with_settings(Some("{}".into())))),
            ..TurnMetadata::default()
        };
        let turn = Turn {
            parent: Some(0),
            prompt: [1, 0x1_0000].into(),
            response: [2].into(),
            logprobs: [-1.0].into(),
            entropy: [0.5].into(),
            about,
            ..fake::bare_turn(1)
        };
        let reward = Change::Reward { scope: RewardScope::Leaf(1), reward: Arc::new(1.5.into()), version: 2 };
        let (teacher, logprobs, columns) = ("t".into(), [-1.5, 0.0].into(), columns(3));
        let weights = Some(WeightEpochs { base: 2, adapter: Some(1) });
        let scored = Change::Scored(Arc::new(Scores { turn: 300, teacher, weights, logprobs, columns }));
        let written = [Change::Turn(Arc::new(turn)), reward, Change::Evicted, scored, Change::Tags(tags(2))]
            .map(|change| bytes(&fake::record("s", change)));
        let found = (written.each_ref().map(Vec::len), written.map(|bytes| crc32c::crc32c(&bytes)));
        assert_eq!(
            found,
            ([395, 28, 21, 86, 37], [2_455_776_176, 2_431_479_641, 1_891_510_775, 1_607_475_749, 2_318_807_630]),
            "a new layout needs a new SCHEMA"
        );
        // values are written by their places; the message lists the kinds of changes in their order
        let names = [
            serde_json::from_str::<Change>("\"unknown\"").unwrap_err().to_string(),
            Fault::ALL.map(Fault::name).join(" "),
            Cause::ALL.map(Cause::name).join(" "),
            ReplyChange::ALL.map(ReplyChange::name).join(" "),
            Dialect::ALL.map(Dialect::name).join(" "),
            RequestClass::ALL.map(RequestClass::name).join(" "),
            SamplingSource::ALL.map(SamplingSource::name).join(" "),
            NumberType::ALL.map(NumberType::name).join(" "),
            ColumnFault::ALL.map(ColumnFault::name).join(" "),
            // a record beyond these is not plausible
            format!("{MOST_TURNS} {MOST_TAGS} {}", (1..).take_while(|length| is_name(&"a".repeat(*length))).count()),
            (0..=u8::MAX).map(char::from).filter(|byte| is_name(&format!("a{byte}"))).collect(),
        ];
        assert_eq!(
            crc32c::crc32c(names.join(",").as_bytes()),
            863_234_452,
            "earlier builds cannot read a record with a new value, so it needs a new SCHEMA: {names:?}"
        );
    }

    #[test]
    fn record_has_the_pictures_that_its_session_lacks() {
        let prompt = [9, 9, 8, 9, 9];
        let [first, second] = [&b"first"[..], b"second"].map(|content| Arc::new(Image::new(content.into())));
        let mut images = PromptImages::new(&prompt, [(Arc::clone(&first), 0..2), (Arc::clone(&second), 3..5)]);
        images.mark_stored(|digest| digest == first.digest);
        let mut turn = Turn { prompt: prompt.into(), ..fake::bare_turn(0) };
        turn.about.images = Some(Box::new(images));
        let record = fake::record("s", Change::Turn(Arc::new(turn)));
        let written = bytes(&record);
        assert!(written.ends_with(b"second") && memchr::memmem::find(&written, b"first").is_none());
        let Some(Change::Turn(read)) = Record::decode(&written).map(|record| record.change) else { panic!() };
        let bytes: Vec<_> =
            read.about.images.as_ref().unwrap().list.iter().map(|image| image.image.bytes.clone()).collect();
        assert_eq!(bytes, [None, second.bytes.clone()]);
        assert!(Record::decode(&written[..written.len() - 1]).is_none());
    }

    #[test]
    fn ids_take_the_bytes_that_they_need() {
        let length = |ids: &[u32]| {
            let turn = Turn { prompt: ids.into(), ..fake::bare_turn(0) };
            bytes(&fake::record("s", Change::Turn(Arc::new(turn)))).len()
        };
        let none = length(&[]);
        for (id, width) in [(0, 1), (255, 1), (256, 2), (65_535, 2), (65_536, 3), (151_936, 3), (1 << 24, 4)] {
            assert_eq!(length(&[id, 7, 0]) - none, 3 * width, "{id}");
        }
    }

    #[test]
    fn columns_of_known_types_are_kept_and_others_are_refused() {
        let name = "routed_experts";
        let whole = {
            let column = Column {
                name: name.into(),
                number: NumberType::U16,
                tokens: -1..0,
                shape: Shape::Fixed([2].into()),
                data: vec![1, 2, 3, 4].into(),
            };
            let mut turn = Turn { prompt: [7].into(), ..fake::bare_turn(3) };
            turn.about.columns = vec![column];
            bytes(&fake::record("s", Change::Turn(Arc::new(turn))))
        };
        assert_eq!(bytes(&Record::decode(&whole).unwrap()), whole);
        let number = name.len() + whole.windows(name.len()).position(|part| part == name.as_bytes()).unwrap();
        // the type, the range, the dimensions, the length, then the prompt and the data
        assert_eq!(whole[number..], [1, 1, 0, 1, 1, 2, 4, 7, 1, 2, 3, 4]);
        let with = |at: usize, byte: u8| {
            let mut changed = whole.clone();
            changed[number + at] = byte;
            Record::decode(&changed)
        };
        assert!(with(0, NumberType::ALL.len() as u8).is_none(), "an unknown type");
        assert!(with(6, 5).is_none(), "the record is cut");
        assert!(with(6, 3).is_none(), "bytes are left");
    }
}
