//! Putting records in their places.

use std::time::Duration;

use chrono::TimeDelta;
use counterfoil_core::guard::{
    Change, Expect, Fingerprint, Key, RecordFilter, Records, State, Write,
};

use super::fixture::{ASKED, GuardFixture, KEEP, LEASE, claim, claim_of, key};
use super::harness::GuardHarness;

const HOUR: Duration = Duration::from_secs(3_600);

/// What is put comes back, with the database's times.
pub async fn a_record_is_put_where_none_is<H: GuardHarness>(t: GuardFixture<H>) {
    assert_eq!(t.look("k").await, None);

    let retry = Write {
        retry_in: Some(HOUR),
        ..claim("k")
    };
    let fence = t.put(&retry).await;

    let found = t.find("k").await;
    let record = &found.record;
    assert_eq!(record.key, key("k"));
    assert_eq!(record.fingerprint, ASKED);
    assert_eq!(record.state, State::Processing);
    assert_eq!((record.fence, record.attempts), (fence, 1));
    assert_eq!(record.snapshot, None);
    assert!(!found.expired() && found.idle() < LEASE);
    let ahead = |to: Option<chrono::DateTime<chrono::Utc>>, by: Duration| {
        let off = to.unwrap() - found.now - TimeDelta::from_std(by).unwrap();
        assert!(off.abs() < TimeDelta::seconds(60), "{off}");
    };
    ahead(record.lease_until, LEASE);
    ahead(record.retry_at, HOUR);
    ahead(Some(record.expires_at), KEEP);
    ahead(Some(record.created_at), Duration::ZERO);
    ahead(Some(record.updated_at), Duration::ZERO);
}

/// A claim of a key that has a record finds it there.
pub async fn a_second_record_of_a_key_is_refused_and_changes_nothing<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    t.put(&claim("k")).await;
    let before = t.find("k").await.record;

    let other = Write {
        fingerprint: Fingerprint([9; 32]),
        ..claim("k")
    };
    let second = t.guard.put(&other).await.unwrap();

    assert_eq!(second, None);
    assert_eq!(t.find("k").await.record, before);
}

/// Who replaces a record says which.
pub async fn a_record_is_replaced_under_its_number_only<H: GuardHarness>(t: GuardFixture<H>) {
    let first = t.put(&claim("k")).await;
    let instead = |fence, byte| Write {
        expect: Expect::Fence(fence),
        fingerprint: Fingerprint([byte; 32]),
        ..claim("k")
    };

    let wrong = t.guard.put(&instead(first - 1, 1)).await.unwrap();
    let second = t.put(&instead(first, 2)).await;
    let late = t.guard.put(&instead(first, 3)).await.unwrap();

    assert_eq!((wrong, late), (None, None));
    assert!(second > first);
    let record = t.find("k").await.record;
    assert_eq!(record.fence, second);
    assert_eq!(record.fingerprint, Fingerprint([2; 32]));
}

/// A record that was purged meanwhile is not brought back.
pub async fn a_record_that_is_gone_is_not_replaced<H: GuardHarness>(t: GuardFixture<H>) {
    let first = t.claim("k").await;
    t.guard.forget(&first.digest).await.unwrap();

    let replaced = t
        .guard
        .put(&Write {
            expect: Expect::Fence(first.fence),
            ..claim("k")
        })
        .await
        .unwrap();

    assert_eq!(replaced, None);
    assert_eq!(t.look("k").await, None);
}

/// Forgotten, released or replaced: the next number is greater.
pub async fn fencing_numbers_grow_also_when_the_record_was_forgotten<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let mut last = 0;
    for n in 0..30 {
        let claim = t.claim("k").await;
        assert!(claim.fence > last, "{} after {last}", claim.fence);
        last = claim.fence;
        if n % 3 == 0 {
            assert!(t.change(claim, &Change::Release).await);
        } else {
            assert!(t.guard.forget(&claim.digest).await.unwrap());
        }
    }
}

/// `created_at` is when the request was first seen.
pub async fn another_run_keeps_the_birthday_and_another_request_does_not<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let first = t.put(&claim("k")).await;
    t.advance(HOUR).await;
    let again = |fence, attempt| Write {
        expect: Expect::Fence(fence),
        attempt,
        ..claim("k")
    };

    let second = t.put(&again(first, 2)).await;
    let run = t.find("k").await;
    t.put(&again(second, 1)).await;
    let new = t.find("k").await;

    let age = |f: &counterfoil_core::guard::Found| (f.now - f.record.created_at).to_std().unwrap();
    assert!(age(&run) >= HOUR && run.record.attempts == 2);
    assert!(age(&new) < HOUR && new.record.attempts == 1);
    assert!(run.idle() < HOUR);
}

/// Case, white space, length and script: bytes decide.
pub async fn case_39_keys_that_look_alike_are_different<H: GuardHarness>(t: GuardFixture<H>) {
    let long = "x".repeat(254);
    let names = [
        "Ab".into(),
        "ab".into(),
        "ab ".into(),
        " ab".into(),
        "a\u{0308}b".into(),
        "äb".into(),
        "ab%20".into(),
        "a'b\"c`d\\e".into(),
        "*/ DROP TABLE business; /*".into(),
        "?$1:{key}{digest}".into(),
        "\u{1f9fe}".into(),
        format!("{long}y"),
        format!("{long}z"),
    ];

    let mut fences = Vec::new();
    for name in &names {
        fences.push(t.put(&claim(name)).await);
    }

    for (name, fence) in names.iter().zip(fences) {
        let found = t.find(name).await;
        assert_eq!(
            (found.record.key.key(), found.record.fence),
            (&**name, fence)
        );
        let filter = RecordFilter {
            key: Some(name.clone()),
            ..RecordFilter::default()
        };
        let listed = t.guard.list(&filter).await.unwrap();
        assert_eq!(listed.len(), 1, "{name}");
        assert_eq!(listed[0].record.key, key(name));
    }
}

/// The scope and the business type are parts of the key.
pub async fn case_10_callers_do_not_see_each_other<H: GuardHarness>(t: GuardFixture<H>) {
    let keys = [
        ("a", "pay"),
        ("b", "pay"),
        ("a", "refund"),
        ("", "pay"),
        ("A", "pay"),
    ]
    .map(|(scope, business)| Key::new(scope, business, "k").unwrap());

    for key in &keys {
        t.put(&claim_of(key.clone())).await;
    }

    for key in keys {
        let found = t.guard.look(&key.digest()).await.unwrap().unwrap();
        assert_eq!(found.record.key, key);
    }
}
