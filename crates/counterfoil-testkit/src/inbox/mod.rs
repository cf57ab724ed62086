//! The conformance suite of the inbox: each case is a function that runs on every store.
//!
//! [`inbox_suite!`](crate::inbox_suite) makes one test of each.

pub mod admitting;
pub mod breaking;
pub mod deferring;
pub mod fixture;
pub mod forcing;
pub mod harness;
pub mod purging;
pub mod racing;
pub mod retrying;
pub mod taking;
pub mod versions;

use std::future::Future;

use harness::InboxHarness;

use crate::fixture::Fixture;

/// Runs one case on a fresh inbox, and removes its tables afterwards.
///
/// # Panics
/// When the case does.
pub fn run<H, C, F>(case: C)
where
    H: InboxHarness,
    C: FnOnce(Fixture<H>) -> F + Send + 'static,
    F: Future<Output = ()> + Send + 'static,
{
    crate::suite::run::<H, _, _>(move |t: Fixture<H>| async move {
        t.harness.prepare().await;
        case(t).await;
    });
}

/// Makes one test of each case of the inbox's conformance suite, on the store of an
/// [`InboxHarness`](crate::inbox::harness::InboxHarness).
#[macro_export]
macro_rules! inbox_suite {
    ($harness:ty) => {
        $crate::inbox_cases!($harness, admitting:
            a_first_arrival_is_fresh_and_the_second_is_not,
            a_rolled_back_arrival_leaves_the_key_fresh,
            a_dropped_transaction_leaves_the_key_fresh,
            an_arrival_waits_for_an_open_one_and_is_a_repeat_after_its_commit,
            an_arrival_waits_for_an_open_one_and_is_fresh_after_its_rollback,
            consumers_do_not_share_keys,
            keys_that_look_alike_are_different,
            a_name_that_cannot_be_stored_is_refused_before_anything_is_written,
            a_large_batch_is_told_key_by_key,
            nothing_at_all_is_admitted_too,
            a_caller_that_goes_away_while_it_begins_leaves_nothing,
        );
        $crate::inbox_cases!($harness, versions:
            versions_are_remembered_after_a_commit_and_not_after_a_rollback,
            a_version_does_not_come_down,
            of_several_versions_in_one_batch_the_highest_counts,
            one_aggregate_is_processed_by_one_at_a_time,
            a_new_aggregate_is_processed_by_one_at_a_time,
            different_aggregates_do_not_wait_for_each_other,
            consumers_do_not_share_aggregates,
            aggregates_that_look_alike_are_different,
        );
        $crate::inbox_cases!($harness, deferring:
            what_failed_waits_in_the_outbox_with_its_reason,
            content_of_both_kinds_comes_back_as_it_was,
            what_is_put_off_for_no_time_is_due_at_once,
            what_stands_behind_is_handed_out_after_its_head_and_in_order,
            a_rollback_puts_nothing_off,
            a_key_that_was_not_admitted_cannot_be_put_off,
            a_bad_message_is_refused_before_anything_is_written,
            an_error_may_hold_anything,
            many_at_once_keep_their_order,
            nothing_to_put_off_is_nothing,
        );
        $crate::inbox_cases!($harness, retrying:
            what_is_put_off_is_a_repeat_for_arrivals,
            a_retry_is_admitted_once,
            a_retry_that_is_rolled_back_still_waits,
            a_retry_of_what_was_forgotten_is_admitted,
            a_retry_of_what_was_applied_is_a_repeat,
            of_two_retries_one_waits_and_is_a_repeat,
        );
        $crate::inbox_cases!($harness, taking:
            a_lane_is_taken_while_something_of_it_is_put_off,
            what_another_has_put_off_is_seen_when_its_lane_is_free,
            a_transaction_of_the_application_sees_it_too,
            a_parked_one_that_holds_takes_its_lane_until_it_is_decided,
            a_parked_one_that_is_skipped_takes_nothing,
            rows_of_others_take_nothing,
            a_retry_finds_nothing_taken,
        );
        $crate::inbox_cases!($harness, forcing:
            only_a_confirmed_redrive_forces,
            a_redrive_without_the_need_of_a_confirmation_does_not_force,
        );
        $crate::inbox_cases!($harness, purging:
            what_was_applied_long_ago_goes_in_batches,
            what_waits_is_kept,
            aggregates_that_were_touched_since_are_kept,
            a_forgotten_key_is_fresh_again,
            versions_are_kept_for_ever_when_asked_to,
            a_purge_passes_over_what_is_just_processed,
            any_age_will_do,
        );
        $crate::inbox_cases!($harness, breaking:
            a_swallowed_error_commits_nothing,
            after_a_swallowed_error_the_pool_goes_on,
            a_handler_that_ends_the_transaction_is_found_out,
            an_aggregate_that_was_not_admitted_cannot_be_finished,
        );
        $crate::inbox_cases!($harness, racing:
            twenty_arrivals_at_once_have_one_effect,
            opposite_orders_come_to_an_end_and_apply_each_key_once,
            batches_in_order_come_to_an_end_and_apply_each_key_once,
        );
    };
}

/// One module of tests.
#[doc(hidden)]
#[macro_export]
macro_rules! inbox_cases {
    ($harness:ty, $module:ident: $($case:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::inbox::run::<$harness, _, _>($crate::inbox::$module::$case);
                }
            )*
        }
    };
}
