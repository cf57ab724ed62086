//! Local tasks.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::message::header;
use counterfoil_engine::{
    Current, Engine, EngineBuilder, HandlerAnswer, Task, TaskError, TaskOptions, TaskRegistry,
    task_message,
};
use counterfoil_testkit::memory::MemoryStore;
use serde::{Deserialize, Serialize};
use tokio::sync::Barrier;

use crate::support::{eventually, parked, quick, settings};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Notice {
    order: u32,
}

fn options() -> TaskOptions {
    TaskOptions {
        backoff: quick(3),
        ..TaskOptions::default()
    }
}

async fn start(store: &MemoryStore, tasks: TaskRegistry) -> Engine {
    EngineBuilder::new(Arc::new(store.clone()))
        .settings(settings())
        .tasks(tasks)
        .start()
        .await
        .unwrap()
}

async fn enqueue<T: Serialize>(store: &MemoryStore, scene: &str, id: &str, content: &T) -> bool {
    let mut tx = store.begin();
    let answer = tx
        .enqueue_keyed(&task_message(scene, id, content).unwrap())
        .await
        .unwrap();
    tx.commit().await.unwrap();
    answer.is_first()
}

async fn outbox_empty(store: &MemoryStore) -> bool {
    store.outbox(&Filter::default()).await.unwrap().is_empty()
}

#[tokio::test]
async fn a_task_runs_once_with_its_typed_content_and_is_never_run_again() {
    let store = MemoryStore::new();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&seen);
    let mut tasks = TaskRegistry::new();
    tasks
        .add("notify", options(), move |task: Task<Notice>| {
            log.lock()
                .unwrap()
                .push((task.scene, task.business_id, task.content, task.attempt));
            async { Ok(()) }
        })
        .unwrap();
    let _engine = start(&store, tasks).await;

    assert!(enqueue(&store, "notify", "42", &Notice { order: 42 }).await);
    eventually("it has run", || outbox_empty(&store)).await;
    assert!(
        !enqueue(&store, "notify", "42", &Notice { order: 42 }).await,
        "the same business id again"
    );
    assert!(enqueue(&store, "notify", "43", &Notice { order: 43 }).await);
    eventually("the other has run", || outbox_empty(&store)).await;

    let seen = seen.lock().unwrap().clone();
    assert_eq!(seen.len(), 2);
    assert_eq!(
        seen[0],
        ("notify".into(), "42".into(), Notice { order: 42 }, 1)
    );
}

/// Runs a handler until its task is parked; answers (code, error, calls, compensated).
async fn give_up<F>(handler: F) -> (String, String, u32)
where
    F: Fn(u32) -> HandlerAnswer + Send + Sync + 'static,
{
    let store = MemoryStore::new();
    let calls = Arc::new(AtomicU32::new(0));
    let counter = Arc::clone(&calls);
    let mut tasks = TaskRegistry::new();
    tasks
        .add("t", options(), move |_: Task<u32>| {
            let answer = handler(counter.fetch_add(1, Ordering::SeqCst) + 1);
            async { answer }
        })
        .unwrap();
    let _engine = start(&store, tasks).await;
    enqueue(&store, "t", "1", &1).await;
    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    let entry = parked(&store).await.remove(0);
    (
        entry.code.unwrap(),
        entry.error.unwrap(),
        calls.load(Ordering::SeqCst),
    )
}

#[tokio::test]
async fn failure_and_error_are_both_retried_and_recorded_differently() {
    let failed = give_up(|_| Err(TaskError::failed("no stock"))).await;
    let error = give_up(|_| Err(std::io::Error::other("disk").into())).await;

    assert_eq!(failed, ("TASK_FAILED".into(), "no stock".into(), 3));
    assert_eq!(error, ("TASK_ERROR".into(), "disk".into(), 3));
}

#[tokio::test]
async fn the_error_of_a_task_is_bounded() {
    let (_, error, _) = give_up(|_| Err(TaskError::failed("語".repeat(100_000)))).await;

    assert!(error.len() <= counterfoil_core::error_text::MAX_ERROR);
    assert!(error.starts_with("語"));
}

#[tokio::test]
async fn a_handler_can_park_at_once_and_a_redrive_needs_a_confirmation() {
    let (code, error, calls) = give_up(|_| Err(TaskError::Park("ask a person".into()))).await;

    assert_eq!(
        (code.as_str(), error.as_str(), calls),
        ("PARKED_BY_HANDLER", "ask a person", 1)
    );
}

#[tokio::test]
async fn a_panicking_handler_is_retried_and_parked() {
    let (code, error, calls) = give_up(|_| panic!("boom")).await;

    assert_eq!((code.as_str(), error.as_str(), calls), ("PANIC", "boom", 3));
}

#[tokio::test]
async fn content_that_does_not_fit_is_parked_without_a_try() {
    let store = MemoryStore::new();
    let mut tasks = TaskRegistry::new();
    tasks
        .add("t", options(), |_: Task<Notice>| async { Ok(()) })
        .unwrap();
    let _engine = start(&store, tasks).await;

    enqueue(&store, "t", "1", &"not a notice").await;

    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    assert_eq!(
        parked(&store).await[0].code.as_deref(),
        Some("VALIDATION_ERROR")
    );
}

