//! Trimming takes what everybody has dealt with, and nothing else.

use std::time::Duration;

use counterfoil_core::source::Settle;

use crate::{Stream, bodies, join, settle, take, until};

async fn length(t: &Stream) -> i64 {
    t.say(&["XLEN", &t.name]).await
}

#[tokio::test]
async fn only_what_every_group_has_acknowledged_is_dropped() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let quick = Duration::from_secs(2);
    let all: Vec<String> = (0..10).map(|n| n.to_string()).collect();
    let texts: Vec<&str> = all.iter().map(String::as_str).collect();
    t.add(&t.name, &texts).await;
    // One group was given four of them and acknowledged all but the third; one was given none.
    let mut slow = join(t.settings("slow")).await;
    let some = take(&mut *slow, 4).await;
    for n in [0, 1, 3] {
        settle(&mut *slow, &some[n..=n], Settle::Done)
            .await
            .unwrap();
    }
    let mut idle = join(t.settings("idle")).await;
    let mut quick = join(t.settings("quick").missed_after(quick).trim()).await;
    let seen = take(&mut *quick, 10).await;
    settle(&mut *quick, &seen, Settle::Done).await.unwrap();

    let rest = take(&mut *idle, 10).await;
    assert_eq!(
        bodies(&rest),
        all,
        "a group that was given nothing misses nothing"
    );
    settle(&mut *idle, &rest, Settle::Done).await.unwrap();

    until("two are dropped", async || length(&t).await == 8).await;
    let third: Vec<(String, redis::Value)> =
        t.say(&["XRANGE", &t.name, "-", "+", "COUNT", "1"]).await;
    assert!(
        some[2].position.ends_with(&third[0].0),
        "the third is the first"
    );
    // What is left comes: the third is still with the slow group, and the last six follow.
    let left = take(&mut *slow, 6).await;
    assert_eq!(bodies(&left), &all[4..]);
    settle(&mut *slow, &left, Settle::Done).await.unwrap();
    settle(&mut *slow, &some[2..3], Settle::Done).await.unwrap();
    until("the last one stays", async || length(&t).await == 1).await;
    t.clean_up().await;
}

#[tokio::test]
async fn nothing_is_dropped_unless_it_is_asked_for() {
    let Some(t) = Stream::new().await else {
        return;
    };
    let quick = Duration::from_millis(500);
    t.add(&t.name, &["a", "b", "c"]).await;
    let mut member = join(t.settings("g").missed_after(quick)).await;
    let all = take(&mut *member, 3).await;
    settle(&mut *member, &all, Settle::Done).await.unwrap();

    // Several signs of life later.
    let waited = tokio::time::timeout(quick * 4, member.receive(1)).await;

    assert!(waited.is_err());
    assert_eq!(length(&t).await, 3);
    t.clean_up().await;
}
