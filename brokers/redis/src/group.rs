//! What one member says to Redis about its group.
//!
//! # Promise
//! Every question is answered within the timeout, or is an error that says what the caller may do.
//! What is pending with a consumer that lives is not taken from it.

use std::time::Duration;

use counterfoil_core::source::SourceError;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, FromRedisValue, Pipeline, Value, cmd, from_redis_value};
use tokio::time::timeout;

use crate::arrival::{Fields, arrival};
use crate::classify::failure;
use counterfoil_core::source::Arrival;

/// What the names of our consumers begin with.
const OURS: &str = "counterfoil-";
/// The consumer that has what nobody works on.
const NOBODY: &str = "released";
/// Longer than any consumer is waited for.
const LONG_AGO: Duration = Duration::from_secs(86_400);
/// A consumer that has nothing and was not seen for so long is forgotten.
const FORGOTTEN: Duration = Duration::from_secs(3_600);
/// The most entries that are spoken about at a time: Redis does nothing else meanwhile.
const AT_ONCE: usize = 500;

const RENEW: &str = include_str!("lua/renew.lua");
const RETIRE: &str = include_str!("lua/retire.lua");
const SWEEP: &str = include_str!("lua/sweep.lua");
const SHARE: &str = include_str!("lua/share.lua");
const LEAVE: &str = include_str!("lua/leave.lua");
const TRIM: &str = include_str!("lua/trim.lua");

/// Numbers and contents.
pub(crate) type Entries = Vec<(String, Arrival)>;

/// The name under which a new member is known.
pub(crate) fn new_name() -> String {
    format!("{OURS}{}", counterfoil_core::MessageId::new())
}

/// One member of a group.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    /// The stream as it was given.
    pub(crate) stream: String,
    /// The streams that there are: itself, or its partitions.
    pub(crate) streams: Vec<String>,
    pub(crate) partitioned: bool,
    pub(crate) name: String,
    pub(crate) consumer: String,
    pub(crate) missed_after: Duration,
    pub(crate) timeout: Duration,
}

/// A question with an answer.
pub(crate) async fn ask<T: FromRedisValue>(
    connection: &mut MultiplexedConnection,
    question: &Cmd,
    limit: Duration,
) -> Result<T, SourceError> {
    match timeout(limit, question.query_async::<T>(connection)).await {
        Ok(answer) => answer.map_err(|error| failure(&error)),
        Err(_) => Err(late(limit)),
    }
}

/// Several questions at once, each with an answer of its own.
pub(crate) async fn ask_all(
    connection: &mut MultiplexedConnection,
    mut questions: Pipeline,
    limit: Duration,
) -> Result<Vec<Value>, SourceError> {
    let answers = questions.ignore_errors().query_async(connection);
    match timeout(limit, answers).await {
        Ok(answers) => answers.map_err(|error| failure(&error)),
        Err(_) => Err(late(limit)),
    }
}

fn late(limit: Duration) -> SourceError {
    SourceError::Unavailable(format!("Redis did not answer within {limit:?}"))
}

