//! A consumer that waits for every version.

use counterfoil::inbox::Versions;

use super::*;

const GAPLESS: Versions = Versions::Gapless { first: 1 };

fn patient() -> Backoff {
    let (base, cap) = (Duration::from_millis(2), Duration::from_millis(10));
    Backoff::new(base, cap, 100_000).unwrap()
}

pub(super) async fn versions_in_any_order_are_applied_one_after_the_other<D: Shop>(t: Scratch<D>) {
    let (builder, _) = t.builder("stock");
    let builder = builder.versions(GAPLESS).backoff(patient());
    let consumer = builder.start().await.unwrap();
    let mut rng = fastrand::Rng::with_seed(11);
    let mut all: Vec<(i64, i64)> = (1..=8).flat_map(|v| (0..10).map(move |s| (s, v))).collect();
    all.extend_from_within(..20);
    rng.shuffle(&mut all);
    for (subject, version) in all {
        let body = format!("{{\"failures\": {}}}", rng.u32(0..10) / 9);
        let id = format!("{subject}-{version}");
        t.send(&id, &subject.to_string(), version, &body);
    }
    t.settled().await;

    let found = D::effects(&t.pool).await;
    for subject in 0..10 {
        let of = found.iter().filter(|(s, _)| *s == subject.to_string());
        let of: Vec<i64> = of.map(|(_, v)| *v).collect();
        assert_eq!(of, (1..=8).collect::<Vec<i64>>(), "{subject}");
    }
    assert_eq!(t.parked().await.len(), 0);
    consumer.stop().await;
}

pub(super) async fn a_version_whose_predecessor_does_not_come_is_parked_and_can_be_forced<
    D: Shop,
>(
    t: Scratch<D>,
) {
    let (builder, _) = t.builder("stock");
    let builder = builder.versions(GAPLESS).on_park(OnPark::Skip);
    let Err(Error::Consumer(why)) = builder.start().await else {
        panic!("it cannot both wait and go on");
    };
    assert!(why.contains("choose one of the two"), "{why}");

    let (builder, _) = t.builder("stock");
    let consumer = builder.versions(GAPLESS).start().await.unwrap();
    t.send("a1", "a", 1, "{}");
    t.send("a3", "a", 3, "{}");
    t.send("b1", "b", 1, "{}");
    let parked = t.parked_when(1).await;
    assert_eq!(parked[0].code.as_deref(), Some("VERSION_GAP"));
    let error = parked[0].error.as_deref().unwrap();
    assert!(error.contains("version 2"), "{error}");

    // It comes at last: nothing stands in its way, and then the other is no longer early.
    t.send("a2", "a", 2, "{}");
    t.settled().await;
    let ids = [parked[0].id.clone()];
    let refused = t.cf.desk().redrive(&ids, false, "me").await.unwrap();
    assert_eq!((refused.redriven.len(), refused.refused.len()), (0, 1));
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    t.settled().await;
    let mut found = D::effects(&t.pool).await;
    found.sort();
    let so_far = [("a", 1), ("a", 2), ("a", 3), ("b", 1)];
    assert_eq!(found, effects(&so_far));

    // This one never comes, and a person decides to go on without it.
    t.send("a5", "a", 5, "{}");
    let parked = t.parked_when(1).await;
    let ids = [parked[0].id.clone()];
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    t.settled().await;
    t.send("a4", "a", 4, "{}");
    let parked = t.parked_when(1).await;
    assert_eq!(parked[0].code.as_deref(), Some("VERSION_CONFLICT"));
    t.send("a6", "a", 6, "{}");
    t.settled().await;
    let found = D::effects(&t.pool).await;
    assert_eq!(found[4..], effects(&[("a", 5), ("a", 6)]));
    consumer.stop().await;
}

pub(super) async fn events_that_are_left_alone_leave_no_gap<D: Shop>(t: Scratch<D>) {
    let (builder, _) = t.builder("stock");
    let builder = builder.versions(Versions::Gapless { first: 0 });
    let consumer = builder.skip("Looked*").start().await.unwrap();
    t.send("a0", "a", 0, "{}");
    t.topic.send(&envelope("a1", "LookedAt", "a", "1"), b"{}");
    t.send("a2", "a", 2, "{}");
    t.settled().await;

    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 0), ("a", 2)]));
    assert_eq!(t.parked().await.len(), 0);
    consumer.stop().await;
}
