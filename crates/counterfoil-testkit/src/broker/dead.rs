//! Dead letters.

use counterfoil_core::source::{DeadLetter, Settle, SourceError, dead};
use counterfoil_core::{Code, Delivery, Payload};

use super::fixture::{BrokerFixture, GROUP, PATIENCE, assert_once, message, messages, opaque};
use super::harness::{BrokerHarness, Foreign};

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";

fn why(error: &str) -> Settle {
    Settle::Dead(DeadLetter {
        code: Code::VALIDATION_ERROR,
        error: error.into(),
        attempts: 7,
    })
}

/// So many letters, once they are there.
async fn letters<H: BrokerHarness>(t: &BrokerFixture<H>, count: usize) -> Vec<Foreign> {
    let mut found = Vec::new();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while found.len() < count {
        let now = t.harness.dead_letters(&t.topic, GROUP).await;
        // Reading may take them away, or may show them again.
        for letter in now {
            if !found.contains(&letter) {
                found.push(letter);
            }
        }
        let late = tokio::time::Instant::now() > deadline;
        assert!(!late, "{} of {count} dead letters", found.len());
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    found
}

/// Not declared: nothing happens, and the message can still be settled.
async fn is_unsupported<H: BrokerHarness>(t: &BrokerFixture<H>) -> bool {
    if t.features().await.dead_letters {
        return false;
    }
    let mut member = t.member().await;
    t.publish(&messages(1)).await;
    let held = member.take(1).await;
    let refused = member.try_settle(&held, &why("no")).await;
    let unsupported = matches!(refused, Err(SourceError::Unsupported(_)));
    assert!(unsupported, "{refused:?}");
    member.done(&held).await;
    let end = message("order", 1, 2);
    t.publish(std::slice::from_ref(&end)).await;
    let came = member.take_done(1).await;
    assert_once(&came, &[end], t.manner);
    member.close().await;
    true
}

/// Its own headers, key and body are there, and those that say why.
pub async fn a_dead_letter_says_why_and_is_whole<H: BrokerHarness>(t: BrokerFixture<H>) {
    if is_unsupported(&t).await {
        return;
    }
    let mut member = t.member().await;
    let every: Vec<u8> = (0..=u8::MAX).collect();
    let bad = Delivery {
        headers: [
            (
                "traceparent",
                format!("00-{TRACE}-b7ad6b7169203331-01").as_str(),
            ),
            ("x-own", "größe \u{1F600}"),
        ]
        .into_iter()
        .collect(),
        ..opaque(1, every)
    };
    t.publish(std::slice::from_ref(&bad)).await;
    let held = member.take(1).await;

    member
        .settle(&held, &why("line one\r\nline two \u{1F600}"))
        .await;

    let letter = letters(&t, 1).await.remove(0);
    let text = |name: &str| {
        let value = letter.header(name).map(|v| String::from_utf8_lossy(v));
        value.map(std::borrow::Cow::into_owned)
    };
    assert_eq!(text(dead::CODE).as_deref(), Some("VALIDATION_ERROR"));
    assert_eq!(text(dead::ATTEMPTS).as_deref(), Some("7"));
    assert_eq!(text(dead::TRACE_ID).as_deref(), Some(TRACE));
    let error = text(dead::ERROR).unwrap_or_default();
    assert!(error.contains("line one"), "{error}");
    assert!(error.contains("line two"), "{error}");
    let topic = text(dead::TOPIC).unwrap_or_default();
    assert!(topic.contains(&t.topic), "{topic}");
    for (name, value) in &held[0].headers {
        assert_eq!(letter.header(name), Some(&**value), "{name}");
    }
    assert_eq!(letter.key, held[0].key);
    assert_eq!(letter.body, held[0].body);
    member.close().await;
}

/// Dead ones in the middle of good ones; nothing of them comes again.
pub async fn a_dead_letter_is_gone_from_the_source<H: BrokerHarness>(t: BrokerFixture<H>) {
    if is_unsupported(&t).await {
        return;
    }
    let mut member = t.member().await;
    let all = messages(10);
    t.publish(&all).await;
    let arrivals = member.take(all.len()).await;
    assert_once(&arrivals, &all, t.manner);

    let settled = arrivals.iter().enumerate().map(|(n, arrival)| match n % 2 {
        0 => (arrival.tag, Settle::Done),
        _ => (arrival.tag, why("odd")),
    });
    let settled = settled.collect();
    let both = member.subscription().settle(settled).await;
    both.expect("not settled");

    let mut bodies: Vec<_> = letters(&t, 5).await.into_iter().map(|l| l.body).collect();
    let odd = arrivals.iter().skip(1).step_by(2);
    let mut expected: Vec<_> = odd.map(|a| a.body.clone()).collect();
    bodies.sort();
    expected.sort();
    assert_eq!(bodies, expected);
    member.die();
    let mut next = t.member().await;
    let end = Delivery {
        payload: Payload::Json("{}".into()),
        ..message("order", 1, 2)
    };
    t.publish(std::slice::from_ref(&end)).await;
    let mut came = next.take(1).await;
    came.extend(next.take_for(t.manner.window * 2).await);
    assert_once(&came, &[end], t.manner);
    next.done(&came).await;
    next.close().await;
}
