//! Numbers are given at enqueue, but become visible at commit: nothing that commits late is lost,
//! and reading from a low mark changes nothing but the speed.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil_core::mark::{Horizon, LowMark};
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::Want;

use crate::fixture::{Fixture, QUEUE, Relay, id, ids, keys, message, messages, versions};
use crate::harness::Harness;
use crate::suite::Seed;

/// A reader that starts at its low mark, as the engine does.
struct Marked<'a> {
    relay: &'a Relay,
    mark: LowMark,
    in_flight: Vec<RawRow>,
    horizon: Horizon,
}

impl<'a> Marked<'a> {
    fn new(relay: &'a Relay) -> Self {
        let horizon = Horizon::Unknown;
        Self {
            relay,
            mark: LowMark::default(),
            in_flight: Vec::new(),
            horizon,
        }
    }

    /// Reads from the mark, and checks that reading from the beginning would say the same.
    async fn read(&mut self, limit: usize) -> Vec<RawRow> {
        let from = self.mark.position();
        let skip: Vec<i64> = self.in_flight.iter().map(|r| r.seq).collect();
        let want = |after| {
            [Want {
                after,
                limit,
                ..self.relay.want(QUEUE)
            }]
        };
        let mut read = self.relay.store.read(&want(from), &skip).await.unwrap();
        let all = self.relay.store.read(&want(0), &skip).await.unwrap();
        let rows = read.rows.remove(0);
        assert_eq!(
            keys(&rows),
            keys(&all.rows[0]),
            "the mark at {from} hides something"
        );
        let last = rows.last().map(|r| r.seq);
        self.horizon = read.horizon;
        self.mark
            .after_read(from, last, read.reach[0], read.horizon);
        self.in_flight.extend(rows.iter().cloned());
        rows
    }

    /// Settles everything under way.
    async fn settle(&mut self) {
        let front = self.mark.front();
        let rows = std::mem::take(&mut self.in_flight);
        let settled = self.relay.sent(QUEUE, &rows).await;
        self.mark.after_settle(front, settled.stamp);
    }
}

/// Reading is by state, not by "greater than the last one seen".
pub async fn a_transaction_that_commits_late_is_not_skipped<H: Harness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let relay = t.relay(&[QUEUE]).await;
    let (late, early) = (message("a", 1), message("b", 1));
    let mut slow = t.harness.begin().await;
    t.harness
        .enqueue(&mut slow, std::slice::from_ref(&late))
        .await
        .unwrap();
    t.put(std::slice::from_ref(&early)).await;
    let rows = relay.read(QUEUE).await;
    assert_eq!(ids(&rows), [early.id]);
    relay.sent(QUEUE, &rows).await;

    t.harness.commit(slow).await.unwrap();

    assert_eq!(ids(&relay.read(QUEUE).await), [late.id]);
}

/// However often the reader settles meanwhile, its mark stays below an open transaction.
pub async fn a_low_mark_does_not_pass_an_open_transaction<H: Harness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let relay = t.relay(&[QUEUE]).await;
    let mut reader = Marked::new(&relay);
    let late = message("late", 1);
    let mut slow = t.harness.begin().await;
    t.harness
        .enqueue(&mut slow, std::slice::from_ref(&late))
        .await
        .unwrap();
    for n in 0..10 {
        t.put(&messages(n, 2)).await;
        reader.read(1_000).await;
        reader.settle().await;
        reader.read(1_000).await;
    }

    t.harness.commit(slow).await.unwrap();

    assert_eq!(ids(&reader.read(1_000).await), [late.id]);
}

