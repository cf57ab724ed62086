//! Membership in a group: receiving and settling.
//!
//! # Promise
//! What is with the caller is acknowledged only when the caller says so, and is given to nobody else
//! while the subscription lives. A partition changes its reader only when nothing of it is with the
//! caller. Settling returns when RabbitMQ has read it; a copy is confirmed before the original goes.
//!
//! # When it is dropped
//! Its connections are closed at once, and RabbitMQ gives everything that was not settled to others.

use std::collections::{BTreeSet, HashMap};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::source::{Arrival, DeadLetter, Settle, SourceError, Subscription, Tag, dead};
use futures_util::FutureExt as _;
use futures_util::future::join_all;
use lapin::options::{BasicAckOptions, BasicNackOptions};
use lapin::types::AMQPValue;
use lapin::{Acker, Channel};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use crate::arrival::{BEFORE, Received};
use crate::classify::Failure;
use crate::lane::Lane;
use crate::link::Wire;
use crate::members::Members;
use crate::publisher::{Fate, Outgoing, Publisher};
use crate::settings::CheckedSource;
use crate::topology::{declare_delay, delay_class, text, waiting};

const NO_DELAY: &str = "a source that declares nothing cannot delay";
const TOO_LONG: &str = "a delay of more than 30 days";
const NO_DEAD: &str = "a source that declares nothing has no dead letters";

/// A member of a group.
pub(crate) struct RabbitSubscription {
    settings: CheckedSource,
    hands: Hands,
    opening: JoinSet<Result<Box<Lane>, Failure>>,
    /// The partitions of those.
    expected: BTreeSet<usize>,
    /// Which partitions are ours.
    share: watch::Receiver<Vec<usize>>,
    /// For questions beside the lanes.
    control: Option<Channel>,
    /// On a connection of its own: RabbitMQ may stop reading from those that publish.
    publisher: Publisher,
    /// The delays that have a queue.
    delays: BTreeSet<u32>,
    /// Absent where there is one partition.
    members: Option<Members>,
    _alone: Option<watch::Sender<Vec<usize>>>,
    // Last: the others use it.
    wire: Arc<Wire>,
}

/// What comes in, and what is with the caller.
#[derive(Default)]
struct Hands {
    lanes: Vec<Lane>,
    held: HashMap<u64, Held>,
    next_tag: u64,
    /// Which lane is looked at first: each has its turn.
    turn: usize,
    /// Why nothing more can be received.
    over: Option<Failure>,
}

struct Held {
    partition: usize,
    acker: Acker,
    received: Received,
}

impl Hands {
    /// Takes something back from the caller, if it is there.
    fn let_go(&mut self, tag: Tag) -> Option<Held> {
        let held = self.held.remove(&tag.0)?;
        let mut lanes = self.lanes.iter_mut();
        if let Some(lane) = lanes.find(|lane| lane.partition == held.partition) {
            lane.held = lane.held.saturating_sub(1);
        }
        Some(held)
    }

    fn poll_lanes(
        &mut self,
        max: usize,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Vec<Arrival>, Failure>> {
        let mut arrivals = Vec::new();
        self.turn = self.turn.wrapping_add(1);
        let count = self.lanes.len();
        for place in 0..count {
            let lane = &mut self.lanes[(self.turn + place) % count];
            while !lane.leaving && arrivals.len() < max {
                let delivery = match lane.poll_next(cx) {
                    Poll::Pending => break,
                    Poll::Ready(Ok(delivery)) => delivery,
                    Poll::Ready(Err(failure)) => {
                        self.over = Some(failure.clone());
                        if arrivals.is_empty() {
                            return Poll::Ready(Err(failure));
                        }
                        break;
                    }
                };
                self.next_tag += 1;
                lane.held += 1;
                let received = Received {
                    properties: delivery.properties,
                    body: Bytes::from(delivery.data),
                    redelivered: delivery.redelivered,
                };
                arrivals.push(received.arrival(Tag(self.next_tag), &lane.queue));
                let held = Held {
                    partition: lane.partition,
                    acker: delivery.acker,
                    received,
                };
                self.held.insert(self.next_tag, held);
            }
        }
        match arrivals.is_empty() {
            true => Poll::Pending,
            false => Poll::Ready(Ok(arrivals)),
        }
    }
}

impl RabbitSubscription {
    pub(crate) async fn join(settings: CheckedSource, wire: Wire) -> Result<Self, Failure> {
        let partitions = settings.queues.all.len();
        let (members, alone, share) = if partitions > 1 && !settings.passive {
            let exchange = settings.queues.members();
            let (members, share) = Members::join(&settings.dial, exchange, partitions).await?;
            (Some(members), None, share)
        } else {
            let (tell, share) = watch::channel((0..partitions).collect());
            (None, Some(tell), share)
        };
        Ok(Self {
            publisher: Publisher::new(settings.dial.clone()),
            settings,
            hands: Hands::default(),
            opening: JoinSet::new(),
            expected: BTreeSet::new(),
            share,
            control: None,
            delays: BTreeSet::new(),
            members,
            _alone: alone,
            wire: Arc::new(wire),
        })
    }

