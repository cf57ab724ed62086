//! The leased mode: claim, run anything, end.
//!
//! # Promise
//! While the owner lives and its lease is renewed, nobody else runs. Who ends a claim that was
//! taken over is refused, and is shown what is there instead.
//! # When it is dropped
//! A lease that is dropped without an end (a panic, a cancelled caller) leaves the record
//! uncertain: it may have happened. When the process dies, the same follows after the lease.
//!
//! # When the database is away at the end
//! The caller is answered after [`ANSWER_WITHIN`] at the latest. How the request came out is tried to be
//! recorded for as long as the rules say, and the lease is renewed meanwhile: repeats are told that it
//! is in progress, and get the answer once it is recorded.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, Key, Record, Records, Rules, Snapshot, State, Write,
};
use counterfoil_core::store::{Result, StoreError};
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tracing::Instrument as _;

use super::flight::Seat;
use super::{Claim, Entered, Entry, Warden, alert, in_time};

/// No heart beats faster.
const SHORTEST_BEAT: Duration = Duration::from_millis(1);

/// How long a caller waits until its answer is recorded.
pub const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// The first pause before it is tried again to record something, and the longest.
const TRY_AGAIN: Duration = Duration::from_millis(50);
const TRY_AGAIN_MAX: Duration = Duration::from_secs(1);

/// How a run came to its end.
#[derive(Debug)]
pub enum Ended {
    /// It is recorded.
    Recorded(Arc<Found>),
    /// It is not recorded yet: that goes on in the background.
    Pending,
    /// The claim was lost before: this is what is there now.
    Lost(Option<Arc<Found>>),
}

/// What came of a run.
#[derive(Debug, Clone)]
pub enum End {
    /// It took effect.
    Succeeded(Snapshot),
    /// A business error: it is replayed.
    Failed(Snapshot),
    /// A business error that a person has to look at: it is replayed, and told once.
    NeedsPerson(Snapshot),
    /// A business error that may pass later: not again before this time.
    Later(Snapshot, Duration),
}

impl End {
    /// To be told with [`super::alert::needs_person`] once it is recorded.
    pub fn needs_person(&self) -> bool {
        matches!(self, End::NeedsPerson(_))
    }

    /// The state, the answer, and when it may be tried again.
    pub fn parts(self) -> (State, Snapshot, Option<Duration>) {
        match self {
            End::Succeeded(s) => (State::Succeeded, s, None),
            End::Failed(s) | End::NeedsPerson(s) => (State::Failed, s, None),
            End::Later(s, after) => (State::Retryable, s, Some(after)),
        }
    }
}

/// A claim that its owner keeps alive.
#[derive(Debug)]
pub struct Lease {
    claim: Option<Held>,
    seat: Option<Seat>,
}

struct Held {
    records: Arc<dyn Records>,
    rules: Arc<Rules>,
    key: Key,
    digest: Digest,
    fingerprint: Fingerprint,
    fence: i64,
    attempt: u32,
    heart: Heart,
}

/// Renews a lease until it is dropped.
struct Heart(JoinHandle<()>);

impl Drop for Heart {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Held({}, {})", self.key.key(), self.fence)
    }
}

/// Claims by a record that others can see.
struct ByLease<'a> {
    records: &'a Arc<dyn Records>,
    rules: &'a Rules,
}

/// A record that was put and has no owner yet.
///
/// # When it is dropped
/// Nobody will ever own it, and nothing has run: it is taken away again.
struct Unowned {
    records: Arc<dyn Records>,
    digest: Digest,
    fence: Option<i64>,
    attempt: u32,
}

impl Unowned {
    fn own(mut self) -> (i64, u32) {
        (self.fence.take().unwrap_or_default(), self.attempt)
    }
}

