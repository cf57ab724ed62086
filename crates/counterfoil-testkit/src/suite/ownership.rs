//! Who owns what: one owner for each shard, fencing numbers that only grow.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::store::ShardRef;

use crate::fixture::{Fixture, LEASE, OTHER, QUEUE, Relay};
use crate::harness::Harness;

/// A living owner keeps its shards.
pub async fn a_shard_whose_owner_lives_cannot_be_taken<H: Harness>(t: Fixture<H>) {
    let first = t.relay(&[QUEUE]).await;
    let mut second = t.other_relay(&[QUEUE]).await;

    let taken = second.take_all().await;

    assert_eq!(taken, []);
    assert!(first.store.heartbeat(&first.id, LEASE).await.unwrap());
}

/// An owner that asks again for what it has gets nothing new, and its numbers stay.
pub async fn taking_what_one_owns_changes_nothing<H: Harness>(t: Fixture<H>) {
    let mut relay = t.relay(&[QUEUE]).await;
    let before = relay.epochs.clone();

    let again = relay.take_all().await;

    assert_eq!(again, []);
    let survey = relay.store.survey(&relay.id, &relay.queues).await.unwrap();
    assert!(survey.owned.iter().all(|o| before[&o.shard] == o.epoch));
}

/// Only what was asked for is taken.
pub async fn only_wanted_shards_are_taken<H: Harness>(t: Fixture<H>) {
    let mut relay = Relay::join(Arc::clone(&t.store), &[QUEUE]).await;
    let last = relay.every_shard().pop().unwrap();

    let taken = relay.take(std::slice::from_ref(&last)).await;

    assert_eq!(taken.len(), 1);
    assert_eq!(taken[0].shard, last);
    let survey = relay.store.survey(&relay.id, &relay.queues).await.unwrap();
    assert_eq!(survey.owned.len(), 1);
}

/// A shard that was given back goes to the next one, who need not look for suspects.
pub async fn a_given_shard_is_taken_under_a_higher_number<H: Harness>(t: Fixture<H>) {
    let first = t.relay(&[QUEUE]).await;
    let mut second = t.other_relay(&[QUEUE]).await;

    first.give(&first.every_shard()).await;
    let taken = second.take_all().await;

    assert_eq!(taken.len(), first.epochs.len());
    for t in taken {
        assert!(!t.from_dead, "given back in order");
        assert!(t.epoch > first.epochs[&t.shard]);
    }
}

/// Numbers of a shard never come twice, however often it changes hands.
pub async fn fencing_numbers_only_grow<H: Harness>(t: Fixture<H>) {
    let mut relay = t.relay(&[QUEUE]).await;
    let shard = relay.every_shard().remove(0);
    let mut last = relay.epochs[&shard];

    for _ in 0..5 {
        relay.give(std::slice::from_ref(&shard)).await;
        let taken = relay.take(std::slice::from_ref(&shard)).await;

        assert_eq!(taken.len(), 1);
        assert!(taken[0].epoch > last, "{} after {last}", taken[0].epoch);
        last = taken[0].epoch;
    }
}

/// Somebody else's shard cannot be given away.
pub async fn giving_what_one_does_not_own_changes_nothing<H: Harness>(t: Fixture<H>) {
    let owner = t.relay(&[QUEUE]).await;
    let mut other = t.other_relay(&[QUEUE]).await;

    other.give(&owner.every_shard()).await;

    assert_eq!(other.take_all().await, []);
}

/// Leaving is giving everything back.
pub async fn a_relay_that_leaves_is_forgotten_and_owns_nothing<H: Harness>(t: Fixture<H>) {
    let first = t.relay(&[QUEUE, OTHER]).await;
    let mut second = t.other_relay(&[QUEUE, OTHER]).await;

    first.store.leave(&first.id).await.unwrap();

    let survey = second
        .store
        .survey(&second.id, &second.queues)
        .await
        .unwrap();
    assert!(survey.members.iter().all(|(relay, _)| *relay != first.id));
    assert_eq!(survey.owned, []);
    let members = second.store.members().await.unwrap();
    assert_eq!(members, std::slice::from_ref(&second.id));
    assert!(!first.store.heartbeat(&first.id, LEASE).await.unwrap());
    let taken = second.take_all().await;
    assert_eq!(taken.len(), first.epochs.len());
    assert!(taken.iter().all(|t| !t.from_dead));
}