    /// Opens what is ours, and closes what is not and has nothing with the caller.
    fn arrange(&mut self) {
        let wanted = self.share.borrow_and_update().clone();
        let mut kept = Vec::new();
        for mut lane in std::mem::take(&mut self.hands.lanes) {
            lane.leaving = !wanted.contains(&lane.partition);
            if !lane.leaving || lane.held > 0 {
                kept.push(lane);
            }
        }
        self.hands.lanes = kept;
        for partition in wanted {
            let open = self
                .hands
                .lanes
                .iter()
                .any(|lane| lane.partition == partition);
            if !open && self.expected.insert(partition) {
                self.opening.spawn(Lane::open(
                    self.settings.dial.clone(),
                    Arc::clone(&self.wire),
                    partition,
                    self.settings.queues.all[partition].clone(),
                    self.settings.prefetch,
                ));
            }
        }
    }

    async fn next(&mut self, max: usize) -> Result<Vec<Arrival>, Failure> {
        loop {
            if let Some(failure) = &self.hands.over {
                return Err(failure.clone());
            }
            self.arrange();
            let (opening, hands) = (&mut self.opening, &mut self.hands);
            let step = tokio::select! {
                biased;
                opened = opening.join_next(), if !opening.is_empty() => Step::Opened(opened),
                changed = self.share.changed() => Step::Changed(changed.is_ok()),
                came = poll_fn(|cx| hands.poll_lanes(max, cx)) => Step::Came(came),
            };
            match step {
                Step::Came(came) => return came,
                Step::Opened(Some(Ok(Ok(lane)))) => {
                    self.expected.remove(&lane.partition);
                    self.hands.lanes.push(*lane);
                }
                Step::Opened(Some(Ok(Err(failure)))) => self.hands.over = Some(failure),
                Step::Opened(Some(Err(error))) => {
                    self.hands.over = Some(Failure::Unavailable(error.to_string()));
                }
                Step::Opened(None) | Step::Changed(true) => {}
                Step::Changed(false) => {
                    let text = "the connection broke over which the group finds together";
                    self.hands.over = Some(Failure::Unavailable(text.into()));
                }
            }
        }
    }