fn script(text: &str, keys: &[&str]) -> Cmd {
    let mut command = cmd("EVAL");
    command.arg(text).arg(keys.len()).arg(keys);
    command
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

impl Group {
    async fn ask<T: FromRedisValue>(
        &self,
        connection: &mut MultiplexedConnection,
        question: &Cmd,
    ) -> Result<T, SourceError> {
        ask(connection, question, self.timeout).await
    }

    /// Makes the group, and the stream if need be. It may exist.
    pub(crate) async fn create(
        &self,
        connection: &mut MultiplexedConnection,
        from: &str,
    ) -> Result<(), SourceError> {
        for stream in &self.streams {
            let mut create = cmd("XGROUP");
            create.arg("CREATE").arg(stream).arg(&self.name).arg(from);
            create.arg("MKSTREAM");
            let answer = timeout(self.timeout, create.query_async::<Value>(connection));
            match answer.await {
                Ok(Ok(_)) => {}
                Ok(Err(error)) if error.code() == Some("BUSYGROUP") => {}
                Ok(Err(error)) => return Err(failure(&error)),
                Err(_) => return Err(late(self.timeout)),
            }
        }
        Ok(())
    }

    /// Waits for new entries of these streams, for so long.
    pub(crate) async fn read(
        &self,
        connection: &mut MultiplexedConnection,
        places: &[usize],
        count: usize,
        block: Duration,
    ) -> Result<Vec<(usize, Entries)>, SourceError> {
        let mut read = cmd("XREADGROUP");
        read.arg("GROUP").arg(&self.name).arg(&self.consumer);
        read.arg("COUNT").arg(count);
        read.arg("BLOCK").arg(millis(block).max(1)).arg("STREAMS");
        for place in places {
            read.arg(&self.streams[*place]);
        }
        for _ in places {
            read.arg(">");
        }
        type Read = Option<Vec<(String, Vec<(String, Fields)>)>>;
        let limit = self.timeout + block;
        let found: Read = ask(connection, &read, limit).await?;
        let all = found.unwrap_or_default().into_iter();
        Ok(all
            .filter_map(|(stream, entries)| {
                let place = self.streams.iter().position(|s| *s == stream)?;
                let first = |(id, fields): (String, Fields)| {
                    let arrival = arrival(&stream, &id, fields, 1);
                    (id, arrival)
                };
                Some((place, entries.into_iter().map(first).collect()))
            })
            .collect())
    }

    /// Takes over what nobody worked on for so long, from a cursor on. Answers with the next
    /// cursor, which is `0-0` at the end.
    pub(crate) async fn claim(
        &self,
        connection: &mut MultiplexedConnection,
        place: usize,
        idle: Duration,
        cursor: &str,
        count: usize,
    ) -> Result<(String, Entries), SourceError> {
        let stream = &self.streams[place];
        let mut claim = cmd("XAUTOCLAIM");
        claim.arg(stream).arg(&self.name).arg(&self.consumer);
        claim.arg(millis(idle)).arg(cursor);
        claim.arg("COUNT").arg(count);
        let answer: Vec<Value> = self.ask(connection, &claim).await?;
        let mut answer = answer.into_iter();
        let odd = |error: redis::ParsingError| SourceError::Failed(Box::new(error));
        let next: String = from_redis_value(answer.next().unwrap_or(Value::Nil)).map_err(odd)?;
        let Some(Value::Array(found)) = answer.next() else {
            return Ok((next, Vec::new()));
        };
        let mut entries = Vec::new();
        // An entry that was deleted is nothing, in old versions.
        for value in found.into_iter().filter(|value| *value != Value::Nil) {
            let (id, fields): (String, Option<Fields>) = from_redis_value(value).map_err(odd)?;
            entries.extend(fields.map(|fields| (id, fields)));
        }
        let counts = self.deliveries(connection, place, &entries).await?;
        let whole = |(id, fields): (String, Fields)| {
            let count = counts.iter().find(|(counted, _)| *counted == id);
            let count = count.map_or(2, |(_, count)| *count);
            let arrival = arrival(stream, &id, fields, count);
            (id, arrival)
        };
        Ok((next, entries.into_iter().map(whole).collect()))
    }

    /// How often each of these was handed out.
    async fn deliveries(
        &self,
        connection: &mut MultiplexedConnection,
        place: usize,
        entries: &[(String, Fields)],
    ) -> Result<Vec<(String, u32)>, SourceError> {
        let (Some((first, _)), Some((last, _))) = (entries.first(), entries.last()) else {
            return Ok(Vec::new());
        };
        let mut pending = cmd("XPENDING");
        pending.arg(&self.streams[place]).arg(&self.name);
        // Ours that stand between them are counted too.
        pending.arg(first).arg(last).arg(entries.len() + AT_ONCE);
        pending.arg(&self.consumer);
        let all: Vec<(String, String, u64, u32)> = self.ask(connection, &pending).await?;
        Ok(all.into_iter().map(|(id, _, _, n)| (id, n)).collect())
    }

    /// Says that we still work on these, or that they are handed out again. Answers with those that
    /// are not ours any more.
    pub(crate) async fn renew(
        &self,
        connection: &mut MultiplexedConnection,
        place: usize,
        ids: &[String],
        again: bool,
    ) -> Result<Vec<String>, SourceError> {
        let mut lost = Vec::new();
        for some in ids.chunks(AT_ONCE) {
            let mut renew = script(RENEW, &[&self.streams[place]]);
            renew.arg(&self.name).arg(&self.consumer);
            renew.arg(if again { "again" } else { "still" }).arg(some);
            lost.extend(self.ask::<Vec<String>>(connection, &renew).await?);
        }
        Ok(lost)
    }

    /// Acknowledges.
    pub(crate) fn acknowledge(&self, pipeline: &mut Pipeline, place: usize, ids: &[String]) {
        for some in ids.chunks(AT_ONCE) {
            let mut acknowledge = cmd("XACK");
            acknowledge.arg(&self.streams[place]).arg(&self.name);
            acknowledge.arg(some);
            pipeline.add_command(acknowledge);
        }
    }

    /// Asks whether an entry is pending with us.
    pub(crate) fn is_ours(&self, pipeline: &mut Pipeline, place: usize, id: &str) {
        let mut pending = cmd("XPENDING");
        pending.arg(&self.streams[place]).arg(&self.name);
        pending.arg(id).arg(id).arg(1).arg(&self.consumer);
        pipeline.add_command(pending);
    }

    /// A consumer is gone for good: whoever looks takes over what it had.
    pub(crate) async fn retire(
        &self,
        connection: &mut MultiplexedConnection,
        consumer: &str,
    ) -> Result<(), SourceError> {
        for stream in &self.streams {
            let mut retire = script(RETIRE, &[stream]);
            retire.arg(&self.name).arg(consumer).arg(NOBODY);
            retire.arg(millis(LONG_AGO));
            self.ask::<Value>(connection, &retire).await?;
        }
        if self.partitioned {
            let mut leave = self.members(LEAVE);
            leave.arg(consumer);
            self.ask::<Value>(connection, &leave).await?;
        }
        Ok(())
    }

    /// Forgets the names of those that are gone and left nothing.
    pub(crate) async fn sweep(
        &self,
        connection: &mut MultiplexedConnection,
    ) -> Result<(), SourceError> {
        for stream in &self.streams {
            let mut sweep = script(SWEEP, &[stream]);
            sweep.arg(&self.name).arg(OURS).arg(millis(FORGOTTEN));
            self.ask::<Value>(connection, &sweep).await?;
        }
        Ok(())
    }

    /// A sign of life, with the partitions that we give up. Answers with our share of the
    /// partitions, and which of them we own.
    pub(crate) async fn share(
        &self,
        connection: &mut MultiplexedConnection,
        given: &[usize],
    ) -> Result<(usize, Vec<usize>), SourceError> {
        let mut share = self.members(SHARE);
        share.arg(&self.consumer).arg(millis(self.missed_after));
        share.arg(self.streams.len()).arg(given);
        let mut answer: Vec<usize> = self.ask(connection, &share).await?;
        match answer.is_empty() {
            true => Ok((0, answer)),
            false => Ok((answer.remove(0), answer)),
        }
    }

    fn members(&self, text: &str) -> Cmd {
        let about = |what: &str| format!("{}.{}.{what}", self.stream, self.name);
        script(text, &[&about("members"), &about("owners")])
    }

    /// Drops what every group has dealt with.
    pub(crate) async fn trim(
        &self,
        connection: &mut MultiplexedConnection,
        place: usize,
    ) -> Result<u64, SourceError> {
        let trim = script(TRIM, &[&self.streams[place]]);
        self.ask(connection, &trim).await
    }

    /// How many entries of a stream the group was not given yet, where Redis counts.
    pub(crate) async fn lag(
        &self,
        connection: &mut MultiplexedConnection,
        place: usize,
    ) -> Result<Option<u64>, SourceError> {
        let mut info = cmd("XINFO");
        info.arg("GROUPS").arg(&self.streams[place]);
        let groups: Vec<std::collections::HashMap<String, Value>> =
            self.ask(connection, &info).await?;
        let named = |group: &&std::collections::HashMap<String, Value>| matches!(group.get("name"), Some(Value::BulkString(n)) if *n == self.name.as_bytes());
        match groups.iter().find(named).and_then(|group| group.get("lag")) {
            Some(Value::Int(lag)) => Ok(u64::try_from(*lag).ok()),
            _ => Ok(None),
        }
    }
}
