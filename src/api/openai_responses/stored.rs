// SPDX-License-Identifier: Apache-2.0
//! Stored responses: what a session holds of them, and how a later request continues them.
//!
//! Only the request of a response is stored, with its turn. The response itself is encoded again from the tokens of the turn.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use http::{HeaderMap, header};

use super::OpenAiResponses;
use super::encoder::ResponseEncoder;
use super::error;
use super::input::is_reference;
use super::request::{DecodeOptions, InputItem, ResponsesRequest};
use crate::api::ReplyEncoder;
use crate::api::body::invalid;
use crate::budget::{Share, Work, values_bytes};
use crate::chat::{RequestError, quoted};
use crate::engine::rid;
use crate::engine::sglang::response::FinishedSequence;
use crate::generation::event::{EventAccess, GenerationEvent};
use crate::generation::update::SequenceUpdate;
use crate::images::{Image, ImageDigest};
use crate::json::{Object, Value, elements};
use crate::session::{CallerKey, Session, SharedItems, StoredItem, StoredRequest, Turn, TurnKey};

/// A stored response of a session.
#[derive(Debug, Clone)]
pub(super) struct StoredResponse {
    session: Arc<Session>,
    turn: Arc<Turn>,
}

impl StoredResponse {
    /// Finds the response with this id, unless it was deleted or belongs to another caller.
    pub(super) fn find(session: Option<&Arc<Session>>, id: &str, caller: &[u8]) -> Option<Self> {
        let session = Arc::clone(session?);
        let (turn, is_deleted) = session.stored(TurnKey::in_response_id(id)?)?;
        let found = Self { session, turn };
        (!is_deleted && found.request()?.caller.is(caller)).then_some(found)
    }

    /// The number of its turn.
    pub(super) fn turn(&self) -> u32 {
        self.turn.id
    }

    fn request(&self) -> Option<&StoredRequest> {
        stored_request(&self.turn)
    }

    /// The items of its input, including those of the responses that it continues.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if a part of them is missing, which a damaged log may cause.
    pub(super) fn items(&self) -> Result<Items, RequestError> {
        Items::collect(&self.session, Arc::clone(&self.turn)).ok_or_else(missing_part)
    }

    /// The turn whose request has the members of its request.
    fn members_turn(&self) -> Option<Arc<Turn>> {
        match self.request()?.members_of {
            None => Some(Arc::clone(&self.turn)),
            Some(turn) => self.session.turn(turn).filter(|turn| turn.id < self.turn.id),
        }
    }

    /// Its request with all items of its input, without the base64 texts of pictures.
    fn whole_request(&self, api: &OpenAiResponses) -> Result<ResponsesRequest, RequestError> {
        let items = self.items()?;
        let items: Vec<&str> = items.iter().map(StoredItem::without_base64).collect();
        let previous = self.request().and_then(|request| request.previous);
        self.parse(api, previous, &format!("[{}]", items.join(",")))
    }

    /// Its request with this input, JSON text.
    fn parse(
        &self,
        api: &OpenAiResponses,
        previous: Option<TurnKey>,
        input: &str,
    ) -> Result<ResponsesRequest, RequestError> {
        let turn = self.members_turn().ok_or_else(missing_part)?;
        let members = stored_request(&turn).and_then(|request| request.members.as_deref()?.strip_suffix('}'));
        let members = members.ok_or_else(missing_part)?;
        let separator = if members.len() > 1 { "," } else { "" };
        let previous = previous.map_or("null".to_owned(), |key| quoted(&key.response_id()));
        let body = format!("{members}{separator}\"previous_response_id\":{previous},\"input\":{input}}}");
        let options = api.decode_options(self.request().is_some_and(|request| request.completes_at_length));
        ResponsesRequest::parse(body.into(), DecodeOptions { is_strict: false, is_complete: true, ..options })
    }

