use super::settings::Slow;
use super::*;
use crate::policy::class::Failure;
use crate::policy::ratio::Ratio;
use chrono::{TimeDelta, Utc};
use proptest::prelude::*;

const S: Duration = Duration::from_secs(1);
const MS: Duration = Duration::from_millis(1);
const BAD: Class = Class::Failed(Failure::Upstream);
const BUSY: Class = Class::Throttled { after: None };

fn breaker(change: impl FnOnce(&mut Settings)) -> Breaker {
    let mut settings = Settings::DEFAULT;
    change(&mut settings);
    Breaker::new(settings).unwrap()
}

fn go(breaker: &mut Breaker, now: Moment) -> Ticket {
    match breaker.admit(now) {
        Admission::Go(ticket) => ticket,
        other => panic!("{other:?} at {now:?}"),
    }
}

fn call(breaker: &mut Breaker, class: Class, now: Moment) {
    let ticket = go(breaker, now);
    breaker.record(ticket, class, now);
}

/// Opened by three failures in a row at second 100.
fn opened() -> Breaker {
    let mut breaker = breaker(|s| s.consecutive = Some(3));
    for _ in 0..3 {
        call(&mut breaker, BAD, 100 * S);
    }
    assert_eq!(breaker.state(100 * S), State::Open);
    breaker
}

#[test]
fn impossible_settings_are_refused() {
    let wrong: [fn(&mut Settings); 10] = [
        |s| s.window = Duration::ZERO,
        |s| s.min_calls = 0,
        |s| s.consecutive = Some(0),
        |s| s.open_for = Duration::ZERO,
        |s| s.open_cap = s.open_for / 2,
        |s| s.probe_every = Duration::ZERO,
        |s| s.probes = 0,
        |s| s.throttles = 0,
        |s| s.failure_ratio = Ratio::ZERO,
        |s| {
            s.slow = Some(Slow {
                longer_than: S,
                ratio: Ratio::ZERO,
            });
        },
    ];
    for (i, change) in wrong.into_iter().enumerate() {
        let mut settings = Settings::DEFAULT;
        change(&mut settings);
        assert!(Breaker::new(settings).is_err(), "{i}");
    }
}

#[test]
fn failures_in_a_row_open_it_and_a_success_starts_the_count_again() {
    let mut breaker = breaker(|s| s.consecutive = Some(3));
    for class in [BAD, BAD, Class::Success, BAD, BAD, Class::Refused, BAD, BAD] {
        call(&mut breaker, class, S);
    }
    assert_eq!(breaker.state(S), State::Closed);

    call(&mut breaker, BAD, S);

    assert_eq!(breaker.state(S), State::Open);
    assert_eq!(breaker.cause(), Cause::Consecutive);
}

#[test]
fn a_failure_that_asks_for_time_gets_it_within_a_limit() {
    for (asked, open) in [(MS, S), (7 * S, 7 * S), (600 * S, 30 * S)] {
        let mut breaker = breaker(|s| s.consecutive = Some(3));
        for _ in 0..3 {
            let overloaded = Class::Failed(Failure::Overloaded { after: asked });
            call(&mut breaker, overloaded, S);
        }

        assert_eq!(breaker.state(S), State::Open, "{asked:?}");
        assert_eq!(breaker.wait(S), Some(open), "{asked:?}");
        assert_eq!(breaker.pause(S), None);
    }
}

#[test]
fn a_share_of_failures_opens_it_when_there_were_enough_calls() {
    let mut breaker = breaker(|s| s.consecutive = None);
    for _ in 0..19 {
        call(&mut breaker, BAD, S);
    }
    assert_eq!(breaker.state(S), State::Closed);

    call(&mut breaker, BAD, S);

    assert_eq!(breaker.cause(), Cause::FailureRatio);
}

