//! The connection.
//!
//! # Promise
//! Whoever has a connection learns at once when it breaks, and when the server says that a subject
//! is not for us. A connection that broke is never used again: nothing that was meant for it is sent
//! later, on another one, after somebody has given up waiting for it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_nats::jetstream::{self, Context};
use async_nats::{Client, ConnectErrorKind, Event, ServerError};
use counterfoil_core::source::SourceError;
use counterfoil_core::{Code, Outcome};
use serde_json::Value;
use tokio::sync::{Mutex, watch};
use tokio::time::timeout;

use crate::access::Access;
use crate::classify::one_line;

/// The most refusals that are remembered for one connection.
const MOST_DENIED: usize = 1_000;

/// Why the server cannot be used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Nobody answers, or not any more.
    Unavailable(String),
    /// Credentials, rights, settings.
    Refused(String),
    /// JetStream answered with an error.
    Api {
        /// Its number, such as 10014.
        code: u64,
        /// In words.
        error: String,
    },
}

impl Trouble {
    /// What it means for messages that were not sent.
    pub(crate) fn outcome(self) -> Outcome {
        match self {
            Trouble::Unavailable(error) => Outcome::Unavailable { error },
            Trouble::Refused(error) => Outcome::DestinationRefused {
                code: Code::DESTINATION_REFUSED,
                error,
            },
            Trouble::Api { error, .. } => Outcome::retry(Code::UPSTREAM_5XX, error),
        }
    }
}

impl From<Trouble> for SourceError {
    fn from(trouble: Trouble) -> Self {
        match trouble {
            Trouble::Unavailable(error) => SourceError::Unavailable(error),
            Trouble::Refused(error) => SourceError::Refused(error),
            Trouble::Api { error, .. } => SourceError::Failed(error.into()),
        }
    }
}

/// What is known about a connection.
#[derive(Debug, Default)]
struct Health {
    over: bool,
    /// What the server said that we may not do, in its words.
    denied: Vec<String>,
}

/// A connection that several use.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) client: Client,
    pub(crate) jetstream: Context,
    health: watch::Receiver<Health>,
    over: Arc<AtomicBool>,
}

impl Live {
    /// Connects and logs in.
    pub(crate) async fn open(access: &Access, wait: Duration) -> Result<Self, Trouble> {
        match timeout(wait, connect(access, wait)).await {
            Ok(opened) => opened,
            Err(_) => Err(Trouble::Unavailable(format!(
                "NATS did not answer within {wait:?}"
            ))),
        }
    }

    /// Whether it must not be used any more.
    pub(crate) fn is_over(&self) -> bool {
        // A sender that is gone belongs to a connection that is gone.
        let told = self.health.has_changed().is_err() || self.health.borrow().over;
        told || self.over.load(Ordering::Relaxed)
    }

    /// Nobody may use it any more.
    pub(crate) fn discard(&self) {
        self.over.store(true, Ordering::Relaxed);
    }

    /// Waits until it breaks.
    pub(crate) async fn broken(&self) {
        let mut health = self.health.clone();
        // An error means that the connection is gone.
        let _ = health.wait_for(|health| health.over).await;
    }

    /// Waits until it breaks, or until the server has said that one of these subjects is not for us.
    pub(crate) async fn hindered(&self, subjects: &[String]) -> Trouble {
        let mut health = self.health.clone();
        let told = health
            .wait_for(|health| health.over || denial(health, subjects).is_some())
            .await;
        match told {
            Ok(health) => match denial(&health, subjects) {
                Some(words) => Trouble::Refused(one_line(words)),
                None => gone(),
            },
            Err(_) => gone(),
        }
    }

    /// Asks JetStream.
    pub(crate) async fn ask(
        &self,
        subject: &str,
        question: &Value,
        wait: Duration,
    ) -> Result<Value, Trouble> {
        let denied = [format!("$JS.API.{subject}")];
        let answer = timeout(wait, self.jetstream.request(subject.to_owned(), question));
        let answer: Value = tokio::select! {
            answer = answer => match answer {
                Ok(Ok(answer)) => answer,
                Ok(Err(error)) => return Err(unanswered(&error)),
                Err(_) => return Err(Trouble::Unavailable(format!("no answer within {wait:?}"))),
            },
            trouble = self.hindered(&denied) => return Err(trouble),
        };
        match answer.get("error") {
            None => Ok(answer),
            Some(error) => Err(Trouble::Api {
                code: error["err_code"].as_u64().unwrap_or_default(),
                error: one_line(error["description"].as_str().unwrap_or("no reason")),
            }),
        }
    }
}

fn gone() -> Trouble {
    Trouble::Unavailable("the connection broke".to_owned())
}

