//! Connections that go from one request straight to the next.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use counterfoil_core::guard::{Expect, Records};
use counterfoil_postgres::PostgresGuard;
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::guard::fixture::{GuardFixture, finished, key};
use counterfoil_testkit::guard::harness::TxHarness;
use counterfoil_testkit::guard::run;
use sqlx::Acquire as _;
use sqlx::postgres::{PgPool, PgPoolOptions};

use super::begin::assert_is_clean;
use super::{Harness, Tx};

type Straight = Harness<true>;
type T = GuardFixture<Straight>;

counterfoil_testkit::guard_tx_suite!(Straight);

async fn begin(guard: &PostgresGuard, name: &str) -> Tx {
    let begun = guard.begin(&key(name), Expect::Absent).await.unwrap();
    begun.expect("the key is free")
}

async fn pid(tx: &mut Tx) -> i32 {
    sqlx::query_scalar("SELECT pg_backend_pid()")
        .fetch_one(&mut **tx)
        .await
        .unwrap()
}

/// A whole request; answers who has served it.
async fn request(guard: &PostgresGuard, name: &str) -> i32 {
    let mut tx = begin(guard, name).await;
    let served_by = pid(&mut tx).await;
    let write = finished(name, Expect::Absent);
    assert!(guard.commit(tx, &write).await.unwrap());
    served_by
}

/// Waits until every connection can be had from the pool, and looks that each is outside of any
/// transaction.
async fn all_are_back(pool: &PgPool) {
    let all = async {
        let mut all = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            all.push(pool.acquire().await.unwrap());
        }
        for connection in &mut all {
            assert_is_clean(connection).await;
        }
    };
    let in_time = tokio::time::timeout(Duration::from_secs(20), all).await;
    in_time.expect("connections go back by themselves");
}

#[test]
fn the_next_request_needs_no_pool_and_what_is_left_goes_back() {
    run::<Straight, _, _>(async |t: T| {
        let acquired = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&acquired);
        let pool = PgPoolOptions::new()
            .max_connections(4)
            .before_acquire(move |_, _| {
                counter.fetch_add(1, Ordering::SeqCst);
                Box::pin(async { Ok(true) })
            })
            .connect_lazy_with(t.harness.pool.connect_options().as_ref().clone());
        let guard = PostgresGuard::new(pool.clone()).back_to_back();
        for n in 0..40 {
            request(&guard, &format!("k{n}")).await;
        }

        // One in eight goes through the pool, and those that came too late.
        // What was opened anew is not counted there.
        let acquired = acquired.load(Ordering::SeqCst) + usize::try_from(pool.size()).unwrap();
        assert!(acquired < 40, "{acquired}");
        all_are_back(&pool).await;
        for n in 0..40 {
            let digest = key(&format!("k{n}")).digest();
            assert!(guard.look(&digest).await.unwrap().is_some(), "{n}");
        }
    });
}

#[test]
fn a_pool_of_one_connection_keeps_it() {
    run::<Straight, _, _>(async |t: T| {
        let pool = t.harness.pool(1, "");
        let guard = PostgresGuard::new(pool.clone()).back_to_back();

        for n in 0..10 {
            request(&guard, &format!("k{n}")).await;
            sqlx::query("SELECT 1").execute(&pool).await.unwrap();
        }

        all_are_back(&pool).await;
    });
}

#[test]
fn others_get_a_connection_however_many_requests_there_are() {
    run::<Straight, _, _>(async |t: T| {
        let pool = t.harness.pool(2, "");
        let guard = PostgresGuard::new(pool.clone()).back_to_back();
        let busy: Vec<_> = (0..6)
            .map(|client| {
                let guard = guard.clone();
                tokio::spawn(async move {
                    for n in 0.. {
                        request(&guard, &format!("c{client}-{n}")).await;
                    }
                })
            })
            .collect();

        for _ in 0..20 {
            let other = sqlx::query("SELECT 1").execute(&pool);
            let in_time = tokio::time::timeout(Duration::from_secs(20), other).await;
            in_time.expect("nobody is left out").unwrap();
        }

        for client in busy {
            client.abort();
            let _ = client.await;
        }
        all_are_back(&pool).await;
    });
}

