//! What owners and those who settle do to records.

use std::time::Duration;

use counterfoil_core::guard::{Change, Records, State};

use super::fixture::{GuardFixture, KEEP, LEASE, answer, end, every_change};
use super::harness::GuardHarness;

/// The lease counts from the last sign of life.
pub async fn a_heartbeat_prolongs_the_lease<H: GuardHarness>(t: GuardFixture<H>) {
    let claim = t.claim("k").await;
    t.advance(LEASE / 2).await;
    assert!(t.find("k").await.idle() >= LEASE / 2);

    assert!(t.change(claim, &Change::Heartbeat { lease: LEASE }).await);

    t.advance(LEASE * 3 / 4).await;
    let found = t.find("k").await;
    assert_eq!(found.state(), State::Processing);
    assert!(found.idle() >= LEASE * 3 / 4 && found.idle() < LEASE);
    t.advance(LEASE / 4).await;
    assert_eq!(t.find("k").await.state(), State::Uncertain);
}

/// An owner that is in doubt does not come back to life.
pub async fn only_a_processing_record_has_a_heart<H: GuardHarness>(t: GuardFixture<H>) {
    let claim = t.claim("k").await;
    assert!(t.change(claim, &Change::Doubt).await);

    let beaten = t.change(claim, &Change::Heartbeat { lease: LEASE }).await;

    assert!(!beaten);
    assert_eq!(t.find("k").await.record.state, State::Uncertain);
}

/// Succeeded, failed, or to be tried again later.
pub async fn a_record_ends_in_every_way<H: GuardHarness>(t: GuardFixture<H>) {
    for state in [State::Succeeded, State::Failed, State::Retryable] {
        let claim = t.claim(state.as_str()).await;
        t.advance(LEASE / 4).await;

        let ended = t
            .change(
                claim,
                &Change::End {
                    state,
                    snapshot: Some(answer()),
                    keep: KEEP,
                    retry_in: (state == State::Retryable).then_some(LEASE),
                },
            )
            .await;

        assert!(ended);
        let found = t.find(state.as_str()).await;
        let record = &found.record;
        assert_eq!((record.state, record.fence), (state, claim.fence));
        assert_eq!(record.snapshot, Some(answer()));
        assert_eq!(record.lease_until, None);
        let kept = (record.expires_at - found.now).to_std().unwrap();
        assert!(kept <= KEEP && kept > KEEP - LEASE / 5, "{kept:?}");
        let wait = record.retry_at.map(|at| (at - found.now).to_std().unwrap());
        assert_eq!(wait.is_some(), state == State::Retryable);
        assert!(wait.is_none_or(|wait| wait <= LEASE && wait > LEASE * 4 / 5));
        assert!(found.idle() < LEASE / 4);
    }
}

/// Whoever writes under another number than the record's is refused.
pub async fn case_23_a_stale_number_changes_nothing<H: GuardHarness>(t: GuardFixture<H>) {
    let claim = t.claim("k").await;
    let before = t.find("k").await.record;

    for change in every_change() {
        for fence in [0, claim.fence - 1, claim.fence + 1, i64::MAX, i64::MIN] {
            assert!(!t.change(claim.under(fence), &change).await, "{change:?}");
        }
    }

    assert_eq!(t.find("k").await.record, before);
}

/// The first end is the end.
pub async fn what_is_over_is_not_changed<H: GuardHarness>(t: GuardFixture<H>) {
    for state in [State::Succeeded, State::Failed, State::Retryable] {
        let claim = t.ended(state.as_str(), state).await;
        let before = t.find(state.as_str()).await.record;

        for change in every_change() {
            assert!(!t.change(claim, &change).await, "{state:?} {change:?}");
        }

        assert_eq!(t.find(state.as_str()).await.record, before);
    }
}

/// Doubt can be said twice, and ends when somebody knows.
pub async fn an_uncertain_record_can_be_settled<H: GuardHarness>(t: GuardFixture<H>) {
    let happened = t.claim("happened").await;
    let did_not = t.claim("did not").await;
    for claim in [happened, did_not] {
        assert!(t.change(claim, &Change::Doubt).await);
        assert!(t.change(claim, &Change::Doubt).await);
    }
    let found = t.find("happened").await.record;
    assert_eq!((found.state, found.lease_until), (State::Uncertain, None));

    assert!(t.change(happened, &end(State::Succeeded)).await);
    assert!(t.change(did_not, &Change::Release).await);

    assert_eq!(t.find("happened").await.record.state, State::Succeeded);
    assert_eq!(t.look("did not").await, None);
}

