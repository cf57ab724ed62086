//! The seam between the engine and a database.
//!
//! # Promise
//! A [`Store`] keeps the outbox. It is asked for batches and settles batches; it knows nothing of
//! destinations, retries or lanes. Every method's documentation is its contract, and
//! `counterfoil-testkit` holds the suite that checks it.
//!
//! The application's side, enqueueing inside its own transaction, is typed per database and lives
//! in the driver crates.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;

use crate::BoxError;
use crate::code::Code;
use crate::mark::{Horizon, Reach};
use crate::message::{Aggregate, Message, MessageError, MessageId};
use crate::presence::ConsumerReport;
use crate::row::{RawRow, RowKey};

pub use crate::policy::breaker::{Kept, Opened, Outage, Remember};

/// The most shards a store may have: a [`ShardSet`] is one machine word.
pub const MAX_SHARDS: u16 = 64;

/// A set of shards of one queue.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub struct ShardSet(u64);

impl ShardSet {
    /// No shard.
    pub const EMPTY: ShardSet = ShardSet(0);

    /// Adds a shard.
    pub fn insert(&mut self, shard: u16) {
        self.0 |= 1 << (shard % MAX_SHARDS);
    }

    /// Whether the shard is in the set.
    pub fn contains(&self, shard: u16) -> bool {
        shard < MAX_SHARDS && self.0 & (1 << shard) != 0
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.0 == 0
    }

    /// The set as a number with one bit for each shard, as databases test it.
    pub fn bits(&self) -> i64 {
        self.0.cast_signed()
    }

    /// The shards in order.
    pub fn iter(&self) -> impl Iterator<Item = u16> + '_ {
        (0..MAX_SHARDS).filter(|s| self.contains(*s))
    }
}

impl FromIterator<u16> for ShardSet {
    fn from_iter<I: IntoIterator<Item = u16>>(iter: I) -> Self {
        let mut set = ShardSet::EMPTY;
        iter.into_iter().for_each(|s| set.insert(s));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

/// The name of one running relay: unique for each start of a process.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RelayId(Arc<str>);

impl RelayId {
    /// A new name that begins with `label`, for example a host name.
    pub fn new(label: &str) -> Self {
        let label: String = label
            .chars()
            .filter(|c| c.is_ascii_alphanumeric() || "-_.".contains(*c))
            .take(64)
            .collect();
        let unique = uuid::Uuid::new_v4().simple().to_string();
        Self(Arc::from(format!("{label}:{}", &unique[..12])))
    }

    /// A name as it was stored.
    pub fn stored(name: &str) -> Self {
        Self(Arc::from(name))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RelayId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// One (queue, shard).
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ShardRef {
    /// The queue.
    pub queue: Arc<str>,
    /// The shard.
    pub shard: u16,
}

/// Who is there and who owns what, as the store sees it now.
#[derive(Debug, Clone, Default)]
pub struct Survey {
    /// Live relays and the queues that each can serve.
    pub members: Vec<(RelayId, Vec<Arc<str>>)>,
    /// Owned shards of the queues asked for. `alive` is whether the owner's lease still runs.
    pub owned: Vec<Owned>,
}

/// One owned shard in a [`Survey`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Owned {
    /// Which.
    pub shard: ShardRef,
    /// By whom.
    pub owner: RelayId,
    /// Under which fencing number.
    pub epoch: i64,
    /// Whether the owner's lease still runs.
    pub alive: bool,
}

/// A shard that was just taken.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Taken {
    /// Which.
    pub shard: ShardRef,
    /// The fencing number, higher than any before for this shard.
    pub epoch: i64,
    /// The previous owner did not give it back: it died, and may have died of a message.
    pub from_dead: bool,
}

/// A request for due rows of one queue.
#[derive(Debug, Clone)]
pub struct Want<'a> {
    /// The queue.
    pub queue: &'a str,
    /// The shards that the relay owns in it.
    pub shards: ShardSet,
    /// Only rows numbered above this.
    pub after: i64,
    /// At most this many rows.
    pub limit: usize,
    /// At most this many bytes, by [`RawRow::weight`]; but one row, however large.
    pub bytes: usize,
}

/// The answer to a read.
#[derive(Debug)]
pub struct Read {
    /// For each want, in its order: rows by ascending number.
    pub rows: Vec<Vec<RawRow>>,
    /// For each want, in its order: how far it was answered, in the snapshot that gave its rows.
    pub reach: Vec<Reach>,
    /// What the snapshot of this read says about unfinished transactions.
    pub horizon: Horizon,
}

/// The answer to [`Store::read_waiting`].
#[derive(Debug, Default)]
pub struct Waiting {
    /// For each want, in its order: retries and scheduled rows whose time has come.
    pub rows: Vec<Vec<RawRow>>,
    /// Queues that an operator, or the relay itself, has paused.
    pub paused: Vec<String>,
}

/// The answer to [`Store::read_lanes`].
#[derive(Debug, Default)]
pub struct Held {
    /// By number.
    pub rows: Vec<RawRow>,
    /// There are more than were allowed to come: lanes may have fewer rows here, or none.
    pub cut: bool,
}

/// Where a search for lanes goes on: after this one. Only the store that gave it understands it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LaneCursor {
    /// The queue of the lane.
    pub queue: String,
    /// The lane, in the store's own words.
    pub lane: String,
}

