//! Claims inside the application's transaction.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use counterfoil_core::guard::{Change, Expect, Key, Records, State, Write};
use counterfoil_core::store::StoreError;

use super::fixture::{ASKED, GuardFixture, KEEP, LEASE, answer, claim, claim_of, finished, key};
use super::harness::TxHarness;

impl<H: TxHarness> GuardFixture<H> {
    async fn begin(&self, name: &str) -> Option<H::Tx> {
        self.begin_as(name, Expect::Absent).await
    }

    async fn begin_as(&self, name: &str, expect: Expect) -> Option<H::Tx> {
        let begun = self.harness.begin(&self.guard, &key(name), expect).await;
        begun.unwrap()
    }

    async fn finish(&self, tx: &mut H::Tx, write: &Write) -> bool {
        self.harness.finish(&self.guard, tx, write).await.unwrap()
    }

    async fn end(&self, tx: H::Tx, write: &Write) -> bool {
        self.harness.end(&self.guard, tx, write).await.unwrap()
    }

    /// The whole of a request.
    async fn run(&self, name: &str, id: i64) {
        let mut tx = self.begin(name).await.expect("in progress");
        self.harness.insert(&mut tx, id).await.unwrap();
        assert!(self.end(tx, &finished(name, Expect::Absent)).await);
    }

    /// Somebody else wants the key while a transaction holds it, and is refused soon.
    async fn refused(&self, rival: &H::Guard, name: &str) {
        let asked = Instant::now();
        let second = self.harness.begin(rival, &key(name), Expect::Absent).await;
        let waited = asked.elapsed();
        match second {
            Ok(None) if self.harness.concurrent_writers() => {}
            Err(StoreError::Busy(_)) if !self.harness.concurrent_writers() => {}
            Ok(Some(_)) => panic!("the key was claimed twice"),
            Ok(None) => panic!("a busy database says nothing about a key"),
            Err(other) => panic!("{other:?}"),
        }
        assert!(waited < Duration::from_secs(20), "{waited:?}");
    }
}

/// One transaction, all or nothing.
pub async fn record_and_business_commit_together<H: TxHarness>(t: GuardFixture<H>) {
    let mut tx = t.begin("k").await.unwrap();
    t.harness.insert(&mut tx, 1).await.unwrap();
    assert!(t.finish(&mut tx, &finished("k", Expect::Absent)).await);
    assert_eq!(t.look("k").await, None);
    assert!(t.harness.rows().await.is_empty());

    t.harness.commit(tx).await.unwrap();

    assert_eq!(t.harness.rows().await, [1]);
    let found = t.find("k").await;
    let record = &found.record;
    assert_eq!((&record.key, record.state), (&key("k"), State::Succeeded));
    assert_eq!((record.fingerprint, record.attempts), (ASKED, 1));
    assert_eq!((record.lease_until, record.retry_at), (None, None));
    assert_eq!(record.snapshot, Some(answer()));
    assert!(record.fence > 0 && found.idle() < LEASE);
    let kept = (record.expires_at - found.now).to_std().unwrap();
    assert!(kept <= KEEP && kept > KEEP - LEASE, "{kept:?}");
}

/// Nothing happened, so the next one may run.
pub async fn case_22_a_rollback_leaves_nothing_and_the_key_is_free<H: TxHarness>(
    t: GuardFixture<H>,
) {
    for finish in [false, true] {
        let mut tx = t.begin("k").await.unwrap();
        t.harness.insert(&mut tx, 1).await.unwrap();
        if finish {
            assert!(t.finish(&mut tx, &finished("k", Expect::Absent)).await);
        }
        t.harness.rollback(tx).await;

        assert_eq!(t.look("k").await, None);
        assert!(t.harness.rows().await.is_empty());
    }

    t.run("k", 2).await;
    assert_eq!(t.harness.rows().await, [2]);
}

