use super::*;

#[tokio::test(start_paused = true)]
async fn a_read_that_fails_is_tried_again_until_it_passes() {
    let upstream = Upstream::new(&[Act::Status(503), Act::Broken, Act::Status(200)]);
    let client = upstream.behind(&dependency(|_| {}));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(status(&answer), 200);
    assert_eq!(begun.elapsed(), 700 * MS, "200 and 500 ms");
    let expected = Report {
        attempts: 3,
        ended: Ended::Answered,
    };
    assert_eq!(report(&answer), expected);
}

#[tokio::test(start_paused = true)]
async fn a_read_is_retried_five_times_and_then_the_last_answer_stands() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let client = upstream.behind(&dependency(|_| {}));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(status(&answer), 500);
    assert_eq!(report(&answer).ended, Ended::Attempts);
    assert_eq!(upstream.calls(), 6);
    assert_eq!(begun.elapsed(), 9_400 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_write_is_repeated_only_with_a_key_or_a_condition() {
    for (header, calls) in [
        (None, 1),
        (Some("idempotency-key"), 5),
        (Some("if-match"), 5),
    ] {
        let upstream = Upstream::new(&[Act::Broken]);
        let client = upstream.behind(&dependency(|_| {}));

        let answer = send(&client, post(header)).await;

        assert_eq!(answer.unwrap_err(), CallError::Call(Broken));
        assert_eq!(upstream.calls(), calls, "{header:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_no_is_never_asked_again() {
    for no in [400, 402, 404, 409, 412, 422] {
        let upstream = Upstream::new(&[Act::Later(no, 1), Act::Status(200)]);
        let client = upstream.behind(&dependency(|_| {}));

        let answer = send(&client, get()).await;

        assert_eq!(status(&answer), no);
        assert_eq!(upstream.calls(), 1);
    }
}

#[tokio::test(start_paused = true)]
async fn the_deadline_outranks_the_count() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let client = upstream.behind(&dependency(|l| l.deadline = 1_500 * MS));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(report(&answer).ended, Ended::Deadline);
    assert_eq!(upstream.calls(), 3, "after 0, 200 and 700 ms");
    assert_eq!(begun.elapsed(), 700 * MS, "it does not wait in vain");
}

#[tokio::test(start_paused = true)]
async fn a_call_ends_by_its_deadline_whatever_the_dependency_does() {
    let upstream = Upstream::new(&[Act::Status(500), Act::Hang]);
    let client = upstream.behind(&dependency(|l| l.deadline = S));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(answer.unwrap_err(), CallError::Deadline { within: S });
    assert_eq!(begun.elapsed(), S);
}

/// What has begun is never cut off.
#[derive(Clone)]
struct Patient;

impl Classify<Request<()>, Response<()>, Broken> for Patient {
    fn class(&self, result: Result<&Response<()>, &Broken>) -> Class {
        Classify::<Request<()>, _, _>::class(&Http, result)
    }

    fn effect(&self, _: &Request<()>) -> Effect {
        Effect::Read
    }

    fn again(&self, request: &Request<()>) -> Option<Request<()>> {
        Some(request.clone())
    }

    fn outlasts(&self, _: &Request<()>) -> bool {
        true
    }
}

#[tokio::test(start_paused = true)]
async fn an_attempt_may_outlast_the_deadline_and_none_begins_after_it() {
    for (script, took, calls) in [
        (vec![Act::After(5 * S)], 5 * S, 1),
        (
            vec![Act::Status(500), Act::After(5 * S)],
            5 * S + 200 * MS,
            2,
        ),
        (vec![Act::Status(500)], 200 * MS, 2),
    ] {
        let upstream = Upstream::new(&script);
        let limited = dependency(|l| {
            l.deadline = 600 * MS;
            l.attempt = 60 * S;
        });
        let acting = upstream.clone();
        let call = service_fn(move |_: Request<()>| acting.clone().act());
        let client = BoxCloneSyncService::new(limited.stack(Patient).layer(call));
        let begun = Instant::now();

        let _ = send(&client, get()).await;

        assert_eq!((begun.elapsed(), upstream.calls()), (took, calls));
    }
}

#[tokio::test(start_paused = true)]
async fn a_request_may_bring_its_own_deadline() {
    let upstream = Upstream::new(&[Act::Hang]);
    let client = upstream.behind(&dependency(|_| {}));
    let mut request = get();
    request.extensions_mut().insert(Within(300 * MS));
    let begun = Instant::now();

    let answer = send(&client, request).await;

    assert!(
        matches!(answer, Err(CallError::Timeout { .. })),
        "{answer:?}"
    );
    assert_eq!(begun.elapsed(), 300 * MS);
}

#[tokio::test(start_paused = true)]
async fn an_attempt_that_hangs_is_cut_and_the_next_one_may_pass() {
    let upstream = Upstream::new(&[Act::Hang, Act::Status(200)]);
    let client = upstream.behind(&dependency(|_| {}));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(status(&answer), 200);
    assert_eq!(begun.elapsed(), 1_700 * MS);
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_is_asked_for_is_honoured() {
    for asks in [429, 503] {
        let upstream = Upstream::new(&[Act::Later(asks, 7), Act::Status(200)]);
        let client = upstream.behind(&dependency(|_| {}));
        let begun = Instant::now();

        let answer = send(&client, get()).await;

        assert_eq!(status(&answer), 200);
        assert_eq!(begun.elapsed(), 7 * S);
    }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_does_not_fit_ends_the_call_now() {
    let upstream = Upstream::new(&[Act::Later(429, 7), Act::Status(200)]);
    let client = upstream.behind(&dependency(|l| l.deadline = 3 * S));
    let begun = Instant::now();

    let answer = send(&client, get()).await;

    assert_eq!(status(&answer), 429);
    assert_eq!(report(&answer).ended, Ended::AskedTooMuch);
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[tokio::test(start_paused = true)]
async fn no_more_retries_than_the_budget_has_however_many_call_at_once() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let dependency = dependency(|l| {
        l.budget.floor = 7;
        l.budget.cap = 7;
        l.bulkhead.limit = 1_000;
    });
    let client = upstream.behind(&dependency);

    let calls: Vec<_> = (0..200)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { send(&client, get()).await })
        })
        .collect();
    let mut spent = 0;
    for call in calls {
        let answer = call.await.unwrap();
        spent += usize::from(report(&answer).ended == Ended::BudgetSpent);
    }

    assert_eq!(upstream.calls(), 207);
    assert_eq!(spent, 200, "200 wanted more than there was");
    assert_eq!(dependency.retries_left(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_spent_budget_is_said_at_once_and_successes_earn_a_new_one() {
    let upstream = Upstream::new(&[Act::Status(500)]);
    let dependency = dependency(|l| l.budget.floor = 0);
    let client = upstream.behind(&dependency);
    let begun = Instant::now();
    let answer = send(&client, get()).await;
    assert_eq!(report(&answer).ended, Ended::BudgetSpent);
    assert_eq!(begun.elapsed(), Duration::ZERO);

    upstream.then(&[Act::Status(200)]);
    for _ in 0..20 {
        send(&client, get()).await.unwrap();
    }

    assert_eq!(dependency.retries_left(), 2);
}
