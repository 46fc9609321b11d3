// SPDX-License-Identifier: Apache-2.0
//! The pictures of requests to `/generate`, before they are sent.

use std::borrow::Cow;

use crate::budget::Work;
use crate::chat::model::ChatModel;
use crate::chat::{image_text, image_too_large};
use crate::engine::expansion::{PlaceholderError, collapse};
use crate::engine::plan::GuardRefusal;
use crate::engine::sglang::request::{GenerateRequest, IdShape};
use crate::error::Error;
use crate::json::write_ids;

/// Why a request with pictures is not sent.
#[derive(Debug)]
pub(crate) enum ImageRefusal {
    /// It breaks a rule of the guard.
    Rule(GuardRefusal),
    /// There is no memory to write it anew.
    Stopped(Error),
}

impl From<GuardRefusal> for ImageRefusal {
    fn from(refusal: GuardRefusal) -> Self {
        Self::Rule(refusal)
    }
}

/// Checks that no picture has more bytes than `most`.
///
/// # Errors
/// [`ImageRefusal`], which names the picture.
pub(crate) fn check_sizes(request: &GenerateRequest, most: u64) -> Result<(), ImageRefusal> {
    for prompt in 0..request.batch().unwrap_or(1) {
        for (at, image) in request.images(prompt).into_iter().enumerate() {
            if let Some(size) = image.size(&request.bytes).filter(|size| *size > most) {
                let place = place(request, "image_data", prompt);
                let message = image_too_large(&format!("{place}[{at}]"), size, most);
                return Err(GuardRefusal { rule: "image_too_large", message }.into());
            }
        }
    }
    Ok(())
}

/// The request with one placeholder in its ids for each picture. Processors fail on other prompts, and some never answer them.
///
/// # Errors
/// [`ImageRefusal`].
pub(crate) fn with_placeholders(
    request: Box<GenerateRequest>,
    model: &ChatModel,
    work: &Work,
) -> Result<Box<GenerateRequest>, ImageRefusal> {
    let Ok(placeholder) = model.renderer.image_placeholder() else { return Ok(request) };
    // the rest has other tokens than those of pictures
    if !request.echo_shows_images() {
        return Ok(request);
    }
    let prompts: Vec<_> = (0..request.batch().unwrap_or(1)).map(|at| request.prompt_ids(at)).collect();
    let mut collapsed = Vec::with_capacity(prompts.len());
    for (at, ids) in prompts.iter().enumerate() {
        // ids that cannot be read are not checked
        let Some(ids) = ids else { return Ok(request) };
        let images = request.images(at).len();
        if !request.images.is_absent() && !request.assigns_images() {
            // the engine refuses a list of another length than the batch
            return Ok(request);
        }
        let refuse = |rule, problem: String| {
            let message = format!("{}: {problem}", place(&request, "input_ids", at));
            Err(ImageRefusal::Rule(GuardRefusal { rule, message }))
        };
        if images == 0 {
            let id = placeholder.id;
            if let placeholders @ 1.. = ids.iter().filter(|sent| **sent == id).count() {
                return refuse("image_count", PlaceholderError::Count { placeholders, id, images }.to_string());
            }
            collapsed.push(Cow::Borrowed(&**ids));
            continue;
        }
        let sent = match collapse(ids, placeholder, images) {
            Ok(sent) => sent,
            Err(error @ PlaceholderError::Count { .. }) => return refuse("image_count", error.to_string()),
            Err(error @ PlaceholderError::Outside { .. }) => return refuse("image_placeholder", error.to_string()),
        };
        if model.renderer.spells_placeholder(&sent, placeholder.id).unwrap_or_default() {
            return refuse("image_text", image_text(model, placeholder.id));
        }
        collapsed.push(sent);
    }
    if collapsed.iter().all(|sent| matches!(sent, Cow::Borrowed(_))) {
        return Ok(request);
    }
    let Some(span) = request.object.value_span(&request.bytes, "input_ids") else { return Ok(request) };
    let mut memory = work.share();
    work.add(&mut memory, request.bytes.len()).map_err(|stopped| ImageRefusal::Stopped(stopped.into()))?;
    let mut body = Vec::with_capacity(request.bytes.len());
    body.extend_from_slice(&request.bytes[..span.start]);
    write_lists(&mut body, &collapsed, request.ids.shape);
    body.extend_from_slice(&request.bytes[span.end..]);
    // a body that was read can be read again
    Ok(GenerateRequest::parse(memory.hold(body)).map_or(request, Box::new))
}

fn write_lists(out: &mut Vec<u8>, lists: &[Cow<'_, [u32]>], shape: IdShape) {
    let is_nested = matches!(shape, IdShape::Nested(_));
    out.extend_from_slice(if is_nested { b"[" } else { b"" });
    for (at, ids) in lists.iter().enumerate() {
        out.extend_from_slice(if at > 0 { b",[" } else { b"[" });
        write_ids(out, ids);
        out.push(b']');
    }
    out.extend_from_slice(if is_nested { b"]" } else { b"" });
}

/// The place of what belongs to prompt `at`.
fn place(request: &GenerateRequest, member: &str, at: usize) -> String {
    match request.batch() {
        Some(_) => format!("{member}[{at}]"),
        None => member.to_owned(),
    }
}
