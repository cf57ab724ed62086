//! What a broker's tests supply.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use counterfoil_core::Destination;
use counterfoil_core::source::Source;

/// What the cases must know about a broker beside what its driver declares.
#[derive(Debug, Clone, Copy)]
pub struct Manner {
    /// What stands before the name of an attribute, for example `ce_`.
    pub prefix: &'static str,
    /// Each group gets every message. Otherwise all groups are the same one.
    pub groups: bool,
    /// For how long the broker waits for a sign of life of a consumer before it gives the
    /// consumer's messages to others, as the harness has set it: a few seconds.
    pub window: Duration,
    /// A private server still has its messages after it was killed and restarted.
    pub keeps_data: bool,
}

/// A message as a program writes or reads it that knows the broker and nothing of us.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Foreign {
    /// The key by which the broker orders.
    pub key: Option<Bytes>,
    /// Headers, in any order.
    pub headers: Vec<(String, Bytes)>,
    /// The body.
    pub body: Bytes,
}

impl Foreign {
    /// The value of a header, whatever the case of its name.
    pub fn header(&self, name: &str) -> Option<&[u8]> {
        let named = |(n, _): &&(String, Bytes)| n.eq_ignore_ascii_case(name);
        self.headers.iter().find(named).map(|(_, value)| &**value)
    }
}

/// Both directions at one address.
pub struct Door {
    /// Where messages go.
    pub destination: Arc<dyn Destination>,
    /// Where they come from.
    pub source: Arc<dyn Source>,
}

/// A broker under test.
///
/// On a private server its destinations and sources have timeouts of a few seconds, so that an
/// outage is noticed while a test waits; on the server for all they have time. Windows are of a few
/// seconds, so that a death is noticed, and a busy machine is not taken for one.
#[async_trait]
pub trait BrokerHarness: Sized + Send + Sync + 'static {
    /// The server for all tests. Absent: skip the test.
    async fn start() -> Option<Self>;

    /// A server of one test's own, to be killed and frozen. Absent: skip the test.
    async fn start_private() -> Option<Self>;

    /// Removes what was made, and stops a private server.
    async fn clean_up(&self) {}

    /// What the cases must know.
    fn manner(&self) -> Manner;

    /// The largest payload of its destinations, where the broker has no limit that its driver could
    /// declare.
    fn largest_payload(&self) -> Option<usize> {
        None
    }

    /// Makes a topic that nobody else uses, with several partitions where there are such.
    async fn topic(&self) -> String;

    /// A new destination to this topic.
    async fn destination(&self, topic: &str) -> Arc<dyn Destination>;

    /// A new source from this topic for this group. The group gets what is published from now on,
    /// also before somebody subscribes: what it needs at the broker is made here.
    async fn source(&self, topic: &str, group: &str) -> Arc<dyn Source>;

    /// Writes a message as a program does that knows nothing of us.
    async fn put(&self, topic: &str, message: &Foreign);

    /// What lies among the dead letters of this topic and group, read as such a program does.
    /// Reading may take them away. Called only where dead letters are declared.
    async fn dead_letters(&self, topic: &str, group: &str) -> Vec<Foreign>;

    /// An address at which nobody listens.
    async fn nowhere(&self) -> Door;

    /// This topic with credentials that the broker refuses. Absent where it asks for none.
    async fn stranger(&self, topic: &str) -> Option<Door>;

    /// A topic that does not exist. Absent where the broker makes it.
    async fn absent(&self) -> Option<Door>;

    /// Ends the private server without warning (SIGKILL).
    async fn kill(&self);

    /// Starts the private server again at the same address, and waits until it answers.
    async fn restart(&self);

    /// Freezes the private server (SIGSTOP).
    async fn pause(&self);

    /// Lets it go on (SIGCONT).
    async fn resume(&self);
}
