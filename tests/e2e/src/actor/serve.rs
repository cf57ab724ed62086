//! A server that takes payments behind the guard.
//!
//! | path | mode | effect |
//! |---|---|---|
//! | `/pay` | transactional | a row, in the guard's transaction |
//! | `/charge` | leased | a row by a statement of its own: the outside world |
//! | `/go` | | whoever stands still goes on, and nobody stands still again |
//! | `/runs` | | how often a handler was begun |
//!
//! A request may ask to stand still at a [`Moment`]: the process says so and waits, to be killed
//! or to be told to go on.

use std::net::Ipv4Addr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::extract::{Request, State};
use axum::middleware::{Next, from_fn};
use axum::response::Response;
use axum::routing::{get, post};
use axum::{Json, Router};
use clap::Args;
use counterfoil::{Guard, Rules};
use counterfoil_core::BoxError;
use counterfoil_core::guard::Key;
use counterfoil_http::{GuardLayer, GuardedKey, Policy, Tx};
use counterfoil_redis_gate::{Options, RedisGate};
use http::{HeaderMap, StatusCode};
use sqlx::Pool;
use tokio::net::TcpListener;
use tokio::sync::watch;

use super::{Where, say};
use crate::guarded::{CHARGE, Effect, Ledger, Moment, PAY, Receipt};

/// The arguments of a guarded server. Their defaults are those of most tests.
#[derive(Debug, Clone, Args)]
pub struct ServeArgs {
    /// Which database.
    #[command(flatten)]
    pub place: Where,
    /// Milliseconds until a silent owner is believed dead.
    #[arg(long)]
    pub lease: u64,
    /// Milliseconds for which answers are kept.
    #[arg(long)]
    pub keep: u64,
    /// Milliseconds for which a duplicate waits.
    #[arg(long)]
    pub wait: u64,
    /// A Redis for the gate.
    #[arg(long)]
    pub redis: Option<String>,
}

impl ServeArgs {
    /// A server with the settings of most tests.
    pub fn new(database: String) -> Self {
        Self {
            place: Where { database },
            lease: 1_000,
            keep: 3_600_000,
            wait: 30_000,
            redis: None,
        }
    }

    /// The command line that gives these arguments.
    pub fn to_args(&self) -> Vec<String> {
        let mut args = vec!["serve".to_owned()];
        let mut add = |name: &str, value: String| args.extend([format!("--{name}"), value]);
        add("database", self.place.database.clone());
        add("lease", self.lease.to_string());
        add("keep", self.keep.to_string());
        add("wait", self.wait.to_string());
        if let Some(redis) = &self.redis {
            add("redis", redis.clone());
        }
        args
    }

    /// The rules of both kinds of business.
    pub fn rules(&self) -> Rules {
        let lease = Duration::from_millis(self.lease);
        Rules {
            lease,
            keep: Duration::from_millis(self.keep),
            wait: Duration::from_millis(self.wait),
            reconcile_age: lease,
            ..Rules::payments()
        }
    }

    fn guard<D: Ledger>(&self, pool: &Pool<D::Sqlx>) -> Result<Guard<D>, BoxError> {
        let guard = Guard::<D>::new(pool, self.rules())?;
        let Some(redis) = &self.redis else {
            return Ok(guard);
        };
        // It waits for Redis however busy the machine is.
        let options = Options {
            patience: Duration::from_secs(20),
            ..Options::default()
        };
        Ok(guard.gate(Arc::new(RedisGate::new(redis, options)?)))
    }
}

pub(super) async fn run(args: ServeArgs) -> Result<(), BoxError> {
    let database = &args.place.database;
    if database.starts_with("sqlite:") {
        serve::<counterfoil::Sqlite>(&args).await
    } else if database.starts_with("mysql:") {
        serve::<counterfoil::MySql>(&args).await
    } else {
        serve::<counterfoil::Postgres>(&args).await
    }
}

