//! What a caller gets when a retry is turned away without a call.

use super::*;
use proptest::prelude::*;

/// What comes of one attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Status(u16),
    Broken,
    Late,
    Full,
    Open,
    Paused,
}

type Tagged = Result<Response<usize>, CallError<usize>>;

impl Turn {
    fn is_call(self) -> bool {
        matches!(self, Turn::Status(_) | Turn::Broken | Turn::Late)
    }

    /// The result, which tells the attempts apart.
    fn result(self, n: usize) -> Tagged {
        let mut answer = Response::new(n);
        match self {
            Turn::Status(status) => *answer.status_mut() = status.try_into().unwrap(),
            Turn::Broken => return Err(CallError::Call(n)),
            Turn::Late => {
                return Err(CallError::Timeout {
                    after: MS * n as u32,
                });
            }
            Turn::Full => return Err(CallError::Full),
            Turn::Open => return Err(CallError::Open { retry_after: None }),
            Turn::Paused => return Err(CallError::Throttled { retry_after: S }),
        }
        Ok(answer)
    }
}

/// The attempts that were made or turned away, the result, and what is left of the budget.
fn run(script: Vec<Turn>) -> (Vec<Turn>, Tagged, u64) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .unwrap();
    runtime.block_on(async {
        let dependency = dependency(|_| {});
        let turns = Arc::new(Mutex::new(Vec::new()));
        let told = Arc::clone(&turns);
        let call = service_fn(move |_: Request<()>| {
            let mut told = told.lock().unwrap();
            let n = told.len();
            let turn = script.get(n).copied().unwrap_or(Turn::Status(200));
            told.push(turn);
            std::future::ready(turn.result(n))
        });
        let client = RetryLayer::new(Arc::clone(&dependency), Http).layer(call);
        let result = client.oneshot(get()).await;
        let turns = turns.lock().unwrap().clone();
        (turns, result, dependency.retries_left())
    })
}

fn turn() -> impl Strategy<Value = Turn> {
    prop_oneof![
        4 => prop::sample::select(vec![500, 503, 429, 408, 404, 200]).prop_map(Turn::Status),
        1 => Just(Turn::Broken),
        1 => Just(Turn::Late),
        1 => prop::sample::select(vec![Turn::Full, Turn::Open, Turn::Paused]),
    ]
}

proptest! {
    #[test]
    fn the_result_is_that_of_the_last_call_that_was_made(
        script in prop::collection::vec(turn(), 1..8),
    ) {
        let (turns, result, left) = run(script);

        let calls = turns.iter().filter(|turn| turn.is_call()).count();
        let away = turns.len() - calls;
        prop_assert!(away <= 1, "who is turned away does not come again: {:?}", turns);
        let not_called = result.as_ref().is_err_and(CallError::not_called);
        prop_assert_eq!(not_called, calls == 0, "{:?} {:?}", turns, result);
        let last = calls.saturating_sub(1);
        prop_assert_eq!(left, 1_000 - last as u64, "a retry that was not made costs nothing");
        match (result, turns[last].result(last)) {
            (Ok(answer), Ok(expected)) => {
                prop_assert_eq!(answer.status(), expected.status());
                prop_assert_eq!(answer.body(), expected.body());
                let report: &Report = answer.extensions().get().unwrap();
                prop_assert_eq!(report.attempts as usize, calls);
                prop_assert_eq!(report.ended == Ended::TurnedAway, away == 1);
            }
            (Err(error), Err(expected)) => prop_assert_eq!(error, expected),
            (result, expected) => prop_assert!(false, "{:?} instead of {:?}", result, expected),
        }
    }
}

#[tokio::test(start_paused = true)]
async fn who_finds_no_place_for_a_retry_gets_the_answer_that_there_is() {
    let upstream = Upstream::new(&[Act::Later(429, 1), Act::Hang]);
    let dependency = dependency(|l| {
        l.bulkhead.limit = 1;
        l.bulkhead.queue = 0;
    });
    let client = upstream.behind(&dependency);
    let first = tokio::spawn({
        let client = client.clone();
        async move { send(&client, get()).await }
    });
    tokio::time::sleep(MS).await;

    let place = dependency.enter().await;
    let answer = first.await.unwrap();
    drop(place);

    assert_eq!(status(&answer), 429);
    let expected = Report {
        attempts: 1,
        ended: Ended::TurnedAway,
    };
    assert_eq!(report(&answer), expected);
    assert_eq!(dependency.retries_left(), 1_000);
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_was_asked_for_again_elsewhere_stands() {
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let call = service_fn(move |_: Request<()>| {
        *counted.lock().unwrap() += 1;
        let mut answer = Response::new(());
        *answer.status_mut() = ::http::StatusCode::BAD_GATEWAY;
        spent::mark(answer.headers_mut());
        std::future::ready(Ok::<_, Broken>(answer))
    });
    let dependency = dependency(|l| l.breaker.consecutive = Some(1));
    let client = BoxCloneSyncService::new(dependency.stack(Http).layer(call));

    let answer = send(&client, get()).await;

    assert_eq!(report(&answer).ended, Ended::Elsewhere);
    assert_eq!(*calls.lock().unwrap(), 1);
    assert_eq!(
        dependency.state(),
        State::Open,
        "it has failed all the same"
    );
}