/// As when the process dies: the connection ends, and with it the claim.
pub async fn case_22_a_dropped_transaction_leaves_nothing_and_the_key_is_free<H: TxHarness>(
    t: GuardFixture<H>,
) {
    let mut tx = t.begin("k").await.unwrap();
    t.harness.insert(&mut tx, 1).await.unwrap();
    drop(tx);

    let tx = loop {
        // The rollback is on its way.
        if let Some(tx) = t.begin("k").await {
            break tx;
        }
        tokio::task::yield_now().await;
    };
    assert!(t.end(tx, &finished("k", Expect::Absent)).await);

    assert!(t.harness.rows().await.is_empty());
}

/// Dropped at any moment of `begin`: no connection goes back to the pool inside a transaction.
pub async fn case_22_a_caller_that_goes_away_while_it_claims_leaves_nothing<H: TxHarness>(
    t: GuardFixture<H>,
) {
    let rival = t.harness.rival();
    for n in 0..60 {
        let wait = Duration::from_micros(n * 25);
        let name = key("k");
        let begin = t.harness.begin(&rival, &name, Expect::Absent);
        // Whether it came in time or not, what it began is dropped.
        let _ = tokio::time::timeout(wait, begin).await;
    }

    let tx = loop {
        match t.harness.begin(&rival, &key("k"), Expect::Absent).await {
            Ok(Some(tx)) => break tx,
            Ok(None) => tokio::task::yield_now().await,
            Err(other) => panic!("{other:?}"),
        }
    };
    t.harness.rollback(tx).await;
    // What commits by itself does.
    assert!(rival.put(&claim("other")).await.unwrap().is_some());
    assert!(t.look("other").await.is_some());
}

/// While the first is open the second is refused; after its commit the record is there.
pub async fn case_5_a_second_claim_is_refused_while_the_first_is_open<H: TxHarness>(
    t: GuardFixture<H>,
) {
    let rival = t.harness.rival();
    let mut tx = t.begin("k").await.unwrap();
    t.refused(&rival, "k").await;
    t.harness.insert(&mut tx, 1).await.unwrap();
    t.refused(&rival, "k").await;
    assert!(t.finish(&mut tx, &finished("k", Expect::Absent)).await);
    if t.harness.concurrent_writers() {
        // The first one's commit may be awaited here.
        let asked = Instant::now();
        let write = claim("k");
        let put = rival.put(&write);
        let _ = tokio::time::timeout(Duration::from_millis(300), put).await;
        assert!(asked.elapsed() < Duration::from_secs(20));
    }
    t.harness.commit(tx).await.unwrap();

    let third = t.harness.begin(&rival, &key("k"), Expect::Absent).await;

    assert!(third.unwrap().is_none());
    assert_eq!(t.find("k").await.record.state, State::Succeeded);
    assert_eq!(t.harness.rows().await, [1]);
}

/// Other keys run at the same time, where the database can.
pub async fn another_key_is_not_in_the_way<H: TxHarness>(t: GuardFixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let mut open = Vec::new();
    for n in 0..6 {
        let name = format!("k{n}");
        let mut tx = t.begin(&name).await.expect("in progress");
        t.harness.insert(&mut tx, n).await.unwrap();
        open.push((name, tx));
    }
    for (name, tx) in open {
        assert!(t.end(tx, &finished(&name, Expect::Absent)).await);
    }

    assert_eq!(t.harness.rows().await, [0, 1, 2, 3, 4, 5]);
}

/// Whatever its state.
pub async fn a_claim_is_refused_when_the_record_is_there<H: TxHarness>(t: GuardFixture<H>) {
    t.claim("leased").await;
    t.ended("failed", State::Failed).await;
    t.run("done", 1).await;

    for name in ["leased", "failed", "done"] {
        let before = t.find(name).await.record;
        assert!(t.begin(name).await.is_none(), "{name}");
        assert_eq!(t.find(name).await.record, before);
    }
}

