//! The conformance suite of the guard: each case is a function that runs on every store.
//!
//! [`guard_suite!`](crate::guard_suite) makes one test of each, and
//! [`guard_tx_suite!`](crate::guard_tx_suite) one of each that is about transactions.

pub mod changing;
pub mod fixture;
pub mod harness;
pub mod locking;
pub mod purging;
pub mod putting;
pub mod racing;
pub mod showing;
pub mod snapshots;
pub mod tokens;
pub mod transactions;

use std::future::Future;
use std::sync::Arc;

use fixture::GuardFixture;
use harness::GuardHarness;
pub use harness::MemoryGuardHarness;

use crate::suite::SEATS;

/// Runs one case on a fresh guard, and removes its tables afterwards.
///
/// # Panics
/// When the case does.
pub fn run<H, C, F>(case: C)
where
    H: GuardHarness,
    C: FnOnce(GuardFixture<H>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("no runtime");
    runtime.block_on(async {
        let _seat = SEATS.acquire().await;
        let Some(harness) = H::fresh().await else {
            return;
        };
        let harness = Arc::new(harness);
        let outcome = tokio::spawn(case(GuardFixture::new(Arc::clone(&harness)))).await;
        harness.clean_up().await;
        if let Err(failure) = outcome {
            std::panic::resume_unwind(failure.into_panic());
        }
    });
}

/// Makes one test of each case of the guard's conformance suite, on the store of a
/// [`GuardHarness`](crate::guard::harness::GuardHarness).
#[macro_export]
macro_rules! guard_suite {
    ($harness:ty) => {
        $crate::guard_cases!($harness, putting:
            a_record_is_put_where_none_is,
            a_second_record_of_a_key_is_refused_and_changes_nothing,
            a_record_is_replaced_under_its_number_only,
            a_record_that_is_gone_is_not_replaced,
            fencing_numbers_grow_also_when_the_record_was_forgotten,
            another_run_keeps_the_birthday_and_another_request_does_not,
            case_39_keys_that_look_alike_are_different,
            case_10_callers_do_not_see_each_other,
        );
        $crate::guard_cases!($harness, changing:
            a_heartbeat_prolongs_the_lease,
            only_a_processing_record_has_a_heart,
            a_record_ends_in_every_way,
            case_23_a_stale_number_changes_nothing,
            what_is_over_is_not_changed,
            an_uncertain_record_can_be_settled,
            what_has_changed_since_it_was_found_is_not_settled,
            a_released_record_is_gone,
            an_absent_record_is_not_changed,
            a_record_in_any_state_can_be_forgotten,
            an_owner_may_end_what_it_lost_while_nobody_has_settled_it,
            case_23_a_rival_after_reconciliation_fences_the_first_off,
            case_24_heartbeats_keep_a_claim_over_many_leases,
        );
        $crate::guard_cases!($harness, snapshots:
            every_answer_comes_back_as_it_was_given,
            case_15_an_answer_that_was_not_kept_is_not_an_empty_one,
            case_4_a_large_answer_comes_back_byte_for_byte,
        );
        $crate::guard_cases!($harness, showing:
            records_are_listed_the_most_recently_changed_first,
            lists_are_filtered,
            stuck_records_are_found_the_oldest_first,
            stuck_records_are_found_page_by_page,
            figures_are_told_for_each_business_type,
        );
        $crate::guard_cases!($harness, purging:
            what_is_over_and_expired_goes_in_batches,
            what_is_not_over_is_never_purged,
            an_expired_record_makes_room,
            case_32_a_purge_during_completions_takes_no_live_record,
        );
        $crate::guard_cases!($harness, racing:
            fifty_claims_at_once_have_one_winner,
            case_31_fifty_replacements_at_once_have_one_winner,
            an_end_and_a_release_at_once_are_one_of_them,
        );
        $crate::guard_cases!($harness, tokens:
            a_token_is_used_once,
            case_35_a_hundred_uses_at_once_have_one_winner,
            case_35_a_token_of_somebody_else_is_refused_and_not_used_up,
            a_token_expires,
            expired_tokens_go_in_batches,
            a_bad_owner_is_refused,
        );
        $crate::lock_suite!($crate::guard::run::<$harness, _, _>);
    };
}

/// Makes one test of each case about claims inside transactions, on the store of a
/// [`TxHarness`](crate::guard::harness::TxHarness).
#[macro_export]
macro_rules! guard_tx_suite {
    ($harness:ty) => {
        $crate::guard_cases!($harness, transactions:
            record_and_business_commit_together,
            case_22_a_rollback_leaves_nothing_and_the_key_is_free,
            case_22_a_dropped_transaction_leaves_nothing_and_the_key_is_free,
            case_22_a_caller_that_goes_away_while_it_claims_leaves_nothing,
            case_5_a_second_claim_is_refused_while_the_first_is_open,
            another_key_is_not_in_the_way,
            a_claim_is_refused_when_the_record_is_there,
            case_31_a_claim_is_refused_when_the_record_is_not_as_expected,
            a_record_is_replaced_in_a_transaction,
            case_19_a_business_error_is_recorded_without_its_rows,
            case_41_a_swallowed_error_records_nothing,
            case_41_after_a_swallowed_error_the_pool_goes_on,
            a_pool_of_one_connection_is_enough,
            case_32_a_purge_passes_over_what_a_transaction_replaces,
            case_39_odd_keys_are_claimed_like_others,
            twenty_claims_at_once_run_one_after_the_other,
            a_domain_has_a_table_of_its_own,
            nobody_sees_an_unfinished_claim,
        );
    };
}

/// One module of tests.
#[doc(hidden)]
#[macro_export]
macro_rules! guard_cases {
    ($harness:ty, $module:ident: $($case:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::guard::run::<$harness, _, _>($crate::guard::$module::$case);
                }
            )*
        }
    };
}
