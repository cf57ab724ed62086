//! A relay dies while its destination has trouble of its own. The one is not the other.

use std::collections::BTreeMap;
use std::time::Duration;

use counterfoil_e2e::book::Manner;
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::site::Place;
use counterfoil_e2e::wait;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;

crate::tests!(on_both:
    a_relay_that_dies_while_nobody_answers_gets_no_message_parked,
    a_relay_that_dies_before_its_destination_fails_gets_no_message_parked,
);

/// Waits until relays have noted that nobody answers.
async fn nobody_answers(w: &World) {
    wait::until("nobody answers", || async {
        let stats = w.site.desk().stats().await.unwrap();
        stats
            .iter()
            .any(|q| q.unavailable_since.is_some())
            .then_some(())
    })
    .await;
}

async fn a_relay_that_dies_while_nobody_answers_gets_no_message_parked(w: World) {
    w.receiver.close().await;
    w.put(1, 2).await;
    let mut a = w.relay("a").await;
    nobody_answers(&w).await;

    a.kill().await;
    w.site.is_gone("a").await;
    let b = w.relay("b").await;
    w.owned_by("b").await;

    // Long enough for several attempts.
    let parked = wait::within(Duration::from_secs(6), || async {
        let standings = w.site.standings().await;
        standings
            .into_iter()
            .find(|s| matches!(s.place, Place::Parked(_)))
    });
    assert_eq!(parked.await, None);
    w.receiver.open().await;
    w.drained().await;
    w.check_and_end(b, &Rules::nothing_repeated()).await;
}

async fn a_relay_that_dies_before_its_destination_fails_gets_no_message_parked(w: World) {
    w.book().hold_all();
    w.put(8, 2).await;
    let mut args = w.relay_args("a");
    args.concurrency = 16;
    let mut a = w.relay_with(args.clone()).await;
    let in_flight = w.in_flight("a", 8).await;

    a.kill().await;
    w.site.is_gone("a").await;
    // Every message fails five times, and then passes.
    let mut failures = BTreeMap::new();
    w.book().answer(move |offer| {
        let failed = failures.entry(offer.item.id).or_insert(0);
        *failed += 1;
        Manner::Now(if *failed > 5 {
            Verdict::Stored
        } else {
            Verdict::Failed
        })
    });
    args.label = "b".into();
    let b = w.relay_with(args).await;

    w.drained().await;
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}
