//! The tables of the journey: what was sent, and what it did.
//!
//! # Promise
//! For every message there is a row in `j_facts`, written in the transaction that wrote the message.
//! Its number within its aggregate comes from a row that stays locked until that transaction ends,
//! so numbers commit in their order. For everything that took effect there is a row in `j_log`,
//! written in the transaction of the inbox, and nothing keeps a second one from being written.

use serde::{Deserialize, Serialize};
use sqlx::postgres::PgPool;

/// What everybody has at the beginning. More than can be spent.
pub const PLENTY: i64 = 1_000_000;

/// Goods are taken from the stock.
pub const STOCK_TAKEN: &str = "StockTaken";
/// Money goes from one account to another.
pub const TRANSFERRED: &str = "Transferred";
/// Nobody has a handler for this.
pub const UNKNOWN: &str = "Unknown";
/// The handler refuses this for ever.
pub const BROKEN: &str = "Broken";

const TABLES: &str = "\
CREATE TABLE j_counters (aggregate int PRIMARY KEY, version bigint NOT NULL);
CREATE TABLE j_facts (
    aggregate int NOT NULL, version bigint NOT NULL, kind text NOT NULL, amount bigint NOT NULL,
    other int NOT NULL, PRIMARY KEY (aggregate, version)
);
CREATE TABLE j_stock (item int PRIMARY KEY, on_hand bigint NOT NULL);
CREATE TABLE j_accounts (account int PRIMARY KEY, balance bigint NOT NULL);
CREATE TABLE j_log (
    n bigserial PRIMARY KEY, consumer text NOT NULL, process text NOT NULL, aggregate int NOT NULL,
    version bigint NOT NULL, kind text NOT NULL
);";

/// What a message says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// What it is about: an item, or the account that pays.
    pub aggregate: i32,
    /// The number within the aggregate.
    pub version: i64,
    /// How many, or how much.
    pub amount: i64,
    /// The account that gets it.
    pub other: i32,
}

/// Makes the tables for so many aggregates: even ones are items, odd ones accounts.
pub async fn found(pool: &PgPool, aggregates: i32) {
    sqlx::raw_sql(TABLES).execute(pool).await.unwrap();
    for fill in [
        "INSERT INTO j_counters SELECT a, 0 FROM generate_series(0, $1 - 1) AS a",
        "INSERT INTO j_stock SELECT a, 1000000 FROM generate_series(0, $1 - 1, 2) AS a",
        // Each account has a partner, which only gets and never pays.
        "INSERT INTO j_accounts SELECT a, 1000000 FROM generate_series(1, 2 * $1, 2) AS a",
    ] {
        sqlx::query(fill)
            .bind(aggregates)
            .execute(pool)
            .await
            .unwrap();
    }
}

/// How many messages were committed.
pub async fn committed(pool: &PgPool) -> sqlx::Result<i64> {
    sqlx::query_scalar("SELECT sum(version)::bigint FROM j_counters")
        .fetch_one(pool)
        .await
}
