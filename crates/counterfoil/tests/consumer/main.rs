//! A consumer on the facade, on every database.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

use std::collections::HashMap;
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil::desk::{Entry, Filter};
use counterfoil::inbox::{Builder, Consumer, Dedup, Event, HandleError, Mapping, Poison};
use counterfoil::{Backoff, Code, Counterfoil, Database, Error, OnPark, Settings, Tx};
use counterfoil_testkit::memory::Topic;
use serde::Deserialize;
use sqlx::{Pool, Transaction};

mod dead_letters;
mod gapless;
mod turns;

use dead_letters::*;
use gapless::*;
use turns::*;

const LIMIT: Duration = Duration::from_secs(60);

struct Scratch<D: Database> {
    pool: Pool<D::Sqlx>,
    cf: Counterfoil<D>,
    topic: Topic,
    _folder: Option<tempfile::TempDir>,
}

trait Shop: Database + Sized {
    fn scratch() -> impl Future<Output = Option<Scratch<Self>>>;
    /// Adds one effect.
    fn note(
        tx: &mut Transaction<'static, Self::Sqlx>,
        subject: &str,
        version: i64,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// A statement that fails, whose error is swallowed.
    fn stumble(tx: &mut Transaction<'static, Self::Sqlx>) -> impl Future<Output = ()> + Send;
    /// Fails because the database has no memory left, where a statement can do that.
    fn starve(
        tx: &mut Transaction<'static, Self::Sqlx>,
    ) -> impl Future<Output = sqlx::Result<()>> + Send;
    /// Another engine on the same database, which has this much patience.
    fn with_patience(
        pool: &Pool<Self::Sqlx>,
        patience: Duration,
    ) -> impl Future<Output = Counterfoil<Self>>;
    /// The effects in the order in which they happened.
    fn effects(pool: &Pool<Self::Sqlx>) -> impl Future<Output = Vec<(String, i64)>>;
    /// The rows of the ledger.
    fn ledger(pool: &Pool<Self::Sqlx>) -> impl Future<Output = i64>;
}

macro_rules! shop {
    ($database:ident, $module:ident, $key:literal, $values:literal, $starve:literal, $begin:ident, $open:expr) => {
        impl Shop for counterfoil::$database {
            async fn scratch() -> Option<Scratch<Self>> {
                let (pool, folder): (Pool<Self::Sqlx>, _) = ($open)().await?;
                let sql = concat!(
                    "CREATE TABLE effects (n ",
                    $key,
                    ", subject varchar(50) NOT NULL, version bigint NOT NULL)"
                );
                sqlx::raw_sql(sql).execute(&pool).await.unwrap();
                Some(Scratch {
                    cf: Self::with_patience(&pool, Settings::default().patience).await,
                    pool,
                    topic: Topic::new(),
                    _folder: folder,
                })
            }

            async fn note(
                tx: &mut Transaction<'static, Self::Sqlx>,
                subject: &str,
                version: i64,
            ) -> sqlx::Result<()> {
                let sql = concat!("INSERT INTO effects (subject, version) VALUES ", $values);
                let insert = sqlx::query(sql).bind(subject).bind(version);
                insert.execute(&mut **tx).await.map(drop)
            }

            async fn stumble(tx: &mut Transaction<'static, Self::Sqlx>) {
                let wrong = sqlx::query("SELECT * FROM no_such_table");
                assert!(wrong.execute(&mut **tx).await.is_err());
            }

            async fn starve(tx: &mut Transaction<'static, Self::Sqlx>) -> sqlx::Result<()> {
                sqlx::raw_sql($starve).execute(&mut **tx).await?;
                Err(sqlx::Error::PoolTimedOut)
            }

            async fn with_patience(
                pool: &Pool<Self::Sqlx>,
                patience: Duration,
            ) -> Counterfoil<Self> {
                let settings = Settings {
                    poll: Duration::from_millis(20),
                    patience,
                    ..Settings::default()
                };
                let cf = Counterfoil::$begin(pool.clone()).settings(settings);
                cf.start().await.unwrap()
            }

            async fn effects(pool: &Pool<Self::Sqlx>) -> Vec<(String, i64)> {
                let sql = "SELECT subject, version FROM effects ORDER BY n";
                sqlx::query_as(sql).fetch_all(pool).await.unwrap()
            }

            async fn ledger(pool: &Pool<Self::Sqlx>) -> i64 {
                let sql = "SELECT count(*) FROM counterfoil_inbox";
                sqlx::query_scalar(sql).fetch_one(pool).await.unwrap()
            }
        }

        mod $module {
            use super::*;

            macro_rules! test {
                ($name:ident) => {
                    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                    async fn $name() {
                        if let Some(scratch) = counterfoil::$database::scratch().await {
                            let run = super::$name(scratch);
                            tokio::time::timeout(LIMIT, run).await.unwrap();
                        }
                    }
                };
            }
            test!(every_message_takes_effect_once_in_order_whatever_is_repeated);
            test!(a_failing_message_is_tried_again_and_only_its_aggregate_waits);
            test!(a_handler_that_the_database_does_not_serve_holds_back_its_aggregate_only);
            test!(after_the_patience_a_handler_that_the_database_does_not_serve_is_parked);
            test!(at_the_limit_it_is_parked_and_a_redrive_lets_the_others_go_on);
            test!(what_can_never_pass_is_parked_once_and_holds_nobody_else_up);
            test!(control_characters_in_names_are_parked_with_a_reason);
            test!(an_old_version_that_was_never_processed_is_parked_and_can_be_forced);
            test!(the_same_version_is_a_repeat_when_versions_are_the_keys);
            test!(poison_goes_to_the_dead_letters_when_asked_to);
            test!(a_handler_that_spoils_its_transaction_is_a_failure_and_not_an_effect);
            test!(a_handler_can_park_a_message_and_a_panic_is_only_a_failure);
            test!(what_a_handler_enqueues_commits_with_its_message);
            test!(what_is_received_again_and_again_is_stored_before_it_is_tried);
            test!(a_consumer_that_cannot_work_says_why);
            test!(when_too_much_is_put_off_the_broker_keeps_the_rest);
            test!(two_consumers_do_not_share_what_they_have_processed);
            test!(a_stop_finishes_what_has_begun);
            test!(versions_in_any_order_are_applied_one_after_the_other);
            test!(a_version_whose_predecessor_does_not_come_is_parked_and_can_be_forced);
            test!(events_that_are_left_alone_leave_no_gap);
            test!(what_the_broker_has_given_up_is_parked_once_and_redriven);
            test!(a_dead_letter_holds_nobody_up_and_never_goes_back);
        }
    };
}

#[cfg(feature = "sqlite")]
shop!(
    Sqlite,
    sqlite_,
    "INTEGER PRIMARY KEY AUTOINCREMENT",
    "(?, ?)",
    "SELECT 1",
    sqlite,
    async || {
        let folder = tempfile::tempdir().unwrap();
        let options = sqlx::sqlite::SqliteConnectOptions::new()
            .filename(folder.path().join("shop.db"))
            .create_if_missing(true)
            .journal_mode(sqlx::sqlite::SqliteJournalMode::Wal)
            .busy_timeout(Duration::from_secs(20));
        let pool = sqlx::SqlitePool::connect_with(options).await.unwrap();
        Some((pool, Some(folder)))
    }
);

#[cfg(feature = "postgres")]
shop!(
    Postgres,
    postgres_,
    "bigserial PRIMARY KEY",
    "($1, $2)",
    "DO $$ BEGIN RAISE EXCEPTION 'out of memory' USING ERRCODE = '53200'; END $$",
    postgres,
    async || {
        let server = counterfoil_testkit::server::postgres()?;
        let schema = format!("consumer_{:x}", fastrand::u64(..));
        let admin = sqlx::PgPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE SCHEMA {schema}")))
            .execute(&admin)
            .await
            .unwrap();
        admin.close().await;
        let joint = if server.contains('?') { '&' } else { '?' };
        let url = format!("{server}{joint}options=-c%20search_path%3D{schema}");
        Some((sqlx::PgPool::connect(&url).await.unwrap(), None))
    }
);

#[cfg(feature = "mysql")]
shop!(
    MySql,
    mysql_,
    "bigint AUTO_INCREMENT PRIMARY KEY",
    "(?, ?)",
    "SIGNAL SQLSTATE 'HY001' SET MYSQL_ERRNO = 1037, MESSAGE_TEXT = 'Out of memory'",
    mysql,
    async || {
        let server = counterfoil_testkit::server::mysql()?;
        let schema = format!("consumer_{:x}", fastrand::u64(..));
        let admin = sqlx::MySqlPool::connect(&server).await.unwrap();
        sqlx::query(sqlx::AssertSqlSafe(format!("CREATE DATABASE {schema}")))
            .execute(&admin)
            .await
            .unwrap();
        let options = admin.connect_options().as_ref().clone().database(&schema);
        admin.close().await;
        Some((sqlx::MySqlPool::connect_with(options).await.unwrap(), None))
    }
);

/// What the handler is told to do.
#[derive(Deserialize)]
struct Order {
    /// Fails so often before it succeeds.
    #[serde(default)]
    failures: u32,
    #[serde(default)]
    act: String,
}

/// How often each message was tried.
type Tries = Arc<Mutex<HashMap<String, u32>>>;

async fn handle<D: Shop>(
    mut tx: Tx<D>,
    event: Event<Order>,
    tries: Tries,
) -> Result<(), HandleError> {
    let subject = event.aggregate.as_ref().map_or("", |a| &a.id).to_owned();
    let version = event.version.unwrap_or_default();
    let tried = {
        let mut tries = tries.lock().unwrap();
        let n = tries.entry(event.id.to_string()).or_default();
        *n += 1;
        *n
    };
    D::note(&mut tx, &subject, version).await?;
    match event.content.act.as_str() {
        "park" if tried <= 2 => return Err(HandleError::Park("a person must look".into())),
        "panic" if tried <= event.content.failures => panic!("on purpose"),
        "spoil" if tried <= event.content.failures => {
            D::stumble(&mut tx).await;
            return Ok(());
        }
        "keep" if tried <= event.content.failures => {
            // Somebody who uses it for a while after the handler has returned.
            tokio::spawn(async move {
                for n in 0..100 {
                    tokio::task::yield_now().await;
                    if n == 50 {
                        let _ = D::note(&mut tx, "late", 1).await;
                    }
                }
            });
            return Ok(());
        }
        _ => {}
    }
    match tried <= event.content.failures {
        true => Err(HandleError::failed("not yet")),
        false => Ok(()),
    }
}

fn quick() -> Backoff {
    let (base, cap) = (Duration::from_millis(5), Duration::from_millis(20));
    Backoff::new(base, cap, 4).unwrap()
}

fn envelope<'a>(
    id: &'a str,
    event_type: &'a str,
    subject: &'a str,
    version: &'a str,
) -> [(&'a str, &'a str); 7] {
    [
        ("ce_specversion", "1.0"),
        ("ce_id", id),
        ("ce_source", "shop"),
        ("ce_type", event_type),
        ("ce_subject", subject),
        ("ce_aggregateversion", version),
        ("content-type", "application/json"),
    ]
}

impl<D: Shop> Scratch<D> {
    fn builder(&self, name: &str) -> (Builder<D>, Tries) {
        let tries = Tries::default();
        let told = Arc::clone(&tries);
        let handler = move |tx, event| handle::<D>(tx, event, Arc::clone(&told));
        let builder = self.cf.consumer(name, self.topic.clone());
        (builder.on("Paid", handler).backoff(quick()), tries)
    }

