//! Dead letters of the broker, on their way into the parking lot.
//!
//! # Promise
//! Each is parked once, under its own id, with the reason that its headers give, and the broker is
//! told after the commit. What this consumer has processed, or has put off, is passed over: it is a
//! repeat, wherever it comes from. Nothing takes effect before a person says so.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use chrono::Utc;
use counterfoil_core::Code;
use counterfoil_core::incoming::{Defect, Incoming};
use counterfoil_core::source::dead;
use counterfoil_core::store::Result;
use counterfoil_engine::consume::{Applied, Apply, Received};

use super::apply::Inbox;
use crate::database::Database;

/// Where RabbitMQ says why a message died.
const RABBITMQ_REASON: &str = "x-first-death-reason";

pub(super) struct Import<D: Database> {
    pub(super) inbox: Arc<Inbox<D>>,
    /// Where they come from, for people.
    pub(super) described: String,
    /// How long repeats are recognised.
    pub(super) keep: Duration,
}

#[async_trait]
impl<D: Database> Apply for Import<D> {
    async fn apply(&self, batch: &[&Received]) -> Result<Vec<Applied>> {
        let barred: Vec<Received> = batch.iter().map(|r| self.barred(r)).collect();
        let barred: Vec<&Received> = barred.iter().collect();
        self.inbox.apply(&barred).await
    }

    async fn is_full(&self) -> Result<bool> {
        self.inbox.is_full().await
    }
}

impl<D: Database> Import<D> {
    fn barred(&self, received: &Received) -> Received {
        let mut received = received.clone();
        let incoming = &mut received.incoming;
        incoming.defect = Some(Defect {
            code: self.code(incoming),
            error: reason(incoming, &self.described),
        });
        received
    }

    fn code(&self, incoming: &Incoming) -> Code {
        let age = incoming
            .time
            .and_then(|t| Utc::now().signed_duration_since(t).to_std().ok());
        match age.is_some_and(|age| age > self.keep) {
            true => Code::DEDUP_EXPIRED,
            false => Code::DEAD_LETTER,
        }
    }
}

fn reason(incoming: &Incoming, described: &str) -> String {
    let header = |name| incoming.headers.get(name);
    let own = incoming.defect.as_ref().map(|defect| defect.error.as_str());
    let reasons = [
        header(dead::CODE),
        header(dead::ERROR),
        header(RABBITMQ_REASON),
        own,
    ];
    let mut text = format!("a dead letter of {described}");
    for reason in reasons.into_iter().flatten() {
        text.push_str(": ");
        text.push_str(reason);
    }
    text.chars().take(1_000).collect()
}
