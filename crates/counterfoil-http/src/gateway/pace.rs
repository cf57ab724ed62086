//! Whether somebody who is waited for is too slow.
//!
//! # Promise
//! Who is waited for all the time, and moves fewer than [`RATE`] bytes a second over [`GRACE`], is too
//! slow. Time in which nobody waits for it does not count: a service that has nothing to say, or that
//! takes its time to read.

use std::future::Future as _;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::time::{Instant, Sleep, sleep};

/// The time over which bytes are counted.
pub(super) const GRACE: Duration = Duration::from_secs(10);
/// Bytes a second: less than any line carries, and more than somebody sends who wants to be in the way.
pub(super) const RATE: u64 = 240;
/// Whoever is asked for more so long after the last bytes was not waited for in between.
const GAP: Duration = Duration::from_secs(1);

/// Counts what somebody moves while it is waited for.
#[derive(Debug, Default)]
pub(super) struct Pace {
    timer: Option<Pin<Box<Sleep>>>,
    running: bool,
    bytes: u64,
    last: Option<Instant>,
}

impl Pace {
    /// So many bytes were moved.
    pub(super) fn moved(&mut self, bytes: usize) {
        if self.running {
            self.bytes = self.bytes.saturating_add(bytes as u64);
            self.last = Some(Instant::now());
        }
    }

    /// It is waited for. Ready when it is too slow.
    pub(super) fn poll_slow(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let idle = self.last.take().is_some_and(|last| last.elapsed() > GAP);
        if !self.running || idle {
            self.begin();
        }
        loop {
            let Some(timer) = &mut self.timer else {
                return Poll::Pending;
            };
            ready!(timer.as_mut().poll(cx));
            if self.bytes < RATE * GRACE.as_secs() {
                return Poll::Ready(());
            }
            self.begin();
        }
    }

    fn begin(&mut self) {
        self.running = true;
        self.bytes = 0;
        match &mut self.timer {
            Some(timer) => timer.as_mut().reset(Instant::now() + GRACE),
            none => *none = Some(Box::pin(sleep(GRACE))),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::poll_fn;

    use super::*;

    /// Moves so many bytes every second, for so long, or until it is too slow.
    async fn moving(pace: &mut Pace, bytes: usize, seconds: u64) -> bool {
        for _ in 0..seconds {
            let second =
                tokio::time::timeout(Duration::from_secs(1), poll_fn(|cx| pace.poll_slow(cx)));
            if second.await.is_ok() {
                return true;
            }
            pace.moved(bytes);
        }
        false
    }

    #[tokio::test(start_paused = true)]
    async fn who_trickles_is_too_slow_and_who_moves_is_not() {
        assert!(moving(&mut Pace::default(), 100, 60).await);
        assert!(!moving(&mut Pace::default(), 300, 600).await);
    }

    #[tokio::test(start_paused = true)]
    async fn what_was_moved_long_ago_does_not_help() {
        let mut pace = Pace::default();

        assert!(!moving(&mut pace, 1_000_000, 60).await);
        assert!(moving(&mut pace, 1, 60).await);
    }

    #[tokio::test(start_paused = true)]
    async fn time_in_which_nobody_waits_does_not_count() {
        let mut pace = Pace::default();

        for _ in 0..100 {
            assert!(!moving(&mut pace, 1, 5).await);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }
}