    async fn consumer(&self) -> (Consumer, Tries) {
        let (builder, tries) = self.builder("stock");
        (builder.start().await.unwrap(), tries)
    }

    fn send(&self, id: &str, subject: &str, version: i64, body: &str) -> u64 {
        let version = version.to_string();
        let headers = envelope(id, "Paid", subject, &version);
        self.topic.send(&headers, body.as_bytes())
    }

    async fn parked(&self) -> Vec<Entry> {
        self.cf.desk().parked(&Filter::default()).await.unwrap()
    }

    async fn parked_when(&self, n: usize) -> Vec<Entry> {
        let mut found = Vec::new();
        eventually("parked", async || {
            found = self.parked().await;
            found.len() == n
        })
        .await;
        found
    }

    async fn settled(&self) {
        self.topic.drained().await;
        eventually("the outbox is empty", async || {
            let waiting = self.cf.desk().outbox(&Filter::default()).await.unwrap();
            waiting.is_empty()
        })
        .await;
    }
}

async fn eventually(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let mut ticks = tokio::time::interval(Duration::from_millis(5));
    let found = tokio::time::timeout(LIMIT / 2, async {
        while !condition().await {
            ticks.tick().await;
        }
    });
    assert!(found.await.is_ok(), "waited in vain: {what}");
}

fn effects(list: &[(&str, i64)]) -> Vec<(String, i64)> {
    list.iter().map(|(s, v)| ((*s).to_owned(), *v)).collect()
}

async fn every_message_takes_effect_once_in_order_whatever_is_repeated<D: Shop>(t: Scratch<D>) {
    let (consumer, tries) = t.consumer().await;
    let (mut rng, mut sent) = (fastrand::Rng::with_seed(7), 0);
    for version in 1..=20 {
        for subject in 0..15 {
            let id = format!("{subject}-{version}");
            let failures = rng.u32(0..20) / 19;
            let body = format!("{{\"failures\": {failures}}}");
            t.send(&id, &subject.to_string(), version, &body);
            sent += 1;
            if rng.bool() {
                t.send(&id, &subject.to_string(), version, &body);
            }
        }
        if version % 6 == 0 {
            t.topic.break_off();
        }
    }
    t.settled().await;

    let found = D::effects(&t.pool).await;
    assert_eq!(found.len(), sent);
    for subject in 0..15 {
        let of: Vec<i64> = found
            .iter()
            .filter(|(s, _)| *s == subject.to_string())
            .map(|(_, v)| *v)
            .collect();
        assert_eq!(of, (1..=20).collect::<Vec<i64>>(), "{subject}");
    }
    assert_eq!(D::ledger(&t.pool).await, i64::try_from(sent).unwrap());
    assert_eq!(tries.lock().unwrap().len(), sent);
    assert!(t.topic.received() > sent as u64, "nothing was repeated");
    assert_eq!(t.parked().await.len(), 0);
    consumer.stop().await;
}

async fn at_the_limit_it_is_parked_and_a_redrive_lets_the_others_go_on<D: Shop>(t: Scratch<D>) {
    let (consumer, tries) = t.consumer().await;
    t.send("a1", "a", 1, r#"{"failures": 4}"#);
    t.send("a2", "a", 2, "{}");
    let parked = t.parked_when(1).await;
    t.topic.drained().await;

    assert_eq!(parked[0].code.as_deref(), Some("TASK_FAILED"));
    assert_eq!(parked[0].attempts, 4);
    assert_eq!(parked[0].queue, "inbox:stock");
    assert_eq!(D::effects(&t.pool).await, [], "a2 waits");
    let detail = t.cf.desk().show(&parked[0].id).await.unwrap().unwrap();
    assert!(
        detail.headers.unwrap().contains("memory@1"),
        "where it stood"
    );

    // A repeat of what is parked, and of what waits, changes nothing.
    t.send("a1", "a", 1, r#"{"failures": 4}"#);
    t.send("a2", "a", 2, "{}");
    t.topic.drained().await;
    let ids = [parked[0].id.clone()];
    t.cf.desk().redrive(&ids, false, "me").await.unwrap();
    t.settled().await;

    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1), ("a", 2)]));
    assert_eq!(tries.lock().unwrap().values().sum::<u32>(), 6);
    consumer.stop().await;
}

