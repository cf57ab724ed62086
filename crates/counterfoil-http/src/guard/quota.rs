//! What one caller may have kept of its failures.
//!
//! # Promise
//! A failure costs a caller nothing: with keys without end it could fill the disk with them. Of the
//! failed answers of one caller so many bytes are kept in an hour; of the others only that they failed.
//! The count is that of this process, and it forgets callers when there are too many of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

const HOUR: Duration = Duration::from_secs(3_600);
/// Callers that are counted one by one.
const MOST: usize = 10_000;

/// Bytes by caller.
#[derive(Debug, Default)]
pub(super) struct Quota(Mutex<HashMap<String, Spent>>);

#[derive(Debug, Clone, Copy)]
struct Spent {
    since: Instant,
    bytes: usize,
}

impl Quota {
    /// Whether so many bytes more of this caller are kept.
    pub(super) fn take(&self, caller: &str, bytes: usize, limit: usize) -> bool {
        self.take_at(caller, bytes, limit, Instant::now())
    }

    fn take_at(&self, caller: &str, bytes: usize, limit: usize, now: Instant) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let over = |spent: &Spent| now.duration_since(spent.since) >= HOUR;
        if !all.contains_key(caller) && all.len() >= MOST {
            all.retain(|_, spent| !over(spent));
            if all.len() >= MOST {
                all.clear();
            }
        }
        let fresh = Spent {
            since: now,
            bytes: 0,
        };
        let spent = all.entry(caller.to_owned()).or_insert(fresh);
        if over(spent) {
            *spent = fresh;
        }
        let fits = spent.bytes.saturating_add(bytes) <= limit;
        if fits {
            spent.bytes += bytes;
        }
        fits
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_own_and_gets_it_again_after_an_hour() {
        let (quota, now) = (Quota::default(), Instant::now());

        assert!(quota.take_at("a", 60, 100, now));
        assert!(!quota.take_at("a", 60, 100, now));
        assert!(quota.take_at("a", 40, 100, now));
        assert!(quota.take_at("b", 100, 100, now));
        assert!(!quota.take_at("b", 1, 100, now));
        assert!(quota.take_at("a", 100, 100, now + HOUR));
    }

    #[test]
    fn callers_without_end_are_not_remembered_without_end() {
        let (quota, now) = (Quota::default(), Instant::now());

        for n in 0..3 * MOST {
            quota.take_at(&n.to_string(), 1, 100, now);
        }

        assert!(quota.0.lock().unwrap().len() <= MOST);
    }
}
