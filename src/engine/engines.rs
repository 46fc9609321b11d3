// SPDX-License-Identifier: Apache-2.0
//! The engines behind the upstream: the upstream itself, the workers of a router, or the engines that `--engine` names.
//!
//! A router forwards only generations. Aborts, which must reach every engine, and probes go to the engines of this list directly.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use super::sglang::{abort, workers};
use super::transport::client::Client;
use super::transport::failure::Failure;
use http::{HeaderValue, Method, StatusCode};

/// Timeout of an abort, and of listing a router's engines: a live server answers both at once.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

/// The source of the list of engines.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum EngineSource {
    /// The upstream was not asked yet. It may be an engine or a router.
    #[default]
    Unknown,
    /// The upstream is the engine.
    Upstream,
    /// `--engine`.
    Flag,
    /// `GET /workers` of the router.
    Workers,
    /// The upstream is a router that does not list its engines.
    Unlisted,
}

/// One engine.
#[derive(Debug, Clone)]
pub struct Engine {
    /// Sends calls to it.
    pub client: Client,
    /// The router reports the engine as healthy.
    pub healthy: bool,
}

impl Engine {
    fn is(&self, other: &Self) -> bool {
        self.healthy == other.healthy && self.client.upstream() == other.client.upstream()
    }
}

/// The list of engines at one moment.
#[derive(Debug, Clone, Default)]
pub struct Membership {
    /// The source of the list.
    pub source: EngineSource,
    /// The engines; empty if all calls go to the upstream.
    pub engines: Arc<[Engine]>,
}

/// The current list of engines. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Engines {
    upstream: Client,
    // held for a comparison or a clone, never across an await
    current: Arc<Mutex<Membership>>,
}

/// The result of asking the upstream for its workers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RefreshOutcome {
    /// The list is unchanged, or the upstream has none.
    Same,
    /// The list has changed.
    Changed,
    /// A router answered with a server error. It keeps the workers that it listed, but forwards nothing to them.
    Refused(StatusCode),
}

impl Engines {
    /// Starts with the engines at `urls`, or with the upstream itself if `urls` is empty.
    ///
    /// # Errors
    /// Error message if a URL cannot be used.
    pub fn try_new(upstream: Client, urls: &[String]) -> Result<Self, String> {
        let engine = |url: &String| {
            let client = upstream.at(url).map_err(|error| format!("--engine {error}"))?;
            Ok(Engine { client, healthy: true })
        };
        let engines = urls.iter().map(engine).collect::<Result<Arc<[Engine]>, String>>()?;
        let source = if engines.is_empty() { EngineSource::Unknown } else { EngineSource::Flag };
        let current = Arc::new(Mutex::new(Membership { source, engines }));
        Ok(Self { upstream, current })
    }

    /// The upstream, which gets the generations.
    #[must_use]
    pub fn upstream(&self) -> &Client {
        &self.upstream
    }

    /// The current list.
    #[must_use]
    pub fn current(&self) -> Membership {
        self.current.lock().clone()
    }

    /// The URL of the engine, where the upstream is one; `None` where a router chooses the engine of each request, or may do so.
    #[must_use]
    pub fn single(&self) -> Option<Arc<str>> {
        (self.current.lock().source == EngineSource::Upstream).then(|| Arc::clone(self.upstream.shared_upstream()))
    }

    /// Whether the upstream is known to be a router.
    #[must_use]
    pub fn are_routed(&self) -> bool {
        match self.current.lock().source {
            EngineSource::Unknown | EngineSource::Upstream => false,
            EngineSource::Flag | EngineSource::Workers | EngineSource::Unlisted => true,
        }
    }

    /// Returns any engine, preferably a healthy one, for a call that all engines answer alike. Returns the upstream if no engine is listed.
    #[must_use]
    pub fn any(&self) -> Client {
        let current = self.current();
        let engine = current.engines.iter().find(|engine| engine.healthy).or_else(|| current.engines.first());
        engine.map_or_else(|| self.upstream.clone(), |engine| engine.client.clone())
    }