async fn what_can_never_pass_is_parked_once_and_holds_nobody_else_up<D: Shop>(t: Scratch<D>) {
    let (consumer, _) = t.consumer().await;
    let json = ("content-type", "application/json");
    for _ in 0..2 {
        t.topic
            .send(&[("ce_id", "1"), ("ce_type", "Shipped"), json], b"{}");
        t.topic
            .send(&[("ce_id", "2"), ("ce_type", "Paid"), json], b"{");
        t.topic
            .send(&[("ce_id", "3"), ("ce_type", "Paid"), json], b"7");
    }
    let unnamed = t.topic.send(&[("ce_type", "Paid"), json], b"{}");
    t.send("good", "a", 1, "{}");
    let parked = t.parked_when(4).await;
    t.topic.drained().await;
    t.topic.repeat(unnamed);

    let mut codes: Vec<_> = parked.iter().filter_map(|p| p.code.clone()).collect();
    codes.sort();
    let wrong = "VALIDATION_ERROR";
    assert_eq!(codes, ["UNKNOWN_TYPE", wrong, wrong, wrong]);
    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1)]));
    assert_eq!(t.topic.dead(), []);
    consumer.stop().await;
}

async fn an_old_version_that_was_never_processed_is_parked_and_can_be_forced<D: Shop>(
    t: Scratch<D>,
) {
    let (consumer, _) = t.consumer().await;
    t.send("a5", "a", 5, "{}");
    t.topic.drained().await;
    t.send("a3", "a", 3, "{}");
    t.send("a5", "a", 5, "{}");
    t.send("a6", "a", 6, "{}");
    let parked = t.parked_when(1).await;
    t.settled().await;

    assert_eq!(parked[0].code.as_deref(), Some("VERSION_CONFLICT"));
    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 5), ("a", 6)]));
    let ids = [parked[0].id.clone()];
    let refused = t.cf.desk().redrive(&ids, false, "me").await.unwrap();
    assert_eq!((refused.redriven.len(), refused.refused.len()), (0, 1));
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    t.settled().await;
    eventually("it is applied", async || {
        D::effects(&t.pool).await.len() == 3
    })
    .await;

    t.send("a4", "a", 4, "{}");
    let parked = t.parked_when(1).await;
    assert!(parked[0].error.as_ref().unwrap().contains("version 6"));
    consumer.stop().await;
}

