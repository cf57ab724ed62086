//! The whole journey through each broker: from a business transaction into the inbox of consumers.
//!
//! Short ones, always with the same seed. `cargo xtask chaos --broker NAME` plays long ones.

use counterfoil_e2e::journey::{Kind, Options, run, sharing};
use counterfoil_e2e::process::Launcher;
use tokio::sync::Mutex;

/// Each has a broker and half a dozen processes: one at a time, or they wait for the machine.
static STAGE: Mutex<()> = Mutex::const_new(());

fn launcher() -> Launcher {
    Launcher::program(env!("CARGO_BIN_EXE_cf-actor"))
}

/// Every process and the broker are killed and frozen once.
async fn takes_effect_once(broker: Kind) {
    let _alone = STAGE.lock().await;
    let options = Options::short(broker, 20_261_116);
    let Some(report) = Box::pin(run(&options, launcher())).await else {
        return;
    };
    println!("{}", report.table());
    assert!(report.violations.is_empty(), "{}", report.complaint());
    assert!(
        report.committed >= options.messages,
        "too little has happened"
    );
    assert!(report.parked > 0, "nothing was poisoned");
    assert!(report.repeats > 0, "no duplicate has come");
}

async fn shares_the_work(broker: Kind) {
    let _alone = STAGE.lock().await;
    let Some(report) = Box::pin(sharing(broker, launcher())).await else {
        return;
    };
    println!("{}", report.table());
    assert!(report.violations.is_empty(), "{}", report.complaint());
}

macro_rules! through {
    ($($feature:literal $module:ident $kind:ident),* $(,)?) => {
        $(
            #[cfg(feature = $feature)]
            mod $module {
                use super::*;

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn every_message_takes_effect_once_whoever_dies() {
                    takes_effect_once(Kind::$kind).await;
                }

                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn two_share_the_work_while_a_third_comes_and_goes() {
                    shares_the_work(Kind::$kind).await;
                }
            }
        )*
    };
}

through!(
    "kafka" kafka Kafka,
    "nats" nats Nats,
    "rabbitmq" rabbitmq Rabbitmq,
    "redis" redis Redis,
    "sqs" sqs Sqs,
);
