//! A short history inside this process: real engines on a store in memory, one of which dies and
//! one of which sleeps past its lease.
//!
//! # Promise
//! On a store without a fault the checker finds nothing. On a store with a fault (see
//! [`crate::broken`]) the history is such that the fault shows.
//!
//! A relay has a thread and a runtime of its own: dropping the runtime is a death, and blocking the
//! thread is a pause.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::desk::{Desk, Filter};
use counterfoil_core::policy::{Backoff, backoff::Jitter};
use counterfoil_core::{Capabilities, Delivery, Destination, Message, MessageId, Outcome};
use counterfoil_engine::{EngineBuilder, QueueSpec, Settings};
use counterfoil_testkit::memory::MemoryStore;
use tokio::sync::{mpsc, watch};

use crate::app::Fact;
use crate::book::{Book, Manner, Offer};
use crate::broken::{BrokenStore, Fault, Reported};
use crate::checker::Evidence;
use crate::site::{Place, Standing};
use crate::wire::{Item, Verdict};
use crate::{QUEUE, journal, wait};

/// Short, so that a history takes seconds; what it costs when the machine is slow is a change of
/// owner more.
const LEASE: Duration = Duration::from_millis(600);
/// How long a message waits that the first relay could not deliver. Longer than any takeover takes,
/// however slow the machine: the store's clock is moved when it has been long enough.
const AFTER_FIRST: Duration = Duration::from_secs(300);
/// How long to wait for what a fault may prevent.
const LIMIT: Duration = Duration::from_secs(20);

/// Plays the history that follows from the seed, and answers what came of it.
pub async fn play(seed: u64, fault: Fault) -> Evidence {
    let mut play = Play::new(seed, fault);
    play.commit(60).await;
    play.first_relay_dies().await;
    play.second_relay_sleeps().await;
    play.come_to_rest().await;
    play.evidence().await
}

struct Play {
    rng: fastrand::Rng,
    fault: Fault,
    store: MemoryStore,
    book: Arc<Book>,
    versions: BTreeMap<u32, i64>,
    committed: Vec<Fact>,
    relays: Vec<Relay>,
}

impl Play {
    fn new(seed: u64, fault: Fault) -> Self {
        Self {
            rng: fastrand::Rng::with_seed(seed),
            fault,
            store: MemoryStore::new(),
            book: Arc::new(Book::new()),
            versions: BTreeMap::new(),
            committed: Vec::new(),
            relays: Vec::new(),
        }
    }

    async fn commit(&mut self, messages: usize) {
        for _ in 0..messages {
            let aggregate = self.rng.u32(0..12);
            let version = self.versions.entry(aggregate).or_insert(0);
            *version += 1;
            let message =
                Message::json("account", aggregate, "Moved", &version).expect("a number is JSON");
            let message = message.queue(QUEUE).version(*version);
            let mut tx = self.store.begin();
            tx.enqueue(std::slice::from_ref(&message)).await.unwrap();
            tx.commit().await.unwrap();
            self.committed.push(Fact {
                id: message.id,
                queue: QUEUE.to_owned(),
                aggregate: aggregate.to_string(),
                version: *version,
            });
        }
    }

    /// Some attempts fail; which ones follows from the seed.
    fn answer_with_failures(&mut self) {
        let mut rng = self.rng.fork();
        self.book.answer(move |_| {
            Manner::Now(if rng.u8(..) < 25 {
                Verdict::Failed
            } else {
                Verdict::Stored
            })
        });
        self.book.release(|_| Some(Verdict::Stored));
    }

    fn start(&mut self, label: &'static str) {
        let store = Arc::new(BrokenStore::new(Arc::new(self.store.clone()), self.fault));
        self.relays
            .push(Relay::start(label, store, Arc::clone(&self.book)));
    }

    async fn stored_by(&self, label: &str, count: usize) {
        let enough = |offers: &[Offer]| {
            let stored = offers
                .iter()
                .filter(|o| o.relay == label && o.stored())
                .count();
            (stored >= count).then_some(())
        };
        self.look(enough).await;
    }

    async fn open_offers(&self, label: &str) -> BTreeSet<MessageId> {
        let open = |offers: &[Offer]| {
            let open: BTreeSet<MessageId> = offers
                .iter()
                .filter(|o| o.relay == label && o.open())
                .map(|o| o.item.id)
                .collect();
            (!open.is_empty()).then_some(open)
        };
        self.look(open).await.unwrap_or_default()
    }