async fn the_same_version_is_a_repeat_when_versions_are_the_keys<D: Shop>(t: Scratch<D>) {
    let mapping = Mapping {
        dedup: Dedup::Version,
        ..Mapping::default()
    };
    let (builder, _) = t.builder("stock");
    let consumer = builder.mapping(mapping).start().await.unwrap();
    t.send("x", "a", 1, "{}");
    t.send("y", "a", 1, "{}");
    t.send("z", "a", 2, "{}");
    t.settled().await;

    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1), ("a", 2)]));
    consumer.stop().await;
}

async fn control_characters_in_names_are_parked_with_a_reason<D: Shop>(t: Scratch<D>) {
    let (consumer, _) = t.consumer().await;
    for _ in 0..2 {
        t.send("nul", "4\u{0}2", 1, "{}");
        t.send("escape", "\u{1b}[2J", 1, "{}");
        let odd = envelope("line", "Pa\nid", "a", "1");
        t.topic.send(&odd, b"{}");
        let json = ("content-type", "application/json");
        let key = ("x-bin", "a\u{0}b");
        let fine = [("ce_id", "fine"), ("ce_type", "Paid"), json, key];
        t.topic.send(&fine, b"{}");
    }
    t.send("good", "g", 1, "{}");
    let parked = t.parked_when(3).await;
    t.topic.drained().await;

    for entry in &parked {
        assert_eq!(entry.code.as_deref(), Some("VALIDATION_ERROR"));
        let why = entry.error.as_deref().unwrap_or_default();
        assert!(
            why.contains("control character") || why.contains("odd"),
            "{why}"
        );
    }
    assert_eq!(D::effects(&t.pool).await.len(), 2, "the rest goes on");
    consumer.stop().await;
}

