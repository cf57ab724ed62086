//! A broker that is killed, frozen or not there yet.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::source::{Settle, Source};
use counterfoil_core::{Code, Delivery, Destination, MessageId, Outcome};
use tokio::sync::watch;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{BrokerFixture, Member, PATIENCE, id_of, ids, join, message, messages, offer};
use super::harness::{BrokerHarness, Manner};

/// Between two attempts.
const PAUSE: Duration = Duration::from_millis(50);

/// Offers a message again and again, as the relay does, until it is stored. How often it may have
/// been stored before.
async fn until_stored(destination: &Arc<dyn Destination>, delivery: &Delivery) -> usize {
    let deadline = Instant::now() + PATIENCE;
    let mut perhaps = 0;
    loop {
        let outcomes = offer(destination, std::slice::from_ref(delivery)).await;
        match &outcomes[0] {
            Outcome::Stored => return perhaps,
            Outcome::Retry { .. } => perhaps += 1,
            Outcome::Unavailable { .. } | Outcome::DestinationRefused { .. } => {}
            other => panic!("an outage is no reason for {other:?}"),
        }
        assert!(Instant::now() < deadline, "not stored: {outcomes:?}");
        sleep(PAUSE).await;
    }
}

/// Receives as an application does: with the subscription that it has, and when that ends by itself, with
/// another one. A subscription that neither brings anything nor ends is waited for, in vain. Returns
/// when it is told to, with the ids of everything that came, and how often they came.
async fn consume(
    source: Arc<dyn Source>,
    mut member: Option<Member>,
    manner: Manner,
    wanted: watch::Receiver<Option<BTreeSet<MessageId>>>,
) -> Vec<MessageId> {
    let mut seen = Vec::new();
    loop {
        let complete = |wanted: &Option<BTreeSet<MessageId>>| {
            let all = wanted.as_ref();
            all.is_some_and(|all| all.iter().all(|id| seen.contains(id)))
        };
        if complete(&wanted.borrow()) {
            break;
        }
        let Some(present) = &mut member else {
            if let Ok(Ok(subscription)) = timeout(PATIENCE, source.subscribe()).await {
                member = Some(Member::new(subscription, manner));
            } else {
                sleep(PAUSE).await;
            }
            continue;
        };
        match timeout(Duration::from_millis(200), present.receive(20)).await {
            Err(_) => {}
            Ok(Err(_)) => member = None,
            Ok(Ok(received)) => {
                seen.extend(received.iter().map(|a| id_of(a, manner)));
                if present.try_settle(&received, &Settle::Done).await.is_err() {
                    member = None;
                }
            }
        }
    }
    if let Some(member) = member {
        member.close().await;
    }
    seen
}

/// Killed and restarted between two messages, under a subscription that stays open: both sides use it
/// again by themselves.
pub async fn a_broker_that_was_killed_and_restarted_is_used_again<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let source = t.source().await;
    let mut member = join(&source, t.manner).await;
    t.publish(&messages(5)).await;
    member.take_done(5).await;

    t.harness.kill().await;
    let during = t.offer(&messages(1)).await;
    assert!(
        matches!(
            during[0],
            Outcome::Unavailable { .. } | Outcome::Retry { .. }
        ),
        "{during:?}"
    );
    t.harness.restart().await;

    // Either it gets over the outage by itself, or it says that it has ended. What it must not do is
    // wait for ever for a broker that is there again.
    let (tell, wanted) = watch::channel(None);
    let consumer = tokio::spawn(consume(source, Some(member), t.manner, wanted));
    let mut expected = BTreeSet::new();
    if t.manner.keeps_data {
        for n in 0..10 {
            let delivery = message("after", n, 1);
            until_stored(&t.destination, &delivery).await;
            expected.insert(delivery.id);
        }
        tell.send_replace(Some(expected));
    } else {
        // Its group went with its data: what is stored before that is there again is not its.
        let one = message("after", 1, 1);
        until_stored(&t.destination, &one).await;
        tell.send_replace(Some([one.id].into()));
    }
    let seen = timeout(PATIENCE, consumer).await;
    seen.expect("what was stored does not come")
        .expect("a consumer failed");
}

