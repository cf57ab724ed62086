//! One partition as a member of the group sees it: what was asked for, what came, and what may be
//! handed on.
//!
//! # Promise
//! Nothing is handed on before everything that another member had received earlier has come again,
//! or must have: so the messages of a key come in order even when the member changes. What came is
//! handed on lowest first. Nothing here talks to the server.
//!
//! # How the server keeps the others out
//! The consumer of a partition has the priority policy `pinned_client`: the server chooses one
//! member, gives it a name for this (the pin), and gives messages to nobody else until that member
//! gives the pin back or has asked for nothing during `ack_wait`.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use async_nats::Message;
use tokio::time::Instant;

use crate::entry::PIN;

/// Beside `ack_wait`, how long messages of others may take until they come again.
const SLACK: Duration = Duration::from_secs(1);
/// Between two looks whether others still have messages.
const FIRST_LOOK: Duration = Duration::from_millis(10);
const LAST_LOOK: Duration = Duration::from_millis(200);

/// A message that came.
#[derive(Debug)]
pub(crate) struct Item {
    pub(crate) message: Message,
    /// Its number in the stream.
    pub(crate) sequence: u64,
    /// How often it was handed out, this time included.
    pub(crate) deliveries: u32,
    /// When the server last heard that we have it.
    pub(crate) touched: Instant,
}

impl Item {
    /// Reads what JetStream says about it. Absent: it is no message of a stream.
    pub(crate) fn of(message: Message, now: Instant) -> Option<Self> {
        let origin = Origin::of(message.reply.as_ref()?)?;
        Some(Self {
            sequence: origin.sequence,
            deliveries: origin.deliveries,
            message,
            touched: now,
        })
    }

    fn pin(&self) -> Option<&str> {
        let headers = self.message.headers.as_ref()?;
        headers.get(PIN).map(async_nats::HeaderValue::as_str)
    }
}

/// What stands in the subject by which a message is settled.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Origin<'a> {
    pub(crate) consumer: &'a str,
    deliveries: u32,
    sequence: u64,
}

impl<'a> Origin<'a> {
    /// `$JS.ACK.STREAM.CONSUMER.DELIVERIES.SEQUENCE.…`, in newer servers with a domain and an
    /// account before the stream.
    pub(crate) fn of(reply: &'a str) -> Option<Self> {
        let words: Vec<&str> = reply.strip_prefix("$JS.ACK.")?.split('.').collect();
        let at = match words.len() {
            7 => 1,
            9.. => 3,
            _ => return None,
        };
        Some(Self {
            consumer: words[at],
            deliveries: words[at + 1].parse().ok()?,
            sequence: words[at + 2].parse().ok()?,
        })
    }
}

/// While others may have messages that came before ours.
#[derive(Debug)]
struct HoldBack {
    until: Instant,
    look_at: Instant,
    pause: Duration,
}

/// What the settings say.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Limits {
    pub(crate) ack_wait: Duration,
    pub(crate) max_in_flight: usize,
}

impl Limits {
    /// How long a pull stays open.
    pub(crate) fn expiry(self) -> Duration {
        (self.ack_wait / 3).min(Duration::from_secs(5))
    }

    /// How often the server is told that we still have a message.
    pub(crate) fn heartbeat(self) -> Duration {
        self.ack_wait / 3
    }
}

/// One partition.
#[derive(Debug)]
pub(crate) struct Partition {
    pub(crate) number: u16,
    limits: Limits,
    /// Whether it should be ours.
    wanted: bool,
    pin: Option<String>,
    /// How many messages we asked for that did not come yet.
    open: usize,
    asked_at: Option<Instant>,
    hold_back: Option<HoldBack>,
    /// Came, and not handed on, by number.
    ready: BTreeMap<u64, Item>,
    /// With the caller.
    out: BTreeSet<u64>,
    /// The server is being asked how many messages are out.
    looking: bool,
    /// What we had when it was asked, while the answer still tells something.
    had: Option<BTreeSet<u64>>,
    /// It is being given back.
    pub(crate) leaving: bool,
}

impl Partition {
    pub(crate) fn new(number: u16, limits: Limits) -> Self {
        Self {
            number,
            limits,
            wanted: false,
            pin: None,
            open: 0,
            asked_at: None,
            hold_back: None,
            ready: BTreeMap::new(),
            out: BTreeSet::new(),
            looking: false,
            had: None,
            leaving: false,
        }
    }

