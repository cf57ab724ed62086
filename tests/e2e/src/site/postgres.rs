//! A schema of its own on the PostgreSQL server for tests.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::MessageId;
use counterfoil_core::desk::Desk;
use counterfoil_core::store::Store;
use counterfoil_postgres::PostgresStore;
use counterfoil_testkit::server;
use sqlx::postgres::{PgConnection, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection};

use super::{FACTS, Obstacle, Ownership, STANDINGS, Site, Standing, Trapped, fact, standing};
use crate::app::{Fact, TABLES};
use crate::wait;

/// A schema.
pub struct PostgresSite {
    server: String,
    schema: String,
    store: PostgresStore,
    pool: PgPool,
}

impl PostgresSite {
    /// An empty schema. Absent when there is no server: see [`server`], which has then said so.
    pub async fn bare() -> Option<Self> {
        let server = server::postgres()?;
        let schema = format!("e2e_{}", MessageId::new().as_uuid().simple());
        run(
            &mut connect(&server).await,
            format!("CREATE SCHEMA {schema}"),
        )
        .await;
        let url = within(&server, &schema, "test");
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .acquire_timeout(Duration::from_secs(20))
            .connect_lazy(&url)
            .expect("a URL that the server was reached with");
        let store = PostgresStore::from_pool(&pool);
        Some(Self {
            server,
            schema,
            store,
            pool,
        })
    }

    /// A schema with every table.
    pub async fn fresh() -> Option<Self> {
        let site = Self::bare().await?;
        site.store.migrate().await.unwrap();
        site.found_application().await;
        Some(site)
    }

    /// A connection of the test's own.
    pub async fn connection(&self) -> PgConnection {
        connect(&self.url("test")).await
    }

    /// Somebody else is creating a table: a migration comes to a halt in its middle.
    pub async fn halfway_through_migration(&self) -> Box<dyn Obstacle> {
        let mut connection = self.connection().await;
        run(
            &mut connection,
            "BEGIN; CREATE TABLE counterfoil_history (seq bigint)",
        )
        .await;
        self.blocker(connection, "ROLLBACK".into()).await
    }

    /// The tables that are there.
    pub async fn tables(&self) -> Vec<String> {
        sqlx::query_scalar("SELECT tablename::text FROM pg_tables WHERE schemaname = $1")
            .bind(&self.schema)
            .fetch_all(&self.pool)
            .await
            .unwrap()
    }

    async fn blocker(&self, mut holder: PgConnection, remove: String) -> Box<dyn Obstacle> {
        let pid = sqlx::query_scalar("SELECT pg_backend_pid()")
            .fetch_one(&mut holder)
            .await
            .unwrap();
        Box::new(Blocker {
            holder,
            pid,
            looker: self.connection().await,
            remove,
        })
    }

    fn name_of(&self, label: &str) -> String {
        name(&self.schema, label)
    }
}

fn name(schema: &str, label: &str) -> String {
    format!("{schema}.{label}")
}

fn within(server: &str, schema: &str, label: &str) -> String {
    let and = if server.contains('?') { '&' } else { '?' };
    let name = name(schema, label);
    format!("{server}{and}options=-c%20search_path%3D{schema}&application_name={name}")
}

async fn connect(url: &str) -> PgConnection {
    PgConnection::connect(url)
        .await
        .expect("no connection to PostgreSQL")
}

async fn run(connection: &mut PgConnection, sql: impl Into<String>) {
    sqlx::raw_sql(AssertSqlSafe(sql.into()))
        .execute(connection)
        .await
        .unwrap();
}

#[async_trait]
impl Site for PostgresSite {
    fn url(&self, label: &str) -> String {
        within(&self.server, &self.schema, label)
    }

    fn desk(&self) -> Arc<dyn Desk> {
        Arc::new(self.store.clone())
    }

    fn shards(&self) -> u16 {
        self.store.shards()
    }

    fn leases(&self) -> bool {
        true
    }

    async fn found_application(&self) {
        run(&mut self.connection().await, TABLES).await;
    }

    async fn committed(&self) -> Vec<Fact> {
        let rows = sqlx::query_as(FACTS).fetch_all(&self.pool).await.unwrap();
        rows.into_iter().map(fact).collect()
    }