/// Publishing and consuming go on all the time, and the broker is killed in the middle, twice.
pub async fn nothing_stored_is_lost_when_the_broker_is_killed_under_load<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    if !t.manner.keeps_data {
        return;
    }
    let source = t.source().await;
    let (tell, wanted) = watch::channel(None);
    let consumer = tokio::spawn(consume(source, None, t.manner, wanted));
    let (progress, mut stored) = watch::channel(0);
    let publishing = {
        let destination = Arc::clone(&t.destination);
        tokio::spawn(async move {
            let mut all = BTreeSet::new();
            for n in 0..600 {
                let delivery = message("load", n % 40, n as i64);
                until_stored(&destination, &delivery).await;
                all.insert(delivery.id);
                progress.send_replace(n);
            }
            all
        })
    };

    for mark in [150, 350] {
        let reached = timeout(PATIENCE, stored.wait_for(|n| *n >= mark)).await;
        drop(
            reached
                .expect("nothing is stored")
                .expect("publishing failed"),
        );
        t.harness.kill().await;
        sleep(Duration::from_secs(1)).await;
        t.harness.restart().await;
    }

    let all = timeout(PATIENCE * 2, publishing).await;
    let all = all.expect("publishing hangs").expect("publishing failed");
    tell.send_replace(Some(all.clone()));
    let seen = timeout(PATIENCE, consumer).await;
    let seen = seen
        .expect("something stored is lost")
        .expect("a consumer failed");
    let seen: BTreeSet<MessageId> = seen.into_iter().collect();
    assert!(seen.is_superset(&all));
}

/// A SIGSTOP of ten seconds: nothing claims to be stored meanwhile, and afterwards all goes on.
pub async fn a_frozen_broker_takes_nothing_and_is_used_again<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let source = t.source().await;
    let mut member = join(&source, t.manner).await;
    t.publish(&messages(5)).await;
    member.take_done(5).await;
    let (tell, wanted) = watch::channel(None);
    let consumer = tokio::spawn(consume(source, Some(member), t.manner, wanted));

    t.harness.pause().await;
    let frozen = Instant::now();
    let unsure = message("frozen", 1, 1);
    let outcome = t.offer(std::slice::from_ref(&unsure)).await.remove(0);
    let sure = match &outcome {
        Outcome::Unavailable { .. } => true,
        Outcome::Retry { code, .. } => {
            let known = *code == Code::UNCONFIRMED || *code == Code::TIMEOUT;
            assert!(known, "{outcome:?}");
            false
        }
        other => panic!("nobody answered, and it is {other:?}"),
    };
    sleep(Duration::from_secs(10).saturating_sub(frozen.elapsed())).await;
    t.harness.resume().await;

    let perhaps = until_stored(&t.destination, &unsure).await + usize::from(!sure);
    let after = message("frozen", 2, 1);
    until_stored(&t.destination, &after).await;
    tell.send_replace(Some([unsure.id, after.id].into()));
    let seen = timeout(PATIENCE, consumer).await;
    let seen = seen
        .expect("what was stored does not come")
        .expect("a consumer failed");
    let copies = seen.iter().filter(|id| **id == unsure.id).count();
    // Copies of one that was offered again have one id. A consumer that lost its connection may
    // get each of them twice.
    assert!(copies >= 1 && copies <= 2 * (1 + perhaps), "{copies}");
}

/// Down at the start: an error in time, and later it works.
pub async fn a_broker_that_is_down_at_the_start_is_used_later<H: BrokerHarness>(
    t: BrokerFixture<H>,
) {
    let source = t.source().await;
    t.harness.kill().await;
    let destination = t.harness.destination(&t.topic).await;
    let early = message("early", 1, 1);

    let outcome = offer(&destination, std::slice::from_ref(&early)).await;
    let refused = timeout(PATIENCE, source.subscribe()).await;

    assert!(
        matches!(outcome[0], Outcome::Unavailable { .. }),
        "{outcome:?}"
    );
    let refused = refused.expect("an answer comes in time").err();
    assert!(refused.is_some(), "let in by nobody");
    t.harness.restart().await;
    let mut member = join(&source, t.manner).await;
    let perhaps = until_stored(&destination, &early).await;
    let came = member.take_ids(&ids(std::slice::from_ref(&early))).await;
    assert!(came.iter().all(|a| t.id(a) == early.id), "of somebody else");
    assert!((1..=1 + perhaps).contains(&came.len()), "{}", came.len());
    member.done(&came).await;
    member.close().await;
}
