// SPDX-License-Identifier: Apache-2.0
//! `POST /v1/teacher-scores`: a teacher scores the sampled tokens of recorded paths.

mod job;
mod teacher;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use http::{Method, Response, StatusCode};
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;

use super::samples::selection;
use super::sessions::find;
use crate::config::Secret;
use crate::config::TEACHER_SELF;
use crate::engine::sglang::score;
use crate::engine::transport::client::ReplyLimits;
use crate::long_work::{BodyLength, offload_export, on_body};
use crate::rl::{Mismatch, RatioLimits, RatioProblem, RowIndex, log_ratios};
use crate::serve::body::Body;
use crate::serve::problem::{ErrorCode, Problem};
use crate::serve::proxy::Proxy;
use crate::serve::response::json_response;
use crate::serve::teacher::PLACES;
use crate::session::{Row, ScoredTurn, Scores, SessionError, Turn, TurnScores};
use job::{Demand, Job, Wanted};
use teacher::Teacher;

/// The statuses with which SGLang refuses a single request, such as one that is longer than its context.
const REFUSALS: [StatusCode; 3] =
    [StatusCode::BAD_REQUEST, StatusCode::PAYLOAD_TOO_LARGE, StatusCode::UNPROCESSABLE_ENTITY];

/// The times that a path is asked, because other requests store further columns of it meanwhile.
const ATTEMPTS: usize = 4;

/// The bytes of the scores of one path, at most. They are in memory until all have arrived.
const MOST_BYTES: usize = 64 << 20;

/// The body of `POST /v1/teacher-scores`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct ScoreRequest {
    /// The name of a teacher, or the URL of its engine.
    teacher: String,
    /// The key of the engine at that URL.
    key: Option<Secret>,
    /// All exported paths of these sessions.
    #[serde(default)]
    sessions: Vec<String>,
    /// Single paths.
    #[serde(default)]
    rows: Vec<RowName>,
    /// As in `POST /v1/samples`.
    version: Option<u32>,
    #[serde(default)]
    classes: Vec<String>,
    #[serde(default)]
    train_resumed: bool,
    /// Also scores turns that have scores, and replaces them.
    #[serde(default)]
    again: bool,
    /// The number of the teacher's likeliest tokens at each sampled one that are kept as well.
    #[serde(default)]
    top_logprobs: u32,
    /// Whether the teacher's logprobs of the student's likeliest tokens are kept as well.
    #[serde(default)]
    logprobs_of_top_ids: bool,
    /// The bound of importance weights.
    cap: Option<f64>,
    /// The limit of the absolute log ratio, in nats.
    limit: Option<f64>,
    /// Whether the response has the weights of each token.
    #[serde(default)]
    weights: bool,
}

/// A path by its session and its last turn.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct RowName {
    session: String,
    leaf: u32,
}

/// The response.
#[derive(Debug, Serialize)]
struct ScoreResponse {
    /// The name under which the scores are kept.
    teacher: String,
    /// Over the tokens of all rows.
    mismatch: Mismatch,
    rows: Vec<ScoredRow>,
}

#[derive(Debug, Serialize)]
struct ScoredRow {
    session: String,
    leaf: u32,
    /// The tokens that the teacher has scored now.
    scored: usize,
    /// The tokens that had scores.
    skipped: usize,
    /// Why the teacher has refused the path, such as its length.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
    /// Trained tokens without a log ratio, because their logprobs are missing or at another temperature than 1.
    incomparable: usize,
    /// Trained tokens of turns without the ids of the student's likeliest tokens, if the teacher's logprobs of these are asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    without_top_ids: Option<usize>,
    mismatch: Mismatch,
    /// One for each token of the path: the weights of truncated and of masked importance sampling, null where the mask is 0.
    #[serde(skip_serializing_if = "Option::is_none")]
    weights: Option<Weights>,
}

