//! What each answer means.

use std::time::{Duration, SystemTime};

use counterfoil_core::{Code, Outcome};

use crate::receiver::{Receiver, Reply, answer};
use crate::{delivery, nobody_came, offer, reason, unattended, webhook};

async fn outcome_of(raw: String) -> Outcome {
    let receiver = Receiver::answering([Reply::Raw(raw)]).await;
    offer(&webhook(&receiver), &delivery()).await
}

async fn wait_of(status: u16, retry_after: &str) -> Option<Duration> {
    let head = format!("retry-after: {retry_after}\r\n");
    match outcome_of(answer(status, &head, "")).await {
        Outcome::Retry { after, .. } => after,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn every_kind_of_yes_is_stored() {
    for status in [200, 201, 202, 299] {
        assert_eq!(
            outcome_of(answer(status, "", "thanks")).await,
            Outcome::Stored,
            "{status}"
        );
    }
    assert_eq!(
        outcome_of("HTTP/1.1 204 No Content\r\n\r\n".into()).await,
        Outcome::Stored
    );
}

#[tokio::test]
async fn each_class_of_no_has_its_outcome_and_code() {
    for (status, label, code) in [
        (400, "refused", Code::UPSTREAM_4XX),
        (413, "refused", Code::UPSTREAM_4XX),
        (422, "refused", Code::UPSTREAM_4XX),
        (401, "destination-refused", Code::DESTINATION_REFUSED),
        (403, "destination-refused", Code::DESTINATION_REFUSED),
        (404, "destination-refused", Code::DESTINATION_REFUSED),
        (410, "destination-refused", Code::DESTINATION_REFUSED),
        (408, "retry", Code::UPSTREAM_4XX),
        (425, "retry", Code::UPSTREAM_4XX),
        (429, "retry", Code::UPSTREAM_4XX),
        (500, "retry", Code::UPSTREAM_5XX),
        (503, "retry", Code::UPSTREAM_5XX),
    ] {
        let outcome = outcome_of(answer(status, "", "no\x1b[2J such\r\nthing")).await;
        let (got, got_code, words) = reason(&outcome);
        assert_eq!((got, got_code), (label, Some(code)), "{status}");
        assert!(words.starts_with(&format!("HTTP {status} ")), "{words}");
        assert!(words.ends_with(": no[2J such  thing"), "{words}");
    }
}

#[tokio::test]
async fn a_redirect_is_a_failure_and_its_target_sees_nothing() {
    let target = unattended();
    let there = target.local_addr().unwrap();
    for status in [301, 302, 303, 307, 308] {
        let head = format!("location: http://{there}/\r\n");

        let outcome = outcome_of(answer(status, &head, "")).await;

        let (label, code, words) = reason(&outcome);
        assert_eq!(
            (label, code),
            ("destination-refused", Some(Code::UPSTREAM_REDIRECT))
        );
        assert!(words.contains(&there.to_string()), "{words}");
    }
    assert!(nobody_came(&target));
}

#[tokio::test]
async fn retry_after_in_seconds_is_honoured() {
    assert_eq!(wait_of(429, "7").await, Some(Duration::from_secs(7)));
    assert_eq!(wait_of(503, "120").await, Some(Duration::from_secs(120)));
}

#[tokio::test]
async fn retry_after_as_a_date_counts_from_the_arrival() {
    let date = httpdate::fmt_http_date(SystemTime::now() + Duration::from_secs(60));

    let wait = wait_of(503, &date).await.unwrap();

    // The date has whole seconds, and the answer took its time.
    assert!(
        wait > Duration::from_secs(30) && wait <= Duration::from_secs(60),
        "{wait:?}"
    );
}

#[tokio::test]
async fn a_retry_after_that_says_nothing_is_ignored() {
    for garbage in ["soon", "-5", "0", "Sun, 06 Nov 1994 08:49:37 GMT", "\u{fc}"] {
        assert_eq!(wait_of(429, garbage).await, None, "{garbage:?}");
    }
}