    async fn standings(&self) -> Vec<Standing> {
        let rows = sqlx::query_as(STANDINGS)
            .fetch_all(&self.pool)
            .await
            .unwrap();
        rows.into_iter().map(standing).collect()
    }

    async fn owners(&self) -> Vec<Ownership> {
        let rows: Vec<(String, i16, Option<String>, i64)> =
            sqlx::query_as("SELECT queue, shard, owner, epoch FROM counterfoil_shards")
                .fetch_all(&self.pool)
                .await
                .unwrap();
        rows.into_iter()
            .map(|(queue, shard, owner, epoch)| Ownership {
                queue,
                shard: shard.cast_unsigned(),
                owner,
                epoch,
            })
            .collect()
    }

    /// The server notices the end of a process at its next word to it, and ends or finishes what
    /// it was doing.
    async fn is_gone(&self, label: &str) {
        let (pool, name) = (&self.pool, &self.name_of(label));
        wait::until("the server has noticed the death", || async move {
            let left: i64 = sqlx::query_scalar(
                "SELECT count(*) FROM pg_stat_activity WHERE application_name = $1",
            )
            .bind(name)
            .fetch_one(pool)
            .await
            .unwrap();
            (left == 0).then_some(())
        })
        .await;
    }

    async fn cut_off(&self, label: &str) {
        self.hang_up(label).await;
        self.is_gone(label).await;
    }

    async fn forbid_settling(&self) -> Box<dyn Obstacle> {
        let mut connection = self.connection().await;
        run(
            &mut connection,
            "BEGIN; SELECT FROM counterfoil_shards ORDER BY queue, shard FOR UPDATE",
        )
        .await;
        self.blocker(connection, "ROLLBACK".into()).await
    }

    async fn trap(&self, trapped: Trapped) -> Box<dyn Obstacle> {
        let mut connection = self.connection().await;
        let event = match trapped {
            Trapped::Leaving => "DELETE",
            Trapped::Rescheduling => "UPDATE",
        };
        let key = fastrand::i64(1..);
        run(
            &mut connection,
            format!(
                "SELECT pg_advisory_lock({key});
                 CREATE FUNCTION e2e_trap() RETURNS trigger LANGUAGE plpgsql AS
                     $$ BEGIN PERFORM pg_advisory_xact_lock_shared({key}); RETURN NULL; END $$;
                 CREATE TRIGGER e2e_trap AFTER {event} ON counterfoil_outbox
                     FOR EACH ROW EXECUTE FUNCTION e2e_trap()"
            ),
        )
        .await;
        // The trigger stays and holds nobody up any more.
        let remove = format!("SELECT pg_advisory_unlock({key})");
        self.blocker(connection, remove).await
    }

    async fn hang_up(&self, label: &str) {
        sqlx::query(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, $1)",
        )
        .bind(self.name_of(label))
        .execute(&self.pool)
        .await
        .unwrap();
    }

    async fn pulse(&self) {
        let beat = "INSERT INTO e2e_counters VALUES ('', 1) ON CONFLICT (aggregate)
                    DO UPDATE SET version = e2e_counters.version + 1";
        // A pulse that cannot be felt takes long, and that is what is measured.
        let _ = sqlx::query(beat).execute(&self.pool).await;
    }

    async fn remove(&self) {
        let mut connection = connect(&self.server).await;
        self.pool.close().await;
        self.store.close().await;
        let backends = name(&self.schema, "");
        run(
            &mut connection,
            format!(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE starts_with(application_name, '{backends}')"
            ),
        )
        .await;
        run(
            &mut connection,
            format!("DROP SCHEMA {} CASCADE", self.schema),
        )
        .await;
    }
}

/// A connection that holds a lock.
struct Blocker {
    holder: PgConnection,
    pid: i32,
    /// Looks from outside: inside its transaction the holder sees the same picture for ever.
    looker: PgConnection,
    remove: String,
}

#[async_trait]
impl Obstacle for Blocker {
    async fn blocks_somebody(&mut self) -> bool {
        let waiting: i64 = sqlx::query_scalar(
            "SELECT count(*) FROM pg_stat_activity WHERE $1 = ANY (pg_blocking_pids(pid))",
        )
        .bind(self.pid)
        .fetch_one(&mut self.looker)
        .await
        .unwrap();
        waiting > 0
    }

    async fn remove(mut self: Box<Self>) {
        run(&mut self.holder, self.remove).await;
    }
}
