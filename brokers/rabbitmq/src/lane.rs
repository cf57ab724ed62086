//! One queue that is being read.
//!
//! # Promise
//! A lane has a channel of its own: closing it gives everything that was not acknowledged back, in
//! order. At most `prefetch` messages are on it at a time.
//!
//! # When it is dropped
//! Its channel is closed, and only then its consumer is. A consumer that went first would be
//! cancelled, and RabbitMQ would give the next reader what comes later, while what this one was
//! given is still out: the order would be lost.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use futures_util::Stream as _;
use lapin::message::Delivery;
use lapin::options::{BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Consumer};
use tokio::runtime::Handle;

use crate::classify::Failure;
use crate::link::{Dial, Wire};

/// A queue that is being read.
pub(crate) struct Lane {
    pub(crate) partition: usize,
    pub(crate) queue: String,
    pub(crate) channel: Channel,
    /// Absent while it is dropped.
    consumer: Option<Consumer>,
    dial: Dial,
    prefetch: u16,
    /// Came, and was not asked for yet.
    waiting: VecDeque<Delivery>,
    /// How many are with the caller.
    pub(crate) held: usize,
    /// Somebody else will read this queue, when nothing of it is with the caller.
    pub(crate) leaving: bool,
}

impl Lane {
    pub(crate) async fn open(
        dial: Dial,
        wire: Arc<Wire>,
        partition: usize,
        queue: String,
        prefetch: u16,
    ) -> Result<Box<Self>, Failure> {
        let channel = dial.channel(&wire).await?;
        let consuming = async {
            let each = BasicQosOptions { global: false };
            channel.basic_qos(prefetch, each).await?;
            let (name, options) = (queue.as_str().into(), BasicConsumeOptions::default());
            channel
                .basic_consume(name, "".into(), options, FieldTable::default())
                .await
        };
        let consumer = dial.within(consuming).await?;
        Ok(Box::new(Self {
            partition,
            queue,
            channel,
            consumer: Some(consumer),
            dial,
            prefetch,
            waiting: VecDeque::new(),
            held: 0,
            leaving: false,
        }))
    }

    /// The next message, in order.
    pub(crate) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Result<Delivery, Failure>> {
        match self.waiting.pop_front() {
            Some(delivery) => Poll::Ready(Ok(delivery)),
            None => self.poll_consumer(cx),
        }
    }

    fn poll_consumer(&mut self, cx: &mut Context<'_>) -> Poll<Result<Delivery, Failure>> {
        let next = match &mut self.consumer {
            Some(consumer) => ready!(Pin::new(consumer).poll_next(cx)),
            None => None,
        };
        Poll::Ready(match next {
            Some(Ok(delivery)) => Ok(delivery),
            Some(Err(error)) => Err(Failure::of(&error)),
            None => {
                let text = format!("RabbitMQ stopped sending the messages of `{}`", self.queue);
                Err(Failure::Unavailable(text))
            }
        })
    }

    /// How many have come and were not asked for.
    pub(crate) fn count_waiting(&mut self) -> Result<usize, Failure> {
        let mut cx = Context::from_waker(Waker::noop());
        while let Poll::Ready(next) = self.poll_consumer(&mut cx) {
            self.waiting.push_back(next?);
        }
        Ok(self.waiting.len())
    }

    /// Returns when RabbitMQ has read everything that was said on this channel: it answers in order.
    pub(crate) async fn flush(&self) -> lapin::Result<()> {
        let each = BasicQosOptions { global: false };
        self.channel.basic_qos(self.prefetch, each).await
    }
}

impl Drop for Lane {
    fn drop(&mut self) {
        let consumer = self.consumer.take();
        let (channel, dial) = (self.channel.clone(), self.dial.clone());
        // In the background: nobody can wait here.
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                // A channel that is gone is as good as closed.
                let _ = dial.within(channel.close(200, "OK".into())).await;
                drop(consumer);
            });
        }
    }
}
