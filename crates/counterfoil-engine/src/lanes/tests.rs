//! Lanes against a small store with snapshots: every order of reads, settlements and answers is
//! allowed that the relay allows, and nothing may be offered before what stands before it is stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use chrono::DateTime;
use counterfoil_core::MessageId;
use counterfoil_core::code::Code;
use counterfoil_core::mark::{Horizon, LowMark, Reach};
use counterfoil_core::message::{Aggregate, Headers, Payload};
use counterfoil_core::row::{Delivery, RowState};
use counterfoil_core::store::Settlement;
use proptest::prelude::*;

use super::{Batch, Lanes, ReadNo, Source};

mod steps;

const PER_LANE: usize = 2;

/// What can happen next. The numbers choose among what there is.
#[derive(Debug, Clone, Copy)]
enum Step {
    Commit(u8),
    /// At most so many; none of a queue that is paused.
    BeginRead(u8),
    EndRead,
    BeginTend,
    EndTend,
    BeginRefill,
    EndRefill,
    RefillFails,
    BeginScan,
    EndScan,
    Publish(u8),
    Stored(u8),
    Fails(u8),
    NobodyAnswers(u8),
    Leaves(u8),
    BeginSettle,
    Durable,
    EndSettle,
    AnotherOwner,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..8u8).prop_map(|n| Step::Commit(n / 7)),
        4 => (0..5u8).prop_map(Step::BeginRead),
        4 => Just(Step::EndRead),
        2 => Just(Step::BeginTend),
        2 => Just(Step::EndTend),
        3 => Just(Step::BeginRefill),
        3 => Just(Step::EndRefill),
        1 => Just(Step::RefillFails),
        1 => Just(Step::BeginScan),
        1 => Just(Step::EndScan),
        4 => (1..3u8).prop_map(Step::Publish),
        5 => any::<u8>().prop_map(Step::Stored),
        2 => any::<u8>().prop_map(Step::Fails),
        1 => any::<u8>().prop_map(Step::NobodyAnswers),
        1 => any::<u8>().prop_map(Step::Leaves),
        4 => Just(Step::BeginSettle),
        4 => Just(Step::Durable),
        4 => Just(Step::EndSettle),
        1 => Just(Step::AnotherOwner),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    New,
    Held,
    Retrying,
}

/// A settlement on its way.
struct Settling {
    batch: Batch,
    durable: bool,
}

/// A read on its way, with what stands behind something.
struct Reading {
    no: ReadNo,
    generation: u64,
    reach: Reach,
    rows: Vec<(Delivery, bool)>,
}

/// The relay's part around the lanes, and the store.
struct World {
    lanes: Lanes,
    rows: BTreeMap<i64, (u8, Place)>,
    /// Every number ever committed, and its lane.
    committed: BTreeMap<i64, u8>,
    stored: BTreeSet<i64>,
    in_flight: VecDeque<Delivery>,
    next_read: ReadNo,
    under_way: BTreeSet<ReadNo>,
    generation: u64,
    mark: LowMark,
    read: Option<Reading>,
    tend: Option<(ReadNo, Vec<Delivery>)>,
    refill: Vec<Aggregate>,
    refilling: Option<(ReadNo, Vec<Aggregate>, Vec<Delivery>)>,
    scan: Option<Vec<Aggregate>>,
    settling: Option<Settling>,
}

fn aggregate(lane: u8) -> Aggregate {
    Aggregate::new("lane", lane.to_string())
}

fn row(seq: i64, lane: u8, state: RowState) -> Delivery {
    Delivery {
        seq,
        shard: 0,
        epoch: 1,
        id: MessageId::of_row(seq, 0),
        queue: Arc::from("orders"),
        aggregate: Some(aggregate(lane)),
        version: None,
        event_type: "Moved".into(),
        payload: Payload::Json("{}".into()),
        headers: Headers::new(),
        attempt: 1,
        crashes: 0,
        created_at: DateTime::UNIX_EPOCH,
        state,
        defect: None,
    }
}

impl World {
    fn new() -> Self {
        Self {
            lanes: Lanes::new(PER_LANE),
            rows: BTreeMap::new(),
            committed: BTreeMap::new(),
            stored: BTreeSet::new(),
            in_flight: VecDeque::new(),
            next_read: 1,
            under_way: BTreeSet::new(),
            generation: 0,
            mark: LowMark::default(),
            read: None,
            tend: None,
            refill: Vec::new(),
            refilling: None,
            scan: None,
            settling: None,
        }
    }

    /// Answers whether there was anything to do.
    fn play(&mut self, step: Step) -> bool {
        let done = self.perform(step);
        self.count();
        done
    }