async fn serve<D: Ledger>(args: &ServeArgs) -> Result<(), BoxError> {
    let pool = D::connections(&args.place.database)?;
    let guard = args.guard::<D>(&pool)?;
    let shop = Arc::new(Shop::<D> {
        pool,
        open: watch::Sender::new(false),
        runs: AtomicUsize::new(0),
    });
    let pay = guarded(
        Router::new().route(PAY, post(pay::<D>)),
        GuardLayer::transactional(guard.clone())
            .one_caller()
            .policy(policy(PAY)?),
        &shop,
    );
    let charge = guarded(
        Router::new().route(CHARGE, post(charge::<D>)),
        GuardLayer::leased(guard).one_caller().policy(
            policy(CHARGE)?
                    .harmless([StatusCode::SERVICE_UNAVAILABLE])
                    // Another process checks what is uncertain.
                    .reconciled(),
        ),
        &shop,
    );
    let app = Router::new()
        .route("/go", post(go::<D>))
        .route("/runs", get(runs::<D>))
        .merge(pay)
        .merge(charge)
        .with_state(shop);
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    say(&format!("listening {}", listener.local_addr()?.port()));
    axum::serve(listener, app).await?;
    Ok(())
}

fn policy(path: &str) -> Result<Policy, BoxError> {
    Ok(Policy::new().business_type(path.trim_start_matches('/'))?)
}

/// The guard, and a place to stand still on either side of it.
fn guarded<D: Ledger>(
    router: Router<Arc<Shop<D>>>,
    guard: GuardLayer<D>,
    shop: &Arc<Shop<D>>,
) -> Router<Arc<Shop<D>>> {
    let after = |moment: Moment| {
        let shop = Arc::clone(shop);
        from_fn(move |request: Request, next: Next| {
            let shop = Arc::clone(&shop);
            async move {
                let asked = Moment::asked(request.headers());
                let response: Response = next.run(request).await;
                shop.stand_still(asked, moment).await;
                response
            }
        })
    };
    router
        .route_layer(after(Moment::Failed))
        .route_layer(guard)
        .route_layer(after(Moment::Answered))
}

struct Shop<D: Ledger> {
    pool: Pool<D::Sqlx>,
    /// Whether nobody stands still any more.
    open: watch::Sender<bool>,
    runs: AtomicUsize,
}

impl<D: Ledger> Shop<D> {
    async fn stand_still(&self, asked: Option<Moment>, now: Moment) {
        let mut open = self.open.subscribe();
        if asked == Some(now) && !*open.borrow() {
            say(&format!("halted {}", now.name()));
            // The sender lives as long as this shop.
            let _ = open.wait_for(|open| *open).await;
        }
    }

    /// A handler begins.
    async fn begin(&self, asked: Option<Moment>, key: Option<&Key>) -> Effect {
        self.runs.fetch_add(1, Ordering::SeqCst);
        self.stand_still(asked, Moment::Claimed).await;
        Effect::of(key.map_or("", Key::key))
    }
}

async fn pay<D: Ledger>(
    State(shop): State<Arc<Shop<D>>>,
    headers: HeaderMap,
    GuardedKey(key): GuardedKey,
    mut tx: Tx<D>,
) -> Result<Json<Receipt>, StatusCode> {
    let asked = Moment::asked(&headers);
    let effect = shop.begin(asked, key.as_ref()).await;
    D::note(&mut tx, &effect).await.map_err(broken)?;
    shop.stand_still(asked, Moment::Done).await;
    if asked == Some(Moment::Failed) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    Ok(Json(effect.receipt()))
}

async fn charge<D: Ledger>(
    State(shop): State<Arc<Shop<D>>>,
    headers: HeaderMap,
    GuardedKey(key): GuardedKey,
) -> Result<Json<Receipt>, StatusCode> {
    let asked = Moment::asked(&headers);
    let effect = shop.begin(asked, key.as_ref()).await;
    if asked == Some(Moment::Failed) {
        return Err(StatusCode::SERVICE_UNAVAILABLE);
    }
    D::note_outside(&shop.pool, &effect).await.map_err(broken)?;
    shop.stand_still(asked, Moment::Done).await;
    Ok(Json(effect.receipt()))
}

#[expect(clippy::needless_pass_by_value, reason = "for map_err")]
fn broken(error: sqlx::Error) -> StatusCode {
    tracing::error!(%error, "the effect cannot be written");
    StatusCode::INTERNAL_SERVER_ERROR
}

async fn go<D: Ledger>(State(shop): State<Arc<Shop<D>>>) {
    shop.open.send_replace(true);
}

async fn runs<D: Ledger>(State(shop): State<Arc<Shop<D>>>) -> Json<usize> {
    Json(shop.runs.load(Ordering::SeqCst))
}
