// SPDX-License-Identifier: Apache-2.0
//! Discovery of the engine after the start. The first generations wait for it, so that they are planned, rendered and recorded like all
//! later ones.

use std::time::Duration;

use tokio::sync::watch;

/// The total time for which requests wait. It restarts after a failed attempt to connect, whose wait is short, and after the engine's first
/// answer.
const LONGEST: Duration = Duration::from_secs(5);

/// The state of the discovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// No engine has answered; the number of failed probes.
    Unanswered(u64),
    /// No engine has answered, and the last probe could not connect; the number of failed probes.
    Unreachable(u64),
    /// Requests do not wait: the server at the address is not SGLang, or the time is over. An engine may answer later.
    GivenUp,
    /// The engine has answered on its information routes.
    Answered,
    /// It is also decided whether tokentap or the engine serves chats.
    Decided,
}

/// The discovery that a request waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// The engine's answer.
    Engine,
    /// Also the decision whether tokentap or the engine serves chats.
    Chats,
}

/// Waits for the discovery that a request needs, or until [`limit`] ends all waits. A failed probe ends the wait too, because the engine
/// could not serve the request either.
pub(super) async fn wait(discovery: &watch::Receiver<Discovery>, need: Need) {
    let now = *discovery.borrow();
    let is_enough = |later: &Discovery| match later {
        Discovery::Unanswered(_) | Discovery::Unreachable(_) => *later != now,
        Discovery::Answered => need == Need::Engine,
        Discovery::GivenUp | Discovery::Decided => true,
    };
    if !is_enough(&now) {
        // an error means that the discovery has ended
        let _ = discovery.clone().wait_for(is_enough).await;
    }
}

/// Ends the waits when their time is over. Never ends.
pub(crate) async fn limit(discovery: watch::Sender<Discovery>) {
    let mut changes = discovery.subscribe();
    let mut last = *changes.borrow();
    loop {
        let begins = |next: &Discovery| match next {
            Discovery::Unreachable(_) | Discovery::Answered => *next != last,
            _ => false,
        };
        let changed = changes.wait_for(begins);
        // no request waits
        let next = if matches!(last, Discovery::GivenUp | Discovery::Decided) {
            changed.await.ok().map(|next| *next)
        } else {
            tokio::time::timeout(LONGEST, changed).await.ok().and_then(Result::ok).map(|next| *next)
        };
        last = next.unwrap_or_else(|| {
            discovery.send_if_modified(|known| {
                let waits = !matches!(known, Discovery::GivenUp | Discovery::Decided);
                *known = if waits { Discovery::GivenUp } else { *known };
                waits
            });
            *discovery.borrow()
        });
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::Discovery::{Answered, Decided, GivenUp, Unanswered, Unreachable};
    use super::*;

    /// The number of `changes`, which happen a second apart, after which a wait ends.
    async fn waited(need: Need, start: Discovery, changes: &[Discovery]) -> usize {
        let (sender, discovery) = watch::channel(start);
        let waiting = tokio::spawn(async move { wait(&discovery, need).await });
        for (at, change) in changes.iter().enumerate() {
            tokio::time::sleep(Duration::from_secs(1)).await;
            if waiting.is_finished() {
                return at;
            }
            sender.send_replace(*change);
        }
        waiting.await.unwrap();
        changes.len()
    }

    #[tokio::test(start_paused = true)]
    async fn request_waits_for_the_answer_or_the_next_failed_probe() {
        assert_eq!(waited(Need::Engine, Unanswered(3), &[Answered, Decided]).await, 1);
        assert_eq!(waited(Need::Chats, Unanswered(3), &[Answered, Decided]).await, 2);
        assert_eq!(waited(Need::Chats, Unanswered(3), &[Unanswered(4), Answered]).await, 1);
        assert_eq!(waited(Need::Engine, Answered, &[Decided]).await, 0);
        assert_eq!(waited(Need::Chats, Decided, &[Decided]).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn request_does_not_wait_for_a_server_that_is_not_sglang_until_it_answers_like_it() {
        assert_eq!(waited(Need::Engine, Unanswered(0), &[GivenUp]).await, 1);
        assert_eq!(waited(Need::Chats, GivenUp, &[Answered]).await, 0);
        assert_eq!(waited(Need::Chats, Answered, &[Decided]).await, 1);
    }

    /// The time that a request waits.
    async fn time(discovery: &watch::Receiver<Discovery>, need: Need) -> Duration {
        let begin = Instant::now();
        wait(discovery, need).await;
        begin.elapsed()
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_an_engine_that_does_not_answer_is_limited() {
        let (sender, discovery) = watch::channel(Unanswered(0));
        let limiting = tokio::spawn(limit(sender.clone()));
        tokio::time::sleep(Duration::from_secs(2)).await;
        assert_eq!(
            time(&discovery, Need::Engine).await,
            LONGEST - Duration::from_secs(2),
            "all requests have one limit"
        );
        assert_eq!(time(&discovery, Need::Engine).await, Duration::ZERO);
        assert_eq!(*discovery.borrow(), GivenUp);
        // an engine that answers later is waited for again
        sender.send_replace(Answered);
        assert_eq!(time(&discovery, Need::Engine).await, Duration::ZERO);
        assert_eq!(time(&discovery, Need::Chats).await, LONGEST);
        sender.send_replace(Decided);
        assert_eq!(time(&discovery, Need::Chats).await, Duration::ZERO);
        limiting.abort();
    }

    #[tokio::test(start_paused = true)]
    async fn time_begins_again_while_nothing_listens() {
        let (sender, discovery) = watch::channel(Unanswered(0));
        let limiting = tokio::spawn(limit(sender.clone()));
        for failed in 1..100 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            sender.send_replace(Unreachable(failed));
        }
        assert_eq!(time(&discovery, Need::Engine).await, LONGEST, "it listens now and hangs");
        limiting.abort();
    }
}
