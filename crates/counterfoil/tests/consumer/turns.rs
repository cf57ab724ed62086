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

/// For the aggregate `a` the database does nothing while `ill` says so: in turn there is no
/// connection for the handler, and no memory.
fn sickly<D: Shop>(builder: Builder<D>, pool: &Pool<D::Sqlx>, ill: &Arc<AtomicBool>) -> Builder<D> {
    // A pool of which nobody ever gets a connection.
    let none: Pool<D::Sqlx> = sqlx::pool::PoolOptions::new()
        .acquire_timeout(Duration::from_millis(20))
        .max_connections(1)
        .connect_lazy_with((*pool.connect_options()).clone());
    let (ill, tries) = (Arc::clone(ill), Arc::new(AtomicU32::new(0)));
    builder.on("Paid", move |mut tx: Tx<D>, event: Event<Order>| {
        let subject = event.aggregate.as_ref().map_or("", |a| &a.id).to_owned();
        let ill = ill.load(Ordering::SeqCst) && subject == "a";
        let odd = ill && tries.fetch_add(1, Ordering::SeqCst) % 2 == 1;
        let none = none.clone();
        async move {
            let version = event.version.unwrap_or_default();
            D::note(&mut tx, &subject, version).await?;
            if ill && odd {
                D::starve(&mut tx).await?;
            } else if ill {
                let _only = none.acquire().await?;
                none.acquire().await?;
            }
            Ok(())
        }
    })
}

pub(super) async fn a_handler_that_the_database_does_not_serve_holds_back_its_aggregate_only<
    D: Shop,
>(
    t: Scratch<D>,
) {
    let ill = Arc::new(AtomicBool::new(true));
    let builder = t.cf.consumer("stock", t.topic.clone()).backoff(quick());
    let consumer = sickly(builder, &t.pool, &ill).start().await.unwrap();
    t.send("a1", "a", 1, "{}");
    t.send("a2", "a", 2, "{}");
    for n in 1..=5 {
        t.send(&format!("b{n}"), "b", n, "{}");
        t.send(&format!("c{n}"), "c", n, "{}");
    }
    t.topic.drained().await;

    assert_eq!(D::effects(&t.pool).await.len(), 10, "the others went on");
    // It is tried more often than there are attempts, and none of them counts.
    let seen = std::sync::Mutex::new(std::collections::BTreeSet::new());
    eventually("it is tried again and again", async || {
        let waiting = t.cf.desk().outbox(&Filter::default()).await.unwrap();
        assert_eq!(waiting.len(), 2);
        let first = waiting.iter().min_by_key(|e| e.seq).unwrap();
        assert_eq!(first.attempts, 0, "{first:?}");
        assert_eq!(first.code.as_deref(), Some("UNAVAILABLE"));
        let mut seen = seen.lock().unwrap();
        seen.insert(first.available_at);
        seen.len() > 5
    })
    .await;
    ill.store(false, Ordering::SeqCst);
    t.settled().await;

    let found = D::effects(&t.pool).await;
    assert_eq!(found[10..], effects(&[("a", 1), ("a", 2)]));
    consumer.stop().await;
}

pub(super) async fn after_the_patience_a_handler_that_the_database_does_not_serve_is_parked<
    D: Shop,
>(
    t: Scratch<D>,
) {
    let ill = Arc::new(AtomicBool::new(true));
    let cf = D::with_patience(&t.pool, Duration::ZERO).await;
    let builder = cf.consumer("stock", t.topic.clone()).backoff(quick());
    let consumer = sickly(builder, &t.pool, &ill).start().await.unwrap();
    t.send("a1", "a", 1, "{}");
    t.send("b1", "b", 1, "{}");
    let parked = t.parked_when(1).await;

    assert_eq!(parked[0].code.as_deref(), Some("UNAVAILABLE"));
    assert_eq!(parked[0].attempts, 4);
    assert_eq!(D::effects(&t.pool).await, effects(&[("b", 1)]));
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
