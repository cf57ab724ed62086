//! Whose turn it is: when others fail, when too much waits, and when it is told to stop.

use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use super::*;

pub(super) async fn a_failing_message_is_tried_again_and_only_its_aggregate_waits<D: Shop>(
    t: Scratch<D>,
) {
    // The first fails three times, and until the other aggregate has had its turn: if that waited
    // for it, both would wait for ever.
    let (tries, turn) = (
        Arc::new(AtomicU32::new(0)),
        Arc::new(AtomicBool::new(false)),
    );
    let handler = move |mut tx: Tx<D>, event: Event<Order>| {
        let (tries, turn) = (Arc::clone(&tries), Arc::clone(&turn));
        async move {
            let subject = event.aggregate.as_ref().map_or("", |a| &a.id).to_owned();
            let version = event.version.unwrap_or_default();
            if subject == "a" && version == 1 {
                let tried = tries.fetch_add(1, Ordering::SeqCst);
                if tried < 3 || !turn.load(Ordering::SeqCst) {
                    return Err(HandleError::failed("not yet"));
                }
            }
            D::note(&mut tx, &subject, version).await?;
            if subject == "b" {
                turn.store(true, Ordering::SeqCst);
            }
            Ok(())
        }
    };
    let again = Backoff::new(Duration::from_millis(5), Duration::from_millis(20), 100_000);
    let builder = t.cf.consumer("stock", t.topic.clone()).on("Paid", handler);
    let consumer = builder.backoff(again.unwrap()).start().await.unwrap();
    t.send("a1", "a", 1, "{}");
    t.send("a2", "a", 2, "{}");
    t.send("b1", "b", 1, "{}");
    t.settled().await;

    let found = D::effects(&t.pool).await;
    let place = |what: (&str, i64)| {
        let what = effects(&[what]);
        found.iter().position(|f| *f == what[0]).unwrap()
    };
    assert_eq!(found.len(), 3);
    assert!(place(("a", 1)) < place(("a", 2)), "{found:?}");
    consumer.stop().await;
}

pub(super) async fn when_too_much_is_put_off_the_broker_keeps_the_rest<D: Shop>(t: Scratch<D>) {
    let works = Arc::new(AtomicBool::new(false));
    let told = Arc::clone(&works);
    let handler = move |mut tx: Tx<D>, event: Event<Order>| {
        let works = told.load(Ordering::SeqCst);
        async move {
            D::note(&mut tx, "x", event.version.unwrap_or_default()).await?;
            match works {
                true => Ok(()),
                false => Err(HandleError::failed("the other side is down")),
            }
        }
    };
    let slow = Backoff::new(Duration::from_secs(2), Duration::from_secs(2), 100).unwrap();
    let builder = t.cf.consumer("stock", t.topic.clone()).on("Paid", handler);
    let builder = builder.backoff(slow).most_waiting(20).held(10).batch(5);
    let consumer = builder.start().await.unwrap();
    let mut sent = 0;
    // Until it has stopped to receive, with some to spare.
    eventually("it stops receiving", async || {
        sent += 1;
        t.send(&format!("m{sent}"), &format!("s{sent}"), 1, "{}");
        t.topic.received() + 200 < sent
    })
    .await;
    works.store(true, Ordering::SeqCst);
    t.settled().await;

    assert_eq!(D::effects(&t.pool).await.len() as u64, sent);
    consumer.stop().await;
}

pub(super) async fn a_stop_finishes_what_has_begun<D: Shop>(t: Scratch<D>) {
    let (begun, mut is_begun) = tokio::sync::mpsc::unbounded_channel();
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let wait = Arc::clone(&gate);
    let handler = move |mut tx: Tx<D>, event: Event<Order>| {
        let (begun, wait) = (begun.clone(), Arc::clone(&wait));
        async move {
            begun.send(()).unwrap();
            wait.acquire().await?.forget();
            D::note(&mut tx, "x", event.version.unwrap_or_default()).await?;
            Ok(())
        }
    };
    let builder = t.cf.consumer("stock", t.topic.clone());
    let consumer = builder.batch(1).on("Paid", handler).start().await.unwrap();
    let number = t.send("a1", "a", 1, "{}");
    t.send("a2", "a", 2, "{}");
    is_begun.recv().await.unwrap();
    // It is told to stop before the handler may go on.
    tokio::join!(consumer.stop(), async { gate.add_permits(1) });

    assert_eq!(D::effects(&t.pool).await, effects(&[("x", 1)]));
    assert_eq!(t.topic.done(), [number]);
}
