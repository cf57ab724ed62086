//! The task of a subscription: asks for messages, keeps what is out, and talks to the other members.
//!
//! # Promise
//! The server always knows that we want messages of our partitions, and which ones we still have.
//! The task never waits for the caller, and ends with the subscription.

use std::sync::Arc;
use std::time::Duration;

use async_nats::{Message, Subject, Subscriber};
use bytes::Bytes;
use futures_util::{FutureExt as _, StreamExt as _};
use serde_json::json;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};

use crate::link::Trouble;
use crate::members::News;
use crate::partition::{Item, Limits, Origin};
use crate::state::Shared;

/// The name under which the server chooses one member.
pub(crate) const PRIORITY_GROUP: &str = "counterfoil";
/// What is said to the server about a message.
pub(crate) const DONE: &str = "+ACK";
pub(crate) const AGAIN: &str = "-NAK";
pub(crate) const NEVER: &str = "+TERM";
const IN_PROGRESS: &str = "+WPI";

/// One subscription's task.
pub(crate) struct Pump {
    shared: Arc<Shared>,
    limits: Limits,
    /// Where messages and notices of the server arrive: this and the number of a partition.
    inbox: String,
    announced: Instant,
}

impl Pump {
    pub(crate) fn new(shared: Arc<Shared>, inbox: String) -> Self {
        let limits = Limits {
            ack_wait: shared.settings.ack_wait,
            max_in_flight: shared.settings.max_in_flight,
        };
        Self {
            shared,
            limits,
            inbox,
            announced: Instant::now(),
        }
    }

    /// Runs until the subscription is over.
    pub(crate) async fn run(mut self, mut inbox: Subscriber, mut talk: Subscriber) {
        let mut tick = interval((self.limits.ack_wait / 12).min(Duration::from_secs(1)));
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let live = self.shared.live.clone();
        let broken = live.broken();
        tokio::pin!(broken);
        self.announce().await;
        loop {
            self.act().await;
            let look_at = self.next_look();
            tokio::select! {
                () = self.shared.leave.notified() => return self.finish(inbox).await,
                () = &mut broken => {
                    self.shared.end(Trouble::Unavailable("the connection broke".to_owned()));
                }
                said = talk.next() => self.heard(said).await,
                message = inbox.next() => self.arrived(message, &mut inbox),
                _ = tick.tick() => self.tick().await,
                () = sleep_until(look_at.unwrap_or_else(Instant::now)), if look_at.is_some() => {}
            }
            if self.shared.state().end.is_some() {
                return;
            }
        }
    }

    /// Takes in what is still on its way, and lets the server forget what we asked for.
    async fn finish(&self, mut inbox: Subscriber) {
        if inbox.drain().await.is_ok() {
            while let Some(message) = inbox.next().await {
                self.take_in(message);
            }
        }
    }

    /// Everything that has arrived by now.
    fn arrived(&self, first: Option<Message>, inbox: &mut Subscriber) {
        let mut next = Some(first);
        while let Some(message) = next {
            match message {
                Some(message) => self.take_in(message),
                None => {
                    self.shared
                        .end(Trouble::Unavailable("the connection closed".to_owned()));
                    return;
                }
            }
            next = inbox.next().now_or_never();
        }
        self.shared.news.notify_one();
    }

    fn take_in(&self, message: Message) {
        if message.status.is_some() {
            return self.notice(&message);
        }
        let now = Instant::now();
        let origin = message.reply.as_deref().and_then(Origin::of);
        let place = origin.and_then(|origin| self.shared.partition_of(origin.consumer));
        if let (Some(place), Some(item)) = (place, Item::of(message, now)) {
            self.shared.state().partitions[place].came(item, now);
        }
    }

    /// The server says something about what we asked for.
    fn notice(&self, message: &Message) {
        let number = message.subject.rsplit('.').next();
        let Some(number) = number.and_then(|n| n.parse::<usize>().ok()) else {
            return;
        };
        let missing = message
            .headers
            .as_ref()
            .and_then(|headers| headers.get("Nats-Pending-Messages"))
            .and_then(|value| value.as_str().parse().ok());
        let status = message.status.map_or(0, |status| status.as_u16());
        let words = message.description.as_deref().unwrap_or_default();
        let mut state = self.shared.state();
        let Some(partition) = state.partitions.get_mut(number) else {
            return;
        };
        match status {
            // A sign of life.
            100 => {}
            423 => {
                partition.closed(missing);
                let items = partition.lost();
                drop(state);
                self.give_back(items);
            }
            409 if words.contains("Deleted") || words.contains("push") => {
                state.end = Some(Trouble::Refused(format!("the consumer is gone: {words}")));
            }
            503 => {
                let gone = "the consumer or its stream is gone".to_owned();
                state.end = Some(Trouble::Unavailable(gone));
            }
            // It timed out, or the server has another leader: it is asked again.
            _ => partition.closed(missing),
        }
    }

    fn give_back(&self, items: Vec<Item>) {
        let shared = Arc::clone(&self.shared);
        tokio::spawn(async move { release(&shared, replies(items)).await });
    }

    /// Somebody of the group said something.
    async fn heard(&mut self, said: Option<Message>) {
        let Some(said) = said else {
            return;
        };
        let text = String::from_utf8_lossy(&said.payload).into_owned();
        let news = self.shared.state().members.hear(&text, Instant::now());
        if news == News::Changed {
            self.reassign().await;
        }
    }

