//! The guard at work: who runs, who waits, who is answered with what is stored.
//!
//! # Promise
//! Of all requests with one key, in all processes, at most one runs at a time, and none runs again
//! after one took effect. When the records cannot be read or written, nothing runs.
//!
//! # Round trips
//! | path | statements |
//! |---|---|
//! | replay | one SELECT; where claims look for themselves and repeats were rare, a claim in vain before it |
//! | first time, leased | one INSERT, one UPDATE, and a SELECT before them unless claims look for themselves and repeats are rare; a heartbeat every third of a lease |
//! | duplicates in this process, meanwhile | none: they wait for the first one and share its answer |
//! | duplicates in other processes | one SELECT for each look, at most every 200 ms |
//!
//! | module | what lives there |
//! |---|---|
//! | [`flight`] | duplicates in one process wait for the first, before they take a connection |
//! | [`lease`] | the leased mode: claim, heartbeat, end |
//! | [`reconcile`] | what is uncertain is settled, what is over is purged |
//! | `tidy` | the guard itself purges now and then |

pub mod alert;
pub mod flight;
mod habit;
pub mod lease;
pub mod reconcile;
mod tidy;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use async_trait::async_trait;
use counterfoil_core::StoreError;
use counterfoil_core::guard::{
    Decision, Digest, Expect, Fingerprint, Found, Gate, Gated, Key, Records, Rules, decide,
};
use counterfoil_core::store::Result;

use crate::pipeline::meter;
use alert::Watch;
use flight::{Boarding, Flights, Seat};
use habit::Habit;
use tidy::Tidy;

/// The first pause between two looks at a record that another process works on.
const LOOK_AGAIN: Duration = Duration::from_millis(10);
/// The longest such pause.
const LOOK_AGAIN_MAX: Duration = Duration::from_millis(200);

/// How long the database may take to read a record, to claim a key, or to write how it came out.
/// Somebody waits for the answer, and a dead connection may say nothing for ever.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the database says, or that it cannot be reached when it says nothing in time.
pub async fn in_time<T>(work: impl Future<Output = Result<T>>) -> Result<T> {
    match tokio::time::timeout(PATIENCE, work).await {
        Ok(said) => said,
        Err(late) => Err(StoreError::Unreachable(late.into())),
    }
}

/// What a request is told.
#[derive(Debug)]
pub enum Entered<T> {
    /// It runs.
    Fresh(T),
    /// It is answered with what is stored.
    Replay(Arc<Found>),
    /// Another one is under way: come again after this time.
    InProgress(Duration),
    /// The key was used for something else.
    Conflict,
    /// It may have happened: nobody knows yet.
    Uncertain(Arc<Found>),
    /// It may be tried again, after this time.
    Later(Duration),
}

impl<T> Entered<T> {
    /// What is counted.
    pub fn label(&self) -> &'static str {
        match self {
            Entered::Fresh(_) => "executed",
            Entered::Replay(_) => "replayed",
            Entered::InProgress(_) => "in-progress",
            Entered::Conflict => "conflict",
            Entered::Uncertain(_) => "uncertain",
            Entered::Later(_) => "later",
        }
    }

    /// Somebody has asked for this before. Another request under the same key is a mistake, and no
    /// repeat.
    fn is_repeat(&self) -> bool {
        !matches!(self, Entered::Fresh(_) | Entered::Conflict)
    }
}

/// How a mode takes a key that is free.
#[async_trait]
pub trait Claim: Send + Sync {
    /// What the owner gets.
    type Claimed: Send;

    /// Takes the key if the record is still as expected. `None`: it is not, or somebody else is
    /// about to; look again.
    ///
    /// # When it is dropped
    /// The key stays free, or is free again as soon as the database answers: a claim that takes
    /// too long is given up.
    async fn claim(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
        expect: Expect,
        attempt: u32,
    ) -> Result<Option<Self::Claimed>>;

    /// Whether another payload can be told "conflict" while the first is still under way. It
    /// cannot where the first one may still be rolled back.
    fn claims_are_visible(&self) -> bool;

    /// Whether a lock in the way of a claim may be that of the same key, which its owner holds until it
    /// is over. Otherwise the database is busy with something else, and nothing is in progress.
    fn locks_keys(&self) -> bool;
}

/// Records, rules, and the requests of this process.
#[derive(Clone)]
pub struct Warden {
    records: Arc<dyn Records>,
    rules: Arc<Rules>,
    flights: Flights,
    habit: Habit,
    watch: Watch,
    tidy: Tidy,
    trouble: Trouble,
    gate: Option<Arc<dyn Gate>>,
    destination: Option<Arc<str>>,
}

/// A key that was taken: what the owner got, and its place in front of the duplicates.
#[derive(Debug)]
pub struct Entry<T> {
    /// What the owner got.
    pub claimed: T,
    /// Its place: duplicates wait until it is given up.
    pub seat: Seat,
}