    /// Asks the upstream for its workers. A list given by `--engine` stays.
    ///
    /// # Errors
    /// [`Failure`] when the upstream does not answer.
    pub async fn refresh(&self) -> Result<RefreshOutcome, Failure> {
        if self.current().source == EngineSource::Flag {
            return Ok(RefreshOutcome::Same);
        }
        let asked = tokio::time::timeout(ANSWER_TIMEOUT, self.upstream.call(Method::GET, workers::PATH, None)).await;
        let (status, body) = asked.map_err(|_| Failure::Timeout)??;
        let listed = workers::read(&body).filter(|_| status.is_success());
        let has_no_list =
            matches!(status, StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED) || status.is_success();
        let has_changed = match listed {
            Some(listed) => self.replace(Membership { source: EngineSource::Workers, engines: self.members(listed) }),
            None if has_no_list => self.replace(Membership { source: EngineSource::Upstream, ..Membership::default() }),
            // a failing router keeps the workers that it listed, but forwards nothing to them
            None if status.is_server_error() && self.current().source == EngineSource::Workers => {
                return Ok(RefreshOutcome::Refused(status));
            }
            None => false,
        };
        Ok(if has_changed { RefreshOutcome::Changed } else { RefreshOutcome::Same })
    }

    /// Records whether the upstream, which lists no workers, reports that it is a router.
    pub fn note_router(&self, is_router: bool) {
        let mut current = self.current.lock();
        match current.source {
            EngineSource::Unknown | EngineSource::Upstream | EngineSource::Unlisted => {
                current.source = if is_router { EngineSource::Unlisted } else { EngineSource::Upstream };
            }
            EngineSource::Flag | EngineSource::Workers => {}
        }
    }

    /// The clients of the workers that a router lists.
    fn members(&self, listed: Vec<(String, bool)>) -> Arc<[Engine]> {
        // a loopback address from a remote router means its own host; here it may be tokentap itself
        let is_local = is_loopback(self.upstream.upstream());
        let reachable = listed.into_iter().filter(|(url, _)| is_local || !is_loopback(url));
        let engine = |(url, healthy): (String, bool)| Some(Engine { client: self.upstream.at(&url).ok()?, healthy });
        reachable.filter_map(engine).collect()
    }

    fn replace(&self, new: Membership) -> bool {
        let mut current = self.current.lock();
        // the upstream still lists no workers, and stays a router
        if current.source == EngineSource::Unlisted && new.source == EngineSource::Upstream {
            return false;
        }
        let same = current.source == new.source
            && current.engines.len() == new.engines.len()
            && current.engines.iter().zip(new.engines.iter()).all(|(old, new)| old.is(new));
        if !same {
            *current = new;
        }
        !same
    }

    /// Aborts exactly `rid` on all engines: an engine that does not run it ignores the abort. Returns one outcome per engine.
    pub async fn abort(&self, rid: &str, client_key: Option<HeaderValue>) -> Vec<AbortOutcome> {
        let key = self.upstream.abort_key(client_key);
        self.send_abort(abort::body(rid), key).await
    }

    /// Sends this body of an abort to every engine. Returns one outcome per engine.
    pub async fn send_abort(&self, body: String, key: Option<HeaderValue>) -> Vec<AbortOutcome> {
        let current = self.current();
        // the router names the workers, and it gets clients' keys and the API key, but must not get the admin key
        let key = if current.source == EngineSource::Workers { self.upstream.without_admin_key(key) } else { key };
        let mut clients: Vec<Client> = current.engines.iter().map(|engine| engine.client.clone()).collect();
        if clients.is_empty() {
            clients.push(self.upstream.clone());
        }
        each(clients, move |client| {
            let (body, key) = (body.clone(), key.clone());
            async move {
                let sent = tokio::time::timeout(
                    ANSWER_TIMEOUT,
                    client.signed_call(Method::POST, abort::PATH, Some(body), key),
                )
                .await;
                let answer = sent.unwrap_or(Err(Failure::Timeout));
                let is_absent = answer.as_ref().is_ok_and(|(status, body)| abort::is_not_in_flight(*status, body));
                let answer = answer.map(|(status, _)| status);
                AbortOutcome { engine: client.upstream().to_owned(), answer, is_absent }
            }
        })
        .await
    }
}

