//! The application's side: what only a real server's transactions can show.

use counterfoil_core::store::{Enqueued, Store as _, StoreError};
use counterfoil_mysql::{check_before_commit, classify, enqueue_keyed, once};
use counterfoil_testkit::fixture::{Fixture, QUEUE, keyed, message, messages, versions};
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::harness::Harness;
use counterfoil_testkit::suite::run;
use sqlx::mysql::MySqlQueryResult;
use sqlx::{MySql, Transaction};

use super::harness::MysqlHarness;

type Tx = Transaction<'static, MySql>;

async fn set(tx: &mut Tx, id: i32, value: i32) -> sqlx::Result<MySqlQueryResult> {
    sqlx::query("UPDATE account SET value = ? WHERE id = ?")
        .bind(value)
        .bind(id)
        .execute(&mut **tx)
        .await
}

async fn accounts(harness: &MysqlHarness) {
    harness
        .run("CREATE TABLE account (id INT PRIMARY KEY, value INT) ENGINE = InnoDB")
        .await;
    harness
        .run("INSERT INTO account VALUES (1, 0), (2, 0)")
        .await;
}

/// Both hold one row and want the other's: the server ends one of them.
async fn deadlock(harness: &MysqlHarness) -> (Tx, sqlx::Error, Tx) {
    let (mut a, mut b) = (harness.begin().await, harness.begin().await);
    set(&mut a, 1, 10).await.unwrap();
    set(&mut b, 2, 20).await.unwrap();
    match tokio::join!(set(&mut a, 2, 11), set(&mut b, 1, 21)) {
        (Err(error), Ok(_)) => (a, error, b),
        (Ok(_), Err(error)) => (b, error, a),
        other => panic!("no deadlock: {other:?}"),
    }
}

#[test]
fn a_swallowed_deadlock_is_noticed_before_the_commit() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        accounts(&t.harness).await;
        let (mut victim, error, mut other) = deadlock(&t.harness).await;
        assert!(matches!(classify(error), StoreError::Busy(_)));

        // The application goes on as if nothing had happened.
        set(&mut victim, 3, 1).await.unwrap();
        t.harness
            .enqueue(&mut victim, &[message("a", 1)])
            .await
            .unwrap();
        let doomed = check_before_commit(&mut victim).await;

        assert!(matches!(doomed, Err(StoreError::Doomed(_))), "{doomed:?}");
        check_before_commit(&mut other).await.unwrap();
        other.commit().await.unwrap();
    });
}

#[test]
fn the_check_changes_nothing_in_a_sound_transaction() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let mut tx = t.harness.begin().await;
        t.harness.savepoint(&mut tx).await;
        t.harness
            .enqueue(&mut tx, &[message("a", 1)])
            .await
            .unwrap();
        check_before_commit(&mut tx).await.unwrap();
        t.harness.rollback_to(&mut tx).await;
        t.harness
            .enqueue(&mut tx, &[message("a", 2)])
            .await
            .unwrap();
        check_before_commit(&mut tx).await.unwrap();
        tx.commit().await.unwrap();

        let relay = t.relay(&[QUEUE]).await;
        assert_eq!(versions(&relay.read(QUEUE).await), [2]);
    });
}

#[test]
fn a_lock_that_is_not_given_up_in_time_is_busy() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        accounts(&t.harness).await;
        let (mut a, mut b) = (t.harness.begin().await, t.harness.begin().await);
        set(&mut a, 1, 10).await.unwrap();
        sqlx::raw_sql("SET SESSION innodb_lock_wait_timeout = 1")
            .execute(&mut *b)
            .await
            .unwrap();

        let late = set(&mut b, 1, 20).await.unwrap_err();

        assert!(matches!(classify(late), StoreError::Busy(_)));
    });
}

/// The snapshot of a REPEATABLE READ transaction is older than the first use of the key.
#[test]
fn a_repeat_is_recognised_by_an_older_snapshot() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let first = keyed(message("a", 1), "task", "k");
        let mut old = t.harness.begin().await;
        sqlx::query("SELECT COUNT(*) FROM counterfoil_ledger")
            .execute(&mut *old)
            .await
            .unwrap();
        t.put_keyed(&first).await;

        let repeat = enqueue_keyed(&mut old, &keyed(message("a", 2), "task", "k"))
            .await
            .unwrap();

        assert_eq!(repeat, Enqueued::Duplicate(first.message.id));
        t.harness.commit(old).await.unwrap();
        assert_eq!(t.desk.audit().await.unwrap().pending, 1);
    });
}

/// The driver counts found rows, so that an update which changes nothing looks like an insert.
#[test]
fn a_key_is_new_once() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let mut tx = t.harness.begin().await;

        let answers = [
            once(&mut tx, "s", "k").await.unwrap(),
            once(&mut tx, "s", "k").await.unwrap(),
            once(&mut tx, "s", "k ").await.unwrap(),
            once(&mut tx, "s", "K").await.unwrap(),
            once(&mut tx, "s", "k").await.unwrap(),
        ];
        tx.commit().await.unwrap();

        assert_eq!(answers, [true, false, true, true, false]);
    });
}

#[test]
fn many_messages_keep_their_order_over_several_statements() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        t.put(&messages("a", 250)).await;
        let relay = t.relay(&[QUEUE]).await;

        let read = versions(&relay.read(QUEUE).await);

        assert_eq!(read, (1..=250).collect::<Vec<_>>());
    });
}

/// Whatever the server and the application chose.
#[test]
fn sessions_of_the_store_are_its_own() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let rows: Vec<(String, String)> = sqlx::query_as(
            "SHOW SESSION VARIABLES WHERE Variable_name IN
             ('time_zone', 'tx_isolation', 'transaction_isolation', 'sql_mode', 'character_set_client', 'autocommit')",
        )
        .fetch_all(t.harness.store.pool())
        .await
        .unwrap();

        let of = |name: &str| rows.iter().find(|r| r.0 == name).map(|r| r.1.as_str());
        assert_eq!(of("time_zone"), Some("+00:00"));
        assert_eq!(of("character_set_client"), Some("utf8mb4"));
        assert_eq!(of("autocommit"), Some("ON"));
        assert_eq!(
            of("transaction_isolation").or(of("tx_isolation")),
            Some("READ-COMMITTED")
        );
        let modes = of("sql_mode").unwrap();
        assert!(
            modes.contains("STRICT_TRANS_TABLES") && !modes.contains("NO_ZERO_DATE"),
            "{modes}"
        );
    });
}

/// Wherever its caller goes away, a transaction of the store's own does not stay open.
#[test]
fn a_caller_that_goes_away_leaves_no_transaction_behind() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let (store, pool) = (&t.harness.store, t.harness.store.pool());
        t.harness.run("CREATE TABLE seen (n int)").await;
        let mut written = 0_i64;
        for polls in 1.. {
            let batch = [keyed(message("a", 1), "s", "k")];
            let stored = after_polls(polls, store.enqueue(&batch)).await;

            let mut all = Vec::new();
            while all.len() < pool.size() as usize {
                all.push(pool.acquire().await.unwrap());
            }
            for connection in &mut all {
                let insert = sqlx::query("INSERT INTO seen VALUES (1)");
                insert.execute(&mut **connection).await.unwrap();
                written += 1;
            }
            drop(all);
            let seen: i64 = sqlx::query_scalar("SELECT count(*) FROM seen")
                .fetch_one(&t.harness.pool)
                .await
                .unwrap();
            assert_eq!(seen, written, "a connection is inside a transaction");
            if let Some(stored) = stored {
                assert_eq!(stored.unwrap().len(), 1);
                return;
            }
        }
    });
}
