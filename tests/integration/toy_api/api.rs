// SPDX-License-Identifier: Apache-2.0
//! A toy API: `{"say": TEXT, "tokens": N, "stream": BOOL, "session_id": NAME}` in, `{"ids": [...]}` or a line per event out.

use bytes::Bytes;
use http::{Request, StatusCode};
use serde::Deserialize;
use serde_json::json;
use tokentap::api::{Api, ApiError, ApiGeneration, ApiPlan, ApiRequest, EncodedReply, ReplyEncoder};
use tokentap::budget::Work;
use tokentap::chat::{RequestError, RequestSession};
use tokentap::engine::sglang::request::{GenerateRequest, SessionNames};
use tokentap::error::BoxError;
use tokentap::generation::update::SequenceUpdate;
use tokentap::json::Object;

#[derive(Debug)]
pub struct ToyApi;

#[derive(Debug, Deserialize)]
struct Toy {
    say: String,
    tokens: u32,
    #[serde(default)]
    stream: bool,
    #[serde(skip)]
    body: Bytes,
}

impl Api for ToyApi {
    fn decode(&self, request: &Request<Bytes>) -> Result<Box<dyn ApiRequest>, RequestError> {
        let body = request.body().clone();
        let toy: Toy = serde_json::from_slice(&body).map_err(|error| RequestError::invalid(error.to_string()))?;
        Ok(Box::new(Toy { body, ..toy }))
    }

    fn error(&self, status: StatusCode, message: String) -> ApiError {
        ApiError { status, body: json!({ "toy_error": message }).to_string() }
    }
}

impl ApiRequest for Toy {
    fn session_names(&self) -> SessionNames {
        SessionNames::decode(&self.body, &Object::parse(&self.body).unwrap_or_default())
    }

    fn plan(&self, session: RequestSession<'_>, _work: &Work) -> Result<ApiPlan, RequestError> {
        let session = session.existing.map(|session| session.id.to_string());
        let sampling = json!({ "max_new_tokens": self.tokens });
        let body = json!({ "text": self.say, "stream": self.stream, "sampling_params": sampling });
        let request = GenerateRequest::parse(body.to_string().into());
        let request = request.map_err(|error| RequestError::invalid(error.to_string()))?;
        let encoder = Box::new(ToyEncoder { session, tokens: 0, has_ended: false });
        Ok(ApiPlan::Generation(ApiGeneration { request: Box::new(request), chat: None, encoder }))
    }
}

/// Names the session that existed before the request.
#[derive(Debug)]
struct ToyEncoder {
    session: Option<String>,
    tokens: usize,
    has_ended: bool,
}

impl ReplyEncoder for ToyEncoder {
    fn encode_whole(&self, updates: &[SequenceUpdate<'_>]) -> Result<EncodedReply, BoxError> {
        let ids: Vec<&[u32]> = updates.iter().map(|update| &*update.ids).collect();
        Ok(Ok(json!({ "session": self.session, "ids": ids }).to_string()))
    }

    fn encoded_tokens(&self, _index: usize) -> usize {
        self.tokens
    }

    fn encode_update(&mut self, update: &SequenceUpdate<'_>, out: &mut String) -> Result<(), BoxError> {
        self.tokens = update.tokens;
        self.has_ended = update.finish.is_some();
        out.push_str(&format!("toy {:?}\n", update.ids));
        Ok(())
    }

    fn has_ended(&self) -> bool {
        self.has_ended
    }

    fn fail(&mut self, error: &ApiError, out: &mut String) {
        out.push_str(&format!("toy {}\n", error.body));
    }

    fn finish(&mut self, out: &mut String) {
        out.push_str("toy end\n");
    }
}
