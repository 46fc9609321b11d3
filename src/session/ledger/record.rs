//! The records of sessions, and their encoding.
//!
//! A record is encoded as the length of a JSON head, the head, and the token columns of a turn, little-endian and in the order in which the head
//! lists them. So a NaN keeps its bits, and a reader keeps a column that it does not know.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::columns::{Column, NumberType, Shape};
use crate::session::{MOST_TURNS, Turn, Uid, is_name};

/// The number of the layout of records, in the log and in the shared ledger. A log or a ledger with another number is not read.
pub const SCHEMA: u64 = 3;

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
        /// The leaf it is for; `None` for the whole session.
        leaf: Option<u32>,
        /// A number or an object.
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
}

/// The JSON part of a record.
#[derive(Serialize, Deserialize)]
struct Head<'a> {
    session: Arc<str>,
    birth: Uid,
    change: Cow<'a, Change>,
    /// The numbers of values of the columns that each turn has: prompt ids, response ids, logprobs, entropies. Each value has four bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    lengths: Option<[u32; 4]>,
    /// The other columns.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    columns: Vec<ColumnHead<'a>>,
}

/// The description of a column.
#[derive(Serialize, Deserialize)]
struct ColumnHead<'a> {
    name: Cow<'a, str>,
    #[serde(rename = "type")]
    number: NumberType,
    tokens: Range<i32>,
    shape: Cow<'a, Shape>,
    bytes: u32,
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
            Change::Turn(turn) => own + turn.bytes(),
            // values are small, and measuring one would mean a walk over it
            _ => own + 256,
        }
    }

    /// Whether a tokentap can have written it. Names of a damaged or foreign log must not become file names, and its numbers must not
    /// become millions of placeholder turns.
    pub(in crate::session) fn is_plausible(&self) -> bool {
        let numbers = match &self.change {
            Change::Turn(turn) => turn.id < MOST_TURNS,
            Change::Reward { leaf, .. } => leaf.is_none_or(|leaf| leaf < MOST_TURNS),
            Change::ResponseDeleted { turn } => *turn < MOST_TURNS,
            Change::Freeze { turns } => *turns <= MOST_TURNS,
            Change::Finished { leaf, turns, .. } => leaf < turns && *turns <= MOST_TURNS,
            _ => true,
        };
        numbers && is_name(&self.session)
    }

    /// Appends the record's bytes to `out`.
    ///
    /// # Errors
    /// When the head cannot be written as JSON, or a length does not fit into 32 bits. `out` may have a part of the record then.
    pub(in crate::session) fn encode(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let turn = if let Change::Turn(turn) = &self.change { Some(turn) } else { None };
        let columns = turn.map_or(&[][..], |turn| &turn.about.columns);
        let head = Head {
            session: Arc::clone(&self.session),
            birth: self.birth,
            change: Cow::Borrowed(&self.change),
            lengths: turn.map(|turn| lengths(turn)).transpose()?,
            columns: columns.iter().map(ColumnHead::try_new).collect::<Result<_, _>>()?,
        };
        write_head(out, &head)?;
        if let Some(turn) = turn {
            push(out, &turn.prompt, |id| id.to_le_bytes());
            push(out, &turn.response, |id| id.to_le_bytes());
            push(out, &turn.logprobs, |nats| nats.to_le_bytes());
            push(out, &turn.entropy, |nats| nats.to_le_bytes());
        }
        columns.iter().for_each(|column| out.extend_from_slice(&column.data));
        Ok(())
    }

    /// Decodes a record; `None` if this build cannot read it.
    pub(in crate::session) fn decode(bytes: &[u8]) -> Option<Self> {
        let (head, mut rest) = split_head(bytes)?;
        let Head { session, birth, change, lengths, columns } = serde_json::from_slice(head).ok()?;
        let mut change = change.into_owned();
        if let Change::Turn(turn) = &mut change {
            let turn = Arc::get_mut(turn).expect("it was made by the decoder");
            let [prompt, response, logprobs, entropy] = lengths?;
            turn.prompt = read_values(&mut rest, prompt, u32::from_le_bytes)?;
            turn.response = read_values(&mut rest, response, u32::from_le_bytes)?;
            turn.logprobs = read_values(&mut rest, logprobs, f32::from_le_bytes)?;
            turn.entropy = read_values(&mut rest, entropy, f32::from_le_bytes)?;
            turn.about.columns =
                columns.into_iter().map(|column| column.with_data(&mut rest)).collect::<Option<_>>()?;
        }
        Some(Self { session, birth, change })
    }
}

impl<'a> ColumnHead<'a> {
    fn try_new(column: &'a Column) -> Result<Self, serde_json::Error> {
        let Column { name, number, tokens, shape, data } = column;
        let (name, shape) = (Cow::Borrowed(&**name), Cow::Borrowed(shape));
        Ok(Self { name, number: *number, tokens: tokens.clone(), shape, bytes: fit(data.len())? })
    }

    /// The column, whose data are the next bytes of `rest`.
    fn with_data(self, rest: &mut &[u8]) -> Option<Column> {
        let (data, after) = rest.split_at_checked(usize::try_from(self.bytes).ok()?)?;
        *rest = after;
        let Self { name, number, tokens, shape, .. } = self;
        let data = Bytes::copy_from_slice(data);
        Some(Column { name: name.into(), number, tokens, shape: shape.into_owned(), data })
    }
}

/// Appends a head and its length to `out`.
pub(super) fn write_head(out: &mut Vec<u8>, head: &impl Serialize) -> Result<(), serde_json::Error> {
    let start = out.len();
    out.extend([0; 4]);
    serde_json::to_writer(&mut *out, head)?;
    let length = fit(out.len() - start - 4)?;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
    Ok(())
}