/// Whether the host of a URL is a loopback address.
fn is_loopback(url: &str) -> bool {
    let Some(host) = url.parse::<http::Uri>().ok().and_then(|url| Some(url.host()?.to_owned())) else { return false };
    let host = host.trim_matches(['[', ']']);
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// An engine's answer to an abort.
#[derive(Debug)]
pub struct AbortOutcome {
    /// Its URL.
    pub engine: String,
    /// Its answer.
    pub answer: Result<StatusCode, Failure>,
    /// The engine is another tokentap, and the request is not in flight there.
    pub is_absent: bool,
}

impl AbortOutcome {
    /// Whether the engine accepted the abort.
    #[must_use]
    pub fn is_accepted(&self) -> bool {
        self.answer.as_ref().is_ok_and(StatusCode::is_success)
    }

    /// Whether the server has no abort route, like a router.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        !self.is_absent && matches!(self.answer, Ok(StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED))
    }

    /// Why the engine did not accept the abort, and how to fix it; `None` if it did.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let Self { engine, answer, .. } = self;
        match answer {
            Ok(status) if status.is_success() => None,
            Ok(_) if self.is_absent => Some(format!("{engine} does not run this request")),
            Ok(status) if self.is_unsupported() => Some(format!("{engine} has no {} ({status})", abort::PATH)),
            Ok(status @ (StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN)) => Some(format!(
                "{engine} answered {status}; set --upstream-admin-key, and name the engines of a router by --engine"
            )),
            Ok(status) => Some(format!("{engine} answered {status}")),
            Err(failure) => Some(format!("{engine}: {failure}")),
        }
    }
}

/// Runs `act` on all items concurrently and returns the results in the order of the items.
pub(crate) async fn each<T, R, F>(items: Vec<T>, act: impl Fn(T) -> F) -> Vec<R>
where
    F: Future<Output = R> + Send + 'static,
    R: Send + 'static,
{
    let mut tasks = tokio::task::JoinSet::new();
    for (at, future) in items.into_iter().map(act).enumerate() {
        tasks.spawn(async move { (at, future.await) });
    }
    let mut done = tasks.join_all().await;
    done.sort_unstable_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::transport::client::ClientSettings;

    fn engines(urls: &[&str]) -> Engines {
        let settings = ClientSettings {
            api_key: None,
            admin_key: None,
            connect_timeout: Duration::from_secs(1),
            pool_idle_timeout: Duration::from_secs(1),
            breaker_failures: 0,
            ca: None,
        };
        let client = Client::try_new("http://127.0.0.1:1", settings).unwrap();
        let urls: Vec<String> = urls.iter().map(|url| (*url).to_owned()).collect();
        Engines::try_new(client, &urls).unwrap()
    }

    fn listed(engines: &Engines, text: &str) -> Vec<(String, bool)> {
        let members = engines.members(workers::read(text.as_bytes()).unwrap());
        members.iter().map(|engine| (engine.client.upstream().to_owned(), engine.healthy)).collect()
    }

    #[test]
    fn ranks_of_a_worker_are_one_engine_and_grpc_workers_are_ignored() {
        let text = r#"{"workers":[
            {"url":"http://b:1@1","is_healthy":false,"load":0},{"url":"http://b:1@0","is_healthy":true},
            {"url":"grpc://c:1","is_healthy":true},{"url":"http://a:1/"}],"total":4}"#;
        let want = [("http://a:1".to_owned(), true), ("http://b:1".to_owned(), true)];
        assert_eq!(listed(&engines(&[]), text), want);
    }

    #[test]
    fn upstream_is_no_engine_before_it_was_asked() {
        let engines = engines(&[]);
        assert_eq!(engines.single(), None);
        engines.note_router(false);
        assert_eq!(engines.single().as_deref(), Some("http://127.0.0.1:1"));
        engines.note_router(true);
        assert_eq!(engines.single(), None);
    }

    #[test]
    fn change_of_workers_or_health_changes_the_list() {
        let engines = engines(&[]);
        let replace = |text: &str| {
            let engines_listed = engines.members(workers::read(text.as_bytes()).unwrap());
            engines.replace(Membership { source: EngineSource::Workers, engines: engines_listed })
        };
        assert!(replace(r#"{"workers":[{"url":"http://a:1"},{"url":"http://b:1"}]}"#));
        assert!(!replace(r#"{"workers":[{"url":"http://b:1"},{"url":"http://a:1"}]}"#), "the order does not matter");
        assert!(replace(r#"{"workers":[{"url":"http://b:1","is_healthy":false},{"url":"http://a:1"}]}"#));
        assert_eq!(engines.any().upstream(), "http://a:1", "a healthy engine goes first");
        assert!(replace(r#"{"workers":[]}"#));
        assert_eq!(engines.any().upstream(), "http://127.0.0.1:1");
    }
}
