//! What is forgotten, and when.

use std::time::{Duration, Instant};

use counterfoil_core::inbox::{Keep, Mode};

use super::fixture::{CONSUMER, RIVAL, failed};
use super::harness::InboxHarness;
use crate::fixture::{Fixture, lane};

const DAY: Duration = Duration::from_secs(86_400);

impl<H: InboxHarness> Fixture<H> {
    async fn purge(&self, keep: Duration, batch: u32) -> u64 {
        let keep = Keep {
            processed: keep,
            aggregates: Some(keep),
        };
        self.harness.purge(CONSUMER, keep, batch).await.unwrap()
    }
}

/// The oldest first.
pub async fn what_was_applied_long_ago_goes_in_batches<H: InboxHarness>(t: Fixture<H>) {
    t.arrive(&["a", "b", "c"]).await;
    t.process(RIVAL, Mode::Arrival, &["a"]).await;
    t.harness.age_inbox(1).await;
    t.arrive(&["d", "e"]).await;
    t.harness.age_inbox(2).await;
    t.arrive(&["f"]).await;

    assert_eq!(t.purge(DAY * 4, 10).await, 0);
    assert_eq!(t.purge(DAY, 3).await, 3);
    let left = ["a", "b", "c", "d", "e", "f"];
    let mut tx = t.consume().await;
    let fresh = t.admit(&mut tx, &left, &[]).await.fresh;
    t.harness.rollback(tx).await;
    assert_eq!(fresh.len(), 3);
    assert!(!fresh.contains("d") && !fresh.contains("e") && !fresh.contains("f"));
    assert_eq!(t.purge(DAY, 10).await, 2);
    assert_eq!(t.purge(DAY, 10).await, 0);
    assert!(t.arrive(&["f"]).await.is_empty());
    assert!(t.process(RIVAL, Mode::Arrival, &["a"]).await.is_empty());
}

/// Until it was applied, and then from that day on.
pub async fn what_waits_is_kept<H: InboxHarness>(t: Fixture<H>) {
    t.put_off(&[failed("a", 1, 1)]).await;
    t.harness.age_inbox(400).await;
    // The aggregate goes, and what waits does not.
    assert_eq!(t.purge(DAY, 10).await, 1);
    assert_eq!(t.purge(DAY, 10).await, 0);
    assert!(t.arrive(&["a"]).await.is_empty());
    assert!(t.lane(&lane(1)).await.taken);

    assert_eq!(t.process(CONSUMER, Mode::Retry, &["a"]).await, ["a"]);

    assert_eq!(t.purge(DAY, 10).await, 0);
    assert!(t.arrive(&["a"]).await.is_empty());
    t.harness.age_inbox(2).await;
    assert_eq!(t.purge(DAY, 10).await, 1);
}

/// Their versions are still needed.
pub async fn aggregates_that_were_touched_since_are_kept<H: InboxHarness>(t: Fixture<H>) {
    t.apply("a", &lane(1), 7).await;
    t.apply("b", &lane(2), 7).await;
    t.apply("c", &lane(3), 7).await;
    t.harness.age_inbox(5).await;
    t.apply("d", &lane(2), 8).await;
    t.harness.age_inbox(2).await;

    // Three keys and two aggregates.
    assert_eq!(t.purge(DAY * 4, 2).await, 4);
    assert_eq!(t.purge(DAY * 4, 2).await, 1);

    assert_eq!(t.lane(&lane(1)).await.applied, None);
    assert_eq!(t.lane(&lane(2)).await.applied, Some(8));
    assert_eq!(t.lane(&lane(3)).await.applied, None);
}

/// Where none may be left out, the last one must be known.
pub async fn versions_are_kept_for_ever_when_asked_to<H: InboxHarness>(t: Fixture<H>) {
    t.apply("a", &lane(1), 7).await;
    t.harness.age_inbox(900).await;
    let keep = Keep {
        processed: DAY,
        aggregates: None,
    };

    assert_eq!(t.harness.purge(CONSUMER, keep, 10).await.unwrap(), 1);

    assert_eq!(t.lane(&lane(1)).await.applied, Some(7));
}

/// Hence the age must be longer than the broker's.
pub async fn a_forgotten_key_is_fresh_again<H: InboxHarness>(t: Fixture<H>) {
    t.arrive(&["a"]).await;
    t.harness.age_inbox(2).await;
    assert_eq!(t.purge(DAY, 10).await, 1);

    assert_eq!(t.arrive(&["a"]).await, ["a"]);
}

/// And waits for nobody.
pub async fn a_purge_passes_over_what_is_just_processed<H: InboxHarness>(t: Fixture<H>) {
    if !t.harness.concurrent_writers() {
        return;
    }
    t.apply("a", &lane(1), 1).await;
    t.apply("b", &lane(2), 1).await;
    t.harness.age_inbox(9).await;
    let mut tx = t.consume().await;
    t.admit(&mut tx, &["c"], &[&lane(1)]).await;

    let asked = Instant::now();
    assert_eq!(t.purge(DAY, 10).await, 3);
    assert!(asked.elapsed() < Duration::from_secs(20));
    t.end(tx, &[(&lane(1), 2)]).await;

    assert_eq!(t.purge(DAY, 10).await, 0);
    assert_eq!(t.lane(&lane(1)).await.applied, Some(2));
    assert_eq!(t.lane(&lane(2)).await.applied, None);
}

/// From nothing to for ever.
pub async fn any_age_will_do<H: InboxHarness>(t: Fixture<H>) {
    t.arrive(&["a", "b"]).await;
    t.harness.age_inbox(1).await;

    assert_eq!(t.purge(Duration::MAX, 10).await, 0);
    assert_eq!(t.purge(DAY * 2, 0).await, 0);
    t.apply("c", &lane(1), 7).await;
    // All keys, and no aggregate of today.
    assert_eq!(t.purge(Duration::ZERO, 10).await, 3);
    assert_eq!(t.lane(&lane(1)).await.applied, Some(7));
}
