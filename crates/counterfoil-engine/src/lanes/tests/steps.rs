//! Single steps of the lanes: what the play of random steps allows either way.

use counterfoil_core::store::{Park, ShardSet};

use super::*;
use crate::lanes::LINGER_ROWS;

const FRESH: Source = Source::Fresh { behind: false };

fn lanes() -> Lanes {
    Lanes::new(PER_LANE)
}

fn fresh(seq: i64, lane: u8) -> Delivery {
    row(seq, lane, RowState::New)
}

fn held(seq: i64, lane: u8) -> Delivery {
    row(seq, lane, RowState::Held)
}

fn numbers(batch: &[Delivery]) -> Vec<i64> {
    batch.iter().map(|row| row.seq).collect()
}

fn settle(lanes: &mut Lanes, next_read: ReadNo) -> Vec<Aggregate> {
    let batch = lanes.take_settlement().unwrap();
    lanes.settled(&batch, next_read)
}

fn parked(row: &Delivery, hold: bool) -> Park {
    Park {
        row: lanes().key(row),
        attempts: 1,
        code: Code::TIMEOUT,
        error: String::new(),
        hold,
        confirm: false,
        follow_up: None,
    }
}

#[test]
fn rows_in_memory_are_counted_until_they_are_settled() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(fresh(2, 1), FRESH, 1);
    assert_eq!((lanes.len(), lanes.in_flight(), lanes.busy(0)), (2, 0, 0));

    let out = lanes.next_batch(1);
    assert_eq!((lanes.len(), lanes.in_flight(), lanes.busy(0)), (2, 1, 1));

    lanes.sent(&out[0]);
    assert_eq!((lanes.len(), lanes.in_flight(), lanes.busy(0)), (2, 0, 1));

    settle(&mut lanes, 2);
    assert_eq!((lanes.len(), lanes.in_flight(), lanes.busy(0)), (1, 0, 0));
}

#[test]
fn a_row_that_is_not_due_is_counted_and_holds_nobody_back() {
    let mut lanes = lanes();
    lanes.early(&fresh(1, 0));
    lanes.early(&fresh(1, 0));
    lanes.arrive(fresh(2, 0), FRESH, 1);

    assert_eq!((lanes.len(), lanes.busy(0)), (2, 1));
    assert_eq!(numbers(&lanes.next_batch(9)), [2]);
    let batch = lanes.take_settlement().unwrap();
    assert_eq!(batch.settlement.schedule.len(), 1);
}

#[test]
fn a_row_that_is_known_does_not_arrive_again() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(fresh(1, 0), FRESH, 2);

    assert_eq!(numbers(&lanes.next_batch(9)), [1]);
    assert!(lanes.next_batch(9).is_empty());
    assert_eq!(lanes.len(), 1);
}

#[test]
fn a_lane_keeps_so_many_in_memory_and_the_rest_in_the_store() {
    let mut lanes = lanes();
    for seq in 1..=3 {
        lanes.arrive(fresh(seq, 0), FRESH, 1);
    }

    let batch = lanes.take_settlement().unwrap();
    assert_eq!(batch.settlement.hold.len(), 1);
    assert_eq!(numbers(&lanes.next_batch(9)), [1]);
}

#[test]
fn rows_without_an_aggregate_do_not_wait_for_each_other() {
    let mut lanes = lanes();
    for seq in 1..=4 {
        let mut row = fresh(seq, 0);
        row.aggregate = None;
        lanes.arrive(row, Source::Fresh { behind: true }, 1);
    }

    assert!(!lanes.has_settlement(), "none is put aside");
    assert_eq!(numbers(&lanes.next_batch(9)), [1, 2, 3, 4]);
}

#[test]
fn a_lane_goes_by_version_where_there_are_versions() {
    let mut lanes = Lanes::new(9);
    for (seq, version) in [(1, Some(1)), (2, Some(3)), (3, Some(2)), (4, None)] {
        let mut row = fresh(seq, 0);
        row.version = version;
        lanes.arrive(row, FRESH, 1);
    }

    let mut order = Vec::new();
    while let Some(row) = lanes.next_batch(1).pop() {
        order.push(row.seq);
        lanes.sent(&row);
    }
    assert_eq!(order, [1, 3, 2, 4]);
}