#[derive(Debug, Default, Serialize)]
struct Weights {
    tis: Vec<Option<f64>>,
    mis: Vec<Option<f64>>,
}

/// The names of the sessions of a request.
pub(super) fn names(request: &ScoreRequest) -> BTreeSet<&str> {
    let of_rows = request.rows.iter().map(|row| &*row.session);
    request.sessions.iter().map(|name| &**name).chain(of_rows).collect()
}

/// Scores the rows that have no scores, and returns the mismatch of all.
///
/// # Errors
/// 404 for an unknown teacher or session, 403 for a URL whose host `--teacher-host` does not list, 409 for a teacher of another vocabulary, 413
/// for scores that are too large, 502 if the teacher fails. Rows that were scored before the failure are kept.
pub(super) async fn score(proxy: &Arc<Proxy>, request: ScoreRequest) -> Result<Response<Body>, Problem> {
    let (limits, wanted) = (limits(&request)?, wanted(proxy, &request)?);
    let mut teacher = Teacher::find(proxy, &request.teacher, request.key.as_ref())?;
    let request = Arc::new(request);
    let (owned, asked, name) = (Arc::clone(proxy), Arc::clone(&request), Arc::clone(&teacher.name));
    let (rows, unscored, demand) = offload_export(move || {
        let rows = rows(&owned, &asked, &name)?;
        let most = most_bytes(&owned);
        let (mut unscored, mut demand) = (Vec::new(), Demand::default());
        // a turn is trained in one row, so none is asked twice
        for (row, of_row) in rows.iter().filter_map(|row| Some((row, Demand::of(row, wanted)?))) {
            check_size(row, of_row, most)?;
            demand.add(of_row);
            unscored.push(row.clone());
        }
        Ok::<_, Problem>((rows, unscored, demand))
    })
    .await?;
    let scored: HashMap<(Arc<str>, u32), Result<usize, String>> = if unscored.is_empty() {
        HashMap::new()
    } else {
        teacher.check(proxy, demand).await?;
        run(proxy, &teacher, unscored, wanted).await?
    };
    let owned = Arc::clone(proxy);
    offload_export(move || {
        let mut all = Vec::new();
        let mut done = Vec::with_capacity(rows.len());
        for of_session in rows.chunk_by(Row::shares_turns) {
            let session = find(&owned, of_session[0].session())?;
            for row in session.scored_rows(of_session, &teacher.name, is_current(&owned, &teacher.name)) {
                let outcome = scored.get(&(Arc::clone(row.session()), row.leaf())).cloned().unwrap_or(Ok(0));
                let mut found = summary(&row, outcome, &limits, request.weights, &mut all);
                found.without_top_ids = wanted.of_top_ids.then(|| without_top_ids(&row));
                done.push(found);
            }
        }
        let mismatch = Mismatch::new(&all, &limits);
        let response = ScoreResponse { teacher: teacher.name.to_string(), mismatch, rows: done };
        let body = serde_json::to_vec(&response);
        let body = body.map_err(|error| Problem::new(ErrorCode::INTERNAL, error.to_string()))?;
        Ok::<_, Problem>(json_response(StatusCode::OK, body))
    })
    .await
}

fn limits(request: &ScoreRequest) -> Result<RatioLimits, Problem> {
    let cap = request.cap.unwrap_or(RatioLimits::DEFAULT.cap);
    let limit = request.limit.unwrap_or(RatioLimits::DEFAULT.limit);
    if !cap.is_finite() || cap < 1.0 {
        return Err(Problem::bad_request("cap: must be a finite number of at least 1"));
    }
    if !limit.is_finite() || limit < 0.0 {
        return Err(Problem::bad_request("limit: must be a finite number of nats, at least 0"));
    }
    Ok(RatioLimits { cap, limit })
}

