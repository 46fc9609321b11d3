// SPDX-License-Identifier: Apache-2.0
//! `GET` and `DELETE /v1/responses/{id}`, and `GET /v1/responses/{id}/input_items`.

use std::collections::HashSet;
use std::sync::Arc;

use bytes::Bytes;
use http::{Method, Request, StatusCode};

use super::stored::{StoredResponse, caller};
use super::{OpenAiResponses, error};
use crate::api::body::invalid;
use crate::api::{Api, ApiError, ApiPlan, ApiRequest, EncodedReply, LocalReply, to_json};
use crate::budget::{Work, values_bytes};
use crate::chat::{RequestError, RequestSession, quoted};
use crate::engine::sglang::request::SessionNames;
use crate::json::{Value, decode_query_value, percent_decode};
use crate::session::{Session, Sessions, StoredItem, TurnKey};

/// The default and the maximum number of items of a page.
const PAGE: (usize, usize) = (20, 100);

/// The stored responses of sessions. Cheap to clone.
#[derive(Debug, Clone)]
pub struct StoredResponses {
    /// Encodes them.
    pub responses: OpenAiResponses,
    /// The sessions.
    pub sessions: Arc<Sessions>,
    /// Requests are answered with the items of the input in place of the response.
    pub shows_input: bool,
}

/// A decoded request.
#[derive(Debug)]
struct DecodedRetrieval {
    api: StoredResponses,
    /// The id in the path.
    id: String,
    action: Action,
    caller: Vec<u8>,
}

#[derive(Debug)]
enum Action {
    Show,
    ShowInput(Page),
    Delete,
}

/// A part of a list of items.
#[derive(Debug, PartialEq, Eq)]
struct Page {
    /// The id of the item before it.
    after: Option<String>,
    limit: usize,
    /// The first item of the input is first.
    is_ascending: bool,
}

impl Api for StoredResponses {
    fn not_served(&self) -> Option<String> {
        self.responses.not_served()
    }

    fn generates(&self) -> bool {
        false
    }

    fn accepts(&self, method: &Method) -> bool {
        method == Method::GET || method == Method::DELETE && !self.shows_input
    }

    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let path = request.uri().path().strip_prefix("/v1/responses/").unwrap_or_default();
        let id = percent_decode(path.split('/').next().unwrap_or_default()).into_owned();
        let query = request.uri().query().unwrap_or_default();
        let action = match (request.method() == Method::DELETE, self.shows_input) {
            (true, _) => Action::Delete,
            (false, true) => Action::ShowInput(Page::parse(query)?),
            (false, false) => {
                if members(query).any(|(name, value)| name == "stream" && value == "true") {
                    return Err(invalid("stream: a stored response is not streamed; send the request without it"));
                }
                Action::Show
            }
        };
        let caller = caller(request.headers());
        Ok(Box::new(DecodedRetrieval { api: self.clone(), id, action, caller }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        self.responses.error(status, message)
    }
}

impl ApiRequest for DecodedRetrieval {
    fn session_names(&self) -> SessionNames {
        SessionNames::default()
    }

    fn is_long(&self, _session: Option<&Session>) -> bool {
        // an input may have many items
        true
    }

