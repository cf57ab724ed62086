//! What a subscription has: entries that wait for the caller, and entries that are with it.
//!
//! # Promise
//! An entry that Redis gave us is here once, from its arrival until it is settled or found to be
//! somebody else's. Nothing is handed out of a stream that is not ours any more.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Mutex, MutexGuard, PoisonError};

use counterfoil_core::source::{Arrival, SourceError, Tag};
use tokio::sync::Notify;
use tokio::time::Instant;

/// How we stand to one stream.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stand {
    /// It is somebody else's.
    Foreign,
    /// What others left is taken over first, from this cursor on.
    Catching(String),
    /// New entries are read.
    Flowing,
    /// Somebody else is to have it, once the caller has settled what it has.
    Leaving,
}

/// An entry that is pending with us.
#[derive(Debug)]
pub(crate) struct Held {
    /// Which stream.
    pub(crate) place: usize,
    /// Its number in the stream.
    pub(crate) id: String,
    pub(crate) arrival: Arrival,
    /// The caller has it.
    out: bool,
    /// The caller had it before, and gave it back.
    returned: bool,
}

/// The shared state of a subscription and its tasks.
pub(crate) struct Hold {
    inner: Mutex<Inner>,
    /// There is something for the caller.
    pub(crate) arrived: Notify,
    /// The caller wants something, or it is over.
    pub(crate) wanted: Notify,
}

/// What is behind the lock.
pub(crate) struct Inner {
    last_tag: u64,
    ready: VecDeque<Tag>,
    held: HashMap<Tag, Held>,
    known: HashSet<(usize, String)>,
    pub(crate) stands: Vec<Stand>,
    /// Streams that a read is under way for.
    pub(crate) reading: Vec<usize>,
    /// How many the caller asked for and did not get.
    pub(crate) asked: usize,
    /// Until then nobody takes our streams or entries.
    pub(crate) alive_until: Instant,
    pub(crate) over: Option<Over>,
}

/// Why nothing comes any more.
#[derive(Debug, Clone)]
pub(crate) enum Over {
    Closed,
    Unavailable(String),
    Refused(String),
    Failed(String),
}

impl Over {
    pub(crate) fn of(error: &SourceError) -> Self {
        match error {
            SourceError::Unavailable(text) => Over::Unavailable(text.clone()),
            SourceError::Refused(text) => Over::Refused(text.clone()),
            SourceError::Failed(source) => Over::Failed(source.to_string()),
            other => Over::Failed(other.to_string()),
        }
    }

    pub(crate) fn error(&self) -> SourceError {
        match self {
            Over::Closed => SourceError::Unavailable("the subscription is closed".into()),
            Over::Unavailable(text) => SourceError::Unavailable(text.clone()),
            Over::Refused(text) => SourceError::Refused(text.clone()),
            Over::Failed(text) => SourceError::Failed(text.clone().into()),
        }
    }
}

impl Hold {
    pub(crate) fn new(stands: Vec<Stand>, alive_until: Instant) -> Self {
        Self {
            inner: Mutex::new(Inner {
                last_tag: 0,
                ready: VecDeque::new(),
                held: HashMap::new(),
                known: HashSet::new(),
                stands,
                reading: Vec::new(),
                asked: 0,
                alive_until,
                over: None,
            }),
            arrived: Notify::new(),
            wanted: Notify::new(),
        }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Nothing comes any more. The first reason counts.
    pub(crate) fn end(&self, why: Over) {
        self.lock().over.get_or_insert(why);
        self.arrived.notify_one();
        self.wanted.notify_one();
    }

    /// Takes in what Redis gave us.
    pub(crate) fn deliver(&self, place: usize, entries: Vec<(String, Arrival)>) {
        let mut inner = self.lock();
        if !matches!(inner.stands[place], Stand::Catching(_) | Stand::Flowing) {
            // It stays pending, and whoever has the stream takes it over.
            return;
        }
        for (id, arrival) in entries {
            inner.add(place, id, arrival, false);
        }
        drop(inner);
        self.arrived.notify_one();
    }

    /// Hands one out again, to whoever asks next, behind the others.
    pub(crate) fn return_to_line(&self, held: Held) {
        let mut inner = self.lock();
        inner.known.remove(&(held.place, held.id.clone()));
        let mut arrival = held.arrival;
        arrival.deliveries = arrival.deliveries.map(|n| n.saturating_add(1));
        inner.add(held.place, held.id, arrival, true);
        drop(inner);
        self.arrived.notify_one();
    }
}

impl Inner {
    fn add(&mut self, place: usize, id: String, mut arrival: Arrival, returned: bool) {
        if !self.known.insert((place, id.clone())) {
            return;
        }
        self.last_tag += 1;
        arrival.tag = Tag(self.last_tag);
        self.ready.push_back(arrival.tag);
        let held = Held {
            place,
            id,
            arrival,
            out: false,
            returned,
        };
        self.held.insert(Tag(self.last_tag), held);
    }

    /// Hands out the next ones. When all of them were given back before, new ones are still asked
    /// for: what comes back again and again keeps nobody waiting.
    pub(crate) fn take(&mut self, max: usize) -> Vec<Arrival> {
        self.asked = max;
        let mut taken = Vec::new();
        while taken.len() < max {
            let Some(tag) = self.ready.pop_front() else {
                break;
            };
            if let Some(held) = self.held.get_mut(&tag) {
                held.out = true;
                if !held.returned {
                    self.asked = 0;
                }
                taken.push(held.arrival.clone());
            }
        }
        taken
    }

