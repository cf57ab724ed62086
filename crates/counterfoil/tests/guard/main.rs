//! The guard as a function, and writes that may be repeated, on every database.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a surprise ends the test"
)]

mod shop;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use counterfoil::guard::{Begun, Context, Failure, Outcome};
use counterfoil::{Database, Guard, Key, Rules};
use counterfoil_testkit::gone::after_polls;

use shop::{Scratch, Shop};

macro_rules! tests {
    ($database:ident, $feature:literal, $module:ident) => {
        #[cfg(feature = $feature)]
        mod $module {
            use super::*;

            macro_rules! test {
                ($name:ident) => {
                    test!($name, "multi_thread");
                };
                ($name:ident, $flavor:literal) => {
                    #[tokio::test(flavor = $flavor)]
                    async fn $name() {
                        if let Some(scratch) = counterfoil::$database::scratch().await {
                            super::$name(scratch).await;
                        }
                    }
                };
            }
            test!(a_payment_runs_once_and_is_replayed);
            test!(case_36_a_repeated_serial_gets_the_stored_answer);
            test!(a_business_error_is_recorded_and_a_system_error_is_not);
            // Its recorder of figures is that of one thread.
            test!(an_error_that_needs_a_person_is_told_once, "current_thread");
            test!(an_error_that_may_pass_later_has_a_limit);
            test!(a_run_that_is_dropped_leaves_nothing);
            test!(a_leased_call_runs_once_and_unknown_is_uncertain);
            test!(a_table_of_its_own);
            test!(writes_that_may_be_repeated_say_what_came_of_them);
            test!(a_caller_that_goes_away_while_it_begins_leaves_no_transaction_behind);
        }
    };
}

tests!(Sqlite, "sqlite", sqlite);
tests!(Postgres, "postgres", postgres);
tests!(MySql, "mysql", mysql);

fn key(name: &str) -> Key {
    Key::new("alice", "pay", name).unwrap()
}

fn guard<D: Database>(scratch: &Scratch<D>) -> Guard<D> {
    Guard::new(&scratch.pool, Rules::payments()).unwrap()
}

/// Begins, does what it is told, and finishes.
async fn attempt<D: Shop>(
    guard: &Guard<D>,
    key: &Key,
    amount: i64,
    answer: Result<String, Failure<String>>,
) -> Outcome<String, String> {
    match guard.begin::<String, String>(key, &amount).await.unwrap() {
        Begun::Fresh(mut run) => {
            D::pay(run.tx(), amount).await.unwrap();
            run.finish(answer).await.unwrap()
        }
        Begun::Replay(answer) => Outcome::Replayed(answer),
        Begun::Conflict => Outcome::Conflict,
        Begun::Later(after) => Outcome::Later(after),
        other => panic!("{other:?}"),
    }
}

async fn a_payment_runs_once_and_is_replayed<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);

    let first = attempt(&guard, &key("k"), 7, Ok("receipt 1".into())).await;
    let again = attempt(&guard, &key("k"), 7, Ok("receipt 2".into())).await;
    let other = attempt(&guard, &key("k"), 8, Ok("receipt 3".into())).await;

    assert_eq!(first, Outcome::Executed(Ok("receipt 1".into())));
    assert_eq!(again, Outcome::Replayed(Ok("receipt 1".into())));
    assert_eq!(other, Outcome::Conflict);
    assert_eq!(D::paid(&scratch.pool).await, 1);
    assert!(guard.forget(&key("k")).await.unwrap());
    let third = attempt(&guard, &key("k"), 8, Ok("receipt 4".into())).await;
    assert_eq!(third, Outcome::Executed(Ok("receipt 4".into())));
}

async fn case_36_a_repeated_serial_gets_the_stored_answer<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    let serial = |caller, number: u64| Key::serial(caller, "pay", number).unwrap();

    let first = attempt(&guard, &serial("shop-1", 7), 7, Ok("receipt 1".into())).await;
    let again = attempt(&guard, &serial("shop-1", 7), 7, Ok("receipt 2".into())).await;
    let rival = attempt(&guard, &serial("shop-2", 7), 7, Ok("receipt 3".into())).await;
    let next = attempt(&guard, &serial("shop-1", 8), 7, Ok("receipt 4".into())).await;

    assert_eq!(first, Outcome::Executed(Ok("receipt 1".into())));
    assert_eq!(again, Outcome::Replayed(Ok("receipt 1".into())));
    assert_eq!(rival, Outcome::Executed(Ok("receipt 3".into())));
    assert_eq!(next, Outcome::Executed(Ok("receipt 4".into())));
    assert_eq!(D::paid(&scratch.pool).await, 3);
}

