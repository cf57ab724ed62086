//! The whole pipeline as one layer.

use std::sync::Arc;

use tower::Layer;

use super::attempt::{AttemptTimeout, AttemptTimeoutLayer};
use super::breaker::{Break, BreakerLayer};
use super::bulkhead::{BulkheadLayer, Confine};
use super::dependency::Dependency;
use super::retry::{Retry, RetryLayer};

/// The whole pipeline of a dependency as one layer; see the [module](super).
#[derive(Clone)]
pub struct Stack<C> {
    dependency: Arc<Dependency>,
    classify: C,
}

/// What [`Stack`] makes of a service.
pub type Stacked<S, C> = Retry<Confine<Break<AttemptTimeout<S>, C>>, C>;

impl<C> Stack<C> {
    /// The pipeline of this dependency.
    pub fn new(dependency: Arc<Dependency>, classify: C) -> Self {
        Self {
            dependency,
            classify,
        }
    }
}

impl<S, C: Clone> Layer<S> for Stack<C> {
    type Service = Stacked<S, C>;

    fn layer(&self, inner: S) -> Self::Service {
        let dependency = || Arc::clone(&self.dependency);
        let attempt = AttemptTimeoutLayer::new(self.dependency.limits().attempt).layer(inner);
        let guarded = BreakerLayer::new(dependency(), self.classify.clone()).layer(attempt);
        let confined = BulkheadLayer::new(dependency()).layer(guarded);
        RetryLayer::new(dependency(), self.classify.clone()).layer(confined)
    }
}
