//! Who waits for whom: the relay never for the application, nobody for a busy shard.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::message::MessageId;
use counterfoil_core::store::{Reroute, Retention, Settlement, ShardRef};
use counterfoil_testkit::fixture::{
    Fixture, LEASE, OTHER, QUEUE, Relay, id, message, messages, park, retry,
};
use counterfoil_testkit::harness::Harness;
use counterfoil_testkit::suite::run;

use super::harness::MysqlHarness;

/// Shorter than the store's own patience with locks.
const SOON: Duration = Duration::from_secs(5);

async fn soon<F: Future>(what: &str, work: F) -> F::Output {
    match tokio::time::timeout(SOON, work).await {
        Ok(done) => done,
        Err(_) => panic!("{what} waits for the application"),
    }
}

/// One row in every role, few enough that a server might rather scan the table than use a key.
async fn everything_at_once(t: &Fixture<MysqlHarness>, relay: &Relay) {
    let rows = relay.read(QUEUE).await;
    let keep = Settlement {
        sent: vec![rows[0].key()],
        keep_sent: true,
        ..Settlement::default()
    };
    soon("keeping", relay.settle(QUEUE, &keep)).await;
    soon("sending", relay.sent(QUEUE, &rows[1..2])).await;
    let mixed = Settlement {
        retry: vec![retry(&rows[2], Duration::ZERO)],
        hold: vec![rows[3].key()],
        schedule: vec![rows[4].key()],
        defer: vec![(rows[5].key(), Duration::ZERO)],
        park: vec![park(&rows[6]), park(&rows[7])],
        reroute: vec![Reroute {
            row: rows[8].key(),
            copies: vec![(MessageId::new(), OTHER.into())],
        }],
        ..Settlement::default()
    };
    soon("settling", relay.settle(QUEUE, &mixed)).await;
    let redriven = soon(
        "redriving",
        t.desk.redrive(&[id(&rows[6]).to_string()], false, "ann"),
    )
    .await
    .unwrap();
    assert_eq!(redriven.redriven.len(), 1);
    let again = relay.waiting(QUEUE).await;
    let again: Vec<_> = again.into_iter().filter(|r| r.seq == rows[6].seq).collect();
    soon("delivering", relay.sent(QUEUE, &again)).await;
    assert!(
        soon(
            "cancelling",
            t.desk.cancel(&id(&rows[9]).to_string(), "no", "ann")
        )
        .await
        .unwrap()
    );
    let fence = relay.fence(QUEUE);
    assert_eq!(
        soon("suspecting", relay.store.suspect(&fence, &rows[2].key()))
            .await
            .unwrap(),
        Some(1)
    );
    let nothing = Retention {
        history: Duration::ZERO,
        ledger: Duration::ZERO,
        parked: Duration::ZERO,
        batch: 100,
    };
    soon("sweeping", relay.store.sweep(&nothing)).await.unwrap();
}

#[test]
fn nothing_waits_for_an_open_transaction_of_the_application() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let relay = t.relay(&[QUEUE]).await;
        let mut before = t.harness.begin().await;
        t.harness
            .enqueue(&mut before, &messages("before", 2))
            .await
            .unwrap();
        t.put(&(0..10).map(|n| message(n, 1)).collect::<Vec<_>>())
            .await;
        let mut after = t.harness.begin().await;
        t.harness
            .enqueue(&mut after, &messages("after", 2))
            .await
            .unwrap();

        everything_at_once(&t, &relay).await;

        t.harness.commit(before).await.unwrap();
        t.harness.commit(after).await.unwrap();
        assert_eq!(relay.read(QUEUE).await.len(), 4);
    });
}

/// Settling holds the ownership of its shards shared: whoever wants to take them does not wait.
#[test]
fn a_shard_in_use_is_left_out_of_a_take() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let relay = t.relay(&[QUEUE]).await;
        let mut other = t.other_relay(&[QUEUE]).await;
        t.harness.expire_lease(&relay.id).await;
        let mut settling = t.harness.begin().await;
        sqlx::query(
            "SELECT epoch FROM counterfoil_shards WHERE queue = ? AND shard = 5 LOCK IN SHARE MODE",
        )
        .bind(QUEUE)
        .execute(&mut *settling)
        .await
        .unwrap();

        let taken = soon("taking", other.take_all()).await;

        let five = ShardRef {
            queue: Arc::from(QUEUE),
            shard: 5,
        };
        assert_eq!(taken.len(), usize::from(t.store.shards()) - 1);
        assert!(
            taken
                .iter()
                .all(|s| s.shard != five && s.from_dead && s.epoch == 2)
        );
        t.harness.rollback(settling).await;
        assert_eq!(other.take(&[five]).await.len(), 1);
    });
}

#[test]
fn hearts_beat_while_every_connection_is_busy() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        let relay = Relay::join(Arc::clone(&t.store), &[QUEUE]).await;
        let pool = t.harness.store.pool();
        let mut busy = Vec::new();
        for _ in 0..pool.options().get_max_connections() {
            busy.push(pool.acquire().await.unwrap());
        }

        let beats = soon("the heart", t.store.heartbeat(&relay.id, LEASE)).await;

        assert!(beats.unwrap());
    });
}
