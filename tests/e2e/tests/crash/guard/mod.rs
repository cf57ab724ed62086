//! The guard in processes that die, and on databases that go away.

mod crowd;
mod kill;
mod outage;
mod purge;

use counterfoil_e2e::guarded::{Ledger, Shop};

async fn shop<D: Ledger>() -> Option<Shop<D>> {
    Shop::open(crate::launcher()).await
}

/// Makes a test of each function, on one database or on several.
macro_rules! tests {
    (on_all: $($name:ident),* $(,)?) => {
        crate::guard::tests!(sqlite Sqlite: $($name),*);
        crate::guard::tests!(on_servers: $($name),*);
    };
    (on_servers: $($name:ident),* $(,)?) => {
        crate::guard::tests!(postgres Postgres: $($name),*);
        crate::guard::tests!(mysql MySql: $($name),*);
    };
    ($module:ident $database:ident: $($name:ident),* $(,)?) => {
        mod $module {
            $(
                #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
                async fn $name() {
                    if let Some(shop) = crate::guard::shop::<counterfoil::$database>().await {
                        Box::pin(super::$name(shop)).await;
                    }
                }
            )*
        }
    };
}
use tests;