/// The answer to [`Store::runnable_lanes`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Runnable {
    /// Aggregates that nothing holds back, each with the place of its want.
    pub lanes: Vec<(usize, Aggregate)>,
    /// Where the search goes on. Absent when it has come to the end.
    pub next: Option<LaneCursor>,
}

/// Which queues there is work in, as far as the store can tell cheaply; queues of others too.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupied {
    /// Queues with rows that nobody has put aside: what [`Store::read`] looks for.
    pub new: Vec<String>,
    /// Queues with retries and scheduled rows, at least those with some that are due.
    pub due: Vec<String>,
    /// Queues with lanes that wait for a retry or a parked message, or that nothing holds back.
    pub held: Vec<String>,
    /// Queues that are paused.
    pub paused: Vec<String>,
}

/// Under which ownership a change is made.
#[derive(Debug, Clone)]
pub struct Fence {
    /// The relay.
    pub relay: RelayId,
    /// The queue.
    pub queue: Arc<str>,
    /// The shards concerned and their fencing numbers, ascending by shard.
    pub shards: Vec<(u16, i64)>,
}

/// A row to be tried again later. Whoever reschedules has survived the attempt: the count of
/// crashes goes back to zero.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Which row.
    pub row: RowKey,
    /// From now, by the database's clock.
    pub delay: Duration,
    /// Failed attempts, this one included.
    pub attempts: u32,
    /// Why it failed.
    pub code: Code,
    /// The error in words.
    pub error: String,
}

/// A row to be parked.
#[derive(Debug, Clone)]
pub struct Park {
    /// Which row.
    pub row: RowKey,
    /// Failed attempts.
    pub attempts: u32,
    /// Why.
    pub code: Code,
    /// The error in words.
    pub error: String,
    /// Later messages of its aggregate wait until it is settled or ignored.
    pub hold: bool,
    /// A redrive needs a person's confirmation.
    pub confirm: bool,
    /// A message to enqueue in the same transaction: the compensation.
    pub follow_up: Option<Message>,
}

impl Park {
    /// The compensation with its key: a message that is given up twice is compensated once.
    pub fn keyed_follow_up(&self) -> Option<Keyed> {
        let message = self.follow_up.clone()?;
        let key = Some(("follow-up".to_owned(), message.id.to_string()));
        Some(Keyed { message, key })
    }
}