#[test]
fn below_the_share_it_stays_closed_for_ever() {
    let mut breaker = breaker(|s| s.consecutive = None);
    for n in 0..10_000u32 {
        // 45 % at every moment.
        let bad = n % 2 == 1 && n % 20 != 1;
        let class = if bad { BAD } else { Class::Success };
        call(&mut breaker, class, 10 * MS * n);
    }
    assert_eq!(breaker.state(100 * S), State::Closed);
}

#[test]
fn failures_leave_the_window() {
    let mut breaker = breaker(|s| s.consecutive = None);
    for _ in 0..19 {
        call(&mut breaker, BAD, S);
    }

    for _ in 0..19 {
        call(&mut breaker, BAD, 12 * S);
    }

    assert_eq!(breaker.state(12 * S), State::Closed);
}

#[test]
fn slow_calls_open_it_although_they_succeed() {
    let mut breaker = breaker(|s| {
        s.slow = Some(Slow {
            longer_than: S,
            ratio: Ratio::percent(80),
        });
    });
    for n in 0..20u32 {
        let ticket = go(&mut breaker, n * 10 * MS);
        let took = if n < 4 { 10 * MS } else { S };
        breaker.record(ticket, Class::Success, n * 10 * MS + took);
    }

    assert_eq!(breaker.state(2 * S), State::Open);
    assert_eq!(breaker.cause(), Cause::SlowRatio);
}

#[test]
fn while_open_nobody_calls_and_then_one_probe() {
    let mut breaker = opened();

    let early = breaker.admit(100 * S + 999 * MS);
    let probe = breaker.admit(101 * S);
    let beside = breaker.admit(101 * S + MS);

    assert_eq!(
        early,
        Admission::Open {
            retry_after: Some(MS)
        }
    );
    assert!(matches!(probe, Admission::Go(t) if t.is_probe()));
    assert_eq!(
        beside,
        Admission::Open {
            retry_after: Some(999 * MS)
        }
    );
}

#[test]
fn the_open_time_doubles_to_its_cap_and_a_good_probe_resets_it() {
    let mut breaker = opened();
    let mut now = 100 * S;
    for expected in [1, 2, 4, 8, 10, 10] {
        assert_eq!(breaker.wait(now), Some(expected * S));
        now += expected * S;
        call(&mut breaker, BAD, now);
    }

    now += 10 * S;
    call(&mut breaker, Class::Success, now);
    assert_eq!(breaker.state(now), State::Closed);
    for _ in 0..3 {
        call(&mut breaker, BAD, now);
    }

    assert_eq!(breaker.wait(now), Some(S));
}

#[test]
fn a_probe_that_never_answers_does_not_wedge_it() {
    let mut breaker = opened();
    let lost = go(&mut breaker, 101 * S);

    let second = go(&mut breaker, 102 * S);
    breaker.record(second, Class::Success, 102 * S);
    breaker.record(lost, BAD, 103 * S);

    assert_eq!(breaker.state(103 * S), State::Closed);
}

#[test]
fn a_slow_probe_that_answers_well_in_its_period_closes_it() {
    let mut breaker = opened();
    let slow = go(&mut breaker, 101 * S);
    let _lost = go(&mut breaker, 102 * S);

    breaker.record(slow, Class::Success, 102 * S + MS);

    assert_eq!(breaker.state(103 * S), State::Closed);
}

#[test]
fn a_late_answer_from_before_the_opening_counts_for_nothing() {
    let mut breaker = breaker(|s| s.consecutive = Some(3));
    let good = go(&mut breaker, S);
    let bad = go(&mut breaker, S);
    for _ in 0..3 {
        call(&mut breaker, BAD, 100 * S);
    }
    let _probe = go(&mut breaker, 101 * S);

    breaker.record(good, Class::Success, 101 * S);
    assert_eq!(breaker.state(101 * S), State::HalfOpen);
    breaker.record(bad, BAD, 101 * S);

    assert_eq!(breaker.state(101 * S), State::HalfOpen);
}

