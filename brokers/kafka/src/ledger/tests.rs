use super::*;

fn message(key: &str) -> Fetched {
    Fetched {
        key: Some(Bytes::copy_from_slice(key.as_bytes())),
        headers: Vec::new(),
        body: Bytes::from_static(b"body"),
    }
}

/// A ledger with messages of one partition, each with the key of its name.
fn ledger(keys: &[&str]) -> Ledger {
    let mut ledger = Ledger::new("t".into(), 100);
    for (offset, key) in (0..).zip(keys) {
        ledger.push(0, offset, Some(5), message(key));
    }
    ledger
}

fn positions(arrivals: &[Arrival]) -> Vec<&str> {
    arrivals.iter().map(|a| a.position.as_str()).collect()
}

fn mark(offset: i64) -> Mark {
    Mark {
        offset,
        epoch: Some(5),
    }
}

#[test]
fn a_mark_never_passes_what_is_not_settled() {
    let mut ledger = ledger(&["a", "b", "c"]);
    let out = ledger.take(3);

    ledger.done(out[1].tag);
    assert_eq!(ledger.marks(), []);
    ledger.done(out[0].tag);
    assert_eq!(ledger.marks(), [(0, mark(2))]);
    ledger.marked(&[(0, mark(2))]);
    assert_eq!(ledger.marks(), []);
    ledger.release(out[2].tag);
    assert_eq!(ledger.marks(), []);
    let again = ledger.take(1);
    ledger.done(again[0].tag);

    assert_eq!(ledger.marks(), [(0, mark(3))]);
}

#[test]
fn a_mark_that_moved_on_while_it_was_told_is_told_again() {
    let mut ledger = ledger(&["a", "b"]);
    let out = ledger.take(2);
    ledger.done(out[0].tag);
    let told = ledger.marks();
    ledger.done(out[1].tag);

    ledger.marked(&told);

    assert_eq!(ledger.marks(), [(0, mark(2))]);
}

#[test]
fn offsets_may_have_gaps() {
    let mut ledger = ledger(&["a"]);
    ledger.push(0, 10, None, message("b"));
    let out = ledger.take(2);

    ledger.done(out[0].tag);
    assert_eq!(ledger.marks(), [(0, mark(1))]);
    ledger.done(out[1].tag);

    let end = Mark {
        offset: 11,
        epoch: None,
    };
    assert_eq!(ledger.marks(), [(0, end)]);
}

#[test]
fn what_is_released_comes_before_others_of_its_key_and_keeps_nobody_waiting() {
    let mut ledger = ledger(&["a", "a", "b", "c"]);
    let first = ledger.take(1);
    ledger.release(first[0].tag);

    let mut seen = Vec::new();
    for _ in 0..4 {
        let mut out = ledger.take(1);
        if out[0].position == "t/0@0" {
            ledger.release(out[0].tag);
        }
        seen.append(&mut out);
    }
    assert_eq!(positions(&seen), ["t/0@0", "t/0@2", "t/0@0", "t/0@3"]);

    let last = ledger.take(2);
    assert_eq!(positions(&last), ["t/0@0", "t/0@1"]);
    assert_eq!(ledger.ready(), 0);
    assert!(ledger.held.is_empty());
}

#[test]
fn what_belonged_to_a_partition_is_forgotten_with_it() {
    let mut ledger = ledger(&["a", "b", "c"]);
    ledger.push(1, 7, None, message("d"));
    let out = ledger.take(3);
    ledger.release(out[0].tag);

    ledger.forget(0);
    for arrival in &out {
        ledger.done(arrival.tag);
        ledger.release(arrival.tag);
    }

    assert_eq!(ledger.marks(), []);
    assert!(ledger.message(out[1].tag).is_none());
    assert_eq!(positions(&ledger.take(10)), ["t/1@7"]);
    assert_eq!(ledger.ready_bytes, 0);
}