    /// The entry of a tag, which is not ours from now on. It is known until [`Self::forget`].
    pub(crate) fn settle(&mut self, tag: Tag) -> Option<Held> {
        let out = self.held.get(&tag).is_some_and(|held| held.out);
        if out { self.held.remove(&tag) } else { None }
    }

    /// An entry that was settled does not come again; if it does, it is taken in.
    pub(crate) fn forget(&mut self, held: &Held) {
        self.known.remove(&(held.place, held.id.clone()));
    }

    /// The numbers of all entries of a stream that we have.
    pub(crate) fn ids(&self, place: usize) -> Vec<String> {
        let here = self.held.values().filter(|held| held.place == place);
        here.map(|held| held.id.clone()).collect()
    }

    /// These are somebody else's.
    pub(crate) fn lose(&mut self, place: usize, ids: &[String]) {
        let lost: HashSet<&String> = ids.iter().collect();
        self.retain(|held| held.place != place || !lost.contains(&held.id));
    }

    /// The whole stream is somebody else's.
    pub(crate) fn lose_place(&mut self, place: usize) {
        self.retain(|held| held.place != place);
        self.stands[place] = Stand::Foreign;
    }

    /// Nothing more is read or handed out of a stream.
    pub(crate) fn begin_to_leave(&mut self, place: usize) {
        self.stands[place] = Stand::Leaving;
        self.retain(|held| held.place != place || held.out);
    }

    /// The streams that can be given up: nobody reads there, and the caller has nothing of them.
    pub(crate) fn left(&self) -> Vec<usize> {
        let leaving = self.stands.iter().enumerate();
        let leaving = leaving.filter(|(_, stand)| **stand == Stand::Leaving);
        let places = leaving.map(|(place, _)| place);
        places
            .filter(|place| !self.reading.contains(place))
            .filter(|place| !self.held.values().any(|held| held.place == *place))
            .collect()
    }

    /// How many wait here.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// How many wait here that were never handed out.
    pub(crate) fn fresh(&self) -> usize {
        let held = self.ready.iter().filter_map(|tag| self.held.get(tag));
        held.filter(|held| !held.returned).count()
    }

    fn retain(&mut self, keep: impl Fn(&Held) -> bool) {
        let (held, known) = (&mut self.held, &mut self.known);
        held.retain(|_, held| {
            let kept = keep(held);
            if !kept {
                known.remove(&(held.place, held.id.clone()));
            }
            kept
        });
        self.ready.retain(|tag| held.contains_key(tag));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::arrival::arrival;

    fn hold(stands: &[Stand]) -> Hold {
        Hold::new(stands.to_vec(), Instant::now())
    }

    fn entry(id: &str) -> (String, Arrival) {
        (id.to_owned(), arrival("s", id, Vec::new(), 1))
    }

    fn positions(arrivals: &[Arrival]) -> Vec<&str> {
        arrivals.iter().map(|a| a.position.as_str()).collect()
    }

    #[test]
    fn an_entry_that_we_have_is_not_taken_in_again() {
        let hold = hold(&[Stand::Flowing]);
        hold.deliver(0, vec![entry("1-0"), entry("1-0")]);

        let taken = hold.lock().take(9);
        hold.deliver(0, vec![entry("1-0"), entry("2-0")]);

        assert_eq!(positions(&taken), ["s@1-0"]);
        assert_eq!(positions(&hold.lock().take(9)), ["s@2-0"]);
    }

    #[test]
    fn nothing_comes_from_a_stream_that_is_not_ours() {
        let hold = hold(&[Stand::Foreign, Stand::Leaving, Stand::Flowing]);
        for place in 0..3 {
            hold.deliver(place, vec![entry("1-0")]);
        }
        assert_eq!(hold.lock().take(9).len(), 1);

        hold.deliver(2, vec![entry("2-0")]);
        hold.lock().begin_to_leave(2);

        assert_eq!(hold.lock().take(9).len(), 0);
    }

    #[test]
    fn a_stream_is_left_when_the_caller_has_nothing_of_it_and_nobody_reads() {
        let hold = hold(&[Stand::Flowing]);
        hold.deliver(0, vec![entry("1-0"), entry("2-0")]);
        let mut inner = hold.lock();
        let taken = inner.take(1);
        inner.reading = vec![0];
        inner.begin_to_leave(0);
        assert_eq!(inner.left(), Vec::<usize>::new());
        let held = inner.settle(taken[0].tag);
        assert!(held.is_some());
        assert_eq!(inner.left(), Vec::<usize>::new(), "somebody reads");

        inner.reading.clear();

        assert_eq!(inner.left(), [0]);
    }

    #[test]
    fn what_is_lost_is_neither_handed_out_nor_settled() {
        let hold = hold(&[Stand::Flowing]);
        hold.deliver(0, vec![entry("1-0"), entry("2-0"), entry("3-0")]);
        let mut inner = hold.lock();
        let taken = inner.take(1);

        inner.lose(0, &["1-0".to_owned(), "2-0".to_owned()]);

        assert!(inner.settle(taken[0].tag).is_none());
        assert_eq!(positions(&inner.take(9)), ["s@3-0"]);
    }
}