    /// Whether all of it can be done; nothing is done yet.
    fn check(&self, settled: &[(Tag, Settle)]) -> Result<(), SourceError> {
        for (_, how) in settled {
            match how {
                Settle::Release { delay: Some(_) } | Settle::Dead(_) if self.settings.passive => {
                    let dead = matches!(how, Settle::Dead(_));
                    let text = if dead { NO_DEAD } else { NO_DELAY };
                    return Err(SourceError::Unsupported(text));
                }
                Settle::Release { delay: Some(delay) } if delay_class(*delay).is_none() => {
                    return Err(SourceError::Unsupported(TOO_LONG));
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// A copy for the place where it waits.
    async fn delayed(&mut self, held: &Held, milliseconds: u32) -> Result<Outgoing, Failure> {
        let name = self.settings.queues.delay(milliseconds);
        if !self.delays.contains(&milliseconds) {
            let channel = self.control().await?;
            declare_delay(&self.settings.dial, &channel, &name, milliseconds).await?;
            self.delays.insert(milliseconds);
        }
        let count = held.received.deliveries().unwrap_or(1);
        let count = AMQPValue::LongInt(i32::try_from(count).unwrap_or(i32::MAX));
        let back = self.settings.queues.all[held.partition].as_str();
        let more = vec![(BEFORE.into(), count)];
        Ok(held.received.copy(name.into(), back.into(), more))
    }

    /// A copy for the dead letters, which says why.
    fn dead(&self, held: &Held, why: &DeadLetter) -> Outgoing {
        let queues = &self.settings.queues;
        let trace = held.received.traceparent();
        let mut more = why.headers(trace.as_deref());
        more.push((dead::TOPIC, queues.origin().to_owned()));
        if queues.all.len() > 1 {
            more.push((dead::PARTITION, held.partition.to_string()));
        }
        let more = more.iter().map(|(n, v)| ((*n).into(), text(v))).collect();
        let to = queues.dead_letters();
        held.received.copy("".into(), to.into(), more)
    }

    async fn control(&mut self) -> Result<Channel, Failure> {
        if let Some(channel) = self.control.take().filter(|c| c.status().connected()) {
            self.control = Some(channel.clone());
            return Ok(channel);
        }
        let channel = self.settings.dial.channel(&self.wire).await?;
        self.control = Some(channel.clone());
        Ok(channel)
    }

    /// Acknowledges all, and waits for all of them together.
    async fn acknowledge(&self, all: &[Held]) -> Result<(), Failure> {
        let acks = all.iter().map(|h| h.acker.ack(BasicAckOptions::default()));
        let acks = join_all(acks).map(|all| all.into_iter().collect::<lapin::Result<Vec<_>>>());
        let said = self.settings.dial.within(acks).await?;
        all_said(said.into_iter().all(|said| said))
    }

    /// Gives all back, one after the other: so they come again in their order.
    async fn give_back(&self, all: &[Held]) -> Result<(), Failure> {
        let again = BasicNackOptions {
            multiple: false,
            requeue: true,
        };
        for held in all {
            all_said(self.settings.dial.within(held.acker.nack(again)).await?)?;
        }
        Ok(())
    }

    /// Publishes the copies, and acknowledges the originals of those that are confirmed.
    async fn move_away(&self, copies: Vec<(Held, Outgoing)>) -> Result<(), Failure> {
        let (originals, copies): (Vec<Held>, Vec<Outgoing>) = copies.into_iter().unzip();
        let deadline = Instant::now() + self.settings.timeout;
        let fates = self.publisher.send(&copies, deadline).await;
        let (mut moved, mut failed) = (Vec::new(), None);
        for (held, fate) in originals.into_iter().zip(fates) {
            match fate {
                Fate::Stored => moved.push(held),
                other => failed = Some(unsettled(other)),
            }
        }
        self.acknowledge(&moved).await?;
        failed.map_or(Ok(()), Err)
    }

    async fn settle_all(&mut self, mut settled: Vec<(Tag, Settle)>) -> Result<(), Failure> {
        settled.sort_by_key(|(tag, _)| *tag);
        let mut touched = BTreeSet::new();
        let (mut done, mut back, mut copies) = (Vec::new(), Vec::new(), Vec::new());
        for (tag, how) in settled {
            let Some(held) = self.hands.let_go(tag) else {
                continue;
            };
            touched.insert(held.partition);
            match how {
                Settle::Done => done.push(held),
                Settle::Release { delay } => match delay.and_then(delay_class) {
                    Some(class) => {
                        let copy = self.delayed(&held, class).await?;
                        copies.push((held, copy));
                    }
                    None => back.push(held),
                },
                Settle::Dead(why) => {
                    let copy = self.dead(&held, &why);
                    copies.push((held, copy));
                }
            }
        }
        self.acknowledge(&done).await?;
        self.give_back(&back).await?;
        let moved = match copies.is_empty() {
            true => Ok(()),
            false => self.move_away(copies).await,
        };
        let lanes = self.hands.lanes.iter();
        for lane in lanes.filter(|lane| touched.contains(&lane.partition)) {
            self.settings.dial.within(lane.flush()).await?;
        }
        moved
    }
}

/// A channel that was closed says nothing any more.
fn all_said(said: bool) -> Result<(), Failure> {
    match said {
        true => Ok(()),
        false => Err(Failure::Unavailable("the channel was closed".into())),
    }
}

enum Step {
    Opened(Option<Result<Result<Box<Lane>, Failure>, tokio::task::JoinError>>),
    Changed(bool),
    Came(Result<Vec<Arrival>, Failure>),
}

/// Why a copy is not known to be where it should be. The original comes again.
fn unsettled(fate: Fate) -> Failure {
    match fate {
        Fate::Not(failure) => failure,
        Fate::Returned(text) => Failure::Refused(text),
        Fate::Closed(said) => Failure::Refused(said.text),
        Fate::Oversized { size, limit } => {
            Failure::Refused(format!("headers of {size} bytes do not fit into {limit}"))
        }
        Fate::Broken(text) => Failure::Unavailable(text),
        Fate::Nacked => Failure::Unavailable("RabbitMQ did not take the copy".into()),
        Fate::Late | Fate::Stored => Failure::Unavailable("no confirm of the copy in time".into()),
    }
}

#[async_trait]
impl Subscription for RabbitSubscription {
    async fn receive(&mut self, max: usize) -> Result<Vec<Arrival>, SourceError> {
        if max == 0 {
            return Ok(Vec::new());
        }
        Ok(self.next(max).await?)
    }

    async fn settle(&mut self, settled: Vec<(Tag, Settle)>) -> Result<(), SourceError> {
        self.check(&settled)?;
        if let Err(failure) = self.settle_all(settled).await {
            // What was left in the middle comes again only when the connection ends.
            self.hands.over = Some(failure.clone());
            return Err(failure.into());
        }
        self.arrange();
        Ok(())
    }

    async fn lag(&mut self) -> Result<Option<u64>, SourceError> {
        let mut lag = 0;
        // First ours, then the broker's: what comes between the two is not counted twice.
        for lane in &mut self.hands.lanes {
            lag += lane.count_waiting()? as u64;
        }
        let channel = self.control().await?;
        for name in &self.settings.queues.all {
            lag += self.settings.dial.within(waiting(&channel, name)).await?;
        }
        Ok(Some(lag))
    }

    async fn close(self: Box<Self>) -> Result<(), SourceError> {
        let patience = self.settings.timeout;
        // First the queues, then the word to the others: they find them free.
        self.wire.close(patience).await;
        if let Some(members) = &self.members {
            members.leave(patience).await;
        }
        self.publisher.close(patience).await;
        Ok(())
    }
}
