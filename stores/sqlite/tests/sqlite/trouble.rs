//! Full disks, read-only files, files that are no databases, and callers that go away.

use std::sync::Arc;

use counterfoil_core::desk::Desk;
use counterfoil_core::message::{Message, Payload};
use counterfoil_core::store::{Disposition, Keyed, Settlement, Store, StoreError};
use counterfoil_sqlite::{SqliteStore, check_before_commit, enqueue, enqueue_keyed, once};
use counterfoil_testkit::fixture::{Fixture, QUEUE, Relay, keys, messages};
use counterfoil_testkit::gone::after_polls;
use counterfoil_testkit::harness::Harness as _;
use sqlx::sqlite::{SqliteConnectOptions, SqlitePool, SqlitePoolOptions};
use sqlx::{Sqlite, Transaction};

use super::harness::SqliteHarness;

async fn fixture() -> Fixture<SqliteHarness> {
    Fixture::new(Arc::new(SqliteHarness::new().await))
}

fn large() -> Message {
    Message::new("Event", Payload::Opaque(vec![1; 100_000].into())).queue(QUEUE)
}

impl SqliteHarness {
    /// A pool on whose connections the file cannot grow any more, as on a full disk.
    async fn full(&self) -> SqlitePool {
        let (pages,): (i64,) = sqlx::query_as("PRAGMA page_count")
            .fetch_one(&self.pool)
            .await
            .unwrap();
        let options = SqliteConnectOptions::new()
            .filename(self.path())
            .pragma("max_page_count", pages.to_string());
        SqlitePoolOptions::new()
            .max_connections(1)
            .connect_with(options)
            .await
            .unwrap()
    }
}

#[tokio::test]
async fn a_full_disk_is_told_loses_nothing_and_passes() {
    let t = fixture().await;
    let kept = messages("a", 3);
    t.put(&kept).await;
    t.put(&vec![large(); 3]).await;
    let store = SqliteStore::from_pool(&t.harness.full().await).unwrap();
    let relay = Relay::join(Arc::new(store.clone()), &[QUEUE]).await;

    let many: Vec<Keyed> = (0..10).map(|_| large().into()).collect();
    let full = store.enqueue(&many).await.unwrap_err();

    assert!(
        matches!(&full, StoreError::NotWritable(text, _) if text.contains("full")),
        "{full:?}"
    );
    assert_eq!(full.disposition(), Disposition::Retry);
    assert_eq!(store.audit().await.unwrap().pending, 6, "all or nothing");
    // Space is made by delivering: a settlement needs next to none.
    let mut relay = relay;
    assert_eq!(relay.take_all().await.len(), 1);
    let rows = relay.read(QUEUE).await;
    relay.sent(QUEUE, &rows[3..]).await;
    store
        .enqueue(&[large().into(), large().into()])
        .await
        .unwrap();
    assert_eq!(store.audit().await.unwrap().pending, 5);
}

#[tokio::test]
async fn after_a_swallowed_error_nothing_is_committed_by_itself() {
    let t = fixture().await;
    let pool = t.harness.full().await;
    let mut tx = pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    enqueue(&mut tx, &messages("a", 1)).await.unwrap();
    let full = enqueue(&mut tx, &[large()]).await.unwrap_err();
    assert!(matches!(full, StoreError::NotWritable(..)), "{full:?}");

    // SQLite has rolled back; without a guard each of these would be a transaction of its own.
    let later = enqueue(&mut tx, &messages("b", 1)).await;
    let many = enqueue(&mut tx, &messages("b", 20)).await;
    let keyed = enqueue_keyed(&mut tx, &messages("c", 1)[0].clone().into()).await;
    let noted = once(&mut tx, "scope", "key").await;
    let checked = check_before_commit(&mut tx).await;

    for answer in [later, many, keyed.map(|_| ()), noted.map(|_| ()), checked] {
        assert!(matches!(answer, Err(StoreError::Doomed(_))), "{answer:?}");
    }
    drop(tx);
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.ledger), (0, 0));
}

