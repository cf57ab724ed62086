//! The conformance suite of stores: each case is a function that runs on every store.
//!
//! [`store_suite!`](crate::store_suite) makes one test of each.

pub mod auditing;
pub mod concurrency;
pub mod desk;
pub mod explaining;
pub mod fencing;
pub mod foreign;
pub mod foreign_edges;
pub mod history;
pub mod lanes;
pub mod late_commits;
pub mod ledger;
pub mod model;
pub mod numbers;
pub mod ownership;
pub mod parking;
pub mod presence;
pub mod reading;
pub mod settling;
pub mod waiting;
pub mod wiring;

use std::future::Future;
use std::sync::Arc;

use tokio::sync::Semaphore;

use crate::fixture::Fixture;
use crate::harness::Harness;

/// Cases at the same time: a machine with many cores must not use up a server's connections.
pub(crate) static SEATS: Semaphore = Semaphore::const_new(8);

/// Runs one case on a fresh outbox, and removes the outbox afterwards.
///
/// # Panics
/// When the case does.
pub fn run<H, C, F>(case: C)
where
    H: Harness,
    C: FnOnce(Fixture<H>) -> F,
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
        let outcome = tokio::spawn(case(Fixture::new(Arc::clone(&harness)))).await;
        harness.clean_up().await;
        if let Err(failure) = outcome {
            std::panic::resume_unwind(failure.into_panic());
        }
    });
}

/// Random choices that can be repeated: a failing test prints its seed.
pub struct Seed(fastrand::Rng);

impl Seed {
    /// From `COUNTERFOIL_TEST_SEED`, or a new one. Printed, so that a failure can be repeated.
    pub fn new(test: &str) -> Self {
        let given = std::env::var("COUNTERFOIL_TEST_SEED")
            .ok()
            .and_then(|s| s.parse().ok());
        let seed = given.unwrap_or_else(|| fastrand::u64(..));
        println!("{test}: COUNTERFOIL_TEST_SEED={seed}");
        Self(fastrand::Rng::with_seed(seed))
    }

    /// A number below `n`.
    pub fn below(&mut self, n: usize) -> usize {
        self.0.usize(..n)
    }
}

