//! Foreign rows at the edges: times, counts, states and names that nobody expected.

use counterfoil_core::desk::Filter;
use counterfoil_core::row::RawRow;
use counterfoil_core::store::Settlement;

use super::foreign::{endless, of, row};
use crate::fixture::{Fixture, LATER, QUEUE, id, keys, message, park, retry};
use crate::harness::{Due, ForeignRow, Harness};

/// The largest count of attempts is settled like any other, and so are its neighbours.
pub async fn a_count_at_its_limit_blocks_nobody<H: Harness>(t: Fixture<H>) {
    for _ in 0..3 {
        t.foreign(&[
            ForeignRow {
                attempts: Some(i32::MAX),
                ..row()
            },
            row(),
        ])
        .await;
    }
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;

    relay.sent_and_kept(QUEUE, &rows[..2]).await;
    for some in [&rows[2..3], &rows[3..4]] {
        relay.retry(QUEUE, &some[0]).await;
    }
    let parked = Settlement {
        park: rows[4..].iter().map(park).collect(),
        ..Settlement::default()
    };
    relay.settle(QUEUE, &parked).await;

    let audit = t.desk.audit().await.unwrap();
    assert_eq!((audit.sent_kept, audit.pending, audit.parked), (2, 2, 2));
    assert_eq!(t.desk.parked(&Filter::default()).await.unwrap().len(), 2);
    assert_eq!(t.desk.outbox(&Filter::default()).await.unwrap().len(), 2);
}

/// A count stops at its limit, and what is below zero counts as none, wherever it is told.
pub async fn odd_counts_are_told_as_counts<H: Harness>(t: Fixture<H>) {
    let most = i32::MAX.cast_unsigned();
    for (written, before, after) in [(i32::MAX, most, most), (-7, 0, 1), (i32::MIN, 0, 1)] {
        let odd = ForeignRow {
            attempts: Some(written),
            ..row()
        };
        t.foreign(&vec![odd; 4]).await;
        let relay = t.relay(&[QUEUE]).await;
        let rows = relay.read(QUEUE).await;
        assert!(rows.iter().all(|r| r.attempts == before), "{written}");
        let named: Vec<String> = rows.iter().map(|r| id(r).to_string()).collect();

        relay.sent_and_kept(QUEUE, &rows[..1]).await;
        relay.retry(QUEUE, &rows[1]).await;
        relay.park(QUEUE, &rows[2]).await;
        assert!(t.desk.cancel(&named[3], "odd", "ann").await.unwrap());

        for (n, attempts) in [(0, after), (1, after), (2, after), (3, before)] {
            let shown = t.desk.show(&named[n]).await.unwrap().unwrap();
            assert_eq!(shown.entry.attempts, attempts, "{written}: row {n}");
            let told: Vec<_> = shown.events.iter().filter_map(|e| e.attempt).collect();
            assert!(told.iter().all(|n| *n == after), "{written}: {told:?}");
        }
        t.harness.make_due().await;
        let again = relay.waiting(QUEUE).await;
        assert_eq!(again[0].attempts, after, "it does not start over");
        relay.retry(QUEUE, &again[0]).await;
        t.harness.make_due().await;
        relay.sent(QUEUE, &relay.waiting(QUEUE).await).await;
        relay.store.leave(&relay.id).await.unwrap();
    }
}

