//! Receiving: a source, and membership in its group.
//!
//! # Promise
//! Every entry is handed out at least once, and again until it is acknowledged. An entry is acknowledged
//! only when the caller says so, and put among the dead letters before it is acknowledged here.

use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::Outcome;
use counterfoil_core::source::{
    Arrival, Features, HeaderValues, Settle, Source, SourceError, Subscription, Tag,
};
use redis::aio::MultiplexedConnection;
use redis::cmd;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::group::{Group, ask, new_name};
use crate::hold::{Hold, Over, Stand};
use crate::server::Server;
use crate::settings::SettingsError;
use crate::settle::{Settlement, sort};
use crate::source_settings::SourceSettings;
use crate::{keeper, partition, pump};

/// Receives the entries of a stream, as a member of a group.
///
/// See [`SourceSettings`] for what can be configured and an example.
pub struct RedisStreamsSource {
    server: Server,
    shown: String,
    /// With a consumer of no name.
    group: Group,
    from: &'static str,
    trim: bool,
    /// Members that were dropped: what they had is free when the next one comes.
    gone: Arc<Mutex<Vec<String>>>,
}

impl RedisStreamsSource {
    /// Builds the source. Nothing is connected yet.
    pub fn new(settings: SourceSettings) -> Result<Self, SettingsError> {
        let checked = settings.check()?;
        let shown = checked.address.shown.clone();
        let streams = match checked.partitions {
            None => vec![checked.stream.clone()],
            Some(n) => (0..n)
                .map(|p| partition::stream(&checked.stream, p))
                .collect(),
        };
        Ok(Self {
            server: Server::new(checked.address, checked.connect_timeout, 0)?,
            shown,
            group: Group {
                stream: checked.stream,
                streams,
                partitioned: checked.partitions.is_some(),
                name: checked.group,
                consumer: String::new(),
                missed_after: checked.missed_after,
                timeout: checked.timeout,
            },
            from: if checked.only_new { "$" } else { "0" },
            trim: checked.trim,
            gone: Arc::default(),
        })
    }

    async fn open(&self) -> Result<MultiplexedConnection, SourceError> {
        let opened = self.server.open_in_time().await;
        opened.map_err(|outcome| match outcome {
            Outcome::DestinationRefused { error, .. } => SourceError::Refused(error),
            Outcome::Unavailable { error } => SourceError::Unavailable(error),
            other => SourceError::Unavailable(other.label().to_owned()),
        })
    }

    /// Frees what dropped members of ours had.
    async fn bury_the_dead(
        &self,
        group: &Group,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), SourceError> {
        loop {
            let last = lock(&self.gone).last().cloned();
            let Some(name) = last else {
                return Ok(());
            };
            group.retire(connection, &name).await?;
            lock(&self.gone).retain(|gone| *gone != name);
        }
    }
}

fn lock(names: &Mutex<Vec<String>>) -> std::sync::MutexGuard<'_, Vec<String>> {
    names.lock().unwrap_or_else(PoisonError::into_inner)
}

#[async_trait]
impl Source for RedisStreamsSource {
    fn describe(&self) -> String {
        let (stream, group) = (&self.group.stream, &self.group.name);
        format!("redis stream {stream} at {} as {group}", self.shown)
    }

    fn features(&self) -> Features {
        Features {
            ordering_key: self.group.partitioned,
            native_dedup: false,
            delay: false,
            dead_letters: true,
            largest_payload: None,
            headers: HeaderValues::Bytes,
        }
    }

    async fn subscribe(&self) -> Result<Box<dyn Subscription>, SourceError> {
        let mut group = self.group.clone();
        group.consumer = new_name();
        let mut connection = self.open().await?;
        group.create(&mut connection, self.from).await?;
        self.bury_the_dead(&group, &mut connection).await?;
        group.sweep(&mut connection).await?;
        let mut reader = self.open().await?;
        // Only to leave sooner: a user without the right to it leaves a little later.
        let mut who = cmd("CLIENT");
        who.arg("ID");
        let reader_id: Option<i64> = ask(&mut reader, &who, group.timeout).await.ok();
        let sent = Instant::now();
        let stands = stands(&group, &mut connection).await?;
        let hold = Arc::new(Hold::new(stands, sent + group.missed_after));
        let group = Arc::new(group);
        let pump = pump::run(Arc::clone(&hold), Arc::clone(&group), reader);
        let keeper = keeper::run(
            Arc::clone(&hold),
            Arc::clone(&group),
            connection.clone(),
            self.trim,
        );
        Ok(Box::new(Membership {
            pump: Some(tokio::spawn(pump)),
            keeper: tokio::spawn(keeper),
            hold,
            group,
            connection,
            reader_id,
            gone: Some(Arc::clone(&self.gone)),
        }))
    }
}