#[test]
fn no_more_is_handed_out_than_asked_for_and_one_of_each_lane() {
    let mut lanes = lanes();
    for (seq, lane) in [(1, 0), (2, 0), (3, 1), (4, 2)] {
        lanes.arrive(fresh(seq, lane), FRESH, 1);
    }

    assert_eq!(numbers(&lanes.next_batch(2)), [1, 3]);
    assert!(lanes.has_ready());
    assert_eq!(numbers(&lanes.next_batch(2)), [4]);
    assert!(!lanes.has_ready());
}

#[test]
fn a_probe_is_a_row_that_has_failed_before_if_there_is_one() {
    let mut lanes = lanes();
    for lane in 0..3 {
        let mut row = fresh(i64::from(lane) + 1, lane);
        row.attempt = if lane == 1 { 2 } else { 1 };
        lanes.arrive(row, FRESH, 1);
    }

    assert_eq!(numbers(&lanes.next_probe()), [2]);
    assert_eq!(numbers(&lanes.next_probe()), [1]);
}

#[test]
fn what_was_put_back_goes_first_and_is_not_busy() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(fresh(2, 0), FRESH, 1);
    let out = lanes.next_batch(1).pop().unwrap();

    lanes.put_back(out);

    assert_eq!((lanes.in_flight(), lanes.busy(0)), (0, 0));
    assert_eq!(numbers(&lanes.next_batch(1)), [1]);
}

#[test]
fn what_is_forgotten_may_arrive_again() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    let out = lanes.next_batch(1);

    lanes.forget(&out[0]);

    assert_eq!((lanes.len(), lanes.busy(0)), (0, 0));
    lanes.arrive(fresh(1, 0), FRESH, 2);
    assert_eq!(numbers(&lanes.next_batch(1)), [1]);
}

#[test]
fn a_parked_row_holds_its_lane_back_only_if_it_is_to() {
    for hold in [true, false] {
        let mut lanes = lanes();
        lanes.arrive(fresh(1, 0), FRESH, 1);
        lanes.arrive(fresh(2, 0), FRESH, 1);
        let out = lanes.next_batch(1);

        lanes.park(&out[0], parked(&out[0], hold));

        let go_on: &[i64] = if hold { &[] } else { &[2] };
        assert_eq!(numbers(&lanes.next_batch(1)), go_on);
        let batch = lanes.take_settlement().unwrap();
        assert_eq!(batch.settlement.hold.len(), usize::from(hold));
        assert_eq!(batch.settlement.park[0].hold, hold);
    }
}

#[test]
fn a_parked_row_without_an_aggregate_holds_nobody() {
    let mut lanes = lanes();
    let mut alone = fresh(1, 0);
    alone.aggregate = None;
    lanes.arrive(alone, FRESH, 1);
    let out = lanes.next_batch(1);

    lanes.park(&out[0], parked(&out[0], true));

    assert!(!lanes.take_settlement().unwrap().settlement.park[0].hold);
}

#[test]
fn few_deliveries_may_wait_for_more_and_nothing_else_may() {
    let mut lanes = lanes();
    let last = i64::try_from(LINGER_ROWS).unwrap();
    for seq in 1..=last {
        let mut row = fresh(seq, 0);
        row.aggregate = None;
        lanes.arrive(row, FRESH, 1);
    }
    for out in lanes.next_batch(LINGER_ROWS - 1) {
        lanes.sent(&out);
    }
    assert!(lanes.may_linger());

    let out = lanes.next_batch(1);
    lanes.sent(&out[0]);
    assert!(!lanes.may_linger(), "enough for a settlement of their own");
    settle(&mut lanes, 2);

    lanes.arrive(fresh(last + 1, 1), FRESH, 2);
    let out = lanes.next_batch(1);
    lanes.retry(&out[0], Duration::ZERO, Code::TIMEOUT, String::new());
    assert!(!lanes.may_linger(), "a retry is told at once");
}

#[test]
fn a_delivery_for_which_a_lane_waits_in_the_store_is_settled_at_once() {
    let mut lanes = lanes();
    lanes.arrive(row(1, 0, RowState::Retrying), Source::Retry, 1);
    let out = lanes.next_batch(1);

    lanes.sent(&out[0]);

    assert!(!lanes.may_linger());
}

