//! The conformance suite of brokers: each case is a function that runs on every driver.
//!
//! [`broker_suite!`](crate::broker_suite) makes one test of each.

pub mod dead;
pub mod fixture;
pub mod harness;
pub mod ordering;
pub mod outages;
pub mod publishing;
pub mod receiving;
pub mod redelivery;
pub mod refusing;
pub mod releasing;
pub mod round_trip;
pub mod sharing;

use std::future::Future;
use std::sync::Arc;

use fixture::BrokerFixture;
use harness::BrokerHarness;
use tokio::sync::Semaphore;

/// Cases at the same time on the server that all share.
static SEATS: Semaphore = Semaphore::const_new(6);
/// Servers of cases' own at the same time: some of them are heavy.
static PRIVATE_SEATS: Semaphore = Semaphore::const_new(2);

/// Which server a case wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// That of all tests.
    Shared,
    /// One of its own.
    Private,
}

/// Runs one case on a fresh topic, and removes the topic afterwards.
///
/// # Panics
/// When the case does.
pub fn run<H, C, F>(place: Place, case: C)
where
    H: BrokerHarness,
    C: FnOnce(BrokerFixture<H>) -> F,
    F: Future<Output = ()> + Send + 'static,
{
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("no runtime");
    runtime.block_on(async {
        let seats = match place {
            Place::Shared => &SEATS,
            Place::Private => &PRIVATE_SEATS,
        };
        let _seat = seats.acquire().await;
        let harness = match place {
            Place::Shared => H::start().await,
            Place::Private => H::start_private().await,
        };
        let Some(harness) = harness else {
            return;
        };
        let harness = Arc::new(harness);
        let fixture = BrokerFixture::new(Arc::clone(&harness)).await;
        let outcome = tokio::spawn(case(fixture)).await;
        harness.clean_up().await;
        if let Err(failure) = outcome {
            std::panic::resume_unwind(failure.into_panic());
        }
    });
}

/// Makes one test of each case of the conformance suite, on the broker of a
/// [`BrokerHarness`](crate::broker::harness::BrokerHarness).
#[macro_export]
macro_rules! broker_suite {
    ($harness:ty) => {
        $crate::broker_cases!($harness, Shared, ordering:
            messages_of_a_key_come_in_the_order_in_which_they_were_stored,
            several_consumers_keep_the_order_of_each_key,
        );
        $crate::broker_cases!($harness, Shared, publishing:
            nothing_is_answered_with_nothing,
            a_whole_batch_is_stored,
            batches_under_way_together_are_all_stored,
            one_message_that_cannot_pass_spoils_nothing,
            the_largest_payload_passes_and_one_byte_more_does_not,
            the_same_message_twice_has_one_id,
        );
        $crate::broker_cases!($harness, Shared, round_trip:
            the_envelope_comes_out_as_it_went_in,
            a_message_with_little_to_say_comes_out_as_it_went_in,
            every_byte_of_a_payload_comes_out,
            headers_come_out_as_they_went_in,
            headers_of_others_come_out_as_they_went_in,
            a_message_of_somebody_who_knows_nothing_of_us_is_received,
        );
        $crate::broker_cases!($harness, Shared, receiving:
            what_was_stored_before_anybody_subscribed_is_received,
            no_more_is_received_than_was_asked_for,
            receiving_can_be_given_up_at_any_moment,
            settling_in_any_order_and_twice_does_no_harm,
            unknown_tags_do_no_harm,
            the_lag_is_true_where_it_is_told,
        );
        $crate::broker_cases!($harness, Shared, redelivery:
            what_a_dead_consumer_did_not_settle_comes_again,
            what_a_consumer_that_left_did_not_settle_comes_again,
            what_is_settled_never_comes_again,
            a_consumer_may_come_and_go_in_the_middle,
        );
        $crate::broker_cases!($harness, Shared, sharing:
            consumers_of_a_group_share_and_another_group_gets_everything,
            a_slow_consumer_keeps_what_it_has,
        );
        $crate::broker_cases!($harness, Shared, releasing:
            a_released_message_comes_again,
            a_released_message_keeps_nobody_waiting,
            a_release_with_a_delay_is_kept_or_unsupported,
        );
        $crate::broker_cases!($harness, Shared, dead:
            a_dead_letter_says_why_and_is_whole,
            a_dead_letter_is_gone_from_the_source,
        );
        $crate::broker_cases!($harness, Shared, refusing:
            nobody_at_the_address_is_unavailable,
            wrong_credentials_are_refused,
            a_missing_topic_is_refused,
        );
        $crate::broker_cases!($harness, Private, outages:
            a_broker_that_was_killed_and_restarted_is_used_again,
            nothing_stored_is_lost_when_the_broker_is_killed_under_load,
            a_frozen_broker_takes_nothing_and_is_used_again,
            a_broker_that_is_down_at_the_start_is_used_later,
        );
    };
}

/// One module of tests.
#[doc(hidden)]
#[macro_export]
macro_rules! broker_cases {
    ($harness:ty, $place:ident, $module:ident: $($case:ident),* $(,)?) => {
        mod $module {
            use super::*;
            $(
                #[test]
                fn $case() {
                    use $crate::broker::{Place, run};
                    run::<$harness, _, _>(Place::$place, $crate::broker::$module::$case);
                }
            )*
        }
    };
}
