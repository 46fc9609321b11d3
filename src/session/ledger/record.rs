//! The records of the log, and their encoding.
//!
//! A record is encoded as the length of a JSON head, the head, and the arrays of a turn, little-endian. So the head can get new members
//! and kinds without a new format, and NaN keeps its bits.

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::session::{MOST_TURNS, Turn, TurnMetadata, Uid, is_name};

/// The key of a session in records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SessionKey {
    /// Its name.
    pub name: Arc<str>,
    /// Its birth, which distinguishes sessions of one name; `None` in records of versions before births.
    pub birth: Option<Uid>,
}

impl From<&str> for SessionKey {
    /// A session without a birth.
    fn from(name: &str) -> Self {
        Self { name: name.into(), birth: None }
    }
}

/// One change of a session or of the policy.
#[derive(Debug, Clone, PartialEq)]
pub enum Record {
    /// A session begins. Only in shared ledgers, as the first record of the session.
    Begin {
        /// The session.
        session: SessionKey,
        /// Its start: milliseconds since 1970.
        created_ms: u64,
    },
    /// The records after this one were appended again, because the ledger had lost them. Numbers of turns may have changed.
    Healed {
        /// The session.
        session: SessionKey,
    },
    /// A turn was added.
    Turn {
        /// Its session.
        session: SessionKey,
        /// The turn.
        turn: Arc<Turn>,
    },
    /// A reward was set.
    Reward {
        /// Its session.
        session: SessionKey,
        /// The leaf it is for; `None` for the whole session.
        leaf: Option<u32>,
        /// A number or an object.
        reward: Arc<serde_json::Value>,
        /// The version of the session it is for.
        version: u32,
    },
    /// A version of a session was frozen.
    Freeze {
        /// The session.
        session: SessionKey,
        /// The number of turns of that version.
        turns: u32,
    },
    /// A generation of a session was not recorded.
    Incomplete {
        /// The session.
        session: SessionKey,
    },
    /// The stored response of a turn was deleted.
    ResponseDeleted {
        /// The session.
        session: SessionKey,
        /// The turn.
        turn: u32,
    },
    /// A session was deleted.
    Deleted {
        /// The session.
        session: SessionKey,
    },
    /// A session was evicted from memory; its name is free for another.
    Evicted {
        /// The session.
        session: SessionKey,
    },
    /// A path has finished and was published to trainers.
    Finished {
        /// Its session.
        session: SessionKey,
        /// Its last turn.
        leaf: u32,
        /// The number of turns of the session at that time.
        turns: u32,
        /// Its position in the order of all finished paths.
        number: u64,
    },
    /// A policy epoch began.
    Policy {
        /// tokentap's policy epoch.
        epoch: u64,
        /// The trainer's name of the epoch.
        version: Option<Box<str>>,
    },
}

/// The JSON part of a record.
#[derive(Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
#[expect(clippy::large_enum_variant, reason = "one at a time, on the stack")]
enum Head<'a> {
    Begin {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        created_ms: u64,
    },
    Healed {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
    },
    Turn {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        id: u32,
        parent: Option<u32>,
        about: Cow<'a, TurnMetadata>,
        /// Elements of the arrays: prompt, response, logprobs, entropy. Arrays of later versions follow and are not read.
        lengths: Cow<'a, [u32]>,
    },
    Reward {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        leaf: Option<u32>,
        reward: Cow<'a, serde_json::Value>,
        version: u32,
    },
    Freeze {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        turns: u32,
    },
    Incomplete {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
    },
    ResponseDeleted {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        turn: u32,
    },
    Deleted {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
    },
    Evicted {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
    },
    Finished {
        session: Cow<'a, str>,
        #[serde(default, skip_serializing_if = "Option::is_none")]
        birth: Option<Uid>,
        leaf: u32,
        turns: u32,
        number: u64,
    },
    Policy {
        epoch: u64,
        version: Option<Cow<'a, str>>,
    },
}

/// The start of the head of a turn, as it is written.
const TURN: &[u8] = br#"{"kind":"turn","#;

