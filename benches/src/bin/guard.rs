//! `cargo xtask bench guard`: what the guard costs an HTTP endpoint, next to the same endpoint
//! without it, and next to the `axum-idempotent` crate, which remembers answers in the memory of the
//! process: they are gone with it, and concurrent duplicates run twice.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::post;
use axum::{Json, Router};
use axum_idempotent::{IdempotentLayer, IdempotentOptions};
use clap::{Parser, ValueEnum};
use counterfoil::{Database, Guard, Rules};
use counterfoil_benches::endpoint::{Load, Served};
use counterfoil_benches::{Report, median};
use counterfoil_core::store::Store as _;
use counterfoil_http::{GuardLayer, Tx};
use counterfoil_redis_gate::RedisGate;
use ruts::store::Ttl;
use ruts::store::moka::MokaStore;
use ruts::{CookieOptions, Session, SessionLayer};
use serde_json::{Value, json};
use sqlx::postgres::{PgPool, PgPoolOptions};
use sqlx::sqlite::{
    SqliteConnectOptions, SqliteJournalMode, SqlitePool, SqlitePoolOptions, SqliteSynchronous,
};
use tower_cookies::CookieManagerLayer;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Kind {
    Postgres,
    Sqlite,
}

/// Measures an endpoint bare and guarded.
#[derive(Parser)]
struct Options {
    /// The database to measure.
    #[arg(long, value_enum, default_value = "postgres")]
    store: Kind,
    /// Print one JSON object as the last line.
    #[arg(long)]
    json: bool,
    /// Shorter runs; ratios become rough.
    #[arg(long)]
    quick: bool,
    /// Rounds of all endpoints, one after the other; the medians are reported.
    #[arg(long, default_value_t = 5)]
    runs: usize,
    /// Only these endpoints, with commas: `bare_select`, `replay`, `bare_insert`, `first` (on
    /// PostgreSQL with `back_to_back`), `pooled_first` (without), `leased`, `gated_*` (with Redis) or
    /// `crate_*` (axum-idempotent).
    #[arg(long, value_delimiter = ',')]
    only: Vec<String>,
}

const CONNECTIONS: usize = 16;
const REPLAYED_KEYS: u64 = 1_000;
/// With it the endpoint is also measured behind the gate.
const REDIS: &str = "COUNTERFOIL_TEST_REDIS_URL";

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_max_level(tracing_subscriber::filter::LevelFilter::ERROR)
        .init();
    let options = Options::parse();
    let report = match options.store {
        Kind::Postgres => postgres(&options).await?,
        Kind::Sqlite => sqlite(&options).await?,
    };
    if options.json {
        println!("{}", report.json());
    }
    Ok(())
}

macro_rules! endpoints {
    ($module:ident, $database:ident, $pool:ty, $fast:expr, $begin:literal, $select:literal, $insert:literal) => {
        mod $module {
            use super::*;

            pub(crate) fn router(pool: &$pool) -> anyhow::Result<Router> {
                let guard = Guard::<counterfoil::$database>::new(pool, Rules::default())?;
                let pooled = Router::new()
                    .route("/pooled-first", post(in_tx))
                    .route_layer(GuardLayer::transactional(guard.clone()).one_caller());
                let fast: fn(Guard<counterfoil::$database>) -> _ = $fast;
                let guard = fast(guard);
                let first = Router::new()
                    .route("/first", post(in_tx))
                    .route("/replay", post(in_tx))
                    .route_layer(GuardLayer::transactional(guard.clone()).one_caller());
                let leased = Router::new()
                    .route("/leased", post(insert))
                    .route_layer(GuardLayer::leased(guard.clone()).one_caller());
                let mut all = Router::new()
                    .route("/bare-select", post(select))
                    .route("/bare-insert", post(insert))
                    .merge(first)
                    .merge(pooled)
                    .merge(leased)
                    .merge(remembered(
                        Router::new()
                            .route("/crate-first", post(insert))
                            .route("/crate-replay", post(insert)),
                    ));
                if let Ok(redis) = std::env::var(REDIS) {
                    let gate = RedisGate::new(&redis, counterfoil_redis_gate::Options::default())?;
                    let gated = guard.gate(Arc::new(gate));
                    all = all.merge(
                        Router::new()
                            .route("/gated-first", post(in_tx))
                            .route("/gated-replay", post(in_tx))
                            .route_layer(GuardLayer::transactional(gated).one_caller()),
                    );
                }
                Ok(all.with_state(pool.clone()))
            }

            async fn select(
                State(pool): State<$pool>,
                Json(_): Json<Value>,
            ) -> Result<Json<Value>, Failed> {
                let row = sqlx::query_as($select).bind(1_i64).fetch_one(&pool);
                let (amount,): (i64,) = row.await.map_err(failed)?;
                Ok(Json(json!({ "amount": amount })))
            }

            async fn insert(State(pool): State<$pool>, Json(body): Json<Value>) -> Result<Json<Value>, Failed> {
                let mut tx = pool.begin_with($begin).await.map_err(failed)?;
                write(&mut tx, &body).await?;
                tx.commit().await.map_err(failed)?;
                Ok(Json(json!({ "paid": true })))
            }

            async fn in_tx(
                mut tx: Tx<counterfoil::$database>,
                Json(body): Json<Value>,
            ) -> Result<Json<Value>, Failed> {
                write(&mut tx, &body).await?;
                Ok(Json(json!({ "paid": true })))
            }

            async fn write(
                tx: &mut sqlx::Transaction<'static, <counterfoil::$database as Database>::Sqlx>,
                body: &Value,
            ) -> Result<(), Failed> {
                sqlx::query($insert)
                    .bind("somebody")
                    .bind(body["amount"].as_i64())
                    .execute(&mut **tx)
                    .await
                    .map_err(failed)?;
                Ok(())
            }
        }
    };
}