    fn plan(&self, session: RequestSession<'_>, work: &Work) -> Result<ApiPlan, RequestError> {
        let Self { api, id, action, caller } = self;
        if TurnKey::in_response_id(id).is_none() {
            // the engine may store it
            return Err(RequestError::Unsupported(format!("the response {id:?}, which is not stored here")));
        }
        let Some(response) = StoredResponse::find(session.existing, id, caller) else {
            return Ok(not_found(id).into());
        };
        match action {
            Action::Show => Ok(Ok(response.json(&api.responses)?).into()),
            Action::ShowInput(page) => {
                let items = response.items()?;
                let mut memory = work.take(0)?;
                // the text of an item, its values, and its copies in the list and in the reply
                let read = |item: &StoredItem| {
                    let text = items.text(item, work, &mut memory)?;
                    work.add(&mut memory, values_bytes(text.as_bytes()) + 2 * text.len())?;
                    Ok(text)
                };
                Ok(Ok(page.encode(&items.iter().collect::<Vec<_>>(), id, read)?).into())
            }
            Action::Delete => {
                let stored =
                    session.existing.and_then(|session| api.sessions.delete_response(session, response.turn()));
                let Some(stored) = stored else { return Ok(not_found(id).into()) };
                let deleted = format!("{{\"id\":{},\"object\":\"response\",\"deleted\":true}}", quoted(id));
                Ok(ApiPlan::Local(LocalReply { encoded: Ok(deleted), stored }))
            }
        }
    }
}

fn not_found(id: &str) -> EncodedReply {
    Err(error::error(
        StatusCode::NOT_FOUND,
        format!(
            "no response of this session and API key has the id {id:?}; name its session (/sessions/ID/v1, or X-Session-Id)"
        ),
    ))
}

/// The members of a query.
fn members(query: &str) -> impl Iterator<Item = (&str, std::borrow::Cow<'_, str>)> {
    query.split('&').filter_map(|pair| pair.split_once('=')).map(|(name, value)| (name, decode_query_value(value)))
}

impl Page {
    fn parse(query: &str) -> Result<Self, RequestError> {
        let mut page = Self { after: None, limit: PAGE.0, is_ascending: false };
        for (name, value) in members(query) {
            match name {
                "after" => page.after = Some(value.into_owned()),
                "limit" => {
                    let limit = value.parse().ok().filter(|limit| (1..=PAGE.1).contains(limit));
                    page.limit = limit.ok_or_else(|| invalid(format!("limit must be from 1 to {}", PAGE.1)))?;
                }
                "order" if matches!(&*value, "asc" | "desc") => page.is_ascending = value == "asc",
                "order" => return Err(invalid("order must be asc or desc")),
                _ => {}
            }
        }
        Ok(page)
    }

