use super::*;
use counterfoil_core::policy::breaker::State;
use metrics_exporter_prometheus::PrometheusBuilder;

type Key = fn(&Request<()>) -> Option<String>;

fn by_key(request: &Request<()>) -> Option<String> {
    let key = request.headers().get("idempotency-key")?;
    key.to_str().ok().map(str::to_owned)
}

fn coalesced(upstream: &Upstream, dependency: &Arc<Dependency>) -> Client {
    let layer = CoalesceLayer::new("stock", by_key as Key);
    BoxCloneSyncService::new(layer.layer(upstream.behind(dependency)))
}

#[tokio::test(start_paused = true)]
async fn requests_with_one_key_cause_one_call_and_only_that_is_retried() {
    let upstream = Upstream::new(&[Act::Status(503), Act::After(S), Act::After(S)]);
    let client = coalesced(&upstream, &dependency(|_| {}));

    let calls: Vec<_> = (0..50)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { send(&client, post(Some("idempotency-key"))).await })
        })
        .collect();
    for call in calls {
        assert_eq!(status(&call.await.unwrap()), 200);
    }
    assert_eq!(upstream.calls(), 2);

    send(&client, post(Some("idempotency-key"))).await.unwrap();
    assert_eq!(upstream.calls(), 3, "what comes later calls anew");
    send(&client, post(None)).await.unwrap();
    assert_eq!(upstream.calls(), 4, "without a key everybody calls");
}

#[tokio::test(start_paused = true)]
async fn those_who_wait_get_the_answer_although_the_first_one_is_gone() {
    let upstream = Upstream::new(&[Act::After(S)]);
    let client = coalesced(&upstream, &dependency(|_| {}));
    let spawn = || {
        let client = client.clone();
        tokio::spawn(async move { send(&client, post(Some("idempotency-key"))).await })
    };
    let (first, second) = (spawn(), spawn());
    tokio::time::sleep(MS).await;

    first.abort();

    assert_eq!(status(&second.await.unwrap()), 200);
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_panics_leaves_nobody_waiting_for_ever() {
    let upstream = Upstream::new(&[Act::Panic]);
    let client = coalesced(&upstream, &dependency(|_| {}));

    for _ in 0..2 {
        let answer = send(&client, post(Some("idempotency-key"))).await;
        assert_eq!(answer.unwrap_err(), CallError::Abandoned);
    }

    assert_eq!(upstream.calls(), 2);
}

#[tokio::test(start_paused = true)]
async fn everybody_who_names_a_dependency_shares_it() {
    let registry = Registry::new();
    let first = registry.dependency("stock", limits()).unwrap();
    let second = registry.dependency("stock", Limits::default()).unwrap();
    registry.dependency("mail", limits()).unwrap();

    assert!(Arc::ptr_eq(&first, &second));
    let names: Vec<_> = registry.list().into_iter().map(|s| s.destination).collect();
    assert_eq!(names, ["mail", "stock"]);
    assert!(registry.get("nobody").is_none());
}

#[tokio::test(start_paused = true)]
async fn a_change_of_a_breaker_wakes_who_listens() {
    let registry = Registry::new();
    let stock = registry.dependency("stock", limits()).unwrap();

    stock.force(
        Some(counterfoil_core::policy::breaker::Forced::Open),
        "anna",
    );

    tokio::time::timeout(S, registry.changed()).await.unwrap();
    assert!(tokio::time::timeout(S, registry.changed()).await.is_err());
}

#[test]
fn impossible_limits_are_refused() {
    let wrong: [fn(&mut Limits); 5] = [
        |l| l.deadline = Duration::ZERO,
        |l| l.attempt = Duration::ZERO,
        |l| l.bulkhead.limit = 0,
        |l| l.budget.cap = 0,
        |l| l.breaker.probes = 0,
    ];
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .unwrap();
    let _inside = runtime.enter();
    for (i, change) in wrong.into_iter().enumerate() {
        let mut limits = limits();
        change(&mut limits);
        assert!(Dependency::new("stock", limits).is_err(), "{i}");
    }
}

#[tokio::test(start_paused = true)]
async fn everything_that_is_decided_is_counted() {
    let recorder = PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _local = metrics::set_default_local_recorder(&recorder);
    let upstream = Upstream::new(&[Act::Later(429, 1), Act::Status(500)]);
    let dependency = dependency(|l| {
        l.budget.floor = 1;
        l.budget.cap = 1;
        l.breaker.consecutive = Some(2);
        l.bulkhead.limit = 1;
        l.bulkhead.queue = 0;
    });
    let client = upstream.behind(&dependency);

    send(&client, get()).await.unwrap();
    send(&client, get()).await.unwrap();
    assert_eq!(dependency.state(), State::Open);
    let place = dependency.enter().await;
    assert!(dependency.enter().await.is_none());

    let text = handle.render();
    for line in [
        "counterfoil_retry_allowed_total{destination=\"stock\"} 1",
        "counterfoil_retry_exhausted_total{destination=\"stock\"} 1",
        "counterfoil_retry_after_honored_total{destination=\"stock\"} 1",
        "counterfoil_retry_budget_left{destination=\"stock\"} 0",
        "counterfoil_breaker_state{destination=\"stock\"} 2",
        "counterfoil_breaker_transitions_total{destination=\"stock\",to=\"open\",cause=\"consecutive\"} 1",
        "counterfoil_bulkhead_rejected_total{destination=\"stock\"} 1",
        "counterfoil_bulkhead_in_use{destination=\"stock\"} 1",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
    drop(place);
    assert!(
        handle
            .render()
            .contains("counterfoil_bulkhead_in_use{destination=\"stock\"} 0")
    );
}
