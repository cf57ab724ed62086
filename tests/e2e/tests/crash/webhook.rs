//! The same death, with webhooks as the destination.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::webhook::WebhookReceiver;
use counterfoil_e2e::world::World;

crate::tests!(on_both: a_webhook_under_way_when_its_relay_is_killed_arrives_again_under_the_same_id);

const TIMEOUT: Duration = Duration::from_millis(800);

async fn a_webhook_under_way_when_its_relay_is_killed_arrives_again_under_the_same_id(w: World) {
    let receiver = WebhookReceiver::start(Arc::clone(&w.receiver.book)).await;
    let relay = async |label: &str| {
        let mut args = w.relay_args(label);
        args.webhook = true;
        args.receiver = receiver.address();
        args.timeout = u64::try_from(TIMEOUT.as_millis()).ok();
        w.relay_with(args).await
    };
    w.book().hold_all();
    w.put(8, 3).await;
    let mut a = relay("a").await;
    let in_flight = w.in_flight("a", 4).await;

    a.kill().await;
    w.site.is_gone("a").await;

    w.book().store_all();
    let b = relay("b").await;
    w.drained().await;
    for id in &in_flight {
        assert!(w.times_offered(*id) >= 2, "once by each relay");
    }
    let rules = Rules {
        timeout: Some(TIMEOUT),
        ..Rules::repeated_only(in_flight)
    };
    w.check_and_end(b, &rules).await;
}
