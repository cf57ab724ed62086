//! Dates that are none: writers with lax modes leave them, and nothing of ours stumbles.

use counterfoil_core::desk::Filter;
use counterfoil_core::store::Settlement;
use counterfoil_testkit::fixture::{Fixture, QUEUE, id, park, retry};
use counterfoil_testkit::suite::run;

use super::harness::MysqlHarness;

const ODD: [&str; 3] = ["0000-00-00 00:00:00", "2024-00-00", "2024-02-31 12:00:00"];

/// One row for each odd date and state, with that date in both columns.
async fn odd_rows(t: &Fixture<MysqlHarness>, state: &str) {
    for date in ODD {
        t.harness
            .run(format!(
                "SET SESSION sql_mode = 'ALLOW_INVALID_DATES';
                 INSERT INTO counterfoil_outbox (queue, aggregate_id, state, created_at, available_at)
                 VALUES ('{QUEUE}', '{date}', {state}, '{date}', '{date}');
                 SET SESSION sql_mode = DEFAULT"
            ))
            .await;
    }
}

#[test]
fn odd_dates_are_due_and_can_be_settled_in_every_way() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        for _ in 0..3 {
            odd_rows(&t, "NULL").await;
        }
        let relay = t.relay(&[QUEUE]).await;
        let rows = relay.read(QUEUE).await;
        assert_eq!(rows.len(), 9);
        assert!(rows.iter().all(|r| !r.early));

        relay.sent_and_kept(QUEUE, &rows[..3]).await;
        let retries = rows[3..6]
            .iter()
            .map(|r| retry(r, std::time::Duration::ZERO))
            .collect();
        relay
            .settle(
                QUEUE,
                &Settlement {
                    retry: retries,
                    ..Settlement::default()
                },
            )
            .await;
        let parked = rows[6..].iter().map(park).collect();
        relay
            .settle(
                QUEUE,
                &Settlement {
                    park: parked,
                    ..Settlement::default()
                },
            )
            .await;
        let ids: Vec<String> = rows[6..].iter().map(|r| id(r).to_string()).collect();
        let back = t.desk.redrive(&ids, false, "ann").await.unwrap();

        assert_eq!(back.redriven.len(), 3, "{:?}", back.refused);
        assert_eq!(
            relay.waiting(QUEUE).await.len(),
            3,
            "the others wait behind them"
        );
        assert_eq!(t.desk.outbox(&Filter::default()).await.unwrap().len(), 6);
        assert_eq!(t.desk.stats().await.unwrap()[0].kept, 3);
        for row in &rows {
            t.desk.facts(&id(row).to_string()).await.unwrap();
        }
    });
}

#[test]
fn odd_dates_of_waiting_rows_are_long_due() {
    run::<MysqlHarness, _, _>(async |t: Fixture<MysqlHarness>| {
        odd_rows(&t, "'retrying'").await;
        odd_rows(&t, "'scheduled'").await;
        let relay = t.relay(&[QUEUE]).await;

        let rows = relay.waiting(QUEUE).await;

        assert_eq!(rows.len(), 6);
        for row in &rows {
            assert_eq!(
                relay
                    .store
                    .suspect(&relay.fence(QUEUE), &row.key())
                    .await
                    .unwrap(),
                Some(1)
            );
        }
        relay.sent(QUEUE, &rows).await;
        assert_eq!(t.desk.audit().await.unwrap().pending, 0);
    });
}
