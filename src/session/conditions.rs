// SPDX-License-Identifier: Apache-2.0
//! Conditions on sessions, such as `turns>3,step=17`: of an export, and of the lists of the control port.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::fmt;

use super::tags::is_tag_name;
use super::totals::TURN_FLAGS;
use crate::json::percent_decode_bytes;
use crate::named_enum::named_enum;

/// The most conditions of a list.
const MOST: usize = 32;

/// Before the name of a tag that is also the name of a field.
pub(super) const TAG_PREFIX: &str = "tag.";

named_enum! {
    /// A value of a session that conditions compare. Its name is that of the member in `GET /v1/sessions`.
    pub enum SessionField {
        /// The name.
        Session = "session",
        /// The start, milliseconds since 1970.
        CreatedMs = "created_ms",
        /// Its turns.
        Turns = "turns",
        /// Sampled tokens of all turns.
        SampledTokens = "sampled_tokens",
        /// The rows of an export of the default classes.
        Rows = "rows",
        /// The sampled tokens that they train.
        TrainedTokens = "trained_tokens",
        /// Turns that are not trained.
        Faults = "faults",
        /// Frozen versions.
        FrozenVersions = "frozen_versions",
        /// A call was marked as the last.
        Done = "done",
        /// A generation was not recorded.
        Incomplete = "incomplete",
        /// Calls that are running.
        Running = "running",
        /// The bytes that it takes.
        Bytes = "bytes",
        /// The mean of the rewards of its rows that are numbers.
        Reward = "reward",
        /// The mean entropy of its sampled tokens, in nats.
        MeanEntropy = "mean_entropy",
        /// The share of sampled tokens with a high entropy, 0 to 1.
        HighEntropyShare = "high_entropy_share",
        /// How the latest turn ended.
        FinishReason = "finish_reason",
        /// The policy that sampled last.
        Policy = "policy",
        /// Flags of its turns.
        Flags = "flags",
    }
}

/// The value of a field.
#[derive(Debug, Clone, PartialEq)]
pub enum FieldValue<'a> {
    /// A number.
    Number(f64),
    /// A text; a flag is `true` or `false`.
    Text(Cow<'a, str>),
    /// Several names. One of them equals a text, or none does.
    Names(Vec<&'a str>),
}

/// What conditions are checked against.
pub trait SessionFacts {
    /// The value of a field; `None` if the session has none.
    fn field(&self, field: SessionField) -> Option<FieldValue<'_>>;

    /// The value of a tag; `None` if the session has none.
    fn tag(&self, name: &str) -> Option<&str>;
}

/// Conditions, all of which a session must meet.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Conditions(Vec<Condition>);

#[derive(Debug, Clone, PartialEq)]
struct Condition {
    subject: Subject,
    operator: Operator,
    text: Box<str>,
    /// `text` as a number, if it is one.
    number: Option<f64>,
}

/// What a condition compares, or a table is sorted by.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Subject {
    Field(SessionField),
    Tag(Box<str>),
}

impl Subject {
    /// The field with this name, or else the tag; `None` if neither can have the name.
    pub(super) fn parse(name: &str) -> Option<Self> {
        let tag = |name: &str| is_tag_name(name).then(|| Self::Tag(name.into()));
        match (name.strip_prefix(TAG_PREFIX), SessionField::from_name(name)) {
            (Some(name), _) => tag(name),
            (None, Some(field)) => Some(Self::Field(field)),
            (None, None) => tag(name),
        }
    }

    /// Its value in a session.
    pub(super) fn of<'a>(&self, session: &'a impl SessionFacts) -> Option<FieldValue<'a>> {
        match self {
            Self::Field(field) => session.field(*field),
            Self::Tag(name) => Some(FieldValue::Text(session.tag(name)?.into())),
        }
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(field) => f.write_str(field.name()),
            Self::Tag(name) => write!(f, "{TAG_PREFIX}{name}"),
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Equal,
    NotEqual,
    Less,
    LessOrEqual,
    Greater,
    GreaterOrEqual,
}

