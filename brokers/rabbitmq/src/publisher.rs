//! Publishing with confirms.
//!
//! # Promise
//! Every message has a fate within the deadline, and only one that RabbitMQ has confirmed, and not
//! returned, is stored. What was sent and not answered is never said to be not sent.
//!
//! A channel serves one batch at a time. So whatever is returned on it belongs to this batch, and is
//! found by its id: the driver hands a returned message to whichever confirm comes next.

use std::collections::HashMap;
use std::sync::{Arc, Mutex as StdMutex, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::join_all;
use lapin::message::BasicReturnMessage;
use lapin::options::{BasicPublishOptions, ConfirmSelectOptions};
use lapin::types::ShortString;
use lapin::{BasicProperties, Channel, Confirmation};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout, timeout_at};

use crate::classify::{Failure, Said, answer, one_line, why};
use crate::link::{Dial, Wire};

/// A channel that nobody used for so long may be gone without our knowing: it is asked first.
const REST: Duration = Duration::from_secs(1);
/// Channels that wait for the next batch.
const MOST_IDLE: usize = 8;
/// The most bytes on their way in one go, unless one message is larger.
const MOST_BYTES: usize = 4 * 1024 * 1024;
/// Stays free in the frame that carries properties and headers.
const FRAME_MARGIN: usize = 64;

/// A message as it is sent.
pub(crate) struct Outgoing {
    pub(crate) exchange: ShortString,
    pub(crate) routing_key: ShortString,
    pub(crate) properties: BasicProperties,
    pub(crate) body: Bytes,
    /// About how many bytes properties and headers are on the wire, and not less.
    pub(crate) beside: usize,
}

impl Outgoing {
    fn id(&self) -> Option<&str> {
        self.properties
            .message_id()
            .as_ref()
            .map(ShortString::as_str)
    }
}

/// What became of a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Fate {
    /// RabbitMQ has it.
    Stored,
    /// RabbitMQ has said that it could not take it.
    Nacked,
    /// There is no queue that it could go to.
    Returned(String),
    /// RabbitMQ closed the channel.
    Closed(Said),
    /// Its headers do not fit into a frame.
    Oversized {
        /// Bytes beside the body.
        size: usize,
        /// The frame.
        limit: usize,
    },
    /// The connection broke: it may have arrived.
    Broken(String),
    /// No answer, and no time left: it may have arrived, or may still do.
    Late,
    /// Not sent.
    Not(Failure),
}

/// Publishes over one connection, which it opens when it is needed.
pub(crate) struct Publisher {
    dial: Dial,
    wire: Mutex<Option<Arc<Wire>>>,
    idle: StdMutex<Vec<Seat>>,
}

/// A channel in confirm mode, for one batch.
struct Seat {
    wire: Arc<Wire>,
    channel: Channel,
    used: Instant,
}

impl Publisher {
    /// Opens nothing yet.
    pub(crate) fn new(dial: Dial) -> Self {
        Self {
            dial,
            wire: Mutex::default(),
            idle: StdMutex::default(),
        }
    }

    /// Sends all, and says for each what became of it.
    pub(crate) async fn send(&self, all: &[Outgoing], deadline: Instant) -> Vec<Fate> {
        let mut fates = Vec::with_capacity(all.len());
        while fates.len() < all.len() {
            let load = next_load(&all[fates.len()..]);
            let seat = match timeout_at(deadline, self.seat()).await {
                Ok(Ok(seat)) => seat,
                Ok(Err(failure)) => {
                    fates.resize(all.len(), Fate::Not(failure));
                    break;
                }
                Err(_) => {
                    let none = Failure::Unavailable("no time left: not sent".into());
                    fates.resize(all.len(), Fate::Not(none));
                    break;
                }
            };
            let some = send_load(&seat, load, deadline).await;
            let late = some.contains(&Fate::Late);
            match some.iter().any(|fate| matches!(fate, Fate::Broken(_))) || late {
                true => self.discard(&seat.wire),
                false => self.give_back(seat),
            }
            fates.extend(some);
        }
        fates
    }

    /// Says goodbye.
    pub(crate) async fn close(&self, patience: Duration) {
        let wire = self.wire.lock().await.take();
        if let Some(wire) = wire {
            wire.close(patience).await;
        }
    }