/// The head of a turn. Parsing a [`Head`] copies its members until the kind is known; most records are turns, so their heads are parsed
/// without that.
#[derive(Deserialize)]
struct TurnHead {
    session: Arc<str>,
    #[serde(default)]
    birth: Option<Uid>,
    id: u32,
    parent: Option<u32>,
    about: TurnMetadata,
    lengths: Vec<u32>,
}

impl Record {
    /// The session of the record; `None` for an epoch.
    #[must_use]
    pub fn session(&self) -> Option<&SessionKey> {
        match self {
            Self::Begin { session, .. }
            | Self::Healed { session }
            | Self::Turn { session, .. }
            | Self::Reward { session, .. }
            | Self::Freeze { session, .. }
            | Self::Incomplete { session }
            | Self::ResponseDeleted { session, .. }
            | Self::Deleted { session }
            | Self::Evicted { session }
            | Self::Finished { session, .. } => Some(session),
            Self::Policy { .. } => None,
        }
    }

    /// The session of the record, to change it.
    pub fn session_mut(&mut self) -> Option<&mut SessionKey> {
        match self {
            Self::Begin { session, .. }
            | Self::Healed { session }
            | Self::Turn { session, .. }
            | Self::Reward { session, .. }
            | Self::Freeze { session, .. }
            | Self::Incomplete { session }
            | Self::ResponseDeleted { session, .. }
            | Self::Deleted { session }
            | Self::Evicted { session }
            | Self::Finished { session, .. } => Some(session),
            Self::Policy { .. } => None,
        }
    }

    /// The approximate bytes that it takes in memory, for limits.
    pub(super) fn bytes(&self) -> u64 {
        let own = size_of::<Self>() as u64;
        match self {
            Self::Turn { turn, .. } => own + turn.bytes(),
            // values are small, and measuring one would mean a walk over it
            _ => own + 256,
        }
    }

    /// Whether a tokentap can have written it. Names of a damaged or foreign log must not become file names, and its numbers must not
    /// become millions of placeholder turns.
    pub(in crate::session) fn is_plausible(&self) -> bool {
        let numbers = match self {
            Self::Turn { turn, .. } => turn.id < MOST_TURNS,
            Self::Reward { leaf, .. } => leaf.is_none_or(|leaf| leaf < MOST_TURNS),
            Self::ResponseDeleted { turn, .. } => *turn < MOST_TURNS,
            Self::Freeze { turns, .. } => *turns <= MOST_TURNS,
            Self::Finished { leaf, turns, .. } => leaf < turns && *turns <= MOST_TURNS,
            _ => true,
        };
        numbers && self.session().is_none_or(|session| is_name(&session.name))
    }

    /// Appends the record's bytes to `out`.
    ///
    /// # Errors
    /// When the head cannot be written as JSON, or a length does not fit into 32 bits.
    pub(in crate::session) fn encode(&self, out: &mut Vec<u8>) -> Result<(), serde_json::Error> {
        let start = out.len();
        out.extend([0; 4]);
        serde_json::to_writer(&mut *out, &Head::try_new(self)?)?;
        let head = fit(out.len() - start - 4)?;
        out[start..start + 4].copy_from_slice(&head.to_le_bytes());
        if let Self::Turn { turn, .. } = self {
            push(out, &turn.prompt, |id| id.to_le_bytes());
            push(out, &turn.response, |id| id.to_le_bytes());
            push(out, &turn.logprobs, |nats| nats.to_le_bytes());
            push(out, &turn.entropy, |nats| nats.to_le_bytes());
        }
        Ok(())
    }

