//! Dead letters and the stream they need.

use counterfoil_core::Code;
use counterfoil_core::source::{DeadLetter, Settle, Source as _, SourceError};
use counterfoil_nats::{Create, SourceSettings};
use counterfoil_testkit::server::PrivateNats;

use crate::{context, done, join, make, publish, source, stream, take};

fn why() -> Settle {
    Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "no".into(),
        attempts: 1,
    })
}

#[tokio::test]
async fn without_a_stream_for_them_nothing_happens() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let mut member = join(&nats, "orders", 1).await;
    publish(&nats, "orders", 1..2).await;
    let had = take(&mut member, 1).await;

    let refused = member.settle(vec![(had[0].tag, why())]).await;

    let error = refused.err().unwrap();
    assert!(matches!(&error, SourceError::Refused(e) if e.contains("orders.DLQ")));
    done(&mut member, &had).await;
    publish(&nats, "orders", 2..3).await;
    let next = take(&mut member, 1).await;
    assert_eq!(crate::versions(&next), [2], "it is settled");
    member.close().await.unwrap();
}

#[tokio::test]
async fn the_stream_for_them_is_made_where_that_was_asked_for() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    make(&nats, stream("orders", "orders")).await;
    let settings = SourceSettings::new(nats.url(), "orders", "stock")
        .dead_letters("graveyard")
        .create(Create::new());
    let mut member = source(settings).subscribe().await.unwrap();
    publish(&nats, "orders", 1..2).await;
    let had = take(&mut member, 1).await;

    member.settle(vec![(had[0].tag, why())]).await.unwrap();

    let jetstream = context(&nats).await;
    let graveyard = jetstream.get_stream("graveyard").await.unwrap();
    let letter = graveyard.get_raw_message(1).await.unwrap();
    let text = |name: &str| letter.headers.get(name).map(ToString::to_string);
    assert_eq!(text("dlq-original-topic").as_deref(), Some("orders"));
    assert_eq!(text("dlq-original-offset").as_deref(), Some("1"));
    assert_eq!(
        text("Nats-Msg-Id"),
        None,
        "the server must not take it for a repeat"
    );
    assert_eq!(text("nats-msg-id"), text("ce-id"));
    member.close().await.unwrap();
}

#[tokio::test]
async fn a_stream_that_takes_everything_may_hold_both() {
    let Some(nats) = PrivateNats::start().await else {
        return;
    };
    let mut both = stream("orders", "orders");
    both.subjects.push("orders.>".into());
    make(&nats, both).await;
    let mut member = join(&nats, "orders", 1).await;
    publish(&nats, "orders", 1..2).await;
    let had = take(&mut member, 1).await;

    member.settle(vec![(had[0].tag, why())]).await.unwrap();

    let jetstream = context(&nats).await;
    let orders = jetstream.get_stream("orders").await.unwrap();
    let letter = orders.get_raw_message(2).await.unwrap();
    assert_eq!(letter.subject.as_str(), "orders.DLQ");
    member.close().await.unwrap();
}
