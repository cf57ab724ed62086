//! What a request that finds a record has to do.

use std::time::Duration;

use super::fingerprint::Fingerprint;
use super::record::{Found, State};
use super::records::Expect;
use super::rules::{Mode, Rules};

/// What a request has to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Decision {
    /// Run, if the record can be put in the place of what was found.
    Run {
        /// What must still be there.
        expect: Expect,
        /// Which run of this request it is.
        attempt: u32,
    },
    /// Answer with what is stored.
    Replay,
    /// Somebody works on it: wait, or come again.
    InProgress,
    /// The key was used for something else.
    Conflict,
    /// It may have happened: not again before that is settled.
    Uncertain,
    /// It may be tried again, after this time.
    Later(Duration),
}

/// Decides from what was found. Pure: the time is the database's, and came with the record.
pub fn decide(found: Option<&Found>, fingerprint: &Fingerprint, rules: &Rules) -> Decision {
    let Some(found) = found else {
        return Decision::Run {
            expect: Expect::Absent,
            attempt: 1,
        };
    };
    let record = &found.record;
    let instead = |attempt| Decision::Run {
        expect: Expect::Fence(record.fence),
        attempt,
    };
    if found.expired() {
        return instead(1);
    }
    // Whose fingerprint is not known may be this one: it must not run again, in any mode.
    if record.fingerprint != *fingerprint && record.fingerprint != Fingerprint::UNKNOWN {
        return match rules.mode {
            Mode::Strict => Decision::Conflict,
            Mode::Overwrite => instead(1),
        };
    }
    let next = record.attempts.saturating_add(1);
    match found.state() {
        State::Processing => Decision::InProgress,
        State::Succeeded | State::Failed => Decision::Replay,
        State::Uncertain if rules.rerun_uncertain => instead(next),
        State::Uncertain => Decision::Uncertain,
        State::Retryable if record.attempts >= rules.attempts => Decision::Replay,
        State::Retryable => match record.retry_at.map(|at| (at - found.now).to_std()) {
            Some(Ok(left)) if !left.is_zero() => Decision::Later(left),
            _ => instead(next),
        },
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta, Utc};
    use proptest::prelude::*;

    use super::super::key::Key;
    use super::super::record::Record;
    use super::*;

    const FIRST: Fingerprint = Fingerprint([1; 32]);
    const OTHER: Fingerprint = Fingerprint([2; 32]);

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000, 0).unwrap()
    }

    fn found(state: State) -> Found {
        let now = now();
        Found {
            record: Record {
                key: Key::new("s", "t", "k").unwrap(),
                fingerprint: FIRST,
                state,
                fence: 7,
                attempts: 1,
                lease_until: Some(now + TimeDelta::seconds(5)),
                retry_at: None,
                expires_at: now + TimeDelta::days(1),
                created_at: now,
                updated_at: now,
                snapshot: None,
            },
            now,
        }
    }

    fn run(attempt: u32) -> Decision {
        Decision::Run {
            expect: Expect::Fence(7),
            attempt,
        }
    }

    #[test]
    fn nothing_found_runs() {
        assert_eq!(
            decide(None, &FIRST, &Rules::default()),
            Decision::Run {
                expect: Expect::Absent,
                attempt: 1
            }
        );
    }

    #[test]
    fn the_same_payload_follows_the_state() {
        let rules = Rules::default();
        let table = [
            (State::Processing, Decision::InProgress),
            (State::Succeeded, Decision::Replay),
            (State::Failed, Decision::Replay),
            (State::Retryable, run(2)),
            (State::Uncertain, Decision::Uncertain),
        ];
        for (state, expected) in table {
            assert_eq!(decide(Some(&found(state)), &FIRST, &rules), expected);
        }
    }

    #[test]
    fn another_payload_is_refused_in_every_state_or_replaces_in_every_state() {
        for state in State::ALL {
            let (strict, over) = (Rules::default(), Rules::default().overwrite());

            assert_eq!(
                decide(Some(&found(state)), &OTHER, &strict),
                Decision::Conflict
            );
            assert_eq!(decide(Some(&found(state)), &OTHER, &over), run(1));
        }
    }

    /// A claim that was committed without its end: it may have been this request.
    #[test]
    fn a_claim_without_a_fingerprint_is_in_doubt_for_every_payload() {
        let mut found = found(State::Processing);
        found.record.fingerprint = Fingerprint::UNKNOWN;
        found.record.lease_until = Some(found.now);

        for rules in [Rules::default(), Rules::default().overwrite()] {
            for fingerprint in [FIRST, OTHER] {
                let decision = decide(Some(&found), &fingerprint, &rules);
                assert_eq!(decision, Decision::Uncertain);
            }
        }
    }

    #[test]
    fn an_owner_whose_lease_is_over_leaves_uncertainty() {
        let mut found = found(State::Processing);
        found.record.lease_until = Some(found.now);
        let rerun = Rules {
            rerun_uncertain: true,
            ..Rules::default()
        };

        assert_eq!(
            decide(Some(&found), &FIRST, &Rules::default()),
            Decision::Uncertain
        );
        assert_eq!(decide(Some(&found), &FIRST, &rerun), run(2));
    }

    #[test]
    fn what_may_pass_later_waits_and_has_a_limit() {
        let mut found = found(State::Retryable);
        found.record.retry_at = Some(found.now + TimeDelta::seconds(3));

        assert_eq!(
            decide(Some(&found), &FIRST, &Rules::default()),
            Decision::Later(Duration::from_secs(3))
        );
        found.record.attempts = 5;
        assert_eq!(
            decide(Some(&found), &FIRST, &Rules::default()),
            Decision::Replay
        );
    }

    proptest! {
        /// Whatever is found: a live owner of the same request is never taken over, and an
        /// expired record never speaks.
        #[test]
        fn a_live_owner_is_never_taken_over(
            state in 0_usize..5, lease in -10_i64..10, expires in -10_i64..10,
            same in any::<bool>(), overwrite in any::<bool>(), rerun in any::<bool>(), attempts in 0_u32..9,
        ) {
            let mut found = found(State::ALL[state]);
            found.record.lease_until = Some(found.now + TimeDelta::seconds(lease));
            found.record.expires_at = found.now + TimeDelta::seconds(expires);
            found.record.attempts = attempts;
            let mut rules = Rules { rerun_uncertain: rerun, ..Rules::default() };
            if overwrite {
                rules = rules.overwrite();
            }
            let decision = decide(Some(&found), if same { &FIRST } else { &OTHER }, &rules);
            let alive = found.record.state == State::Processing && lease > 0;
            if alive && same {
                prop_assert_eq!(decision, Decision::InProgress);
            }
            if found.record.state.is_over() && expires <= 0 {
                prop_assert_eq!(decision, run(1));
            }
            if found.state() == State::Uncertain && same && !rerun {
                prop_assert_eq!(decision, Decision::Uncertain);
            }
        }
    }
}
