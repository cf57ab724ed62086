//! The receiver's book: every offer in the order of its arrival, and what was answered.
//!
//! # Promise
//! What stands here decides what has been delivered. A verdict is written before it is sent, so a
//! relay never knows more than the book. How an offer is answered is the test's to say: at once,
//! after a while, or when the test lets it go.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};

use crate::wait::PATIENCE;
use crate::wire::{Item, Verdict};

/// How an offer is to be answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Manner {
    /// At once.
    Now(Verdict),
    /// After this time.
    After(Duration, Verdict),
    /// When [`Book::release`] says so.
    Hold,
}

/// A verdict and when it was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Decided {
    /// What the receiver made of it.
    pub verdict: Verdict,
    /// The order of all events of the book.
    pub tick: u64,
    /// Since the book was begun.
    pub at: Duration,
}

/// One message that a relay has offered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Offer {
    /// The order of all events of the book.
    pub tick: u64,
    /// Since the book was begun.
    pub at: Duration,
    /// The process that offered it.
    pub relay: String,
    /// The message.
    pub item: Item,
    /// The answer, when there was one.
    pub decided: Option<Decided>,
    /// When the answer went out.
    pub replied: Option<Duration>,
    /// The receiver hung up instead of answering.
    pub cut: bool,
    /// The relay has said that the answer arrived.
    pub seen: bool,
}

impl Offer {
    /// Whether this offer is a delivery.
    pub fn stored(&self) -> bool {
        self.decided.is_some_and(|d| d.verdict == Verdict::Stored)
    }

    /// Whether nothing has been answered.
    pub fn open(&self) -> bool {
        self.decided.is_none()
    }
}

type Manners = Box<dyn FnMut(&Offer) -> Manner + Send>;

/// The book of one receiver.
pub struct Book {
    begun: Instant,
    pages: Mutex<Pages>,
    changed: watch::Sender<u64>,
}

struct Pages {
    offers: Vec<Offer>,
    held: BTreeMap<usize, oneshot::Sender<Verdict>>,
    manners: Manners,
    tick: u64,
}

impl Pages {
    fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }
}

impl Default for Book {
    fn default() -> Self {
        Self::new()
    }
}

impl Book {
    /// An empty book whose receiver stores everything at once.
    pub fn new() -> Self {
        let manners: Manners = Box::new(|_| Manner::Now(Verdict::Stored));
        let pages = Pages {
            offers: Vec::new(),
            held: BTreeMap::new(),
            manners,
            tick: 0,
        };
        Self {
            begun: Instant::now(),
            pages: Mutex::new(pages),
            changed: watch::Sender::new(0),
        }
    }

    /// The time of the book.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// Says how offers are answered from now on. Offers that are held stay held.
    pub fn answer(&self, manners: impl FnMut(&Offer) -> Manner + Send + 'static) {
        self.pages().manners = Box::new(manners);
    }

    /// From now on everything is stored at once.
    pub fn store_all(&self) {
        self.answer(|_| Manner::Now(Verdict::Stored));
    }

    /// From now on nothing is answered before [`Book::release`].
    pub fn hold_all(&self) {
        self.answer(|_| Manner::Hold);
    }

    /// Answers held offers, those for which there is a verdict.
    pub fn release(&self, verdict: impl Fn(&Offer) -> Option<Verdict>) {
        let mut pages = self.pages();
        let held = std::mem::take(&mut pages.held);
        for (number, sender) in held {
            match verdict(&pages.offers[number]) {
                // Nobody there: the relay has gone and will never hear it.
                Some(_) if sender.is_closed() => {}
                Some(verdict) => {
                    self.decide(&mut pages, number, verdict);
                    let _ = sender.send(verdict);
                }
                None => {
                    pages.held.insert(number, sender);
                }
            }
        }
        drop(pages);
        self.tell();
    }

    /// Stores everything that is held, and everything from now on.
    pub fn store_held_and_all(&self) {
        self.store_all();
        self.release(|_| Some(Verdict::Stored));
    }

