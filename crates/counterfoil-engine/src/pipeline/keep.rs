//! What of breakers survives a restart, and what an operator tells one process reaches the others.
//!
//! # Promise
//! A process that starts goes on with the breakers where the last one stopped: what is open stays
//! open for the rest of its time, and what an operator forced stays forced. What an operator tells
//! one process, every process on the same database knows within [`LOOK`]. A store that does not
//! answer changes nothing: the breakers go on in memory, and it is told later.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_core::policy::breaker::{Forced, Snapshot, State};
use counterfoil_core::store::{Disposition, Kept, Remember, Result, Store};

use super::dependency::Dependency;
use super::registry::Registry;

/// How often to look for what other processes were told.
pub(crate) const LOOK: Duration = Duration::from_secs(10);

/// Keeps what has to be kept, and what of it the store knows.
pub(crate) struct Keeper {
    store: Arc<dyn Store>,
    registry: Registry,
    known: HashMap<String, Known>,
    /// The last look at the store has failed.
    failing: bool,
    /// A relay beside us says when the database is away.
    beside_relay: bool,
}

/// What the store knows about a breaker.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Known {
    forced: Option<Forced>,
    /// Whether it is open, and how long it will be the next time.
    open: Option<Option<Duration>>,
    /// Until when, which operators see.
    until: Option<DateTime<Utc>>,
}

impl Known {
    fn of(snapshot: Snapshot) -> Self {
        Self {
            forced: snapshot.forced,
            open: snapshot.open_until.map(|_| snapshot.open_for),
            until: snapshot.open_until,
        }
    }

    /// Whether this is not what the store knows. The time of a probe that is under way is no news.
    fn is_news(&self, here: &Known, state: State) -> bool {
        let moved = match (self.until, here.until) {
            (Some(known), Some(until)) => (until - known).abs() > TimeDelta::seconds(1),
            _ => false,
        };
        self.open != here.open || (moved && state == State::Open)
    }
}

impl Keeper {
    pub(crate) fn new(store: Arc<dyn Store>, registry: Registry) -> Self {
        Self {
            store,
            registry,
            known: HashMap::new(),
            failing: false,
            beside_relay: false,
        }
    }

    /// Whether a relay says when the database is away: one event, one line in the log.
    pub(crate) fn beside_relay(&mut self, relay: bool) {
        self.beside_relay = relay;
    }

    /// Keeps until it is aborted.
    pub(crate) async fn run(mut self) {
        loop {
            // Whatever comes first; both are answered by looking at everything.
            let _ = tokio::time::timeout(LOOK, self.registry.changed()).await;
            let result = self.sync().await;
            match &result {
                _ if !self.turned(result.is_err()) => {}
                Err(error) if self.beside_relay && error.disposition() == Disposition::Retry => {
                    tracing::debug!(
                        error = error.one_line(),
                        "cannot keep the state of breakers"
                    );
                }
                Ok(()) if self.beside_relay => {
                    tracing::debug!("the state of breakers is kept again");
                }
                Err(error) => tracing::warn!(
                    error = error.one_line(),
                    "cannot keep the state of breakers: a restart would forget it"
                ),
                Ok(()) => tracing::info!("the state of breakers is kept again"),
            }
        }
    }

    /// Whether this is news: the store fails and did not before, or does not any more.
    fn turned(&mut self, failing: bool) -> bool {
        std::mem::replace(&mut self.failing, failing) != failing
    }

    /// Makes the store and the breakers agree.
    pub(crate) async fn sync(&mut self) -> Result<()> {
        let all = self.registry.all();
        if all.is_empty() {
            return Ok(());
        }
        let kept = self.store.breakers().await?;
        let mut kept: HashMap<String, Kept> = kept
            .into_iter()
            .map(|k| (k.destination.clone(), k))
            .collect();
        for dependency in all {
            let kept = kept.remove(dependency.name()).unwrap_or_default();
            self.agree(&dependency, kept).await?;
        }
        Ok(())
    }

