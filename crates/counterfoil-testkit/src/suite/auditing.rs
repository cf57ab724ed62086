//! Every message is accounted for, and what is missing or double is found.

use counterfoil_core::desk::Filter;

use crate::fixture::{Fixture, QUEUE, id, keyed, message, messages};
use crate::harness::{Fault, Harness};
use crate::suite::Seed;

/// After anything that can happen, every message is accounted for.
pub async fn an_audit_finds_nothing_after_an_ordinary_day<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut seed = Seed::new("an_audit_finds_nothing_after_an_ordinary_day");
    let mut written = 0;
    for step in 0..40 {
        let key = step.to_string();
        t.put_keyed(&keyed(message(seed.below(4), step), "task", &key))
            .await;
        written += 1;
        t.harness.make_due().await;
        let mut rows = relay.everything(QUEUE).await;
        if rows.is_empty() {
            continue;
        }
        let row = rows.swap_remove(seed.below(rows.len()));
        let one = std::slice::from_ref(&row);
        match seed.below(6) {
            0 => relay.retry(QUEUE, &row).await,
            1 => relay.park(QUEUE, &row).await,
            2 => {
                t.desk
                    .cancel(&id(&row).to_string(), "ordinary", "ann")
                    .await
                    .unwrap();
            }
            3 => {
                let lot = t.desk.parked(&Filter::default()).await.unwrap();
                let ids: Vec<String> = lot.into_iter().map(|e| e.id).collect();
                t.desk.redrive(&ids, true, "ann").await.unwrap();
            }
            _ => relay.sent_and_kept(QUEUE, one).await,
        }
    }

    let audit = t.desk.audit().await.unwrap();

    assert_eq!(audit.findings(true), Vec::<String>::new());
    // A cancelled message that was redriven before stays in the lot as ignored.
    let counted = audit.pending + audit.sent_kept + audit.cancelled + audit.parked;
    assert_eq!(
        (counted, audit.ledger),
        (written, written),
        "every message in one place"
    );
    assert_eq!(
        (
            audit.ledger_missing,
            audit.in_two_places,
            audit.redriven_lost
        ),
        (0, 0, 0)
    );
}

/// A message that stands in two places is found.
pub async fn an_audit_finds_what_is_double<H: Harness>(t: Fixture<H>) {
    t.put(&messages("a", 2)).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    if !t.harness.corrupt(&Fault::AlsoInHistory(rows[0].seq)).await {
        return;
    }

    let audit = t.desk.audit().await.unwrap();
    assert_eq!(audit.in_two_places, 1);
    assert_eq!(audit.findings(false).len(), 1);
}

/// A message that vanished is found: by its key, or by its open record in the parking lot.
pub async fn an_audit_finds_what_is_missing<H: Harness>(t: Fixture<H>) {
    t.put_keyed(&keyed(message("a", 1), "task", "k")).await;
    t.put(&[message("b", 1), message("c", 1)]).await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    relay.park(QUEUE, &rows[1]).await;
    t.desk
        .redrive(&[id(&rows[1]).to_string()], false, "ann")
        .await
        .unwrap();

    for row in &rows[..2] {
        if !t.harness.corrupt(&Fault::RowVanishes(row.seq)).await {
            return;
        }
    }

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.ledger_missing, audit.redriven_lost), (1, 1));
    assert_eq!(
        (audit.findings(true).len(), audit.findings(false).len()),
        (2, 1)
    );
}
