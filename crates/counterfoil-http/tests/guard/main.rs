//! The cases of the guard as a tower layer, on every database.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::needless_pass_by_value,
    reason = "this is test code: a surprise ends the test"
)]

mod app;
mod database;
mod gated;
mod leased;
mod syntax;
mod tokens;
mod transactional;

/// One test for each database and each case.
macro_rules! cases {
    ($($module:ident :: $case:ident),* $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::database::run::<counterfoil::Sqlite, _, _>(crate::$module::$case).await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::database::run::<counterfoil::Postgres, _, _>(crate::$module::$case).await;
            })*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::database::run::<counterfoil::MySql, _, _>(crate::$module::$case).await;
            })*
        }
    };
}

cases! {
    syntax::case_01_a_required_key_that_is_missing_is_refused_with_a_link,
    syntax::case_02_where_the_syntax_is_strict_a_bare_key_is_refused,
    syntax::case_09_safe_methods_ignore_the_key,
    syntax::case_12_a_body_over_the_limit_is_refused_before_any_claim,
    syntax::case_13_an_upload_that_breaks_off_claims_nothing,
    syntax::case_30_hostile_keys_are_refused_and_never_an_error_of_the_server,
    syntax::case_33_json_in_another_spelling_is_the_same_payload,
    syntax::case_40_a_form_with_another_boundary_is_the_same_payload,
    syntax::a_body_that_cannot_be_looked_into_is_the_same_byte_for_byte,
    syntax::a_guarded_method_in_lower_case_is_refused,
    syntax::hostile_json_is_refused,
    syntax::an_optional_key_may_be_left_out,
    syntax::a_caller_that_is_not_known_is_refused,
    transactional::case_03_a_fresh_key_runs_once,
    transactional::case_04_a_repeat_gets_the_same_bytes,
    transactional::case_05_a_repeat_waits_for_the_answer_or_is_told_to_come_again,
    transactional::case_06_another_payload_is_refused,
    transactional::case_07_another_payload_meanwhile_waits_for_the_commit,
    transactional::case_07_another_payload_is_in_progress_until_the_commit,
    transactional::case_08_a_repeat_after_a_409_ends_as_a_replay,
    transactional::case_10_callers_do_not_share_keys,
    transactional::case_11_another_path_or_query_is_never_replayed,
    transactional::case_11_the_whole_path_counts_inside_a_nested_router,
    transactional::case_14_the_handler_finishes_when_the_caller_goes_away,
    transactional::case_15_an_answer_that_is_too_large_is_given_once,
    transactional::case_16_a_stream_is_not_buffered,
    transactional::case_17_refusals_are_not_recorded,
    transactional::case_18_an_error_of_the_server_is_rolled_back_and_runs_again,
    transactional::case_19_a_business_error_is_replayed_and_its_rows_are_taken_back,
    transactional::case_28_a_replay_keeps_what_belongs_to_the_answer,
    transactional::case_29_many_waiters_get_identical_bytes,
    transactional::case_29_after_a_failure_exactly_one_successor_runs,
    transactional::case_34_authorisation_runs_before_the_guard,
    transactional::case_36_a_repeated_serial_is_a_plain_duplicate_where_wanted,
    transactional::case_38_in_overwrite_mode_the_newer_runs,
    transactional::case_39_keys_that_look_alike_are_different,
    transactional::case_41_a_swallowed_error_records_nothing,
    transactional::case_42_many_duplicates_and_few_connections,
    transactional::a_panic_rolls_back_and_the_repeat_runs,
    transactional::a_handler_that_keeps_the_transaction_commits_nothing,
    transactional::an_error_that_may_pass_later_runs_again,
    leased::case_04_leased_a_repeat_gets_the_same_bytes,
    leased::case_07_another_payload_meanwhile_is_refused_at_once,
    leased::case_14_leased_the_handler_finishes_when_the_caller_goes_away,
    leased::case_16_leased_a_stream_is_not_buffered,
    leased::case_17_leased_refusals_are_not_recorded,
    leased::case_18_an_error_of_the_server_leaves_uncertainty,
    leased::of_failures_little_is_kept_and_none_runs_again,
    leased::a_repeat_comes_again_where_a_check_finds_out,
    leased::case_18_a_harmless_error_runs_again_and_a_final_one_is_replayed,
    leased::case_19_leased_a_business_error_is_replayed,
    leased::case_23_a_stale_owner_gets_the_winners_answer,
    leased::case_23_the_caller_of_a_stale_owner_gets_the_winners_answer,
    leased::case_24_a_handler_longer_than_its_lease_stays_exclusive,
    leased::case_38_in_overwrite_mode_the_older_is_fenced_off,
    leased::a_panic_leaves_uncertainty_and_a_check_settles_it,
    gated::case_27_a_gate_that_is_flushed_lets_nothing_run_twice,
    gated::case_42_many_duplicates_while_redis_dies,
    gated::behind_an_owner_that_died_the_database_decides,
    gated::without_redis_the_guard_works_as_ever,
    tokens::case_35_of_a_hundred_submissions_one_runs,
    tokens::case_35_anothers_token_is_refused_and_not_used,
    tokens::a_form_without_a_good_token_is_a_duplicate,
    tokens::when_tokens_cannot_be_read_nothing_runs,
}