    /// Whether it should be ours from now on.
    pub(crate) fn want(&mut self, wanted: bool) {
        self.wanted = wanted;
    }

    /// What to ask for now: how many, and under which pin.
    pub(crate) fn pull(&mut self, now: Instant) -> Option<(usize, Option<String>)> {
        self.expire(now);
        if !self.wanted || self.leaving || self.open > self.limits.max_in_flight / 2 {
            return None;
        }
        let more = self.limits.max_in_flight - self.open;
        self.open += more;
        self.asked_at = Some(now);
        Some((more, self.pin.clone()))
    }

    /// A pull that the server has forgotten, as it does when it changes its leader, is over too.
    fn expire(&mut self, now: Instant) {
        let deadline = self.limits.expiry() + SLACK;
        if self
            .asked_at
            .is_some_and(|at| now.duration_since(at) > deadline)
        {
            self.open = 0;
            self.asked_at = None;
        }
    }

    /// The server closed a pull, of which so many messages did not come.
    pub(crate) fn closed(&mut self, missing: Option<usize>) {
        self.open = self.open.saturating_sub(missing.unwrap_or(self.open));
    }

    /// The server has chosen somebody else, for whom everything is that is not with the caller.
    pub(crate) fn lost(&mut self) -> Vec<Item> {
        self.leave().0
    }

    /// A message came.
    pub(crate) fn came(&mut self, item: Item, now: Instant) {
        self.open = self.open.saturating_sub(1);
        if item.pin().is_some() && item.pin() != self.pin.as_deref() {
            self.pin = item.pin().map(ToOwned::to_owned);
            self.hold_back = Some(HoldBack {
                until: now + self.limits.ack_wait + SLACK,
                look_at: now,
                pause: FIRST_LOOK,
            });
            // An answer that is under way tells of the time before.
            self.had = None;
        }
        // One that the caller has stays with the caller: it is settled by its number.
        if !self.out.contains(&item.sequence) {
            self.ready.insert(item.sequence, item);
        }
    }

    /// Whether it is time to ask the server how many messages are out.
    pub(crate) fn should_look(&self, now: Instant) -> bool {
        let due = |hold: &HoldBack| hold.look_at <= now;
        !self.looking && self.hold_back.as_ref().is_some_and(due)
    }

    /// The server is asked from now on.
    ///
    /// Its answer is compared with what we have at this moment: what comes later may be missing in
    /// the answer, and must not stand for messages that others have.
    pub(crate) fn look(&mut self) {
        self.looking = true;
        self.had = Some(self.ready.keys().chain(&self.out).copied().collect());
    }

    /// When it will be.
    pub(crate) fn look_at(&self) -> Option<Instant> {
        match self.looking {
            true => None,
            false => self.hold_back.as_ref().map(|hold| hold.look_at),
        }
    }

    /// The server says how many messages are out, of all members together.
    pub(crate) fn looked(&mut self, pending: Option<usize>, others_hold: bool, now: Instant) {
        self.looking = false;
        let ours = self.had.take().map(|had| {
            // One that was settled meanwhile may be missing in the answer too.
            let still = |n: &&u64| self.ready.contains_key(n) || self.out.contains(n);
            had.iter().filter(still).count()
        });
        let Some(hold) = &mut self.hold_back else {
            return;
        };
        if others_hold {
            hold.until = now + self.limits.ack_wait + SLACK;
        }
        let all_ours = |(pending, ours): (usize, usize)| pending <= ours;
        if pending.zip(ours).is_some_and(all_ours) || now >= hold.until {
            self.hold_back = None;
            return;
        }
        hold.pause = (hold.pause * 2).min(LAST_LOOK);
        hold.look_at = now + hold.pause;
    }

    /// The next one for the caller.
    pub(crate) fn take(&mut self) -> Option<Item> {
        if !self.wanted || self.hold_back.is_some() {
            return None;
        }
        let (sequence, item) = self.ready.pop_first()?;
        self.out.insert(sequence);
        Some(item)
    }

    /// The caller does not have it any more.
    pub(crate) fn settled(&mut self, sequence: u64) {
        self.out.remove(&sequence);
    }

