//! Queues that lose messages.
//!
//! # Promise
//! Whoever uses a queue that is not as we would have made it is told once, in one line of the log,
//! what the first difference is. Looking changes nothing, and never holds up or fails a message.
//!
//! AMQP shows no settings of a queue. But RabbitMQ refuses to declare a queue that is there in another
//! way, and says what is different.

use crate::classify::Failure;
use crate::link::Dial;
use crate::names::Queues;
use crate::topology::{arguments, queue, waiting};

/// Looks, and warns if there is a reason to. Whether it got an answer.
pub(crate) async fn look(dial: &Dial, queues: &Queues) -> bool {
    let Ok(wire) = dial.open().await else {
        return false;
    };
    for name in &queues.all {
        // An answer of no closes the channel.
        let Ok(channel) = dial.channel(&wire).await else {
            return false;
        };
        let asked = async {
            // Never the first to declare it: it must be there.
            waiting(&channel, name).await?;
            queue(&channel, name, arguments(queues)).await
        };
        match dial.within(asked).await {
            Ok(()) => {}
            Err(Failure::Refused(text)) => match risk(&text) {
                Some(risk) => tracing::warn!(
                    rabbitmq = dial.shown,
                    queue = name,
                    difference = text,
                    "this queue can lose messages: {risk}"
                ),
                None => tracing::debug!(queue = name, text, "RabbitMQ does not show the queue"),
            },
            Err(Failure::Unavailable(_)) => return false,
        }
    }
    wire.close(dial.timeout).await;
    true
}

/// What the difference means.
fn risk(text: &str) -> Option<&'static str> {
    let (_, name) = text.split_once("inequivalent arg '")?;
    let name = name.split('\'').next().unwrap_or_default();
    Some(match name {
        "x-queue-type" => "it is no quorum queue, so it can go with the node that holds it",
        "durable" => "it does not survive a restart",
        "auto_delete" | "exclusive" | "x-expires" => "it is deleted with all its messages",
        "x-max-length" | "x-max-length-bytes" | "x-overflow" => "it drops messages when it is full",
        "x-message-ttl" => "its messages expire",
        "x-dead-letter-exchange" | "x-dead-letter-routing-key" => {
            "what cannot pass does not go to its dead letters"
        }
        "x-dead-letter-strategy" => "dead letters may be lost on their way",
        "x-single-active-consumer" => "and it keeps no order, having several consumers at a time",
        _ => "it is not as this program declares queues",
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_explained_and_anything_else_is_none() {
        let said = |arg: &str| {
            format!("PRECONDITION_FAILED - inequivalent arg '{arg}' for queue 'q' in vhost '/'")
        };
        assert!(risk(&said("x-queue-type")).unwrap().contains("no quorum"));
        assert!(risk(&said("durable")).unwrap().contains("restart"));
        assert!(risk(&said("x-new")).unwrap().contains("not as"));
        assert_eq!(risk("ACCESS_REFUSED - configure access"), None);
    }
}
