//! A few connections of the guard's own.
//!
//! # Promise
//! Short statements that commit by themselves run here, and not on the application's pool: they
//! neither wait for it nor use it up, and they are spared the question that a pool asks the server
//! whenever a connection is returned. At most [`MAX`] connections are open; who finds none waits.
//! A connection on which anything failed is not used again.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use counterfoil_core::store::{Result, StoreError};
use sqlx::ConnectOptions;
use sqlx::postgres::{PgConnectOptions, PgConnection};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::classify;

/// At most so many connections.
pub(crate) const MAX: usize = 8;
/// How long to wait for a connection.
const PATIENCE: Duration = Duration::from_secs(5);

pub(crate) struct Handy {
    plain: PgConnectOptions,
    by_key: PgConnectOptions,
    free: Mutex<Vec<PgConnection>>,
    places: Semaphore,
}

impl Handy {
    pub(crate) fn new(options: PgConnectOptions) -> Self {
        let plain = options.log_statements(tracing::log::LevelFilter::Off);
        // All statements here go by the primary key. Without this the server would plan those over
        // arrays anew each time, or keep the plan of an empty table when it is full. Options of
        // the connection, and not SET: behind a proxy the session may be somebody else's next.
        let by_key = plain.clone().options([
            ("plan_cache_mode", "force_generic_plan"),
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
        ]);
        Self {
            plain,
            by_key,
            free: Mutex::default(),
            places: Semaphore::new(MAX),
        }
    }

    /// Lends a connection. It is used again only after [`Lent::keep`].
    pub(crate) async fn lend(&self) -> Result<Lent<'_>> {
        let place = self.place().await?;
        let idle = self.free().pop();
        let (connection, reused) = match idle {
            Some(connection) => (connection, true),
            None => (self.connect().await?, false),
        };
        Ok(Lent {
            handy: self,
            connection,
            reused,
            _place: place,
        })
    }

    async fn place(&self) -> Result<SemaphorePermit<'_>> {
        match tokio::time::timeout(PATIENCE, self.places.acquire()).await {
            Ok(Ok(place)) => Ok(place),
            Ok(Err(closed)) => Err(StoreError::Unreachable(closed.into())),
            Err(late) => Err(StoreError::Unreachable(late.into())),
        }
    }

    async fn connect(&self) -> Result<PgConnection> {
        let connected = async {
            match self.by_key.connect().await {
                // A proxy may refuse such options.
                Err(sqlx::Error::Database(refused)) => {
                    tracing::debug!(%refused, "connecting again without options");
                    self.plain.connect().await
                }
                connected => connected,
            }
        };
        match tokio::time::timeout(PATIENCE, connected).await {
            Ok(connected) => connected.map_err(classify),
            Err(late) => Err(StoreError::Unreachable(late.into())),
        }
    }

    fn free(&self) -> std::sync::MutexGuard<'_, Vec<PgConnection>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A connection for one statement.
pub(crate) struct Lent<'a> {
    handy: &'a Handy,
    connection: PgConnection,
    reused: bool,
    _place: SemaphorePermit<'a>,
}

impl Lent<'_> {
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    /// It works: it may be used again.
    pub(crate) fn keep(self) {
        self.handy.free().push(self.connection);
    }

    /// Takes a new connection after an error, if that may help: if this one died while it lay
    /// idle. Then the other idle ones are dead too. Only for statements that change nothing.
    pub(crate) async fn renew(&mut self, error: &StoreError) -> Result<bool> {
        if !self.reused || !matches!(error, StoreError::Unreachable(_)) {
            return Ok(false);
        }
        self.handy.free().clear();
        self.connection = self.handy.connect().await?;
        self.reused = false;
        Ok(true)
    }
}