impl Drop for Unowned {
    fn drop(&mut self) {
        // Without a runtime the process is about to end: the lease runs out.
        if let Some(fence) = self.fence
            && let Ok(runtime) = tokio::runtime::Handle::try_current()
        {
            let (records, digest) = (Arc::clone(&self.records), self.digest);
            runtime.spawn(async move {
                let release = records.change(&digest, fence, &Change::Release);
                if let Err(error) = in_time(release).await {
                    tracing::warn!(
                        error = error.one_line(), %digest,
                        "cannot take back a claim that nobody owns: it will be uncertain"
                    );
                }
            });
        }
    }
}

#[async_trait]
impl Claim for ByLease<'_> {
    type Claimed = Unowned;

    async fn claim(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
        expect: Expect,
        attempt: u32,
    ) -> Result<Option<Unowned>> {
        let write = Write {
            key: key.clone(),
            fingerprint: *fingerprint,
            state: State::Processing,
            attempt,
            lease: Some(self.rules.lease),
            keep: self.rules.keep,
            retry_in: None,
            snapshot: None,
            expect,
        };
        let (records, digest) = (Arc::clone(self.records), key.digest());
        // A task of its own: who waits for it may go away, and the record is put all the same.
        let put = tokio::spawn(async move {
            let fence = records.put(&write).await?;
            Ok(fence.map(|fence| Unowned {
                records,
                digest,
                fence: Some(fence),
                attempt,
            }))
        });
        put.await.map_err(|e| StoreError::Database(e.into()))?
    }

    fn claims_are_visible(&self) -> bool {
        true
    }

    /// A claim is committed at once: whoever finds none finds nobody at work.
    fn locks_keys(&self) -> bool {
        false
    }
}

impl Warden {
    /// Lets a request in, in leased mode.
    pub async fn enter_leased(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
    ) -> Result<Entered<Lease>> {
        let mode = ByLease {
            records: self.records(),
            rules: self.the_rules(),
        };
        Ok(match self.enter(key, fingerprint, &mode).await? {
            Entered::Fresh(Entry { claimed, seat }) => {
                Entered::Fresh(self.lease(key, fingerprint, claimed, seat))
            }
            Entered::Replay(found) => Entered::Replay(found),
            Entered::InProgress(after) => Entered::InProgress(after),
            Entered::Conflict => Entered::Conflict,
            Entered::Uncertain(found) => Entered::Uncertain(found),
            Entered::Later(after) => Entered::Later(after),
        })
    }

    fn lease(&self, key: &Key, fingerprint: &Fingerprint, claimed: Unowned, seat: Seat) -> Lease {
        let (fence, attempt) = claimed.own();
        let digest = key.digest();
        let heart = tokio::spawn(beat(
            Arc::clone(self.records()),
            key.clone(),
            fence,
            self.the_rules().lease,
            self.the_rules().alert_age,
        ));
        Lease {
            claim: Some(Held {
                records: Arc::clone(self.records()),
                rules: Arc::clone(self.the_rules()),
                key: key.clone(),
                digest,
                fingerprint: *fingerprint,
                fence,
                attempt,
                heart: Heart(heart),
            }),
            seat: Some(seat),
        }
    }
}

/// Renews the lease until it is told otherwise or the claim is gone.
async fn beat(records: Arc<dyn Records>, key: Key, fence: i64, lease: Duration, alert: Duration) {
    let digest = key.digest();
    let begun = Instant::now();
    let mut overdue = None;
    let mut ticks = tokio::time::interval((lease / 3).max(SHORTEST_BEAT));
    ticks.tick().await;
    loop {
        ticks.tick().await;
        if begun.elapsed() >= alert && overdue.is_none() {
            overdue = Some(Overdue::new(&key, begun.elapsed()));
        }
        match in_time(records.change(&digest, fence, &Change::Heartbeat { lease })).await {
            Ok(true) => {}
            Ok(false) => {
                tracing::warn!(%digest, fence, "the claim was taken over while its owner was still at work");
                return;
            }
            Err(error) => {
                tracing::warn!(error = error.one_line(), %digest, "cannot renew a lease of the guard");
            }
        }
    }
}

/// A request that is at work for longer than the alert age, until it is over.
struct Overdue(metrics::Gauge);