#[test]
fn throttling_never_opens_it() {
    let mut breaker = breaker(|s| {
        s.throttles = u32::MAX;
        s.consecutive = None;
    });
    for _ in 0..1_000 {
        call(&mut breaker, BUSY, S);
    }
    assert_eq!(breaker.state(S), State::Closed);

    // And does not thin out the share of failures either.
    for _ in 0..20 {
        call(&mut breaker, BAD, S);
    }
    assert_eq!(breaker.state(S), State::Open);
}

#[test]
fn several_throttled_answers_make_it_wait_as_long_as_asked_within_the_cap() {
    let asks = |seconds| Class::Throttled {
        after: Some(seconds * S),
    };
    let mut breaker = breaker(|s| s.consecutive = Some(3));
    for _ in 0..4 {
        call(&mut breaker, asks(7), S);
    }
    assert_eq!(breaker.wait(S), Some(Duration::ZERO));

    call(&mut breaker, asks(7), S);
    assert_eq!(
        breaker.admit(S),
        Admission::Throttled { retry_after: 7 * S }
    );
    assert_eq!(breaker.state(S), State::Closed);

    call(&mut breaker, asks(86_400), 8 * S);
    assert_eq!(breaker.wait(8 * S), Some(30 * S));
    call(&mut breaker, Class::Success, 38 * S);
    assert_eq!(breaker.wait(38 * S), Some(Duration::ZERO));
}

#[test]
fn an_operator_outranks_the_calls() {
    let mut breaker = opened();

    breaker.force(Some(Forced::Closed));
    for _ in 0..100 {
        call(&mut breaker, BAD, 100 * S);
    }
    assert_eq!(breaker.state(100 * S), State::Closed);
    let hidden = breaker.snapshot(100 * S, Utc::now()).open_until;
    assert_eq!(hidden, None, "nothing opens behind the operator's back");

    breaker.force(Some(Forced::Open));
    assert_eq!(
        breaker.admit(100_000 * S),
        Admission::Open { retry_after: None }
    );

    breaker.force(None);
    call(&mut breaker, BAD, 100_000 * S);
    assert_eq!(breaker.state(100_000 * S), State::Closed);
    assert_eq!(breaker.forced(), None);
}

#[test]
fn a_call_from_before_an_operators_word_counts_for_nothing_after_it() {
    let mut breaker = opened();
    let probe = go(&mut breaker, 101 * S);
    breaker.force(Some(Forced::Open));

    breaker.record(probe, Class::Success, 102 * S);
    assert_eq!(breaker.state(102 * S), State::Open);
    breaker.force(None);
    for _ in 0..2 {
        call(&mut breaker, BAD, 103 * S);
    }
    breaker.record(probe, BAD, 103 * S);

    assert_eq!(breaker.state(103 * S), State::Closed);
}

#[test]
fn an_open_state_survives_a_restart_with_its_remaining_time() {
    let mut before = opened();
    call(&mut before, BAD, 101 * S);
    let wall = Utc::now();
    let snapshot = before.snapshot(101 * S + 500 * MS, wall);

    // The new process has another origin, and half a second has passed.
    let mut after = breaker(|s| s.consecutive = Some(3));
    after.restore(snapshot, S, wall + TimeDelta::milliseconds(500));

    assert_eq!(after.wait(S), Some(S));
    call(&mut after, BAD, 2 * S);
    assert_eq!(after.wait(2 * S), Some(4 * S), "the growth goes on");
}

#[test]
fn a_clock_that_was_set_cannot_keep_it_open_for_ever() {
    let wall = Utc::now();
    let snapshot = opened().snapshot(100 * S, wall);
    let mut after = breaker(|_| {});

    after.restore(snapshot, S, wall - TimeDelta::days(365));
    assert_eq!(after.wait(S), Some(10 * S));
    after.restore(snapshot, S, wall + TimeDelta::days(365));

    assert_eq!(after.state(S), State::HalfOpen);
}

