//! Sessions with odd settings: the guard works in them, and leaves them as they were.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::guard::{
    Change, Consumed, Expect, Locks, RecordFilter, Records, State, Tokens, Write,
};
use counterfoil_core::store::StoreError;
use counterfoil_mysql::MysqlGuard;
use counterfoil_testkit::guard::fixture::{GuardFixture, LEASE, claim, end, finished, key};
use counterfoil_testkit::guard::harness::TxHarness;
use counterfoil_testkit::guard::run;
use sqlx::MySqlPool;

use super::MysqlHarness;

type T = GuardFixture<MysqlHarness>;

const ODD: [&str; 6] = [
    "SET SESSION autocommit = 0",
    "SET SESSION autocommit = 0; SET SESSION TRANSACTION ISOLATION LEVEL SERIALIZABLE",
    "SET SESSION TRANSACTION ISOLATION LEVEL READ UNCOMMITTED",
    "SET SESSION completion_type = 'CHAIN'",
    "SET SESSION sql_mode = 'ANSI_QUOTES,NO_BACKSLASH_ESCAPES,ONLY_FULL_GROUP_BY,PIPES_AS_CONCAT', \
     SESSION sql_safe_updates = 1, SESSION time_zone = '+05:45'",
    "SET NAMES latin1",
];

/// What a session of the application looks like.
async fn settings(pool: &MySqlPool) -> Vec<(String, String)> {
    sqlx::query_as(
        "SHOW SESSION VARIABLES WHERE Variable_name IN
         ('autocommit', 'innodb_lock_wait_timeout', 'tx_isolation', 'transaction_isolation', 'completion_type',
          'sql_mode', 'sql_safe_updates', 'time_zone', 'character_set_client', 'tx_read_only',
          'transaction_read_only')",
    )
    .fetch_all(pool)
    .await
    .unwrap()
}

/// The life of a few records, in this pool.
async fn everything_works(t: &T, guard: &MysqlGuard, n: i64) {
    let name = |what: &str| format!("{what} ä {n}");
    // Leased.
    let write = claim(&name("leased"));
    let digest = write.key.digest();
    let fence = guard.put(&write).await.unwrap().unwrap();
    assert_eq!(guard.put(&write).await.unwrap(), None);
    assert_eq!(t.find(&name("leased")).await.record.fence, fence);
    let heartbeat = Change::Heartbeat { lease: LEASE };
    assert!(guard.change(&digest, fence, &heartbeat).await.unwrap());
    let ended = guard.change(&digest, fence, &end(State::Succeeded)).await;
    assert!(ended.unwrap());
    // Transactional, with a rival.
    let (key, write) = (key(&name("tx")), finished(&name("tx"), Expect::Absent));
    assert_eq!(guard.look(&key.digest()).await.unwrap(), None);
    let mut tx = guard.begin(&key, Expect::Absent).await.unwrap().unwrap();
    t.harness.insert(&mut tx, n).await.unwrap();
    let rival = t.harness.rival();
    assert!(rival.begin(&key, Expect::Absent).await.unwrap().is_none());
    assert!(guard.begin(&key, Expect::Absent).await.unwrap().is_none());
    // Seen by nobody, waited for by nobody.
    let asked = Instant::now();
    assert_eq!(guard.look(&key.digest()).await.unwrap(), None);
    let all = guard.list(&RecordFilter::default()).await.unwrap();
    assert!(all.iter().all(|f| f.record.key != key));
    guard.stats().await.unwrap();
    guard.stuck(Duration::ZERO, None, 10).await.unwrap();
    assert!(asked.elapsed() < Duration::from_secs(20));
    assert!(guard.finish(&mut tx, &write).await.unwrap());
    tx.commit().await.unwrap();
    // A session that reads at one moment for ever would not see it.
    for _ in 0..2 {
        let found = guard.look(&key.digest()).await.unwrap().unwrap();
        assert_eq!(found.record, t.find(&name("tx")).await.record);
    }
    let filter = RecordFilter {
        key: Some(name("tx")),
        state: Some(State::Succeeded),
        ..RecordFilter::default()
    };
    assert_eq!(guard.list(&filter).await.unwrap().len(), 1);
    assert!(guard.forget(&digest).await.unwrap());
    assert_eq!(t.look(&name("leased")).await, None);
    assert_eq!(Records::purge(guard, 10).await.unwrap(), 0);
    // Once.
    let token = guard.issue("ann", LEASE).await.unwrap();
    assert_eq!(guard.consume(&token, "ann").await.unwrap(), Consumed::Won);
    let other = t.guard.consume(&token, "ann").await.unwrap();
    assert_eq!(other, Consumed::Refused);
    let lock = guard.acquire("l", LEASE).await.unwrap().unwrap();
    assert_eq!(t.guard.acquire("l", LEASE).await.unwrap(), None);
    assert!(guard.release("l", lock).await.unwrap());
}

#[test]
fn odd_sessions_work_and_stay_as_they_were() {
    run::<MysqlHarness, _, _>(async |t: T| {
        for (n, first) in (0..).zip(ODD) {
            let pool = t.harness.pool(2, first);
            let before = settings(&pool).await;

            everything_works(&t, &MysqlGuard::new(pool.clone()), n).await;

            let two = (pool.acquire().await.unwrap(), pool.acquire().await.unwrap());
            drop(two);
            for _ in 0..4 {
                assert_eq!(settings(&pool).await, before, "{first}");
            }
        }
        assert_eq!(t.harness.rows().await.len(), ODD.len());
    });
}