    /// A channel that answered a moment ago.
    async fn seat(&self) -> Result<Seat, Failure> {
        match timeout(self.dial.connect_timeout, self.find()).await {
            Ok(found) => found,
            Err(_) => {
                // Whatever is there does not answer.
                if let Ok(mut wire) = self.wire.try_lock() {
                    *wire = None;
                }
                self.idle().clear();
                let limit = self.dial.connect_timeout;
                let error = format!("RabbitMQ did not answer within {limit:?}");
                Err(Failure::Unavailable(error))
            }
        }
    }

    async fn find(&self) -> Result<Seat, Failure> {
        while let Some(seat) = self.pop() {
            if !seat.wire.is_up() || !seat.channel.status().connected() {
                continue;
            }
            // Asked twice it is the same mode, and an answer shows that somebody is there.
            if seat.used.elapsed() < REST || confirms(&seat.channel).await.is_ok() {
                return Ok(seat);
            }
            self.discard(&seat.wire);
        }
        let mut present = self.wire.lock().await;
        if let Some(wire) = present.clone().filter(|wire| wire.is_up()) {
            match seat_on(wire).await {
                Ok(seat) => return Ok(seat),
                Err(_) => *present = None,
            }
        }
        let wire = Arc::new(self.dial.open().await?);
        let seat = seat_on(Arc::clone(&wire)).await?;
        *present = Some(wire);
        Ok(seat)
    }

    fn pop(&self) -> Option<Seat> {
        self.idle().pop()
    }

    fn give_back(&self, mut seat: Seat) {
        seat.used = Instant::now();
        let mut idle = self.idle();
        if seat.channel.status().connected() && idle.len() < MOST_IDLE {
            idle.push(seat);
        }
    }

    /// Nobody gets this connection any more. Waits for nobody.
    fn discard(&self, broken: &Arc<Wire>) {
        self.idle().retain(|seat| !Arc::ptr_eq(&seat.wire, broken));
        if let Ok(mut wire) = self.wire.try_lock()
            && wire.as_ref().is_some_and(|w| Arc::ptr_eq(w, broken))
        {
            *wire = None;
        }
    }

    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<Seat>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn confirms(channel: &Channel) -> lapin::Result<()> {
    channel
        .confirm_select(ConfirmSelectOptions::default())
        .await
}

async fn seat_on(wire: Arc<Wire>) -> Result<Seat, Failure> {
    let opened = async {
        let channel = wire.connection.create_channel().await?;
        confirms(&channel).await?;
        lapin::Result::Ok(channel)
    };
    let channel = opened.await.map_err(|e| Failure::of(&e))?;
    Ok(Seat {
        wire,
        channel,
        used: Instant::now(),
    })
}

/// As many as go together.
fn next_load(rest: &[Outgoing]) -> &[Outgoing] {
    let mut size = 0;
    let over = rest.iter().position(|out| {
        size += out.body.len() + out.beside;
        size > MOST_BYTES
    });
    &rest[..over.unwrap_or(rest.len()).max(1).min(rest.len())]
}

/// A returned message: its id, and why it came back.
struct Back {
    id: Option<String>,
    words: String,
}

/// What came for one message.
enum Came {
    Answer { yes: bool, back: Option<Back> },
    Error(lapin::Error),
    Nothing,
    Unsent { size: usize, limit: usize },
}

async fn send_load(seat: &Seat, load: &[Outgoing], deadline: Instant) -> Vec<Fate> {
    let frame = seat.wire.connection.configuration().frame_max() as usize;
    let limit = frame.saturating_sub(FRAME_MARGIN);
    // Each is handed to the connection when it is first looked at, and then all wait together.
    let all = load.iter().map(|out| async move {
        if out.beside > limit {
            let size = out.beside;
            return Came::Unsent { size, limit };
        }
        match timeout_at(deadline, publish(&seat.channel, out)).await {
            Ok(Ok(confirmation)) => answered(confirmation),
            Ok(Err(error)) => Came::Error(error),
            Err(_) => Came::Nothing,
        }
    });
    judge(load, join_all(all).await)
}

async fn publish(channel: &Channel, out: &Outgoing) -> lapin::Result<Confirmation> {
    let options = BasicPublishOptions {
        mandatory: true,
        immediate: false,
    };
    let confirm = channel.basic_publish(
        out.exchange.clone(),
        out.routing_key.clone(),
        options,
        &out.body,
        out.properties.clone(),
    );
    confirm.await?.await
}

fn answered(confirmation: Confirmation) -> Came {
    let (yes, back) = match confirmation {
        Confirmation::Ack(back) => (true, back),
        Confirmation::Nack(back) => (false, back),
        // The channel is in confirm mode, so this does not come; stored it would not be.
        Confirmation::NotRequested => (false, None),
    };
    let back = back.map(|back| Back {
        id: back
            .properties
            .message_id()
            .as_ref()
            .map(ToString::to_string),
        words: words(&back),
    });
    Came::Answer { yes, back }
}

fn judge(load: &[Outgoing], mut came: Vec<Came>) -> Vec<Fate> {
    let mut returned: HashMap<Option<String>, String> = HashMap::new();
    for one in &mut came {
        if let Came::Answer { back, .. } = one
            && let Some(back) = back.take()
        {
            returned.insert(back.id, back.words);
        }
    }
    // All that were under way share the reason for which the channel was closed.
    let closed = came.iter().find_map(|one| match one {
        Came::Error(error) => answer(error),
        _ => None,
    });
    let fate = |(out, one): (&Outgoing, Came)| {
        if let Some(text) = returned.get(&out.id().map(ToOwned::to_owned)) {
            return Fate::Returned(text.clone());
        }
        match (one, &closed) {
            (Came::Answer { yes: true, .. }, _) => Fate::Stored,
            (Came::Answer { yes: false, .. }, _) => Fate::Nacked,
            (Came::Unsent { size, limit }, _) => Fate::Oversized { size, limit },
            (Came::Error(_), Some(said)) => Fate::Closed(said.clone()),
            (Came::Error(error), None) => {
                Fate::Broken(format!("the connection broke: {}", why(&error)))
            }
            (Came::Nothing, _) => Fate::Late,
        }
    };
    load.iter().zip(came).map(fate).collect()
}

/// Why it came back.
fn words(back: &BasicReturnMessage) -> String {
    one_line(&format!(
        "RabbitMQ has no queue for it ({} {}): exchange `{}`, routing key `{}`",
        back.reply_code, back.reply_text, back.exchange, back.routing_key
    ))
}

#[cfg(test)]
mod tests {
    use lapin::ErrorKind;
    use lapin::protocol::AMQPError;