    /// How many came and are not handed on.
    pub(crate) fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Whether we have messages.
    pub(crate) fn holds(&self) -> bool {
        !self.ready.is_empty() || !self.out.is_empty()
    }

    /// Whether the pin can be given back: it should not be ours, and nothing of it is under way.
    pub(crate) fn should_leave(&mut self, now: Instant) -> bool {
        self.expire(now);
        let idle = self.open == 0 && self.out.is_empty();
        !self.wanted && !self.leaving && self.pin.is_some() && idle
    }

    /// Gives everything up that is not with the caller: what is to be given back, in order, and
    /// whether there is a pin.
    pub(crate) fn leave(&mut self) -> (Vec<Item>, bool) {
        let items = std::mem::take(&mut self.ready).into_values().collect();
        self.hold_back = None;
        (items, self.pin.take().is_some())
    }

    /// Those of which the server has to be told that we still have them.
    pub(crate) fn untouched(&mut self, now: Instant) -> Vec<async_nats::Subject> {
        let heartbeat = self.limits.heartbeat();
        let due = self.ready.values_mut().filter_map(|item| {
            if now.duration_since(item.touched) < heartbeat {
                return None;
            }
            item.touched = now;
            item.message.reply.clone()
        });
        due.collect()
    }
}

#[cfg(test)]
mod tests {
    use async_nats::HeaderMap;
    use bytes::Bytes;

    use super::*;

    const LIMITS: Limits = Limits {
        ack_wait: Duration::from_secs(3),
        max_in_flight: 10,
    };

    fn item(sequence: u64, pin: &str) -> Item {
        let mut headers = HeaderMap::new();
        headers.insert(PIN, pin);
        let reply = format!("$JS.ACK.orders.stock-0.2.{sequence}.7.1794790784611033336.0");
        let message = Message {
            subject: "orders.0".into(),
            reply: Some(reply.into()),
            payload: Bytes::new(),
            headers: Some(headers),
            status: None,
            description: None,
            length: 0,
        };
        Item::of(message, Instant::now()).unwrap()
    }

    fn ours() -> Partition {
        let mut partition = Partition::new(0, LIMITS);
        partition.want(true);
        partition
    }

    /// The server is asked, and answers before anything else happens.
    fn answered(partition: &mut Partition, pending: Option<usize>, others: bool, now: Instant) {
        partition.look();
        partition.looked(pending, others, now);
    }

    fn taken(partition: &mut Partition) -> Vec<u64> {
        std::iter::from_fn(|| partition.take().map(|item| item.sequence)).collect()
    }

    #[test]
    fn a_message_says_where_it_stands_and_how_often_it_came() {
        let item = item(17, "p");

        assert_eq!((item.sequence, item.deliveries), (17, 2));
        let newer = "$JS.ACK._.hash.orders.stock-0.1.18.8.1794790784611033336.3.token";
        let origin = Origin::of(newer).unwrap();
        assert_eq!((origin.consumer, origin.sequence), ("stock-0", 18));
        for odd in ["", "orders", "$JS.ACK.a.b", "$JS.ACK.a.b.c.d.e.f.g"] {
            assert_eq!(Origin::of(odd), None, "{odd}");
        }
    }

