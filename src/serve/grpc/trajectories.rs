// SPDX-License-Identifier: Apache-2.0
//! `tokentap.v1.Trajectories`: the recorded sessions, for trainers.

use std::sync::Arc;

use futures_util::{StreamExt, stream};
use prost::Message;
use tonic::{Request, Response, Status, async_trait};

use super::messages::{counts, evicted, listed_session, refused, sample, session, wide};
use super::pb::trajectories_server::Trajectories;
use super::pb::{export_reply, samples_reply, watch_request};
use super::{ReplyStream, pb, watch};
use crate::export::{Export, ExportImages, Needs, settle};
use crate::json::{DecodeError, decode};
use crate::long_work::{offload, offload_export};
use crate::rl::{self, RequestError};
use crate::serve::control::v1::samples::{self, SamplesRequest};
use crate::serve::control::v1::sessions::{PageQuery, annotate, find};
use crate::serve::offload::{Items, OffloadedIter};
use crate::serve::problem::Problem;
use crate::serve::proxy::Proxy;
use crate::session::ListCursor;
use crate::session::ledger::ListOrder;

#[derive(Debug)]
pub(super) struct TrajectoriesService(pub(super) Arc<Proxy>);

fn narrow(number: u32) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// A reply stream that blocking threads produce as the client reads it. `size` returns the bytes of a reply.
fn offloaded_stream<T: Send + 'static>(items: Items<T>, size: fn(&T) -> usize) -> ReplyStream<T> {
    let mut steps = OffloadedIter::new(items, size);
    stream::poll_fn(move |cx| steps.poll_next(cx)).map(Ok).boxed()
}

impl TrajectoriesService {
    /// Reads what other processes have appended to these sessions.
    async fn refresh(&self, names: impl IntoIterator<Item: AsRef<str>>) -> Result<(), Status> {
        Ok(self.0.sessions.refresh(names).await.map_err(Problem::from)?)
    }
}

#[async_trait]
impl Trajectories for TrajectoriesService {
    async fn list(&self, request: Request<pb::ListRequest>) -> Result<Response<pb::ListReply>, Status> {
        let pb::ListRequest { after, limit, cursor } = request.into_inner();
        let proxy = Arc::clone(&self.0);
        let after = cursor.or_else(|| (after > 0).then(|| after.to_string()));
        let query = PageQuery { order: ListOrder::Oldest, after, limit: limit.map(narrow), part: None };
        let page = query.read(&proxy).await?;
        let listed = offload(move || {
            let next = page.next.as_ref().and_then(ListCursor::number);
            let cursor = page.next.filter(|_| next.is_none()).map(|next| next.to_string());
            pb::ListReply {
                sessions: page.sessions.iter().map(listed_session).collect(),
                next,
                cursor,
                evicted: proxy.sessions.evicted().iter().map(evicted).collect(),
            }
        });
        Ok(Response::new(listed.await))
    }

    async fn get(&self, request: Request<pb::GetRequest>) -> Result<Response<pb::Session>, Status> {
        let pb::GetRequest { session: id, version } = request.into_inner();
        let proxy = Arc::clone(&self.0);
        self.refresh([&id]).await?;
        let reply = offload(move || {
            let stored = find(&proxy, &id)?;
            let snapshot = stored.snapshot(version).map_err(|error| Problem::session(&id, error))?;
            Ok::<_, Problem>(session(&stored, &snapshot))
        });
        Ok(Response::new(reply.await?))
    }

    type WatchStream = ReplyStream<pb::WatchReply>;

    async fn watch(&self, request: Request<pb::WatchRequest>) -> Result<Response<Self::WatchStream>, Status> {
        let what =
            request.into_inner().what.unwrap_or(watch_request::What::Finished(watch_request::Finished::default()));
        let replies = match what {
            watch_request::What::Finished(from) => watch::finished(&self.0, &from).await?,
            watch_request::What::Turns(turns) => watch::turns(&self.0, turns.session),
            watch_request::What::Entropies(sequence) => watch::entropies(&self.0, &sequence)?,
        };
        Ok(Response::new(replies))
    }