/// A row without an id is found by its number: listed, shown, explained and cancelled.
pub async fn a_row_without_an_id_is_found_by_its_number<H: Harness>(t: Fixture<H>) {
    let nameless = ForeignRow {
        nulls: true,
        ..of("a")
    };
    t.foreign(&[nameless.clone(), nameless.clone(), nameless])
        .await;
    let relay = t.relay(&[QUEUE]).await;
    let rows = relay.read(QUEUE).await;
    let named: Vec<String> = rows.iter().map(|r| format!("#{}", r.seq)).collect();

    let listed = t.desk.outbox(&Filter::default()).await.unwrap();
    let listed: Vec<String> = listed.into_iter().map(|e| e.id).collect();
    assert_eq!(listed, named);
    let shown = t.desk.show(&named[0]).await.unwrap().unwrap();
    assert_eq!((shown.place, shown.entry.seq), ("outbox", rows[0].seq));
    let behind = t.desk.facts(&named[1]).await.unwrap().sentence();
    assert!(
        behind.contains(&format!("message {}", named[0])),
        "{behind}"
    );

    assert!(t.desk.cancel(&named[0], "nameless", "ann").await.unwrap());
    assert!(!t.desk.cancel(&named[0], "nameless", "ann").await.unwrap());
    relay.park(QUEUE, &rows[1]).await;

    let places = [
        ("history", "cancelled"),
        ("parked", "pending"),
        ("outbox", "new"),
    ];
    for (name, expected) in named.iter().zip(places) {
        let shown = t.desk.show(name).await.unwrap().unwrap();
        assert_eq!((shown.place, shown.entry.state.as_str()), expected);
    }
    let parked = t.desk.parked(&Filter::default()).await.unwrap();
    assert_eq!(parked[0].id, id(&rows[1]).to_string());
    let one = &named[1..2];
    let redriven = t.desk.redrive(one, false, "ann").await.unwrap();
    assert_eq!(redriven.redriven, [id(&rows[1])]);
    for nobody in ["#0", "#999999999", "#", "#-1", "#x"] {
        assert!(t.desk.show(nobody).await.unwrap().is_none(), "{nobody}");
        assert!(!t.desk.cancel(nobody, "?", "ann").await.unwrap());
    }
}

/// Times from the edges of the calendar are early or due, and operators can read them.
pub async fn odd_times_are_early_or_due<H: Harness>(t: Fixture<H>) {
    let times = [
        (Due::Now, false),
        (Due::Past, false),
        (Due::Earliest, false),
        (Due::FarFuture, true),
        (Due::Latest, true),
    ];
    let foreign: Vec<ForeignRow> = times
        .iter()
        .map(|(due, _)| ForeignRow {
            available_at: Some(*due),
            ..row()
        })
        .collect();
    t.foreign(&foreign).await;
    let relay = t.relay(&[QUEUE]).await;

    let rows = relay.read(QUEUE).await;

    let early: Vec<bool> = rows.iter().map(|r| r.early).collect();
    assert_eq!(early, times.map(|t| t.1));
    relay.schedule(QUEUE, &rows[3..]).await;
    assert!(relay.waiting(QUEUE).await.is_empty());
    assert_eq!(
        t.desk.outbox(&Filter::default()).await.unwrap().len(),
        times.len()
    );
    for row in &rows {
        let named = id(row).to_string();
        assert!(t.desk.show(&named).await.unwrap().is_some());
        assert!(!t.desk.facts(&named).await.unwrap().sentence().is_empty());
    }
    t.stats().await;
    relay.sent_and_kept(QUEUE, &rows).await;
    assert_eq!(t.desk.audit().await.unwrap().sent_kept, times.len() as u64);
}

/// Scheduled rows from the edges of the calendar come due, or wait, without any error.
pub async fn odd_times_of_waiting_rows_are_understood<H: Harness>(t: Fixture<H>) {
    let of = |state: &str, due| ForeignRow {
        state: Some(state.into()),
        available_at: Some(due),
        ..row()
    };
    for state in ["scheduled", "retrying"] {
        for due in [
            Due::Now,
            Due::Past,
            Due::Earliest,
            Due::FarFuture,
            Due::Latest,
        ] {
            t.foreign(&[of(state, due)]).await;
        }
    }
    let relay = t.relay(&[QUEUE]).await;

    let due = relay.waiting(QUEUE).await;

    assert_eq!(due.len(), 6);
    relay.sent(QUEUE, &due).await;
    assert_eq!(t.desk.outbox(&Filter::default()).await.unwrap().len(), 4);
    assert_eq!(t.desk.audit().await.unwrap().pending, 4);
}