    async fn reassign(&mut self) {
        self.shared.state().assign();
        self.shared.news.notify_one();
        self.announce().await;
    }

    async fn tick(&mut self) {
        let now = Instant::now();
        let (late, news) = {
            let mut state = self.shared.state();
            let news = state.members.forget_silent(now);
            (state.untouched(self.limits, now), news)
        };
        for reply in late {
            self.say(reply, Bytes::from_static(IN_PROGRESS.as_bytes()))
                .await;
        }
        if news == News::Changed {
            self.reassign().await;
        } else if now.duration_since(self.announced) >= self.limits.ack_wait / 6 {
            self.announce().await;
        }
    }

    /// Tells the others that we are here.
    async fn announce(&mut self) {
        self.announced = Instant::now();
        let text = {
            let state = self.shared.state();
            state.members.here(&state.holds())
        };
        let subject = Subject::from(self.shared.talk.as_str());
        self.say(subject, text.into()).await;
    }

    /// Says something to which no answer is wanted. What cannot be said is no news: that the
    /// connection is gone is seen elsewhere.
    async fn say(&self, subject: Subject, text: Bytes) {
        let _ = self.shared.live.client.publish(subject, text).await;
    }

    fn next_look(&self) -> Option<Instant> {
        let state = self.shared.state();
        state.partitions.iter().filter_map(|p| p.look_at()).min()
    }

    /// Does what is due.
    async fn act(&self) {
        let now = Instant::now();
        let (mut pulls, mut looks, mut leaves) = (Vec::new(), Vec::new(), Vec::new());
        for partition in &mut self.shared.state().partitions {
            if let Some((count, pin)) = partition.pull(now) {
                pulls.push((partition.number, count, pin));
            }
            if partition.should_look(now) {
                partition.look();
                looks.push(partition.number);
            }
            if partition.should_leave(now) {
                partition.leaving = true;
                leaves.push(partition.number);
            }
        }
        for (number, count, pin) in pulls {
            self.pull(number, count, pin).await;
        }
        for number in looks {
            tokio::spawn(look(Arc::clone(&self.shared), number));
        }
        for number in leaves {
            tokio::spawn(leave(Arc::clone(&self.shared), number));
        }
    }

    async fn pull(&self, number: u16, count: usize, pin: Option<String>) {
        let shared = &self.shared;
        let consumer = shared.settings.consumer(number);
        let mut question = json!({
            "batch": count,
            "expires": u64::try_from(self.limits.expiry().as_nanos()).unwrap_or(u64::MAX),
            "group": PRIORITY_GROUP,
        });
        if let Some(pin) = pin {
            question["id"] = pin.into();
        }
        let subject = format!("$JS.API.CONSUMER.MSG.NEXT.{}.{consumer}", shared.stream);
        let reply = format!("{}.{number}", self.inbox);
        let text = Bytes::from(question.to_string());
        let asked = shared.live.client.publish_with_reply(subject, reply, text);
        // What cannot be asked is asked again later, or the connection is gone.
        let _ = asked.await;
    }
}

/// Asks the server how many messages of a partition are out.
async fn look(shared: Arc<Shared>, number: u16) {
    let consumer = shared.settings.consumer(number);
    let subject = format!("CONSUMER.INFO.{}.{consumer}", shared.stream);
    let (question, wait) = (json!({}), shared.settings.timeout);
    let pending = match shared.live.ask(&subject, &question, wait).await {
        Ok(info) => info["num_ack_pending"].as_u64(),
        Err(_) => None,
    };
    {
        let mut state = shared.state();
        let others = state.members.hold(number);
        let partition = &mut state.partitions[usize::from(number)];
        let pending = pending.and_then(|n| usize::try_from(n).ok());
        partition.looked(pending, others, Instant::now());
    }
    shared.news.notify_one();
}

/// Gives a partition to whoever should have it.
async fn leave(shared: Arc<Shared>, number: u16) {
    let (items, pinned) = shared.state().partitions[usize::from(number)].leave();
    release(&shared, replies(items)).await;
    if pinned {
        unpin(&shared, number).await;
    }
    shared.state().partitions[usize::from(number)].leaving = false;
}

/// By which these messages are settled.
pub(crate) fn replies(items: Vec<Item>) -> Vec<Subject> {
    items.into_iter().filter_map(|i| i.message.reply).collect()
}

/// Lets the server give these to anybody. Without an answer they come again later.
pub(crate) async fn release(shared: &Shared, replies: Vec<Subject>) {
    let all = replies.into_iter().map(|reply| {
        let question = shared.live.client.request(reply, AGAIN.into());
        tokio::time::timeout(shared.settings.timeout, question)
    });
    futures_util::future::join_all(all).await;
}

/// Lets the server choose another member. Without an answer it does so later by itself.
pub(crate) async fn unpin(shared: &Shared, number: u16) {
    let consumer = shared.settings.consumer(number);
    let subject = format!("CONSUMER.UNPIN.{}.{consumer}", shared.stream);
    let question = json!({ "group": PRIORITY_GROUP });
    let wait = shared.settings.timeout;
    if let Err(trouble) = shared.live.ask(&subject, &question, wait).await {
        tracing::debug!(?trouble, consumer, "the partition was not given back");
    }
}
