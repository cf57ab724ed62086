//! What an operator does while messages are under way.

use counterfoil_e2e::app::Draft;
use counterfoil_e2e::book::{Manner, Offer};
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::wait;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{LONG_LEASE, QUEUE};

crate::tests!(on_both: a_queue_that_is_paused_and_resumed_keeps_its_order);

async fn a_queue_that_is_paused_and_resumed_keeps_its_order(w: World) {
    let slow = Draft::new(QUEUE, "slow");
    w.book()
        .answer(|offer: &Offer| match offer.item.aggregate.as_str() {
            "slow" => Manner::Hold,
            _ => Manner::Now(Verdict::Stored),
        });
    w.app
        .put(&[slow.clone(), slow.clone(), slow.clone()])
        .await
        .unwrap();
    let mut args = w.relay_args("a").leased(LONG_LEASE);
    // Nothing but the relay's own memory of what it has read.
    args.rescan = 600_000;
    let relay = w.relay_with(args).await;
    w.in_flight("a", 1).await;
    // Others pass meanwhile, so that the relay reads on.
    for _ in 0..5 {
        w.put(3, 1).await;
        wait::until("only the slow ones wait", || async {
            (w.pending().await.len() == 3).then_some(())
        })
        .await;
    }

    let desk = w.site.desk();
    desk.pause_queue(QUEUE, "a pause", "test").await.unwrap();
    wait::until("the relay has noticed", || async {
        relay.log().contains("paused").then_some(())
    })
    .await;
    w.book().store_held_and_all();
    wait::until("what was under way is settled", || async {
        (w.pending().await.len() == 2).then_some(())
    })
    .await;
    w.app.put(&[slow]).await.unwrap();
    desk.resume_queue(QUEUE, "test").await.unwrap();

    w.drained().await;
    w.check_and_end(relay, &Rules::nothing_repeated()).await;
}