    /// Every row that the lanes know is in exactly one place, and every count says so: on these the
    /// bounds of memory and the handover of shards rely.
    fn count(&self) {
        let lanes = &self.lanes;
        let waiting = lanes.lanes.values().flat_map(|lane| &lane.rows);
        let waiting: Vec<i64> = waiting.map(|row| row.seq).collect();
        let out: Vec<i64> = self.in_flight.iter().map(|row| row.seq).collect();
        let under_way = self.settling.iter().map(|s| &s.batch.settlement);
        let told = under_way.chain([&lanes.settlement]);
        let told: Vec<i64> = told.flat_map(Settlement::rows).map(|row| row.seq).collect();
        let all: BTreeSet<i64> = [&waiting[..], &out, &told].concat().into_iter().collect();

        assert_eq!(all.len(), waiting.len() + out.len() + told.len());
        assert_eq!(lanes.known().collect::<BTreeSet<_>>(), all);
        assert_eq!(lanes.len(), all.len());
        assert_eq!(lanes.in_flight(), out.len());
        assert_eq!(lanes.busy(0) as usize, out.len() + told.len());
        for (key, lane) in &lanes.lanes {
            assert_eq!(lane.queued, lanes.ready.contains(key));
            let can_go = !lane.rows.is_empty() && !lane.in_flight && !lane.blocked;
            assert!(lane.queued || !can_go, "a lane that could go is forgotten");
        }
    }

    fn perform(&mut self, step: Step) -> bool {
        match step {
            Step::Commit(lane) => self.commit(lane),
            Step::BeginRead(limit) => self.begin_read(limit),
            Step::EndRead => self.end_read(),
            Step::BeginTend => self.begin_tend(),
            Step::EndTend => self.end_tend(),
            Step::BeginRefill => self.begin_refill(),
            Step::EndRefill => self.end_refill(true),
            Step::RefillFails => self.end_refill(false),
            Step::BeginScan => self.begin_scan(),
            Step::EndScan => self.end_scan(),
            Step::Publish(max) => self.publish(max),
            Step::Stored(n) => self.answer(n, |lanes, stored, row| {
                stored.insert(row.seq);
                lanes.sent(&row);
            }),
            Step::Fails(n) => self.answer(n, |lanes, _, row| {
                lanes.retry(&row, Duration::ZERO, Code::TIMEOUT, String::new());
            }),
            Step::NobodyAnswers(n) => self.answer(n, |lanes, _, row| lanes.put_back(row)),
            Step::Leaves(n) => {
                let left = self.answer(n, |lanes, _, row| lanes.forget(&row));
                if left {
                    self.start_over();
                }
                left
            }
            Step::BeginSettle => self.begin_settle(),
            Step::Durable => self.durable(),
            Step::EndSettle => self.end_settle(),
            Step::AnotherOwner => self.another_owner(),
        }
    }

    fn play_all(&mut self, steps: &[Step]) {
        for step in steps {
            self.play(*step);
        }
    }

    fn commit(&mut self, lane: u8) -> bool {
        let seq = self.committed.len() as i64 + 1;
        self.committed.insert(seq, lane);
        self.rows.insert(seq, (lane, Place::New));
        true
    }

    fn delivery(&self, seq: i64) -> Delivery {
        let (lane, place) = self.rows[&seq];
        let state = match place {
            Place::New => RowState::New,
            Place::Held => RowState::Held,
            Place::Retrying => RowState::Retrying,
        };
        row(seq, lane, state)
    }

    fn in_place(&self, wanted: Place) -> Vec<i64> {
        let here = self.rows.iter().filter(|(_, (_, place))| *place == wanted);
        here.map(|(seq, _)| *seq).collect()
    }

    fn lane_has(&self, lane: u8, wanted: Place) -> bool {
        self.rows.values().any(|row| *row == (lane, wanted))
    }

    fn start(&mut self) -> ReadNo {
        let no = self.next_read;
        self.next_read += 1;
        self.under_way.insert(no);
        no
    }

    fn end(&mut self, no: ReadNo) {
        self.under_way.remove(&no);
        let oldest = self.under_way.first().copied().unwrap_or(self.next_read);
        self.lanes.collect(oldest);
    }

    fn unknown(&self, seqs: Vec<i64>) -> Vec<i64> {
        let known: BTreeSet<i64> = self.lanes.known().collect();
        seqs.into_iter().filter(|s| !known.contains(s)).collect()
    }

    fn begin_read(&mut self, limit: u8) -> bool {
        if self.read.is_some() {
            return false;
        }
        let no = self.start();
        let found = self.unknown(self.in_place(Place::New)).into_iter();
        let rows = found.take(usize::from(limit)).map(|seq| {
            let lane = self.rows[&seq].0;
            let behind = self.lane_has(lane, Place::Held) || self.lane_has(lane, Place::Retrying);
            (self.delivery(seq), behind)
        });
        let rows: Vec<_> = rows.collect();
        let reach = match limit {
            0 => Reach::Paused,
            limit => Reach::of(rows.len(), usize::from(limit)),
        };
        self.read = Some(Reading {
            no,
            generation: self.generation,
            reach,
            rows,
        });
        true
    }