    /// A relay offers a message. Answers the number of the offer and the verdict.
    pub async fn offer(&self, relay: &str, item: Item) -> (usize, Verdict) {
        let (number, manner, held) = self.write(relay, item);
        match (manner, held) {
            (Manner::After(delay, verdict), _) => {
                tokio::time::sleep(delay).await;
                self.decide(&mut self.pages(), number, verdict);
                self.tell();
                (number, verdict)
            }
            (Manner::Hold, Some(released)) => {
                let verdict = released.await.unwrap_or(Verdict::HungUp);
                (number, verdict)
            }
            (Manner::Now(verdict), _) => (number, verdict),
            (Manner::Hold, None) => (number, Verdict::HungUp),
        }
    }

    fn write(
        &self,
        relay: &str,
        item: Item,
    ) -> (usize, Manner, Option<oneshot::Receiver<Verdict>>) {
        let mut pages = self.pages();
        let number = pages.offers.len();
        let offer = Offer {
            tick: pages.tick(),
            at: self.now(),
            relay: relay.to_owned(),
            item,
            decided: None,
            replied: None,
            cut: false,
            seen: false,
        };
        let manner = (pages.manners)(&offer);
        pages.offers.push(offer);
        let mut held = None;
        match manner {
            Manner::Now(verdict) => self.decide(&mut pages, number, verdict),
            Manner::After(..) => {}
            Manner::Hold => {
                let (sender, receiver) = oneshot::channel();
                pages.held.insert(number, sender);
                held = Some(receiver);
            }
        }
        drop(pages);
        self.tell();
        (number, manner, held)
    }

    fn decide(&self, pages: &mut Pages, number: usize, verdict: Verdict) {
        let tick = pages.tick();
        pages.offers[number].decided = Some(Decided {
            verdict,
            tick,
            at: self.now(),
        });
    }

    /// The answers to these offers have gone out.
    pub fn replied(&self, numbers: &[usize]) {
        let now = self.now();
        self.mark(numbers, |offer| offer.replied = Some(now));
    }

    /// The receiver has hung up, and these offers have no answer.
    pub fn cut(&self, numbers: &[usize]) {
        self.mark(numbers, |offer| offer.cut = true);
    }

    /// The relay has got the answers to these offers.
    pub fn seen(&self, numbers: &[usize]) {
        self.mark(numbers, |offer| offer.seen = true);
    }

    fn mark(&self, numbers: &[usize], mark: impl Fn(&mut Offer)) {
        let mut pages = self.pages();
        numbers.iter().for_each(|n| mark(&mut pages.offers[*n]));
        drop(pages);
        self.tell();
    }

    /// Everything that was offered so far.
    pub fn offers(&self) -> Vec<Offer> {
        self.pages().offers.clone()
    }

    /// Waits until the book shows something.
    ///
    /// # Panics
    /// When it does not in time.
    pub async fn until<T>(&self, what: &str, look: impl Fn(&[Offer]) -> Option<T>) -> T {
        match self.within(PATIENCE, look).await {
            Some(found) => found,
            None => panic!(
                "waited {PATIENCE:?} for this: {what}. The book:\n{}",
                self.last_pages()
            ),
        }
    }

    /// Waits until the book shows something, or the time is over.
    pub async fn within<T>(
        &self,
        limit: Duration,
        look: impl Fn(&[Offer]) -> Option<T>,
    ) -> Option<T> {
        let mut changed = self.changed.subscribe();
        let waiting = async {
            loop {
                changed.mark_unchanged();
                if let Some(found) = look(&self.pages().offers) {
                    return found;
                }
                // The sender lives as long as the book.
                let _ = changed.changed().await;
            }
        };
        tokio::time::timeout(limit, waiting).await.ok()
    }

    fn last_pages(&self) -> String {
        let pages = self.pages();
        let skip = pages.offers.len().saturating_sub(20);
        pages.offers[skip..]
            .iter()
            .map(|o| format!("{o:?}\n"))
            .collect()
    }

    fn tell(&self) {
        self.changed.send_modify(|n| *n += 1);
    }

    fn pages(&self) -> MutexGuard<'_, Pages> {
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