    /// The response, as JSON text.
    ///
    /// # Errors
    /// [`RequestError`] if its request or its tokens cannot be read any more, such as after a change of the model.
    pub(super) fn json(&self, api: &OpenAiResponses) -> Result<String, RequestError> {
        let prompt_tokens = self.session.tokens(self.turn.id).len() - self.turn.response.len();
        self.encode(api, &self.whole_request(api)?, prompt_tokens)
    }

    /// The response to `request`, as JSON text.
    fn encode(
        &self,
        api: &OpenAiResponses,
        request: &ResponsesRequest,
        prompt_tokens: usize,
    ) -> Result<String, RequestError> {
        let model = api.chats.model(&request.conversation)?;
        let about = &self.turn.about;
        let options = about.chat.as_ref().map(|chat| chat.reading.clone()).unwrap_or_default();
        let mut context = request.context(api, &model, options, prompt_tokens);
        context.created = about.started_ms / 1000;
        context.completed = Some(about.started_ms.saturating_add(about.elapsed_ms) / 1000);
        context.stores = true;
        context.includes_logprobs = false;
        let mut encoder = ResponseEncoder::new(context);
        encoder.set_rid(about.rid.as_deref().unwrap_or_default());
        let event = GenerationEvent::outline(self.event(prompt_tokens).into(), EventAccess::Fields);
        let event = event.map_err(|error| invalid(format!("the recorded turn is {error}")))?;
        let updates = SequenceUpdate::all(&event).map_err(|error| invalid(format!("the recorded turn is {error}")))?;
        let is_cut = matches!(about.finish.as_deref(), None | Some("abort"));
        match encoder.encode_whole(&updates) {
            _ if is_cut => Ok(encoder.failed(&error::cut())),
            Ok(Ok(json)) => Ok(json),
            Ok(Err(error)) => Ok(encoder.failed(&error)),
            Err(error) => Err(RequestError::Unsupported(error.to_string())),
        }
    }

    /// The turn, as the engine's reply.
    fn event(&self, prompt_tokens: usize) -> String {
        let about = &self.turn.about;
        let sequence = FinishedSequence {
            rid: about.rid.as_deref().unwrap_or_default(),
            finish: about.finish.as_deref(),
            prompt_tokens,
            ids: &self.turn.response,
            cached_tokens: about.cached_tokens,
        };
        sequence.json()
    }

    /// The items of its output, as JSON texts. `requests` has the requests that were read for other responses, by the turn of their members,
    /// because a client may name items of many responses at once.
    fn output(
        &self,
        api: &OpenAiResponses,
        requests: &mut HashMap<u32, ResponsesRequest>,
    ) -> Result<Vec<String>, RequestError> {
        let adds_tools = self.request().is_some_and(|request| request.adds_tools);
        let json = if adds_tools {
            self.json(api)?
        } else {
            let members = self.members_turn().ok_or_else(missing_part)?.id;
            let request = match requests.entry(members) {
                Entry::Occupied(known) => known.into_mut(),
                // the tools of the members are all that the output depends on
                Entry::Vacant(new) => new.insert(self.parse(api, None, "\"-\"")?),
            };
            self.encode(api, request, 0)?
        };
        let object = Object::parse(json.as_bytes()).map_err(|error| invalid(format!("the response is {error}")))?;
        let output = object.value_span(json.as_bytes(), "output").map(|span| &json[span]);
        Ok(elements(output.unwrap_or("[]")).unwrap_or_default().into_iter().map(str::to_owned).collect())
    }
}

fn missing_part() -> RequestError {
    invalid("the response cannot be read, because a part of its session is missing")
}

fn stored_request(turn: &Turn) -> Option<&StoredRequest> {
    turn.about.chat.as_ref()?.stored.as_deref()
}

/// The turn of the request with which the request of `turn` shares items.
fn earlier(session: &Session, turn: &Turn) -> Option<Arc<Turn>> {
    let earlier = session.turn(stored_request(turn)?.shared?.turn)?;
    // a damaged log must not cause an endless loop
    (earlier.id < turn.id).then_some(earlier)
}