endpoints!(
    on_postgres,
    Postgres,
    PgPool,
    Guard::back_to_back,
    "BEGIN",
    "SELECT amount FROM business WHERE id = $1",
    "INSERT INTO business (name, amount) VALUES ($1, $2)"
);
endpoints!(
    on_sqlite,
    Sqlite,
    SqlitePool,
    |guard| guard,
    "BEGIN IMMEDIATE",
    "SELECT amount FROM business WHERE id = ?",
    "INSERT INTO business (name, amount) VALUES (?, ?)"
);

/// The same by the `axum-idempotent` crate. It keeps answers in a session, which `/session` begins.
fn remembered<S: Clone + Send + Sync + 'static>(routes: Router<S>) -> Router<S> {
    let store = Arc::new(MokaStore::builder().build());
    let cookie = CookieOptions::build()
        .name("session")
        .max_age(3_600)
        .path("/");
    let options =
        IdempotentOptions::new(3_600).use_idempotency_key_header(Some("idempotency-key"), true);
    routes
        .route_layer(IdempotentLayer::<MokaStore>::new(options))
        .route("/session", post(begin_session))
        .layer(SessionLayer::new(store).with_cookie_options(cookie))
        .layer(CookieManagerLayer::new())
}

/// What an endpoint could not do. The run ends with it.
type Failed = (StatusCode, String);

