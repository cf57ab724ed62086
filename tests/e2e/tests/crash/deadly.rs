//! A message that kills every relay that tries to deliver it.

use counterfoil_core::Code;
use counterfoil_e2e::QUEUE;
use counterfoil_e2e::app::Draft;
use counterfoil_e2e::checker::{Repeats, Rules};
use counterfoil_e2e::journal::DEADLY;
use counterfoil_e2e::site::Place;
use counterfoil_e2e::world::World;

crate::tests!(on_both: a_message_that_kills_its_relay_is_parked_and_the_others_pass);

async fn a_message_that_kills_its_relay_is_parked_and_the_others_pass(w: World) {
    w.put(3, 1).await;
    let deadly = w
        .app
        .put(&[Draft::new(QUEUE, "deadly").event(DEADLY)])
        .await
        .unwrap();
    w.put(3, 1).await;

    let mut deaths = 0;
    let survivor = loop {
        let mut args = w.relay_args(&format!("r{deaths}"));
        args.lease = 1_000;
        let mut relay = w.start(&args.label, &args.to_args());
        while relay.runs() && !w.pending().await.is_empty() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
        if relay.runs() {
            break relay;
        }
        deaths += 1;
        assert!(
            deaths <= 5,
            "it kills one relay after another:\n{}",
            relay.log()
        );
    };

    assert!(
        deaths >= 3,
        "it must be given a fair trial, and had {deaths}"
    );
    let standings = w.site.standings().await;
    let end = standings
        .into_iter()
        .find(|s| s.id == deadly[0].id)
        .map(|s| s.place);
    assert_eq!(end, Some(Place::Parked(Code::CRASH_SUSPECT.to_string())));
    w.check_and_end(survivor, &Rules::new(Repeats::NewOwner).or_parked())
        .await;
}
