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
    restarted.restore(dependency.snapshot(), None);
    assert_eq!(restarted.status().forced, Some(Forced::Open));

    dependency.force(None, "anna");
    assert_eq!(status(&send(&client, get()).await), 200);
}

fn bulkhead(limit: usize, queue: usize) -> counterfoil_core::policy::bulkhead::Size {
    counterfoil_core::policy::bulkhead::Size { limit, queue }
}