#[test]
fn rows_that_were_read_before_a_change_was_durable_are_put_aside() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    let out = lanes.next_batch(1);
    lanes.retry(&out[0], Duration::ZERO, Code::TIMEOUT, String::new());
    settle(&mut lanes, 5);
    lanes.arrive(row(1, 0, RowState::Retrying), Source::Retry, 5);
    let out = lanes.next_batch(1);
    lanes.sent(&out[0]);

    lanes.arrive(fresh(2, 0), FRESH, 4);
    let batch = lanes.take_settlement().unwrap();
    assert_eq!(batch.settlement.hold.len(), 1, "its read was too early");
    lanes.arrive(fresh(3, 1), FRESH, 4);
    assert_eq!(numbers(&lanes.next_batch(9)), [3], "another lane goes on");
}

#[test]
fn a_lane_that_is_refilled_is_not_asked_for_again() {
    let mut lanes = lanes();
    let both = vec![aggregate(0), aggregate(1)];

    assert_eq!(lanes.runnable(both.clone()), both);
    assert!(lanes.runnable(both.clone()).is_empty());

    lanes.refilled(&both, Some(vec![held(1, 0), held(2, 1)]), false, 1, 9);
    assert!(lanes.runnable(both).is_empty(), "they are being worked on");
    assert_eq!(numbers(&lanes.next_batch(9)), [1, 2]);
}

/// What was put aside long ago does not bound a refill that begins when it is durable.
#[test]
fn a_refill_brings_back_what_was_durably_aside_when_it_began() {
    let mut lanes = lanes();
    lanes.arrive(fresh(5, 0), Source::Fresh { behind: true }, 1);
    settle(&mut lanes, 2);
    assert_eq!(lanes.runnable(vec![aggregate(0)]).len(), 1);

    lanes.refilled(&[aggregate(0)], Some(vec![held(5, 0)]), false, 2, 9);

    assert_eq!(numbers(&lanes.next_batch(9)), [5]);
}

#[test]
fn a_refill_brings_back_nothing_that_was_put_aside_after_it_began() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);
    lanes.arrive(fresh(7, 0), FRESH, 1);

    let late = vec![held(6, 0), held(8, 0)];
    lanes.refilled(&[aggregate(0)], Some(late), false, 2, 9);

    assert_eq!(numbers(&lanes.next_batch(9)), [6]);
    assert_eq!(lanes.len(), 2, "the one out, and the one put aside");
}

#[test]
fn a_refill_brings_back_nothing_above_what_has_been_read() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);

    lanes.refilled(
        &[aggregate(0)],
        Some(vec![held(9, 0), held(10, 0)]),
        false,
        1,
        9,
    );

    assert_eq!(numbers(&lanes.next_batch(9)), [9]);
}

#[test]
fn a_refill_that_missed_what_was_put_aside_is_made_again_when_that_is_durable() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);
    lanes.arrive(fresh(7, 0), FRESH, 1);

    lanes.refilled(&[aggregate(0)], Some(Vec::new()), false, 1, 9);

    assert!(lanes.refill_now().is_empty(), "not before");
    assert_eq!(settle(&mut lanes, 2), [aggregate(0)]);
    lanes.refilled(&[aggregate(0)], Some(vec![held(7, 0)]), false, 2, 9);
    assert_eq!(numbers(&lanes.next_batch(9)), [7]);
}

#[test]
fn a_refill_is_not_made_again_while_the_head_of_the_lane_is_out() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);
    lanes.arrive(fresh(7, 0), FRESH, 1);
    lanes.arrive(row(3, 0, RowState::Retrying), Source::Retry, 1);
    let out = lanes.next_batch(1);

    lanes.refilled(&[aggregate(0)], Some(Vec::new()), false, 1, 9);

    assert!(settle(&mut lanes, 2).is_empty(), "its end asks for it");
    lanes.sent(&out[0]);
    assert_eq!(settle(&mut lanes, 3), [aggregate(0)]);
}