fn denial<'a>(health: &'a Health, subjects: &[String]) -> Option<&'a str> {
    let about = |words: &&String| {
        let named = |subject: &String| words.contains(&format!("\"{subject}\""));
        subjects.iter().any(named)
    };
    health.denied.iter().find(about).map(String::as_str)
}

fn unanswered(error: &jetstream::context::RequestError) -> Trouble {
    use jetstream::context::RequestErrorKind as Kind;
    match error.kind() {
        Kind::NoResponders => Trouble::Refused("JetStream is not enabled on this NATS".to_owned()),
        Kind::TimedOut => Trouble::Unavailable("no answer in time".to_owned()),
        _ => Trouble::Unavailable(one_line(&error.to_string())),
    }
}

async fn connect(access: &Access, wait: Duration) -> Result<Live, Trouble> {
    let (tell, health) = watch::channel(Health::default());
    let options = access
        .options(wait)
        .await
        .map_err(|e| Trouble::Refused(format!("the credentials cannot be read: {e}")))?;
    let client = options
        // Who waits has a limit of its own.
        .request_timeout(None)
        // When it breaks we begin anew; each server is tried once, and then its task ends.
        .max_reconnects(access.servers.len())
        .ignore_discovered_servers()
        .ping_interval((wait / 2).max(Duration::from_millis(500)))
        .event_callback(move |event| {
            note(&tell, event);
            std::future::ready(())
        })
        .connect(access.servers.clone())
        .await
        .map_err(|e| refusal(&e))?;
    Ok(Live {
        jetstream: jetstream::new(client.clone()),
        client,
        health,
        over: Arc::default(),
    })
}

fn note(tell: &watch::Sender<Health>, event: Event) {
    match event {
        Event::Disconnected | Event::Closed => {
            tell.send_modify(|health| health.over = true);
        }
        Event::ServerError(ServerError::Other(words))
            if words.contains("Permissions Violation") =>
        {
            tracing::warn!(error = one_line(&words), "NATS does not allow this");
            tell.send_modify(|health| {
                if health.denied.len() < MOST_DENIED {
                    health.denied.push(words);
                }
            });
        }
        _ => {}
    }
}

fn refusal(error: &async_nats::ConnectError) -> Trouble {
    let words = match std::error::Error::source(error) {
        Some(source) => one_line(&format!("{error}: {source}")),
        None => one_line(&error.to_string()),
    };
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation
        | ConnectErrorKind::Authentication
        | ConnectErrorKind::ServerParse
        | ConnectErrorKind::Tls => Trouble::Refused(words),
        _ if words.to_lowercase().contains("authentication") => Trouble::Refused(words),
        _ => Trouble::Unavailable(words),
    }
}

/// The way to one NATS: the connection that all of a destination's batches use.
pub(crate) struct Link {
    access: Access,
    connect_timeout: Duration,
    live: Mutex<Option<Live>>,
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(access: Access, connect_timeout: Duration) -> Self {
        Self {
            access,
            connect_timeout,
            live: Mutex::default(),
        }
    }

    /// A connection that is not known to be broken.
    pub(crate) async fn take(&self) -> Result<Live, Trouble> {
        let find = async {
            let mut live = self.live.lock().await;
            if let Some(present) = live.as_ref().filter(|live| !live.is_over()) {
                return Ok(present.clone());
            }
            *live = None;
            let opened = Live::open(&self.access, self.connect_timeout).await?;
            *live = Some(opened.clone());
            Ok(opened)
        };
        // Waiting for somebody else who connects counts too.
        match timeout(self.connect_timeout * 2, find).await {
            Ok(found) => found,
            Err(_) => Err(Trouble::Unavailable(format!(
                "NATS did not answer within {:?}",
                self.connect_timeout * 2
            ))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_denial_is_about_the_subject_that_it_names() {
        let health = Health {
            over: false,
            denied: vec!["Permissions Violation for Publish to \"orders.1\"".into()],
        };

        assert!(denial(&health, &["orders.0".into(), "orders.1".into()]).is_some());
        assert!(denial(&health, &["orders".into(), "orders.10".into()]).is_none());
    }

    #[test]
    fn trouble_means_the_same_for_both_directions() {
        let gone = Trouble::Unavailable("x".into());
        assert_eq!(gone.clone().outcome().label(), "unavailable");
        assert!(matches!(gone.into(), SourceError::Unavailable(_)));
        let refused = Trouble::Refused("x".into());
        assert_eq!(refused.clone().outcome().label(), "destination-refused");
        assert!(matches!(refused.into(), SourceError::Refused(_)));
        let api = Trouble::Api {
            code: 10_047,
            error: "x".into(),
        };
        assert_eq!(api.clone().outcome().label(), "retry");
        assert!(matches!(api.into(), SourceError::Failed(_)));
    }
}
