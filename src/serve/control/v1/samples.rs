// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/samples`: exports sessions in the format of a trainer.

use std::path::Path;
use std::sync::Arc;

use http::{HeaderName, Response};
use serde::Deserialize;

use super::sessions::{annotate, find};
use crate::chat::model::Chats;
use crate::export::{Batch, Decoder, Exclusions, Export, ExportImages, ExportOption, Format, Shape};
use crate::rl::{self, AdvantageOptions};
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::stream_response;
use crate::session::{Classes, Conditions, Session, TurnSelection};

/// The number of exported rows.
const ROWS: HeaderName = HeaderName::from_static("tokentap-rows");

/// The number of excluded leaves by reason, as a JSON object.
const REFUSED: HeaderName = HeaderName::from_static("tokentap-refused");

/// The number of exported rows that lack something, by reason, as a JSON object.
const INCOMPLETE: HeaderName = HeaderName::from_static("tokentap-incomplete");

/// The memory that decoding takes for each token.
const DECODED_TOKEN_BYTES: usize = 96;

/// The maximum prompt or response length, in tokens. It is above every context length in use.
const LONGEST: usize = 1 << 24;

/// The body of `POST /v1/samples`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SamplesRequest {
    /// The names of the sessions, without duplicates. `None`: all sessions in memory.
    pub sessions: Option<Vec<String>>,
    /// The conditions that the exported ones of these meet.
    #[serde(rename = "where")]
    pub conditions: Option<String>,
    /// The name of a [`Format`].
    pub format: String,
    /// The value in tensors where a row has no token; without it 0.
    pub pad_token_id: Option<u32>,
    /// The length of the prompt side of tensors, in tokens.
    pub max_prompt_length: Option<usize>,
    /// The length of the response side of tensors, in tokens.
    pub max_response_length: Option<usize>,
    /// The version of every session. The default is the last frozen version, else the open one.
    pub version: Option<u32>,
    /// Whether all exported paths are included, or only the one with the most trained tokens.
    #[serde(default = "yes")]
    pub include_branches: bool,
    /// miles: whether entropies are included, which its reader does not expect.
    #[serde(default)]
    pub entropies: bool,
    /// jsonl, arrow and parquet: whether the text columns are filled.
    #[serde(default)]
    pub text: bool,
    /// What the file has of pictures; without it references.
    pub images: Option<ExportImages>,
    /// The classes of turns that are trained. The default is the turns of conversations.
    #[serde(default)]
    pub classes: Vec<String>,
    /// The flags whose rows are excluded.
    #[serde(default)]
    pub exclude: Vec<String>,
    /// Whether turns that were cut off are trained, if a trained turn resumes them.
    #[serde(default)]
    pub train_resumed: bool,
    /// How the advantages of the rows are computed; without it the rows have none.
    pub advantages: Option<AdvantageOptions>,
    /// The teacher whose logprobs the rows have as a token column; without it they have none.
    pub scores: Option<String>,
}

impl SamplesRequest {
    fn sets(&self, option: ExportOption) -> bool {
        match option {
            ExportOption::Text => self.text,
            ExportOption::Advantages => self.advantages.is_some(),
            ExportOption::Scores => self.scores.is_some(),
            ExportOption::Images => self.images.is_some(),
            ExportOption::Entropies => self.entropies,
            ExportOption::PadTokenId => self.pad_token_id.is_some(),
            ExportOption::MaxPromptLength => self.max_prompt_length.is_some(),
            ExportOption::MaxResponseLength => self.max_response_length.is_some(),
        }
    }

    /// The teacher whose scores the rows have: that of `scores`, or of advantages that need one.
    ///
    /// # Errors
    /// When both are given and differ.
    fn teacher(&self) -> Result<Option<&str>, Problem> {
        let of_advantages = self.advantages.as_ref().and_then(|options| options.teacher.as_deref());
        rl::one_teacher(self.scores.as_deref(), of_advantages).map_err(Problem::bad_request)
    }
}

fn yes() -> bool {
    true
}

/// Parses the names of classes.
///
/// # Errors
/// When a name is unknown.
pub(crate) fn classes(names: &[String]) -> Result<Classes, Problem> {
    Classes::parse(names.iter().map(String::as_str)).map_err(|error| Problem::bad_request(format!("classes: {error}")))
}

