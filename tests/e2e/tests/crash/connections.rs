//! Connections to the database break while a relay is at work.

use std::time::Instant;

use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::site::{Trapped, somebody_waits};
use counterfoil_e2e::wait::PATIENCE;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{FAIR_LEASE, LONG_LEASE};
use sqlx::{Connection, PgConnection};

crate::tests!(on_postgres:
    a_settlement_whose_connection_breaks_is_made_again_and_nothing_is_repeated,
    a_connection_that_breaks_while_a_message_is_counted_lets_nobody_overtake_it,
);

async fn a_settlement_whose_connection_breaks_is_made_again_and_nothing_is_repeated(w: World) {
    w.book().hold_all();
    w.put(4, 2).await;
    let relay = w.leased_relay("a", LONG_LEASE).await;
    w.in_flight("a", 4).await;

    let mut obstacle = w.site.forbid_settling().await;
    w.book().store_held_and_all();
    somebody_waits(&mut *obstacle).await;
    w.site.hang_up("a").await;
    obstacle.remove().await;

    w.drained().await;
    w.check_and_end(relay, &Rules::nothing_repeated()).await;
}

async fn a_connection_that_breaks_while_a_message_is_counted_lets_nobody_overtake_it(w: World) {
    w.book().hold_all();
    w.put(1, 4).await;
    let mut a = w.relay("a").await;
    let in_flight = w.in_flight("a", 1).await;
    // After a death, the next owner counts each message before it tries it.
    a.kill().await;
    w.site.is_gone("a").await;
    let b = w.leased_relay("b", FAIR_LEASE).await;
    assert_eq!(w.in_flight("b", 1).await, in_flight);

    // The first is settled and the second is being counted.
    let obstacle = w.site.trap(Trapped::Rescheduling).await;
    w.book().store_held_and_all();
    cut_while_counting(&w.site.url("b")).await;
    obstacle.remove().await;

    w.drained().await;
    w.check_and_end(b, &Rules::repeated_only(in_flight)).await;
}

/// Ends the one connection of a relay that waits for a lock and settles nothing.
async fn cut_while_counting(url: &str) {
    let mut connection = PgConnection::connect(url).await.unwrap();
    let mut cut = 0;
    let begun = Instant::now();
    while cut == 0 {
        assert!(begun.elapsed() < PATIENCE, "the relay counts nothing");
        cut = sqlx::query_scalar::<_, i64>(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
             WHERE application_name = current_setting('application_name')
               AND wait_event_type = 'Lock' AND query NOT LIKE '%counterfoil_history%'",
        )
        .fetch_one(&mut connection)
        .await
        .unwrap();
    }
    assert_eq!(cut, 1);
}
