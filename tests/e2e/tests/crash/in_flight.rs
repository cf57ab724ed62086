//! Deaths between the claim of a message and its settlement.

use counterfoil_e2e::book::Offer;
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::site::somebody_waits;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;

crate::tests!(on_both:
    a_relay_killed_with_messages_in_flight_loses_none_and_repeats_only_those,
    a_relay_killed_after_the_answer_and_before_the_settlement_repeats_only_those,
    a_relay_killed_while_it_waits_to_settle_repeats_what_it_could_not_settle,
    a_relay_that_dies_again_and_again_loses_nothing,
);

async fn a_relay_killed_with_messages_in_flight_loses_none_and_repeats_only_those(w: World) {
    w.book().hold_all();
    w.put(8, 3).await;
    let mut a = w.relay("a").await;
    let in_flight = w.in_flight("a", 4).await;

    a.kill().await;
    w.site.is_gone("a").await;

    w.book().store_all();
    let b = w.relay("b").await;
    w.drained().await;
    for id in &in_flight {
        assert_eq!(w.times_offered(*id), 2, "once by each relay");
    }
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}

async fn a_relay_killed_after_the_answer_and_before_the_settlement_repeats_only_those(w: World) {
    w.book().hold_all();
    w.put(8, 3).await;
    let mut a = w.relay("a").await;
    let in_flight = w.in_flight("a", 4).await;

    // Frozen, it cannot settle what is stored from now on.
    a.pause().await;
    w.book().store_held_and_all();
    a.kill().await;
    w.site.is_gone("a").await;

    let b = w.relay("b").await;
    w.drained().await;
    for id in &in_flight {
        assert_eq!(w.times_offered(*id), 2, "stored once by each relay");
    }
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}

async fn a_relay_killed_while_it_waits_to_settle_repeats_what_it_could_not_settle(w: World) {
    w.book().hold_all();
    w.put(8, 3).await;
    let mut a = w.relay("a").await;
    let stored = w.in_flight("a", 4).await;

    let mut obstacle = w.site.forbid_settling().await;
    w.book().release(|_| Some(Verdict::Stored));
    let all_seen = |offers: &[Offer]| (offers.iter().filter(|o| o.seen).count() == 4).then_some(());
    w.book()
        .until("the relay has its four answers", all_seen)
        .await;
    somebody_waits(&mut *obstacle).await;
    a.kill().await;
    w.site.cut_off("a").await;
    obstacle.remove().await;

    let offered: Vec<_> = w.book().offers().iter().map(|o| o.item.id).collect();
    assert!(
        w.pending().await.is_superset(&stored),
        "nothing could be settled"
    );
    w.book().store_all();
    let b = w.relay("b").await;
    w.drained().await;
    for id in &stored {
        assert_eq!(w.times_offered(*id), 2, "stored once by each relay");
    }
    w.check_and_end(b, &Rules::repeated_only(offered)).await;
}

async fn a_relay_that_dies_again_and_again_loses_nothing(w: World) {
    w.put(6, 4).await;
    let mut touched = Vec::new();

    for round in 0..3 {
        let label = format!("r{round}");
        w.book().hold_all();
        let mut relay = w.relay(&label).await;
        touched.extend(w.in_flight(&label, 1).await);
        // Something passes in every life.
        w.book().store_held_and_all();
        let stored = |offers: &[Offer]| {
            let count = offers.iter().filter(|o| o.relay == label && o.seen).count();
            (count >= 2).then_some(())
        };
        w.book()
            .until("two messages of this life are stored", stored)
            .await;
        relay.kill().await;
        w.site.is_gone(&label).await;
        let pending = w.pending().await;
        touched.extend(
            w.book()
                .offers()
                .iter()
                .map(|o| o.item.id)
                .filter(|id| pending.contains(id)),
        );
    }

    w.book().store_all();
    let last = w.relay("last").await;
    w.drained().await;
    w.check_and_end(last, &Rules::repeated_only(touched)).await;
}
