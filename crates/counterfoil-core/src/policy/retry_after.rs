//! The wait that a server asks for in `Retry-After`.
//!
//! # Promise
//! Seconds and every form of HTTP date are read. What cannot be read, and a time that has passed,
//! is no wait: then the usual backoff holds. No wait is longer than [`MAX`].

use std::time::{Duration, SystemTime};

/// The longest wait that a server can ask for; more counts as this much.
pub const MAX: Duration = Duration::from_secs(24 * 60 * 60);

/// Reads the value of the header, counted from the arrival of the answer.
pub fn parse(text: &str, arrived: SystemTime) -> Option<Duration> {
    let text = text.trim();
    let wait = if !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()) {
        // Only a number too large for the type cannot be read here.
        text.parse().map_or(MAX, Duration::from_secs)
    } else {
        httpdate::parse_http_date(text)
            .ok()?
            .duration_since(arrived)
            .ok()?
    };
    (!wait.is_zero()).then(|| wait.min(MAX))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::time::UNIX_EPOCH;

    /// 1994-11-06 08:49:37 UTC, the example time of RFC 9110.
    const ARRIVED: u64 = 784_111_777;

    fn wait(value: &str) -> Option<Duration> {
        parse(value, UNIX_EPOCH + Duration::from_secs(ARRIVED))
    }

    #[test]
    fn seconds_and_every_form_of_date_are_read() {
        assert_eq!(wait("7"), Some(Duration::from_secs(7)));
        for date in [
            "Sun, 06 Nov 1994 08:50:37 GMT",
            "Sunday, 06-Nov-94 08:50:37 GMT",
            "Sun Nov  6 08:50:37 1994",
        ] {
            assert_eq!(wait(date), Some(Duration::from_secs(60)), "{date}");
        }
    }

    #[test]
    fn a_useless_value_leaves_the_usual_backoff() {
        for value in [
            "",
            "soon",
            "-1",
            "1.5",
            "0",
            "Sun, 06 Nov 1994 08:48:37 GMT",
            "7 s",
        ] {
            assert_eq!(wait(value), None, "{value:?}");
        }
    }

    #[test]
    fn an_endless_wait_is_cut() {
        for value in [
            "86401",
            "18446744073709551616",
            "Fri, 31 Dec 9999 23:59:59 GMT",
        ] {
            assert_eq!(wait(value), Some(MAX), "{value}");
        }
    }

    proptest! {
        #[test]
        fn no_text_gives_a_wait_of_nothing_or_beyond_the_limit(text in "\\PC{0,40}") {
            if let Some(wait) = wait(&text) {
                prop_assert!(!wait.is_zero() && wait <= MAX);
            }
        }
    }
}
