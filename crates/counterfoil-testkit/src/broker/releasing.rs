//! Giving a message back.

use std::time::Duration;

use counterfoil_core::source::{Settle, SourceError};
use tokio::time::Instant;

use super::fixture::{BrokerFixture, assert_once, ids, message, messages};
use super::harness::BrokerHarness;

const NOW: Settle = Settle::Release { delay: None };

/// It comes again, and again, until it is settled.
pub async fn a_released_message_comes_again<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let one = message("order", 1, 1);
    t.publish(std::slice::from_ref(&one)).await;

    let first = member.take(1).await;
    let mut last = first.clone();
    for _ in 0..3 {
        member.settle(&last, &NOW).await;
        last = member.take(1).await;
        assert_eq!(t.id(&last[0]), one.id);
        assert_eq!(last[0].position, first[0].position, "its place is the same");
        assert_eq!(last[0].body, first[0].body);
    }
    member.done(&last).await;
    let end = message("order", 1, 2);
    t.publish(std::slice::from_ref(&end)).await;
    let came = member.take_done(1).await;
    assert_once(&came, &[end], t.manner);
    member.close().await;
}

/// Others are received while one is given back all the time.
pub async fn a_released_message_keeps_nobody_waiting<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let stubborn = message("order", 0, 1);
    t.publish(std::slice::from_ref(&stubborn)).await;
    let held = member.take(1).await;
    assert_eq!(t.id(&held[0]), stubborn.id);
    member.settle(&held, &NOW).await;
    let others: Vec<_> = messages(31).into_iter().skip(1).collect();
    t.publish(&others).await;

    let (mut arrivals, mut returned) = (Vec::new(), 0);
    while arrivals.len() < others.len() || returned == 0 {
        let received = member.take(1).await;
        if t.id(&received[0]) == stubborn.id {
            returned += 1;
            member.settle(&received, &NOW).await;
            assert!(returned < 10_000, "it keeps the others waiting");
        } else {
            member.done(&received).await;
            arrivals.extend(received);
        }
    }

    assert_once(&arrivals, &others, t.manner);
    let rest = member.take_ids(&ids(&[stubborn])).await;
    member.done(&rest).await;
    member.close().await;
}

/// Declared: it comes after the delay, and meanwhile others do. Not declared: nothing happens.
pub async fn a_release_with_a_delay_is_kept_or_unsupported<H: BrokerHarness>(t: BrokerFixture<H>) {
    let delay = Duration::from_secs(3);
    let later = Settle::Release { delay: Some(delay) };
    let mut member = t.member().await;
    let one = message("order", 0, 1);
    t.publish(std::slice::from_ref(&one)).await;
    let held = member.take(1).await;

    let begin = Instant::now();
    let released = member.try_settle(&held, &later).await;

    if !t.features().await.delay {
        let unsupported = matches!(released, Err(SourceError::Unsupported(_)));
        assert!(unsupported, "{released:?}");
        // Nothing happened: it can still be settled, and does not come again.
        member.done(&held).await;
        t.publish(&messages(1)).await;
        let came = member.take_done(1).await;
        assert_ne!(t.id(&came[0]), one.id);
        return member.close().await;
    }
    released.expect("not released");
    let others: Vec<_> = messages(11).into_iter().skip(1).collect();
    t.publish(&others).await;
    let mut arrivals = Vec::new();
    let mut back = None;
    while arrivals.len() < others.len() || back.is_none() {
        for arrival in member.take(1).await {
            if t.id(&arrival) == one.id {
                back = Some(begin.elapsed());
            } else {
                arrivals.push(arrival.clone());
            }
            member.done(&[arrival]).await;
        }
    }
    assert_once(&arrivals, &others, t.manner);
    let back = back.unwrap_or_default();
    // Brokers round, and their clocks are not ours.
    assert!(
        back + Duration::from_secs(1) > delay,
        "it came after {back:?}"
    );
    member.close().await;
}