    /// It dies with offers under way, and with lanes that wait behind a failed message.
    async fn first_relay_dies(&mut self) {
        self.several_lanes_fail().await;
        self.relays.remove(0).kill();
        self.answer_with_failures();
        self.start("second");
        self.stored_by("second", 10).await;
        if self.fault == Fault::ForgetsHolds {
            self.look(overtaken).await;
        }
    }

    /// Some messages are stored, then five lanes of the twelve fail, and the others stay open.
    async fn several_lanes_fail(&mut self) {
        let mut offered = 0;
        self.book.answer(move |_| {
            offered += 1;
            match offered {
                1..=10 => Manner::Now(Verdict::Stored),
                11..=15 => Manner::Now(Verdict::Failed),
                _ => Manner::Hold,
            }
        });
        self.start("first");
        self.open_offers("first").await;
        self.reported(|reported| reported.failed >= 5).await;
    }

    /// It sleeps with offers under way. When it wakes up, they have been stored; but the third
    /// relay, which owns them now, is told the opposite.
    async fn second_relay_sleeps(&mut self) {
        self.book.hold_all();
        self.commit(30).await;
        let asleep = self.open_offers("second").await;
        let gate = self.relays[0].freeze().await;
        // Past its lease by its own clock, and by the store's.
        tokio::time::sleep(LEASE).await;
        self.store.clock().advance(AFTER_FIRST);
        self.start("third");
        let taken_over = self.offered_by_third(&asleep).await;

        self.book
            .release(|o| (o.relay == "second").then_some(Verdict::Stored));
        gate.open();
        self.reported(|reported| {
            taken_over
                .iter()
                .all(|(seq, _)| reported.sent.contains(seq))
        })
        .await;

        let refused: BTreeSet<MessageId> = taken_over.into_iter().map(|(_, id)| id).collect();
        self.book
            .release(|o| refused.contains(&o.item.id).then_some(Verdict::Refused));
        self.answer_with_failures();
    }

    /// Waits until the third relay offers one of these. The others that it offers are stored.
    async fn offered_by_third(&self, wanted: &BTreeSet<MessageId>) -> Vec<(i64, MessageId)> {
        let deadline = tokio::time::Instant::now() + LIMIT;
        while tokio::time::Instant::now() < deadline {
            let open = self.open_offers("third").await;
            if open.is_empty() {
                break;
            }
            if !open.is_disjoint(wanted) {
                let offers = self.book.offers();
                let both = offers
                    .iter()
                    .filter(|o| open.contains(&o.item.id) && wanted.contains(&o.item.id));
                return both.map(|o| (o.item.seq, o.item.id)).collect();
            }
            self.book
                .release(|o| open.contains(&o.item.id).then_some(Verdict::Stored));
        }
        Vec::new()
    }

    /// Waits until the oldest relay has told the store something.
    async fn reported(&self, enough: impl FnMut(&Reported) -> bool) {
        let mut reported = self.relays[0].reported.clone();
        let _ = tokio::time::timeout(LIMIT, reported.wait_for(enough)).await;
    }

    /// Waits until the book shows something, or nothing more can come.
    async fn look<T>(&self, look: impl Fn(&[Offer]) -> Option<T>) -> Option<T> {
        let nothing_left = async {
            let mut idle = 0;
            while idle < 10 {
                tokio::time::sleep(LEASE / 6).await;
                let pending = self.store.outbox(&Filter::default()).await.unwrap();
                idle = if pending.is_empty() { idle + 1 } else { 0 };
            }
        };
        tokio::select! {
            found = self.book.within(LIMIT, look) => found,
            () = nothing_left => None,
        }
    }

    /// Puts back what was parked until everything has arrived, or does not get any further.
    async fn come_to_rest(&mut self) {
        self.book.store_held_and_all();
        wait::within(LIMIT, || async {
            let parked = self.store.parked(&Filter::default()).await.unwrap();
            let ids: Vec<String> = parked
                .into_iter()
                .filter(|p| p.state == "pending")
                .map(|p| p.id)
                .collect();
            self.store.redrive(&ids, true, "simulation").await.unwrap();
            let pending = self.store.outbox(&Filter::default()).await.unwrap();
            (ids.is_empty() && pending.is_empty()).then_some(())
        })
        .await;
        for relay in self.relays.drain(..) {
            relay.stop();
        }
    }

