//! How receptions end.
//!
//! # Promise
//! Acknowledged is what was done, and what stands among the dead letters. An entry that others have
//! taken over meanwhile is neither released nor buried.

use std::collections::BTreeMap;

use counterfoil_core::source::{DeadLetter, Settle, SourceError, Tag};
use redis::aio::MultiplexedConnection;
use redis::{Value, pipe};

use crate::arrival::{Place, bury};
use crate::classify::refused;
use crate::group::{Group, ask_all};
use crate::hold::{Held, Hold, Stand};

/// What the caller said, by what is to be done.
pub(crate) struct Sorted {
    done: Vec<Tag>,
    released: Vec<Tag>,
    dead: Vec<(Tag, DeadLetter)>,
}

/// Sorts, and refuses what cannot be done before anything is done.
pub(crate) fn sort(settled: Vec<(Tag, Settle)>) -> Result<Sorted, SourceError> {
    let mut sorted = Sorted {
        done: Vec::new(),
        released: Vec::new(),
        dead: Vec::new(),
    };
    for (tag, how) in settled {
        match how {
            Settle::Done => sorted.done.push(tag),
            Settle::Release { delay: None } => sorted.released.push(tag),
            Settle::Release { delay: Some(_) } => {
                let what = "Redis Streams cannot hold a released message back";
                return Err(SourceError::Unsupported(what));
            }
            Settle::Dead(why) => sorted.dead.push((tag, why)),
        }
    }
    Ok(sorted)
}

/// A subscription, as far as it settles.
pub(crate) struct Settlement<'a> {
    pub(crate) hold: &'a Hold,
    pub(crate) group: &'a Group,
}

impl Settlement<'_> {
    /// Does all of it. What was not done when there is an error comes again.
    pub(crate) async fn run(
        &self,
        connection: &mut MultiplexedConnection,
        sorted: Sorted,
    ) -> Result<(), SourceError> {
        let (mut over, released, dead) = {
            let mut inner = self.hold.lock();
            let mut held = |tags: Vec<Tag>| -> Vec<Held> {
                tags.into_iter()
                    .filter_map(|tag| inner.settle(tag))
                    .collect()
            };
            let (over, released) = (held(sorted.done), held(sorted.released));
            let dead = sorted.dead.into_iter();
            let dead: Vec<(Held, DeadLetter)> = dead
                .filter_map(|(tag, why)| Some((inner.settle(tag)?, why)))
                .collect();
            (over, released, dead)
        };
        let mut buried = Ok(());
        let dead = match dead.is_empty() {
            true => dead,
            false => self.still_ours(connection, dead).await?,
        };
        if !dead.is_empty() {
            let (in_ground, result) = self.bury(connection, dead).await?;
            over.extend(in_ground);
            buried = result;
        }
        self.acknowledge(connection, over).await?;
        self.release(connection, released).await?;
        buried
    }

    /// Those that nobody has taken over.
    async fn still_ours(
        &self,
        connection: &mut MultiplexedConnection,
        dead: Vec<(Held, DeadLetter)>,
    ) -> Result<Vec<(Held, DeadLetter)>, SourceError> {
        let mut questions = pipe();
        for (held, _) in &dead {
            self.group.is_ours(&mut questions, held.place, &held.id);
        }
        let answers = ask_all(connection, questions, self.group.timeout).await?;
        let ours = |answer: &Value| matches!(answer, Value::Array(found) if !found.is_empty());
        let mut kept = Vec::new();
        for ((held, why), answer) in dead.into_iter().zip(&answers) {
            match answer {
                Value::ServerError(error) => return Err(refused(error)),
                answer if ours(answer) => kept.push((held, why)),
                _ => self.hold.lock().forget(&held),
            }
        }
        Ok(kept)
    }

    /// Adds them to the dead letters. Answers with those that are there, and why others are not.
    async fn bury(
        &self,
        connection: &mut MultiplexedConnection,
        dead: Vec<(Held, DeadLetter)>,
    ) -> Result<(Vec<Held>, Result<(), SourceError>), SourceError> {
        let to = format!("{}.DLQ", self.group.stream);
        let mut letters = pipe();
        for (held, why) in &dead {
            let place = Place {
                stream: &self.group.stream,
                partition: self.group.partitioned.then_some(held.place),
                id: &held.id,
            };
            letters.add_command(bury(&to, &held.arrival, why, &place));
        }
        let answers = ask_all(connection, letters, self.group.timeout).await?;
        let (mut there, mut result) = (Vec::new(), Ok(()));
        for ((held, _), answer) in dead.into_iter().zip(&answers) {
            match answer {
                Value::BulkString(_) => there.push(held),
                Value::ServerError(error) => result = Err(refused(error)),
                _ => {
                    let text = "Redis answered with something that is no number of an entry";
                    result = Err(SourceError::Failed(text.into()));
                }
            }
        }
        Ok((there, result))
    }

    async fn acknowledge(
        &self,
        connection: &mut MultiplexedConnection,
        over: Vec<Held>,
    ) -> Result<(), SourceError> {
        if over.is_empty() {
            return Ok(());
        }
        let mut acknowledgements = pipe();
        for (place, ids) in by_place(&over) {
            self.group.acknowledge(&mut acknowledgements, place, &ids);
        }
        let answers = ask_all(connection, acknowledgements, self.group.timeout).await?;
        for answer in &answers {
            if let Value::ServerError(error) = answer {
                return Err(refused(error));
            }
        }
        let mut inner = self.hold.lock();
        for held in &over {
            inner.forget(held);
        }
        Ok(())
    }

    /// Back in line, where anybody who leaves or dies leaves it to the others.
    async fn release(
        &self,
        connection: &mut MultiplexedConnection,
        released: Vec<Held>,
    ) -> Result<(), SourceError> {
        let mut lost = BTreeMap::new();
        for (place, ids) in by_place(&released) {
            let gone = self.group.renew(connection, place, &ids, true).await?;
            lost.insert(place, gone);
        }
        for held in released {
            let gone = lost.get(&held.place).is_some_and(|l| l.contains(&held.id));
            let stays = {
                let inner = self.hold.lock();
                matches!(
                    inner.stands[held.place],
                    Stand::Flowing | Stand::Catching(_)
                )
            };
            match stays && !gone {
                true => self.hold.return_to_line(held),
                false => self.hold.lock().forget(&held),
            }
        }
        Ok(())
    }
}

fn by_place(held: &[Held]) -> BTreeMap<usize, Vec<String>> {
    let mut all: BTreeMap<usize, Vec<String>> = BTreeMap::new();
    for held in held {
        all.entry(held.place).or_default().push(held.id.clone());
    }
    all
}
