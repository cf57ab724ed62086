//! Keys by which a repeat is recognised.

use counterfoil_core::store::{Enqueued, Keyed};

use crate::fixture::{Fixture, QUEUE, ids, keyed, message};
use crate::harness::Harness;

/// A repeat in the same transaction stores nothing and names the first.
pub async fn a_key_is_recognised_in_the_same_transaction<H: Harness>(t: Fixture<H>) {
    let (first, second) = (message("a", 1), message("a", 2));
    let mut tx = t.harness.begin().await;

    let one = t
        .harness
        .enqueue_keyed(&mut tx, &keyed(first.clone(), "task", "k"))
        .await
        .unwrap();
    let two = t
        .harness
        .enqueue_keyed(&mut tx, &keyed(second, "task", "k"))
        .await
        .unwrap();
    t.harness.commit(tx).await.unwrap();

    assert_eq!(
        (one, two),
        (Enqueued::First(first.id), Enqueued::Duplicate(first.id))
    );
    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(ids(&relay.read(QUEUE).await), [first.id]);
}

/// Identity outlives delivery: a repeat is recognised after the message is gone.
pub async fn a_key_is_recognised_after_commit_and_after_settlement<H: Harness>(t: Fixture<H>) {
    let first = message("a", 1);
    assert!(
        t.put_keyed(&keyed(first.clone(), "task", "k"))
            .await
            .is_first()
    );
    let relay = t.relay(&[QUEUE]).await;

    let committed = t.put_keyed(&keyed(message("a", 2), "task", "k")).await;
    relay.sent(QUEUE, &relay.read(QUEUE).await).await;
    let settled = t.put_keyed(&keyed(message("a", 3), "task", "k")).await;

    assert_eq!(committed, Enqueued::Duplicate(first.id));
    assert_eq!(settled, Enqueued::Duplicate(first.id));
    assert!(relay.read(QUEUE).await.is_empty());
}

/// A key that was taken back was never used.
pub async fn a_key_is_free_after_a_rollback<H: Harness>(t: Fixture<H>) {
    let mut tx = t.harness.begin().await;
    t.harness
        .enqueue_keyed(&mut tx, &keyed(message("a", 1), "task", "k"))
        .await
        .unwrap();
    t.harness.rollback(tx).await;
    let mut tx = t.harness.begin().await;
    t.harness.savepoint(&mut tx).await;
    t.harness
        .enqueue_keyed(&mut tx, &keyed(message("a", 2), "task", "k"))
        .await
        .unwrap();
    t.harness.rollback_to(&mut tx).await;
    t.harness.commit(tx).await.unwrap();

    let third = message("a", 3);
    let answer = t.put_keyed(&keyed(third.clone(), "task", "k")).await;

    assert_eq!(answer, Enqueued::First(third.id));
    let relay = t.relay(&[QUEUE]).await;
    assert_eq!(ids(&relay.read(QUEUE).await), [third.id]);
}

/// Scope and key are compared byte by byte, and kept apart from each other.
pub async fn keys_that_look_alike_are_different<H: Harness>(t: Fixture<H>) {
    let pairs = [
        ("task", "caf\u{e9}"),
        ("task", "cafe\u{301}"),
        ("task", "cafe"),
        ("task", "CAFE"),
        ("task", "cafe "),
        ("TASK", "cafe"),
        ("task ", "cafe"),
        ("tas", "kcafe"),
        ("task", "ca%e"),
    ];

    for (scope, key) in pairs {
        let answer = t.put_keyed(&keyed(message("a", 1), scope, key)).await;
        assert!(answer.is_first(), "{scope:?} {key:?}");
    }

    for (scope, key) in pairs {
        let answer = t.put_keyed(&keyed(message("a", 1), scope, key)).await;
        assert!(!answer.is_first(), "{scope:?} {key:?}");
    }
}

/// Without a key nothing is compared.
pub async fn a_message_without_a_key_is_always_the_first<H: Harness>(t: Fixture<H>) {
    let one = message("a", 1);

    for _ in 0..2 {
        assert_eq!(
            t.put_keyed(&Keyed::from(one.clone())).await,
            Enqueued::First(one.id)
        );
    }

    assert_eq!(t.desk.audit().await.unwrap().pending, 2);
}