    async fn evidence(self) -> Evidence {
        let mut standings = Vec::new();
        for fact in &self.committed {
            let Some(shown) = self.store.show(&fact.id.to_string()).await.unwrap() else {
                continue;
            };
            let place = match shown.place {
                "outbox" => Place::Outbox(shown.entry.state),
                "parked" => Place::Parked(shown.entry.code.unwrap_or_default()),
                _ if shown.entry.state == "sent" => Place::Sent,
                _ => Place::Ended(shown.entry.state),
            };
            standings.push(Standing { id: fact.id, place });
        }
        let audit = self.store.audit().await.unwrap().findings(true);
        Evidence {
            committed: self.committed,
            offers: self.book.offers(),
            standings,
            audit,
        }
    }
}

/// The second relay has stored a message while an earlier one of its lane still waits.
fn overtaken(offers: &[Offer]) -> Option<()> {
    let stored: BTreeSet<MessageId> = offers
        .iter()
        .filter(|o| o.stored())
        .map(|o| o.item.id)
        .collect();
    let mut late = offers.iter().filter(|o| o.relay == "second" && o.stored());
    let waits_before = |late: &Offer| {
        offers.iter().any(|o| {
            o.relay == "first"
                && o.item.aggregate == late.item.aggregate
                && o.item.version < late.item.version
                && !stored.contains(&o.item.id)
        })
    };
    late.any(waits_before).then_some(())
}

enum Command {
    Freeze(Arc<Gate>),
    Kill,
    Stop,
}

/// A relay on a thread of its own.
struct Relay {
    commands: mpsc::UnboundedSender<Command>,
    reported: watch::Receiver<Reported>,
    thread: JoinHandle<()>,
}

impl Relay {
    fn start(label: &'static str, store: Arc<BrokenStore>, book: Arc<Book>) -> Self {
        let (commands, orders) = mpsc::unbounded_channel();
        let reported = store.reported();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .unwrap();
            runtime.block_on(live(label, store, book, orders));
        });
        Self {
            commands,
            reported,
            thread,
        }
    }

    fn order(&self, command: Command) {
        assert!(
            self.commands.send(command).is_ok(),
            "the relay has ended by itself"
        );
    }

    /// Stands still when this returns, until the gate is opened.
    async fn freeze(&self) -> Arc<Gate> {
        let gate = Arc::new(Gate::default());
        self.order(Command::Freeze(Arc::clone(&gate)));
        wait::until("the relay sleeps", || async {
            gate.somebody_waits().then_some(())
        })
        .await;
        gate
    }

    fn kill(self) {
        self.order(Command::Kill);
        self.thread.join().expect("the relay panicked");
    }

    fn stop(self) {
        self.order(Command::Stop);
        self.thread.join().expect("the relay panicked");
    }
}

async fn live(
    label: &'static str,
    store: Arc<BrokenStore>,
    book: Arc<Book>,
    mut orders: mpsc::UnboundedReceiver<Command>,
) {
    let mut queue = QueueSpec::new(QUEUE, Arc::new(Direct { label, book }));
    queue.backoff = match label {
        "first" => Backoff::new(AFTER_FIRST, AFTER_FIRST, 100)
            .unwrap()
            .with_jitter(Jitter::None),
        _ => Backoff::new(LEASE * 3, LEASE * 3, 100).unwrap(),
    };
    let settings = Settings {
        lease: LEASE,
        poll: Duration::from_millis(20),
        rescan: Duration::from_millis(100),
        keep_sent: true,
        label: label.to_owned(),
        ..Settings::default()
    };
    let engine = EngineBuilder::new(store)
        .settings(settings)
        .queue(queue)
        .start()
        .await
        .unwrap();
    loop {
        match orders.recv().await {
            Some(Command::Freeze(gate)) => gate.wait(),
            Some(Command::Stop) => return engine.stop().await,
            // Nothing runs any more when this returns: the runtime has no other thread.
            Some(Command::Kill) | None => return,
        }
    }
}

/// Blocks a thread until it is opened.
#[derive(Default)]
struct Gate {
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn wait(&self) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.0 = true;
        while !state.1 {
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn somebody_waits(&self) -> bool {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).0
    }

    fn open(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).1 = true;
        self.changed.notify_all();
    }
}

/// Offers messages to the book without any network.
struct Direct {
    label: &'static str,
    book: Arc<Book>,
}

#[async_trait]
impl Destination for Direct {
    fn describe(&self) -> String {
        "the book".into()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::single(4, None)
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        let mut outcomes = Vec::with_capacity(batch.len());
        for delivery in batch {
            let (number, verdict) = self.book.offer(self.label, Item::from(delivery)).await;
            self.book.seen(&[number]);
            outcomes.push(journal::outcome(verdict));
        }
        outcomes
    }
}