#[test]
fn a_key_that_is_not_free_leaves_the_connection_to_the_next() {
    run::<Straight, _, _>(async |t: T| {
        let holder = begin(&t.guard, "taken").await;
        for n in 0..20 {
            request(&t.guard, &format!("k{n}")).await;
            let taken = t.guard.begin(&key("taken"), Expect::Absent).await.unwrap();
            assert!(taken.is_none());
            let known = format!("k{n}");
            let known = t.guard.begin(&key(&known), Expect::Absent).await.unwrap();
            assert!(known.is_none());
        }

        drop(holder);
        all_are_back(&t.harness.pool).await;
    });
}

/// The driver rolls everything back when a nested transaction cannot begin, and says nothing.
#[test]
fn a_transaction_that_is_over_is_not_recorded() {
    run::<Straight, _, _>(async |t: T| {
        // Each way with each turn, of which one in eight goes back to the pool.
        for n in 0..72 {
            let name = format!("k{n}");
            let mut tx = begin(&t.guard, &name).await;
            t.harness.insert(&mut tx, n).await.unwrap();
            match n / 9 % 4 {
                0 => {
                    t.harness.swallow(&mut tx).await;
                    assert!(tx.begin().await.is_err());
                }
                // Until it was cut off: the server may be quicker.
                1 => while after_polls(1, tx.begin()).await.is_some() {},
                2 => drop(sqlx::raw_sql("ROLLBACK").execute(&mut *tx).await.unwrap()),
                _ => drop(
                    sqlx::raw_sql("ROLLBACK; BEGIN")
                        .execute(&mut *tx)
                        .await
                        .unwrap(),
                ),
            }
            // Whether the end comes alone or with an answer that is sent apart.
            let mut write = finished(&name, Expect::Absent);
            if n >= 36 {
                write.snapshot.as_mut().unwrap().body = Some("x".repeat(9_000).into());
            }
            let ended = t.guard.commit(tx, &write).await;

            assert!(ended.is_err(), "{n}: {ended:?}");
            assert!(t.guard.look(&key(&name).digest()).await.unwrap().is_none());
        }

        assert!(t.harness.rows().await.is_empty());
        all_are_back(&t.harness.pool).await;
    });
}

#[test]
fn who_goes_away_in_the_middle_leaves_the_key_free_and_nothing_open() {
    run::<Straight, _, _>(async |t: T| {
        for polls in 0..12 {
            let name = format!("k{polls}");
            request(&t.guard, &format!("before-{polls}")).await;
            let key = key(&name);

            let begun = after_polls(polls, t.guard.begin(&key, Expect::Absent)).await;
            drop(begun);

            let mut free = None;
            while free.is_none() {
                free = t.guard.begin(&key, Expect::Absent).await.unwrap();
            }
            let mut tx = free.unwrap();
            t.harness.insert(&mut tx, polls as i64).await.unwrap();
            let write = finished(&name, Expect::Absent);
            assert!(t.guard.commit(tx, &write).await.unwrap());
        }

        assert_eq!(t.harness.rows().await, (0..12).collect::<Vec<_>>());
        all_are_back(&t.harness.pool).await;
    });
}

#[test]
fn a_connection_that_the_server_has_ended_is_not_noticed() {
    run::<Straight, _, _>(async |t: T| {
        let admin = t.harness.pool(1, "");
        for n in 0..16 {
            let served_by = request(&t.guard, &format!("k{n}")).await;
            let ended: bool = sqlx::query_scalar("SELECT pg_terminate_backend($1, 10000)")
                .bind(served_by)
                .fetch_one(&admin)
                .await
                .unwrap();
            assert!(ended);
        }

        request(&t.guard, "last").await;
    });
}

/// A runtime that ends takes with it what waits: nothing panics, here or when the guard is dropped.
#[test]
fn the_end_of_a_runtime_is_harmless() {
    if counterfoil_testkit::server::postgres().is_none() {
        return;
    }
    let runtime = || {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    };
    let first = runtime();
    let (harness, guard) = first.block_on(async {
        use counterfoil_testkit::guard::harness::GuardHarness as _;
        let harness = Straight::fresh().await.unwrap();
        let guard = harness.guard();
        for n in 0..3 {
            request(&guard, &format!("k{n}")).await;
        }
        (Arc::new(harness), guard)
    });
    drop(first);
    drop(guard);

    runtime().block_on(harness.place.remove());
}