/// Why a text is not a list of conditions.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "{cause}; conditions are such as turns>3,step=17: the name of a field or of a tag, one of = != < <= > >=, and a value"
)]
pub struct InvalidConditions {
    cause: String,
}

impl InvalidConditions {
    fn new(cause: impl fmt::Display) -> Self {
        Self { cause: cause.to_string() }
    }
}

impl Operator {
    /// The operator at the start of a text, and the text after it.
    fn parse(text: &str) -> Option<(Self, &str)> {
        const OPERATORS: [(&str, Operator); 6] = [
            ("!=", Operator::NotEqual),
            ("<=", Operator::LessOrEqual),
            (">=", Operator::GreaterOrEqual),
            ("=", Operator::Equal),
            ("<", Operator::Less),
            (">", Operator::Greater),
        ];
        OPERATORS.into_iter().find_map(|(sign, operator)| Some((operator, text.strip_prefix(sign)?)))
    }

    fn accepts(self, found: Ordering) -> bool {
        match self {
            Self::Equal => found.is_eq(),
            Self::NotEqual => found.is_ne(),
            Self::Less => found.is_lt(),
            Self::LessOrEqual => found.is_le(),
            Self::Greater => found.is_gt(),
            Self::GreaterOrEqual => found.is_ge(),
        }
    }
}

impl Conditions {
    /// Parses a list that is separated by commas. Values are percent-decoded, so a comma is `%2C`.
    ///
    /// # Errors
    /// [`InvalidConditions`].
    pub fn parse(text: &str) -> Result<Self, InvalidConditions> {
        let parts = text.split(',').map(str::trim).filter(|part| !part.is_empty());
        let conditions: Vec<Condition> = parts.take(MOST + 1).map(Condition::parse).collect::<Result<_, _>>()?;
        match conditions.len() {
            0 => Err(InvalidConditions::new("there is no condition")),
            count if count > MOST => Err(InvalidConditions::new(format_args!("there are more than {MOST} conditions"))),
            _ => Ok(Self(conditions)),
        }
    }

    /// Whether a session meets all conditions. One about a value that the session does not have is not met, whatever the operator is.
    #[must_use]
    pub fn accept(&self, session: &impl SessionFacts) -> bool {
        self.0.iter().all(|condition| condition.accepts(session).unwrap_or(false))
    }
}

impl Condition {
    fn parse(text: &str) -> Result<Self, InvalidConditions> {
        let invalid = || InvalidConditions::new(format_args!("{text:?} is not a condition"));
        let at = text.find(['=', '!', '<', '>']).ok_or_else(invalid)?;
        let (operator, value) = Operator::parse(&text[at..]).ok_or_else(invalid)?;
        let subject = Subject::parse(text[..at].trim_end()).ok_or_else(invalid)?;
        // of another language, such as `==`; a value may begin with an escape
        if value.starts_with(['=', '!', '<', '>']) {
            return Err(invalid());
        }
        let value = percent_decode_bytes(value.trim_start());
        let text = std::str::from_utf8(&value).map_err(|_| invalid())?;
        if subject == Subject::Field(SessionField::Flags) && !TURN_FLAGS.contains(&text) {
            let names = TURN_FLAGS.join(", ");
            return Err(InvalidConditions::new(format_args!("{text:?} is not a flag: the flags are {names}")));
        }
        Ok(Self { subject, operator, number: finite(text), text: text.into() })
    }