/// Gone, replaced, or under another number.
pub async fn case_31_a_claim_is_refused_when_the_record_is_not_as_expected<H: TxHarness>(
    t: GuardFixture<H>,
) {
    let record = t.ended("k", State::Retryable).await;
    for fence in [0, record.fence - 1, record.fence + 1] {
        assert!(t.begin_as("k", Expect::Fence(fence)).await.is_none());
    }
    assert!(t.guard.forget(&record.digest).await.unwrap());

    let gone = t.begin_as("k", Expect::Fence(record.fence)).await;

    assert!(gone.is_none());
    assert_eq!(t.look("k").await, None);
}

/// A second run, and another request in overwrite mode.
pub async fn a_record_is_replaced_in_a_transaction<H: TxHarness>(t: GuardFixture<H>) {
    let first = t.ended("k", State::Retryable).await;
    let expect = Expect::Fence(first.fence);

    let tx = t.begin_as("k", expect).await.unwrap();
    t.harness.rollback(tx).await;
    assert_eq!(t.find("k").await.record.fence, first.fence);
    assert_eq!(t.find("k").await.record.state, State::Retryable);
    let tx = t.begin_as("k", expect).await.unwrap();
    let write = Write {
        attempt: 2,
        ..finished("k", expect)
    };
    assert!(t.end(tx, &write).await);

    let record = t.find("k").await.record;
    assert_eq!((record.state, record.attempts), (State::Succeeded, 2));
    assert!(record.fence > first.fence);
    assert!(t.begin_as("k", expect).await.is_none());
    // An owner that is still running is fenced off.
    let running = t.claim("running").await;
    let expect = Expect::Fence(running.fence);
    let tx = t.begin_as("running", expect).await.unwrap();
    assert!(t.end(tx, &finished("running", expect)).await);
    assert!(!t.change(running, &Change::Doubt).await);
    assert_eq!(t.find("running").await.record.state, State::Succeeded);
}

/// What the business has written is taken back, and its error is remembered. Also when the error
/// came from the database.
pub async fn case_19_a_business_error_is_recorded_without_its_rows<H: TxHarness>(
    t: GuardFixture<H>,
) {
    t.run("first", 1).await;
    let mut tx = t.begin("k").await.unwrap();
    t.harness.insert(&mut tx, 2).await.unwrap();
    assert!(t.harness.insert(&mut tx, 1).await.is_err(), "it is there");

    t.harness.undo(&t.guard, &mut tx).await.unwrap();
    let failed = Write {
        state: State::Failed,
        ..finished("k", Expect::Absent)
    };
    assert!(t.end(tx, &failed).await);

    assert_eq!(t.harness.rows().await, [1]);
    assert_eq!(t.find("k").await.record.state, State::Failed);
}

/// The handler says that all is well, and the database knows better.
pub async fn case_41_a_swallowed_error_records_nothing<H: TxHarness>(t: GuardFixture<H>) {
    let mut tx = t.begin("k").await.unwrap();
    t.harness.insert(&mut tx, 1).await.unwrap();
    t.harness.swallow(&mut tx).await;

    let write = finished("k", Expect::Absent);
    let finished = t.harness.finish(&t.guard, &mut tx, &write).await;

    assert!(
        matches!(finished, Err(StoreError::Doomed(_))),
        "{finished:?}"
    );
    t.harness.rollback(tx).await;
    assert_eq!(t.look("k").await, None);
    assert!(t.harness.rows().await.is_empty());
    t.run("k", 2).await;
    assert_eq!(t.harness.rows().await, [2]);
}

