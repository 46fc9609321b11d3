//! What a process that has just started knows of its engine. The first generations wait for it, so that they are planned, rendered and
//! recorded like all later ones.

use std::time::Duration;

use tokio::sync::watch;

/// The longest wait of a request. Then it is served with what is known.
const LONGEST: Duration = Duration::from_secs(5);

/// The knowledge so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Discovery {
    /// The engine has not answered; the number of failed probes.
    Unanswered(u64),
    /// The engine has answered on its information routes.
    Answered,
    /// It is also known which side serves chats; or the server at the address is not SGLang.
    Complete,
}

/// What must be known before a request is served.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Need {
    /// The engine's answer.
    Engine,
    /// Also which side serves chats.
    Chats,
}

/// Waits until what a request needs is known. If the next probe fails, the engine cannot serve the request either, and the wait ends.
pub(super) async fn wait(discovery: &watch::Receiver<Discovery>, need: Need) {
    let now = *discovery.borrow();
    let is_enough = |later: &Discovery| match later {
        Discovery::Unanswered(_) => *later != now,
        Discovery::Answered => need == Need::Engine,
        Discovery::Complete => true,
    };
    if !is_enough(&now) {
        // an error means that nothing more will be known
        let _ = tokio::time::timeout(LONGEST, discovery.clone().wait_for(is_enough)).await;
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::Instant;

    use super::Discovery::{Answered, Complete, Unanswered};
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
        assert_eq!(waited(Need::Engine, Unanswered(3), &[Answered, Complete]).await, 1);
        assert_eq!(waited(Need::Chats, Unanswered(3), &[Answered, Complete]).await, 2);
        assert_eq!(waited(Need::Chats, Unanswered(3), &[Unanswered(4), Answered]).await, 1);
        assert_eq!(waited(Need::Engine, Answered, &[Complete]).await, 0);
        assert_eq!(waited(Need::Chats, Complete, &[Complete]).await, 0);
    }

    #[tokio::test(start_paused = true)]
    async fn wait_for_an_engine_that_does_not_answer_is_limited() {
        let (_sender, discovery) = watch::channel(Unanswered(0));
        let begin = Instant::now();
        wait(&discovery, Need::Engine).await;
        assert_eq!(begin.elapsed(), LONGEST);
    }
}
