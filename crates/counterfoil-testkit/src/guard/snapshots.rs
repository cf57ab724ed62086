//! Answers come back as they were given.

use counterfoil_core::guard::{Change, Expect, Records, Snapshot, State, Write};

use super::fixture::{GuardFixture, KEEP, claim, finished};
use super::harness::GuardHarness;

fn odd() -> Vec<Snapshot> {
    let all: Vec<u8> = (0..=255).collect();
    let line = |name: &str, value: &[u8]| (name.to_owned(), value.to_vec());
    vec![
        Snapshot::default(),
        Snapshot {
            status: 200,
            headers: vec![
                line("link", b"</1>"),
                line("x-all", &all),
                line("link", b"</2>"),
                line("x-empty", b""),
                line("X-Case", b"'\"\\\0?$1:name"),
            ],
            body: Some(all.clone().into()),
        },
        Snapshot {
            status: 599,
            headers: vec![],
            body: Some(Vec::new().into()),
        },
        Snapshot {
            status: 204,
            headers: vec![line("etag", b"\"\xc3\xa4\"")],
            body: None,
        },
    ]
}

/// Any byte in a header, repeated lines in their order, bodies of any bytes.
pub async fn every_answer_comes_back_as_it_was_given<H: GuardHarness>(t: GuardFixture<H>) {
    for (n, snapshot) in odd().into_iter().enumerate() {
        let (put, ended) = (format!("put {n}"), format!("ended {n}"));
        let whole = Write {
            snapshot: Some(snapshot.clone()),
            ..finished(&put, Expect::Absent)
        };
        let fence = t.put(&whole).await;
        let claim = t.claim(&ended).await;
        let end = Change::End {
            state: State::Succeeded,
            snapshot: Some(snapshot.clone()),
            keep: KEEP,
            retry_in: None,
        };
        assert!(t.change(claim, &end).await);

        for name in [&put, &ended] {
            let found = t.find(name).await.record.snapshot;
            assert_eq!(found.as_ref(), Some(&snapshot), "{name}");
        }
        let replaced = Write {
            expect: Expect::Fence(fence),
            ..whole
        };
        t.put(&replaced).await;
        assert_eq!(t.find(&put).await.record.snapshot, Some(snapshot));
    }
}

/// No answer, an answer without a body, and an answer with an empty body are three things.
pub async fn case_15_an_answer_that_was_not_kept_is_not_an_empty_one<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let with = |name: &str, snapshot| Write {
        snapshot,
        ..finished(name, Expect::Absent)
    };
    let body = |body: Option<&[u8]>| Snapshot {
        status: 200,
        headers: vec![],
        body: body.map(|b| b.to_vec().into()),
    };

    t.put(&with("none", None)).await;
    t.put(&with("not kept", Some(body(None)))).await;
    t.put(&with("empty", Some(body(Some(b""))))).await;

    assert_eq!(t.find("none").await.record.snapshot, None);
    assert_eq!(t.find("not kept").await.record.snapshot, Some(body(None)));
    assert_eq!(t.find("empty").await.record.snapshot, Some(body(Some(b""))));
}

/// A megabyte.
pub async fn case_4_a_large_answer_comes_back_byte_for_byte<H: GuardHarness>(t: GuardFixture<H>) {
    let mut rng = fastrand::Rng::with_seed(4);
    let body: Vec<u8> = (0..1024 * 1024).map(|_| rng.u8(..)).collect();
    let snapshot = Snapshot {
        status: 200,
        headers: vec![("x-long".into(), vec![b'x'; 60_000])],
        body: Some(body.into()),
    };
    let claimed = t.claim("k").await;

    let ended = t
        .guard
        .change(
            &claimed.digest,
            claimed.fence,
            &Change::End {
                state: State::Succeeded,
                snapshot: Some(snapshot.clone()),
                keep: KEEP,
                retry_in: None,
            },
        )
        .await
        .unwrap();

    assert!(ended);
    assert!(t.find("k").await.record.snapshot == Some(snapshot));
    // What replaces it has none.
    let again = Write {
        expect: Expect::Fence(claimed.fence),
        ..claim("k")
    };
    t.put(&again).await;
    assert_eq!(t.find("k").await.record.snapshot, None);
}