    /// Decodes a record; `None` if this version cannot read it, such as a kind of a later version.
    pub(in crate::session) fn decode(bytes: &[u8]) -> Option<Self> {
        let (length, rest) = bytes.split_first_chunk()?;
        let (head, arrays) = rest.split_at_checked(usize::try_from(u32::from_le_bytes(*length)).ok()?)?;
        if head.starts_with(TURN) {
            return serde_json::from_slice::<TurnHead>(head).ok()?.with_arrays(arrays);
        }
        Some(match serde_json::from_slice(head).ok()? {
            Head::Turn { session, birth, id, parent, about, lengths } => {
                let (session, about, lengths) = (session.into(), about.into_owned(), lengths.into_owned());
                return TurnHead { session, birth, id, parent, about, lengths }.with_arrays(arrays);
            }
            Head::Begin { session, birth, created_ms } => Self::Begin { session: key(&session, birth), created_ms },
            Head::Healed { session, birth } => Self::Healed { session: key(&session, birth) },
            Head::Reward { session, birth, leaf, reward, version } => {
                Self::Reward { session: key(&session, birth), leaf, reward: Arc::new(reward.into_owned()), version }
            }
            Head::Freeze { session, birth, turns } => Self::Freeze { session: key(&session, birth), turns },
            Head::Incomplete { session, birth } => Self::Incomplete { session: key(&session, birth) },
            Head::ResponseDeleted { session, birth, turn } => {
                Self::ResponseDeleted { session: key(&session, birth), turn }
            }
            Head::Deleted { session, birth } => Self::Deleted { session: key(&session, birth) },
            Head::Evicted { session, birth } => Self::Evicted { session: key(&session, birth) },
            Head::Finished { session, birth, leaf, turns, number } => {
                Self::Finished { session: key(&session, birth), leaf, turns, number }
            }
            Head::Policy { epoch, version } => Self::Policy { epoch, version: version.map(Into::into) },
        })
    }
}

impl TurnHead {
    /// The record with the arrays after the head; `None` if they are too short.
    fn with_arrays(self, arrays: &[u8]) -> Option<Record> {
        let Self { session, birth, id, parent, about, lengths } = self;
        let (mut rest, mut lengths) = (arrays, lengths.iter());
        let mut next = || -> Option<&[[u8; 4]]> {
            let count = usize::try_from(*lengths.next()?).ok()?;
            let (array, after) = rest.split_at_checked(count.checked_mul(4)?)?;
            rest = after;
            Some(array.as_chunks().0)
        };
        let turn = Turn {
            id,
            parent,
            prompt: next()?.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            response: next()?.iter().map(|bytes| u32::from_le_bytes(*bytes)).collect(),
            logprobs: next()?.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            entropy: next()?.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect(),
            about,
        };
        Some(Record::Turn { session: SessionKey { name: session, birth }, turn: Arc::new(turn) })
    }
}

impl<'a> Head<'a> {
    fn try_new(record: &'a Record) -> Result<Self, serde_json::Error> {
        Ok(match record {
            Record::Turn { session, turn } => {
                let lengths =
                    [turn.prompt.len(), turn.response.len(), turn.logprobs.len(), turn.entropy.len()].map(fit);
                Self::Turn {
                    session: (&*session.name).into(),
                    birth: session.birth,
                    id: turn.id,
                    parent: turn.parent,
                    about: Cow::Borrowed(&turn.about),
                    lengths: lengths.into_iter().collect::<Result<_, _>>()?,
                }
            }
            Record::Begin { session, created_ms } => {
                Self::Begin { session: (&*session.name).into(), birth: session.birth, created_ms: *created_ms }
            }
            Record::Healed { session } => Self::Healed { session: (&*session.name).into(), birth: session.birth },
            Record::Reward { session, leaf, reward, version } => Self::Reward {
                session: (&*session.name).into(),
                birth: session.birth,
                leaf: *leaf,
                reward: Cow::Borrowed(reward),
                version: *version,
            },
            Record::Freeze { session, turns } => {
                Self::Freeze { session: (&*session.name).into(), birth: session.birth, turns: *turns }
            }
            Record::Incomplete { session } => {
                Self::Incomplete { session: (&*session.name).into(), birth: session.birth }
            }
            Record::ResponseDeleted { session, turn } => {
                Self::ResponseDeleted { session: (&*session.name).into(), birth: session.birth, turn: *turn }
            }
            Record::Deleted { session } => Self::Deleted { session: (&*session.name).into(), birth: session.birth },
            Record::Evicted { session } => Self::Evicted { session: (&*session.name).into(), birth: session.birth },
            Record::Finished { session, leaf, turns, number } => Self::Finished {
                session: (&*session.name).into(),
                birth: session.birth,
                leaf: *leaf,
                turns: *turns,
                number: *number,
            },
            Record::Policy { epoch, version } => {
                Self::Policy { epoch: *epoch, version: version.as_deref().map(Cow::Borrowed) }
            }
        })
    }
}

