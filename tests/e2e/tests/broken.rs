//! The checker against stores that are broken on purpose: it must find each, and nothing else.

use counterfoil_e2e::broken::Fault;
use counterfoil_e2e::checker::{Repeats, Rules, Violation, check};
use counterfoil_e2e::simulation::play;

const SEEDS: [u64; 3] = [1, 2, 3];

async fn violations(seed: u64, fault: Fault) -> Vec<Violation> {
    let evidence = play(seed, fault).await;
    check(&evidence, &Rules::new(Repeats::NewOwner))
}

/// Plays the history on a store with this fault; every time, the checker must see it.
async fn must_be_caught(fault: Fault, as_what: fn(&Violation) -> bool) {
    for seed in SEEDS {
        let found = violations(seed, fault).await;

        let list: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(
            found.iter().any(as_what),
            "seed {seed}: {fault:?} was not caught: {list:#?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_without_a_fault_passes() {
    for seed in SEEDS {
        let found = violations(seed, Fault::None).await;

        let list: Vec<String> = found.iter().map(ToString::to_string).collect();
        assert!(list.is_empty(), "seed {seed}: {list:#?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_settles_before_it_publishes_is_caught_losing_messages() {
    must_be_caught(Fault::SettlesBeforePublishing, |v| {
        matches!(v, Violation::Lost(..))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_skips_fencing_is_caught_believing_a_stale_owner() {
    must_be_caught(Fault::SkipsFencing, |v| {
        matches!(v, Violation::WrongEnd(..))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_reorders_is_caught_overtaking() {
    must_be_caught(Fault::Reorders, |v| matches!(v, Violation::Overtook { .. })).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_drops_rows_is_caught_losing_messages() {
    must_be_caught(Fault::Drops(17), |v| matches!(v, Violation::Lost(..))).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_that_forgets_holds_is_caught_overtaking() {
    must_be_caught(Fault::ForgetsHolds, |v| {
        matches!(v, Violation::Overtook { .. })
    })
    .await;
}