#[test]
fn a_full_refill_says_that_there_may_be_more() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);
    lanes.refilled(
        &[aggregate(0)],
        Some(vec![held(1, 0), held(2, 0)]),
        false,
        1,
        9,
    );

    lanes.arrive(fresh(3, 0), FRESH, 2);

    let batch = lanes.take_settlement().unwrap();
    assert_eq!(batch.settlement.hold.len(), 1, "it goes behind them");
}

#[test]
fn a_refill_that_failed_is_made_again_by_the_next_search() {
    let mut lanes = lanes();
    lanes.runnable(vec![aggregate(0)]);

    lanes.refilled(&[aggregate(0)], None, false, 1, 9);

    assert_eq!(lanes.runnable(vec![aggregate(0)]), [aggregate(0)]);
}

#[test]
fn a_lane_at_rest_is_forgotten_when_no_older_read_is_under_way() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    let out = lanes.next_batch(1);
    lanes.retry(&out[0], Duration::ZERO, Code::TIMEOUT, String::new());
    settle(&mut lanes, 5);

    lanes.collect(4);
    assert_eq!(lanes.lanes.len(), 1, "read 4 is under way");
    lanes.collect(5);
    assert_eq!(lanes.lanes.len(), 0);
}

#[test]
fn a_lane_at_work_is_not_forgotten() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(fresh(2, 1), FRESH, 1);
    lanes.runnable(vec![aggregate(2)]);
    lanes.arrive(fresh(4, 3), Source::Fresh { behind: true }, 1);
    lanes.next_batch(1);

    lanes.collect(100);

    assert_eq!(lanes.lanes.len(), 4, "out, waiting, refilled, unsettled");
}

#[test]
fn shards_that_are_lost_take_their_waiting_rows_with_them() {
    let mut lanes = lanes();
    for (seq, shard) in [(1, 3), (2, 4)] {
        let mut row = fresh(seq, u8::try_from(seq).unwrap());
        row.shard = shard;
        lanes.arrive(row, FRESH, 1);
    }

    lanes.drop_shards([3].into_iter().collect::<ShardSet>());

    assert_eq!(lanes.known().collect::<Vec<_>>(), [2]);
    assert_eq!(numbers(&lanes.next_batch(9)), [2]);
}

#[test]
fn what_is_handed_out_stays_when_the_rest_is_dropped() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(fresh(2, 1), FRESH, 1);
    let out = lanes.next_batch(1);

    lanes.drop_waiting();

    assert!(!lanes.has_ready());
    assert_eq!((lanes.len(), lanes.in_flight()), (1, 1));
    lanes.arrive(fresh(2, 1), FRESH, 2);
    assert_eq!(numbers(&lanes.next_batch(9)), [2]);
    lanes.sent(&out[0]);
    assert!(lanes.has_settlement());
}

#[test]
fn only_rows_that_were_read_as_new_make_a_fresh_settlement() {
    let mut lanes = lanes();
    lanes.arrive(fresh(1, 0), FRESH, 1);
    lanes.arrive(row(2, 1, RowState::Retrying), Source::Retry, 1);
    for (first, fresh) in [(1, true), (2, false)] {
        let out = lanes.next_batch(1);
        assert_eq!(out[0].seq, first);
        lanes.sent(&out[0]);
        assert_eq!(lanes.settlement.fresh, fresh);
    }
}

#[test]
fn what_was_to_be_told_of_a_lost_shard_is_not_told() {
    let mut lanes = lanes();
    for (seq, shard) in [(1, 3), (2, 4), (3, 3)] {
        let mut row = fresh(seq, u8::try_from(seq).unwrap());
        row.shard = shard;
        lanes.arrive(row, FRESH, 1);
    }
    for out in lanes.next_batch(9) {
        if out.seq == 3 {
            lanes.retry(&out, Duration::ZERO, Code::TIMEOUT, String::new());
        } else {
            lanes.sent(&out);
        }
    }

    lanes.void_shards([3].into_iter().collect());

    let batch = lanes.take_settlement().unwrap();
    let told: Vec<i64> = batch.settlement.rows().map(|row| row.seq).collect();
    assert_eq!(told, [2]);
    assert_eq!((lanes.len(), lanes.busy(3), lanes.busy(4)), (1, 0, 1));
}