    #[test]
    fn what_belongs_to_somebody_else_now_is_not_handed_on() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(1, "p"), now);
        answered(&mut partition, Some(1), false, now);

        let left: Vec<u64> = partition.lost().iter().map(|i| i.sequence).collect();

        assert_eq!(left, [1]);
        assert_eq!(taken(&mut partition), [0; 0]);
        assert_eq!(partition.pull(now), Some((10, None)), "without the old pin");
    }

    #[test]
    fn more_is_asked_for_when_half_of_it_came() {
        let now = Instant::now();
        let mut partition = ours();

        assert_eq!(partition.pull(now), Some((10, None)));
        assert_eq!(partition.pull(now), None);
        for n in 1..=5 {
            partition.came(item(n, "p"), now);
        }
        assert_eq!(partition.pull(now), Some((5, Some("p".into()))));
        partition.closed(Some(3));
        assert_eq!(partition.pull(now), None);
        partition.closed(None);
        assert_eq!(partition.pull(now), Some((10, Some("p".into()))));
    }

    #[test]
    fn a_pull_that_the_server_forgot_is_repeated() {
        let now = Instant::now();
        let mut partition = ours();
        partition.pull(now);

        assert_eq!(partition.pull(now + LIMITS.expiry()), None);
        let later = now + LIMITS.expiry() + SLACK * 2;
        assert_eq!(partition.pull(later), Some((10, None)));
    }

    #[test]
    fn nothing_is_handed_on_while_another_member_may_have_earlier_ones() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(6, "new"), now);

        assert_eq!(taken(&mut partition), [0; 0]);
        answered(&mut partition, Some(3), false, now);
        assert_eq!(taken(&mut partition), [0; 0]);
        partition.came(item(5, "new"), now);
        partition.came(item(4, "new"), now);
        answered(&mut partition, Some(3), false, now);

        assert_eq!(taken(&mut partition), [4, 5, 6]);
    }

    #[test]
    fn what_came_after_the_question_does_not_stand_for_what_others_have() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(4, "new"), now);
        partition.came(item(5, "new"), now);

        // The other member has 1, 2 and 3; from the backlog comes more while the answer is under way.
        partition.look();
        for n in 6..=8 {
            partition.came(item(n, "new"), now);
        }
        partition.looked(Some(5), false, now);
        assert_eq!(taken(&mut partition), [0; 0]);

        for n in 1..=3 {
            partition.came(item(n, "new"), now);
        }
        answered(&mut partition, Some(8), false, now);
        assert_eq!(taken(&mut partition), [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[test]
    fn what_was_settled_after_the_question_does_not_stand_for_what_others_have() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(5, "old"), now);
        answered(&mut partition, Some(1), false, now);
        assert_eq!(taken(&mut partition), [5]);
        partition.came(item(6, "new"), now);

        // The other member has 4. The caller settles 5 before the server counts.
        partition.look();
        partition.settled(5);
        partition.looked(Some(2), false, now);

        assert_eq!(taken(&mut partition), [0; 0]);
    }

    #[test]
    fn an_answer_from_before_another_member_had_its_turn_tells_nothing() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(1, "p"), now);

        // The answer of one message is under way; another member gets 1 and 2, and 1 comes to us.
        partition.look();
        partition.lost();
        partition.came(item(1, "q"), now);
        partition.looked(Some(1), false, now);

        assert_eq!(taken(&mut partition), [0; 0]);
    }

    #[test]
    fn who_never_comes_back_is_not_waited_for_unless_it_says_that_it_is_there() {
        let now = Instant::now();
        let late = now + LIMITS.ack_wait + SLACK;
        let mut partition = ours();
        partition.came(item(6, "new"), now);

        answered(&mut partition, Some(2), true, late);
        assert_eq!(taken(&mut partition), [0; 0]);
        answered(&mut partition, None, false, late + LIMITS.ack_wait + SLACK);

        assert_eq!(taken(&mut partition), [6]);
    }

    #[test]
    fn what_the_caller_has_is_not_handed_on_again_until_it_was_settled() {
        let now = Instant::now();
        let mut partition = ours();
        partition.came(item(1, "p"), now);
        answered(&mut partition, Some(1), false, now);
        assert_eq!(taken(&mut partition), [1]);

        partition.came(item(1, "p"), now);
        assert_eq!(taken(&mut partition), [0; 0]);
        partition.settled(1);
        partition.came(item(1, "p"), now);

        assert_eq!(taken(&mut partition), [1]);
    }

    #[test]
    fn a_partition_is_left_when_nothing_of_it_is_under_way() {
        let now = Instant::now();
        let mut partition = ours();
        partition.pull(now);
        partition.came(item(1, "p"), now);
        answered(&mut partition, Some(1), false, now);
        assert_eq!(taken(&mut partition), [1]);
        partition.came(item(2, "p"), now);

        partition.want(false);
        assert_eq!(taken(&mut partition), [0; 0]);
        assert!(!partition.should_leave(now), "a pull is open");
        partition.closed(None);
        assert!(!partition.should_leave(now), "the caller has one");
        partition.settled(1);
        assert!(partition.should_leave(now));

        let (left, pinned) = partition.leave();
        let left: Vec<u64> = left.iter().map(|item| item.sequence).collect();
        assert_eq!((left, pinned), (vec![2], true));
        assert!(!partition.should_leave(now));
    }
}