/// Parses the selection of trained turns: the names of classes, and `train_resumed`.
///
/// # Errors
/// When a name is unknown.
pub(crate) fn selection(names: &[String], train_resumed: bool) -> Result<TurnSelection, Problem> {
    Ok(TurnSelection { classes: classes(names)?, resumed: train_resumed })
}

/// Parses the flags whose rows are excluded.
///
/// # Errors
/// When a name is unknown.
pub(crate) fn exclusions(names: &[String]) -> Result<Exclusions, Problem> {
    let parsed = Exclusions::parse(names.iter().map(String::as_str));
    parsed.map_err(|error| Problem::bad_request(format!("exclude: {error}")))
}

/// Returns the sessions with these names.
///
/// # Errors
/// When a session does not exist or is listed twice.
pub(crate) fn named(proxy: &Proxy, names: &[String]) -> Result<Vec<Arc<Session>>, Problem> {
    let mut unique = std::collections::HashSet::new();
    if let Some(id) = names.iter().find(|id| !unique.insert(*id)) {
        return Err(Problem::bad_request(format!("sessions: {id:?} is listed twice")));
    }
    names.iter().map(|id| find(proxy, id)).collect()
}

/// Returns the sessions of an export: those with the names, or all in memory, that meet the conditions.
fn chosen(proxy: &Proxy, request: &SamplesRequest) -> Result<Vec<Arc<Session>>, Problem> {
    let conditions = request.conditions.as_deref().map(Conditions::parse).transpose();
    let conditions = conditions.map_err(|error| Problem::bad_request(format!("where: {error}")))?;
    let mut sessions = match &request.sessions {
        Some(names) => named(proxy, names)?,
        None => proxy.sessions.in_memory(),
    };
    if let Some(conditions) = conditions {
        sessions.retain(|session| session.meets(&conditions));
    }
    Ok(sessions)
}

/// Returns the paths of sessions, in the order of an export of `selection`.
///
/// # Errors
/// When a session has no such version.
pub(crate) fn batch(
    proxy: &Proxy,
    sessions: &[Arc<Session>],
    version: Option<u32>,
    include_branches: bool,
    selection: TurnSelection,
    teacher: Option<&str>,
) -> Result<Batch, Problem> {
    let mut batch = Batch { annotate: Some(annotate(proxy)), ..Batch::default() };
    for session in sessions {
        let snapshot = session.snapshot_of(version, selection);
        let mut snapshot = snapshot.map_err(|error| Problem::session(&session.id, error))?;
        if let Some(teacher) = teacher {
            snapshot = session.scored(&snapshot, teacher);
        }
        let (mut rows, mut out) = snapshot.rows(include_branches);
        batch.rows.append(&mut rows);
        batch.refused.append(&mut out);
    }
    Ok(batch)
}

/// Exports sessions in the format of a trainer.
///
/// # Errors
/// When the request is invalid, a session cannot be read, or the export is too large.
pub(crate) fn export(proxy: &Proxy, request: &SamplesRequest) -> Result<Export, Problem> {
    let Some(format) = Format::from_name(&request.format) else {
        return Err(Problem::bad_request(format!(
            "format: {:?} is not one of {}",
            request.format,
            Format::names(|_| true)
        )));
    };
    for (name, length) in
        [("max_prompt_length", request.max_prompt_length), ("max_response_length", request.max_response_length)]
    {
        if length.is_some_and(|length| length == 0 || length > LONGEST) {
            return Err(Problem::bad_request(format!("{name}: must be 1 to {LONGEST}")));
        }
    }
    format.check(|option| request.sets(option))?;
    let selection = selection(&request.classes, request.train_resumed)?;
    let exclusions = exclusions(&request.exclude)?;
    let decoder = request.text.then(|| decoder(proxy)).transpose()?;
    let mut batch = {
        let (teacher, branches) = (request.teacher()?, request.include_branches);
        batch(proxy, &chosen(proxy, request)?, request.version, branches, selection, teacher)?
    };
    if let Some(teacher) = &request.scores {
        rl::check_scored(&batch.rows, teacher)?;
    }
    batch.shape = Shape {
        pad_token_id: request.pad_token_id.unwrap_or_default(),
        max_prompt_length: request.max_prompt_length,
        max_response_length: request.max_response_length,
        entropies: request.entropies,
    };
    batch.images = request.images.unwrap_or_default();
    batch.decoder = decoder;
    if let Some(mut options) = request.advantages.clone() {
        options.set_default_think_tokens(proxy.think_tokens());
        rl::add_advantages(&mut batch, &options).map_err(|error| error.below("advantages"))?;
    }
    exclusions.apply(&mut batch);
    budgeted(format.export(batch).within(proxy.config.sessions.max_export_bytes)?, proxy)
}

