//! One outcome per message, and a true one.

use std::sync::Arc;

use counterfoil_core::{Code, Outcome};

use super::fixture::{BrokerFixture, assert_once, counts, message, messages, offer, opaque};
use super::harness::BrokerHarness;

/// An empty batch.
pub async fn nothing_is_answered_with_nothing<H: BrokerHarness>(t: BrokerFixture<H>) {
    assert_eq!(t.offer(&[]).await, []);
}

/// The largest batch that the destination declares.
pub async fn a_whole_batch_is_stored<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let all = messages(t.destination.capabilities().max_batch.min(1_000));

    let outcomes = t.offer(&all).await;

    assert!(outcomes.iter().all(|o| *o == Outcome::Stored));
    let arrivals = member.take_done(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    member.close().await;
}

/// As many calls at one time as the destination declares.
pub async fn batches_under_way_together_are_all_stored<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let can = t.destination.capabilities();
    let size = can.max_batch.min(10);
    let all = messages(size * can.concurrency.min(8));

    let calls: Vec<_> = all
        .chunks(size)
        .map(|batch| {
            let (destination, batch) = (Arc::clone(&t.destination), batch.to_vec());
            tokio::spawn(async move { offer(&destination, &batch).await })
        })
        .collect();
    for call in calls {
        let outcomes = call.await.expect("a call failed");
        assert!(outcomes.iter().all(|o| *o == Outcome::Stored));
    }

    let arrivals = member.take_done(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    member.close().await;
}

/// A message that is too large, in the middle of good ones.
pub async fn one_message_that_cannot_pass_spoils_nothing<H: BrokerHarness>(t: BrokerFixture<H>) {
    let Some(largest) = t.largest_payload().await else {
        return;
    };
    let mut member = t.member().await;
    let size = t.destination.capabilities().max_batch.min(9);
    let mut all = messages(size);
    let bad = size / 2;
    all[bad] = opaque(bad, vec![b'x'; largest + 1]);

    let outcomes = t.offer(&all).await;

    for (place, outcome) in outcomes.iter().enumerate() {
        match place == bad {
            true => assert_too_large(outcome),
            false => assert_eq!(outcome, &Outcome::Stored, "{place}"),
        }
    }
    all.remove(bad);
    let arrivals = member.take_done(all.len()).await;
    assert_once(&arrivals, &all, t.manner);
    member.close().await;
}

/// What is declared is true to the byte.
pub async fn the_largest_payload_passes_and_one_byte_more_does_not<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let Some(largest) = t.largest_payload().await else {
        return;
    };
    let mut member = t.member().await;
    let mut payload = vec![b'x'; largest];
    payload[largest - 1] = b'y';
    let fits = opaque(1, payload);
    let over = opaque(2, vec![b'x'; largest + 1]);
    let after = message("order", 3, 1);

    let stored = t.offer(std::slice::from_ref(&fits)).await;
    let refused = t.offer(std::slice::from_ref(&over)).await;
    t.publish(std::slice::from_ref(&after)).await;

    assert_eq!(stored, [Outcome::Stored]);
    assert_too_large(&refused[0]);
    let arrivals = member.take_done(2).await;
    let found = arrivals.iter().find(|a| t.id(a) == fits.id);
    let body = &found.expect("the largest did not come").body;
    assert!(body[..] == *fits.payload.as_bytes(), "{} bytes", body.len());
    assert_once(&arrivals, &[fits, after], t.manner);
    member.close().await;
}

/// The relay offers a message again whose outcome it does not know.
pub async fn the_same_message_twice_has_one_id<H: BrokerHarness>(t: BrokerFixture<H>) {
    let mut member = t.member().await;
    let twice = message("order", 1, 1);
    let end = message("order", 1, 2);
    let expected = match t.features().await.native_dedup {
        true => 1,
        false => 2,
    };

    t.publish(std::slice::from_ref(&twice)).await;
    let mut again = twice.clone();
    again.attempt += 1;
    t.publish(&[again]).await;
    t.publish(std::slice::from_ref(&end)).await;

    let arrivals = member.take_done(expected + 1).await;
    let counts = counts(&arrivals, t.manner);
    assert_eq!(counts.get(&twice.id), Some(&expected));
    assert_eq!(counts.get(&end.id), Some(&1));
    member.close().await;
}

fn assert_too_large(outcome: &Outcome) {
    assert!(
        matches!(outcome, Outcome::Refused { code, .. } if *code == Code::TOO_LARGE),
        "{outcome:?}"
    );
}