/// An owner that was believed dead comes back, and is lost once more: what was found out before says
/// nothing of what it has done since.
pub async fn what_has_changed_since_it_was_found_is_not_settled<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let owner = t.claim("k").await;
    t.advance(LEASE).await;
    let before = t.find("k").await;
    t.advance(LEASE).await;
    assert!(t.change(owner, &Change::Heartbeat { lease: LEASE }).await);
    t.advance(LEASE).await;
    let now = t.find("k").await;

    for verdict in [Change::Release, end(State::Succeeded), Change::Doubt] {
        assert!(!t.guard.settle(&before, &verdict).await.unwrap());
    }
    assert_eq!(t.find("k").await.record, now.record);
    assert!(t.guard.settle(&now, &end(State::Succeeded)).await.unwrap());
    assert_eq!(t.find("k").await.record.state, State::Succeeded);
    assert!(!t.guard.settle(&now, &Change::Release).await.unwrap());

    let gone = t.claim("gone").await;
    assert!(t.change(gone, &Change::Doubt).await);
    let found = t.find("gone").await;
    assert!(t.guard.settle(&found, &Change::Release).await.unwrap());
    assert_eq!(t.look("gone").await, None);
}

/// The next request runs.
pub async fn a_released_record_is_gone<H: GuardHarness>(t: GuardFixture<H>) {
    let first = t.claim("k").await;

    assert!(t.change(first, &Change::Release).await);

    assert_eq!(t.look("k").await, None);
    assert!(!t.change(first, &Change::Release).await);
    assert!(t.claim("k").await.fence > first.fence);
}

/// Nothing there, nothing changed.
pub async fn an_absent_record_is_not_changed<H: GuardHarness>(t: GuardFixture<H>) {
    let claim = t.claim("k").await;
    assert!(t.guard.forget(&claim.digest).await.unwrap());

    for change in every_change() {
        assert!(!t.change(claim, &change).await);
    }

    assert_eq!(t.look("k").await, None);
}

/// An operator removes a key.
pub async fn a_record_in_any_state_can_be_forgotten<H: GuardHarness>(t: GuardFixture<H>) {
    let mut claims = vec![t.claim("processing").await, t.claim("doubt").await];
    assert!(t.change(claims[1], &Change::Doubt).await);
    for state in [State::Succeeded, State::Failed, State::Retryable] {
        claims.push(t.ended(state.as_str(), state).await);
    }

    for claim in claims {
        assert!(t.guard.forget(&claim.digest).await.unwrap());
        assert!(!t.guard.forget(&claim.digest).await.unwrap());
        assert_eq!(t.guard.look(&claim.digest).await.unwrap(), None);
    }
}

/// Late is better than never, as long as nobody has said otherwise.
pub async fn an_owner_may_end_what_it_lost_while_nobody_has_settled_it<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let claim = t.claim("k").await;
    t.advance(LEASE * 2).await;
    assert_eq!(t.find("k").await.state(), State::Uncertain);

    assert!(t.change(claim, &end(State::Succeeded)).await);

    assert_eq!(t.find("k").await.state(), State::Succeeded);
}

/// Reconciled as "did not happen", claimed by a rival: the first one's end is refused.
pub async fn case_23_a_rival_after_reconciliation_fences_the_first_off<H: GuardHarness>(
    t: GuardFixture<H>,
) {
    let first = t.claim("k").await;
    t.advance(LEASE).await;
    assert!(t.change(first, &Change::Release).await);
    let rival = t.claim("k").await;

    for change in every_change() {
        assert!(!t.change(first, &change).await, "{change:?}");
    }

    assert!(rival.fence > first.fence);
    assert!(t.change(rival, &end(State::Succeeded)).await);
    assert_eq!(t.find("k").await.record.fence, rival.fence);
}

/// A handler may take longer than its lease.
pub async fn case_24_heartbeats_keep_a_claim_over_many_leases<H: GuardHarness>(t: GuardFixture<H>) {
    let claim = t.claim("k").await;
    let mut passed = Duration::ZERO;

    while passed < LEASE * 3 {
        t.advance(LEASE / 2).await;
        passed += LEASE / 2;
        assert_eq!(t.find("k").await.state(), State::Processing);
        assert!(t.change(claim, &Change::Heartbeat { lease: LEASE }).await);
    }

    assert!(t.change(claim, &end(State::Succeeded)).await);
}
