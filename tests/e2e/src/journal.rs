//! The destination of a relay process: the receiver in the process of the test.

use std::net::SocketAddr;
use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::{Capabilities, Code, Delivery, Destination, Outcome};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

use crate::wire::{self, Call, Item, Reply, Seen, Verdict};

/// A message of this type ends the process that tries to deliver it.
pub const DEADLY: &str = "Deadly";

/// Offers messages to a [`crate::receiver::Receiver`].
pub struct Journal {
    /// The name of this process.
    pub relay: String,
    /// Where the receiver listens.
    pub receiver: SocketAddr,
    /// What the relay is told about this destination.
    pub capabilities: Capabilities,
}

enum Trouble {
    /// Certainly not stored.
    NobodyThere(std::io::Error),
    /// Possibly stored.
    InDoubt(std::io::Error),
}

impl Journal {
    async fn call(&self, batch: &[Delivery]) -> Result<Vec<Verdict>, Trouble> {
        let stream = TcpStream::connect(self.receiver)
            .await
            .map_err(Trouble::NobodyThere)?;
        let items = batch.iter().map(Item::from).collect();
        let call = Call {
            relay: self.relay.clone(),
            items,
        };
        exchange(stream, &call).await.map_err(Trouble::InDoubt)
    }
}

async fn exchange(stream: TcpStream, call: &Call) -> std::io::Result<Vec<Verdict>> {
    let (read, mut write) = stream.into_split();
    write.write_all(wire::line(call).as_bytes()).await?;
    let mut answer = String::new();
    BufReader::new(read).read_line(&mut answer).await?;
    let reply: Reply = serde_json::from_str(&answer)?;
    write.write_all(wire::line(&Seen {}).as_bytes()).await?;
    Ok(reply.verdicts)
}

#[async_trait]
impl Destination for Journal {
    fn describe(&self) -> String {
        format!("journal at {}", self.receiver)
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn publish(&self, batch: &[Delivery]) -> Vec<Outcome> {
        if batch.iter().any(|d| d.event_type == DEADLY) {
            std::process::abort();
        }
        let limit = self.capabilities.timeout.unwrap_or(Duration::MAX);
        let same = |outcome: Outcome| batch.iter().map(|_| outcome.clone()).collect();
        match tokio::time::timeout(limit, self.call(batch)).await {
            Err(_) => same(Outcome::retry(Code::TIMEOUT, "no answer in time")),
            Ok(Err(Trouble::NobodyThere(error))) => same(Outcome::Unavailable {
                error: error.to_string(),
            }),
            Ok(Err(Trouble::InDoubt(error))) => {
                same(Outcome::retry(Code::UNCONFIRMED, error.to_string()))
            }
            Ok(Ok(verdicts)) => verdicts.into_iter().map(outcome).collect(),
        }
    }
}

/// What a verdict means for the relay.
pub fn outcome(verdict: Verdict) -> Outcome {
    match verdict {
        Verdict::Stored => Outcome::Stored,
        Verdict::Failed => Outcome::retry(Code::UPSTREAM_5XX, "the receiver failed"),
        Verdict::Refused => Outcome::refused(Code::UPSTREAM_4XX, "the receiver refused"),
        Verdict::Away => Outcome::Unavailable {
            error: "nobody is at home".into(),
        },
        Verdict::HungUp => Outcome::retry(Code::UNCONFIRMED, "the receiver hung up"),
    }
}
