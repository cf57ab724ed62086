//! A source whose process dies between its first commit and telling the broker.

use std::sync::Arc;

use async_trait::async_trait;
use counterfoil_core::source::{Arrival, Features, Settle, Source, SourceError, Subscription, Tag};

/// Dies instead of settling.
pub(super) struct DiesUntold(pub(super) Arc<dyn Source>);

#[async_trait]
impl Source for DiesUntold {
    fn describe(&self) -> String {
        self.0.describe()
    }

    fn features(&self) -> Features {
        self.0.features()
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        Ok(Box::new(Untold(self.0.subscribe().await?)))
    }
}

struct Untold(Box<dyn Subscription>);

#[async_trait]
impl Subscription for Untold {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        self.0.receive(max).await
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        if settled.iter().any(|(_, how)| *how == Settle::Done) {
            std::process::exit(1);
        }
        self.0.settle(settled).await
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        self.0.close().await
    }
}
