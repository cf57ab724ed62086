//! Ownership by locks of the operating system, over handles and over processes.

use std::io::{BufRead as _, BufReader, Read as _};
use std::process::{Command, Stdio};
use std::sync::Arc;

use counterfoil_core::balance;
use counterfoil_core::store::{RelayId, Store};
use counterfoil_sqlite::SqliteStore;
use counterfoil_testkit::fixture::{Fixture, LEASE, OTHER, QUEUE, Relay, keys, messages};

use super::harness::SqliteHarness;

async fn fixture() -> Fixture<SqliteHarness> {
    Fixture::new(Arc::new(SqliteHarness::new().await))
}

#[tokio::test]
async fn a_handle_that_is_dropped_is_a_process_that_died() {
    let t = fixture().await;
    let dying = t.harness.other();
    let mut first = Relay::join(Arc::new(dying), &[QUEUE]).await;
    let owned = first.take_all().await.remove(0);
    let mut second = t.other_relay(&[QUEUE]).await;
    assert!(second.take_all().await.is_empty(), "its owner lives");
    let (fence, queues) = (first.fence(QUEUE), first.queues.clone());

    drop(first);

    let survey = t.store.survey(&second.id, &queues).await.unwrap();
    assert!(survey.members.iter().all(|(id, _)| *id == second.id));
    assert!(survey.owned.iter().all(|o| !o.alive));
    assert_eq!(balance::plan(&second.id, &queues, 1, &survey).take.len(), 1);
    let taken = second.take_all().await.remove(0);
    assert!(taken.from_dead && taken.epoch > owned.epoch);
    t.put(&messages("a", 1)).await;
    let sent = counterfoil_core::store::Settlement {
        sent: keys(&second.read(QUEUE).await),
        ..Default::default()
    };
    assert_eq!(t.store.settle(&fence, &sent).await.unwrap().lost, [0]);
    assert_eq!(
        second.read(QUEUE).await.len(),
        1,
        "a stale owner changes nothing"
    );
}

#[tokio::test]
async fn what_is_given_back_is_not_taken_from_the_dead() {
    let t = fixture().await;
    let mut first = Relay::join(Arc::new(t.harness.other()), &[QUEUE, OTHER]).await;
    first.take_all().await;

    first.give(&first.every_shard()[..1]).await;
    first.store.leave(&first.id).await.unwrap();

    let mut second = t.other_relay(&[QUEUE, OTHER]).await;
    let taken = second.take_all().await;
    assert_eq!(taken.len(), 2);
    assert!(
        taken
            .iter()
            .all(|shard| !shard.from_dead && shard.epoch == 2)
    );
    assert!(!first.store.heartbeat(&first.id, LEASE).await.unwrap());
}

#[tokio::test]
async fn a_closed_store_lets_go_of_everything() {
    let t = fixture().await;
    let dying = t.harness.other();
    let mut first = Relay::join(Arc::new(dying.clone()), &[QUEUE]).await;
    first.take_all().await;

    dying.close().await;

    let mut second = t.other_relay(&[QUEUE]).await;
    assert!(second.take_all().await[0].from_dead);
}

#[tokio::test]
async fn relays_that_died_are_not_counted_and_are_tidied_up() {
    let t = fixture().await;
    t.put(&messages("a", 1)).await;
    let dead = Relay::join(Arc::new(t.harness.other()), &[QUEUE]).await;
    assert_eq!(t.desk.stats().await.unwrap()[0].relays, 1);
    let files = || {
        std::fs::read_dir(format!("{}.locks", t.harness.path().display()))
            .unwrap()
            .count()
    };
    assert_eq!(files(), 1);

    drop(dead);
    assert_eq!(t.desk.stats().await.unwrap()[0].relays, 0);
    let _live = t.other_relay(&[QUEUE]).await;

    assert_eq!(t.desk.stats().await.unwrap()[0].relays, 1);
    assert_eq!(files(), 1);
    let (rows,): (i64,) = sqlx::query_as("SELECT count(*) FROM counterfoil_relays")
        .fetch_one(&t.harness.pool)
        .await
        .unwrap();
    assert_eq!(rows, 1);
}

#[tokio::test]
async fn a_relay_whose_locks_were_removed_must_join_anew() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;

    std::fs::remove_dir_all(format!("{}.locks", t.harness.path().display())).unwrap();

    assert!(!t.store.heartbeat(&relay.id, LEASE).await.unwrap());
    let mut next = t.other_relay(&[QUEUE]).await;
    assert!(next.take_all().await[0].from_dead);
    assert_eq!(relay.try_settle(QUEUE, &Default::default()).await.lost, [0]);
}

#[tokio::test]
async fn a_relay_that_lost_its_lock_can_go_on_under_another_name() {
    let t = fixture().await;
    let relay = t.relay(&[QUEUE]).await;
    let locks = std::fs::read_dir(format!("{}.locks", t.harness.path().display())).unwrap();
    let files = locks.map(|entry| entry.unwrap().path());
    let own = files.filter(|path| path.display().to_string().contains("relay-"));
    own.for_each(|path| std::fs::remove_file(path).unwrap());

    assert!(!t.store.heartbeat(&relay.id, LEASE).await.unwrap());

    let mut next = Relay::join(Arc::clone(&t.store), &[QUEUE]).await;
    assert!(next.take_all().await[0].from_dead);
}

/// Set for the process that is to be killed: the file to own a queue in.
const VICTIM: &str = "COUNTERFOIL_TEST_SQLITE_VICTIM";
const OWNED: &str = "the queue is owned";

#[tokio::test]
async fn a_process_that_is_killed_frees_its_queues_at_once() {
    if let Ok(path) = std::env::var(VICTIM) {
        return be_the_victim(&path).await;
    }
    let t = fixture().await;
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "sqlite::locks::a_process_that_is_killed_frees_its_queues_at_once",
            "--nocapture",
        ])
        .env(VICTIM, t.harness.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let said = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(Result::ok);
    assert!(said.into_iter().any(|line| line.contains(OWNED)));
    let mut relay = t.other_relay(&[QUEUE]).await;
    assert!(relay.take_all().await.is_empty(), "another process owns it");
    assert_eq!(t.desk.stats().await.unwrap()[0].relays, 2);

    child.kill().unwrap();
    child.wait().unwrap();

    assert_eq!(t.desk.stats().await.unwrap()[0].relays, 1);
    let taken = relay.take_all().await;
    assert!(taken[0].from_dead && taken[0].epoch == 2);
}

async fn be_the_victim(path: &str) {
    let store = SqliteStore::connect(path).unwrap();
    let mut relay = Relay::join(Arc::new(store), &[QUEUE]).await;
    assert_eq!(relay.take_all().await.len(), 1);
    println!("{OWNED}");
    // Until the parent kills this process, or is gone itself.
    let _ = std::io::stdin().read(&mut [0]);
}

#[tokio::test]
async fn a_name_can_be_used_by_one_handle_only() {
    let t = fixture().await;
    let name = RelayId::new("a");
    t.store
        .join(&name, &[Arc::from(QUEUE)], LEASE)
        .await
        .unwrap();

    let again = t.store.join(&name, &[Arc::from(OTHER)], LEASE).await;
    let elsewhere = t
        .harness
        .other()
        .join(&name, &[Arc::from(QUEUE)], LEASE)
        .await;

    assert!(again.is_ok(), "the same handle may say it twice");
    assert!(elsewhere.is_err());
    let members = t.store.survey(&name, &[]).await.unwrap().members;
    assert_eq!(members, [(name, vec![Arc::from(OTHER)])]);
}