fn wanted(proxy: &Proxy, request: &ScoreRequest) -> Result<Wanted, Problem> {
    let (top, most) = (request.top_logprobs, proxy.config.entropy.max_top_logprobs);
    if top > most {
        return Err(Problem::bad_request(format!("top_logprobs: must be at most {most}")));
    }
    let is_self = request.teacher == TEACHER_SELF;
    Ok(Wanted { again: request.again, top, of_top_ids: request.logprobs_of_top_ids, is_self })
}

/// The bytes of the scores of one path, at most. They are one change of the shared ledger, which must confirm it in time.
fn most_bytes(proxy: &Proxy) -> usize {
    let of_ledger = proxy.sessions.most_score_bytes().and_then(|bytes| usize::try_from(bytes).ok());
    of_ledger.unwrap_or(MOST_BYTES).min(MOST_BYTES)
}

/// Refuses a row whose scores would be too large, before the teacher is asked.
fn check_size(row: &Row, Demand { bytes, .. }: Demand, most: usize) -> Result<(), Problem> {
    if bytes <= most {
        return Ok(());
    }
    let (session, leaf) = (row.session(), row.leaf());
    let message = format!(
        "the scores of path {leaf} of session {session:?} would take {bytes} bytes, and the most is {most}: ask for a smaller \
         top_logprobs or for fewer columns, with again if it has others{}",
        if most < MOST_BYTES { ", or raise --ledger-timeout" } else { "" }
    );
    Err(Problem::new(ErrorCode::TOO_LARGE, message))
}

/// Whether scores of a turn are those of the weights that the teacher has now. Of another engine than the student's own this is not known.
fn is_current(proxy: &Proxy, teacher: &str) -> impl Fn(&Turn, &Scores) -> bool {
    let policy = (teacher == TEACHER_SELF).then(|| Arc::clone(&proxy.generator.policy));
    move |turn, scores| {
        let weights = policy.as_ref().map(|policy| job::epochs(policy, job::adapter(turn)));
        scores.weights == weights
    }
}

/// The trained tokens of turns without the ids of the student's likeliest tokens.
fn without_top_ids(row: &Row) -> usize {
    row.trained().filter(|turn| job::top_ids(turn).is_none()).map(|turn| turn.response.len()).sum()
}

/// The requested rows, with the masks of an export of their sessions.
fn rows(proxy: &Proxy, request: &ScoreRequest, teacher: &str) -> Result<Vec<Row>, Problem> {
    if request.sessions.is_empty() && request.rows.is_empty() {
        return Err(Problem::bad_request("sessions: name sessions, or paths in `rows`; both are empty"));
    }
    let selection = selection(&request.classes, request.train_resumed)?;
    let mut all = Vec::new();
    for name in names(request) {
        let session = find(proxy, name)?;
        let snapshot =
            session.snapshot_of(request.version, selection).map_err(|error| Problem::session(name, error))?;
        let scored = session.scored_if(&snapshot, teacher, is_current(proxy, teacher));
        all.append(&mut scored.rows(true).0);
    }
    let mut index = RowIndex::new(&all);
    let mut wanted = BTreeSet::new();
    for RowName { session, leaf } in &request.rows {
        let at = index.take(session, Some(*leaf));
        wanted.insert(at.map_err(|error| error.below("rows"))?);
    }
    let mut whole: BTreeSet<&str> = BTreeSet::new();
    if let Some(twice) = request.sessions.iter().find(|name| !whole.insert(name)) {
        return Err(Problem::bad_request(format!("sessions: {twice:?} is listed twice")));
    }
    let is_wanted = |(at, row): &(usize, Row)| whole.contains(&**row.session()) || wanted.contains(at);
    Ok(all.into_iter().enumerate().filter(is_wanted).map(|(_, row)| row).collect())
}

/// Why a row has no scores.
enum RowError {
    /// The teacher refuses its path. Another one may be scored.
    Refused(String),
    /// The teacher fails, or the scores cannot be stored.
    Failed(String),
}

