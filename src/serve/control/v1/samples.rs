//! `POST /v1/samples`: sessions in the format of a trainer.

use std::path::Path;
use std::sync::Arc;

use http::{HeaderName, Response, StatusCode};
use serde::Deserialize;

use super::sessions::annotate;
use super::{Problem, made, refused, session};
use crate::chat::model::Chats;
use crate::export::{Batch, Decoder, Export, Format, Shape, TooLarge};
use crate::serve::body::Body;
use crate::serve::control::trainer_state::TrainerState;

/// How many rows the body holds.
const ROWS: HeaderName = HeaderName::from_static("tokentap-rows");

/// How many leaves it does not hold, by reason: a JSON object.
const REFUSED: HeaderName = HeaderName::from_static("tokentap-refused");

/// Tokens of a side of a row: above every context there is.
const LONGEST: usize = 1 << 24;

/// `POST /v1/samples`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SamplesRequest {
    /// The sessions, none of them twice.
    pub sessions: Vec<String>,
    /// A name of [`Format`].
    pub format: String,
    /// The value in tensors where a row has no token.
    #[serde(default)]
    pub pad_token_id: u32,
    /// Tokens of the prompt side of tensors.
    pub max_prompt_length: Option<usize>,
    /// Tokens of the response side of tensors.
    pub max_response_length: Option<usize>,
    /// Of every session; without it the last frozen version, else what there is.
    pub version: Option<u32>,
    /// Every exported path, not only the one with the most trained tokens.
    #[serde(default = "yes")]
    pub include_branches: bool,
    /// miles: entropies as well, which its own reader does not expect.
    #[serde(default)]
    pub entropies: bool,
    /// jsonl, arrow and parquet: the text columns are filled.
    #[serde(default)]
    pub text: bool,
}

fn yes() -> bool {
    true
}

/// The paths of sessions, in the order of an export.
///
/// # Errors
/// A session that is not there, has no such version, or is named twice.
pub fn batch(
    state: &TrainerState,
    sessions: &[String],
    version: Option<u32>,
    include_branches: bool,
) -> Result<Batch, Problem> {
    let mut batch = Batch { annotate: Some(annotate(state)), ..Batch::default() };
    let mut named = std::collections::HashSet::new();
    for id in sessions {
        if !named.insert(id) {
            return Err(Problem::bad(format!("sessions: {id:?} stands there twice")));
        }
        let snapshot = session(state, id)?.snapshot(version).map_err(|error| refused(id, error))?;
        let (mut rows, mut out) = snapshot.rows(include_branches);
        batch.rows.append(&mut rows);
        batch.refused.append(&mut out);
    }
    Ok(batch)
}

/// Sessions in the format of a trainer.
///
/// # Errors
/// What cannot be exported so, and why.
pub fn export(state: &TrainerState, said: &SamplesRequest) -> Result<Export, Problem> {
    let Some(format) = Format::from_name(&said.format) else {
        let names: Vec<&str> = Format::ALL.into_iter().map(Format::name).collect();
        return Err(Problem::bad(format!("format: {:?} is none of {}", said.format, names.join(", "))));
    };
    for (name, length) in
        [("max_prompt_length", said.max_prompt_length), ("max_response_length", said.max_response_length)]
    {
        if length.is_some_and(|length| length == 0 || length > LONGEST) {
            return Err(Problem::bad(format!("{name}: 1 to {LONGEST}")));
        }
    }
    if said.text && !matches!(format, Format::Jsonl | Format::Arrow | Format::Parquet) {
        return Err(Problem::bad(format!("text: only jsonl, arrow and parquet have text, not {}", said.format)));
    }
    let decoder = said.text.then(|| decoder(state)).transpose()?;
    let mut batch = batch(state, &said.sessions, said.version, said.include_branches)?;
    batch.shape = Shape {
        pad_token_id: said.pad_token_id,
        max_prompt_length: said.max_prompt_length,
        max_response_length: said.max_response_length,
        entropies: said.entropies,
    };
    batch.decoder = decoder;
    format.export(batch).within(state.config.sessions.max_export_bytes).map_err(|error| too_large(&error))
}

/// The tokenizer that chats are rendered with. Special tokens are kept, because the text stands for the row's ids.
fn decoder(state: &TrainerState) -> Result<Decoder, Problem> {
    let chats = Arc::clone(&state.chats.borrow());
    match &*chats {
        Chats::Rendered(model) => {
            let (tokenizer, renderer) = (folder_name(&model.renderer.folder().path), Arc::clone(&model.renderer));
            let decode = Arc::new(move |ids: &[u32]| renderer.tokenizer().decode(ids, false).ok());
            Ok(Decoder { tokenizer, model: Arc::clone(&state.upstream.borrow().model), decode })
        }
        Chats::Forwarded(reason) => {
            let message = format!("text: no tokenizer is loaded, see --tokenizer: {reason}");
            Err(Problem::new(StatusCode::CONFLICT, "no_tokenizer", message))
        }
    }
}

/// The last name of a path. Where the folder lies on this machine is not for trainers.
fn folder_name(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let name = absolute.as_deref().unwrap_or(path).file_name();
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

fn too_large(error: &TooLarge) -> Problem {
    Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "export_too_large", error.to_string())
}

pub(super) fn reply(export: Export) -> Response<Body> {
    let tally = export.tally;
    let mut reply = made(export.content_type, export.length, export.chunks);
    reply.headers_mut().insert(ROWS, tally.rows.into());
    if let Ok(refused) = serde_json::to_string(&tally.refused).unwrap_or_default().parse() {
        reply.headers_mut().insert(REFUSED, refused);
    }
    reply
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tokenizer_is_named_by_its_folder() {
        assert_eq!(folder_name(Path::new("/srv/secret/Qwen3-8B/")), "Qwen3-8B");
        assert_eq!(folder_name(Path::new("models/tiny")), "tiny");
        assert!(!folder_name(Path::new(".")).is_empty(), "the working directory has a name");
    }
}
