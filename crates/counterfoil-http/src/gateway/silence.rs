//! How long somebody who is listened to says nothing.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// Runs while somebody listens and nothing comes. Time in which nobody listens does not count: it
/// is the listener's own.
#[derive(Debug)]
pub(super) struct Silence {
    patience: Duration,
    timer: Option<Pin<Box<Sleep>>>,
    running: bool,
}

impl Silence {
    pub(super) fn new(patience: Duration) -> Self {
        Self {
            patience,
            timer: None,
            running: false,
        }
    }

    /// Something came.
    pub(super) fn ended(&mut self) {
        self.running = false;
    }

    /// Ready when it has lasted for too long.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let patience = self.patience;
        let timer = self.timer.get_or_insert_with(|| Box::pin(sleep(patience)));
        if !self.running {
            timer.as_mut().reset(Instant::now() + patience);
            self.running = true;
        }
        timer.as_mut().poll(cx)
    }
}
