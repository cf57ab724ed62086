//! Relays that are asked to end.

use std::sync::Arc;

use counterfoil_core::store::{RelayId, Store};
use counterfoil_core::{Capabilities, Delivery, Destination, Outcome};
use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::wait;
use counterfoil_e2e::world::World;
use counterfoil_e2e::{LEASE, LONG_LEASE, QUEUE};
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings};
use counterfoil_testkit::memory::MemoryStore;

crate::tests!(on_both: a_relay_that_is_asked_to_end_finishes_what_it_began_and_repeats_nothing);

async fn a_relay_that_is_asked_to_end_finishes_what_it_began_and_repeats_nothing(w: World) {
    w.book().hold_all();
    w.put(8, 3).await;
    let mut a = w.leased_relay("a", LONG_LEASE).await;
    let in_flight = w.in_flight("a", 4).await;

    a.terminate();
    a.says("asked to end").await;
    w.book().store_held_and_all();
    assert!(a.ends().await.success(), "{}", a.log());

    assert!(
        w.pending().await.is_disjoint(&in_flight),
        "what had begun is settled"
    );
    let b = w.leased_relay("b", LONG_LEASE).await;
    w.drained().await;
    w.check_and_end(b, &Rules::nothing_repeated()).await;
}

struct Nowhere;

#[async_trait::async_trait]
impl Destination for Nowhere {
    fn describe(&self) -> String {
        "nowhere".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(1, None)
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        batch.iter().map(|_| Outcome::Stored).collect()
    }
}

/// Whoever stays behind would be given a share of the work and never do it.
#[tokio::test]
async fn an_engine_that_is_dropped_is_no_member_any_more() {
    let store = MemoryStore::new();
    let settings = Settings {
        lease: LEASE / 4,
        ..Settings::default()
    };
    let engine = EngineBuilder::new(Arc::new(store.clone())).settings(settings);
    let engine = engine
        .queue(QueueSpec::new(QUEUE, Arc::new(Nowhere)))
        .start()
        .await
        .unwrap();
    let members = async || {
        let survey = store
            .survey(&RelayId::new("test"), &[Arc::from(QUEUE)])
            .await
            .unwrap();
        survey.members.len()
    };
    wait::until("it is a member", || async {
        (members().await == 1).then_some(())
    })
    .await;

    drop(engine);
    wait::until("it has left", || async {
        (members().await == 0).then_some(())
    })
    .await;

    let back = wait::within(LEASE, || async { (members().await > 0).then_some(()) }).await;
    assert_eq!(back, None, "it came back without anybody to do its work");
}
