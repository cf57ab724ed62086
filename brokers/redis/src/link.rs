//! The connection.
//!
//! # Promise
//! Whoever asks for a connection has one that answered a moment ago, or a failure within the connect
//! timeout, and nothing of a message was sent meanwhile. One connection serves all. One that broke,
//! or that left somebody without an answer, is not given to anybody again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::Outcome;
use redis::aio::MultiplexedConnection;
use redis::{Value, pipe};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::server::Server;

/// A connection that nobody used for so long may be gone without our knowing: it is asked first.
const REST: Duration = Duration::from_secs(1);

/// The connection that all batches use.
pub(crate) struct Link {
    server: Server,
    live: Mutex<Option<Live>>,
}

/// A connection that several use.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) connection: MultiplexedConnection,
    /// Somebody found out that it is no good.
    over: Arc<AtomicBool>,
    used: Instant,
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(server: Server) -> Self {
        Self {
            server,
            live: Mutex::default(),
        }
    }

    /// A connection that answers. The failure is the outcome of everything that was to be sent.
    pub(crate) async fn take(&self) -> Result<Live, Outcome> {
        // Waiting for somebody else who connects counts too.
        match timeout(self.server.connect_timeout, self.find()).await {
            Ok(found) => found,
            Err(_) => Err(Outcome::Unavailable {
                error: format!(
                    "Redis did not answer within {:?}",
                    self.server.connect_timeout
                ),
            }),
        }
    }

    /// Nobody gets this connection any more. Waits for nobody.
    pub(crate) fn discard(&self, broken: &Live) {
        broken.over.store(true, Ordering::Relaxed);
        // Closed now, unless somebody is busy here, who will see that it is over.
        if let Ok(mut live) = self.live.try_lock()
            && live.as_ref().is_some_and(Live::is_over)
        {
            *live = None;
        }
    }

    async fn find(&self) -> Result<Live, Outcome> {
        let mut live = self.live.lock().await;
        // Taken out: when we are cut off while we ask, it does not answer, and nobody gets it.
        if let Some(mut present) = live.take().filter(|live| !live.is_over()) {
            let fresh = present.used.elapsed() < REST;
            if fresh || present.answers().await {
                present.used = Instant::now();
                *live = Some(present.clone());
                return Ok(present);
            }
        }
        let opened = Live {
            connection: self.server.open().await?,
            over: Arc::default(),
            used: Instant::now(),
        };
        *live = Some(opened.clone());
        Ok(opened)
    }
}

impl Live {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether somebody is there. An error that Redis gives is an answer too.
    async fn answers(&mut self) -> bool {
        let mut question = pipe();
        question.ignore_errors().cmd("PING");
        let answer: Result<Vec<Value>, _> = question.query_async(&mut self.connection).await;
        answer.is_ok()
    }
}
