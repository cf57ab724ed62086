//! Relays that come and go in peace: nothing is lost, and nothing is repeated.

use counterfoil_e2e::actor::{Where, WriterArgs};
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::process::Process;
use counterfoil_e2e::wait;
use counterfoil_e2e::wire::Verdict;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{FAIR_LEASE, QUEUE};

crate::tests!(on_both:
    relays_that_join_and_leave_share_the_work_and_repeat_nothing,
    a_relay_that_gives_shards_away_while_nobody_answers_does_not_send_their_messages,
);

async fn traffic(w: &World) -> Process {
    let args = WriterArgs {
        place: Where {
            database: w.site.url("writer"),
        },
        queues: vec![QUEUE.to_owned()],
        aggregates: 60,
        seed: 7,
        stand_still: None,
        pause: 10,
    };
    let mut writer = w.start("writer", &args.to_args());
    writer.says("ready").await;
    writer
}

/// Waits until this many processes own all shards in equal parts.
async fn shared_by(w: &World, labels: &[&str]) {
    let (site, shards) = (&w.site, usize::from(w.site.shards()));
    wait::until(&format!("{labels:?} share the work"), || async move {
        let owners = site.owners().await;
        let of = |label: &&str| owners.iter().filter(|o| o.by(label)).count();
        let parts: Vec<usize> = labels.iter().map(of).collect();
        let (most, least) = (parts.iter().max()?, parts.iter().min()?);
        (parts.iter().sum::<usize>() == shards && most - least <= 1).then_some(())
    })
    .await;
}

async fn relays_that_join_and_leave_share_the_work_and_repeat_nothing(w: World) {
    let mut writer = traffic(&w).await;
    let mut b = w.leased_relay("b", FAIR_LEASE).await;
    shared_by(&w, &["b"]).await;

    // Where there is only one shard, it goes to the first by name.
    let mut a = w.leased_relay("a", FAIR_LEASE).await;
    shared_by(&w, &["a", "b"]).await;
    let c = w.leased_relay("c", FAIR_LEASE).await;
    shared_by(&w, &["a", "b", "c"]).await;
    a.terminate();
    assert!(a.ends().await.success(), "{}", a.log());
    shared_by(&w, &["b", "c"]).await;

    writer.terminate();
    assert!(writer.ends().await.success(), "{}", writer.log());
    w.drained().await;
    b.terminate();
    assert!(b.ends().await.success(), "{}", b.log());
    w.check_and_end(c, &Rules::nothing_repeated()).await;
}

async fn a_relay_that_gives_shards_away_while_nobody_answers_does_not_send_their_messages(
    w: World,
) {
    w.book().hold_all();
    w.put(16, 2).await;
    let mut args = w.relay_args("b").leased(FAIR_LEASE);
    args.concurrency = 16;
    let mut b = w.relay_with(args).await;
    w.in_flight("b", 16).await;

    // It gives its share away as soon as it is told that nothing was stored.
    let a = w.leased_relay("a", FAIR_LEASE).await;
    if w.site.shards() > 1 {
        wait::until("the new one has got something", || async {
            w.site
                .owners()
                .await
                .iter()
                .any(|o| o.by("a"))
                .then_some(())
        })
        .await;
    }
    w.book().store_all();
    w.book().release(|_| Some(Verdict::Away));

    shared_by(&w, &["a", "b"]).await;
    w.drained().await;
    b.terminate();
    assert!(b.ends().await.success(), "{}", b.log());
    w.check_and_end(a, &Rules::nothing_repeated()).await;
}
