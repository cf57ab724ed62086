//! Records of the guard, one-time tokens and locks in memory.
//!
//! # Promise
//! They keep every promise of a database except one: what they hold dies with the process. The
//! clock is the test's to move.
//!
//! ```
//! use std::time::Duration;
//! use counterfoil_core::guard::Locks;
//! use counterfoil_testkit::memory::MemoryGuard;
//!
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(async {
//! let guard = MemoryGuard::new();
//! let minute = Duration::from_secs(60);
//! let first = guard.acquire("month-end", minute).await?;
//! assert_eq!(guard.acquire("month-end", minute).await?, None);
//!
//! guard.clock().advance(minute);
//! assert!(guard.acquire("month-end", minute).await? > first);
//! # Ok::<(), counterfoil_core::StoreError>(())
//! # }).unwrap();
//! ```

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use chrono::{DateTime, Utc};
use counterfoil_core::guard::{
    Change, Consumed, Digest, Expect, Found, GuardStats, Locks, Mark, Record, RecordFilter,
    Records, State, Token, Tokens, Write,
};
use counterfoil_core::message::check_name;
use counterfoil_core::store::Result;

use super::Clock;
use super::clock::span;

/// Records, tokens and locks. Clones are handles on the same ones.
#[derive(Debug, Clone)]
pub struct MemoryGuard {
    kept: Arc<Mutex<Kept>>,
    clock: Clock,
}

#[derive(Debug, Default)]
struct Kept {
    records: HashMap<Digest, Record>,
    tokens: HashMap<Digest, (String, DateTime<Utc>)>,
    locks: HashMap<String, (i64, DateTime<Utc>)>,
    last: i64,
}

impl Kept {
    /// A number that is greater than all before it.
    fn next(&mut self, now: DateTime<Utc>) -> i64 {
        self.last = now.timestamp_micros().max(self.last + 1);
        self.last
    }
}

impl MemoryGuard {
    /// Nothing kept yet, and a clock that runs with the machine's.
    pub fn new() -> Self {
        Self::with_clock(Clock::running())
    }

    /// Nothing kept yet, and this clock.
    pub fn with_clock(clock: Clock) -> Self {
        Self {
            kept: Arc::default(),
            clock,
        }
    }

    /// The clock of leases and lifetimes.
    pub fn clock(&self) -> &Clock {
        &self.clock
    }

    fn lock(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn found(&self, keep: impl Fn(&Found) -> bool) -> Vec<Found> {
        let now = self.clock.now();
        self.lock()
            .records
            .values()
            .map(|record| Found {
                record: record.clone(),
                now,
            })
            .filter(|found| keep(found))
            .collect()
    }
}

impl Default for MemoryGuard {
    fn default() -> Self {
        Self::new()
    }
}

#[async_trait]
impl Records for MemoryGuard {
    async fn look(&self, digest: &Digest) -> Result<Option<Found>> {
        let now = self.clock.now();
        let record = self.lock().records.get(digest).cloned();
        Ok(record.map(|record| Found { record, now }))
    }

    async fn put(&self, write: &Write) -> Result<Option<i64>> {
        let now = self.clock.now();
        let digest = write.key.digest();
        let mut kept = self.lock();
        let prior = kept.records.get(&digest);
        let expected = match write.expect {
            Expect::Absent => prior.is_none(),
            Expect::Fence(fence) => prior.is_some_and(|record| record.fence == fence),
        };
        if !expected {
            return Ok(None);
        }
        let created_at = match prior {
            Some(record) if write.attempt != 1 => record.created_at,
            _ => now,
        };
        let fence = kept.next(now);
        let record = Record {
            key: write.key.clone(),
            fingerprint: write.fingerprint,
            state: write.state,
            fence,
            attempts: write.attempt,
            lease_until: write.lease.map(|lease| now + span(lease)),
            retry_at: write.retry_in.map(|wait| now + span(wait)),
            expires_at: now + span(write.keep),
            created_at,
            updated_at: now,
            snapshot: write.snapshot.clone(),
        };
        kept.records.insert(digest, record);
        Ok(Some(fence))
    }

    async fn change_if(&self, mark: &Mark, change: &Change) -> Result<bool> {
        let now = self.clock.now();
        let mut kept = self.lock();
        let Some(record) = kept
            .records
            .get_mut(&mark.digest)
            .filter(|record| record.fence == mark.fence && !record.state.is_over())
            .filter(|record| mark.seen.is_none_or(|at| at == record.updated_at))
        else {
            return Ok(false);
        };
        match change {
            Change::Heartbeat { lease } if record.state == State::Processing => {
                record.lease_until = Some(now + span(*lease));
            }
            Change::Heartbeat { .. } => return Ok(false),
            Change::End {
                state,
                snapshot,
                keep,
                retry_in,
            } => {
                record.state = *state;
                record.snapshot.clone_from(snapshot);
                record.expires_at = now + span(*keep);
                record.retry_at = retry_in.map(|wait| now + span(wait));
                record.lease_until = None;
            }
            Change::Doubt => {
                record.state = State::Uncertain;
                record.lease_until = None;
            }
            Change::Release => {
                kept.records.remove(&mark.digest);
                return Ok(true);
            }
        }
        record.updated_at = now;
        Ok(true)
    }

    async fn forget(&self, digest: &Digest) -> Result<bool> {
        Ok(self.lock().records.remove(digest).is_some())
    }

    async fn list(&self, filter: &RecordFilter) -> Result<Vec<Found>> {
        let is = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        let mut found = self.found(|found| {
            is(&filter.business_type, found.record.key.business_type())
                && is(&filter.scope, found.record.key.scope())
                && is(&filter.key, found.record.key.key())
                && filter.state.is_none_or(|state| state == found.state())
        });
        found.sort_by_key(|f| {
            (
                std::cmp::Reverse(f.record.updated_at),
                f.record.key.digest(),
            )
        });
        found.truncate(usize::try_from(filter.page()).unwrap_or(usize::MAX));
        Ok(found)
    }

    async fn stuck(&self, idle: Duration, after: Option<&Found>, limit: u32) -> Result<Vec<Found>> {
        let place = |f: &Found| (f.record.updated_at, f.record.key.digest());
        let mut found =
            self.found(|found| found.state() == State::Uncertain && found.idle() >= idle);
        found.retain(|f| after.is_none_or(|last| place(f) > place(last)));
        found.sort_by_key(place);
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    async fn stats(&self) -> Result<Vec<GuardStats>> {
        let mut all: BTreeMap<String, GuardStats> = BTreeMap::new();
        for found in self.found(|_| true) {
            let business_type = found.record.key.business_type().to_owned();
            let stats = all.entry(business_type.clone()).or_insert(GuardStats {
                business_type,
                ..GuardStats::default()
            });
            *match found.state() {
                State::Processing => &mut stats.processing,
                State::Succeeded => &mut stats.succeeded,
                State::Retryable => &mut stats.retryable,
                State::Failed => &mut stats.failed,
                State::Uncertain => &mut stats.uncertain,
            } += 1;
            if !found.record.state.is_over() {
                let idle = found.idle().as_secs_f64();
                let oldest = stats.oldest_open_seconds.get_or_insert(idle);
                *oldest = oldest.max(idle);
            }
        }
        Ok(all.into_values().collect())
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let mut expired = self.found(Found::expired);
        expired.sort_by_key(|f| f.record.expires_at);
        expired.truncate(usize::try_from(batch).unwrap_or(usize::MAX));
        let mut kept = self.lock();
        let mut gone = 0;
        for found in expired {
            let digest = found.record.key.digest();
            // It may have been replaced since it was found.
            if kept.records.get(&digest) == Some(&found.record) {
                kept.records.remove(&digest);
                gone += 1;
            }
        }
        Ok(gone)
    }
}

#[async_trait]
impl Tokens for MemoryGuard {
    async fn issue(&self, owner: &str, ttl: Duration) -> Result<Token> {
        check_name("owner", owner)?;
        let token = Token::random()?;
        let until = self.clock.now() + span(ttl);
        let mut kept = self.lock();
        kept.tokens
            .insert(token.digest(), (owner.to_owned(), until));
        Ok(token)
    }

    async fn consume(&self, token: &Token, owner: &str) -> Result<Consumed> {
        let now = self.clock.now();
        let mut kept = self.lock();
        let digest = token.digest();
        match kept.tokens.get(&digest) {
            Some((whose, until)) if whose == owner && *until > now => {
                kept.tokens.remove(&digest);
                Ok(Consumed::Won)
            }
            _ => Ok(Consumed::Refused),
        }
    }

    async fn purge(&self, batch: u32) -> Result<u64> {
        let now = self.clock.now();
        let mut gone = 0;
        self.lock().tokens.retain(|_, (_, until)| {
            let keep = *until > now || gone >= u64::from(batch);
            gone += u64::from(!keep);
            keep
        });
        Ok(gone)
    }
}

#[async_trait]
impl Locks for MemoryGuard {
    async fn acquire(&self, name: &str, lease: Duration) -> Result<Option<i64>> {
        check_name("lock", name)?;
        let now = self.clock.now();
        let mut kept = self.lock();
        if kept.locks.get(name).is_some_and(|(_, until)| *until > now) {
            return Ok(None);
        }
        let fence = kept.next(now);
        kept.locks
            .insert(name.to_owned(), (fence, now + span(lease)));
        Ok(Some(fence))
    }

    async fn renew(&self, name: &str, fence: i64, lease: Duration) -> Result<bool> {
        Ok(self.hold_until(name, fence, self.clock.now() + span(lease)))
    }

    async fn release(&self, name: &str, fence: i64) -> Result<bool> {
        Ok(self.hold_until(name, fence, self.clock.now()))
    }
}

impl MemoryGuard {
    fn hold_until(&self, name: &str, fence: i64, until: DateTime<Utc>) -> bool {
        let now = self.clock.now();
        match self.lock().locks.get_mut(name) {
            Some(held) if held.0 == fence && held.1 > now => {
                held.1 = until;
                true
            }
            _ => false,
        }
    }
}