/// A row of the unrouted queue, to be replaced by one copy for each destination.
#[derive(Debug, Clone)]
pub struct Reroute {
    /// Which row.
    pub row: RowKey,
    /// The queue and the message id of each copy, in order.
    pub copies: Vec<(MessageId, String)>,
}

/// What a relay has to say about rows of one queue, applied as one transaction.
#[derive(Debug, Clone, Default)]
pub struct Settlement {
    /// Delivered: leave the outbox. Ascending order of delivery.
    pub sent: Vec<RowKey>,
    /// Move sent rows to the history instead of forgetting them.
    pub keep_sent: bool,
    /// All sent rows were read as new, so none of them has been redriven.
    pub fresh: bool,
    /// To be tried again.
    pub retry: Vec<Retry>,
    /// Wait behind an earlier row of their aggregate.
    pub hold: Vec<RowKey>,
    /// Not due yet, to be delivered later.
    pub schedule: Vec<RowKey>,
    /// No route wants them: to be looked at again after a while, by the database's clock, under the
    /// code [`Code::NO_ROUTE`]. They hold nobody back.
    pub defer: Vec<(RowKey, Duration)>,
    /// Parked.
    pub park: Vec<Park>,
    /// Replaced by copies in other queues.
    pub reroute: Vec<Reroute>,
}

impl Settlement {
    /// Whether there is nothing to say.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of rows concerned.
    pub fn len(&self) -> usize {
        self.sent.len()
            + self.retry.len()
            + self.hold.len()
            + self.schedule.len()
            + self.defer.len()
            + self.park.len()
            + self.reroute.len()
    }

    /// Whether it holds only deliveries, the common case that stores make fast.
    pub fn only_sent(&self) -> bool {
        self.len() == self.sent.len()
    }

    /// Every row concerned.
    pub fn rows(&self) -> impl Iterator<Item = &RowKey> + '_ {
        let plain = self.sent.iter().chain(&self.hold).chain(&self.schedule);
        plain
            .chain(self.retry.iter().map(|r| &r.row))
            .chain(self.defer.iter().map(|d| &d.0))
            .chain(self.park.iter().map(|p| &p.row))
            .chain(self.reroute.iter().map(|r| &r.row))
    }

    /// Splits it in two, to be applied one after the other. Of an aggregate, what was delivered is in
    /// no later half than what failed or waits.
    pub fn split(mut self) -> (Settlement, Settlement) {
        fn take<T>(from: &mut Vec<T>, room: &mut usize) -> Vec<T> {
            let n = from.len().min(*room);
            *room -= n;
            from.drain(..n).collect()
        }
        let mut room = self.len() / 2;
        let first = Settlement {
            keep_sent: self.keep_sent,
            fresh: self.fresh,
            sent: take(&mut self.sent, &mut room),
            reroute: take(&mut self.reroute, &mut room),
            defer: take(&mut self.defer, &mut room),
            park: take(&mut self.park, &mut room),
            retry: take(&mut self.retry, &mut room),
            hold: take(&mut self.hold, &mut room),
            schedule: take(&mut self.schedule, &mut room),
        };
        (first, self)
    }

    /// Keeps only rows of these shards.
    #[must_use]
    pub fn restrict(&self, held: ShardSet) -> Settlement {
        let mut ours = self.clone();
        ours.retain(|row| held.contains(row.shard));
        ours
    }

    /// Keeps only these rows.
    pub fn retain(&mut self, keep: impl Fn(&RowKey) -> bool) {
        self.sent.retain(&keep);
        self.hold.retain(&keep);
        self.schedule.retain(&keep);
        self.retry.retain(|r| keep(&r.row));
        self.defer.retain(|d| keep(&d.0));
        self.park.retain(|p| keep(&p.row));
        self.reroute.retain(|r| keep(&r.row));
    }
}

/// The answer to a settlement.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// Shards whose ownership was lost: nothing was changed for them.
    pub lost: Vec<u16>,
    /// The transaction id of the settlement, where the store has comparable ones.
    pub stamp: Option<u64>,
}

