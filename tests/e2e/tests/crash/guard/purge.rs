//! Records are purged all the time while requests are completed.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use counterfoil_core::guard::{RecordFilter, Records};
use counterfoil_e2e::actor::ServeArgs;
use counterfoil_e2e::guarded::{Ask, Ledger, Moment, Shop};
use counterfoil_e2e::wait::{self, PATIENCE};
use counterfoil_engine::guard::reconcile::purge;
use tokio::task::JoinHandle;

super::tests!(on_all:
    case_32_a_purge_leaves_what_is_being_completed,
    case_32_a_purge_leaves_what_has_expired_and_runs_again,
    case_32_leased_a_purge_leaves_the_place_of_what_runs_again,
);
// On SQLite a purge waits for the transaction.
super::tests!(postgres_place Postgres:
    case_32_transactional_a_purge_leaves_the_place_of_what_runs_again,
);
super::tests!(mysql_place MySql:
    case_32_transactional_a_purge_leaves_the_place_of_what_runs_again,
);

/// Purges without a pause. It counts what it has removed.
struct Purging {
    task: JoinHandle<u64>,
    stop: Arc<AtomicBool>,
}

impl Purging {
    fn start<D: Ledger>(shop: &Shop<D>, args: &ServeArgs) -> Self {
        let records: Arc<dyn Records> = Arc::clone(shop.guard(args).records());
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let task = tokio::spawn(async move {
            let mut gone = 0;
            while !stopped.load(Ordering::Relaxed) {
                gone += purge(&*records).await.unwrap();
                // SQLite has one writer: the others shall have their turn.
                tokio::time::sleep(Duration::from_millis(1)).await;
            }
            gone
        });
        Self { task, stop }
    }

    async fn end(self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.unwrap()
    }
}

async fn case_32_a_purge_leaves_what_is_being_completed<D: Ledger>(shop: Shop<D>) {
    let args = shop.args();
    let server = shop.server_with(&args).await;
    let mut passing = args.clone();
    (passing.lease, passing.keep) = (1, 1);
    let forgetful = shop.server_with(&passing).await;
    let purging = Purging::start(&shop, &args);
    let asks: Vec<Ask> = (0..60)
        .flat_map(|n| [Ask::pay(format!("p{n}")), Ask::charge(format!("c{n}"))])
        .collect();

    let mut answers = Vec::new();
    for (n, ask) in asks.iter().enumerate() {
        let answer = server.door.ask(ask).await.unwrap();
        assert_eq!((answer.status, answer.replayed()), (200, false));
        answers.push(answer);
        // There is always something to purge.
        let gone = Ask::pay(format!("x{n}"));
        assert_eq!(forgetful.door.ask(&gone).await.unwrap().status, 200);
    }

    for (ask, answer) in asks.iter().zip(answers) {
        let again = server.door.ask(ask).await.unwrap();
        assert_eq!((again.replayed(), again.body), (true, answer.body));
    }
    assert_eq!(server.door.runs().await, asks.len());
    assert!(purging.end().await > 0);
}

/// What has expired is claimed again in the place of the old record, while a purge looks for it.
async fn case_32_a_purge_leaves_what_has_expired_and_runs_again<D: Ledger>(shop: Shop<D>) {
    const RUNS: usize = 8;
    let mut args = shop.args();
    (args.lease, args.keep) = (150, 150);
    let server = shop.server_with(&args).await;
    let purging = Purging::start(&shop, &args);

    let callers: Vec<_> = (0..8)
        .map(|n| {
            let door = server.door;
            let ask = match n % 2 {
                0 => Ask::pay(format!("k{n}")),
                _ => Ask::charge(format!("k{n}")),
            };
            tokio::spawn(async move {
                let (begun, mut receipts) = (Instant::now(), HashSet::new());
                while receipts.len() < RUNS {
                    assert!(begun.elapsed() < PATIENCE, "it does not expire");
                    let answer = door.ask(&ask).await.unwrap();
                    // Nobody else uses this key: whoever is told to wait has lost his record.
                    assert_eq!(answer.status, 200, "{answer:?}");
                    let receipt = answer.receipt().receipt;
                    assert_eq!(receipts.insert(receipt), !answer.replayed());
                }
            })
        })
        .collect();

    for caller in callers {
        caller.await.unwrap();
    }
    purging.end().await;
    assert_eq!(shop.effects().await.len(), server.door.runs().await);
}

/// A record has expired, its key is claimed again, and a purge comes by before that is completed.
async fn claimed_again<D: Ledger>(shop: Shop<D>, ask: Ask) {
    let mut passing = shop.args();
    (passing.lease, passing.keep) = (1, 1);
    let forgetful = shop.server_with(&passing).await;
    let first = forgetful.door.ask(&ask).await.unwrap();
    let guard = shop.guard(&shop.args());
    wait::until("the record has expired", || async {
        let records = guard.records().list(&RecordFilter::default()).await;
        records.unwrap()[0].expired().then_some(())
    })
    .await;
    let mut server = shop.server().await;
    let caller = server.halted(&ask, Moment::Done).await;

    let gone = purge(&**guard.records()).await.unwrap();
    server.door.go().await;
    let second = caller.await.unwrap().unwrap();
    let again = server.door.ask(&ask).await.unwrap();

    assert_eq!(gone, 0);
    assert_eq!((second.status, second.replayed()), (200, false));
    assert_ne!(second.body, first.body);
    assert_eq!((again.replayed(), again.body), (true, second.body));
    assert_eq!(shop.effects().await.len(), 2);
}

async fn case_32_transactional_a_purge_leaves_the_place_of_what_runs_again<D: Ledger>(
    shop: Shop<D>,
) {
    claimed_again(shop, Ask::pay("k")).await;
}

async fn case_32_leased_a_purge_leaves_the_place_of_what_runs_again<D: Ledger>(shop: Shop<D>) {
    claimed_again(shop, Ask::charge("k")).await;
}