    /// As `Queue::start_over`.
    fn start_over(&mut self) {
        self.lanes.drop_waiting();
        self.mark.reset();
        self.generation += 1;
    }

    fn end_read(&mut self) -> bool {
        let Some(Reading {
            no,
            generation,
            reach,
            rows,
        }) = self.read.take()
        else {
            return false;
        };
        if reach == Reach::Paused {
            self.start_over();
        } else if generation == self.generation {
            let last = rows.last().map(|row| row.0.seq);
            self.mark.after_read(0, last, reach, Horizon::Unknown);
            for (row, behind) in rows {
                self.lanes.arrive(row, Source::Fresh { behind }, no);
            }
        }
        self.end(no);
        true
    }

    fn begin_tend(&mut self) -> bool {
        if self.tend.is_some() {
            return false;
        }
        let no = self.start();
        let found = self.unknown(self.in_place(Place::Retrying));
        let rows: Vec<_> = found.into_iter().map(|seq| self.delivery(seq)).collect();
        let any = !rows.is_empty();
        self.tend = Some((no, rows));
        any
    }

    fn end_tend(&mut self) -> bool {
        let Some((no, rows)) = self.tend.take() else {
            return false;
        };
        for row in rows {
            self.lanes.arrive(row, Source::Retry, no);
        }
        self.end(no);
        true
    }

    fn begin_refill(&mut self) -> bool {
        if self.settling.is_none() {
            self.refill.extend(self.lanes.refill_now());
        }
        if self.refilling.is_some() || self.refill.is_empty() {
            return false;
        }
        let asked = std::mem::take(&mut self.refill);
        let no = self.start();
        let mut rows = Vec::new();
        for wanted in &asked {
            let lane: u8 = wanted.id.parse().unwrap();
            if !self.lane_has(lane, Place::Retrying) {
                let held = self.in_place(Place::Held).into_iter();
                let of_lane = held.filter(|seq| self.rows[seq].0 == lane);
                rows.extend(of_lane.take(PER_LANE).map(|seq| self.delivery(seq)));
            }
        }
        self.refilling = Some((no, asked, rows));
        true
    }

    fn end_refill(&mut self, answered: bool) -> bool {
        let Some((no, asked, rows)) = self.refilling.take() else {
            return false;
        };
        let rows = answered.then_some(rows);
        self.lanes
            .refilled(&asked, rows, false, no, self.mark.covered());
        self.end(no);
        true
    }

    fn begin_scan(&mut self) -> bool {
        let lanes: BTreeSet<u8> = self.rows.values().map(|row| row.0).collect();
        let free = lanes.into_iter().filter(|lane| {
            self.lane_has(*lane, Place::Held) && !self.lane_has(*lane, Place::Retrying)
        });
        let found: Vec<_> = free.map(aggregate).collect();
        let any = !found.is_empty();
        self.scan = Some(found);
        any
    }

    fn end_scan(&mut self) -> bool {
        let found = self.scan.take().unwrap_or_default();
        let due = self.lanes.runnable(found);
        self.refill.extend(due);
        true
    }

    fn publish(&mut self, max: u8) -> bool {
        let batch = self.lanes.next_batch(usize::from(max));
        let any = !batch.is_empty();
        for row in batch {
            let lane = self.committed[&row.seq];
            let before = self.committed.range(..row.seq);
            for (earlier, _) in before.filter(|(_, l)| **l == lane) {
                assert!(
                    self.stored.contains(earlier),
                    "{} was offered before {earlier}",
                    row.seq
                );
            }
            self.in_flight.push_back(row);
        }
        any
    }

    fn answer(
        &mut self,
        n: u8,
        how: impl FnOnce(&mut Lanes, &mut BTreeSet<i64>, Delivery),
    ) -> bool {
        let at = usize::from(n) % self.in_flight.len().max(1);
        let Some(row) = self.in_flight.remove(at) else {
            return false;
        };
        how(&mut self.lanes, &mut self.stored, row);
        true
    }

    fn begin_settle(&mut self) -> bool {
        if self.settling.is_some() {
            return false;
        }
        let batch = self.lanes.take_settlement();
        self.settling = batch.map(|batch| Settling {
            batch,
            durable: false,
        });
        self.settling.is_some()
    }

    fn durable(&mut self) -> bool {
        let Some(settling) = &mut self.settling else {
            return false;
        };
        if std::mem::replace(&mut settling.durable, true) {
            return false;
        }
        apply(&mut self.rows, &settling.batch.settlement);
        true
    }

    fn end_settle(&mut self) -> bool {
        self.durable();
        let Some(settling) = self.settling.take() else {
            return false;
        };
        let due = self.lanes.settled(&settling.batch, self.next_read);
        self.refill.extend(due);
        true
    }