/// How long things that are over stay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retention {
    /// Sent and cancelled messages in the history.
    pub history: Duration,
    /// Parked messages that were delivered after a redrive, or ignored.
    pub parked: Duration,
    /// Keys of tasks and ids posted to the API, by which a repeat is recognised.
    pub ledger: Duration,
    /// Rows removed in one go.
    pub batch: u32,
}

impl Default for Retention {
    fn default() -> Self {
        Self {
            history: Duration::from_secs(7 * 86_400),
            parked: Duration::from_secs(30 * 86_400),
            ledger: Duration::from_secs(30 * 86_400),
            batch: 1_000,
        }
    }
}

/// What came of enqueueing one message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Enqueued {
    /// Stored, for the first time.
    First(MessageId),
    /// Its key was used before: nothing was stored. The id is that of the first message.
    Duplicate(MessageId),
}

impl Enqueued {
    /// The id of the message that is, or was, delivered.
    pub fn id(&self) -> MessageId {
        match self {
            Enqueued::First(id) | Enqueued::Duplicate(id) => *id,
        }
    }

    /// Whether this call stored it.
    pub fn is_first(&self) -> bool {
        matches!(self, Enqueued::First(_))
    }
}

/// A message with the key by which a repeat is recognised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keyed {
    /// The message.
    pub message: Message,
    /// (scope, key): unique for the life of the ledger.
    pub key: Option<(String, String)>,
}

impl From<Message> for Keyed {
    fn from(message: Message) -> Self {
        Self { message, key: None }
    }
}

/// What may go wrong in a store, and what the caller may do about it.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Nobody answers. Nothing is known to have changed: try again later.
    #[error("the database cannot be reached")]
    Unreachable(#[source] BoxError),
    /// A lock or a deadlock stood in the way: try again.
    #[error("the database is busy")]
    Busy(#[source] BoxError),
    /// The disk is full or the database is read-only: nothing was written; an operator must help.
    #[error("the database cannot be written: {0}")]
    NotWritable(String, #[source] BoxError),
    /// The tables are not there.
    #[error("the tables of Counterfoil are missing: run `counterfoil migrate`")]
    SchemaMissing,
    /// The tables are older than this program.
    #[error(
        "the schema is at version {found} and this program needs {needed}: run `counterfoil migrate`"
    )]
    SchemaTooOld {
        /// The version that was found.
        found: i64,
        /// The version that is needed.
        needed: i64,
    },
    /// The tables are for a newer program.
    #[error(
        "the schema is at version {found} and allows readers from version {oldest_reader}; \
         this program is version {ours}: upgrade the program"
    )]
    SchemaTooNew {
        /// The version that was found.
        found: i64,
        /// The oldest reader that the schema allows.
        oldest_reader: i64,
        /// The version of this program.
        ours: i64,
    },
    /// The server is too old or of another kind.
    #[error("{found} is not supported: {needed} is needed")]
    Unsupported {
        /// What answered.
        found: String,
        /// What is needed.
        needed: &'static str,
    },
    /// The message itself cannot be stored.
    #[error(transparent)]
    Message(#[from] MessageError),
    /// The transaction is already broken: nothing of it can be committed.
    #[error("the transaction cannot be committed: {0}")]
    Doomed(String),
    /// Nothing is there under this name.
    #[error("{0}")]
    NotFound(String),
    /// Anything else the database said.
    #[error("the database answered with an error")]
    Database(#[source] BoxError),
}

/// What the caller of a failed operation may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Disposition {
    /// Try again.
    Retry,
    /// Give up and tell somebody.
    Fail,
}

impl StoreError {
    /// What the caller may do.
    pub fn disposition(&self) -> Disposition {
        match self {
            StoreError::Unreachable(_) | StoreError::Busy(_) | StoreError::NotWritable(..) => {
                Disposition::Retry
            }
            _ => Disposition::Fail,
        }
    }