/// Scores the rows, and returns the number of scored tokens of each, or why the teacher refuses it. After a failure no further row is begun.
async fn run(
    proxy: &Arc<Proxy>,
    teacher: &Teacher,
    unscored: Vec<Row>,
    wanted: Wanted,
) -> Result<HashMap<(Arc<str>, u32), Result<usize, String>>, Problem> {
    let total = unscored.len();
    let mut waiting = unscored.into_iter();
    let mut tasks = JoinSet::new();
    let begin = |row: Row, tasks: &mut JoinSet<_>| {
        let (proxy, teacher) = (Arc::clone(proxy), teacher.clone());
        tasks.spawn(async move {
            let name = (Arc::clone(row.session()), row.leaf());
            let _place = teacher.places.acquire().await;
            match score_row(&proxy, &teacher, row, wanted).await {
                Ok(tokens) => Ok((name, Ok(tokens))),
                Err(RowError::Refused(error)) => Ok((name, Err(error))),
                Err(RowError::Failed(error)) => Err(error),
            }
        });
    };
    waiting.by_ref().take(PLACES).for_each(|row| begin(row, &mut tasks));
    let (mut scored, mut failure) = (HashMap::new(), None);
    while let Some(ended) = tasks.join_next().await {
        match ended {
            Ok(Ok((row, outcome))) => {
                scored.insert(row, outcome);
            }
            Ok(Err(error)) => failure = failure.or(Some(error)),
            Err(panicked) => failure = failure.or(Some(panicked.to_string())),
        }
        if failure.is_none()
            && let Some(row) = waiting.next()
        {
            begin(row, &mut tasks);
        }
    }
    match failure {
        None => Ok(scored),
        Some(error) => {
            let kept = scored.values().filter(|outcome| outcome.is_ok()).count();
            let error =
                format!("{error}; {kept} of {total} paths are scored and kept, so the same request scores the others");
            Err(teacher.failed(&error))
        }
    }
}

/// Scores one row, and returns the number of scored tokens. Its scores are stored once all of them have arrived. If another request has
/// stored further columns meanwhile, these are asked as well.
async fn score_row(proxy: &Proxy, teacher: &Teacher, mut row: Row, wanted: Wanted) -> Result<usize, RowError> {
    let (session, leaf) = (Arc::clone(row.session()), row.leaf());
    let of_row = |error: String| RowError::Failed(format!("path {leaf} of session {session:?}: {error}"));
    if row.upwards().any(|turn| turn.about.images.is_some()) {
        return Err(RowError::Refused("the path has pictures, and a teacher is sent ids only".to_owned()));
    }
    for _ in 0..ATTEMPTS {
        let mut turns = Vec::new();
        let jobs = Job::all(&row, wanted, teacher.vocab_size);
        // agents must not lock trainers out, so this does not wait for room
        let _memory = proxy.budget.insist(Job::bytes_of(&jobs));
        for job in jobs {
            let asked = ask(proxy, teacher, job).await;
            turns.append(&mut asked.map_err(|error| match error {
                RowError::Refused(_) => error,
                RowError::Failed(error) => of_row(error),
            })?);
        }
        if turns.is_empty() {
            return Ok(0);
        }
        let tokens = turns.iter().map(|turn| turn.logprobs.len()).sum();
        let scores = TurnScores { teacher: Arc::clone(&teacher.name), turns, again: wanted.again };
        match proxy.sessions.score(&session, &scores).await {
            Ok(ack) => {
                proxy.wait_written(ack).await;
                return Ok(tokens);
            }
            Err(SessionError::OtherColumns) => {
                let known = find(proxy, &session).map_err(|problem| of_row(problem.message))?;
                row = known.scored_rows(&[row], &teacher.name, is_current(proxy, &teacher.name)).swap_remove(0);
                let demand = Demand::of(&row, wanted).unwrap_or_default();
                check_size(&row, demand, most_bytes(proxy)).map_err(|problem| RowError::Failed(problem.message))?;
            }
            Err(error) => return Err(of_row(error.to_string())),
        }
    }
    Err(of_row(SessionError::OtherColumns.to_string()))
}