#[test]
fn settling_twice_or_for_nobody_changes_nothing() {
    let mut ledger = ledger(&["a", "b"]);
    let out = ledger.take(1);
    ledger.done(out[0].tag);
    ledger.done(out[0].tag);
    ledger.release(out[0].tag);
    ledger.done(Tag(99));

    assert_eq!(ledger.marks(), [(0, mark(1))]);
    assert_eq!(ledger.ready(), 1);
}

#[test]
fn a_log_that_was_cut_is_read_anew_from_the_cut() {
    let mut ledger = ledger(&["a", "b", "c"]);
    let out = ledger.take(3);

    ledger.push(0, 1, Some(6), message("x"));
    ledger.done(out[2].tag);

    assert_eq!(ledger.marks(), []);
    assert_eq!(positions(&ledger.take(5)), ["t/0@1"]);
    ledger.done(out[0].tag);
    assert_eq!(ledger.marks(), [(0, mark(1))]);
}

#[test]
fn what_lies_below_a_cut_is_still_handed_out() {
    let mut ledger = ledger(&["a"; 10]);

    ledger.push(0, 6, Some(6), message("x"));

    let out = ledger.take(10);
    let expected: Vec<String> = (0..=6).map(|offset| format!("t/0@{offset}")).collect();
    assert_eq!(positions(&out), expected);
    assert_eq!(ledger.ready_bytes, 0);
    // The new message alone does not move the mark past those below it.
    ledger.done(out[6].tag);
    assert_eq!(ledger.marks(), []);
    for arrival in &out[..6] {
        ledger.done(arrival.tag);
    }
    let end = Mark {
        offset: 7,
        epoch: Some(6),
    };
    assert_eq!(ledger.marks(), [(0, end)]);
}

#[test]
fn what_was_released_above_a_cut_holds_back_nobody() {
    let mut ledger = ledger(&["a", "b", "b"]);
    let out = ledger.take(3);
    ledger.release(out[0].tag);
    ledger.release(out[1].tag);
    ledger.release(out[2].tag);

    ledger.push(0, 1, Some(6), message("b"));

    assert_eq!(positions(&ledger.take(5)), ["t/0@0", "t/0@1"]);
    assert!(ledger.held.is_empty());
    assert_eq!(ledger.ready(), 0);
}

#[test]
fn a_mark_above_a_cut_is_taken_back() {
    let back = Mark {
        offset: 1,
        epoch: None,
    };
    for told in [false, true] {
        let mut ledger = ledger(&["a", "b", "c"]);
        for arrival in ledger.take(3) {
            ledger.done(arrival.tag);
        }
        if told {
            ledger.marked(&[(0, mark(3))]);
        }

        ledger.push(0, 1, Some(6), message("x"));

        assert_eq!(ledger.marks(), [(0, back)], "told: {told}");
    }
}

#[test]
fn a_partition_is_full_by_number_and_by_bytes_until_somebody_asks() {
    let mut few = Ledger::new("t".into(), 2);
    few.push(0, 0, None, message("a"));
    assert!(!few.is_full(0));
    few.push(0, 1, None, message("a"));
    assert!(few.is_full(0) && few.is_full(1));
    few.take(1);
    assert!(!few.is_full(0));

    let mut large = Ledger::new("t".into(), 100);
    let body = Bytes::from(vec![0; READY_BYTES]);
    large.push(
        0,
        0,
        None,
        Fetched {
            body,
            ..message("a")
        },
    );
    assert!(large.is_full(0));
    large.take(1);
    assert!(!large.is_full(0));
}

#[test]
fn one_that_is_not_settled_holds_back_a_bounded_number() {
    let mut ledger = Ledger::new("t".into(), WINDOW);
    for offset in 0..WINDOW as i64 {
        ledger.push(0, offset, None, message("a"));
    }
    let out = ledger.take(WINDOW);
    for arrival in &out[1..] {
        ledger.done(arrival.tag);
    }
    assert!(ledger.is_full(0) && !ledger.is_full(1));

    ledger.done(out[0].tag);

    assert!(!ledger.is_full(0));
}
