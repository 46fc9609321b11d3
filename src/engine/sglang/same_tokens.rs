// SPDX-License-Identifier: Apache-2.0
//! Whether the ids of a student mean the same tokens to the engine of a teacher.

use std::time::Duration;

use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::probe::{Probe, ProbeError};
use crate::engine::sglang::tokenize::{TokenizeError, tokenize};
use crate::engine::transport::client::Client;

/// How long both engines may take to answer what is compared.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A text whose tokens tell tokenizers apart: words, digits, white space, code, several scripts, and an emoji.
const SAMPLE: &str = "Grüße, 北京 — naïve café №42: 3.14159e-7 \t\n\n  def f(x):\n    return {'a': x**2}  # ✓ 👩‍🚀 Здравствуй مرحبا 12345678";

/// What was compared, and was equal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SameTokens {
    /// The size of the teacher's vocabulary, if it is known.
    pub(crate) vocab_size: Option<u32>,
    /// Both engines gave the same ids for a text. Otherwise one has no tokenizer.
    pub(crate) has_same_ids: bool,
    /// Both sizes are known. They are equal, unless the ids are.
    pub(crate) are_sizes_known: bool,
}

/// Why the ids of a student cannot be sent to a teacher.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokensError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("the student's engine: {0}")]
    Student(TokenizeError),
    #[error("{0}")]
    Teacher(TokenizeError),
    #[error("no answer of both engines in time")]
    Timeout,
    #[error("another vocabulary: {teacher} entries, and the student has {student}")]
    Vocabulary { student: u32, teacher: u32 },
    #[error("another tokenizer: a sample text has other ids")]
    Tokenizer,
}

impl TokensError {
    /// Whether the teacher has other tokens. Otherwise an engine has not answered.
    pub(crate) fn is_mismatch(&self) -> bool {
        matches!(self, Self::Vocabulary { .. } | Self::Tokenizer)
    }
}

/// Compares the ids of a text. The sizes of the vocabularies are compared where an engine has no tokenizer: with one tokenizer, models of a
/// family pad their embeddings to different sizes. What an engine does not report is not compared.
///
/// # Errors
/// [`TokensError`].
pub(crate) async fn compare(
    student: &Client,
    ours: &Capabilities,
    teacher: &Client,
) -> Result<SameTokens, TokensError> {
    tokio::time::timeout(TIMEOUT, answers(student, ours, teacher)).await.map_err(|_| TokensError::Timeout)?
}

async fn answers(student: &Client, ours: &Capabilities, teacher: &Client) -> Result<SameTokens, TokensError> {
    let probe = Probe::remote(teacher.clone());
    let info = probe.read_info().await?;
    let theirs = probe.with_vocabulary(info.0).await?.vocab_size;
    let text = serde_json::Value::from(SAMPLE).to_string();
    let (student, teacher) = tokio::join!(tokenize(student, &text), tokenize(teacher, &text));
    let student = supported(student).map_err(TokensError::Student)?;
    let teacher = supported(teacher).map_err(TokensError::Teacher)?;
    let has_same_ids = match (student, teacher) {
        (Some(student), Some(teacher)) if student != teacher => return Err(TokensError::Tokenizer),
        (Some(_), Some(_)) => true,
        _ => false,
    };
    let sizes = ours.vocab_size.zip(theirs);
    match sizes {
        Some((student, teacher)) if student != teacher && !has_same_ids => {
            Err(TokensError::Vocabulary { student, teacher })
        }
        _ => Ok(SameTokens { vocab_size: theirs, has_same_ids, are_sizes_known: sizes.is_some() }),
    }
}

/// The ids of an engine; `None` if it has no tokenizer.
fn supported(answer: Result<Vec<Vec<u32>>, TokenizeError>) -> Result<Option<Vec<Vec<u32>>>, TokenizeError> {
    match answer {
        Ok(ids) => Ok(Some(ids)),
        Err(TokenizeError::Unsupported(_)) => Ok(None),
        Err(error @ TokenizeError::Unanswered(_)) => Err(error),
    }
}