#[tokio::test]
async fn a_read_only_file_can_be_looked_at_and_says_why_not_more() {
    let t = fixture().await;
    t.put(&messages("a", 2)).await;
    let owner = t.relay(&[QUEUE]).await;
    let url = format!("sqlite://{}?mode=ro", t.harness.path().display());
    let store = SqliteStore::connect(&url).unwrap();

    let read = store.read(&[owner.want(QUEUE)], &[]).await.unwrap();
    let sent = Settlement {
        sent: keys(&read.rows[0]),
        ..Settlement::default()
    };
    let refused = [
        store.check().await.unwrap_err(),
        store.migrate().await.unwrap_err(),
        store.enqueue(&[large().into()]).await.unwrap_err(),
        store.settle(&owner.fence(QUEUE), &sent).await.unwrap_err(),
        store.cancel("x", "y", "z").await.unwrap_err(),
    ];

    assert_eq!(read.rows[0].len(), 2);
    assert_eq!(store.stats().await.unwrap().len(), 1);
    for error in refused {
        assert!(error.to_string().contains("readonly"), "{error:?}");
        assert!(matches!(error, StoreError::NotWritable(..)));
    }
}

#[tokio::test]
async fn what_is_no_database_is_told_apart_from_what_is_not_there() {
    let home = tempfile::tempdir().unwrap();
    let garbage = home.path().join("garbage.db");
    std::fs::write(
        &garbage,
        "this is a text, and a rather long one, so that it has a first page".repeat(100),
    )
    .unwrap();

    let no_database = SqliteStore::connect(garbage.to_str().unwrap())
        .unwrap()
        .check()
        .await
        .unwrap_err();
    let directory = SqliteStore::connect(home.path().to_str().unwrap())
        .unwrap()
        .check()
        .await
        .unwrap_err();
    let missing = format!("sqlite://{}/no.db?mode=ro", home.path().display());
    let missing = SqliteStore::connect(&missing)
        .unwrap()
        .check()
        .await
        .unwrap_err();

    assert!(
        matches!(no_database, StoreError::Database(_)),
        "{no_database:?}"
    );
    assert!(
        matches!(directory, StoreError::Unreachable(_)),
        "{directory:?}"
    );
    assert!(matches!(missing, StoreError::Unreachable(_)), "{missing:?}");
}

#[tokio::test]
async fn a_database_in_memory_is_refused_as_a_pool_too() {
    for url in ["sqlite::memory:", "sqlite://x?mode=memory&cache=shared"] {
        let pool = SqlitePoolOptions::new().connect(url).await.unwrap();

        let refused = SqliteStore::from_pool(&pool).map(|_| ()).unwrap_err();

        assert!(
            refused.to_string().contains("in memory is not supported"),
            "{refused}"
        );
    }
}

#[tokio::test]
async fn callers_that_go_away_leave_a_store_that_works() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    t.put(&messages("a", 40)).await;

    for polls in 0..40 {
        let rows = relay.read(QUEUE).await;
        let Some(row) = rows.first() else { break };
        let settlement = Settlement {
            sent: vec![row.key()],
            ..Default::default()
        };
        let fence = relay.fence(QUEUE);
        let mut settle = std::pin::pin!(relay.store.settle(&fence, &settlement));
        for _ in 0..polls {
            // Goes on a few steps, and is dropped wherever it is.
            if tokio::time::timeout(std::time::Duration::ZERO, settle.as_mut())
                .await
                .is_ok()
            {
                break;
            }
        }
    }

    let rows = relay.read(QUEUE).await;
    relay.sent(QUEUE, &rows).await;
    assert!(relay.read(QUEUE).await.is_empty());
    assert_eq!(
        t.desk.audit().await.unwrap().findings(false),
        Vec::<String>::new()
    );
}

#[tokio::test]
async fn an_idle_relay_writes_nothing() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    let store: &dyn Store = &*t.store;
    let mut watcher = t.harness.pool.acquire().await.unwrap();
    let version = "PRAGMA data_version";
    let (before,): (i64,) = sqlx::query_as(version)
        .fetch_one(&mut *watcher)
        .await
        .unwrap();

    for _ in 0..10 {
        assert!(
            store
                .heartbeat(&relay.id, std::time::Duration::from_secs(1))
                .await
                .unwrap()
        );
        store.survey(&relay.id, &relay.queues).await.unwrap();
        assert!(relay.everything(QUEUE).await.is_empty());
        assert!(
            store
                .take(&relay.id, &relay.every_shard())
                .await
                .unwrap()
                .is_empty()
        );
        assert_eq!(store.sweep(&Default::default()).await.unwrap(), 0);
        store.announce().await.unwrap();
    }

    let (after,): (i64,) = sqlx::query_as(version)
        .fetch_one(&mut *watcher)
        .await
        .unwrap();
    assert_eq!(before, after, "somebody has committed something");
}

