//! Dead letters on their way back.

use std::num::NonZeroU32;
use std::time::Duration;

use counterfoil_core::source::{Arrival, DeadLetter, Settle, Source as _, Subscription};
use counterfoil_core::{Code, Delivery, Destination as _};
use counterfoil_sqs::{SourceSettings, Sqs, SqsSource, redrive_dead_letters};
use counterfoil_testkit::broker::fixture::message;
use counterfoil_testkit::broker::harness::BrokerHarness as _;
use tokio::time::{Instant, timeout};

use crate::harness::{Fifo, Servant, Standard, settings, source_settings};

/// Long enough for a machine that is busy with other things.
const LONG: Duration = Duration::from_secs(30);
const FAST: NonZeroU32 = NonZeroU32::new(500).unwrap();

fn dead() -> Settle {
    Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: "no".into(),
        attempts: 1,
    })
}

async fn publish<const FIFO: bool>(sqs: &Servant<FIFO>, queue: &str, all: &[Delivery]) {
    let destination = Sqs::new(settings(&sqs.url, queue)).unwrap();
    for one in all {
        destination.publish(std::slice::from_ref(one)).await;
    }
}

async fn member<const FIFO: bool>(sqs: &Servant<FIFO>, queue: &str) -> Box<dyn Subscription> {
    let source = SqsSource::new(source_settings(&sqs.url, queue)).unwrap();
    source.subscribe().await.unwrap()
}

/// Receives so many, and settles each of them in this way.
async fn settle(member: &mut Box<dyn Subscription>, count: usize, how: &Settle) -> Vec<Arrival> {
    let mut all = Vec::new();
    while all.len() < count {
        let waited = timeout(LONG, member.receive(count - all.len())).await;
        let received = waited.expect("nothing comes").unwrap();
        let settled = received.iter().map(|a| (a.tag, how.clone())).collect();
        member.settle(settled).await.unwrap();
        all.extend(received);
    }
    all
}

fn versions(arrivals: &[Arrival]) -> Vec<&str> {
    arrivals
        .iter()
        .map(|a| a.text("ce_aggregateversion").unwrap())
        .collect()
}

async fn come_back<const FIFO: bool>(sqs: &Servant<FIFO>, redrive: bool) {
    let queue = sqs.queue(redrive).await;
    let all: Vec<_> = (1..=5)
        .map(|version| message("order", 1, version))
        .collect();
    publish(sqs, &queue, &all).await;
    let mut member = member(sqs, &queue).await;

    // Twice, within a minute: the second death is no repeat of the first.
    for _ in 0..2 {
        let died = settle(&mut member, all.len(), &dead()).await;
        assert_eq!(died.len(), all.len());
        let settings = source_settings(&sqs.url, &queue);
        redrive_dead_letters(settings, FAST).await.unwrap();
    }

    let back = settle(&mut member, all.len(), &Settle::Done).await;
    let mut found = versions(&back);
    if !FIFO {
        found.sort_unstable();
    }
    assert_eq!(found, ["1", "2", "3", "4", "5"]);
    assert_eq!(back[0].key.as_deref(), Some(b"order/1".as_slice()));
    assert!(
        back.iter()
            .any(|a| a.text("ce_id") == Some(&all[0].id.to_string()))
    );
    member.close().await.unwrap();
}

#[tokio::test]
async fn dead_letters_come_back() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    come_back(&sqs, true).await;
}

#[tokio::test]
async fn dead_letters_of_a_group_come_back_in_order() {
    let Some(sqs) = Fifo::start().await else {
        return;
    };
    come_back(&sqs, true).await;
}

#[tokio::test]
async fn dead_letters_that_no_policy_knows_come_back_too() {
    let (Some(fifo), Some(standard)) = (Fifo::start().await, Standard::start().await) else {
        return;
    };
    come_back(&fifo, false).await;
    come_back(&standard, false).await;
}

#[tokio::test]
async fn they_come_back_no_faster_than_asked_for() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    let queue = sqs.queue(false).await;
    let all: Vec<_> = (1..=6)
        .map(|version| message("order", 1, version))
        .collect();
    publish(&sqs, &queue, &all).await;
    let mut member = member(&sqs, &queue).await;
    settle(&mut member, all.len(), &dead()).await;
    member.close().await.unwrap();

    let begin = Instant::now();
    let slow = NonZeroU32::new(4).unwrap();
    let moved = redrive_dead_letters(source_settings(&sqs.url, &queue), slow).await;

    assert_eq!(moved.unwrap(), 6);
    assert!(
        begin.elapsed() >= Duration::from_millis(1_250),
        "{:?}",
        begin.elapsed()
    );
}

#[tokio::test]
async fn where_there_is_no_queue_for_them_nothing_comes_back() {
    let Some(sqs) = Standard::start().await else {
        return;
    };
    let queue = sqs.queue(false).await;
    let nowhere: SourceSettings = source_settings(&sqs.url, &queue).dead_letters("nowhere");

    let refused = redrive_dead_letters(nowhere, FAST).await.err().unwrap();

    assert!(refused.to_string().contains("nowhere"), "{refused}");
}
