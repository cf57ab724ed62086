//! A database, a receiver, an application and the processes of one test.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::MessageId;

use crate::actor::RelayArgs;
use crate::app::{App, Draft, Fact};
use crate::book::{Book, Offer};
use crate::checker::{Evidence, Rules, check};
use crate::process::{Launcher, Process};
use crate::receiver::Receiver;
use crate::site::{Place, PostgresSite, Site, SqliteSite};
use crate::{QUEUE, wait};

/// Everything that one test needs. [`World::check_and_end`] is its last line.
pub struct World {
    /// The database.
    pub site: Arc<dyn Site>,
    /// Where messages arrive.
    pub receiver: Receiver,
    /// The application in the process of the test.
    pub app: App,
    launcher: Launcher,
    logs: tempfile::TempDir,
}

impl World {
    /// On PostgreSQL. Absent when there is no server.
    pub async fn on_postgres(launcher: Launcher) -> Option<Self> {
        Some(Self::new(Arc::new(PostgresSite::fresh().await?), launcher).await)
    }

    /// On SQLite.
    pub async fn on_sqlite(launcher: Launcher) -> Self {
        Self::new(Arc::new(SqliteSite::fresh().await), launcher).await
    }

    /// On a database that has every table.
    pub async fn new(site: Arc<dyn Site>, launcher: Launcher) -> Self {
        let app = App::open(&site.url("app"))
            .await
            .expect("the application cannot start");
        Self {
            site,
            receiver: Receiver::start().await,
            app,
            launcher,
            logs: tempfile::tempdir().expect("no directory for logs"),
        }
    }

    /// The receiver's book.
    pub fn book(&self) -> &Book {
        &self.receiver.book
    }

    /// Where processes log.
    pub fn logs(&self) -> &Path {
        self.logs.path()
    }

    /// The arguments of a relay.
    pub fn relay_args(&self, label: &str) -> RelayArgs {
        RelayArgs::new(self.site.url(label), label, self.receiver.address())
    }

    /// Starts a process.
    pub fn start(&self, label: &str, arguments: &[String]) -> Process {
        self.launcher.start(label, self.logs(), arguments)
    }

    /// Starts a relay that is ready when this returns.
    pub async fn relay(&self, label: &str) -> Process {
        self.relay_with(self.relay_args(label)).await
    }

    /// Starts a relay with another lease, and waits until it is ready.
    pub async fn leased_relay(&self, label: &str, lease: Duration) -> Process {
        self.relay_with(self.relay_args(label).leased(lease)).await
    }

    /// Starts a relay with these arguments, and waits until it is ready.
    pub async fn relay_with(&self, args: RelayArgs) -> Process {
        let mut relay = self.start(&args.label, &args.to_args());
        relay.says("ready").await;
        relay
    }

    /// Commits `each` messages for every one of `aggregates` aggregates.
    pub async fn put(&self, aggregates: usize, each: usize) -> Vec<Fact> {
        let mut facts = Vec::new();
        for _ in 0..each {
            let drafts: Vec<Draft> = (0..aggregates)
                .map(|n| Draft::new(QUEUE, format!("a{n}")))
                .collect();
            facts.extend(self.app.put(&drafts).await.expect("business failed"));
        }
        facts
    }

    /// Waits until so many offers of a relay are without an answer, and answers their messages.
    pub async fn in_flight(&self, relay: &str, count: usize) -> BTreeSet<MessageId> {
        let open = |offers: &[Offer]| -> Option<BTreeSet<MessageId>> {
            let ids: BTreeSet<_> = offers
                .iter()
                .filter(|o| o.relay == relay && o.open())
                .map(|o| o.item.id)
                .collect();
            (ids.len() >= count).then_some(ids)
        };
        self.book()
            .until(&format!("{count} messages of {relay} in flight"), open)
            .await
    }

    /// Waits until every shard is owned by the process with this label.
    pub async fn owned_by(&self, label: &str) {
        let site = &self.site;
        wait::until(&format!("everything is owned by {label}"), || async move {
            let owners = site.owners().await;
            (!owners.is_empty() && owners.iter().all(|o| o.by(label))).then_some(())
        })
        .await;
    }

    /// Messages in the outbox now.
    pub async fn pending(&self) -> BTreeSet<MessageId> {
        let standings = self.site.standings().await;
        standings
            .into_iter()
            .filter(|s| matches!(s.place, Place::Outbox(_)))
            .map(|s| s.id)
            .collect()
    }

    /// Waits until the outbox is empty.
    pub async fn drained(&self) {
        let found = wait::within(wait::PATIENCE, || async {
            self.pending().await.is_empty().then_some(())
        });
        if found.await.is_none() {
            let left = self.site.standings().await;
            let left: Vec<_> = left.iter().filter(|s| s.place != Place::Sent).collect();
            panic!(
                "the outbox does not get empty: {left:?}\n{}",
                self.all_logs()
            );
        }
    }

    /// What is known now.
    pub async fn evidence(&self) -> Evidence {
        let audit = self.site.desk().audit().await.expect("no audit");
        Evidence {
            committed: self.site.committed().await,
            offers: self.book().offers(),
            standings: self.site.standings().await,
            audit: audit.findings(true),
        }
    }

    /// Checks everything.
    ///
    /// # Panics
    /// With every violation, when there is one.
    pub async fn check(&self, rules: &Rules) {
        let violations = check(&self.evidence().await, rules);
        if !violations.is_empty() {
            let list: Vec<String> = violations
                .iter()
                .take(20)
                .map(ToString::to_string)
                .collect();
            let (n, list) = (violations.len(), list.join("\n"));
            panic!("{n} violations:\n{list}\n\n{}", self.all_logs());
        }
    }

    /// Lets a relay end in peace, checks everything, and removes the database.
    pub async fn check_and_end(self, mut relay: Process, rules: &Rules) {
        relay.terminate();
        let status = relay.ends().await;
        assert!(
            status.success(),
            "{} ended with {status}:\n{}",
            relay.label,
            relay.log()
        );
        self.check(rules).await;
        self.end().await;
    }

    /// Removes the database.
    pub async fn end(self) {
        self.app.close().await;
        self.site.remove().await;
    }

    /// How often each message was offered.
    pub fn times_offered(&self, id: MessageId) -> usize {
        self.book()
            .offers()
            .iter()
            .filter(|o| o.item.id == id)
            .count()
    }

    /// What every process has logged.
    pub fn all_logs(&self) -> String {
        let mut text = String::new();
        let Ok(files) = std::fs::read_dir(self.logs()) else {
            return text;
        };
        for file in files.flatten() {
            let content = std::fs::read_to_string(file.path()).unwrap_or_default();
            let skip = content.lines().count().saturating_sub(40);
            let last: Vec<&str> = content.lines().skip(skip).collect();
            text.push_str(&format!(
                "--- {}\n{}\n",
                file.file_name().display(),
                last.join("\n")
            ));
        }
        text
    }
}
