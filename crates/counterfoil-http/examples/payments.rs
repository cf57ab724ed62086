//! Two endpoints that take effect once for their key.
//!
//! `POST /pay` writes to this database: transactional mode. `POST /charge` calls a payment
//! provider: leased mode, and a check that asks the provider what became of an uncertain charge.
//!
//! ```text
//! cargo run -p counterfoil-http --features sqlite --example payments
//! curl -i 127.0.0.1:8080/pay    -H 'idempotency-key: "a1"' -H 'content-type: application/json' -d '{"account": "bob", "cents": 1250}'
//! curl -i 127.0.0.1:8080/charge -H 'idempotency-key: "b1"' -H 'content-type: application/json' -d '{"account": "bob", "cents": 1250}'
//! ```
//!
//! Send each of them twice: the second answer is the first one's, with `idempotent-replayed: true`.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, Router};
use counterfoil::guard::{Context, Reconciler, Record, Verdict};
use counterfoil::{Counterfoil, Message, Rules, Sqlite};
use counterfoil_core::BoxError;
use counterfoil_core::guard::Snapshot;
use counterfoil_http::{GuardLayer, Policy, Tx};
use serde::{Deserialize, Serialize};
use sqlx::SqlitePool;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode};

#[derive(Serialize, Deserialize)]
struct Pay {
    account: String,
    cents: i64,
}

#[derive(Clone, Serialize, Deserialize)]
struct Receipt {
    number: i64,
    cents: i64,
}

/// The payment, its message and its answer commit together, or not at all.
async fn pay(
    State(cf): State<Counterfoil<Sqlite>>,
    mut tx: Tx<Sqlite>,
    Json(order): Json<Pay>,
) -> Result<Json<Receipt>, Refused> {
    if order.cents <= 0 {
        return Err(Refused::Business("the amount must be positive"));
    }
    let done = sqlx::query("INSERT INTO payments (account, cents) VALUES (?, ?)")
        .bind(&order.account)
        .bind(order.cents)
        .execute(&mut **tx)
        .await?;
    let receipt = Receipt {
        number: done.last_insert_rowid(),
        cents: order.cents,
    };
    let paid =
        Message::json("payment", receipt.number, "Paid", &receipt).map_err(|_| Refused::System)?;
    // It carries the key of this request.
    cf.enqueue(&mut tx, &paid)
        .await
        .map_err(|_| Refused::System)?;
    Ok(Json(receipt))
}

/// The provider is somewhere else: nothing of ours can be rolled back there. So it gets the key,
/// and the guard remembers that it was asked.
async fn charge(
    State(provider): State<Provider>,
    Json(order): Json<Pay>,
) -> Result<Json<Receipt>, Refused> {
    let key = Context::current().ok_or(Refused::System)?;
    let receipt = provider
        .charge(key.key().key(), order.cents)
        .ok_or(Refused::System)?;
    Ok(Json(receipt))
}

/// What may go wrong. A business error (409) is recorded and replayed; an error of the system (500)
/// is rolled back in `pay`, and leaves a charge uncertain.
enum Refused {
    Business(&'static str),
    System,
}

impl From<sqlx::Error> for Refused {
    fn from(_: sqlx::Error) -> Self {
        Refused::System
    }
}

impl IntoResponse for Refused {
    fn into_response(self) -> Response {
        match self {
            Refused::Business(why) => (StatusCode::CONFLICT, why).into_response(),
            Refused::System => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// A provider that remembers what it was asked under which key. Every third answer gets lost.
#[derive(Clone, Default)]
struct Provider(Arc<Mutex<HashMap<String, Receipt>>>);

impl Provider {
    fn charge(&self, key: &str, cents: i64) -> Option<Receipt> {
        let mut charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let number = i64::try_from(charges.len()).ok()? + 1;
        let receipt = Receipt { number, cents };
        charges.insert(key.to_owned(), receipt.clone());
        (number % 3 != 0).then_some(receipt)
    }

    fn find(&self, key: &str) -> Option<Receipt> {
        let charges = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        charges.get(key).cloned()
    }
}

#[async_trait]
impl Reconciler for Provider {
    async fn did_it_happen(&self, record: &Record) -> Result<Verdict, BoxError> {
        Ok(match self.find(record.key.key()) {
            Some(receipt) => Verdict::Happened(Snapshot {
                status: 200,
                headers: vec![("content-type".into(), b"application/json".to_vec())],
                body: Some(serde_json::to_vec(&receipt)?.into()),
            }),
            None => Verdict::DidNotHappen,
        })
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let file = std::env::temp_dir().join("counterfoil-payments.db");
    let options = SqliteConnectOptions::new()
        .filename(&file)
        .create_if_missing(true)
        .journal_mode(SqliteJournalMode::Wal);
    let pool = SqlitePool::connect_with(options).await?;
    sqlx::raw_sql("CREATE TABLE IF NOT EXISTS payments (id INTEGER PRIMARY KEY, account TEXT NOT NULL, cents INTEGER NOT NULL)")
        .execute(&pool)
        .await?;
    let cf = Counterfoil::sqlite(pool).start().await?;
    let provider = Provider::default();

    // In real life the caller is whoever your authentication has found out.
    let guard = cf.guard(Rules::payments())?;
    let paying = Router::new()
        .route("/pay", post(pay))
        .with_state(cf.clone())
        .route_layer(GuardLayer::transactional(guard.clone()).one_caller());

    // Impatient, so that you can watch it: by default it is 5 and 10 minutes.
    let charges = Rules {
        lease: Duration::from_secs(5),
        alert_age: Duration::from_secs(5),
        reconcile_age: Duration::from_secs(10),
        ..Rules::payments()
    };
    let charging = Router::new()
        .route("/charge", post(charge))
        .with_state(provider.clone())
        .route_layer(
            GuardLayer::leased(guard.with_rules(charges.clone())?)
                .one_caller()
                .policy(Policy::new().business_type("charge")?.reconciled()),
        );
    guard
        .reconcile()
        .check("charge", charges, Arc::new(provider))
        .run(Duration::from_secs(2));

    println!("records and payments are in {}", file.display());
    println!("listening on http://127.0.0.1:8080: see the top of this file for what to send");
    let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    axum::serve(listener, paying.merge(charging)).await?;
    Ok(())
}