/// A transaction that has written business rows only takes its number later than its id.
pub async fn a_low_mark_does_not_pass_a_transaction_that_enqueues_late<H: Harness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let relay = t.relay(&[QUEUE]).await;
    let mut reader = Marked::new(&relay);
    let mut slow = t.harness.begin().await;
    for n in 0..5 {
        t.put(&messages(n, 2)).await;
        reader.read(1_000).await;
        reader.settle().await;
    }
    let late = message("late", 1);
    t.harness
        .enqueue(&mut slow, std::slice::from_ref(&late))
        .await
        .unwrap();
    for n in 5..10 {
        t.put(&messages(n, 2)).await;
        reader.read(1_000).await;
        reader.settle().await;
    }

    t.harness.commit(slow).await.unwrap();

    assert_eq!(ids(&reader.read(1_000).await), [late.id]);
}

/// A message that was written after the late commit does not overtake it.
pub async fn a_low_mark_never_reorders<H: Harness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    let relay = t.relay(&[QUEUE]).await;
    let mut reader = Marked::new(&relay);
    let mut slow = t.harness.begin().await;
    t.harness
        .enqueue(&mut slow, &[message("a", 1)])
        .await
        .unwrap();
    for n in 0..5 {
        t.put(&messages(n, 2)).await;
        reader.read(1_000).await;
        reader.settle().await;
        reader.read(1_000).await;
    }
    t.harness.commit(slow).await.unwrap();
    t.put(&[message("a", 2)]).await;

    let rows = reader.read(1_000).await;

    assert_eq!(versions(&rows), [1, 2]);
}

/// A store that tells its horizon lets the mark move once old transactions have ended.
pub async fn a_low_mark_moves_when_nobody_holds_it<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut reader = Marked::new(&relay);
    // Other tests may hold transactions open on the same server for a moment.
    for n in 0..2_000 {
        t.put(&messages(n, 2)).await;
        reader.read(1_000).await;
        if reader.mark.position() > 0 || reader.horizon == Horizon::Unknown {
            break;
        }
        reader.settle().await;
        tokio::time::sleep(Duration::from_millis(u64::from(n > 10))).await;
    }

    let moved = reader.mark.position() > 0;

    assert!(
        moved || reader.horizon == Horizon::Unknown,
        "the mark never moves"
    );
}

/// Transactions begin, write and end in any order; the marked reader sees what a full read sees,
/// and in the end everything that was committed, once.
pub async fn a_low_mark_hides_nothing_whatever_happens<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut reader = Marked::new(&relay);
    let mut seed = Seed::new("a_low_mark_hides_nothing_whatever_happens");
    let mut open: Vec<(H::Tx, Vec<MessageId>)> = Vec::new();
    let (mut committed, mut seen) = (BTreeSet::new(), BTreeSet::new());
    let most = if t.harness.concurrent_writers() { 4 } else { 1 };

    for step in 0..250 {
        match seed.below(6) {
            0 if open.len() < most => open.push((t.harness.begin().await, Vec::new())),
            1 | 2 if !open.is_empty() => {
                let n = seed.below(open.len());
                let some: Vec<Message> = (0..=seed.below(3))
                    .map(|_| message(seed.below(5), step))
                    .collect();
                t.harness.enqueue(&mut open[n].0, &some).await.unwrap();
                open[n].1.extend(some.iter().map(|m| m.id));
            }
            3 if !open.is_empty() => {
                let (tx, written) = open.swap_remove(seed.below(open.len()));
                if seed.below(4) == 0 {
                    t.harness.rollback(tx).await;
                } else {
                    t.harness.commit(tx).await.unwrap();
                    committed.extend(written);
                }
            }
            4 => {
                let rows = reader.read(seed.below(6) + 1).await;
                rows.iter()
                    .for_each(|r| assert!(seen.insert(id(r)), "seen twice"));
            }
            // With a single writer, a settlement would wait for the open transaction.
            5 if most > 1 || open.is_empty() => reader.settle().await,
            _ => {}
        }
    }
    for (tx, written) in open {
        t.harness.commit(tx).await.unwrap();
        committed.extend(written);
    }
    seen.extend(ids(&reader.read(100_000).await));

    assert_eq!(seen, committed);
}