async fn a_business_error_is_recorded_and_a_system_error_is_not<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    let poor = || Err(Failure::Business("no money".to_owned()));

    let refused = attempt(&guard, &key("b"), 7, poor()).await;
    let again = attempt(&guard, &key("b"), 7, Ok("receipt".into())).await;
    let broken = attempt(
        &guard,
        &key("s"),
        7,
        Err(Failure::system("the disk is full")),
    )
    .await;
    let healed = attempt(&guard, &key("s"), 7, Ok("receipt".into())).await;

    assert_eq!(refused, Outcome::Executed(Err("no money".into())));
    assert_eq!(again, Outcome::Replayed(Err("no money".into())));
    assert_eq!(broken, Outcome::Released("the disk is full".into()));
    assert_eq!(healed, Outcome::Executed(Ok("receipt".into())));
    assert_eq!(D::paid(&scratch.pool).await, 1);
}

async fn an_error_that_needs_a_person_is_told_once<D: Shop>(scratch: Scratch<D>) {
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _local = metrics::set_default_local_recorder(&recorder);
    let told = || {
        let line = "counterfoil_guard_needs_person_total{business_type=\"pay\"} ";
        let text = handle.render();
        let at = text.find(line).map(|at| at + line.len());
        at.map(|at| text[at..].lines().next().unwrap_or_default().to_owned())
    };
    let guard = guard(&scratch);
    let fraud = || Err(Failure::NeedsPerson("fraud?".to_owned()));
    let poor = || Err(Failure::Business("no money".to_owned()));

    attempt(&guard, &key("b"), 7, poor()).await;
    assert_eq!(told(), None);
    let refused = attempt(&guard, &key("f"), 7, fraud()).await;
    let again = attempt(&guard, &key("f"), 7, Ok("receipt".into())).await;
    assert_eq!(told().as_deref(), Some("1"));
    let leased = async || {
        guard
            .leased(&key("l"), &7, |_| async move { fraud() })
            .await
            .unwrap()
    };
    let (first, second) = (leased().await, leased().await);

    assert_eq!(refused, Outcome::Executed(Err("fraud?".into())));
    assert_eq!(again, Outcome::Replayed(Err("fraud?".into())));
    assert_eq!(first, Outcome::Executed(Err("fraud?".into())));
    assert_eq!(second, Outcome::Replayed(Err("fraud?".into())));
    assert_eq!(told().as_deref(), Some("2"));
    assert_eq!(D::paid(&scratch.pool).await, 0);
}

async fn an_error_that_may_pass_later_has_a_limit<D: Shop>(scratch: Scratch<D>) {
    let rules = Rules {
        attempts: 2,
        ..Rules::payments()
    };
    let guard = Guard::<D>::new(&scratch.pool, rules).unwrap();
    let later = |after| {
        Err(Failure::Later {
            error: "not yet".to_owned(),
            after,
        })
    };
    let (now, hour) = (Duration::ZERO, Duration::from_secs(3_600));

    let first = attempt(&guard, &key("k"), 7, later(hour)).await;
    let early = attempt(&guard, &key("k"), 7, later(now)).await;
    guard.forget(&key("k")).await.unwrap();
    attempt(&guard, &key("k"), 7, later(now)).await;
    let second = attempt(&guard, &key("k"), 7, later(now)).await;
    let last = attempt(&guard, &key("k"), 7, Ok("too late".into())).await;

    assert_eq!(first, Outcome::Executed(Err("not yet".into())));
    assert!(matches!(early, Outcome::Later(after) if after > Duration::from_secs(3_000)));
    assert_eq!(second, Outcome::Executed(Err("not yet".into())));
    assert_eq!(last, Outcome::Replayed(Err("not yet".into())));
    assert_eq!(D::paid(&scratch.pool).await, 0);
}

async fn a_run_that_is_dropped_leaves_nothing<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    let Begun::Fresh(mut run) = guard.begin::<String, String>(&key("k"), &7).await.unwrap() else {
        panic!("not fresh")
    };
    D::pay(run.tx(), 7).await.unwrap();

    drop(run);
    let again = attempt(&guard, &key("k"), 7, Ok("receipt".into())).await;

    assert_eq!(again, Outcome::Executed(Ok("receipt".into())));
    assert_eq!(D::paid(&scratch.pool).await, 1);
}

