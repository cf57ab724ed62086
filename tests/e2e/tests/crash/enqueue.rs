//! Deaths of the application around its commit.

use counterfoil_core::MessageId;
use counterfoil_e2e::actor::{Moment, Where, WriterArgs};
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::process::Process;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{LONG_LEASE, QUEUE};

crate::tests!(on_both:
    what_a_writer_had_not_committed_when_it_died_is_never_sent,
    what_a_writer_had_committed_when_it_died_is_sent,
);

fn writer(w: &World, moment: Moment) -> Process {
    let args = WriterArgs {
        place: Where {
            database: w.site.url("writer"),
        },
        queues: vec![QUEUE.to_owned()],
        aggregates: 3,
        seed: 0,
        stand_still: Some(moment),
        pause: 0,
    };
    w.start("writer", &args.to_args())
}

fn ids(said: &str) -> Vec<MessageId> {
    said.split_whitespace()
        .map(|id| MessageId::parse(id).unwrap())
        .collect()
}

async fn what_a_writer_had_not_committed_when_it_died_is_never_sent(w: World) {
    let relay = w.leased_relay("a", LONG_LEASE).await;
    w.owned_by("a").await;
    let mut writer = writer(&w, Moment::BeforeCommit);
    let never = ids(&writer.says("written").await);
    assert_eq!(never.len(), 3);

    writer.kill().await;
    w.site.is_gone("writer").await;

    // Others of the same aggregates pass, under the numbers that are free again.
    let passed = w.put(3, 1).await;
    assert!(passed.iter().all(|f| f.version == 1));
    w.drained().await;
    for id in never {
        assert_eq!(w.times_offered(id), 0, "{id} was never committed");
    }
    w.check_and_end(relay, &Rules::nothing_repeated()).await;
}

async fn what_a_writer_had_committed_when_it_died_is_sent(w: World) {
    let relay = w.leased_relay("a", LONG_LEASE).await;
    w.owned_by("a").await;
    let mut writer = writer(&w, Moment::AfterCommit);
    let committed = ids(&writer.says("committed").await);

    writer.kill().await;

    w.drained().await;
    for id in committed {
        assert_eq!(w.times_offered(id), 1, "{id} was committed");
    }
    w.check_and_end(relay, &Rules::nothing_repeated()).await;
}
