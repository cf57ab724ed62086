//! Relays that are frozen, and wake up when the world has moved on.

use std::collections::BTreeSet;

use counterfoil_core::MessageId;
use counterfoil_e2e::book::Offer;
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::process::Process;
use counterfoil_e2e::site::{Trapped, somebody_waits};
use counterfoil_e2e::wait;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{FAIR_LEASE, LEASE, LONG_LEASE};

crate::tests!(on_postgres:
    a_relay_frozen_for_less_than_its_lease_goes_on_as_if_nothing_had_been,
    a_relay_frozen_past_its_lease_cannot_settle_when_it_wakes_up,
    a_relay_frozen_in_the_middle_of_a_settlement_does_not_keep_its_shards,
);
crate::tests!(on_sqlite:
    a_relay_frozen_for_less_than_its_lease_goes_on_as_if_nothing_had_been,
    a_frozen_relay_keeps_its_queue_and_nothing_is_repeated,
);

async fn frozen_in_flight(w: &World) -> (Process, BTreeSet<MessageId>) {
    w.book().hold_all();
    w.put(4, 2).await;
    let mut a = w.relay("a").await;
    let in_flight = w.in_flight("a", 4).await;
    a.pause().await;
    (a, in_flight)
}

async fn ends_well(relay: &mut Process) {
    relay.terminate();
    assert!(relay.ends().await.success(), "{}", relay.log());
}

async fn a_relay_frozen_past_its_lease_cannot_settle_when_it_wakes_up(w: World) {
    let (mut a, in_flight) = frozen_in_flight(&w).await;
    let b = w.leased_relay("b", FAIR_LEASE).await;
    w.owned_by("b").await;
    w.in_flight("b", 1).await;

    // Its answers wait for it when it wakes up; those of the new owner are still to come.
    w.book()
        .release(|offer| (offer.relay == "a").then_some(Verdict::Stored));
    a.resume();
    let all_seen = |offers: &[Offer]| {
        let seen = offers.iter().filter(|o| o.relay == "a" && o.seen).count();
        (seen == in_flight.len()).then_some(())
    };
    w.book().until("it has its answers", all_seen).await;
    wait::until("it has joined anew and got its share", || async {
        w.site
            .owners()
            .await
            .iter()
            .any(|o| o.by("a"))
            .then_some(())
    })
    .await;

    assert!(
        w.pending().await.is_superset(&in_flight),
        "only the owner may settle"
    );
    w.book().store_held_and_all();
    w.drained().await;
    for id in &in_flight {
        assert_eq!(w.times_offered(*id), 2, "once by each owner");
    }
    ends_well(&mut a).await;
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}

/// It sleeps inside a transaction that holds locks on its shards.
async fn a_relay_frozen_in_the_middle_of_a_settlement_does_not_keep_its_shards(w: World) {
    w.book().hold_all();
    w.put(4, 2).await;
    let mut a = w.relay("a").await;
    let in_flight = w.in_flight("a", 4).await;
    let mut trap = w.site.trap(Trapped::Rescheduling).await;
    w.book().release(|_| Some(Verdict::Failed));
    somebody_waits(&mut *trap).await;

    a.pause().await;
    trap.remove().await;
    w.book().store_all();
    let b = w.leased_relay("b", FAIR_LEASE).await;

    w.owned_by("b").await;
    w.drained().await;
    a.resume();
    ends_well(&mut a).await;
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}

/// The lock of a queue belongs to the process, and it lives.
async fn a_frozen_relay_keeps_its_queue_and_nothing_is_repeated(w: World) {
    let (mut a, _) = frozen_in_flight(&w).await;

    let b = w.relay("b").await;
    let offered_by_b = |offers: &[Offer]| offers.iter().any(|o| o.relay == "b").then_some(());
    let taken = w.book().within(LEASE * 3 / 2, offered_by_b).await;

    assert_eq!(
        taken, None,
        "what is owned by a living process is not taken"
    );
    w.book().store_held_and_all();
    a.resume();
    w.drained().await;
    ends_well(&mut a).await;
    w.check_and_end(b, &Rules::nothing_repeated()).await;
}

async fn a_relay_frozen_for_less_than_its_lease_goes_on_as_if_nothing_had_been(w: World) {
    w.book().hold_all();
    w.put(4, 2).await;
    // Far longer than the pause, however busy the machine is.
    let mut a = w.leased_relay("a", LONG_LEASE).await;
    w.in_flight("a", 4).await;
    let b = w.leased_relay("b", LONG_LEASE).await;

    a.pause().await;
    w.book().store_held_and_all();
    a.resume();

    w.drained().await;
    ends_well(&mut a).await;
    w.check_and_end(b, &Rules::nothing_repeated()).await;
}