/// A key that cannot be stored is refused, and the transaction goes on.
pub async fn a_bad_key_is_refused<H: Harness>(t: Fixture<H>) {
    let mut tx = t.harness.begin().await;

    for (scope, key) in [
        ("", "k"),
        ("task", ""),
        ("task", "a\nb"),
        ("task", &"x".repeat(256)),
    ] {
        let answer = t
            .harness
            .enqueue_keyed(&mut tx, &keyed(message("a", 1), scope, key))
            .await;
        assert!(answer.is_err(), "{scope:?} {key:?}");
    }
    let fine = keyed(message("a", 1), &"s".repeat(255), &"k".repeat(255));
    let answer = t.harness.enqueue_keyed(&mut tx, &fine).await.unwrap();
    t.harness.commit(tx).await.unwrap();

    assert!(answer.is_first());
    assert_eq!(t.desk.audit().await.unwrap().pending, 1);
}

/// A batch posted by a caller without a database is recognised piece by piece.
pub async fn a_batch_is_recognised_piece_by_piece<H: Harness>(t: Fixture<H>) {
    let all: Vec<_> = (0..3)
        .map(|n| keyed(message("a", n), "api", &n.to_string()))
        .collect();
    let first = all[1].message.id;
    t.store.enqueue(&all[1..2]).await.unwrap();
    let batch = [all.clone(), vec![all[0].clone()]].concat();

    let answers = t.store.enqueue(&batch).await.unwrap();

    let firsts: Vec<bool> = answers.iter().map(Enqueued::is_first).collect();
    assert_eq!(firsts, [true, false, true, false]);
    assert_eq!(answers[1], Enqueued::Duplicate(first));
    assert_eq!(answers[3], Enqueued::Duplicate(all[0].message.id));
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.ledger), (3, 3));
}

/// A batch keeps its order, with keys and without, and a key counts from its first use in it.
pub async fn a_batch_keeps_its_order_with_and_without_keys<H: Harness>(t: Fixture<H>) {
    let old = message("a", 0);
    t.put_keyed(&keyed(old.clone(), "z", "used")).await;
    let all: Vec<_> = (1..9).map(|n| message("a", n)).collect();
    let at = |n: usize| all[n].clone();
    let batch = [
        keyed(at(0), "z", "z"),
        Keyed::from(at(1)),
        keyed(at(2), "a", "a"),
        keyed(at(3), "z", "z"),
        keyed(at(4), "z", "used"),
        keyed(at(5), "a", "z"),
        Keyed::from(at(6)),
        Keyed::from(at(6)),
        keyed(at(7), "a", "a"),
    ];

    let answers = t.store.enqueue(&batch).await.unwrap();

    let (first, again) = (Enqueued::First, Enqueued::Duplicate);
    let expected = [
        first(all[0].id),
        first(all[1].id),
        first(all[2].id),
        again(all[0].id),
        again(old.id),
        first(all[5].id),
        first(all[6].id),
        first(all[6].id),
        again(all[2].id),
    ];
    assert_eq!(answers, expected);
    let relay = t.relay(&[QUEUE]).await;
    let stored = [
        old.id, all[0].id, all[1].id, all[2].id, all[5].id, all[6].id, all[6].id,
    ];
    assert_eq!(ids(&relay.read(QUEUE).await), stored);
    assert_eq!(t.store.enqueue(&[]).await.unwrap(), []);
    assert_eq!(t.desk.audit().await.unwrap().ledger, 4);
}

/// A broken message in a batch leaves nothing behind of the whole batch.
pub async fn a_refused_batch_leaves_nothing<H: Harness>(t: Fixture<H>) {
    let fine = keyed(message("a", 1), "api", "1");
    let broken = keyed(message("a", 2).queue(""), "api", "2");

    let refused = t.store.enqueue(&[fine.clone(), broken]).await;

    assert!(refused.is_err());
    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.pending, audit.ledger), (0, 0));
    assert!(t.put_keyed(&fine).await.is_first());
}
