//! Brokers that do not let us in say so in time.

use counterfoil_core::Outcome;
use counterfoil_core::source::SourceError;
use tokio::time::timeout;

use super::fixture::{BrokerFixture, PATIENCE, message, offer};
use super::harness::{BrokerHarness, Door};

async fn published(door: &Door) -> Outcome {
    let outcomes = offer(&door.destination, &[message("order", 1, 1)]).await;
    outcomes.into_iter().next().expect("one outcome")
}

async fn subscribed(door: &Door) -> SourceError {
    let answer = timeout(PATIENCE, door.source.subscribe());
    match answer.await.expect("an answer comes in time") {
        Ok(_) => panic!("let in"),
        Err(error) => error,
    }
}

/// Nobody listens.
pub async fn nobody_at_the_address_is_unavailable<H: BrokerHarness>(t: BrokerFixture<H>) {
    let door = t.harness.nowhere().await;

    let (outcome, error) = (published(&door).await, subscribed(&door).await);

    assert!(
        matches!(outcome, Outcome::Unavailable { .. }),
        "{outcome:?}"
    );
    assert!(matches!(error, SourceError::Unavailable(_)), "{error:?}");
}

/// A wrong password.
pub async fn wrong_credentials_are_refused<H: BrokerHarness>(t: BrokerFixture<H>) {
    let Some(door) = t.harness.stranger(&t.topic).await else {
        return;
    };

    let (outcome, error) = (published(&door).await, subscribed(&door).await);

    let refused = matches!(outcome, Outcome::DestinationRefused { .. });
    assert!(refused, "{outcome:?}");
    assert!(matches!(error, SourceError::Refused(_)), "{error:?}");
}

/// A topic that is not there, and that nobody makes.
pub async fn a_missing_topic_is_refused<H: BrokerHarness>(t: BrokerFixture<H>) {
    let Some(door) = t.harness.absent().await else {
        return;
    };

    let (outcome, error) = (published(&door).await, subscribed(&door).await);

    let refused = matches!(outcome, Outcome::DestinationRefused { .. });
    assert!(refused, "{outcome:?}");
    assert!(matches!(error, SourceError::Refused(_)), "{error:?}");
}