/// A writer that fills in our states leaves nothing that is never looked at.
pub async fn states_that_only_we_should_write_are_read_all_the_same<H: Harness>(t: Fixture<H>) {
    let relay = t.relay(&[QUEUE]).await;
    let mut written = 0;
    for state in ["scheduled", "retrying", "held"] {
        for nulls in [false, true] {
            for due in [None, Some(Due::Past)] {
                let lanes = [
                    None,
                    Some(format!("{state}-{nulls}-{due:?}")),
                    Some(endless()),
                ];
                for aggregate_id in lanes {
                    let state = Some(state.into());
                    let odd = ForeignRow {
                        state,
                        nulls,
                        aggregate_id,
                        available_at: due,
                        ..row()
                    };
                    t.foreign(&[odd]).await;
                    written += 1;
                }
            }
        }
    }

    let rows = relay.everything(QUEUE).await;

    let shown = |r: &RawRow| {
        let name: String = r
            .aggregate_id
            .iter()
            .flat_map(|a| a.chars().take(30))
            .collect();
        format!("{:?} of {name:?}", r.state)
    };
    let found: Vec<String> = rows.iter().map(shown).collect();
    assert_eq!(
        rows.len(),
        written,
        "some are never read; these are: {found:#?}"
    );
    relay.sent(QUEUE, &rows).await;
    assert_eq!(t.desk.audit().await.unwrap().pending, 0);
}

/// A lane name without end can be said anything about.
pub async fn a_row_with_an_endless_aggregate_can_be_settled_in_every_way<H: Harness>(
    t: Fixture<H>,
) {
    let relay = t.relay(&[QUEUE]).await;
    for n in 0..5 {
        t.foreign(&[of(&endless())]).await;
        let odd = relay.read(QUEUE).await.remove(0);
        let one = || keys(std::slice::from_ref(&odd));
        let nothing = Settlement::default;
        let settlement = match n {
            0 => Settlement {
                sent: one(),
                keep_sent: true,
                ..nothing()
            },
            1 => Settlement {
                retry: vec![retry(&odd, LATER)],
                ..nothing()
            },
            2 => Settlement {
                hold: one(),
                ..nothing()
            },
            3 => Settlement {
                schedule: one(),
                ..nothing()
            },
            _ => Settlement {
                park: vec![park(&odd)],
                ..nothing()
            },
        };

        relay.settle(QUEUE, &settlement).await;

        if n == 2 {
            // Nothing can be held behind it, and nothing can hold it: it is simply due.
            relay.sent(QUEUE, &relay.everything(QUEUE).await).await;
        }
    }
    assert_eq!(
        t.desk.audit().await.unwrap().pending,
        2,
        "a retry and a scheduled one"
    );
}

/// A queue name without end is a queue that nobody serves: it waits, is counted, and can be
/// cancelled.
pub async fn a_queue_without_end_waits_and_is_counted<H: Harness>(t: Fixture<H>) {
    let name = endless();
    t.foreign(&[ForeignRow {
        queue: Some(name.clone()),
        ..of("a")
    }])
    .await;
    t.put(&[message("a", 1)]).await;
    let relay = t.relay(&[QUEUE]).await;

    let stats = t.stats().await;

    assert_eq!(relay.everything(QUEUE).await.len(), 1, "the others go on");
    let unserved: Vec<_> = stats.iter().filter(|s| s.unserved()).collect();
    assert_eq!((unserved.len(), unserved[0].new), (1, 1));
    assert!(
        name.starts_with(&unserved[0].queue),
        "shown under its name, or the start of it"
    );
    let listed = t.desk.outbox(&Filter::default()).await.unwrap();
    let entry = listed.iter().find(|e| e.queue != QUEUE).unwrap();
    let sentence = t.desk.facts(&entry.id).await.unwrap().sentence();
    assert!(sentence.contains("No live relay serves"), "{sentence}");
    assert!(
        t.desk
            .cancel(&entry.id, "never meant", "ann")
            .await
            .unwrap()
    );
    assert_eq!(t.desk.audit().await.unwrap().cancelled, 1);
}
