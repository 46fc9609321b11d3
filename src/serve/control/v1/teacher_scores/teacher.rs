// SPDX-License-Identifier: Apache-2.0
//! The engine of a teacher: the client of a name or a URL, and the comparison of its tokens with those of the student.

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::job::Demand;
use crate::config::{Secret, TEACHER_SELF};
use crate::engine::sglang::same_tokens;
use crate::engine::transport::client::Client;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::teacher::{self, TeacherEngine};

/// A teacher.
#[derive(Debug, Clone)]
pub(super) struct Teacher {
    /// The name under which its scores are kept.
    pub(super) name: Arc<str>,
    /// The client of its engine.
    pub(super) client: Client,
    /// The places for paths at it.
    pub(super) places: Arc<Semaphore>,
    /// The number of entries of its vocabulary, once it was compared, if it is known.
    pub(super) vocab_size: Option<u32>,
}

impl Teacher {
    /// The teacher with this name, or the engine at this URL with `key`.
    ///
    /// # Errors
    /// 404 for an unknown name, 403 for a host that `--teacher-host` does not list, 400 for a URL or a key that cannot be used.
    pub(super) fn find(proxy: &Proxy, name: &str, key: Option<&Secret>) -> Result<Self, Problem> {
        if name.contains("://") {
            let (url, client) = teacher::at_url(&proxy.config, name, key)?;
            let places = Arc::clone(&proxy.places_at_urls);
            return Ok(Self { name: url.into(), client, places, vocab_size: None });
        }
        if key.is_some() {
            return Err(Problem::bad_request("key: it is that of a teacher's URL; --teacher has the key of a name"));
        }
        let Some(TeacherEngine { client, places }) = proxy.teachers.get(name) else {
            let known: Vec<&str> = proxy.teachers.keys().map(|name| &**name).collect();
            let message = format!("there is no teacher {name:?}, only {}: see --teacher", known.join(", "));
            return Err(Problem::new(ErrorCode::NO_SUCH_TEACHER, message));
        };
        Ok(Self { name: name.into(), client: client.clone(), places: Arc::clone(places), vocab_size: None })
    }

    /// The problem of a teacher that fails.
    pub(super) fn failed(&self, error: &str) -> Problem {
        let upstream = self.client.upstream();
        let message = if *self.name == *upstream {
            format!("teacher {upstream}: {error}")
        } else {
            format!("teacher {} at {upstream}: {error}", self.name)
        };
        Problem::new(ErrorCode::TEACHER_FAILED, message)
    }

    /// Refuses a teacher whose tokens have other ids: before the first path is sent, the sizes of the vocabularies and the ids of a text
    /// are compared, and the ids of the paths with the size. What an engine does not report is not compared. A request for more likeliest
    /// tokens than there are ends SGLang, and one for the logprobs of other ids ends 0.5.6.
    ///
    /// # Errors
    /// 409 for other tokens, 400 for too many likeliest tokens, 502 if the teacher fails.
    pub(super) async fn check(&mut self, proxy: &Proxy, demand: Demand) -> Result<(), Problem> {
        let is_self = *self.name == *TEACHER_SELF;
        self.vocab_size = if is_self {
            proxy.upstream.borrow().vocab_size
        } else {
            let student = Arc::clone(&proxy.upstream.borrow());
            match same_tokens::compare(&proxy.engines.any(), &student, &self.client).await {
                Ok(same) => same.vocab_size,
                Err(error) if error.is_mismatch() => return Err(self.mismatch(&error.to_string())),
                Err(error) => return Err(self.failed(&error.to_string())),
            }
        };
        match self.vocab_size {
            Some(size) if !is_self && demand.greatest >= size => Err(self.mismatch(&format!(
                "another vocabulary: {size} entries, and the paths have token {}",
                demand.greatest
            ))),
            Some(size) if demand.top > size => {
                Err(Problem::bad_request(format!("top_logprobs: {} is above the vocabulary size {size}", demand.top)))
            }
            None if demand.of_top_ids && !is_self => Err(Problem::new(
                ErrorCode::TEACHER_MISMATCH,
                format!(
                    "teacher {} does not report the size of its vocabulary, which logprobs_of_top_ids needs",
                    self.name
                ),
            )),
            _ => Ok(()),
        }
    }

    fn mismatch(&self, what: &str) -> Problem {
        let message = format!("teacher {} has {what}; the ids of the student mean other tokens there", self.name);
        Problem::new(ErrorCode::TEACHER_MISMATCH, message)
    }
}
