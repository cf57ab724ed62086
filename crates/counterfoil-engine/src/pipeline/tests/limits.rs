use super::*;
use counterfoil_core::policy::breaker::{Forced, State};

#[tokio::test(start_paused = true)]
async fn while_the_breaker_is_open_nobody_is_called_and_then_one_probe_a_second() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let dependency = dependency(|l| {
        l.breaker.consecutive = Some(3);
        l.breaker.open_cap = l.breaker.open_for;
        l.budget = counterfoil_core::policy::budget::Limits::NONE;
    });
    let client = upstream.behind(&dependency);
    for _ in 0..3 {
        send(&client, get()).await.unwrap();
    }

    // 100 a second for 5 seconds.
    for _ in 0..500 {
        let answer = send(&client, get()).await;
        if let Err(error) = answer {
            assert!(matches!(error, CallError::Open { retry_after: Some(t) } if t <= S));
            assert!(error.not_called());
        }
        tokio::time::sleep(10 * MS).await;
    }
    assert_eq!(upstream.calls(), 3 + 4, "after 1, 2, 3 and 4 seconds");

    upstream.then(&[Act::Status(200)]);
    tokio::time::sleep(S).await;
    assert_eq!(status(&send(&client, get()).await), 200);
    assert_eq!(dependency.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_probe_is_not_retried() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let dependency = dependency(|l| l.breaker.consecutive = Some(2));
    let client = upstream.behind(&dependency);

    let answer = send(&client, get()).await;
    assert_eq!(report(&answer).ended, Ended::TurnedAway);
    assert_eq!(upstream.calls(), 2, "the second failure opened it");
    tokio::time::sleep(S).await;
    send(&client, get()).await.unwrap();

    assert_eq!(upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_probe_that_hangs_or_is_dropped_does_not_wedge_the_breaker() {
    let upstream = Upstream::new(&[
        Act::Status(500),
        Act::Status(500),
        Act::Hang,
        Act::Hang,
        Act::Status(200),
    ]);
    let dependency = dependency(|l| l.breaker.consecutive = Some(2));
    let client = upstream.behind(&dependency);
    send(&client, get()).await.unwrap();
    tokio::time::sleep(S).await;

    let dropped = tokio::time::timeout(100 * MS, send(&client, get())).await;
    assert!(dropped.is_err());
    tokio::time::sleep(S).await;
    let beside = tokio::spawn({
        let client = client.clone();
        async move { send(&client, get()).await }
    });
    tokio::time::sleep(S).await;
    assert_eq!(status(&send(&client, get()).await), 200);

    assert_eq!(dependency.state(), State::Closed);
    beside.abort();
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_hangs_opens_the_breaker_however_short_the_deadline() {
    let upstream = Upstream::new(&[Act::Hang]);
    let dependency = dependency(|l| {
        l.breaker.consecutive = Some(3);
        l.deadline = 500 * MS;
    });
    let client = upstream.behind(&dependency);

    for _ in 0..3 {
        let answer = send(&client, get()).await;
        assert_eq!(answer.unwrap_err(), CallError::Timeout { after: 500 * MS });
    }

    assert_eq!(dependency.state(), State::Open);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_had_only_the_rest_of_a_deadline_says_nothing_about_the_dependency() {
    let upstream = Upstream::new(&[Act::Status(500), Act::Hang]);
    let dependency = dependency(|l| {
        l.breaker.consecutive = Some(2);
        l.deadline = 250 * MS;
    });
    let client = upstream.behind(&dependency);

    let answer = send(&client, get()).await;

    assert!(matches!(answer, Err(CallError::Deadline { .. })));
    assert_eq!(dependency.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn throttling_does_not_open_the_breaker() {
    let upstream = Upstream::new(&[Act::Status(429)]);
    let dependency = dependency(|l| {
        l.breaker.consecutive = Some(2);
        l.breaker.min_calls = 2;
        l.breaker.throttles = 1_000;
    });
    let client = upstream.behind(&dependency);

    for _ in 0..20 {
        send(&client, get()).await.unwrap();
    }

    assert_eq!(dependency.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_keeps_asking_for_a_pause_gets_it() {
    let upstream = Upstream::new(&[Act::Later(429, 20)]);
    let dependency = dependency(|l| l.deadline = S);
    let client = upstream.behind(&dependency);
    for _ in 0..5 {
        send(&client, get()).await.unwrap();
    }

    let answer = send(&client, get()).await;

    assert_eq!(
        answer.unwrap_err(),
        CallError::Throttled {
            retry_after: 20 * S
        }
    );
    assert_eq!(upstream.calls(), 5);
    tokio::time::sleep(20 * S).await;
    send(&client, get()).await.unwrap();
    assert_eq!(upstream.calls(), 6);
}

#[tokio::test(start_paused = true)]
async fn a_dependency_that_fails_and_asks_for_time_opens_the_breaker_for_that_time() {
    let upstream = Upstream::new(&[Act::Later(503, 20)]);
    let dependency = dependency(|l| {
        l.deadline = S;
        l.breaker.consecutive = Some(3);
    });
    let client = upstream.behind(&dependency);
    for _ in 0..3 {
        assert_eq!(status(&send(&client, get()).await), 503);
    }

    assert_eq!(dependency.state(), State::Open);
    let refused = CallError::Open {
        retry_after: Some(20 * S),
    };
    assert_eq!(send(&client, get()).await.unwrap_err(), refused);
    assert_eq!(upstream.calls(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_pause_is_shown_while_it_lasts() {
    let upstream = Upstream::new(&[Act::Later(429, 20)]);
    let dependency = dependency(|l| {
        l.deadline = S;
        l.breaker.throttles = 1;
    });
    let client = upstream.behind(&dependency);
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _local = metrics::set_default_local_recorder(&recorder);
    let shows = |paused: u8| {
        let line = format!("counterfoil_breaker_paused{{destination=\"stock\"}} {paused}");
        handle.render().contains(&line) && dependency.status().paused == (paused == 1)
    };

    send(&client, get()).await.unwrap();
    assert!(shows(1));
    tokio::time::sleep(19 * S).await;
    dependency.measure();
    assert!(shows(1));
    assert_eq!(dependency.state(), State::Closed);

    tokio::time::sleep(S).await;
    dependency.measure();
    assert!(shows(0));
}

#[tokio::test(start_paused = true)]
async fn waiting_for_a_place_is_no_slowness_of_the_dependency() {
    let upstream = Upstream::new(&[Act::After(400 * MS)]);
    let dependency = dependency(|l| {
        l.bulkhead = bulkhead(1, 20);
        l.breaker.min_calls = 2;
        l.breaker.slow = Some(counterfoil_core::policy::breaker::Slow {
            longer_than: S,
            ratio: counterfoil_core::policy::Ratio::percent(10),
        });
    });
    let client = upstream.behind(&dependency);

    let calls: Vec<_> = (0..20)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { send(&client, get()).await })
        })
        .collect();
    for call in calls {
        assert_eq!(status(&call.await.unwrap()), 200);
    }

    assert_eq!(dependency.state(), State::Closed);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_a_place_does_not_call_what_has_broken_meanwhile() {
    let upstream = Upstream::new(&[Act::Hang]);
    let dependency = dependency(|l| {
        l.bulkhead = bulkhead(1, 20);
        l.breaker.consecutive = Some(1);
    });
    let client = upstream.behind(&dependency);
    let spawn = || {
        let client = client.clone();
        tokio::spawn(async move { send(&client, get()).await })
    };
    let (first, second) = (spawn(), spawn());
    tokio::time::sleep(MS).await;
    assert_eq!(dependency.status().waiting, 1);

    let cut = first.await.unwrap();
    let waited = second.await.unwrap();

    assert!(matches!(cut, Err(CallError::Timeout { .. })), "{cut:?}");
    assert!(matches!(waited, Err(CallError::Open { .. })), "{waited:?}");
    assert_eq!(upstream.calls(), 1);
}

#[tokio::test(start_paused = true)]
async fn who_waits_for_too_long_is_turned_away_and_counted() {
    let dependency = dependency(|l| l.bulkhead = bulkhead(1, 20));
    let recorder = metrics_exporter_prometheus::PrometheusBuilder::new().build_recorder();
    let handle = recorder.handle();
    let _local = metrics::set_default_local_recorder(&recorder);
    let place = dependency.enter().await;

    let none = dependency.enter_within(S).await;
    drop(place);

    assert!(none.is_none());
    assert_eq!(dependency.status().waiting, 0);
    let line = "counterfoil_bulkhead_rejected_total{destination=\"stock\"} 1";
    assert!(handle.render().contains(line));
    assert!(dependency.enter_within(S).await.is_some());
}

#[tokio::test(start_paused = true)]
async fn never_more_calls_at_a_time_than_places_and_in_the_order_of_arrival() {
    let upstream = Upstream::new(&[Act::After(S)]);
    let dependency = dependency(|l| l.bulkhead = bulkhead(2, 2));
    let client = upstream.behind(&dependency);
    let begun = Instant::now();

    let calls: Vec<_> = (0..5)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { (send(&client, get()).await, begun.elapsed()) })
        })
        .collect();
    let mut ended = Vec::new();
    for call in calls {
        let (answer, at) = call.await.unwrap();
        ended.push((
            answer.map_err(|e| e == CallError::Full).is_ok(),
            at.as_secs(),
        ));
    }

    assert_eq!(
        ended,
        [(true, 1), (true, 1), (true, 2), (true, 2), (false, 0)]
    );
    assert_eq!(dependency.status().in_use, 0);
    assert_eq!(dependency.state(), State::Closed, "full is not broken");
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_dropped_gives_its_place_to_the_next() {
    let upstream = Upstream::new(&[Act::Hang, Act::Status(200)]);
    let dependency = dependency(|l| l.bulkhead = bulkhead(1, 2));
    let client = upstream.behind(&dependency);
    let spawn = || {
        let client = client.clone();
        tokio::spawn(async move { send(&client, get()).await })
    };
    let (first, second, third) = (spawn(), spawn(), spawn());
    tokio::time::sleep(MS).await;
    assert_eq!(dependency.status().waiting, 2);

    second.abort();
    let _ = second.await;
    first.abort();
    let answer = third.await.unwrap();

    assert_eq!(status(&answer), 200);
    assert_eq!(
        (dependency.status().in_use, dependency.status().waiting),
        (0, 0)
    );
}

#[tokio::test(start_paused = true)]
async fn an_operator_closes_and_opens_a_dependency() {
    let upstream = Upstream::new(&[Act::Status(200)]);
    let dependency = dependency(|_| {});
    let client = upstream.behind(&dependency);

    dependency.force(Some(Forced::Open), "anna");
    let answer = send(&client, get()).await;
    assert_eq!(answer.unwrap_err(), CallError::Open { retry_after: None });

    let restarted = self::dependency(|_| {});
    restarted.restore(dependency.snapshot(), None, None);
    assert_eq!(restarted.status().forced, Some(Forced::Open));

    dependency.force(None, "anna");
    assert_eq!(status(&send(&client, get()).await), 200);
}

fn bulkhead(limit: usize, queue: usize) -> counterfoil_core::policy::bulkhead::Size {
    counterfoil_core::policy::bulkhead::Size { limit, queue }
}