/// Asks the teacher for the scores of the turns of a job, whose memory is counted.
async fn ask(proxy: &Proxy, teacher: &Teacher, mut job: Job) -> Result<Vec<ScoredTurn>, RowError> {
    let (policy, pause) = (&proxy.generator.policy, proxy.config.limits.upstream_timeout);
    let adapter = job.adapter();
    let epochs = || (*teacher.name == *TEACHER_SELF).then(|| job::epochs(policy, adapter.clone()));
    let (weights, mut label) = (epochs(), None);
    for window in on_body(BodyLength::Request(job.bytes()), || job.windows()).await {
        let query = job.query(&window);
        let _of_reply = proxy.budget.insist(query.bytes());
        let limits = ReplyLimits { bytes: query.reply_bytes(), pause: (!pause.is_zero()).then_some(pause) };
        let answer = teacher.client.limited_call(Method::POST, score::PATH, Some(query.body()), limits).await;
        let (status, reply) = answer.map_err(|error| RowError::Failed(error.to_string()))?;
        if !status.is_success() {
            let text: String = String::from_utf8_lossy(&reply).chars().take(200).collect();
            let error = format!("the engine answered {status}: {text}");
            return Err(if REFUSALS.contains(&status) { RowError::Refused(error) } else { RowError::Failed(error) });
        }
        let scores = on_body(BodyLength::Reply(reply.len()), || query.parse(&reply)).await.map_err(RowError::Failed)?;
        let is_changed = label.replace(scores.label.clone()).is_some_and(|before| before != scores.label);
        if is_changed || epochs() != weights {
            return Err(RowError::Failed("the weights changed while it was scored".to_owned()));
        }
        on_body(BodyLength::Reply(reply.len()), || job.add(&window, &scores)).await;
    }
    Ok(job.into_scores(weights))
}

/// The mismatch of a row, whose log ratios are added to `all`.
fn summary(
    row: &Row,
    outcome: Result<usize, String>,
    limits: &RatioLimits,
    weights: bool,
    all: &mut Vec<f64>,
) -> ScoredRow {
    let path = row.path();
    let (mut own, mut incomparable, mut with_scores) = (Vec::new(), 0, 0);
    let mut weights = weights.then(Weights::default);
    for step in &path.steps {
        let sampled = step.turn.response.len();
        let ratios =
            if step.trained { log_ratios(&step.turn, step.scores.as_deref()) } else { Err(RatioProblem::Unscored) };
        if step.trained {
            with_scores += if step.scores.is_some() { sampled } else { 0 };
            incomparable += if ratios.is_err() { sampled } else { 0 };
        }
        if let Some(Weights { tis, mis }) = &mut weights {
            for list in [&mut *tis, &mut *mis] {
                list.resize(list.len() + step.turn.prompt.len(), None);
            }
            match &ratios {
                Ok(ratios) => {
                    tis.extend(ratios.iter().map(|ratio| Some(limits.truncated(*ratio))));
                    mis.extend(ratios.iter().map(|ratio| Some(limits.masked(*ratio))));
                }
                Err(_) => [tis, mis].into_iter().for_each(|list| list.resize(list.len() + sampled, None)),
            }
        }
        own.extend(ratios.into_iter().flatten());
    }
    all.extend_from_slice(&own);
    let (scored, error) = match outcome {
        Ok(tokens) => (tokens, None),
        Err(error) => (0, Some(error)),
    };
    ScoredRow {
        session: row.session().to_string(),
        leaf: row.leaf(),
        scored,
        skipped: with_scores.saturating_sub(scored),
        error,
        incomparable,
        without_top_ids: None,
        mismatch: Mismatch::new(&own, limits),
        weights,
    }
}