    async fn agree(&mut self, dependency: &Dependency, kept: Kept) -> Result<()> {
        let name = dependency.name();
        let known = match self.known.get(name) {
            Some(known) => *known,
            None => {
                let fresh = dependency.snapshot().is_empty();
                if fresh {
                    dependency.restore(kept.snapshot, kept.by.as_deref(), kept.outage);
                }
                Known::of(kept.snapshot)
            }
        };
        let mut here = dependency.snapshot();
        if here.forced != known.forced {
            let forced = here.forced;
            let by = dependency.status().forced_by.unwrap_or_default();
            let word = Remember::Forced { forced, by };
            self.store.remember_breaker(name, &word).await?;
        } else if kept.snapshot.forced != known.forced {
            // Another process was told.
            let by = kept.by.as_deref().unwrap_or("another process");
            dependency.force(kept.snapshot.forced, by);
            here = dependency.snapshot();
        }
        let mut told = Known::of(here);
        if known.is_news(&told, dependency.state()) {
            let open = Remember::Open {
                until: here.open_until,
                open_for: here.open_for,
                outage: here.open_until.and_then(|_| dependency.outage()),
            };
            self.store.remember_breaker(name, &open).await?;
        } else {
            told.until = known.until;
        }
        self.known.insert(name.to_owned(), told);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pipeline::{Dependency, Limits};
    use counterfoil_core::policy::breaker::Admission;
    use counterfoil_core::policy::class::{Class, Failure};
    use counterfoil_testkit::memory::MemoryStore;

    struct Process {
        keeper: Keeper,
        stock: Arc<Dependency>,
    }

    impl Process {
        async fn start(store: &MemoryStore) -> Self {
            let registry = Registry::new();
            let mut limits = Limits::default();
            limits.breaker.consecutive = Some(1);
            let stock = registry.dependency("stock", limits).unwrap();
            let mut keeper = Keeper::new(Arc::new(store.clone()), registry);
            keeper.sync().await.unwrap();
            Self { keeper, stock }
        }

        async fn sync(&mut self) {
            self.keeper.sync().await.unwrap();
        }

        fn fail(&self) {
            let Admission::Go(ticket) = self.stock.admit() else {
                panic!("not admitted");
            };
            let failed = Class::Failed(Failure::Upstream);
            self.stock.failed_with("UPSTREAM_5XX: 503");
            self.stock.record(ticket, failed);
        }
    }

    #[tokio::test(start_paused = true)]
    async fn an_open_breaker_is_open_after_a_restart() {
        let store = MemoryStore::new();
        let mut before = Process::start(&store).await;
        before.fail();
        before.sync().await;

        let kept = store.breakers().await.unwrap().remove(0);
        let error = kept.opened().unwrap().error;
        assert_eq!(error.as_deref(), Some("UPSTREAM_5XX: 503"));

        let mut after = Process::start(&store).await;
        assert_eq!(after.stock.state(), State::Open);
        assert_eq!(
            after.stock.outage().unwrap().since,
            kept.outage.unwrap().since
        );
        assert!(after.stock.wait() <= Some(Duration::from_secs(1)));

        tokio::time::sleep(Duration::from_secs(1)).await;
        let Admission::Go(probe) = after.stock.admit() else {
            panic!("no probe");
        };
        after.stock.record(probe, Class::Success);
        after.sync().await;
        let last = Process::start(&store).await;
        assert_eq!(last.stock.state(), State::Closed);
    }

    #[tokio::test(start_paused = true)]
    async fn an_operators_word_survives_a_restart_and_reaches_other_processes() {
        let store = MemoryStore::new();
        let mut first = Process::start(&store).await;
        let mut second = Process::start(&store).await;

        first.stock.force(Some(Forced::Open), "anna");
        first.sync().await;
        second.sync().await;
        let third = Process::start(&store).await;
        for process in [&second, &third] {
            let status = process.stock.status();
            assert_eq!(status.forced, Some(Forced::Open));
            assert_eq!(status.forced_by.as_deref(), Some("anna"));
        }

        second.stock.force(None, "ben");
        second.sync().await;
        first.sync().await;
        assert_eq!(first.stock.status().forced, None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_process_that_knows_nothing_does_not_undo_what_an_operator_said() {
        let store = MemoryStore::new();
        let mut first = Process::start(&store).await;
        let mut second = Process::start(&store).await;
        first.stock.force(Some(Forced::Closed), "anna");
        first.sync().await;

        // Its breaker opens before it has looked.
        second.fail();
        second.sync().await;

        let kept = store.breakers().await.unwrap().remove(0);
        assert_eq!(kept.snapshot.forced, Some(Forced::Closed));
        assert_eq!(second.stock.status().forced, Some(Forced::Closed));
    }

    #[tokio::test(start_paused = true)]
    async fn that_the_store_fails_is_news_once_and_that_it_is_well_again() {
        let mut keeper = Process::start(&MemoryStore::new()).await.keeper;

        let told = [false, true, true, false, false, true].map(|failing| keeper.turned(failing));

        assert_eq!(told, [false, true, false, true, false, true]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_destination_that_is_added_later_is_restored_too() {
        let store = MemoryStore::new();
        let word = Remember::Forced {
            forced: Some(Forced::Open),
            by: "anna".into(),
        };
        store.remember_breaker("mail", &word).await.unwrap();
        let mut process = Process::start(&store).await;

        let registry = process.keeper.registry.clone();
        let mail = registry.dependency("mail", Limits::default()).unwrap();
        process.sync().await;

        assert_eq!(mail.state(), State::Open);
    }
}