/// The export with a share of the memory budget for the pictures of a row, which it has until its last byte is read. As the bodies of requests
/// of this port, it may take the whole budget, so that agents cannot block trainers.
fn budgeted(mut export: Export, proxy: &Proxy) -> Result<Export, Problem> {
    let bytes = export.image_memory;
    if bytes == 0 {
        return Ok(export);
    }
    let limit = proxy.config.limits.max_bytes_in_flight;
    let problem = |code, problem: &str| {
        let message =
            format!("images: a row with its pictures takes {bytes} bytes, {problem}, or raise --max-bytes-in-flight");
        Err(Problem::new(code, message))
    };
    if bytes > limit {
        let is_above = format!("more than the limit of {limit} bytes; export them with images=refs");
        return problem(ErrorCode::EXPORT_TOO_LARGE, &is_above);
    }
    let mut share = proxy.budget.reply();
    if share.grow(usize::try_from(bytes).unwrap_or(usize::MAX)).is_err() {
        share.shed();
        return problem(ErrorCode::NO_MEMORY, "which are in use; try again");
    }
    let mut chunks = export.chunks;
    export.chunks = Box::new(std::iter::from_fn(move || {
        // dropped with the iterator
        let _memory = &share;
        chunks.next()
    }));
    Ok(export)
}

/// Returns the tokenizer of chats as a decoder. It keeps special tokens, because the text must match the row's ids.
pub(super) fn decoder(proxy: &Proxy) -> Result<Decoder, Problem> {
    let chats = Arc::clone(&proxy.chats.borrow());
    match &*chats {
        Chats::Rendered(model) => {
            let (tokenizer, renderer) = (folder_name(&model.renderer.folder().path), Arc::clone(&model.renderer));
            let budget = proxy.budget.clone();
            let decode = Arc::new(move |ids: &[u32]| {
                // agents must not lock trainers out, so the export does not wait for room
                let _memory = budget.insist(DECODED_TOKEN_BYTES * ids.len());
                renderer.tokenizer().decode(ids, false).ok()
            });
            Ok(Decoder { tokenizer, model: Arc::clone(&proxy.upstream.borrow().model), decode })
        }
        Chats::Forwarded(reason) => {
            let message = format!("text: no tokenizer is loaded, see --tokenizer: {reason}");
            Err(Problem::new(ErrorCode::NO_TOKENIZER, message))
        }
    }
}

/// Returns the last component of a path. Trainers must not learn the folder's location on this machine.
fn folder_name(path: &Path) -> String {
    let absolute = std::path::absolute(path);
    let name = absolute.as_deref().unwrap_or(path).file_name();
    name.map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

pub(super) fn into_response(export: Export) -> Response<Body> {
    let tally = export.tally;
    let mut response = stream_response(export.content_type, export.length, export.chunks);
    response.headers_mut().insert(ROWS, tally.rows.into());
    for (name, counts) in [(REFUSED, &tally.refused), (INCOMPLETE, &tally.incomplete)] {
        if let Ok(counts) = serde_json::to_string(counts).unwrap_or_default().parse() {
            response.headers_mut().insert(name, counts);
        }
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizer_name_is_the_last_component_of_its_folder() {
        assert_eq!(folder_name(Path::new("/srv/secret/Qwen3-8B/")), "Qwen3-8B");
        assert_eq!(folder_name(Path::new("models/tiny")), "tiny");
        assert!(!folder_name(Path::new(".")).is_empty(), "the working directory has a name");
    }
}