/// Refused and cancelled claims too.
#[test]
fn a_refused_claim_gives_the_session_its_patience_back() {
    run::<MysqlHarness, _, _>(async |t: T| {
        let pool = t
            .harness
            .pool(1, "SET SESSION innodb_lock_wait_timeout = 77");
        let guard = MysqlGuard::new(pool.clone());
        let patience = async || {
            let (seconds,): (i64,) =
                sqlx::query_as("SELECT CAST(@@SESSION.innodb_lock_wait_timeout AS SIGNED)")
                    .fetch_one(&pool)
                    .await
                    .unwrap();
            seconds
        };
        let holder = t.guard.begin(&key("held"), Expect::Absent).await.unwrap();
        t.claim("there").await;

        for (name, expect) in [
            ("held", Expect::Absent),
            ("there", Expect::Absent),
            ("there", Expect::Fence(7)),
            ("absent", Expect::Fence(7)),
        ] {
            assert!(guard.begin(&key(name), expect).await.unwrap().is_none());
            assert_eq!(patience().await, 77, "{name}");
        }
        for wait in (0..2_000).step_by(50) {
            let name = key("free");
            let begin = guard.begin(&name, Expect::Absent);
            let _ = tokio::time::timeout(Duration::from_micros(wait), begin).await;
            assert_eq!(patience().await, 77);
            let write = claim("held");
            let put = guard.put(&write);
            let _ = tokio::time::timeout(Duration::from_micros(wait), put).await;
            assert_eq!(patience().await, 77);
        }
        let tx = guard.begin(&key("free"), Expect::Absent).await.unwrap();
        drop(tx);
        assert_eq!(patience().await, 77);
        drop(holder);
    });
}

/// Somebody's transaction holds the record: nobody waits for it for long, whatever they want.
#[test]
fn nobody_waits_long_for_a_claim() {
    run::<MysqlHarness, _, _>(async |t: T| {
        let running = t.claim("running").await;
        let expect = Expect::Fence(running.fence);
        let mut tx = t
            .guard
            .begin(&key("running"), expect)
            .await
            .unwrap()
            .unwrap();
        let rival = t.harness.rival();
        let asked = Instant::now();

        let put = rival.put(&claim("running")).await.unwrap();
        let replaced = rival
            .put(&Write {
                expect,
                ..claim("running")
            })
            .await
            .unwrap();
        let changed = rival
            .change(&running.digest, running.fence, &Change::Doubt)
            .await;
        let forgotten = rival.forget(&running.digest).await;

        assert!(
            asked.elapsed() < Duration::from_secs(40),
            "{:?}",
            asked.elapsed()
        );
        assert_eq!((put, replaced), (None, None));
        assert!(matches!(changed, Err(StoreError::Busy(_))), "{changed:?}");
        assert!(
            matches!(forgotten, Err(StoreError::Busy(_))),
            "{forgotten:?}"
        );
        let write = finished("running", expect);
        assert!(t.guard.finish(&mut tx, &write).await.unwrap());
        tx.commit().await.unwrap();
        assert!(t.find("running").await.record.fence > running.fence);
    });
}

/// Claims of many keys next to each other, at the isolation that servers come with.
#[test]
fn different_keys_at_once_all_run() {
    run::<MysqlHarness, _, _>(async |t: T| {
        let t = Arc::new(t);
        let running: Vec<_> = (0..40)
            .map(|n| {
                let t = Arc::clone(&t);
                tokio::spawn(async move {
                    let name = format!("k{n}");
                    let mut refused = 0;
                    let mut tx = loop {
                        match t.guard.begin(&key(&name), Expect::Absent).await.unwrap() {
                            Some(tx) => break tx,
                            None => refused += 1,
                        }
                    };
                    t.harness.insert(&mut tx, n).await.unwrap();
                    let write = finished(&name, Expect::Absent);
                    assert!(t.guard.finish(&mut tx, &write).await.unwrap());
                    tx.commit().await.unwrap();
                    refused
                })
            })
            .collect();
        let mut refused = 0;
        for one in running {
            refused += one.await.unwrap();
        }

        assert_eq!(t.harness.rows().await.len(), 40);
        assert_eq!(refused, 0, "a key was in another one's way");
    });
}

/// `CREATE TABLE` commits what is open. Nobody knows then, and everybody can see that.
#[test]
fn a_business_that_commits_behind_our_back_leaves_uncertainty() {
    run::<MysqlHarness, _, _>(async |t: T| {
        let replaced = t.ended("again", State::Retryable).await;
        for (n, (name, expect)) in (0..).zip([
            ("first", Expect::Absent),
            ("again", Expect::Fence(replaced.fence)),
        ]) {
            let mut tx = t.guard.begin(&key(name), expect).await.unwrap().unwrap();
            t.harness.insert(&mut tx, n).await.unwrap();
            let ddl = format!("CREATE TABLE behind_{n} (id INT)");
            sqlx::raw_sql(sqlx::AssertSqlSafe(ddl))
                .execute(&mut *tx)
                .await
                .unwrap();

            let write = finished(name, expect);
            let done = t.guard.finish(&mut tx, &write).await;

            assert!(matches!(done, Err(StoreError::Doomed(_))), "{done:?}");
            tx.rollback().await.unwrap();
            let found = t.find(name).await;
            assert_eq!(found.state(), State::Uncertain);
            assert_eq!(found.record.key, key(name));
            assert!(t.guard.begin(&key(name), expect).await.unwrap().is_none());
            let stuck = t.guard.stuck(Duration::ZERO, None, 10).await.unwrap();
            assert_eq!(stuck.len(), 1);
            let (digest, fence) = (key(name).digest(), found.record.fence);
            let settled = t.guard.change(&digest, fence, &Change::Release).await;
            assert!(settled.unwrap());
        }
    });
}