#[tokio::test]
async fn a_scene_that_is_given_up_starts_its_compensation() {
    let store = MemoryStore::new();
    let undone = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&undone);
    let mut tasks = TaskRegistry::new();
    let charge = TaskOptions {
        compensation: Some("refund".into()),
        ..options()
    };
    tasks
        .add("charge", charge, |_: Task<u32>| async {
            Err(TaskError::failed("declined"))
        })
        .unwrap();
    tasks
        .add("refund", options(), move |task: Task<u32>| {
            let cause = task.headers.get(header::CAUSATION_ID).map(str::to_owned);
            log.lock()
                .unwrap()
                .push((task.business_id, task.content, cause.is_some()));
            async { Ok(()) }
        })
        .unwrap();
    let _engine = start(&store, tasks).await;

    enqueue(&store, "charge", "7", &99).await;

    eventually("the compensation has run", || async {
        !undone.lock().unwrap().is_empty()
    })
    .await;
    assert_eq!(*undone.lock().unwrap(), [("7".to_owned(), 99, true)]);
    assert_eq!(parked(&store).await.len(), 1);
}

#[tokio::test]
async fn an_unknown_compensation_is_refused_at_the_start() {
    let mut tasks = TaskRegistry::new();
    let charge = TaskOptions {
        compensation: Some("refund".into()),
        ..options()
    };
    tasks
        .add("charge", charge, |_: Task<u32>| async { Ok(()) })
        .unwrap();

    let refused = EngineBuilder::new(Arc::new(MemoryStore::new()))
        .tasks(tasks)
        .start()
        .await;

    assert!(refused.err().unwrap().to_string().contains("refund"));
}

#[tokio::test]
async fn no_more_run_at_once_than_the_user_allows() {
    let store = MemoryStore::new();
    let (running, most) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicU32::new(0)));
    let (now, peak) = (Arc::clone(&running), Arc::clone(&most));
    let mut tasks = TaskRegistry::new();
    tasks
        .add(
            "t",
            TaskOptions {
                concurrency: 3,
                ..options()
            },
            move |_: Task<u32>| {
                let (now, peak) = (Arc::clone(&now), Arc::clone(&peak));
                async move {
                    peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..50 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                }
            },
        )
        .unwrap();
    for n in 0..60 {
        enqueue(&store, "t", &n.to_string(), &n).await;
    }

    let _engine = start(&store, tasks).await;
    eventually("all have run", || outbox_empty(&store)).await;

    assert_eq!(most.load(Ordering::SeqCst), 3);
}

/// Two runs are inside their handlers at the same time, and each sees what was enqueued with it.
#[tokio::test]
async fn the_trace_travels_into_the_run_and_is_gone_after_it() {
    let store = MemoryStore::new();
    let found: Arc<Mutex<BTreeMap<String, Option<String>>>> = Arc::default();
    let (slot, both) = (Arc::clone(&found), Arc::new(Barrier::new(2)));
    let mut tasks = TaskRegistry::new();
    tasks
        .add("t", options(), move |task: Task<u32>| {
            let (slot, both) = (Arc::clone(&slot), Arc::clone(&both));
            async move {
                both.wait().await;
                let current = Current::get().ok_or("no context")?;
                assert_eq!(current.id, task.id);
                let trace = current.headers.get(header::TRACEPARENT).map(str::to_owned);
                slot.lock().unwrap().insert(task.business_id, trace);
                Ok(())
            }
        })
        .unwrap();
    let trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let mut traced = task_message("t", "traced", &1).unwrap();
    traced.message.headers.set(header::TRACEPARENT, trace);
    let plain = task_message("t", "plain", &1).unwrap();
    let mut tx = store.begin();
    tx.enqueue_keyed(&traced).await.unwrap();
    tx.enqueue_keyed(&plain).await.unwrap();
    tx.commit().await.unwrap();

    let _engine = start(&store, tasks).await;
    eventually("both have run", || outbox_empty(&store)).await;

    let seen = found.lock().unwrap().clone();
    assert_eq!(seen["traced"].as_deref(), Some(trace));
    assert_eq!(seen["plain"], None, "another's trace");
    assert!(Current::get().is_none(), "outside a run there is no task");
}

#[tokio::test]
async fn a_run_that_takes_too_long_is_given_up_and_tried_again() {
    let store = MemoryStore::new();
    let mut tasks = TaskRegistry::new();
    let hasty = TaskOptions {
        timeout: Some(Duration::from_millis(20)),
        ..options()
    };
    tasks
        .add("t", hasty, |_: Task<u32>| std::future::pending())
        .unwrap();
    let _engine = start(&store, tasks).await;

    enqueue(&store, "t", "1", &1).await;

    eventually("it is parked", || async { parked(&store).await.len() == 1 }).await;
    assert_eq!(parked(&store).await[0].code.as_deref(), Some("TIMEOUT"));
}