    /// The error and its sources in one line.
    pub fn one_line(&self) -> String {
        let mut text = self.to_string();
        let mut source = std::error::Error::source(self);
        while let Some(error) = source {
            let part = error.to_string();
            if !text.contains(&part) {
                text.push_str(": ");
                text.push_str(&part);
            }
            source = error.source();
        }
        text.replace('\n', " ")
    }
}

/// The result of a store's method.
pub type Result<T, E = StoreError> = std::result::Result<T, E>;

/// Tells that something may have been committed.
#[async_trait]
pub trait Wake: Send {
    /// Returns when somebody committed something, or when it cannot be excluded.
    async fn wait(&mut self) -> Result<()>;
}

/// The outbox as the engine sees it.
///
/// All times are the database's. All methods may be called at the same time.
#[async_trait]
pub trait Store: Send + Sync + 'static {
    /// The product, its version and place, for people.
    fn describe(&self) -> String;

    /// The number of shards, fixed for the life of the tables.
    fn shards(&self) -> u16;

    /// An operation was not answered in time, and is about to be dropped. The connections that are
    /// open now are not used again: what silenced one has silenced the others too, and none of them
    /// would ever tell. Stores without connections have nothing to do.
    fn hang_up(&self) {}

    /// Checks that the server can be used and that the schema fits this program.
    async fn check(&self) -> Result<()>;

    /// Creates or upgrades the tables. Several processes may do so at the same time.
    async fn migrate(&self) -> Result<()>;

    /// Announces a relay, which lives for `lease` from now and can serve these queues.
    async fn join(&self, relay: &RelayId, queues: &[Arc<str>], lease: Duration) -> Result<()>;

    /// Prolongs the relay's lease to `lease` from now. Answers false, and prolongs nothing, when
    /// the lease has run out meanwhile: its shards may have new owners, and it must join anew
    /// under another name.
    async fn heartbeat(&self, relay: &RelayId, lease: Duration) -> Result<bool>;

    /// Who lives, and who owns which shards of these queues.
    async fn survey(&self, relay: &RelayId, queues: &[Arc<str>]) -> Result<Survey>;

    /// Notes how a consumer is, in place of what it said before. It counts as alive for the report's
    /// lease from now. Others that have been silent for a day are forgotten.
    async fn report_consumer(&self, report: ConsumerReport<'_>) -> Result<()>;

    /// Forgets a consumer that has ended.
    async fn forget_consumer(&self, member: &RelayId) -> Result<()>;

    /// The names of the relays that live: of the members of a survey, without anything else.
    async fn members(&self) -> Result<Vec<RelayId>>;

    /// Takes shards that nobody owns or whose owner's lease has run out. Others are left out of
    /// the answer. The fencing number of a taken shard grows.
    async fn take(&self, relay: &RelayId, wanted: &[ShardRef]) -> Result<Vec<Taken>>;

    /// Gives shards back. What is not owned by the relay is passed over.
    async fn give(&self, relay: &RelayId, given: &[ShardRef]) -> Result<()>;

    /// Gives everything back and forgets the relay.
    async fn leave(&self, relay: &RelayId) -> Result<()>;

    /// Reads rows that nobody has put aside, in ascending order of number, from one snapshot for
    /// all wants. Rows of paused queues are left out; so are the rows numbered in `skip`.
    ///
    /// A row is returned whatever stands in it. `early` and `behind` are told for each. Where a want's
    /// limit or bytes end the answer before its rows end, the reach is [`Reach::Limit`].
    async fn read(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Read>;

    /// Reads retries and scheduled rows whose time has come, earliest first, and tells which
    /// queues are paused. `after` is not used. Rows in `skip` are left out.
    async fn read_waiting(&self, wants: &[Want<'_>], skip: &[i64]) -> Result<Waiting>;

    /// Reads held rows of these aggregates, at most `per_lane` of each, in the order of the
    /// aggregate, leaving out lanes that a retry or a parked message still blocks. Of all of them the
    /// lowest come that are at most `bytes` together; but one, however large.
    async fn read_lanes(
        &self,
        queue: &str,
        lanes: &[Aggregate],
        per_lane: usize,
        bytes: usize,
    ) -> Result<Held>;

    /// Searches these queues for aggregates with held rows that nothing holds back any more. `after`
    /// and `limit` of the wants are not used.
    ///
    /// Looks at no more than `at_most` lanes, free or not, from the one after `from` on, so that
    /// however many wait, no search takes long. Whoever goes on with what [`Runnable::next`] says until there
    /// is no next has looked at every lane that was there all the time.
    async fn runnable_lanes(
        &self,
        wants: &[Want<'_>],
        from: Option<&LaneCursor>,
        at_most: usize,
    ) -> Result<Runnable>;

    /// Which queues there is work in. Queues without any row cost nothing here, however many there
    /// are; so a relay with many queues asks this first.
    async fn occupied(&self) -> Result<Occupied>;

    /// Counts one more crash suspicion for a row, durably, before it is tried alone.
    /// Absent when the row is gone or the shard is lost.
    async fn suspect(&self, fence: &Fence, row: &RowKey) -> Result<Option<u32>>;

    /// Applies a settlement in one transaction that first locks the ownership of each shard
    /// concerned and compares its fencing number. Rows of lost shards are left as they are.
    ///
    /// A row that is not there any more (cancelled meanwhile) is passed over, and so is another one
    /// that stands under its number: a row is known by its number and the id that stands in it.
    /// A compensation is enqueued only with a row that is parked. Sending a redriven message closes
    /// its parked record; parking it again reopens that record.
    async fn settle(&self, fence: &Fence, settlement: &Settlement) -> Result<Settled>;

    /// Enqueues in a transaction of its own, for callers without a database.
    async fn enqueue(&self, messages: &[Keyed]) -> Result<Vec<Enqueued>>;

    /// Notes since when nobody answers at the queue's destination, or that somebody does again.
    /// Answers since when it has been so.
    async fn note_unavailable(&self, queue: &str, unavailable: bool) -> Result<Option<Duration>>;

    /// What is remembered of breakers, in no order.
    async fn breakers(&self) -> Result<Vec<Kept>>;

    /// Remembers one thing about a breaker, and leaves the other as it is: what an operator wants
    /// is not forgotten because a process tells that its breaker has closed.
    async fn remember_breaker(&self, destination: &str, what: &Remember) -> Result<()>;

    /// Makes messages that no route wanted due now, at most `limit` of them; answers how many. Others
    /// that are scheduled stay as they are.
    async fn look_again(&self, limit: u32) -> Result<u64>;

    /// Pauses a queue on behalf of the relay or an operator. Pausing twice keeps the first reason.
    async fn pause(&self, queue: &str, reason: &str, by: &str) -> Result<()>;

    /// Removes at most one batch of each kind of what is over, the events of a parked message with
    /// it. What is pending or on its way stays, and so does what others wait for. Answers how many
    /// entries went.
    async fn sweep(&self, retention: &Retention) -> Result<u64>;

    /// Wakes relays in other processes, where the store can.
    async fn announce(&self) -> Result<()>;

    /// Listens for commits of other processes, where the store can.
    async fn listen(&self) -> Result<Option<Box<dyn Wake>>>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_set_holds_the_highest_shard() {
        let set: ShardSet = [0, 63].into_iter().collect();

        assert!(set.contains(63) && set.contains(0) && !set.contains(1) && !set.contains(64));
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63]);
        assert!(set.bits() < 0, "the highest bit is the sign");
    }

    #[test]
    fn an_error_is_one_line_with_its_sources() {
        let error = StoreError::Unreachable("connection\nrefused".into());

        assert_eq!(
            error.one_line(),
            "the database cannot be reached: connection refused"
        );
    }
}