/// What a new member begins with.
async fn stands(
    group: &Group,
    connection: &mut MultiplexedConnection,
) -> Result<Vec<Stand>, SourceError> {
    if !group.partitioned {
        return Ok(vec![Stand::Flowing]);
    }
    let (_, owned) = group.share(connection, &[]).await?;
    let stand = |place| match owned.contains(&place) {
        true => Stand::Catching("0-0".into()),
        false => Stand::Foreign,
    };
    Ok((0..group.streams.len()).map(stand).collect())
}

/// One member of a group.
struct Membership {
    hold: Arc<Hold>,
    group: Arc<Group>,
    /// For everything but reading, which may wait.
    connection: MultiplexedConnection,
    /// What Redis calls the connection that reads.
    reader_id: Option<i64>,
    pump: Option<JoinHandle<()>>,
    keeper: JoinHandle<()>,
    /// Where our name is left when we are dropped.
    gone: Option<Arc<Mutex<Vec<String>>>>,
}

impl Membership {
    /// Ends the subscription if this is an error.
    fn note<T>(&self, result: Result<T, SourceError>) -> Result<T, SourceError> {
        if let Err(error) = &result {
            self.hold.end(Over::of(error));
        }
        result
    }

    /// The task that reads ends by itself, so that no answer to it is lost.
    async fn stop_reading(&mut self) {
        self.hold.end(Over::Closed);
        if let Some(id) = self.reader_id {
            let mut unblock = cmd("CLIENT");
            unblock.arg("UNBLOCK").arg(id);
            let limit = self.group.timeout.min(Duration::from_secs(1));
            let _ = ask::<i64>(&mut self.connection, &unblock, limit).await;
        }
        if let Some(pump) = self.pump.take() {
            let _ = pump.await;
        }
    }
}

#[async_trait]
impl Subscription for Membership {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        loop {
            let taken = {
                let mut inner = self.hold.lock();
                if let Some(over) = &inner.over {
                    return Err(over.error());
                }
                inner.take(max)
            };
            self.hold.wanted.notify_one();
            if max == 0 || !taken.is_empty() {
                return Ok(taken);
            }
            self.hold.arrived.notified().await;
        }
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        let sorted = sort(settled)?;
        let settlement = Settlement {
            hold: &self.hold,
            group: &self.group,
        };
        let result = settlement.run(&mut self.connection, sorted).await;
        self.note(result)
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        let (stands, here) = {
            let inner = self.hold.lock();
            (inner.stands.clone(), inner.waiting() as u64)
        };
        let mut sum = Some(here);
        for (place, stand) in stands.iter().enumerate() {
            if *stand != Stand::Foreign {
                let lag = self.group.lag(&mut self.connection, place).await;
                let lag = self.note(lag)?;
                sum = sum.zip(lag).map(|(sum, lag)| sum + lag);
            }
        }
        Ok(sum)
    }

    async fn close(mut self: Box<Self>) -> Result<(), SourceError> {
        self.stop_reading().await;
        self.keeper.abort();
        let name = self.group.consumer.clone();
        self.group.retire(&mut self.connection, &name).await?;
        self.gone = None;
        Ok(())
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.keeper.abort();
        if let Some(pump) = &self.pump {
            pump.abort();
        }
        if let Some(gone) = &self.gone {
            lock(gone).push(self.group.consumer.clone());
        }
    }
}

impl fmt::Debug for RedisStreamsSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisStreamsSource")
            .field("server", &self.shown)
            .field("stream", &self.group.stream)
            .field("group", &self.group.name)
            .finish_non_exhaustive()
    }
}