    fn accepts(&self, session: &impl SessionFacts) -> Option<bool> {
        let found = self.subject.of(session)?;
        let number = match &found {
            FieldValue::Number(number) => Some(*number),
            FieldValue::Text(text) => finite(text),
            FieldValue::Names(names) => {
                let orders = || names.iter().map(|name| (*name).cmp(&*self.text));
                return Some(match self.operator {
                    Operator::NotEqual => orders().all(Ordering::is_ne),
                    operator => orders().any(|order| operator.accepts(order)),
                });
            }
        };
        let order = match (number, self.number, found) {
            (Some(found), Some(wanted), _) => found.partial_cmp(&wanted)?,
            (_, _, FieldValue::Text(text)) => (*text).cmp(&*self.text),
            // names have returned before
            (_, _, FieldValue::Names(_)) => return None,
            (_, _, FieldValue::Number(number)) => number.to_string().as_str().cmp(&self.text),
        };
        Some(self.operator.accepts(order))
    }
}

impl SessionField {
    /// The field with this name.
    fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|field| field.name() == name)
    }
}

/// A text as a number, unless it is one that no order has.
fn finite(text: &str) -> Option<f64> {
    text.parse().ok().filter(|number: &f64| number.is_finite())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::Tags;

    struct Facts(Tags);

    impl SessionFacts for Facts {
        fn field(&self, field: SessionField) -> Option<FieldValue<'_>> {
            match field {
                SessionField::Turns => Some(FieldValue::Number(3.0)),
                SessionField::Done => Some(FieldValue::Text("false".into())),
                SessionField::Flags => Some(FieldValue::Names(vec!["extends_length", "policy_uncertain"])),
                _ => None,
            }
        }

        fn tag(&self, name: &str) -> Option<&str> {
            self.0.get(name)
        }
    }

    fn accepts(conditions: &str) -> bool {
        let tags = Tags::parse_list(b"step=17,task=gsm8k,turns=9,odd=a%2Cb,nan=nan").expect("they are valid");
        Conditions::parse(conditions).expect("they are valid").accept(&Facts(tags))
    }

    #[test]
    fn values_compare_as_numbers_if_both_are_else_as_text() {
        for (conditions, expected) in [
            ("step=17", true),
            ("step = 17.0", true),
            ("step!=17", false),
            ("step>9", true),
            ("step<9", false),
            ("step>=17,step<=17", true),
            ("step<17", false),
            ("step>x", false),
            ("step<x", true),
            ("task=gsm8k,turns>2", true),
            ("task=gsm8k,turns>3", false),
            ("task!=math", true),
            ("task>gsm", true),
            ("turns=3", true),
            ("tag.turns=9", true),
            ("done=false", true),
            ("odd=a%2Cb", true),
            ("nan=nan", true),
            ("flags=extends_length,flags=policy_uncertain,flags!=inserted_end_of_turn", true),
            ("flags!=extends_length", false),
            ("flags=inserted_end_of_turn", false),
        ] {
            assert_eq!(accepts(conditions), expected, "{conditions}");
        }
    }

    #[test]
    fn condition_about_an_absent_value_is_not_met() {
        for conditions in ["missing=1", "missing!=1", "bytes>0", "bytes!=0", "step=17,missing!=1"] {
            assert!(!accepts(conditions), "{conditions}");
        }
    }

    #[test]
    fn invalid_conditions_are_refused_with_an_example() {
        let many = vec!["a=1"; 33].join(",");
        for (text, cause) in [
            ("", "there is no condition"),
            ("step", r#""step" is not a condition"#),
            ("=1", r#""=1" is not a condition"#),
            ("tag.=1", r#""tag.=1" is not a condition"#),
            ("step!1", r#""step!1" is not a condition"#),
            ("step==1", r#""step==1" is not a condition"#),
            ("reward<<3", r#""reward<<3" is not a condition"#),
            ("step=%ff", r#""step=%ff" is not a condition"#),
            (
                "flags=odd",
                r#""odd" is not a flag: the flags are policy_uncertain, extends_length, context_retokenised, foreign_assistant_text, inserted_end_of_turn"#,
            ),
            (&many, "there are more than 32 conditions"),
        ] {
            let error = Conditions::parse(text).expect_err("it is invalid").to_string();
            assert!(error.starts_with(&format!("{cause}; conditions are such as turns>3,step=17: ")), "{error}");
        }
    }
}
