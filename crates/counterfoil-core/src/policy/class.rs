//! What came of a call, and whether it may be made again.
//!
//! # Promise
//! Every result has exactly one class, and only what can pass later is tried again: failures of
//! the server, the network, time, and throttling. A "no" that concerns the request itself (a
//! business error, an exhausted quota, an unmet condition) is never repeated. A write is repeated only
//! if it carries an idempotency key or a condition: otherwise a lost answer would become two effects.

use std::time::Duration;

/// What came of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// It was answered well.
    Success,
    /// It failed, and may pass later.
    Failed(Failure),
    /// The server is there and asks for less. Not a failure of the server: it does not count
    /// towards opening a breaker.
    Throttled {
        /// Not before this much time has passed.
        after: Option<Duration>,
    },
    /// An answer that stays the same however often it is asked for.
    Refused,
}

/// How a call failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Failure {
    /// The server answered that it failed (5xx).
    Upstream,
    /// The server answered that it cannot do it now (503), and when it can.
    Overloaded {
        /// Not before this much time has passed.
        after: Duration,
    },
    /// No connection, or it broke.
    Network,
    /// No answer in time.
    Timeout,
}

impl Class {
    /// The class of an HTTP status and the `Retry-After` that came with it.
    ///
    /// | status | class |
    /// |---|---|
    /// | 429 | throttled |
    /// | 5xx | failed; 503 with `Retry-After` says how long it asks for |
    /// | 408, 425 | failed: too late, too early |
    /// | other 4xx | refused |
    /// | everything else | success: the server did what it wanted to do |
    pub fn of_status(status: u16, after: Option<Duration>) -> Self {
        match (status, after) {
            (429, after) => Class::Throttled { after },
            (503, Some(after)) => Class::Failed(Failure::Overloaded { after }),
            (408 | 425, _) => Class::Failed(Failure::Timeout),
            (400..=499, _) => Class::Refused,
            (500..=599, _) => Class::Failed(Failure::Upstream),
            _ => Class::Success,
        }
    }

    /// Whether the same call can pass later.
    pub fn can_pass_later(self) -> bool {
        matches!(self, Class::Failed(_) | Class::Throttled { .. })
    }

    /// The wait that the server asked for.
    pub fn asked(self) -> Option<Duration> {
        match self {
            Class::Throttled { after } => after,
            Class::Failed(Failure::Overloaded { after }) => Some(after),
            _ => None,
        }
    }
}

/// What a call does at the other side.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// It changes nothing.
    Read,
    /// It changes something.
    Write {
        /// It carries an idempotency key.
        keyed: bool,
        /// It holds under a condition only (`If-Match` and the like).
        conditional: bool,
    },
}

impl Effect {
    /// The effect of an HTTP method.
    ///
    /// `PUT` and `DELETE` count as writes: HTTP calls them idempotent, but a late repeat can undo
    /// what somebody else did in between.
    pub fn of_method(method: &str, keyed: bool, conditional: bool) -> Self {
        match method {
            "GET" | "HEAD" | "OPTIONS" | "TRACE" => Effect::Read,
            _ => Effect::Write { keyed, conditional },
        }
    }

    /// Whether making the call twice has the effect of making it once.
    pub fn repeatable(self) -> bool {
        match self {
            Effect::Read => true,
            Effect::Write { keyed, conditional } => keyed || conditional,
        }
    }
}

/// Whether a call with this effect and this result may be made again.
pub fn may_retry(class: Class, effect: Effect) -> bool {
    class.can_pass_later() && effect.repeatable()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_status_has_its_class() {
        for status in 0..1_000u16 {
            let class = Class::of_status(status, None);
            let expected = match status {
                429 => Class::Throttled { after: None },
                408 | 425 => Class::Failed(Failure::Timeout),
                400..=499 => Class::Refused,
                500..=599 => Class::Failed(Failure::Upstream),
                _ => Class::Success,
            };
            assert_eq!(class, expected, "{status}");
        }
    }

    #[test]
    fn only_429_and_503_can_ask_for_a_wait() {
        let after = Some(Duration::from_secs(3));
        for status in 0..1_000u16 {
            let asked = Class::of_status(status, after).asked();
            assert_eq!(asked.is_some(), matches!(status, 429 | 503), "{status}");
        }
    }

    #[test]
    fn a_server_that_fails_has_failed_whatever_it_asks_for() {
        for after in [None, Some(Duration::from_secs(3))] {
            for status in 500..600 {
                let class = Class::of_status(status, after);
                assert!(matches!(class, Class::Failed(_)), "{status} {after:?}");
            }
        }
    }

    #[test]
    fn a_no_is_never_asked_again() {
        for status in [400, 401, 402, 403, 404, 409, 410, 412, 415, 422, 428, 451] {
            let class = Class::of_status(status, Some(Duration::from_secs(1)));
            assert!(!may_retry(class, Effect::Read), "{status}");
        }
    }

    #[test]
    fn a_bare_write_is_never_repeated() {
        for method in ["POST", "PUT", "PATCH", "DELETE", "QUERY", "get"] {
            let bare = Effect::of_method(method, false, false);
            assert!(
                !may_retry(Class::Failed(Failure::Network), bare),
                "{method}"
            );
            let keyed = Effect::of_method(method, true, false);
            let conditional = Effect::of_method(method, false, true);
            assert!(
                may_retry(Class::Failed(Failure::Network), keyed),
                "{method}"
            );
            assert!(
                may_retry(Class::Failed(Failure::Timeout), conditional),
                "{method}"
            );
        }
    }

    proptest! {
        #[test]
        fn what_is_retried_can_pass_and_is_repeatable(
            status: u16, after in prop::option::of(1u64..100), keyed: bool, conditional: bool,
            method in prop::sample::select(vec!["GET", "POST", "PUT", "DELETE", "HEAD"]),
        ) {
            let class = Class::of_status(status, after.map(Duration::from_secs));
            let effect = Effect::of_method(method, keyed, conditional);

            if may_retry(class, effect) {
                prop_assert!(matches!(status, 408 | 425 | 429 | 500..=599));
                prop_assert!(keyed || conditional || matches!(method, "GET" | "HEAD"));
            }
        }
    }
}
