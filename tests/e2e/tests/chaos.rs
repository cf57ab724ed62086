//! A slice of the random run, always the same one. `cargo xtask chaos` plays longer ones.

use std::time::Duration;

use counterfoil_e2e::chaos::{Least, Options, StoreKind, run};
use counterfoil_e2e::process::Launcher;

async fn play(store: StoreKind) {
    let options = Options {
        seed: 20_261_115,
        length: Duration::from_secs(10),
        least: Least {
            committed: 101,
            killed: 3,
        },
        store,
        relays: 3,
        writers: 2,
    };
    let launcher = Launcher::program(env!("CARGO_BIN_EXE_cf-actor"));

    let Some(report) = Box::pin(run(&options, launcher)).await else {
        return;
    };

    println!("{}", report.table());
    assert!(report.violations.is_empty(), "{}", report.complaint());
    assert!(report.committed() > 100, "too little has happened");
    assert!(report.times("relays killed") > 2, "too little has happened");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_run_on_postgres_breaks_no_promise() {
    play(StoreKind::Postgres).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_random_run_on_sqlite_breaks_no_promise() {
    play(StoreKind::Sqlite).await;
}