impl Overdue {
    fn new(key: &Key, running: Duration) -> Self {
        tracing::warn!(
            business_type = key.business_type(),
            key = key.encoded(),
            running_seconds = running.as_secs(),
            "a request is still at work: repeats are told that it is in progress"
        );
        let business_type = key.business_type().to_owned();
        let gauge = metrics::gauge!("counterfoil_guard_overdue", "business_type" => business_type);
        gauge.increment(1.0);
        Self(gauge)
    }
}

impl Drop for Overdue {
    fn drop(&mut self) {
        self.0.decrement(1.0);
    }
}

/// A request whose outcome could not be recorded at once, until it is.
struct Unrecorded {
    key: Key,
    begun: Instant,
    gauge: metrics::Gauge,
}

impl Unrecorded {
    fn new(key: &Key, error: &StoreError) -> Self {
        tracing::warn!(
            error = error.one_line(),
            business_type = key.business_type(),
            key = key.encoded(),
            "cannot record how a request came out: trying again"
        );
        let business_type = key.business_type().to_owned();
        let gauge =
            metrics::gauge!("counterfoil_guard_unrecorded", "business_type" => business_type);
        gauge.increment(1.0);
        Self {
            key: key.clone(),
            begun: Instant::now(),
            gauge,
        }
    }

    fn recorded(self) {
        tracing::info!(
            business_type = self.key.business_type(),
            key = self.key.encoded(),
            seconds = self.begun.elapsed().as_secs(),
            "recorded how a request came out"
        );
    }

    fn given_up(self, error: &StoreError) {
        tracing::error!(
            error = error.one_line(),
            business_type = self.key.business_type(),
            key = self.key.encoded(),
            seconds = self.begun.elapsed().as_secs(),
            "gave up recording how a request came out: it will be uncertain"
        );
    }
}

impl Drop for Unrecorded {
    fn drop(&mut self) {
        self.gauge.decrement(1.0);
    }
}

impl Lease {
    /// The number of this claim, for whoever is called: it grows with every claim of the key, so
    /// that a late call of a former owner can be told from that of the present one.
    pub fn fence(&self) -> i64 {
        self.claim.as_ref().map_or(0, |c| c.fence)
    }

    /// Which run of this request it is.
    pub fn attempt(&self) -> u32 {
        self.claim.as_ref().map_or(0, |c| c.attempt)
    }

    /// Records how it came out. Who is told [`Ended::Pending`] need not do anything.
    pub async fn end(mut self, end: End) -> Result<Ended> {
        let Some(held) = self.claim.take() else {
            return Ok(Ended::Lost(None));
        };
        let seat = self.seat.take();
        let recording = held.end(end, seat);
        Ok(in_background(recording).await?.unwrap_or(Ended::Pending))
    }

    /// It certainly did not happen: the next request runs.
    pub async fn release(mut self) -> Result<bool> {
        let Some(held) = self.claim.take() else {
            return Ok(false);
        };
        let seat = self.seat.take();
        let release = async move {
            let released = held.persist(&Change::Release).await;
            drop(seat);
            released
        };
        match in_background(release).await? {
            Some(released) => Ok(released),
            None => Err(StoreError::Unreachable(
                "it is tried again in the background".into(),
            )),
        }
    }

    /// It may have happened.
    pub async fn doubt(mut self) -> Result<bool> {
        let Some(held) = self.claim.take() else {
            return Ok(false);
        };
        // Without this the lease runs out, and it is uncertain then.
        let Held {
            records,
            digest,
            fence,
            heart,
            ..
        } = held;
        drop(heart);
        in_time(records.change(&digest, fence, &Change::Doubt)).await
    }
}