    type ExportStream = ReplyStream<pb::ExportReply>;

    async fn export(&self, request: Request<pb::ExportRequest>) -> Result<Response<Self::ExportStream>, Status> {
        let message = request.into_inner();
        let advantages = message.advantages.as_deref().map(|text| decode(text.as_bytes())).transpose();
        let advantages = advantages.map_err(|error: DecodeError| RequestError::from(error).below("advantages"));
        let advantages = advantages.map_err(Problem::from)?;
        let images = message.images.map(|name| {
            let known = ExportImages::from_name(&name);
            known.ok_or_else(|| Problem::bad_request(format!("images: {name:?} is not one of refs, embed")))
        });
        let images = images.transpose()?;
        // proto3 does not tell an empty list from an absent one
        let selects_from_all = message.r#where.is_some() && message.sessions.is_empty();
        let request = SamplesRequest {
            sessions: (!selects_from_all).then_some(message.sessions),
            conditions: message.r#where,
            format: message.format,
            // proto3 does not tell 0 from an absent value
            pad_token_id: (message.pad_token_id != 0).then_some(message.pad_token_id),
            max_prompt_length: message.max_prompt_length.map(narrow),
            max_response_length: message.max_response_length.map(narrow),
            version: message.version,
            include_branches: !message.no_branches,
            entropies: message.entropies,
            text: message.text,
            images,
            classes: message.classes,
            exclude: message.exclude,
            train_resumed: message.train_resumed,
            advantages,
            scores: message.scores,
        };
        let proxy = Arc::clone(&self.0);
        self.refresh(request.sessions.as_deref().unwrap_or_default()).await?;
        let export = offload_export(move || samples::export(&proxy, &request)).await?;
        let Export { content_type, length, chunks, tally, .. } = export;
        let head = pb::ExportHead {
            content_type: content_type.to_owned(),
            length,
            rows: wide(tally.rows),
            refused: counts(tally.refused),
            incomplete: counts(tally.incomplete),
        };
        let head = export_reply::Part::Head(head);
        let parts = std::iter::once(head).chain(chunks.map(export_reply::Part::Data));
        let replies = parts.map(|part| pb::ExportReply { part: Some(part) });
        Ok(Response::new(offloaded_stream(Box::new(replies), |reply| match &reply.part {
            Some(export_reply::Part::Data(data)) => data.len(),
            _ => 0,
        })))
    }

    type SamplesStream = ReplyStream<pb::SamplesReply>;

    async fn samples(&self, request: Request<pb::SamplesRequest>) -> Result<Response<Self::SamplesStream>, Status> {
        let pb::SamplesRequest { sessions, version, no_branches, classes, train_resumed, scores, exclude } =
            request.into_inner();
        let proxy = Arc::clone(&self.0);
        self.refresh(&sessions).await?;
        let settled = offload_export(move || {
            let selection = samples::selection(&classes, train_resumed)?;
            let exclusions = samples::exclusions(&exclude)?;
            let mut batch = samples::batch(
                &proxy,
                &samples::named(&proxy, &sessions)?,
                version,
                !no_branches,
                selection,
                scores.as_deref(),
            )?;
            if let Some(teacher) = &scores {
                rl::check_scored(&batch.rows, teacher).map_err(Problem::from)?;
            }
            exclusions.apply(&mut batch);
            let needs = Needs { images: Some(ExportImages::Refs), ..Needs::default() };
            Ok::<_, Problem>(settle(batch.rows, batch.refused, needs))
        });
        let settled = settled.await?;
        let annotate = annotate(&self.0);
        let rows = settled.rows;
        let samples = (0..rows.len()).map(move |at| samples_reply::What::Sample(sample(&rows[at].path(), &annotate)));
        let leaves = settled.refused.into_iter().map(|leaf| samples_reply::What::Refused(refused(&leaf)));
        let replies = samples.chain(leaves).map(|what| pb::SamplesReply { what: Some(what) });
        Ok(Response::new(offloaded_stream(Box::new(replies), Message::encoded_len)))
    }
}
