//! Real processes, killed and frozen at exact moments.
//!
//! Each test says in its name what happens and what must hold. In the end the checker looks at
//! everything: what was committed, what arrived, and where it stands.

#![allow(clippy::unwrap_used, reason = "a surprise ends the test")]

mod connections;
mod deadly;
mod enqueue;
mod failover;
mod guard;
mod in_flight;
mod migration;
mod operator;
mod outage;
mod pause;
mod rebalance;
mod settle;
mod terminate;
mod webhook;

use counterfoil_e2e::process::Launcher;
use counterfoil_e2e::world::World;

fn launcher() -> Launcher {
    Launcher::program(env!("CARGO_BIN_EXE_cf-actor"))
}

async fn postgres() -> Option<World> {
    World::on_postgres(launcher()).await
}

async fn sqlite() -> Option<World> {
    Some(World::on_sqlite(launcher()).await)
}

/// Makes a test of each function, on one database or on both.
macro_rules! tests {
    (on_both: $($name:ident),* $(,)?) => {
        crate::tests!(on_postgres: $($name),*);
        crate::tests!(on_sqlite: $($name),*);
    };
    ($module:ident: $($name:ident),* $(,)?) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(world) = crate::world::$module().await {
                        Box::pin(super::$name(world)).await;
                    }
                }
            )*
        }
    };
}
use tests;

mod world {
    pub(crate) use super::{postgres as on_postgres, sqlite as on_sqlite};
}