/// The items of an input. They are in the requests of several turns.
#[derive(Debug)]
pub(super) struct Items {
    parts: Vec<(Arc<Turn>, usize)>,
    /// The pictures that are left out of them. The session may be removed meanwhile.
    images: BTreeMap<ImageDigest, Arc<Image>>,
}

impl Items {
    /// Collects the items of the input of a turn. `None` if a part of them is missing.
    fn collect(session: &Session, mut turn: Arc<Turn>) -> Option<Self> {
        let mut parts = Vec::new();
        let mut count = usize::MAX;
        loop {
            let request = stored_request(&turn)?;
            let shared = request.shared.map_or(0, |shared| shared.count as usize);
            parts.push((Arc::clone(&turn), count.saturating_sub(shared).min(request.items.len())));
            count = count.min(shared);
            if count == 0 {
                break;
            }
            turn = earlier(session, &turn)?;
        }
        parts.reverse();
        let mut items = Self { parts, images: BTreeMap::new() };
        items.images = session.images(items.iter().flat_map(StoredItem::pictures));
        Some(items)
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &StoredItem> {
        self.parts.iter().flat_map(|(turn, count)| {
            let items = stored_request(turn).map(|request| &request.items[..*count]);
            items.unwrap_or_default().iter()
        })
    }

    /// An item, as JSON text. `memory` counts it.
    ///
    /// # Errors
    /// [`RequestError::Invalid`] if the bytes of a picture are not known any more, [`RequestError::Stopped`].
    pub(super) fn text(&self, item: &StoredItem, work: &Work, memory: &mut Share) -> Result<Arc<str>, RequestError> {
        work.add(memory, item.json_bytes(|digest| self.image(digest)))?;
        item.json(|digest| self.image(digest)).ok_or_else(missing_part)
    }

    fn image(&self, digest: ImageDigest) -> Option<Arc<Image>> {
        self.images.get(&digest).map(Arc::clone)
    }

    /// The number of its first items that are these texts.
    fn count_equal(&self, texts: &[Arc<str>]) -> usize {
        let is_equal = |(item, text): &(&StoredItem, &Arc<str>)| item.is_json(text, |digest| self.image(digest));
        self.iter().zip(texts).take_while(is_equal).count()
    }
}

/// The key of the caller of a request, or its absence.
pub(super) fn caller(headers: &HeaderMap) -> Vec<u8> {
    let value = |name: &str| headers.get(name).map_or(&b""[..], |value| value.as_bytes());
    [value(header::AUTHORIZATION.as_str()), b"\n", value("x-api-key")].concat()
}

/// A request with the items of the responses to which it refers.
#[derive(Debug)]
pub(super) struct WholeRequest {
    pub(super) request: ResponsesRequest,
    _memory: Share,
}

/// The memory of an item in a conversation, besides its text.
const ITEM_BYTES: usize = 128;

/// The memory that reading a recorded reply takes for each of its tokens.
const REPLY_TOKEN_BYTES: usize = 128;

/// The items of an input that refers to others, as they are collected.
struct Collected<'a> {
    work: &'a Work,
    items: Vec<InputItem>,
    memory: Share,
}

impl Collected<'_> {
    /// Appends an item, and counts the copy of its text in the conversation.
    fn push(&mut self, item: InputItem) -> Result<(), RequestError> {
        self.work.add(&mut self.memory, item.text.len() + ITEM_BYTES)?;
        self.items.push(item);
        Ok(())
    }

    /// Reads an item.
    fn read(&mut self, text: Arc<str>) -> Result<InputItem, RequestError> {
        self.work.add(&mut self.memory, values_bytes(text.as_bytes()))?;
        let value = Value::parse(text.as_bytes()).map_err(|error| invalid(format!("a stored item is {error}")))?;
        Ok(InputItem { text, value: Arc::new(value) })
    }
}

