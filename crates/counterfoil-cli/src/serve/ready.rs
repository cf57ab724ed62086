//! Whether this process can do its work: the database answers, and the relay's heart beats.
//!
//! # Promise
//! However often it is asked, the database is asked at most once a second.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::store::RelayId;
use tokio::sync::Mutex;

use crate::database::Outbox;

const FRESH: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(6);

/// Answers `/readyz`.
pub(super) struct Ready {
    outbox: Arc<dyn Outbox>,
    queues: Vec<Arc<str>>,
    /// The relay of this process bears a name that begins with this.
    label: String,
    last: Mutex<Option<(Instant, Result<(), String>)>>,
}

impl Ready {
    pub(super) fn new(outbox: Arc<dyn Outbox>, queues: Vec<Arc<str>>, label: &str) -> Self {
        // As relays are named: the label without odd characters, and something unique.
        let named = RelayId::new(label);
        let label = named
            .as_str()
            .rsplit_once(':')
            .map_or("", |(label, _)| label);
        Self {
            outbox,
            queues,
            label: format!("{label}:"),
            last: Mutex::new(None),
        }
    }

    /// Whether all is well; if not, why.
    pub(super) async fn check(&self) -> Result<(), String> {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return answer.clone();
        }
        let answer = match tokio::time::timeout(PATIENCE, self.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err("the database does not answer in time".into()),
        };
        *last = Some((Instant::now(), answer.clone()));
        answer
    }

    async fn ask(&self) -> Result<(), String> {
        self.outbox
            .check()
            .await
            .map_err(|error| error.one_line())?;
        if self.queues.is_empty() {
            return Ok(());
        }
        let nobody = RelayId::stored("");
        let survey = self.outbox.survey(&nobody, &self.queues).await;
        let members = survey.map_err(|error| error.one_line())?.members;
        match members
            .iter()
            .any(|(relay, _)| relay.as_str().starts_with(&self.label))
        {
            true => Ok(()),
            false => Err("the relay has sent no heartbeat within its lease".into()),
        }
    }
}
