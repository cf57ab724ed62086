//! Deaths in the middle of a migration.

use std::path::PathBuf;
use std::sync::Arc;

use counterfoil_e2e::checker::Rules;
use counterfoil_e2e::process::Process;
use counterfoil_e2e::site::{PostgresSite, Site, SqliteSite, somebody_waits};
use counterfoil_e2e::world::World;

fn migration(site: &dyn Site, logs: &tempfile::TempDir, label: &str) -> Process {
    let args = [
        "migrate".to_owned(),
        "--database".to_owned(),
        site.url(label),
    ];
    crate::launcher().start(label, logs.path(), &args)
}

/// Migrates in peace and shows that everything works.
async fn works_after_another_migration(site: Arc<dyn Site>) {
    let logs = tempfile::tempdir().unwrap();
    let mut again = migration(&*site, &logs, "again");
    assert!(again.ends().await.success(), "{}", again.log());
    site.found_application().await;
    let w = World::new(site, crate::launcher()).await;
    w.put(3, 2).await;
    let relay = w.relay("a").await;
    w.drained().await;
    w.check_and_end(relay, &Rules::nothing_repeated()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_killed_halfway_on_postgres_leaves_nothing_and_can_be_repeated() {
    let Some(site) = PostgresSite::bare().await else {
        return;
    };
    let logs = tempfile::tempdir().unwrap();
    let mut halt = site.halfway_through_migration().await;
    let mut first = migration(&site, &logs, "first");
    somebody_waits(&mut *halt).await;

    first.kill().await;
    halt.remove().await;
    site.is_gone("first").await;

    assert_eq!(site.tables().await, Vec::<String>::new());
    works_after_another_migration(Arc::new(site)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_migration_killed_at_any_point_on_sqlite_can_be_repeated() {
    type Reached = fn(&PathBuf) -> bool;
    let wal = |path: &PathBuf| path.with_extension("db-wal");
    let points: [(&str, Reached); 4] = [
        ("it has started", |_| true),
        ("the file is there", |path| path.exists()),
        ("the log is there", |path| {
            path.with_extension("db-wal").exists()
        }),
        ("the log grows", |path| {
            size(&path.with_extension("db-wal")) > 0
        }),
    ];
    for (point, reached) in points {
        let site = SqliteSite::bare();
        let logs = tempfile::tempdir().unwrap();
        let mut first = migration(&site, &logs, "first");
        first.says("begun").await;
        while !reached(&site.path()) && first.runs() {
            tokio::task::yield_now().await;
        }

        first.kill().await;

        let left = size(&wal(&site.path()));
        println!("killed when {point}: {left} bytes in the log");
        works_after_another_migration(Arc::new(site)).await;
    }
}

fn size(path: &PathBuf) -> u64 {
    std::fs::metadata(path).map_or(0, |m| m.len())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_migrations_at_once_all_succeed_on_postgres() {
    let Some(site) = PostgresSite::bare().await else {
        return;
    };
    all_at_once(Arc::new(site)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn several_migrations_at_once_all_succeed_on_sqlite() {
    all_at_once(Arc::new(SqliteSite::bare())).await;
}

async fn all_at_once(site: Arc<dyn Site>) {
    let logs = tempfile::tempdir().unwrap();
    let mut migrations: Vec<Process> = (0..4)
        .map(|n| migration(&*site, &logs, &format!("m{n}")))
        .collect();

    for migration in &mut migrations {
        assert!(migration.ends().await.success(), "{}", migration.log());
    }

    works_after_another_migration(site).await;
}
