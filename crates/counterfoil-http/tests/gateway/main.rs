//! The gateway in front of a service in another language, over real connections.
//!
//! The service is a program in Python that counts what it does.

#![cfg(feature = "gateway")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "this is test code: a surprise ends the test"
)]

mod cases;
mod client;
mod forwarding;
mod hostile;
mod house;
mod later;
#[cfg(feature = "client")]
mod layers;
mod memory;
mod resilience;
mod stale;
mod upstream;

/// One test for each database and each case.
macro_rules! cases {
    ($($module:ident :: $case:ident),* $(,)?) => {
        #[cfg(feature = "sqlite")]
        mod sqlite {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                crate::$module::$case(crate::house::House::on_sqlite().await).await;
            })*
        }
        #[cfg(feature = "postgres")]
        mod postgres {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(house) = crate::house::House::on_postgres().await {
                    crate::$module::$case(house).await;
                }
            })*
        }
        #[cfg(feature = "mysql")]
        mod mysql {
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(house) = crate::house::House::on_mysql().await {
                    crate::$module::$case(house).await;
                }
            })*
        }
    };
}

cases! {
    cases::gateway_case_03_a_fresh_key_runs_once_and_carries_its_numbers,
    cases::gateway_case_07_another_payload_is_refused_while_the_first_is_under_way,
    cases::gateway_case_10_callers_do_not_share_keys,
    cases::hosts_do_not_share_keys,
    cases::a_probe_asks_the_host_of_the_request,
    cases::gateway_case_13_an_upload_that_breaks_off_claims_nothing,
    cases::gateway_case_14_the_service_is_heard_out_when_the_caller_goes_away,
    cases::gateway_case_15_an_answer_that_is_too_large_is_given_once,
    cases::gateway_case_16_streams_are_not_buffered,
    cases::gateway_case_18_an_error_of_the_service_is_uncertain_harmless_or_final,
    cases::gateway_case_20_no_byte_reached_the_service_and_the_repeat_runs,
    cases::gateway_case_20_a_connection_that_was_closed_meanwhile_costs_nothing,
    cases::gateway_case_21_a_lost_answer_is_uncertain_and_a_probe_settles_it,
    cases::gateway_case_21_a_probe_carries_what_the_service_asks_for,
    cases::gateway_case_21_who_finds_out_is_said_as_it_is,
    cases::a_guarded_method_in_lower_case_is_refused,
    cases::gateway_case_21_silence_is_uncertain,
    cases::gateway_case_21_a_broken_answer_is_uncertain,
    cases::gateway_case_28_a_replay_keeps_what_belongs_to_the_answer,
    cases::gateway_case_29_two_hundred_duplicates_are_one_call,
    cases::gateway_case_29_after_a_failure_exactly_one_successor_runs,
    cases::gateway_case_02_where_keys_are_strict_a_bare_one_is_refused,
    cases::gateway_case_33_json_in_another_spelling_is_the_same_payload,
    cases::gateway_case_40_a_form_with_another_boundary_is_the_same_payload,
    later::gateway_case_25_without_records_nothing_is_forwarded,
    later::gateway_case_26_what_cannot_be_recorded_is_answered_and_uncertain,
    later::gateway_case_27_copies_answer_without_the_database_and_may_be_lost,
    later::an_uncertain_request_is_answered_by_202_where_configured,
    later::the_state_of_every_key_can_be_asked_for,
    later::what_is_wrapped_around_the_call_may_refuse_it,
    later::new_routes_hold_at_once_and_requests_under_way_go_on,
}