/// Whether the application finishes, undoes, rolls back or walks away: the one connection of its
/// pool serves the next request.
pub async fn case_41_after_a_swallowed_error_the_pool_goes_on<H: TxHarness>(t: GuardFixture<H>) {
    let rival = t.harness.rival();
    for way in 0..4 {
        let name = format!("k{way}");
        let write = finished(&name, Expect::Absent);
        let begun = t.harness.begin(&rival, &write.key, Expect::Absent).await;
        let mut tx = begun.unwrap().expect("in progress");
        t.harness.swallow(&mut tx).await;
        match way {
            0 => {
                let finished = t.harness.finish(&rival, &mut tx, &write).await;
                assert!(finished.is_err());
                drop(tx);
            }
            1 => {
                // Where the savepoint is still there, the transaction is sound again.
                let _ = t.harness.undo(&rival, &mut tx).await;
                t.harness.rollback(tx).await;
            }
            2 => {
                let finished = t.harness.finish(&rival, &mut tx, &write).await;
                assert!(finished.is_err());
                t.harness.rollback(tx).await;
            }
            _ => drop(tx),
        }

        let begun = t.harness.begin(&rival, &write.key, Expect::Absent).await;
        let mut tx = begun.unwrap().expect("in progress");
        t.harness.insert(&mut tx, way).await.unwrap();
        assert!(t.harness.finish(&rival, &mut tx, &write).await.unwrap());
        t.harness.commit(tx).await.unwrap();
    }

    assert_eq!(t.harness.rows().await, [0, 1, 2, 3]);
}

/// Refused, rolled back, committed: the one connection is clean every time.
pub async fn a_pool_of_one_connection_is_enough<H: TxHarness>(t: GuardFixture<H>) {
    let rival = t.harness.rival();
    let begin =
        async |name: &str, expect| t.harness.begin(&rival, &key(name), expect).await.unwrap();

    for n in 0..4 {
        let name = format!("k{n}");
        assert!(begin(&name, Expect::Fence(7)).await.is_none());
        let tx = begin(&name, Expect::Absent).await.unwrap();
        t.harness.rollback(tx).await;
        let mut tx = begin(&name, Expect::Absent).await.unwrap();
        t.harness.insert(&mut tx, n).await.unwrap();
        let write = finished(&name, Expect::Absent);
        assert!(t.harness.finish(&rival, &mut tx, &write).await.unwrap());
        t.harness.commit(tx).await.unwrap();
        assert!(begin(&name, Expect::Absent).await.is_none());
        // Outside a transaction again: this commits by itself.
        assert!(
            rival
                .put(&claim(&format!("leased {n}")))
                .await
                .unwrap()
                .is_some()
        );
        assert!(t.look(&format!("leased {n}")).await.is_some());
    }

    assert_eq!(t.harness.rows().await, [0, 1, 2, 3]);
}

/// An expired record that is just being replaced is not purged, and nobody waits for it.
pub async fn case_32_a_purge_passes_over_what_a_transaction_replaces<H: TxHarness>(
    t: GuardFixture<H>,
) {
    let rival = t.harness.rival();
    let first = t.ended("k", State::Succeeded).await;
    t.ended("other", State::Succeeded).await;
    t.advance(KEEP).await;
    let expect = Expect::Fence(first.fence);
    let mut tx = t.begin_as("k", expect).await.unwrap();
    assert!(t.finish(&mut tx, &finished("k", expect)).await);

    let asked = Instant::now();
    let purged = Records::purge(&rival, 10).await;
    assert!(asked.elapsed() < Duration::from_secs(20));
    t.harness.commit(tx).await.unwrap();

    match purged {
        Ok(1) if t.harness.concurrent_writers() => {}
        Err(StoreError::Busy(_)) if !t.harness.concurrent_writers() => {}
        other => panic!("{other:?}"),
    }
    assert!(t.find("k").await.record.fence > first.fence);
    assert!(Records::purge(&rival, 10).await.unwrap() <= 1);
    assert!(t.look("k").await.is_some());
    assert_eq!(t.look("other").await, None);
}

/// Quotes, comments, placeholders, 255 bytes: the statements carry the key along.
pub async fn case_39_odd_keys_are_claimed_like_others<H: TxHarness>(t: GuardFixture<H>) {
    let names = [
        "Ab".to_owned(),
        "ab".into(),
        "ab ".into(),
        "*/; DROP TABLE business; /*".into(),
        "' OR 1=1 --".into(),
        "{digest}{expected}{key}{lock}".into(),
        "ä".repeat(127),
        "x".repeat(255),
    ];

    for (n, name) in (0..).zip(&names) {
        t.run(name, n).await;
    }

    for name in &names {
        assert_eq!(t.find(name).await.record.key, key(name));
        assert!(t.begin(name).await.is_none());
    }
    assert_eq!(t.harness.rows().await.len(), names.len());
}