impl Warden {
    /// A guard over these records.
    pub fn new(records: Arc<dyn Records>, rules: Rules) -> Self {
        Self {
            records,
            rules: Arc::new(rules),
            flights: Flights::default(),
            habit: Habit::default(),
            watch: Watch::default(),
            tidy: Tidy::new(),
            trouble: Trouble::default(),
            gate: None,
            destination: None,
        }
    }

    /// The same for calls of this dependency: duplicates that share the call of the first one are
    /// counted as its.
    #[must_use]
    pub fn destination(mut self, name: &str) -> Self {
        self.destination = Some(name.into());
        self
    }

    /// The same with a fast gate in front.
    #[must_use]
    pub fn gate(mut self, gate: Arc<dyn Gate>) -> Self {
        self.gate = Some(gate);
        self
    }

    /// The same records under other rules.
    #[must_use]
    pub fn rules(mut self, rules: Rules) -> Self {
        self.rules = Arc::new(rules);
        self
    }

    /// Where the records are.
    pub fn records(&self) -> &Arc<dyn Records> {
        &self.records
    }

    /// The rules.
    pub fn the_rules(&self) -> &Arc<Rules> {
        &self.rules
    }

    /// Removes what is remembered of a key: first in the database, then at the gate.
    pub async fn forget(&self, key: &Key) -> Result<bool> {
        let digest = key.digest();
        let gone = self.records.forget(&digest).await?;
        if let Some(gate) = &self.gate {
            gate.forget(&digest).await;
        }
        Ok(gone)
    }

    /// Lets a request in, or tells it what to do instead. A duplicate waits for the first one as
    /// long as the rules say.
    pub async fn enter<C: Claim>(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
        mode: &C,
    ) -> Result<Entered<Entry<C::Claimed>>> {
        let entered = self.find_place(key, fingerprint, mode).await;
        let outcome = entered.as_ref().map_or("unavailable", Entered::label);
        metrics::counter!(
            "counterfoil_guard_requests_total",
            "business_type" => key.business_type().to_owned(), "outcome" => outcome
        )
        .increment(1);
        match &entered {
            Ok(entered) => {
                self.watch.saw(key.business_type(), entered.is_repeat());
                self.tidy.now_and_then(&self.records);
                if matches!(entered, Entered::Fresh(_)) {
                    self.trouble.is_over();
                }
            }
            Err(error) => self.trouble.begins(error),
        }
        entered
    }

    async fn find_place<C: Claim>(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
        mode: &C,
    ) -> Result<Entered<Entry<C::Claimed>>> {
        let digest = key.digest();
        let until = Instant::now() + self.rules.wait;
        loop {
            match self.flights.board(digest, *fingerprint) {
                Boarding::First(seat) => {
                    return self.take(key, fingerprint, mode, seat, until).await;
                }
                Boarding::Behind(flight) => {
                    let other = flight.fingerprint() != *fingerprint;
                    if other && mode.claims_are_visible() {
                        if self.rules.mode == counterfoil_core::guard::Mode::Strict {
                            return Ok(Entered::Conflict);
                        }
                        // It replaces the one that runs, and need not wait for it.
                        let seat = Seat::alone();
                        return self.take(key, fingerprint, mode, seat, until).await;
                    }
                    let Some(landed) = flight.landed(until).await else {
                        return Ok(Entered::InProgress(self.come_again()));
                    };
                    metrics::counter!(
                        "counterfoil_guard_coalesced_total",
                        "business_type" => key.business_type().to_owned()
                    )
                    .increment(1);
                    if let Some(found) = landed
                        && let Some(answer) = self.answer(&found, fingerprint)
                    {
                        if let Some(destination) = &self.destination {
                            meter::coalesced(destination);
                        }
                        return Ok(answer);
                    }
                }
            }
        }
    }