/// The head, and the bytes after it.
pub(super) fn split_head(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)
}

fn lengths(turn: &Turn) -> Result<[u32; 4], serde_json::Error> {
    let Turn { prompt, response, logprobs, entropy, .. } = turn;
    Ok([fit(prompt.len())?, fit(response.len())?, fit(logprobs.len())?, fit(entropy.len())?])
}

fn fit(length: usize) -> Result<u32, serde_json::Error> {
    u32::try_from(length).map_err(serde::ser::Error::custom)
}

fn push<T: Copy>(out: &mut Vec<u8>, values: &[T], bytes: impl Fn(T) -> [u8; 4]) {
    let start = out.len();
    out.resize(start + 4 * values.len(), 0);
    for (place, value) in out[start..].as_chunks_mut().0.iter_mut().zip(values) {
        *place = bytes(*value);
    }
}

/// The next `count` values of `rest`.
fn read_values<T, C: FromIterator<T>>(rest: &mut &[u8], count: u32, value: impl Fn([u8; 4]) -> T) -> Option<C> {
    let bytes = usize::try_from(count).ok()?.checked_mul(4)?;
    let (values, after) = rest.split_at_checked(bytes)?;
    *rest = after;
    Some(values.as_chunks().0.iter().map(|bytes| value(*bytes)).collect())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;
    use crate::columns::ColumnFault;
    use crate::session::TurnMetadata;
    use crate::session::ledger::log::fake;
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
                version,
                process: format!("{until:016x}").parse().ok().filter(|_| start % 2 == 1),
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
                    measured,
                    sampling: rid.clone(),
                    model: model.into(),
                    lora_path: rid.as_deref().map(Into::into),
                    started_ms,
                    first_ms,
                    elapsed_ms: started_ms,
                    cached_tokens: first_ms,
                    chat: chat(index, started_ms),
                    labels: labels(index, rid.as_deref()),
                    columns: columns(index),
                    missing_columns: missing_columns(index),
                    extras,
                }
            },
        )
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
            items: vec!["\"\\n\"".into(); (number % 3) as usize],
            caller: CallerKey::new(b"salt", &number.to_le_bytes()),
        }
    }

    fn turn() -> impl Strategy<Value = Turn> {
        let ids = || prop::collection::vec(any::<u32>(), 0..40);
        // every bit pattern, including all NaNs
        let numbers = || prop::collection::vec(any::<u32>().prop_map(f32::from_bits), 0..40);
        (any::<u32>(), any::<Option<u32>>(), ids(), ids(), numbers(), numbers(), about()).prop_map(
            |(id, parent, prompt, response, logprobs, entropy, about)| Turn {
                id,
                parent,
                prompt: prompt.into(),
                response: response.into(),
                logprobs: logprobs.into(),
                entropy: entropy.into(),
                about,
            },
        )
    }

    fn record() -> impl Strategy<Value = Record> {
        let reward = prop_oneof![
            (-1e9..1e9f64).prop_map(serde_json::Value::from),
            (text(), any::<i64>()).prop_map(|(name, value)| serde_json::json!({ &*name: [value, null] })),
        ];
        let change = prop_oneof![
            turn().prop_map(|turn| Change::Turn(Arc::new(turn))),
            (any::<Option<u32>>(), reward, any::<u32>())
                .prop_map(|(leaf, reward, version)| { Change::Reward { leaf, reward: Arc::new(reward), version } }),
            any::<u64>().prop_map(|created_ms| Change::Begin { created_ms }),
            any::<u32>().prop_map(|turns| Change::Freeze { turns }),
            any::<u32>().prop_map(|turn| Change::ResponseDeleted { turn }),
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
            prop_assert!(Record::decode(&bytes).is_none());
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

    #[test]
    fn turn_without_a_uid_is_not_read() {
        let whole = bytes(&fake::record("s", Change::Turn(Arc::new(fake::bare_turn(0)))));
        let (head, _) = split_head(&whole).unwrap();
        let mut head: serde_json::Value = serde_json::from_slice(head).unwrap();
        assert!(head["change"]["turn"]["about"].as_object_mut().unwrap().remove("uid").is_some());
        let mut without = Vec::new();
        write_head(&mut without, &head).unwrap();
        assert!(Record::decode(&without).is_none());
    }

    #[test]
    fn columns_of_known_types_are_kept_and_others_are_refused() {
        let (known, unknown) = (r#""type":"u16""#, r#""type":"complex64""#);
        let whole = {
            let column = Column {
                name: "routed_experts".into(),
                number: NumberType::U16,
                tokens: -1..0,
                shape: Shape::Fixed([2].into()),
                data: vec![1, 2, 3, 4].into(),
            };
            let mut turn = Turn { prompt: [7].into(), ..fake::bare_turn(3) };
            turn.about.columns = vec![column];
            bytes(&fake::record("s", Change::Turn(Arc::new(turn))))
        };
        let (head, _) = split_head(&whole).unwrap();
        let head = std::str::from_utf8(head).unwrap();
        let described = format!(
            r#""lengths":[1,0,0,0],"columns":[{{"name":"routed_experts",{known},"tokens":{{"start":-1,"end":0}},"shape":[2],"bytes":4}}]}}"#
        );
        assert!(head.ends_with(&described), "{head}");
        let decoded = |head: &str| {
            Record::decode(&[&(head.len() as u32).to_le_bytes(), head.as_bytes(), &[7, 0, 0, 0, 1, 2, 3, 4]].concat())
        };
        assert_eq!(bytes(&decoded(head).unwrap()), whole);
        assert!(decoded(&head.replace(known, unknown)).is_none());
        assert!(decoded(&head.replace(r#""bytes":4"#, r#""bytes":5"#)).is_none(), "the record is cut");
    }
}