#[test]
fn an_operators_word_survives_a_restart() {
    let wall = Utc::now();
    for word in [Forced::Open, Forced::Closed] {
        let mut before = breaker(|_| {});
        before.force(Some(word));
        let text = serde_json::to_string(&before.snapshot(S, wall)).unwrap();

        let mut after = breaker(|_| {});
        after.restore(serde_json::from_str(&text).unwrap(), S, wall);

        assert_eq!(after.forced(), Some(word));
    }
}

#[derive(Debug, Clone)]
enum Step {
    Pass(u64),
    Admit,
    Answer(usize, u8),
    Force(u8),
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (0u64..1_500).prop_map(Step::Pass),
        10 => Just(Step::Admit),
        10 => (any::<usize>(), 0u8..4).prop_map(|(n, c)| Step::Answer(n, c)),
        1 => (0u8..3).prop_map(Step::Force),
        1 => Just(Step::Restart),
    ]
}

proptest! {
    /// Whatever happens in whatever order: no call while it is open, probes at least an interval
    /// apart, never stuck for longer than the cap and an interval, and it closes on a good probe only.
    #[test]
    fn it_keeps_its_promise_in_every_history(steps in prop::collection::vec(step(), 1..300)) {
        let settings = Settings { consecutive: Some(3), min_calls: 5, ..Settings::DEFAULT };
        let mut breaker = Breaker::new(settings).unwrap();
        let wall = Utc::now();
        let mut now = Duration::ZERO;
        let mut tickets: Vec<Ticket> = Vec::new();
        let mut last_probe: Option<Moment> = None;
        for step in steps {
            let before = breaker.state(now);
            let forced = breaker.forced();
            match step {
                Step::Pass(ms) => now += Duration::from_millis(ms),
                Step::Admit => match breaker.admit(now) {
                    Admission::Go(ticket) => {
                        prop_assert_ne!(before, State::Open);
                        prop_assert_eq!(ticket.is_probe(), before == State::HalfOpen);
                        if ticket.is_probe() {
                            if let Some(last) = last_probe {
                                prop_assert!(now >= last + settings.probe_every);
                            }
                            last_probe = Some(now);
                        }
                        tickets.push(ticket);
                    }
                    Admission::Open { retry_after } => {
                        prop_assert_ne!(before, State::Closed);
                        match retry_after {
                            None => prop_assert_eq!(forced, Some(Forced::Open)),
                            Some(after) => {
                                prop_assert!(after <= settings.open_cap);
                                let mut later = breaker.clone();
                                let admitted = later.admit(now + after);
                                prop_assert!(matches!(admitted, Admission::Go(_)));
                            }
                        }
                    }
                    Admission::Throttled { retry_after } => {
                        prop_assert_eq!(before, State::Closed);
                        prop_assert!(retry_after <= settings.throttle_cap);
                    }
                },
                Step::Answer(n, class) if !tickets.is_empty() => {
                    let at = n % tickets.len();
                    let ticket = tickets.swap_remove(at);
                    let class = [Class::Success, BAD, BUSY, Class::Refused][usize::from(class)];
                    breaker.record(ticket, class, now);
                    let after = breaker.state(now);
                    if forced.is_some() {
                        prop_assert_eq!(before, after);
                    }
                    if before != State::Closed && after == State::Closed {
                        prop_assert!(ticket.is_probe() && class != BAD);
                    }
                    if before == State::Closed && after == State::Open {
                        prop_assert_eq!(class, BAD);
                    }
                }
                Step::Answer(..) => {}
                Step::Force(word) => {
                    let word = [None, Some(Forced::Open), Some(Forced::Closed)][usize::from(word)];
                    breaker.force(word);
                    last_probe = None;
                }
                Step::Restart => {
                    let snapshot = breaker.snapshot(now, wall);
                    breaker = Breaker::new(settings).unwrap();
                    breaker.restore(snapshot, now, wall);
                    prop_assert_eq!(breaker.forced(), forced);
                    if forced.is_none() {
                        prop_assert_eq!(breaker.state(now), before);
                    }
                    tickets.clear();
                    last_probe = None;
                }
            }
        }
    }
}