#[allow(clippy::needless_pass_by_value, reason = "it is handed to map_err")]
fn failed(error: sqlx::Error) -> Failed {
    (StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

async fn begin_session(session: Session<MokaStore>) -> Result<(), String> {
    let hour = Ttl::new(3_600).map_err(|e| e.to_string())?;
    session
        .set("who", &"somebody", hour, None)
        .await
        .map(drop)
        .map_err(|e| e.to_string())
}

async fn postgres(options: &Options) -> anyhow::Result<Report> {
    let url = std::env::var("COUNTERFOIL_TEST_POSTGRES_URL").map_err(|_| {
        anyhow::anyhow!("set COUNTERFOIL_TEST_POSTGRES_URL, or run `cargo xtask bench guard`")
    })?;
    let joint = if url.contains('?') { '&' } else { '?' };
    let admin = PgPool::connect(&url).await?;
    sqlx::raw_sql(
        "DROP SCHEMA IF EXISTS counterfoil_bench CASCADE; CREATE SCHEMA counterfoil_bench",
    )
    .execute(&admin)
    .await?;
    let url = format!("{url}{joint}options=-c%20search_path%3Dcounterfoil_bench");
    let pool = PgPoolOptions::new()
        .max_connections(u32::try_from(CONNECTIONS)?)
        .test_before_acquire(false)
        .connect(&url)
        .await?;
    counterfoil_postgres::PostgresStore::connect(&url)?
        .migrate()
        .await?;
    sqlx::raw_sql(
        "CREATE TABLE business (id bigserial PRIMARY KEY, name text NOT NULL, amount bigint NOT NULL);
         INSERT INTO business (name, amount) VALUES ('somebody', 7)",
    )
    .execute(&pool)
    .await?;
    measure(options, &Served::start(on_postgres::router(&pool)?).await?).await
}

async fn sqlite(options: &Options) -> anyhow::Result<Report> {
    let directory = tempfile::tempdir()?;
    let file = SqliteConnectOptions::new()
        .filename(directory.path().join("bench.db"))
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(Duration::from_secs(30));
    let pool = SqlitePoolOptions::new()
        .max_connections(u32::try_from(CONNECTIONS)?)
        .test_before_acquire(false)
        .connect_with(file)
        .await?;
    counterfoil_sqlite::SqliteStore::from_pool(&pool)?
        .migrate()
        .await?;
    sqlx::raw_sql(
        "CREATE TABLE business (id integer PRIMARY KEY, name text NOT NULL, amount integer NOT NULL);
         INSERT INTO business (name, amount) VALUES ('somebody', 7)",
    )
    .execute(&pool)
    .await?;
    measure(options, &Served::start(on_sqlite::router(&pool)?).await?).await
}

async fn measure(options: &Options, served: &Served) -> anyhow::Result<Report> {
    const ALL: [(&str, &str, bool); 10] = [
        ("bare_select", "/bare-select", false),
        ("replay", "/replay", true),
        ("bare_insert", "/bare-insert", false),
        ("first", "/first", false),
        ("pooled_first", "/pooled-first", false),
        ("leased", "/leased", false),
        ("gated_replay", "/gated-replay", true),
        ("gated_first", "/gated-first", false),
        ("crate_replay", "/crate-replay", true),
        ("crate_first", "/crate-first", false),
    ];
    let ways: Vec<_> = ALL
        .into_iter()
        .filter(|(name, ..)| {
            options.only.is_empty() || options.only.iter().any(|only| only == name)
        })
        .filter(|(name, ..)| !name.starts_with("gated") || std::env::var_os(REDIS).is_some())
        .filter(|(name, ..)| !name.starts_with("pooled") || options.store == Kind::Postgres)
        .collect();
    anyhow::ensure!(!ways.is_empty(), "--only takes names of endpoints");
    let time = Duration::from_secs(if options.quick { 1 } else { 4 });
    let runs = if options.quick {
        1
    } else {
        options.runs.max(1)
    };
    let cookie = served.cookie("/session").await?;
    eprintln!("warming up");
    for &(_, path, replay) in &ways {
        let keys = replay.then_some(REPLAYED_KEYS);
        served
            .post(path, keys, &cookie, CONNECTIONS, Duration::from_secs(1))
            .await?;
    }
    let mut loads: Vec<Vec<Load>> = vec![Vec::new(); ways.len()];
    for run in 1..=runs {
        eprint!("round {run} of {runs}:");
        for (way, (name, path, replay)) in ways.iter().enumerate() {
            let keys = replay.then_some(REPLAYED_KEYS);
            let load = served.post(path, keys, &cookie, CONNECTIONS, time).await?;
            eprint!(" {name} {:.0}/s", load.rps);
            loads[way].push(load);
        }
        eprintln!();
    }
    let mut report = Report::default();
    let middle = |way: usize, part: fn(&Load) -> f64| {
        median(&mut loads[way].iter().map(part).collect::<Vec<_>>())
    };
    for (way, (name, _, _)) in ways.iter().enumerate() {
        report.put(&format!("{name}_rps"), middle(way, |l| l.rps));
        report.put(&format!("{name}_p99_ms"), middle(way, |l| l.p99_ms));
    }
    let rps = |name| {
        let way = ways.iter().position(|way| way.0 == name)?;
        Some(middle(way, |l: &Load| l.rps))
    };
    for (ratio, name, bare) in [
        ("replay_ratio", "replay", "bare_select"),
        ("first_ratio", "first", "bare_insert"),
        ("pooled_first_ratio", "pooled_first", "bare_insert"),
        ("leased_ratio", "leased", "bare_insert"),
    ] {
        if let (Some(guarded), Some(bare)) = (rps(name), rps(bare)) {
            report.put(ratio, guarded / bare);
        }
    }
    Ok(report)
}