fn key(name: &str, birth: Option<Uid>) -> SessionKey {
    SessionKey { name: name.into(), birth }
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
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
                    uid: first_ms.map(|_| Uid::unique()),
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
                    extras,
                }
            },
        )
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
                fingerprint: number.is_multiple_of(23).then(|| Fingerprint {
                    body: conversation,
                    tool_bytes: number,
                    messages: index,
                    ..Fingerprint::default()
                }),
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
            caller: CallerKey::of(b"salt", &number.to_le_bytes()),
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
        let session = || {
            let key = |(name, has_birth): (Box<str>, bool)| SessionKey {
                name: name.into(),
                birth: has_birth.then(Uid::unique),
            };
            (text(), any::<bool>()).prop_map(key)
        };
        let reward = prop_oneof![
            (-1e9..1e9f64).prop_map(serde_json::Value::from),
            (text(), any::<i64>()).prop_map(|(name, value)| serde_json::json!({ &*name: [value, null] })),
        ];
        prop_oneof![
            (session(), turn()).prop_map(|(session, turn)| Record::Turn { session, turn: Arc::new(turn) }),
            (session(), any::<Option<u32>>(), reward, any::<u32>()).prop_map(|(session, leaf, reward, version)| {
                Record::Reward { session, leaf, reward: Arc::new(reward), version }
            }),
            (session(), any::<u64>()).prop_map(|(session, created_ms)| Record::Begin { session, created_ms }),
            session().prop_map(|session| Record::Healed { session }),
            (session(), any::<u32>()).prop_map(|(session, turns)| Record::Freeze { session, turns }),
            session().prop_map(|session| Record::Incomplete { session }),
            (session(), any::<u32>()).prop_map(|(session, turn)| Record::ResponseDeleted { session, turn }),
            session().prop_map(|session| Record::Deleted { session }),
            session().prop_map(|session| Record::Evicted { session }),
            (session(), any::<[u32; 2]>(), any::<u64>())
                .prop_map(|(session, [leaf, turns], number)| Record::Finished { session, leaf, turns, number }),
            (any::<u64>(), prop::option::of(text())).prop_map(|(epoch, version)| Record::Policy { epoch, version }),
        ]
    }

    proptest! {
        #[test]
        fn records_survive_encoding(record in record()) {
            let written = bytes(&record);
            let read = Record::decode(&written).expect("it was written by this version");
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
        let record = Record::Turn { session: "s".into(), turn: Arc::new(turn) };
        let Some(Record::Turn { turn, .. }) = Record::decode(&bytes(&record)) else { panic!("it is a turn") };
        assert_eq!(turn.logprobs[0].to_bits(), nan.to_bits());
    }

    #[test]
    fn heads_of_turns_are_parsed_in_any_layout() {
        let head = r#"{"kind":"turn","session":"s","id":3,"parent":null,"about":{},"lengths":[0,0,0,0]}"#;
        let decoded = |head: &str| Record::decode(&[&(head.len() as u32).to_le_bytes(), head.as_bytes()].concat());
        let written = decoded(head);
        let Some(Record::Turn { turn, .. }) = &written else { panic!("it is a turn") };
        assert_eq!(turn.about.labels, None, "records of versions before labels have none");
        assert_eq!(decoded(&head.replace("{\"kind\"", "{ \"kind\"")), written);
        assert_eq!(decoded(&head.replace("\"kind\":\"turn\",", "").replace("]}", "],\"kind\":\"turn\"}")), written);
    }

    #[test]
    fn arrays_of_a_later_version_are_ignored() {
        let head = r#"{"kind":"turn","session":"s","id":3,"parent":null,"about":{"new":1},"lengths":[1,0,0,0,2]}"#;
        let mut bytes = (head.len() as u32).to_le_bytes().to_vec();
        bytes.extend(head.as_bytes());
        bytes.extend([7, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2]);
        let Some(Record::Turn { turn, .. }) = Record::decode(&bytes) else { panic!("it is a turn") };
        assert_eq!(*turn.prompt, [7]);
        assert_eq!(*turn, Turn { prompt: [7].into(), ..fake::bare_turn(3) });
    }
}
