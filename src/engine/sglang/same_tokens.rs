//! Whether the ids of a student mean the same tokens to the engine of a teacher.

use std::time::Duration;

use crate::engine::capabilities::Capabilities;
use crate::engine::sglang::probe::{Probe, ProbeError};
use crate::engine::sglang::tokenize;
use crate::engine::transport::client::Client;

/// How long a teacher may take to answer what is compared.
const TIMEOUT: Duration = Duration::from_secs(15);

/// A text whose tokens tell tokenizers apart: words, digits, white space, code, several scripts, and an emoji.
const SAMPLE: &str = "Grüße, 北京 — naïve café №42: 3.14159e-7 \t\n\n  def f(x):\n    return {'a': x**2}  # ✓ 👩‍🚀 Здравствуй مرحبا 12345678";

/// Why the ids of a student cannot be sent to a teacher.
#[derive(Debug, thiserror::Error)]
pub(crate) enum TokensError {
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("no answer in time")]
    Timeout,
    #[error("another vocabulary: {teacher} entries, and the student has {student}")]
    Vocabulary { student: u32, teacher: u32 },
    #[error("another tokenizer: a sample text has other ids")]
    Tokenizer,
}

/// Compares the ids of a text, and returns the size of the teacher's vocabulary, if it is known. The sizes of the vocabularies are compared
/// where an engine has no tokenizer: with one tokenizer, models of a family pad their embeddings to different sizes. What an engine does not
/// report is not compared.
///
/// # Errors
/// [`TokensError`].
pub(crate) async fn compare(
    student: &Client,
    ours: &Capabilities,
    teacher: &Client,
) -> Result<Option<u32>, TokensError> {
    tokio::time::timeout(TIMEOUT, answers(student, ours, teacher)).await.map_err(|_| TokensError::Timeout)?
}

async fn answers(student: &Client, ours: &Capabilities, teacher: &Client) -> Result<Option<u32>, TokensError> {
    let probe = Probe::remote(teacher.clone());
    let info = probe.read_info().await?;
    let theirs = probe.with_vocabulary(info.0).await?.vocab_size;
    let text = serde_json::Value::from(SAMPLE).to_string();
    let ids = tokio::join!(tokenize::tokenize(student, &text), tokenize::tokenize(teacher, &text));
    match (ids, ours.vocab_size.zip(theirs)) {
        ((Ok(student), Ok(teacher)), _) if student != teacher => Err(TokensError::Tokenizer),
        ((Ok(_), Ok(_)), _) => Ok(theirs),
        (_, Some((student, teacher))) if student != teacher => Err(TokensError::Vocabulary { student, teacher }),
        _ => Ok(theirs),
    }
}
