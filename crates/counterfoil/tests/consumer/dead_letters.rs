//! What the broker has given up.

use super::*;

/// A letter as another consumer has left it.
fn letter(dead: &Topic, id: &str, subject: &str, version: i64, time: &str) {
    let version = version.to_string();
    let mut headers = envelope(id, "Paid", subject, &version).to_vec();
    headers.extend([
        ("ce_time", time),
        ("dlq-error-code", "TASK_FAILED"),
        ("dlq-error", "no stock"),
        ("dlq-original-topic", "orders"),
    ]);
    dead.send(&headers, b"{}");
}

fn now() -> String {
    chrono::Utc::now().to_rfc3339()
}

pub(super) async fn what_the_broker_has_given_up_is_parked_once_and_redriven<D: Shop>(
    t: Scratch<D>,
) {
    let dead = Topic::new();
    let (builder, tries) = t.builder("stock");
    // What it finds among the dead letters does not go back to them.
    let builder = builder.poison(Poison::DeadLetter);
    let builder = builder.dead_letters(Arc::new(dead.clone()));
    let consumer = builder.start().await.unwrap();
    t.send("done", "a", 1, "{}");
    t.settled().await;

    letter(&dead, "done", "a", 1, &now());
    for _ in 0..2 {
        letter(&dead, "lost", "b", 1, &now());
        dead.break_off();
    }
    letter(&dead, "old", "c", 1, "2020-02-03T04:05:06Z");
    dead.send(&[("ce_type", "Odd")], b"{");
    let parked = t.parked_when(3).await;
    dead.drained().await;

    let mut codes: Vec<_> = parked.iter().filter_map(|p| p.code.clone()).collect();
    codes.sort();
    assert_eq!(codes, ["DEAD_LETTER", "DEAD_LETTER", "DEDUP_EXPIRED"]);
    assert_eq!((t.topic.dead(), dead.dead()), (vec![], vec![]));
    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 1)]));
    let lost = parked
        .iter()
        .find(|p| p.error.as_ref().is_some_and(|e| e.contains("no stock")))
        .unwrap();
    let detail = t.cf.desk().show(&lost.id).await.unwrap().unwrap();
    assert!(detail.headers.unwrap().contains("dlq-original-topic"));

    let ids: Vec<String> = parked.iter().map(|p| p.id.clone()).collect();
    let refused = t.cf.desk().redrive(&ids, false, "me").await.unwrap();
    assert_eq!((refused.redriven.len(), refused.refused.len()), (0, 3));
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    // The one that nobody can understand comes back.
    let parked = t.parked_when(1).await;
    assert_eq!(parked[0].code.as_deref(), Some("UNKNOWN_TYPE"));
    t.settled().await;

    let mut found = D::effects(&t.pool).await;
    found.sort();
    assert_eq!(found, effects(&[("a", 1), ("b", 1), ("c", 1)]));
    assert_eq!(tries.lock().unwrap().values().sum::<u32>(), 3);
    letter(&dead, "lost", "b", 1, &now());
    dead.drained().await;
    assert_eq!(t.parked().await.len(), 1);
    consumer.stop().await;
}

pub(super) async fn a_dead_letter_holds_nobody_up_and_never_goes_back<D: Shop>(t: Scratch<D>) {
    let dead = Topic::new();
    let (builder, _) = t.builder("stock");
    let builder = builder.dead_letters(Arc::new(dead.clone()));
    let consumer = builder.start().await.unwrap();
    letter(&dead, "a1", "a", 1, &now());
    let parked = t.parked_when(1).await;

    t.send("a2", "a", 2, "{}");
    t.settled().await;
    assert_eq!(D::effects(&t.pool).await, effects(&[("a", 2)]));

    // Its time is over.
    let ids = [parked[0].id.clone()];
    t.cf.desk().redrive(&ids, true, "me").await.unwrap();
    eventually("it is parked again", async || {
        let code = t.parked().await.first().and_then(|p| p.code.clone());
        code.as_deref() == Some("VERSION_CONFLICT")
    })
    .await;
    assert_eq!(D::effects(&t.pool).await.len(), 1);
    consumer.stop().await;
}
