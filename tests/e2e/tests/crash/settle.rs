//! Deaths in the middle of a settlement: rows are changed, and nothing is committed.

use std::collections::BTreeSet;

use counterfoil_core::MessageId;
use counterfoil_e2e::FAIR_LEASE;
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::process::Process;
use counterfoil_e2e::site::{Obstacle, Place, Trapped, somebody_waits};
use counterfoil_e2e::wait;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;

crate::tests!(on_postgres:
    a_settlement_that_dies_with_its_relay_is_undone_and_its_messages_repeated,
    a_settlement_that_outlives_its_relay_counts_and_is_not_repeated,
    a_relay_killed_while_it_parks_leaves_each_message_in_one_place,
);
crate::tests!(on_sqlite:
    a_settlement_that_dies_with_its_relay_is_undone_and_its_messages_repeated,
    a_relay_killed_while_it_parks_leaves_each_message_in_one_place,
);

/// A relay that has got its answers and stands in the middle of settling them.
async fn settling(
    w: &World,
    verdict: Verdict,
) -> (Process, Box<dyn Obstacle>, BTreeSet<MessageId>) {
    w.book().hold_all();
    // It must not run out before its owner is killed.
    let a = w.leased_relay("a", FAIR_LEASE).await;
    let offered = w.in_flight("a", 4).await;
    let mut trap = w.site.trap(Trapped::Leaving).await;
    w.book().release(|_| Some(verdict));
    somebody_waits(&mut *trap).await;
    (a, trap, offered)
}

async fn a_settlement_that_dies_with_its_relay_is_undone_and_its_messages_repeated(w: World) {
    w.put(4, 1).await;
    let (mut a, trap, stored) = settling(&w, Verdict::Stored).await;

    a.kill().await;
    w.site.cut_off("a").await;
    trap.remove().await;

    assert_eq!(w.pending().await, stored, "nothing was settled");
    w.book().store_all();
    let b = w.leased_relay("b", FAIR_LEASE).await;
    w.drained().await;
    for id in &stored {
        assert_eq!(w.times_offered(*id), 2, "stored once by each relay");
    }
    w.check_and_end(b, &Rules::repeated_only(stored)).await;
}

async fn a_settlement_that_outlives_its_relay_counts_and_is_not_repeated(w: World) {
    w.put(4, 1).await;
    let (mut a, trap, stored) = settling(&w, Verdict::Stored).await;

    a.kill().await;
    trap.remove().await;
    w.site.is_gone("a").await;

    let unsettled = w.pending().await;
    assert!(
        unsettled.len() < stored.len(),
        "the server has finished what it had begun"
    );
    w.book().store_all();
    let b = w.leased_relay("b", FAIR_LEASE).await;
    w.drained().await;
    w.check_and_end(b, &Rules::repeated_only(unsettled)).await;
}

async fn a_relay_killed_while_it_parks_leaves_each_message_in_one_place(w: World) {
    w.put(4, 2).await;
    let (mut a, trap, refused) = settling(&w, Verdict::Refused).await;

    a.kill().await;
    w.site.cut_off("a").await;
    trap.remove().await;

    w.book()
        .answer(|_| counterfoil_e2e::book::Manner::Now(Verdict::Refused));
    let b = w.leased_relay("b", FAIR_LEASE).await;
    let parked = parked(&w, 4).await;
    assert_eq!(parked, refused, "the first of each lane; the second waits");
    w.check(&Rules::nothing_repeated().or_parked()).await;

    w.book().store_all();
    let ids: Vec<String> = parked.iter().map(ToString::to_string).collect();
    w.site.desk().redrive(&ids, true, "test").await.unwrap();
    w.drained().await;
    w.check_and_end(b, &Rules::nothing_repeated()).await;
}

async fn parked(w: &World, count: usize) -> BTreeSet<MessageId> {
    wait::until("messages are parked", || async {
        let standings = w.site.standings().await;
        let parked: BTreeSet<MessageId> = standings
            .iter()
            .filter(|s| matches!(s.place, Place::Parked(_)))
            .map(|s| s.id)
            .collect();
        (parked.len() == count).then_some(parked)
    })
    .await
}
