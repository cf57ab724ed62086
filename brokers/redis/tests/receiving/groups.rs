//! Members and groups.

use std::collections::BTreeSet;
use std::time::Duration;

use counterfoil_core::source::{Settle, Source as _};
use counterfoil_redis_streams::RedisStreamsSource;
use tokio::time::timeout;

use crate::{Stream, bodies, join, settle, take, until};

#[tokio::test]
async fn a_new_group_begins_where_it_is_told() {
    let Some(t) = Stream::new().await else {
        return;
    };
    t.add(&t.name, &["old"]).await;

    let mut late = join(t.settings("late").only_new()).await;
    let mut early = join(t.settings("early")).await;
    t.add(&t.name, &["new"]).await;

    assert_eq!(bodies(&take(&mut *late, 1).await), ["new"]);
    assert_eq!(bodies(&take(&mut *early, 2).await), ["old", "new"]);
    t.clean_up().await;
}

/// Nobody is missed for an hour here: it is the source that knows that its member is gone.
#[tokio::test]
async fn the_next_member_of_a_source_has_at_once_what_the_last_one_left() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let partition = format!("{}.1", t.name);
    for (settings, stream) in [
        (t.settings("g"), &t.name),
        (t.settings("g").partitions(2), &partition),
    ] {
        let source = RedisStreamsSource::new(settings).unwrap();
        t.add(stream, &["a", "b"]).await;
        let mut first = source.subscribe().await.unwrap();
        take(&mut *first, 2).await;
        drop(first);

        let mut second = source.subscribe().await.unwrap();

        let again = take(&mut *second, 2).await;
        assert_eq!(bodies(&again), ["a", "b"]);
        assert!(again.iter().all(|a| a.deliveries == Some(2)), "{again:?}");
        settle(&mut *second, &again, Settle::Done).await.unwrap();
        second.close().await.unwrap();
    }
    t.clean_up().await;
}

#[tokio::test]
async fn who_left_is_not_listed_any_more() {
    let Some(t) = Stream::new().await else {
        return;
    };
    t.add(&t.name, &["a"]).await;
    let mut member = join(t.settings("g")).await;
    take(&mut *member, 1).await;

    member.close().await.unwrap();

    let info: redis::Value = t.say(&["XINFO", "CONSUMERS", &t.name, "g"]).await;
    let listed = format!("{info:?}");
    assert!(!listed.contains("counterfoil-"), "{listed}");
    let pending: (u64, String, String, Vec<(String, String)>) =
        t.say(&["XPENDING", &t.name, "g"]).await;
    assert_eq!(pending.0, 1, "what it left is still there");
    t.clean_up().await;
}

#[tokio::test]
async fn partitions_move_to_a_new_member_once_they_are_settled() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let quick = Duration::from_secs(4);
    let settings = t.settings("g").partitions(4).missed_after(quick);
    let streams: Vec<String> = (0..4).map(|p| format!("{}.{p}", t.name)).collect();
    let mut first = join(settings.clone()).await;
    for stream in &streams {
        t.add(stream, &["held"]).await;
    }
    let held = take(&mut *first, 4).await;
    let mut second = join(settings).await;
    for stream in &streams {
        t.add(stream, &["next"]).await;
    }

    // Nothing of a partition comes to the second one while the first one has some of it.
    let waited = timeout(quick, second.receive(10)).await;
    assert!(waited.is_err(), "{waited:?}");
    settle(&mut *first, &held, Settle::Done).await.unwrap();

    let moved = take(&mut *second, 2).await;
    let kept = take(&mut *first, 2).await;
    let all: BTreeSet<&str> = moved
        .iter()
        .chain(&kept)
        .map(|a| a.position.as_str())
        .collect();
    assert_eq!(all.len(), 4);
    assert_eq!(bodies(&moved), ["next", "next"]);
    t.clean_up().await;
}

#[tokio::test]
async fn a_stream_that_was_removed_ends_the_subscription_and_the_next_one_makes_it() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let mut member = join(t.settings("g")).await;
    let _: i64 = t.say(&["DEL", &t.name]).await;

    let ended = timeout(crate::LONG, member.receive(1))
        .await
        .expect("it waits for ever");
    assert!(ended.is_err(), "{ended:?}");
    drop(member);
    let mut next = join(t.settings("g")).await;
    t.add(&t.name, &["a"]).await;

    assert_eq!(bodies(&take(&mut *next, 1).await), ["a"]);
    t.clean_up().await;
}

#[tokio::test]
async fn an_entry_that_was_deleted_meanwhile_is_nothing_to_wait_for() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let quick = Duration::from_millis(800);
    t.add(&t.name, &["a", "b"]).await;
    let mut member = join(t.settings("g").missed_after(quick)).await;
    let held = take(&mut *member, 2).await;
    let id = held[0].position.rsplit('@').next().unwrap();
    let _: i64 = t.say(&["XDEL", &t.name, id]).await;

    let again = Settle::Release { delay: None };
    settle(&mut *member, &held, again).await.unwrap();

    let back = take(&mut *member, 1).await;
    assert_eq!(bodies(&back), ["b"]);
    settle(&mut *member, &back, Settle::Done).await.unwrap();
    until("nothing is pending", async || {
        let pending: redis::Value = t.say(&["XPENDING", &t.name, "g"]).await;
        format!("{pending:?}").contains("int(0)")
    })
    .await;
    t.clean_up().await;
}
