//! A database, and the servers of one test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use async_trait::async_trait;
use counterfoil::Guard;
use counterfoil::guard::Reconciler;
use counterfoil_core::BoxError;
use counterfoil_core::guard::{Record, Snapshot, Verdict};
use sqlx::Pool;
use tokio::task::JoinHandle;

use super::{Answer, Ask, CHARGE, Door, Effect, Home, Ledger, Moment};
use crate::actor::ServeArgs;
use crate::process::{Launcher, Process};
use crate::wait;

/// Everything that one test of the guard needs.
pub struct Shop<D: Ledger> {
    /// The database.
    pub home: Home<D>,
    launcher: Launcher,
    logs: tempfile::TempDir,
    started: AtomicUsize,
}

/// A server that runs.
pub struct Server {
    /// The process.
    pub process: Process,
    /// Where it is reached.
    pub door: Door,
}

impl<D: Ledger> Shop<D> {
    /// On a fresh database. Absent when there is no server for it.
    pub async fn open(launcher: Launcher) -> Option<Self> {
        Some(Self {
            home: D::fresh().await?,
            launcher,
            logs: tempfile::tempdir().expect("no directory for logs"),
            started: AtomicUsize::new(0),
        })
    }

    /// The arguments of most servers.
    pub fn args(&self) -> ServeArgs {
        ServeArgs::new(self.home.url.clone())
    }

    /// Starts a server.
    pub async fn server(&self) -> Server {
        self.server_with(&self.args()).await
    }

    /// Starts a server with these arguments.
    pub async fn server_with(&self, args: &ServeArgs) -> Server {
        let label = format!("server-{}", self.started.fetch_add(1, Ordering::Relaxed));
        let mut process = self
            .launcher
            .start(&label, self.logs.path(), &args.to_args());
        let port = process.says("listening").await;
        Server {
            process,
            door: Door(port.parse().expect("a port")),
        }
    }

    /// Every effect.
    pub async fn effects(&self) -> Vec<Effect> {
        let effects = D::effects(&self.home.pool).await;
        effects.expect("the effects cannot be read")
    }

    /// The one effect.
    ///
    /// # Panics
    /// When there is none, or more than one.
    pub async fn the_effect(&self) -> Effect {
        let effects = self.effects().await;
        assert_eq!(effects.len(), 1, "{effects:?}");
        effects[0].clone()
    }

    /// The guard as the test itself sees it.
    pub fn guard(&self, args: &ServeArgs) -> Guard<D> {
        Guard::<D>::new(&self.home.pool, args.rules()).expect("rules that work")
    }

    /// Settles one uncertain request by a look at the effects.
    ///
    /// # Panics
    /// When there is none to settle.
    pub async fn reconcile(&self, args: &ServeArgs) {
        let check = Arc::new(AskEffects::<D>(self.home.pool.clone()));
        let business = CHARGE.trim_start_matches('/');
        let rounds = self.guard(args).reconcile();
        let rounds = &rounds.check(business, args.rules(), check);
        wait::until("an uncertain request is settled", || async move {
            let round = rounds.round().await.expect("the records can be read");
            (round.settled + round.released == 1).then_some(())
        })
        .await;
    }
}

/// Asks the outside world whether it happened.
struct AskEffects<D: Ledger>(Pool<D::Sqlx>);

#[async_trait]
impl<D: Ledger> Reconciler for AskEffects<D> {
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError> {
        let effects = D::effects(&self.0).await?;
        let found = effects.iter().find(|e| e.request == record.key.key());
        Ok(match found {
            Some(effect) => Verdict::Happened(Snapshot::json(&effect.receipt())?),
            None => Verdict::DidNotHappen,
        })
    }
}

impl Server {
    /// Sends a request that stands still at this moment, and returns when it does.
    pub async fn halted(
        &mut self,
        ask: &Ask,
        moment: Moment,
    ) -> JoinHandle<Result<Answer, BoxError>> {
        let (door, ask) = (self.door, ask.halting(moment));
        let caller = tokio::spawn(async move { door.ask(&ask).await });
        self.process
            .says(&format!("halted {}", moment.name()))
            .await;
        caller
    }
}