    /// The list of the items of the page, as JSON text. `items` are those of the input of a response. `read` returns the text of one.
    fn encode(
        &self,
        items: &[&StoredItem],
        response: &str,
        mut read: impl FnMut(&StoredItem) -> Result<Arc<str>, RequestError>,
    ) -> Result<String, RequestError> {
        let ids = ids(items, response);
        let mut order: Vec<usize> = (0..items.len()).collect();
        if !self.is_ascending {
            order.reverse();
        }
        let start = match &self.after {
            None => 0,
            Some(after) => {
                let at = order.iter().position(|at| ids[*at] == *after);
                1 + at.ok_or_else(|| invalid(format!("after: no item has the id {after:?}")))?
            }
        };
        let rest = &order[start..];
        let page = &rest[..rest.len().min(self.limit)];
        let id = |at: Option<&usize>| at.map_or("null".to_owned(), |at| quoted(&ids[*at]));
        let mut show = |at: &usize| Ok(to_json(&shown(&read(items[*at])?, &ids[*at])));
        let list: Vec<String> = page.iter().map(&mut show).collect::<Result<_, RequestError>>()?;
        Ok(format!(
            "{{\"object\":\"list\",\"data\":[{}],\"first_id\":{},\"last_id\":{},\"has_more\":{}}}",
            list.join(","),
            id(page.first()),
            id(page.last()),
            page.len() < rest.len()
        ))
    }
}

/// The ids of items. An item without an id, or with that of an item before it, gets one that it has in every list of the response.
fn ids(items: &[&StoredItem], response: &str) -> Vec<String> {
    let mut known = HashSet::new();
    let id = |(at, item): (usize, &&StoredItem)| {
        let item = Value::parse(item.without_base64().as_bytes()).unwrap_or_default();
        let text = |name: &str| item.get_str(name);
        let own = text("id").map(str::to_owned).filter(|id| !id.is_empty() && known.insert(id.clone()));
        own.unwrap_or_else(|| {
            let prefix = match text("type").unwrap_or("message") {
                "message" => "msg",
                "function_call" => "fc",
                "function_call_output" => "fco",
                "reasoning" => "rs",
                _ => "item",
            };
            // not the form of the ids that tokentap gives to items of replies
            let response = response.rsplit('_').next().unwrap_or_default();
            format!("{prefix}_{response}_{at}")
        })
    };
    items.iter().enumerate().map(id).collect()
}

/// An item as lists show it: with a type, an id, and its content as parts.
fn shown(item: &str, id: &str) -> Value {
    let Ok(Value::Object(mut members)) = Value::parse(item.as_bytes()) else { return Value::Null };
    let member = |members: &[(String, Value)], name: &str| {
        let found = members.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
        found.filter(|value| *value != Value::Null)
    };
    let set = |members: &mut Vec<(String, Value)>, name: &str, value: Value| {
        members.retain(|(known, _)| known != name);
        members.push((name.to_owned(), value));
    };
    let kind = member(&members, "type").and_then(|kind| kind.as_str().map(str::to_owned));
    let kind = kind.unwrap_or_else(|| "message".to_owned());
    set(&mut members, "type", kind.as_str().into());
    set(&mut members, "id", id.into());
    if member(&members, "status").is_none() && kind != "reasoning" {
        set(&mut members, "status", "completed".into());
    }
    if kind == "message"
        && let Some(content @ Value::String(_)) = member(&members, "content")
    {
        let is_assistant = member(&members, "role").is_some_and(|role| role.as_str() == Some("assistant"));
        let kind = if is_assistant { "output_text" } else { "input_text" };
        let annotations = is_assistant.then_some(("annotations", Value::Array(Vec::new())));
        let part = [("type", kind.into()), ("text", content)].into_iter().chain(annotations);
        set(&mut members, "content", vec![Value::object(part)].into());
    }
    Value::Object(members)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(query: &str, count: usize) -> Value {
        // two items have one id
        let item = |at| {
            format!(r#"{{"role":"user","id":"{}","content":"{at}"}}"#, if at == 1 || at == 3 { "same" } else { "" })
        };
        let items: Vec<String> = (0..count).map(item).collect();
        let items: Vec<StoredItem> = items.into_iter().map(|item| StoredItem::from(Arc::from(item))).collect();
        let items: Vec<&StoredItem> = items.iter().collect();
        let read = |item: &StoredItem| Ok(item.json(|_| None).unwrap());
        let list = Page::parse(query).unwrap().encode(&items, "resp_1", read).unwrap();
        Value::parse(list.as_bytes()).unwrap()
    }

    fn texts(list: &Value) -> Vec<&str> {
        let data = list.get("data").unwrap().as_array().unwrap();
        data.iter()
            .map(|item| item.get("content").unwrap().as_array().unwrap()[0].get("text").unwrap().as_str().unwrap())
            .collect()
    }

    #[test]
    fn pages_hold_every_item_once_in_both_orders() {
        for order in ["asc", "desc"] {
            let mut seen = Vec::new();
            let mut query = format!("order={order}&limit=2");
            loop {
                let page = list(&query, 5);
                seen.extend(texts(&page).into_iter().map(str::to_owned));
                if page.get("has_more") != Some(&Value::Bool(true)) {
                    break;
                }
                query = format!("order={order}&limit=2&after={}", page.get("last_id").unwrap().as_str().unwrap());
            }
            let expected = ["0", "1", "2", "3", "4"];
            match order {
                "asc" => assert_eq!(seen, expected),
                _ => assert_eq!(seen, expected.into_iter().rev().collect::<Vec<_>>()),
            }
        }
        assert_eq!(texts(&list("", 25)).len(), PAGE.0);
        assert_eq!(texts(&list("", 0)).len(), 0);
        for invalid in ["limit=0", "limit=101", "limit=x", "order=up"] {
            assert!(Page::parse(invalid).is_err(), "{invalid}");
        }
        let nothing = |_: &StoredItem| unreachable!("there is no item");
        assert!(Page::parse("after=item_1").unwrap().encode(&[], "resp_1", nothing).is_err());
    }
}