/// Each waits for its turn, finds the record, and one has run.
pub async fn twenty_claims_at_once_run_one_after_the_other<H: TxHarness>(t: GuardFixture<H>) {
    let t = Arc::new(t);
    let ran = Arc::new(AtomicU32::new(0));
    let running: Vec<_> = (0..20)
        .map(|n| {
            let (t, ran) = (Arc::clone(&t), Arc::clone(&ran));
            tokio::spawn(async move {
                while t.look("k").await.is_none() {
                    match t.harness.begin(&t.guard, &key("k"), Expect::Absent).await {
                        Ok(Some(mut tx)) => {
                            ran.fetch_add(1, Ordering::SeqCst);
                            t.harness.insert(&mut tx, n).await.unwrap();
                            assert!(t.finish(&mut tx, &finished("k", Expect::Absent)).await);
                            t.harness.commit(tx).await.unwrap();
                        }
                        Ok(None) | Err(StoreError::Busy(_)) => tokio::task::yield_now().await,
                        Err(other) => panic!("{other:?}"),
                    }
                }
            })
        })
        .collect();
    for one in running {
        one.await.unwrap();
    }

    assert_eq!(ran.load(Ordering::SeqCst), 1);
    assert_eq!(t.harness.rows().await.len(), 1);
}

/// The same key in two tables is two keys.
pub async fn a_domain_has_a_table_of_its_own<H: TxHarness>(t: GuardFixture<H>) {
    let domain = t.harness.domain("orders_guard").await;
    let again = t.harness.domain("orders_guard").await;
    t.run("k", 1).await;

    let begun = t.harness.begin(&domain, &key("k"), Expect::Absent).await;
    let mut tx = begun.unwrap().expect("in progress");
    t.harness.insert(&mut tx, 2).await.unwrap();
    let write = finished("k", Expect::Absent);
    assert!(t.harness.finish(&domain, &mut tx, &write).await.unwrap());
    t.harness.commit(tx).await.unwrap();
    let fee = Key::new("shop", "fee", "k").unwrap();
    assert!(domain.put(&claim_of(fee.clone())).await.unwrap().is_some());

    assert_eq!(again.list(&Default::default()).await.unwrap().len(), 2);
    assert_eq!(again.stats().await.unwrap().len(), 2);
    assert_eq!(again.stuck(Duration::ZERO, None, 10).await.unwrap(), []);
    assert_eq!(Records::purge(&again, 10).await.unwrap(), 0);
    assert_eq!(t.guard.look(&fee.digest()).await.unwrap(), None);
    assert!(domain.forget(&key("k").digest()).await.unwrap());
    assert!(t.look("k").await.is_some());
    assert_eq!(t.harness.rows().await, [1, 2]);
}

/// A claim is nobody's business before it is finished.
pub async fn nobody_sees_an_unfinished_claim<H: TxHarness>(t: GuardFixture<H>) {
    let replaced = t.ended("old", State::Failed).await;
    let rival = t.harness.rival();
    for (name, expect) in [
        ("new", Expect::Absent),
        ("old", Expect::Fence(replaced.fence)),
    ] {
        let tx = t.begin_as(name, expect).await.unwrap();

        let seen = rival.look(&key(name).digest()).await.unwrap();
        let listed = rival.list(&Default::default()).await.unwrap();
        let stats = rival.stats().await.unwrap();

        assert_eq!(seen.is_some(), name == "old");
        assert!(seen.is_none_or(|f| f.record.state == State::Failed));
        assert_eq!(listed.len(), 1);
        assert_eq!((stats[0].processing, stats[0].failed), (0, 1));
        t.harness.rollback(tx).await;
    }
}