/// The request whose input has the items of the responses to which `request` refers.
///
/// # Errors
/// [`RequestError::Invalid`] if a response or an item is not stored, [`RequestError::Unsupported`] if it may be stored by the engine,
/// [`RequestError::Stopped`].
pub(super) fn with_history(
    api: &OpenAiResponses,
    request: &ResponsesRequest,
    session: Option<&Arc<Session>>,
    caller: &[u8],
    work: &Work,
) -> Result<WholeRequest, RequestError> {
    let previous = match &request.previous {
        None => None,
        Some(id) => Some(StoredResponse::find(session, id, caller).ok_or_else(|| error::no_previous_response(id))?),
    };
    let mut requests = HashMap::new();
    let mut output = |response: &StoredResponse| {
        let _memory = work.take(REPLY_TOKEN_BYTES * response.turn.response.len())?;
        response.output(api, &mut requests)
    };
    let mut collected = Collected { work, items: Vec::new(), memory: work.take(0)? };
    if let Some(previous) = &previous {
        let items = previous.items()?;
        for item in items.iter() {
            let text = items.text(item, work, &mut collected.memory)?;
            let item = collected.read(text)?;
            collected.push(item)?;
        }
        for item in output(previous)? {
            let item = collected.read(item.into())?;
            collected.push(item)?;
        }
    }
    // each response is encoded once, however often its items are named
    let mut outputs: HashMap<u32, HashMap<String, InputItem>> = HashMap::new();
    for item in request.items() {
        let item = collected.read(item)?;
        if !is_reference(&item.value) {
            collected.push(item)?;
            continue;
        }
        let id = item.value.get_str("id").unwrap_or_default();
        let missing = || invalid(format!("no item of this session has the id {id:?}; send the item itself"));
        let key = TurnKey::in_item_id(id).ok_or_else(missing)?;
        let response = StoredResponse::find(session, &key.response_id(), caller).ok_or_else(missing)?;
        let named = match outputs.entry(response.turn()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                let mut items = HashMap::new();
                for text in output(&response)? {
                    let item = collected.read(text.into())?;
                    if let Some(id) = item.value.get_str("id").map(str::to_owned) {
                        items.insert(id, item);
                    }
                }
                new.insert(items)
            }
        };
        collected.push(named.get(id).ok_or_else(missing)?.clone())?;
    }
    let Collected { items, memory, .. } = collected;
    Ok(WholeRequest { request: request.with_items(items)?, _memory: memory })
}

/// What the session stores of a request. It shares items with the response that it continues, or with that of the last turn in its input.
pub(super) fn request_to_store(
    request: &ResponsesRequest,
    session: Option<&Arc<Session>>,
    caller: &[u8],
) -> StoredRequest {
    let items = request.items();
    let previous = request.previous.as_deref().and_then(TurnKey::in_response_id);
    let base = session.zip(previous.or(request.last_key)).and_then(|(session, key)| {
        let (turn, _) = session.stored(key)?;
        Some(StoredResponse { session: Arc::clone(session), turn })
    });
    let mut members = Some(request.members());
    let (mut shared, mut members_of) = (None, None);
    if let Some(base) = base
        && let Ok(known) = base.items()
    {
        let count = known.count_equal(&items);
        shared = Some(SharedItems { turn: base.turn(), count: u32::try_from(count).unwrap_or(u32::MAX) });
        let turn = base.members_turn();
        let known = turn.as_ref().and_then(|turn| stored_request(turn)?.members.as_deref());
        if known.is_some() && known == members.as_deref() {
            members = None;
            members_of = turn.as_ref().map(|turn| turn.id);
        }
    }
    let count = shared.map_or(0, |shared| shared.count as usize);
    StoredRequest {
        members: members.map(Into::into),
        members_of,
        adds_tools: request.adds_tools,
        completes_at_length: request.options.is_codex,
        previous,
        shared,
        items: items.into_iter().skip(count).map(StoredItem::from).collect(),
        caller: CallerKey::new(rid::fresh().as_bytes(), caller),
    }
}