/// What comes of this; nothing when it takes too long for a caller, and then it goes on by itself.
async fn in_background<T: Send + 'static>(
    work: impl Future<Output = Result<T>> + Send + 'static,
) -> Result<Option<T>> {
    let work = tokio::spawn(work.in_current_span());
    match tokio::time::timeout(ANSWER_WITHIN, work).await {
        Ok(Ok(done)) => done.map(Some),
        Ok(Err(panicked)) => Err(StoreError::Database(panicked.into())),
        Err(_) => Ok(None),
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        let Some(held) = self.claim.take() else {
            return;
        };
        held.heart.0.abort();
        let seat = self.seat.take();
        // Without a runtime the lease runs out, and the record is uncertain then.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(async move {
                let doubt = held
                    .records
                    .change(&held.digest, held.fence, &Change::Doubt);
                if let Err(error) = in_time(doubt).await {
                    tracing::warn!(
                        error = error.one_line(),
                        "cannot mark a request as uncertain: its lease will run out"
                    );
                }
                drop(seat);
            });
        }
    }
}

impl Held {
    async fn end(self, end: End, seat: Option<Seat>) -> Result<Ended> {
        let needs_person = end.needs_person();
        let (state, snapshot, retry_in) = end.parts();
        let change = Change::End {
            state,
            snapshot: Some(snapshot.clone()),
            keep: self.rules.keep_of(state),
            retry_in,
        };
        if !self.persist(&change).await? {
            let there = in_time(self.records.look(&self.digest)).await?;
            // A try that was not answered may have been heard.
            let ours = |found: &Found| {
                let record = &found.record;
                record.fence == self.fence && record.state == state
            };
            if !there.as_ref().is_some_and(ours) {
                metrics::counter!(
                    "counterfoil_guard_fenced_total",
                    "business_type" => self.key.business_type().to_owned()
                )
                .increment(1);
                return Ok(Ended::Lost(there.map(Arc::new)));
            }
        }
        if needs_person {
            alert::needs_person(&self.key);
        }
        let found = Arc::new(self.as_found(state, snapshot, retry_in));
        if let Some(seat) = seat {
            seat.land(Some(Arc::clone(&found)));
        }
        Ok(Ended::Recorded(found))
    }

    /// Changes the record as its owner, and tries again while the database cannot. Answers whether the
    /// record was there. An error: it stays as it is, and is uncertain when its lease is over.
    async fn persist(&self, change: &Change) -> Result<bool> {
        let begun = Instant::now();
        let (mut pause, mut unrecorded) = (TRY_AGAIN, None::<Unrecorded>);
        loop {
            let changed = self.records.change(&self.digest, self.fence, change);
            let error = match in_time(changed).await {
                Ok(there) => {
                    if let Some(unrecorded) = unrecorded {
                        unrecorded.recorded();
                    }
                    return Ok(there);
                }
                Err(error) => error,
            };
            let told = unrecorded.take();
            let told = told.unwrap_or_else(|| Unrecorded::new(&self.key, &error));
            if begun.elapsed() + pause >= self.rules.record_within {
                told.given_up(&error);
                return Err(error);
            }
            unrecorded = Some(told);
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(TRY_AGAIN_MAX);
        }
    }

    /// The record as it must be now, to be shared with those who wait.
    fn as_found(&self, state: State, snapshot: Snapshot, retry_in: Option<Duration>) -> Found {
        recorded(
            &self.key,
            self.fingerprint,
            self.fence,
            self.attempt,
            &self.rules,
            (state, snapshot, retry_in),
        )
    }
}

/// A record that was just written, without reading it again.
pub fn recorded(
    key: &Key,
    fingerprint: Fingerprint,
    fence: i64,
    attempts: u32,
    rules: &Rules,
    (state, snapshot, retry_in): (State, Snapshot, Option<Duration>),
) -> Found {
    let now = chrono::Utc::now();
    let after = |d: Duration| {
        chrono::TimeDelta::from_std(d)
            .ok()
            .and_then(|d| now.checked_add_signed(d))
            .unwrap_or(chrono::DateTime::<chrono::Utc>::MAX_UTC)
    };
    Found {
        now,
        record: Record {
            key: key.clone(),
            fingerprint,
            state,
            fence,
            attempts,
            lease_until: None,
            retry_at: retry_in.map(after),
            expires_at: after(rules.keep_of(state)),
            created_at: now,
            updated_at: now,
            snapshot: Some(snapshot),
        },
    }
}