    /// The relay dies, and what it knew is gone; another one begins with what the store has.
    fn another_owner(&mut self) -> bool {
        let heir = Self::new();
        let dead = std::mem::replace(self, heir);
        (self.rows, self.committed, self.stored) = (dead.rows, dead.committed, dead.stored);
        true
    }

    /// Everything goes well from now on. Answers whether all was delivered.
    fn come_to_rest(&mut self) -> bool {
        let mut rounds = 20 + self.committed.len() * 10;
        while !self.rows.is_empty() && rounds > 0 {
            rounds -= 1;
            for step in [
                Step::EndRead,
                Step::EndTend,
                Step::EndRefill,
                Step::EndScan,
                Step::BeginRead(9),
                Step::EndRead,
                Step::BeginTend,
                Step::EndTend,
                Step::BeginScan,
                Step::EndScan,
                Step::BeginRefill,
                Step::EndRefill,
                Step::Publish(9),
                Step::Stored(0),
                Step::Stored(0),
                Step::BeginSettle,
                Step::EndSettle,
            ] {
                self.play(step);
            }
        }
        self.rows.is_empty()
    }
}

fn apply(rows: &mut BTreeMap<i64, (u8, Place)>, settlement: &Settlement) {
    for row in &settlement.sent {
        let seq = row.seq;
        let was = rows.remove(&seq);
        let new = was.is_some_and(|(_, place)| place == Place::New);
        assert!(new || !settlement.fresh, "{seq} had come back");
    }
    let held = settlement.hold.iter().map(|row| (row.seq, Place::Held));
    let again = settlement
        .retry
        .iter()
        .map(|r| (r.row.seq, Place::Retrying));
    for (seq, place) in held.chain(again) {
        if let Some(row) = rows.get_mut(&seq) {
            row.1 = place;
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, max_shrink_iters: 20_000, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_offered_before_what_stands_before_it(steps in prop::collection::vec(step(), 1..300)) {
        let mut world = World::new();

        for step in steps {
            world.play(step);
        }

        prop_assert!(world.come_to_rest(), "something waits for ever: {:?}", world.rows);
    }
}

/// A message that came back is delivered; while that is being settled the next one is put aside,
/// and the refill looks before that is durable.
#[test]
fn what_is_put_aside_while_the_head_is_settled_is_not_overtaken() {
    let mut world = World::new();
    let back_off = [Step::Fails(0), Step::BeginSettle, Step::EndSettle];
    let come_back = [Step::BeginTend, Step::EndTend, Step::Publish(1)];
    let first = [Step::Commit(0), Step::BeginRead(9), Step::EndRead];
    let (second, third) = (first, first);

    world.play_all(&first);
    world.play_all(&[Step::Publish(1)]);
    world.play_all(&back_off);
    world.play_all(&come_back);
    world.play_all(&[Step::Stored(0), Step::BeginSettle]);
    world.play_all(&second);
    world.play_all(&[Step::EndSettle, Step::BeginRefill, Step::EndRefill]);
    world.play_all(&third);

    assert!(!world.play(Step::Publish(1)), "the second one waits");
    assert!(world.come_to_rest());
}

/// A former owner had more of a lane in memory than it keeps, put the last one aside and died.
#[test]
fn a_new_owner_brings_nothing_back_before_it_has_read_what_stands_before_it() {
    let mut world = World::new();
    world.play_all(&[Step::Commit(0), Step::Commit(0), Step::Commit(0)]);
    world.play_all(&[Step::BeginRead(9), Step::EndRead]);
    world.play_all(&[Step::BeginSettle, Step::EndSettle, Step::AnotherOwner]);

    world.play_all(&[Step::BeginScan, Step::EndScan]);
    world.play_all(&[Step::BeginRefill, Step::EndRefill]);

    assert!(!world.play(Step::Publish(1)), "the third one waits");
    assert!(world.come_to_rest());
}

/// As above, but the new owner's first read comes while the queue is paused for a moment.
#[test]
fn a_new_owner_brings_nothing_back_when_its_first_read_was_of_a_paused_queue() {
    let mut world = World::new();
    world.play_all(&[Step::Commit(0), Step::Commit(0), Step::Commit(0)]);
    world.play_all(&[Step::BeginRead(9), Step::EndRead]);
    world.play_all(&[Step::BeginSettle, Step::EndSettle, Step::AnotherOwner]);

    world.play_all(&[Step::BeginRead(0), Step::EndRead]);
    world.play_all(&[Step::BeginScan, Step::EndScan]);
    world.play_all(&[Step::BeginRefill, Step::EndRefill]);

    assert!(!world.play(Step::Publish(1)), "the third one waits");
    assert!(world.come_to_rest());
}
