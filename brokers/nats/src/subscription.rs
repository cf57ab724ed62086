//! Membership in a group: what the caller asks for.
//!
//! # Promise
//! Settling is confirmed by the server before it is confirmed to the caller. A dead letter is stored
//! before its message is given up. Whoever leaves gives back at once what was not settled.

use std::sync::Arc;

use async_nats::Subject;
use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::source::{Arrival, DeadLetter, Settle, SourceError, Subscription, Tag};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;
use serde_json::json;
use tokio::task::JoinHandle;
use tokio::time::timeout;

use crate::dead;
use crate::link::Trouble;
use crate::pump::{AGAIN, DONE, NEVER, release, replies, unpin};
use crate::state::Shared;

/// A member of a group.
pub(crate) struct NatsSubscription {
    shared: Arc<Shared>,
    task: JoinHandle<()>,
}

impl NatsSubscription {
    pub(crate) fn new(shared: Arc<Shared>, task: JoinHandle<()>) -> Self {
        Self { shared, task }
    }

    /// Ends one reception.
    async fn end(&self, tag: Tag, how: Settle) -> Result<(), Trouble> {
        match how {
            Settle::Done => self.confirm(tag, DONE.into()).await,
            Settle::Release { delay: None } => self.confirm(tag, AGAIN.into()).await,
            Settle::Release { delay: Some(delay) } => {
                let nanos = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
                let text = format!("{AGAIN} {}", json!({ "delay": nanos }));
                self.confirm(tag, text.into()).await
            }
            Settle::Dead(letter) => {
                self.bury(tag, &letter).await?;
                self.confirm(tag, NEVER.into()).await
            }
        }
    }

    /// Tells the server how it ended, and waits until it says that it knows.
    async fn confirm(&self, tag: Tag, text: Bytes) -> Result<(), Trouble> {
        let Some(held) = self.shared.state().let_go(tag) else {
            return Ok(());
        };
        let Some(reply) = held.reply() else {
            return Ok(());
        };
        let wait = self.shared.settings.timeout;
        let question = self.shared.live.client.request(reply, text);
        match timeout(wait, question).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(error)) => Err(Trouble::Unavailable(format!("not settled: {error}"))),
            Err(_) => Err(Trouble::Unavailable(format!(
                "not settled: no answer within {wait:?}"
            ))),
        }
    }

    /// Stores a dead letter.
    async fn bury(&self, tag: Tag, letter: &DeadLetter) -> Result<(), Trouble> {
        let message = {
            let state = self.shared.state();
            let Some(held) = state.held(tag) else {
                return Ok(());
            };
            dead::letter(held, letter)
        };
        dead::store(&self.shared, message).await
    }

    /// Everything that was not settled, lowest first, and the partitions that were ours.
    fn give_up(&self) -> (Vec<Subject>, Vec<u16>) {
        let mut state = self.shared.state();
        let held = state.let_go_all();
        let mut left: Vec<Subject> = held.iter().filter_map(|h| h.reply()).collect();
        let mut ours = Vec::new();
        for partition in &mut state.partitions {
            let (items, pinned) = partition.leave();
            left.extend(replies(items));
            if pinned {
                ours.push(partition.number);
            }
        }
        (left, ours)
    }
}

#[async_trait]
impl Subscription for NatsSubscription {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        loop {
            // Before looking: news that comes in between is not missed.
            let news = self.shared.news.notified();
            let taken = self.shared.take(max)?;
            if !taken.is_empty() || max == 0 {
                return Ok(taken);
            }
            news.await;
        }
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        if let Some(why) = &self.shared.state().end {
            return Err(why.clone().into());
        }
        let all = async {
            let mut all: FuturesUnordered<_> = settled
                .into_iter()
                .map(|(t, how)| self.end(t, how))
                .collect();
            let mut trouble = None;
            while let Some(ended) = all.next().await {
                if let Err(found) = ended {
                    trouble.get_or_insert(found);
                }
            }
            trouble.map_or(Ok(()), Err)
        };
        let outcome = tokio::select! {
            outcome = all => outcome,
            () = self.shared.live.broken() => {
                Err(Trouble::Unavailable("the connection broke".to_owned()))
            }
        };
        if let Err(trouble @ Trouble::Unavailable(_)) = &outcome {
            self.shared.end(trouble.clone());
        }
        Ok(outcome?)
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        let shared = &self.shared;
        // Counted first: what arrives meanwhile is counted once at most.
        let mut lag: u64 = {
            let state = shared.state();
            state.partitions.iter().map(|p| p.waiting() as u64).sum()
        };
        let partitions = 0..shared.settings.subjects.partitions();
        let infos = partitions.map(|n| async move {
            let consumer = shared.settings.consumer(n);
            let subject = format!("CONSUMER.INFO.{}.{consumer}", shared.stream);
            let wait = shared.settings.timeout;
            shared.live.ask(&subject, &json!({}), wait).await
        });
        for info in futures_util::future::try_join_all(infos).await? {
            lag += info["num_pending"].as_u64().unwrap_or_default();
        }
        Ok(Some(lag))
    }

    async fn close(mut self: Box<Self>) -> Result<(), SourceError> {
        let wait = self.shared.settings.timeout;
        self.shared.leave.notify_one();
        // Nothing new comes to us from here on, and what was on its way is here.
        let _ = timeout(wait, &mut self.task).await;
        let (left, ours) = self.give_up();
        release(&self.shared, left).await;
        let leaving = ours.into_iter().map(|n| unpin(&self.shared, n));
        futures_util::future::join_all(leaving).await;
        let gone = self.shared.state().members.gone();
        let client = &self.shared.live.client;
        let said = async {
            client
                .publish(self.shared.talk.clone(), gone.into())
                .await
                .is_ok()
                && client.flush().await.is_ok()
        };
        match timeout(wait, said).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(SourceError::Unavailable("the connection broke".to_owned())),
        }
    }
}

impl Drop for NatsSubscription {
    fn drop(&mut self) {
        self.task.abort();
    }
}