#[tokio::test]
async fn a_commit_of_another_connection_wakes() {
    let t = fixture().await;
    let mut wake = t.store.listen().await.unwrap().unwrap();

    let quiet = tokio::time::timeout(std::time::Duration::ZERO, wake.wait()).await;
    assert!(quiet.is_err(), "nothing has happened yet");
    let one = messages("a", 1);
    let (woken, ()) = tokio::join!(
        tokio::time::timeout(std::time::Duration::from_secs(30), wake.wait()),
        t.put(&one)
    );

    woken.unwrap().unwrap();
}

#[tokio::test]
async fn a_transaction_of_the_application_holds_up_writers_and_no_readers() {
    let t = fixture().await;
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let mut tx = t.harness.pool.begin_with("BEGIN IMMEDIATE").await.unwrap();
    enqueue(&mut tx, &messages("b", 1)).await.unwrap();

    let rows = relay.read(QUEUE).await;
    assert_eq!(rows.len(), 1, "what is not committed is not seen");
    let (settled, committed) = tokio::join!(relay.sent(QUEUE, &rows), tx.commit());

    committed.unwrap();
    assert!(settled.lost.is_empty());
    assert_eq!(relay.read(QUEUE).await.len(), 1, "and now it is");
}

/// Wherever the caller goes away: all of a batch or nothing, and nothing before the commit.
#[tokio::test]
async fn a_batch_that_is_cut_off_is_never_half_committed() {
    let t = fixture().await;
    let seen = async || -> i64 {
        let count = sqlx::query_scalar("SELECT count(*) FROM seen");
        count.fetch_one(&t.harness.pool).await.unwrap()
    };
    sqlx::raw_sql("CREATE TABLE seen (n int)")
        .execute(&t.harness.pool)
        .await
        .unwrap();
    let mut committed = 0;
    for polls in 1.. {
        let mut tx = t.harness.begin().await;
        let batch = messages("a", 20);
        let done = after_polls(polls, enqueue(&mut tx, &batch)).await;
        sqlx::query("INSERT INTO seen VALUES (1)")
            .execute(&mut *tx)
            .await
            .unwrap();

        assert_eq!(seen().await, committed, "after {polls} polls");
        match check_before_commit(&mut tx).await {
            Ok(()) => {
                tx.commit().await.unwrap();
                committed += 1;
            }
            Err(StoreError::Doomed(_)) => tx.rollback().await.unwrap(),
            Err(other) => panic!("{other:?}"),
        }
        let pending = t.harness.desk().audit().await.unwrap().pending;
        assert_eq!(pending % 20, 0, "after {polls} polls");
        assert_eq!(seen().await, committed);
        if let Some(done) = done {
            done.unwrap();
            break;
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_cut_off_at_any_row_dooms_its_transaction() {
    let t = fixture().await;
    let batch = messages("a", 20);
    for row in 1..=batch.len() {
        let mut tx = t.harness.begin().await;
        enqueue_up_to(row, &mut tx, &batch).await;

        for _ in 0..2 {
            let asked = check_before_commit(&mut tx).await;
            assert!(matches!(asked, Err(StoreError::Doomed(_))), "at row {row}");
        }
        let more = enqueue(&mut tx, &messages("b", 1)).await;
        assert!(matches!(more, Err(StoreError::Doomed(_))), "at row {row}");
        tx.rollback().await.unwrap();
    }
    assert_eq!(t.harness.desk().audit().await.unwrap().pending, 0);
}

/// A caller that goes away while this row of its batch is written.
async fn enqueue_up_to(row: usize, tx: &mut Transaction<'_, Sqlite>, batch: &[Message]) {
    let (reached, at_the_row) = tokio::sync::oneshot::channel();
    let (here, gone) = std::sync::mpsc::channel::<()>();
    let (mut reached, mut rows) = (Some(reached), 0);
    tx.lock_handle().await.unwrap().set_update_hook(move |_| {
        rows += 1;
        if rows == row
            && let Some(reached) = reached.take()
        {
            reached.send(()).unwrap();
            gone.recv().unwrap_err();
        }
    });
    tokio::select! {
        told = at_the_row => told.unwrap(),
        done = enqueue(tx, batch) => panic!("was not cut off: {done:?}"),
    }
    drop(here);
    tx.lock_handle().await.unwrap().remove_update_hook();
}