async fn a_leased_call_runs_once_and_unknown_is_uncertain<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    let calls = AtomicUsize::new(0);
    let charge = |name: &'static str, answer: Result<u32, Failure<String>>| {
        let (guard, calls) = (&guard, &calls);
        async move {
            guard
                .leased(&key(name), &7, |claim| async move {
                    assert!(claim.fence() > 0);
                    assert_eq!(Context::current().unwrap().key(), claim.key());
                    calls.fetch_add(1, Ordering::SeqCst);
                    answer
                })
                .await
                .unwrap()
        }
    };

    assert_eq!(charge("k", Ok(1)).await, Outcome::Executed(Ok(1)));
    assert_eq!(charge("k", Ok(2)).await, Outcome::Replayed(Ok(1)));
    let lost = charge("u", Err(Failure::Unknown("no answer".into()))).await;
    assert_eq!(lost, Outcome::Uncertain);
    assert_eq!(charge("u", Ok(3)).await, Outcome::Uncertain);
    let free = charge("s", Err(Failure::system("refused"))).await;
    assert_eq!(free, Outcome::Released("refused".into()));
    assert_eq!(charge("s", Ok(4)).await, Outcome::Executed(Ok(4)));
    assert_eq!(calls.load(Ordering::SeqCst), 4);
}

async fn a_table_of_its_own<D: Shop>(scratch: Scratch<D>) {
    let wrong = Guard::<D>::in_table(&scratch.pool, "x; DROP TABLE payments", Rules::default());
    let own = Guard::<D>::in_table(&scratch.pool, "shop_guard", Rules::default()).unwrap();
    let central = guard(&scratch);

    assert!(wrong.is_err());
    // Fail closed: without its table nothing runs.
    assert!(own.begin::<u32, u32>(&key("k"), &7).await.is_err());
    D::run(&scratch.pool, D::print_table("shop_guard")).await;
    D::run(
        &scratch.pool,
        "ALTER TABLE shop_guard ADD COLUMN remark int".into(),
    )
    .await;

    let first = attempt(&own, &key("k"), 7, Ok("receipt 1".into())).await;
    let again = attempt(&own, &key("k"), 7, Ok("receipt 2".into())).await;
    let other = attempt(&own, &key("k"), 8, Ok("receipt 3".into())).await;
    let elsewhere = attempt(&central, &key("k"), 8, Ok("receipt 4".into())).await;
    let charged = own
        .leased::<u32, String, _, _>(&key("l"), &7, |_| async { Ok(5) })
        .await
        .unwrap();

    assert_eq!(first, Outcome::Executed(Ok("receipt 1".into())));
    assert_eq!(again, Outcome::Replayed(Ok("receipt 1".into())));
    assert_eq!(other, Outcome::Conflict);
    assert_eq!(elsewhere, Outcome::Executed(Ok("receipt 4".into())));
    assert_eq!(charged, Outcome::Executed(Ok(5)));
    assert_eq!(D::paid(&scratch.pool).await, 2);
    assert_eq!(D::records_in(&scratch.pool, "shop_guard").await, 2);
    assert_eq!(D::records_in(&scratch.pool, "counterfoil_guard").await, 1);
}

/// On a connection that is inside a transaction, nobody would see what is written.
async fn a_caller_that_goes_away_while_it_begins_leaves_no_transaction_behind<D: Shop>(
    scratch: Scratch<D>,
) {
    let guard = guard(&scratch);
    let mut written = 0;
    for polls in 1.. {
        let begun = after_polls(polls, guard.unguarded()).await;
        let done = begun.is_some();
        drop(begun);

        let (paid, seen) = D::pay_everywhere(&scratch.pool).await;

        written += paid;
        assert_eq!(seen, written, "after {polls} polls");
        if done {
            return;
        }
    }
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_is_cut_off_leaves_the_transaction_whole_on_sqlite() {
    let scratch = counterfoil::Sqlite::scratch().await.unwrap();
    an_insert_that_is_cut_off_leaves_the_transaction_whole(scratch).await;
}

#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_insert_that_is_cut_off_leaves_the_transaction_whole_on_postgres() {
    if let Some(scratch) = counterfoil::Postgres::scratch().await {
        an_insert_that_is_cut_off_leaves_the_transaction_whole(scratch).await;
    }
}

