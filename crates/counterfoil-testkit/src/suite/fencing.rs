//! Who may change what: a stale owner changes nothing, the right one everything.

use counterfoil_core::row::{RawRow, RowState};
use counterfoil_core::store::{RelayId, Reroute, Settlement, ShardRef};

use crate::fixture::{
    Fixture, LATER, OTHER, QUEUE, Relay, id, ids, keys, message, messages, park, retry,
};
use crate::harness::Harness;

fn copies(row: &RawRow, queues: &[&str]) -> Reroute {
    let copies = queues
        .iter()
        .map(|q| (id(row).derive(q), (*q).to_owned()))
        .collect();
    Reroute {
        row: row.key(),
        copies,
    }
}

/// Everything that a settlement can say about one row.
pub(super) fn each_kind(row: &RawRow) -> Vec<Settlement> {
    let one = || keys(std::slice::from_ref(row));
    let nothing = Settlement::default;
    vec![
        Settlement {
            sent: one(),
            ..nothing()
        },
        Settlement {
            sent: one(),
            fresh: true,
            ..nothing()
        },
        Settlement {
            sent: one(),
            keep_sent: true,
            ..nothing()
        },
        Settlement {
            retry: vec![retry(row, LATER)],
            ..nothing()
        },
        Settlement {
            hold: one(),
            ..nothing()
        },
        Settlement {
            schedule: one(),
            ..nothing()
        },
        Settlement {
            defer: vec![(row.key(), LATER)],
            ..nothing()
        },
        Settlement {
            park: vec![park(row)],
            ..nothing()
        },
        Settlement {
            reroute: vec![copies(row, &[OTHER])],
            ..nothing()
        },
    ]
}

/// Whoever lost a shard changes nothing in it, in no way.
pub async fn a_stale_owner_cannot_change_anything<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let stale = t.relay(&[QUEUE]).await;
    let row = stale.read(QUEUE).await.remove(0);
    stale.give(&stale.every_shard()).await;
    let mut owner = t.other_relay(&[QUEUE]).await;
    owner.take_all().await;

    for settlement in each_kind(&row) {
        let settled = stale.try_settle(QUEUE, &settlement).await;

        assert!(settled.lost.contains(&row.shard), "{settlement:?}");
        let rows = owner.read(QUEUE).await;
        assert_eq!(ids(&rows), [id(&row)], "after {settlement:?}");
        assert_eq!((&rows[0].state, rows[0].attempts), (&RowState::New, 0));
    }
    let suspected = stale
        .store
        .suspect(&stale.fence(QUEUE), &row.key())
        .await
        .unwrap();

    assert_eq!(suspected, None);
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.parked, audit.sent_kept), (1, 0, 0));
    assert_eq!(
        t.desk
            .show(&id(&row).to_string())
            .await
            .unwrap()
            .unwrap()
            .events
            .len(),
        0
    );
}

/// The right owner can do what the stale one could not.
pub async fn the_owner_can_change_everything<H: Harness>(t: Fixture<H>) {
    let mut owner = t.relay(&[QUEUE]).await;
    owner.give(&owner.every_shard()).await;
    owner.take_all().await;

    for n in 0..8 {
        t.put(&[message(n, 1).not_before(chrono::Utc::now() + LATER)])
            .await;
        let row = owner.read(QUEUE).await.remove(0);
        assert_eq!(
            owner
                .store
                .suspect(&owner.fence(QUEUE), &row.key())
                .await
                .unwrap(),
            Some(1)
        );

        owner.settle(QUEUE, &each_kind(&row)[n]).await;

        assert!(
            owner.read(QUEUE).await.is_empty(),
            "put aside by {:?}",
            each_kind(&row)[n]
        );
    }
}

/// A number from before is stale, even one's own.
pub async fn an_old_number_of_ones_own_is_stale<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let mut relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    let old = relay.fence(QUEUE);
    relay.give(&relay.every_shard()).await;
    relay.take_all().await;

    let settled = relay.store.settle(&old, &each_kind(&row)[0]).await.unwrap();

    assert!(settled.lost.contains(&row.shard));
    assert_eq!(relay.read(QUEUE).await.len(), 1);
}