    /// The first of this process: takes the key when it is free.
    async fn take<C: Claim>(
        &self,
        key: &Key,
        fingerprint: &Fingerprint,
        mode: &C,
        mut seat: Seat,
        until: Instant,
    ) -> Result<Entered<Entry<C::Claimed>>> {
        let digest = key.digest();
        // A database that is busy with others is waited for as long as one that says nothing.
        let busy_until = until.min(Instant::now() + PATIENCE);
        let mut pause = LOOK_AGAIN;
        let mut waited = false;
        let mut unseen = self.records.claims_look() && self.habit.repeats_are_rare();
        let mut kept = None;
        loop {
            let pass = match kept.take() {
                Some(pass) => pass,
                None => self.pass_gate(&digest).await,
            };
            // Whom the gate keeps out waits a moment, if there is time; then the database decides,
            // because the one whom the gate has let in may be dead.
            if !pass.may_claim() && !waited && Instant::now() + pause < until {
                tokio::time::sleep(pause).await;
                waited = true;
                continue;
            }
            let looked = !(std::mem::take(&mut unseen) && pass.may_claim());
            let found = if looked {
                in_time(self.records.look(&digest)).await?.map(Arc::new)
            } else {
                None
            };
            let mut busy = None;
            match decide(found.as_deref(), fingerprint, &self.rules) {
                Decision::Run { expect, attempt } => {
                    match in_time(mode.claim(key, fingerprint, expect, attempt)).await {
                        Ok(Some(claimed)) => {
                            self.habit.saw(found.is_some());
                            seat.pass = pass;
                            return Ok(Entered::Fresh(Entry { claimed, seat }));
                        }
                        Ok(None) => {}
                        // A lock stood in the way: of the same key, perhaps.
                        Err(StoreError::Busy(_)) if mode.locks_keys() => {}
                        Err(error @ StoreError::Busy(_)) => busy = Some(error),
                        Err(error) => return Err(error),
                    }
                }
                Decision::InProgress => {}
                _ => {
                    self.habit.saw(true);
                    if let Some(found) = found {
                        let answer = self.answer(&found, fingerprint);
                        seat.land(Some(found));
                        if let Some(answer) = answer {
                            return Ok(answer);
                        }
                    }
                    return Err(StoreError::Database(
                        "a record changed while it was read".into(),
                    ));
                }
            }
            if !looked {
                // Something is there: see what.
                kept = Some(pass);
                continue;
            }
            match busy {
                Some(error) if Instant::now() + pause >= busy_until => return Err(error),
                None if Instant::now() + pause >= until => {
                    return Ok(Entered::InProgress(self.come_again()));
                }
                _ => {}
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(LOOK_AGAIN_MAX);
        }
    }

    async fn pass_gate(&self, digest: &Digest) -> Pass {
        let Some(gate) = &self.gate else {
            return Pass::None;
        };
        match gate.enter(digest).await {
            Gated::Open(token) => Pass::Held {
                gate: Arc::clone(gate),
                digest: *digest,
                token,
            },
            Gated::Busy => Pass::Refused,
            Gated::Aside => Pass::None,
        }
    }

    /// What a record that is there tells a duplicate. `None`: it must look for itself.
    fn answer<T>(&self, found: &Arc<Found>, fingerprint: &Fingerprint) -> Option<Entered<T>> {
        match decide(Some(found), fingerprint, &self.rules) {
            Decision::Replay => Some(Entered::Replay(Arc::clone(found))),
            Decision::Conflict => Some(Entered::Conflict),
            Decision::Uncertain => Some(Entered::Uncertain(Arc::clone(found))),
            Decision::Later(after) => Some(Entered::Later(after)),
            Decision::Run { .. } | Decision::InProgress => None,
        }
    }

    /// When a caller that could not wait any longer should come again.
    fn come_again(&self) -> Duration {
        self.rules
            .wait
            .clamp(Duration::from_secs(1), Duration::from_secs(10))
    }
}

/// Whether requests are turned away because of the records. It is told once, and once more when it is
/// over.
#[derive(Clone, Default)]
struct Trouble(Arc<AtomicBool>);

impl Trouble {
    fn begins(&self, error: &StoreError) {
        if !self.0.swap(true, Ordering::Relaxed) {
            tracing::error!(
                error = error.one_line(),
                "the guard's records cannot be read or written: requests are turned away"
            );
        }
    }

    /// A key was claimed: that needs all that can fail.
    fn is_over(&self) {
        if self.0.load(Ordering::Relaxed) && self.0.swap(false, Ordering::Relaxed) {
            tracing::info!("the guard's records can be written again");
        }
    }
}

/// Leave to go on to the database.
#[derive(Default)]
pub(crate) enum Pass {
    /// There is no gate, or it has stepped aside: the database decides alone.
    #[default]
    None,
    /// Somebody else is before us.
    Refused,
    /// We are first; the gate is opened again when this is dropped.
    Held {
        gate: Arc<dyn Gate>,
        digest: Digest,
        token: u64,
    },
}

impl Pass {
    fn may_claim(&self) -> bool {
        !matches!(self, Pass::Refused)
    }
}

impl std::fmt::Debug for Pass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Pass::None => "None",
            Pass::Refused => "Refused",
            Pass::Held { .. } => "Held",
        })
    }
}

impl Drop for Pass {
    fn drop(&mut self) {
        if let Pass::Held {
            gate,
            digest,
            token,
        } = self
        {
            let (gate, digest, token) = (Arc::clone(gate), *digest, *token);
            // Without a runtime the gate's own time limit opens it.
            if let Ok(runtime) = tokio::runtime::Handle::try_current() {
                runtime.spawn(async move { gate.leave(&digest, token).await });
            }
        }
    }
}