async fn poison_goes_to_the_dead_letters_when_asked_to<D: Shop>(t: Scratch<D>) {
    use counterfoil::source::Source as _;
    let (builder, _) = t.builder("stock");
    let odd = t.topic.send(&[("ce_id", "1"), ("ce_type", "Odd")], b"{}");
    for _ in 0..2 {
        let mut dies = t.topic.subscribe().await.unwrap();
        assert_eq!(dies.receive(1).await.unwrap().len(), 1);
    }
    let consumer = builder.poison(Poison::DeadLetter).start().await.unwrap();
    t.send("good", "a", 1, "{}");
    t.settled().await;

    let dead = t.topic.dead();
    assert_eq!((dead.len(), dead[0].0), (1, odd));
    assert_eq!(dead[0].1.code, Code::UNKNOWN_TYPE);
    assert_eq!(dead[0].1.attempts, 3, "all receptions count");
    assert_eq!((t.parked().await.len(), D::ledger(&t.pool).await), (0, 1));
    consumer.stop().await;
}

async fn a_handler_that_spoils_its_transaction_is_a_failure_and_not_an_effect<D: Shop>(
    t: Scratch<D>,
) {
    let (consumer, tries) = t.consumer().await;
    t.send("k", "k", 1, r#"{"act": "keep", "failures": 1}"#);
    t.send("s", "s", 1, r#"{"act": "spoil", "failures": 2}"#);
    t.send("o", "o", 1, "{}");
    t.settled().await;

    let mut found = D::effects(&t.pool).await;
    found.sort();
    // Where a failed statement does not spoil a transaction the handler was right to go on.
    assert_eq!(found, effects(&[("k", 1), ("o", 1), ("s", 1)]));
    assert!(tries.lock().unwrap().values().sum::<u32>() >= 4);
    consumer.stop().await;
}

async fn a_handler_can_park_a_message_and_a_panic_is_only_a_failure<D: Shop>(t: Scratch<D>) {
    let (consumer, _) = t.consumer().await;
    t.send("p", "p", 1, r#"{"act": "park"}"#);
    t.send("q", "q", 1, r#"{"act": "panic", "failures": 2}"#);
    let parked = t.parked_when(1).await;
    t.settled().await;

    assert_eq!(parked[0].code.as_deref(), Some("PARKED_BY_HANDLER"));
    assert_eq!(D::effects(&t.pool).await, effects(&[("q", 1)]));
    let ids = [parked[0].id.clone()];
    let refused = t.cf.desk().redrive(&ids, false, "me").await.unwrap();
    assert_eq!(refused.refused.len(), 1, "a person has to confirm it");
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    eventually("it passes", async || D::effects(&t.pool).await.len() == 2).await;
    consumer.stop().await;
}

async fn what_a_handler_enqueues_commits_with_its_message<D: Shop>(t: Scratch<D>) {
    let cf = t.cf.clone();
    let forward = move |mut tx: Tx<D>, event: Event<Order>| {
        let cf = cf.clone();
        async move {
            let next = counterfoil::Message::json("stock", event.id, "Taken", &1)?.queue("next");
            cf.enqueue(&mut tx, &next).await?;
            match event.content.failures {
                0 => Ok(()),
                _ => Err(HandleError::failed("no")),
            }
        }
    };
    let builder = t.cf.consumer("stock", t.topic.clone());
    let builder = builder.on("Paid", forward).backoff(quick());
    let consumer = builder.start().await.unwrap();
    t.send("a", "a", 1, "{}");
    t.send("b", "b", 1, r#"{"failures": 9}"#);
    t.parked_when(1).await;
    t.topic.drained().await;

    let filter = Filter {
        queue: Some("next".into()),
        ..Filter::default()
    };
    let next = t.cf.desk().outbox(&filter).await.unwrap();
    assert_eq!(next.len(), 1);
    let detail = t.cf.desk().show(&next[0].id).await.unwrap().unwrap();
    assert!(detail.headers.unwrap().contains("causation-id"));
    consumer.stop().await;
}

async fn what_is_received_again_and_again_is_stored_before_it_is_tried<D: Shop>(t: Scratch<D>) {
    use counterfoil::source::Source as _;
    t.send("a", "a", 1, "{}");
    for _ in 0..3 {
        let mut dies = t.topic.subscribe().await.unwrap();
        assert_eq!(dies.receive(1).await.unwrap().len(), 1);
    }
    let (consumer, tries) = t.consumer().await;
    t.settled().await;
    eventually("it is applied", async || {
        !D::effects(&t.pool).await.is_empty()
    })
    .await;

    assert_eq!(tries.lock().unwrap().len(), 1);
    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1)]));
    consumer.stop().await;
}

async fn a_consumer_that_cannot_work_says_why<D: Shop>(t: Scratch<D>) {
    let none = t.cf.consumer("stock", t.topic.clone()).start().await;
    assert!(matches!(none, Err(Error::Consumer(why)) if why.contains("no handler")));
    let zero = t.builder("stock").0.batch(0).start().await;
    assert!(matches!(zero, Err(Error::Settings(_))));
    let odd = t.builder("").0.start().await;
    assert!(matches!(odd, Err(Error::Message(_))));
    let (builder, tries) = t.builder("stock");
    let again = move |tx, event| handle::<D>(tx, event, Arc::clone(&tries));
    let twice = builder.on("Paid", again).start().await;
    assert!(matches!(twice, Err(Error::Settings(_))));
}

async fn two_consumers_do_not_share_what_they_have_processed<D: Shop>(t: Scratch<D>) {
    let (one, _) = t.consumer().await;
    t.send("a", "a", 1, "{}");
    t.settled().await;
    one.stop().await;
    let (builder, _) = t.builder("search");
    let builder = builder.on_park(OnPark::Skip);
    t.send("a", "a", 1, "{}");
    builder.run_until(t.settled()).await.unwrap();

    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1), ("a", 1)]));
}