/// A survey shows every living relay, and the owners of what was asked for.
pub async fn a_survey_shows_who_lives_and_who_owns_what<H: Harness>(t: Fixture<H>) {
    let owner = t.relay(&[QUEUE, OTHER]).await;
    let idle = t.other_relay(&[OTHER]).await;

    let survey = idle.store.survey(&idle.id, &idle.queues).await.unwrap();

    let mut serves: Vec<_> = survey
        .members
        .iter()
        .map(|(r, q)| (r.clone(), q.clone()))
        .collect();
    let mut expected = vec![
        (owner.id.clone(), owner.queues.clone()),
        (idle.id.clone(), idle.queues.clone()),
    ];
    serves
        .iter_mut()
        .chain(&mut expected)
        .for_each(|(_, queues)| queues.sort());
    serves.sort();
    expected.sort();
    assert_eq!(serves, expected);
    assert_eq!(
        survey.owned.len(),
        usize::from(t.store.shards()),
        "of the other queue only"
    );
    for owned in survey.owned {
        assert!(&*owned.shard.queue == OTHER && owned.owner == owner.id && owned.alive);
        assert_eq!(owned.epoch, owner.epochs[&owned.shard]);
    }
}

/// A relay that was silent for too long has lost everything, and learns it.
pub async fn a_lapsed_relay_loses_its_shards_and_learns_it<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    let first = t.relay(&[QUEUE]).await;
    let mut second = t.other_relay(&[QUEUE]).await;
    t.harness.expire_lease(&first.id).await;

    let survey = second
        .store
        .survey(&second.id, &second.queues)
        .await
        .unwrap();
    assert!(survey.members.iter().all(|(relay, _)| *relay != first.id));
    assert!(survey.owned.iter().all(|o| !o.alive));
    let taken = second.take_all().await;

    assert_eq!(taken.len(), first.epochs.len());
    for t in taken {
        assert!(t.from_dead, "its owner did not give it back");
        assert!(t.epoch > first.epochs[&t.shard]);
    }
    assert!(!first.store.heartbeat(&first.id, LEASE).await.unwrap());
}

/// A lapsed relay does not come back to life, even when nobody has noticed its death.
pub async fn a_lapsed_relay_cannot_prolong_its_lease<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    let lapsed = t.relay(&[QUEUE]).await;
    let mut other = t.other_relay(&[QUEUE]).await;
    t.harness.expire_lease(&lapsed.id).await;

    for _ in 0..2 {
        assert!(!lapsed.store.heartbeat(&lapsed.id, LEASE).await.unwrap());
    }

    assert_eq!(other.take_all().await.len(), lapsed.epochs.len());
}

/// A heartbeat sets the end of the lease anew, counted from now.
pub async fn a_lease_ends_when_the_last_heartbeat_said<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    let relay = t.relay(&[QUEUE]).await;
    let mut other = t.other_relay(&[QUEUE]).await;

    assert!(relay.store.heartbeat(&relay.id, LEASE).await.unwrap());
    assert_eq!(other.take_all().await, [], "kept by the heartbeat");
    assert!(
        relay
            .store
            .heartbeat(&relay.id, Duration::ZERO)
            .await
            .unwrap()
    );

    assert!(!relay.store.heartbeat(&relay.id, LEASE).await.unwrap());
    assert_eq!(other.take_all().await.len(), relay.epochs.len());
}

/// Queues are owned apart from each other.
pub async fn owning_one_queue_says_nothing_about_another<H: Harness>(t: Fixture<H>) {
    if !t.harness.leases() {
        return;
    }
    let _first = t.relay(&[QUEUE]).await;
    let mut second = t.other_relay(&[QUEUE, OTHER]).await;

    let taken = second.take_all().await;

    let queues: Vec<&ShardRef> = taken.iter().map(|t| &t.shard).collect();
    assert_eq!(queues.len(), usize::from(t.store.shards()));
    assert!(queues.iter().all(|s| &*s.queue == OTHER));
}
