//! Settings of our own sessions.
//!
//! # Promise
//! Nothing is `SET` on a session. Behind a pooler of transactions the connection goes to somebody
//! else next, and the setting with it. What a whole session should have is asked for when it begins,
//! and is then its own. A pooler that would not pass it on refuses such a session; ours go without
//! it there. What must hold in any case is said in each transaction, see [`BEGIN`].

use std::time::Duration;

use counterfoil_core::store::{Result, StoreError};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgPool};
use sqlx::{ConnectOptions as _, Connection as _};

use crate::classify;

/// Our statements run thousands of times with arrays of any length: one plan each, and none that is
/// worth compiling.
pub(crate) const OURS: &[(&str, &str)] =
    &[("plan_cache_mode", "force_generic_plan"), ("jit", "off")];

/// A relay that freezes in the middle of a transaction must not keep its locks.
pub(crate) const BEGIN: &str = "BEGIN; SET LOCAL idle_in_transaction_session_timeout = '10s'";

const PATIENCE: Duration = Duration::from_secs(10);

/// As [`prefer`]; answers with one connection to the same database.
pub(crate) async fn ask_for(pool: &PgPool, settings: &[(&str, &str)]) -> Result<PgConnection> {
    let plain = pool.connect_options().as_ref().clone();
    let wanted = plain.clone().options(settings.iter().copied());
    match connect(&wanted).await {
        Ok(connection) => {
            pool.set_connect_options(wanted);
            Ok(connection)
        }
        // Refused, for these settings or for another reason: without them it shows.
        Err(Refusal::Answer(_)) => connect(&plain).await.map_err(Refusal::into_error),
        Err(refusal) => Err(refusal.into_error()),
    }
}

/// Whether a session that begins now stays ours until it ends. A pooler does not give it what was
/// asked for at its beginning.
pub(crate) async fn is_own_session(pool: &PgPool) -> Result<bool> {
    let mut connection = ask_for(pool, &[("counterfoil.session", "own")]).await?;
    let (found,): (Option<String>,) =
        sqlx::query_as("SELECT current_setting('counterfoil.session', true)")
            .fetch_one(&mut connection)
            .await
            .map_err(classify)?;
    // The server notices by itself that it is gone.
    let _ = connection.close().await;
    Ok(found.as_deref() == Some("own"))
}

enum Refusal {
    /// The server, or who stands before it, has answered.
    Answer(sqlx::Error),
    Silence(StoreError),
}

impl Refusal {
    fn into_error(self) -> StoreError {
        match self {
            Self::Answer(error) => classify(error),
            Self::Silence(error) => error,
        }
    }
}

/// A connection of its own, because a pool hides why it cannot connect.
async fn connect(options: &PgConnectOptions) -> Result<PgConnection, Refusal> {
    match tokio::time::timeout(PATIENCE, options.connect()).await {
        Ok(Ok(connection)) => Ok(connection),
        Ok(Err(error @ sqlx::Error::Database(_))) => Err(Refusal::Answer(error)),
        Ok(Err(error)) => Err(Refusal::Silence(classify(error))),
        Err(late) => Err(Refusal::Silence(StoreError::Unreachable(late.into()))),
    }
}

/// Gives the connections that a pool opens from now on these settings, if they can have them. Behind a
/// pooler that does not pass them on they cannot, and nothing changes.
pub async fn prefer(pool: &PgPool, settings: &[(&str, &str)]) -> Result<()> {
    let connection = ask_for(pool, settings).await?;
    // The server notices by itself that it is gone.
    let _ = connection.close().await;
    Ok(())
}

#[cfg(test)]
mod tests {
    use crate::PostgresStore;
    use counterfoil_core::store::Store as _;
    use counterfoil_testkit::server;

    const ASK: &str = "SELECT current_setting('plan_cache_mode') || ' ' || current_setting('jit') || ' ' || \
         current_setting('idle_in_transaction_session_timeout')";

    #[tokio::test]
    async fn a_direct_session_has_what_it_asked_for_and_the_limit_is_in_transactions_only() {
        let Some(url) = server::postgres() else {
            return;
        };
        let store = PostgresStore::connect(&url).unwrap();
        store.check_server().await.unwrap();

        let session: String = sqlx::query_scalar(ASK)
            .fetch_one(store.pool())
            .await
            .unwrap();
        let mut tx = store.begin().await.unwrap();
        let within: String = sqlx::query_scalar(ASK).fetch_one(&mut *tx).await.unwrap();
        tx.rollback().await.unwrap();

        assert_eq!(session, "force_generic_plan off 0");
        assert_eq!(within, "force_generic_plan off 10s");
        assert!(store.listen().await.is_ok(), "the session is its own");
        store.close().await;
    }
}