/// The number alone is not enough: it belongs to its owner.
pub async fn a_number_under_another_name_is_worth_nothing<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 1)).await;
    let relay = t.relay(&[QUEUE]).await;
    let row = relay.read(QUEUE).await.remove(0);
    let mut forged = relay.fence(QUEUE);
    forged.relay = RelayId::new("forger");

    let settled = relay
        .store
        .settle(&forged, &each_kind(&row)[0])
        .await
        .unwrap();

    assert!(settled.lost.contains(&row.shard));
    assert_eq!(relay.read(QUEUE).await.len(), 1);
}

/// A lapsed owner is stale as soon as its shards have a new owner.
pub async fn a_lapsed_owner_cannot_settle<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    t.put(&messages("a", 1)).await;
    let stale = t.relay(&[QUEUE]).await;
    let rows = stale.read(QUEUE).await;
    t.harness.expire_lease(&stale.id).await;
    let mut owner = t.other_relay(&[QUEUE]).await;
    owner.take_all().await;

    let settled = stale.try_settle(QUEUE, &each_kind(&rows[0])[0]).await;

    assert!(settled.lost.contains(&rows[0].shard));
    assert_eq!(ids(&owner.read(QUEUE).await), ids(&rows));
    owner.sent(QUEUE, &rows).await;
}

/// Losing one shard loses that one only: the rest of the settlement holds.
pub async fn lost_shards_are_left_alone_and_the_others_are_settled<H: Harness>(t: Fixture<H>) {
    if t.store.shards() < 2 {
        return;
    }
    let mut first = t.relay(&[QUEUE]).await;
    let mut second = t.other_relay(&[QUEUE]).await;
    // Deliveries alone may take a shorter way than deliveries with something else.
    for (with_retry, fresh) in [(false, false), (false, true), (true, false), (true, true)] {
        first.take_all().await;
        t.put(&(0..60).map(|n| message(n, 1)).collect::<Vec<_>>())
            .await;
        let rows = first.read(QUEUE).await;
        let lost = rows[0].shard;
        let one_lost = ShardRef {
            queue: first.queues[0].clone(),
            shard: lost,
        };
        first.give(std::slice::from_ref(&one_lost)).await;
        assert_eq!(second.take(std::slice::from_ref(&one_lost)).await.len(), 1);

        let (last, others) = rows.split_last().unwrap();
        let settlement = if with_retry {
            let retry = vec![retry(last, LATER)];
            Settlement {
                sent: keys(others),
                fresh,
                retry,
                ..Settlement::default()
            }
        } else {
            Settlement {
                sent: keys(&rows),
                fresh,
                ..Settlement::default()
            }
        };
        let settled = first.try_settle(QUEUE, &settlement).await;

        assert_eq!(settled.lost, [lost]);
        let left = first.read(QUEUE).await;
        let expected: Vec<RawRow> = rows.into_iter().filter(|r| r.shard == lost).collect();
        assert_eq!(ids(&left), ids(&expected));
        second.sent(QUEUE, &left).await;
        second.give(std::slice::from_ref(&one_lost)).await;
    }
}

/// A suspicion survives the process that had it.
pub async fn a_suspicion_is_counted_durably<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let first = t.relay(&[QUEUE]).await;
    let rows = first.read(QUEUE).await;
    let suspect = async |relay: &Relay, row: &RawRow| {
        relay
            .store
            .suspect(&relay.fence(QUEUE), &row.key())
            .await
            .unwrap()
    };
    assert_eq!(suspect(&first, &rows[0]).await, Some(1));
    first.give(&first.every_shard()).await;
    let mut second = t.other_relay(&[QUEUE]).await;
    second.take_all().await;

    assert_eq!(suspect(&second, &rows[0]).await, Some(2));

    let found = second.read(QUEUE).await;
    assert_eq!(found.iter().map(|r| r.crashes).collect::<Vec<_>>(), [2, 0]);
    second.sent(QUEUE, &rows[..1]).await;
    assert_eq!(suspect(&second, &rows[0]).await, None, "the row is gone");
}
