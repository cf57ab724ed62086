//! What cannot be done, and what others did meanwhile.

use counterfoil_core::Code;
use counterfoil_core::source::{DeadLetter, Settle, Source as _, SourceError};
use counterfoil_redis_streams::RedisStreamsSource;

use crate::{Stream, join, settle, take};

fn dead() -> Settle {
    Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "odd".into(),
        attempts: 1,
    })
}

async fn pending(t: &Stream) -> u64 {
    let pending: (u64, redis::Value, redis::Value, redis::Value) =
        t.say(&["XPENDING", &t.name, "g"]).await;
    pending.0
}

#[tokio::test]
async fn what_cannot_be_put_among_the_dead_letters_is_not_acknowledged() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let letters = format!("{}.DLQ", t.name);
    let _: String = t.say(&["SET", &letters, "no stream"]).await;
    t.add(&t.name, &["a"]).await;
    let mut member = join(t.settings("g")).await;
    let held = take(&mut *member, 1).await;

    let refused = settle(&mut *member, &held, dead()).await;

    assert!(
        matches!(refused, Err(SourceError::Refused(_))),
        "{refused:?}"
    );
    assert_eq!(pending(&t).await, 1);
    t.clean_up().await;
}

#[tokio::test]
async fn what_somebody_else_has_taken_over_is_neither_buried_nor_released() {
    let Some(t) = Stream::new().await else {
        return;
    };
    t.add(&t.name, &["a", "b"]).await;
    let mut member = join(t.settings("g")).await;
    let held = take(&mut *member, 2).await;
    for arrival in &held {
        let id = arrival.position.rsplit('@').next().unwrap();
        let claim = ["XCLAIM", &t.name, "g", "other", "0", id, "JUSTID"];
        let _: Vec<String> = t.say(&claim).await;
    }

    settle(&mut *member, &held[..1], dead()).await.unwrap();
    let release = Settle::Release { delay: None };
    settle(&mut *member, &held[1..], release).await.unwrap();

    let letters: i64 = t.say(&["XLEN", &format!("{}.DLQ", t.name)]).await;
    assert_eq!(letters, 0);
    assert_eq!(pending(&t).await, 2);
    let others: Vec<(String, String, u64, u64)> = t
        .say(&["XPENDING", &t.name, "g", "-", "+", "9", "other"])
        .await;
    assert_eq!(others.len(), 2);
    t.clean_up().await;
}

#[tokio::test]
async fn a_key_that_is_no_stream_is_refused() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let _: String = t.say(&["SET", &t.name, "no stream"]).await;
    let source = RedisStreamsSource::new(t.settings("g")).unwrap();

    let refused = source.subscribe().await.err();

    assert!(
        matches!(refused, Some(SourceError::Refused(_))),
        "{refused:?}"
    );
    t.clean_up().await;
}

#[tokio::test]
async fn a_source_describes_itself_without_its_password() {
    let settings = counterfoil_redis_streams::SourceSettings::new(
        "redis://u:hunter2@h:7000/2",
        "orders",
        "stock",
    );
    let source = RedisStreamsSource::new(settings).unwrap();

    assert_eq!(
        source.describe(),
        "redis stream orders at redis://h:7000/2 as stock"
    );
    assert!(!format!("{source:?}").contains("hunter2"));
}