/// Makes one test of each case of the conformance suite, on the store of a
/// [`Harness`](crate::harness::Harness).
#[macro_export]
macro_rules! store_suite {
    ($harness:ty) => {
        $crate::cases!($harness, ownership:
            a_shard_whose_owner_lives_cannot_be_taken,
            taking_what_one_owns_changes_nothing,
            only_wanted_shards_are_taken,
            a_given_shard_is_taken_under_a_higher_number,
            fencing_numbers_only_grow,
            giving_what_one_does_not_own_changes_nothing,
            a_relay_that_leaves_is_forgotten_and_owns_nothing,
            a_survey_shows_who_lives_and_who_owns_what,
            a_lapsed_relay_loses_its_shards_and_learns_it,
            a_lapsed_relay_cannot_prolong_its_lease,
            a_lease_ends_when_the_last_heartbeat_said,
            owning_one_queue_says_nothing_about_another,
        );
        $crate::cases!($harness, reading:
            committed_messages_are_read_in_the_order_of_their_numbers,
            reading_twice_gives_the_same_rows,
            what_is_not_committed_is_not_read,
            a_rolled_back_enqueue_is_never_read,
            an_enqueue_that_a_savepoint_took_back_is_never_read,
            a_refused_message_leaves_the_transaction_usable,
            a_message_comes_back_as_it_was_written,
            rows_of_other_queues_are_not_read,
            queues_whose_names_look_alike_are_different,
            rows_of_shards_that_are_not_asked_for_are_not_read,
            an_aggregate_stays_in_one_shard,
            a_truncated_read_continues_without_loss,
            rows_in_the_skip_list_are_left_out,
            several_wants_are_answered_in_their_order,
            a_paused_queue_is_not_read_until_it_is_resumed,
            an_early_row_is_flagged,
            a_hot_lane_is_read_in_order,
            a_read_brings_no_more_bytes_than_it_may,
        );
        $crate::cases!($harness, late_commits:
            a_transaction_that_commits_late_is_not_skipped,
            a_low_mark_does_not_pass_an_open_transaction,
            a_low_mark_does_not_pass_a_transaction_that_enqueues_late,
            a_low_mark_never_reorders,
            a_low_mark_moves_when_nobody_holds_it,
            a_low_mark_hides_nothing_whatever_happens,
        );
        $crate::cases!($harness, settling:
            sent_rows_leave_the_outbox,
            an_empty_settlement_changes_nothing,
            a_large_batch_is_settled_at_once,
            rows_that_are_gone_are_passed_over,
            one_settlement_says_many_things,
            odd_error_texts_are_stored,
            a_rerouted_row_is_replaced_by_its_copies,
            a_rerouted_row_keeps_its_due_time,
            the_store_enqueues_in_a_transaction_of_its_own,
        );
        $crate::cases!($harness, fencing:
            a_stale_owner_cannot_change_anything,
            the_owner_can_change_everything,
            an_old_number_of_ones_own_is_stale,
            a_number_under_another_name_is_worth_nothing,
            a_lapsed_owner_cannot_settle,
            lost_shards_are_left_alone_and_the_others_are_settled,
            a_suspicion_is_counted_durably,
        );
        $crate::cases!($harness, numbers:
            a_number_that_came_back_is_not_settled_as_the_old_message,
            the_other_rows_of_a_settlement_are_settled,
            of_two_messages_under_one_number_the_right_one_is_settled,
            an_odd_id_is_known_again_exactly,
            a_message_that_is_not_parked_is_not_compensated,
        );
        $crate::cases!($harness, waiting:
            a_retry_comes_back_when_it_is_due,
            a_retry_keeps_what_went_wrong,
            a_retry_without_delay_is_due_at_once,
            an_endless_delay_is_stored,
            waiting_rows_come_earliest_first,
            waiting_rows_are_read_by_queue_shard_and_skip_list,
            waiting_rows_bring_no_more_bytes_than_they_may,
            a_scheduled_row_comes_when_its_time_has_come,
            a_scheduled_row_is_overtaken,
            a_scheduled_row_comes_due_behind_a_retry,
            a_scheduled_row_comes_due_behind_a_parked_one,
            a_deferred_row_comes_back_and_holds_nobody,
            what_no_route_wanted_can_be_made_due,
        );
        $crate::cases!($harness, lanes:
            rows_behind_a_retry_are_flagged,
            rows_behind_a_held_row_are_flagged,
            held_rows_come_when_the_head_is_settled,
            a_held_row_that_fails_blocks_the_rest,
            lanes_are_read_from_the_front_up_to_a_limit,
            runnable_lanes_are_found_exactly,
            a_search_for_lanes_goes_on_where_it_stopped,
            queues_with_work_are_told,
            aggregates_whose_names_look_alike_are_different,
            a_slash_in_a_name_does_not_join_two_aggregates,
            an_absent_and_an_empty_type_are_one_lane,
            a_retry_without_an_aggregate_is_no_lane,
            a_long_lane_drains_in_order,
            lanes_bring_no_more_bytes_than_they_may,
        );
        $crate::cases!($harness, parking:
            a_parked_message_is_listed_with_its_reason,
            a_parked_message_holds_its_aggregate,
            a_parked_message_holds_nobody_in_other_queues,
            a_message_parked_without_hold_blocks_nobody,
            a_redriven_message_comes_back_under_the_same_id,
            a_redriven_message_is_due_at_once,
            a_redriven_message_lifts_its_block_when_it_is_sent,
            a_redriven_message_may_fail_and_be_tried_again,
            parking_again_reopens_the_record,
            a_message_that_is_parked_again_tells_the_last_time,
            a_redriven_message_that_is_rerouted_closes_its_record,
            a_message_is_redriven_once,
            a_message_that_is_named_twice_is_redriven_once,
            a_confirmation_that_is_needed_must_be_given,
            a_batch_is_redriven_lowest_first,
            a_redrive_does_not_overtake_what_is_parked_before_it,
            a_refused_redrive_keeps_the_later_ones_back,
            an_aggregate_is_redriven_in_its_order,
            a_redriven_message_waits_behind_an_earlier_retry,
            an_ignored_message_lifts_its_block,
            only_what_is_pending_can_be_ignored,
            an_ignored_message_comes_back_when_it_is_confirmed,
            a_compensation_is_enqueued_with_the_parking,
            cancelling_a_redriven_message_lifts_its_block,
            a_message_without_an_aggregate_is_parked_and_redriven,
        );
        $crate::cases!($harness, foreign:
            an_empty_row_gets_the_documented_defaults,
            a_row_of_nulls_gets_the_same_id_at_every_look,
            odd_values_are_parked_with_a_reason_and_block_nobody,
            odd_rows_can_be_redriven_and_parked_again,
            unusual_values_are_delivered,
            a_version_may_come_twice,
            an_id_may_come_twice,
            a_message_is_found_by_any_spelling_of_its_id,
            a_foreign_row_that_is_taken_back_is_never_read,
        );
        $crate::cases!($harness, foreign_edges:
            a_count_at_its_limit_blocks_nobody,
            odd_counts_are_told_as_counts,
            a_row_without_an_id_is_found_by_its_number,
            odd_times_are_early_or_due,
            odd_times_of_waiting_rows_are_understood,
            states_that_only_we_should_write_are_read_all_the_same,
            a_row_with_an_endless_aggregate_can_be_settled_in_every_way,
            a_queue_without_end_waits_and_is_counted,
        );
        $crate::cases!($harness, ledger:
            a_key_is_recognised_in_the_same_transaction,
            a_key_is_recognised_after_commit_and_after_settlement,
            a_key_is_free_after_a_rollback,
            keys_that_look_alike_are_different,
            a_message_without_a_key_is_always_the_first,
            a_bad_key_is_refused,
            a_batch_is_recognised_piece_by_piece,
            a_batch_keeps_its_order_with_and_without_keys,
            a_refused_batch_leaves_nothing,
        );
        $crate::cases!($harness, desk:
            an_empty_queue_has_no_oldest_message,
            stats_count_every_message_under_its_state,
            stats_show_who_serves_a_queue,
            a_redriven_message_is_counted_once,
            lists_are_filtered_and_paged,
            the_parking_lot_is_filtered_and_paged,
            a_message_is_shown_with_its_content,
            a_cancelled_message_is_never_delivered,
            cancelling_the_head_of_a_lane_lets_it_go_on,
            only_pending_messages_can_be_cancelled,
        );
        $crate::cases!($harness, auditing:
            an_audit_finds_nothing_after_an_ordinary_day,
            an_audit_finds_what_is_double,
            an_audit_finds_what_is_missing,
        );
        $crate::cases!($harness, explaining:
            an_unknown_message_is_unknown,
            a_settled_message_is_known_by_its_key,
            a_sent_message_says_when,
            a_cancelled_message_says_why,
            a_parked_message_says_who_waits_for_it,
            a_redriven_message_says_where_it_is,
            a_retry_says_when_it_comes,
            a_scheduled_message_says_for_when,
            a_message_in_a_paused_queue_says_why,
            a_message_that_nobody_serves_says_so,
            a_message_without_a_route_says_so,
            a_message_to_an_unavailable_destination_says_since_when,
            a_due_message_says_who_has_it,
        );
        $crate::cases!($harness, history:
            a_sent_message_can_be_kept,
            old_history_is_swept_in_batches,
            cancelled_messages_are_swept_too,
            keys_have_a_retention_of_their_own,
            parked_messages_that_are_over_are_swept,
            a_kept_message_keeps_its_story,
            nothing_that_is_not_over_is_ever_swept,
        );
        $crate::cases!($harness, presence:
            a_consumer_is_listed_as_it_last_said,
            a_consumer_that_falls_silent_is_shown_as_such,
            relays_are_listed_with_what_they_own,
            a_dead_relay_is_listed_for_as_long_as_it_owns_something,
        );
        $crate::cases!($harness, wiring:
            a_store_describes_itself,
            migrations_can_be_run_again_and_by_several_at_once,
            an_unavailable_destination_is_remembered,
            what_is_remembered_of_breakers_outlives_the_process,
            an_operators_word_and_an_open_breaker_are_kept_apart,
            an_open_breaker_is_shown_with_its_error_and_its_next_probe,
            pausing_twice_keeps_the_first_reason,
            a_queue_tells_who_paused_and_resumed_it,
            a_note_says_who_did_what_and_why,
            a_pause_and_an_outage_are_kept_apart,
            an_announcement_wakes_whoever_listens,
        );
        $crate::cases!($harness, concurrency:
            a_shard_never_has_two_owners,
            a_key_used_twice_at_once_is_used_once,
            a_request_repeated_at_once_is_stored_once,
            a_message_redriven_twice_at_once_comes_back_once,
            a_message_cancelled_while_it_is_settled_ends_once,
            order_is_kept_through_failures_and_handovers,
        );
        $crate::cases!($harness, model:
            a_store_answers_as_the_model_does,
        );
    };
}

/// One module of tests.
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    ($harness:ty, $module:ident: $($case:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $case() {
                    $crate::suite::run::<$harness, _, _>($crate::suite::$module::$case);
                }
            )*
        }
    };
}