/// Payments, business errors and broken ones in turns, and a repeat of each, from several callers.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn requests_back_to_back_have_their_own_effect_and_no_other() {
    use counterfoil::Postgres;
    let Some(scratch) = Postgres::scratch().await else {
        return;
    };
    let acquired = std::sync::Arc::new(AtomicUsize::new(0));
    let counter = std::sync::Arc::clone(&acquired);
    let pool = sqlx::postgres::PgPoolOptions::new()
        .max_connections(8)
        .before_acquire(move |_, _| {
            counter.fetch_add(1, Ordering::SeqCst);
            Box::pin(async { Ok(true) })
        })
        .connect_lazy_with(scratch.pool.connect_options().as_ref().clone());
    let guard = Guard::<Postgres>::new(&pool, Rules::payments()).unwrap();
    let guard = guard.back_to_back();
    let callers: Vec<_> = (0..4)
        .map(|caller| {
            let guard = guard.clone();
            tokio::spawn(async move {
                for n in 0..30 {
                    let key = key(&format!("{caller}-{n}"));
                    let receipt = format!("receipt {n}");
                    let (answer, expected) = match n % 3 {
                        0 => (Ok(receipt.clone()), Outcome::Replayed(Ok(receipt.clone()))),
                        1 => {
                            let poor = "no money".to_owned();
                            let expected = Outcome::Replayed(Err(poor.clone()));
                            (Err(Failure::Business(poor)), expected)
                        }
                        _ => {
                            let broken = Err(Failure::system("the disk is full"));
                            (broken, Outcome::Executed(Ok(receipt.clone())))
                        }
                    };
                    attempt(&guard, &key, n, answer).await;
                    let again = attempt(&guard, &key, n, Ok(receipt)).await;
                    assert_eq!(again, expected, "{caller}-{n}");
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }

    assert_eq!(Postgres::paid(&scratch.pool).await, 4 * 20);
    // What was opened anew is not counted there.
    let through_the_pool =
        || acquired.load(Ordering::SeqCst) + usize::try_from(pool.size()).unwrap();
    let before = through_the_pool();
    for n in 0..40 {
        attempt(
            &guard,
            &key(&format!("one by one {n}")),
            n,
            Ok("paid".into()),
        )
        .await;
    }
    let ways = through_the_pool() - before;
    assert!(ways < 40, "{ways}");
}

/// Not on MySQL: there a connection cannot be used any more when a statement that has parameters was
/// cut off while it was prepared, whoever sent it.
async fn an_insert_that_is_cut_off_leaves_the_transaction_whole<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    for (polls, before) in (1..).zip((0..).step_by(2)) {
        let mut tx = guard.unguarded().await.unwrap();
        D::pay(&mut tx, 1).await.unwrap();

        let done = D::insert_once(&mut tx, polls).await;
        D::pay(&mut tx, 2).await.unwrap();

        assert_eq!(D::paid(&scratch.pool).await, before, "after {polls} polls");
        guard.commit(tx).await.unwrap();
        assert_eq!(D::paid(&scratch.pool).await, before + 2);
        if done {
            return;
        }
    }
}

async fn writes_that_may_be_repeated_say_what_came_of_them<D: Shop>(scratch: Scratch<D>) {
    let guard = guard(&scratch);
    let mut tx = guard.unguarded().await.unwrap();

    D::repeated_writes(&mut tx).await;

    guard.commit(tx).await.unwrap();
}

/// Another writer may be slow, or stopped, and hold the file for longer than anybody waits.
#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_does_not_wait_for_ever_for_another_writer_of_the_file() {
    let scratch = counterfoil::Sqlite::scratch().await.unwrap();
    let options = scratch.pool.connect_options().as_ref().clone();
    let patient = sqlx::SqlitePool::connect_with(options.busy_timeout(Duration::from_secs(120)))
        .await
        .unwrap();
    let guard = Guard::<counterfoil::Sqlite>::new(&patient, Rules::payments()).unwrap();
    let writer = scratch.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    let begun = std::time::Instant::now();

    let told = guard.begin::<String, String>(&key("k"), &7).await;

    let told = told.unwrap_err().to_string();
    assert!(begun.elapsed() < Duration::from_secs(30), "{told}");
    drop(writer);
    let again = attempt(&guard, &key("k"), 7, Ok("receipt".into())).await;
    assert_eq!(again, Outcome::Executed(Ok("receipt".into())));
}