    use super::*;

    fn out(id: Option<&str>, size: usize) -> Outgoing {
        let properties = BasicProperties::default();
        Outgoing {
            exchange: "".into(),
            routing_key: "q".into(),
            properties: match id {
                Some(id) => properties.with_message_id(id.into()),
                None => properties,
            },
            body: vec![0; size].into(),
            beside: 0,
        }
    }

    fn answer(yes: bool, back: Option<&str>) -> Came {
        let back = back.map(|id| Back {
            id: Some(id.to_owned()),
            words: "no queue".into(),
        });
        Came::Answer { yes, back }
    }

    #[test]
    fn a_returned_message_is_found_by_its_id_whatever_confirm_brings_it() {
        let load = ["a", "b", "c"].map(|id| out(Some(id), 1));

        let came = vec![
            answer(true, Some("b")),
            answer(true, None),
            answer(false, None),
        ];

        let returned = Fate::Returned("no queue".into());
        assert_eq!(judge(&load, came), [Fate::Stored, returned, Fate::Nacked]);
    }

    #[test]
    fn all_that_were_under_way_share_the_reason_of_a_closed_channel() {
        let load = ["a", "b", "c", "d"].map(|id| out(Some(id), 1));
        let error = AMQPError::from_id(404, "NOT_FOUND".into()).unwrap();
        let closed = lapin::Error::from(ErrorKind::ProtocolError(error));
        let after = lapin::Error::from(ErrorKind::MissingHeartbeatError);

        let came = vec![
            answer(true, None),
            Came::Error(after),
            Came::Error(closed),
            Came::Nothing,
        ];

        let fates = judge(&load, came);
        assert_eq!(fates[0], Fate::Stored);
        for fate in &fates[1..3] {
            assert!(
                matches!(fate, Fate::Closed(said) if said.code == 404),
                "{fate:?}"
            );
        }
        assert_eq!(fates[3], Fate::Late);
    }

    #[test]
    fn a_load_is_bounded_and_a_large_message_goes_alone() {
        let all = [1, MOST_BYTES, MOST_BYTES + 1, 2, 3].map(|size| out(None, size));
        let mut rest = &all[..];
        let mut sizes = Vec::new();
        while !rest.is_empty() {
            let load = next_load(rest);
            sizes.push(load.len());
            rest = &rest[load.len()..];
        }
        assert_eq!(sizes, [1, 1, 1, 2]);
    }
}
