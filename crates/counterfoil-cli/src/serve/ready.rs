//! Whether this process can do its work: the database answers, the guard's records are there, and the
//! relay's heart beats.
//!
//! # Promise
//! However often it is asked, the database is asked at most once a second. That the records of the
//! guard are gone is told without being asked, once, and once more when they are back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil::inbox::Monitor;
use counterfoil_core::guard::{Digest, Records};
use counterfoil_core::store::{Disposition, RelayId, StoreError};
use counterfoil_engine::guard::in_time;
use tokio::sync::Mutex;

use crate::database::Outbox;

const FRESH: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(6);
/// How often the records are looked for.
const OFTEN: Duration = Duration::from_secs(5);
/// No key has this digest.
const NOBODY: Digest = Digest([0; 32]);

/// Answers `/readyz`.
pub(super) struct Ready {
    outbox: Arc<dyn Outbox>,
    records: Arc<dyn Records>,
    queues: Vec<Arc<str>>,
    /// The relay of this process bears a name that begins with this.
    label: String,
    /// The consumers of this process.
    consumers: Vec<Monitor>,
    last: Mutex<Option<(Instant, Result<(), &'static str>)>>,
}

impl Ready {
    pub(super) fn new(
        outbox: Arc<dyn Outbox>,
        records: Arc<dyn Records>,
        queues: Vec<Arc<str>>,
        label: &str,
        consumers: Vec<Monitor>,
    ) -> Self {
        // As relays are named: the label without odd characters, and something unique.
        let named = RelayId::new(label);
        let label = named
            .as_str()
            .rsplit_once(':')
            .map_or("", |(label, _)| label);
        Self {
            outbox,
            records,
            queues,
            label: format!("{label}:"),
            consumers,
            last: Mutex::new(None),
        }
    }

    /// How each consumer of this process is, one line for each. No errors: anybody may ask.
    pub(super) fn consumers(&self) -> String {
        let line = |monitor: &Monitor| {
            let (name, status) = (monitor.name(), monitor.status());
            format!("consumer {name}: {}\n", status.words())
        };
        self.consumers.iter().map(line).collect()
    }

    /// Whether all is well; if not, why.
    pub(super) async fn check(&self) -> Result<(), &'static str> {
        let mut last = self.last.lock().await;
        if let Some((at, answer)) = &*last
            && at.elapsed() < FRESH
        {
            return *answer;
        }
        let answer = match tokio::time::timeout(PATIENCE, self.ask()).await {
            Ok(answer) => answer,
            Err(_) => Err(("the database does not answer in time", None)),
        };
        let before = last.as_ref().and_then(|(_, answer)| answer.as_ref().err());
        if let Err((kind, Some(error))) = &answer
            && before.is_none_or(|before| before != kind)
        {
            // What passes by itself the relay says too.
            match error.disposition() {
                Disposition::Retry => tracing::debug!(error = error.one_line(), "not ready"),
                Disposition::Fail => tracing::warn!(error = error.one_line(), "not ready"),
            }
        }
        let answer = answer.map_err(|(kind, _)| kind);
        *last = Some((Instant::now(), answer));
        answer
    }

    async fn ask(&self) -> Result<(), (&'static str, Option<StoreError>)> {
        let told = |error| (kind(&error), Some(error));
        self.outbox.check().await.map_err(told)?;
        let gone = |error| ("the guard's records cannot be read", Some(error));
        look(&*self.records).await.map_err(gone)?;
        if self.queues.is_empty() {
            return Ok(());
        }
        let nobody = RelayId::stored("");
        let survey = self.outbox.survey(&nobody, &self.queues).await;
        let members = survey.map_err(told)?.members;
        match members
            .iter()
            .any(|(relay, _)| relay.as_str().starts_with(&self.label))
        {
            true => Ok(()),
            false => Err(("the relay has sent no heartbeat within its lease", None)),
        }
    }
}

/// The kind of error. Everybody may ask whether we are ready, and the words of the database are not for
/// everybody: they stand in the log.
fn kind(error: &StoreError) -> &'static str {
    match error {
        StoreError::Unreachable(_) => "the database cannot be reached",
        StoreError::Busy(_) => "the database is busy",
        StoreError::NotWritable(..) => "the database cannot be written",
        StoreError::SchemaMissing | StoreError::SchemaTooOld { .. } => {
            "the tables are missing or too old: run `counterfoil migrate`"
        }
        StoreError::SchemaTooNew { .. } => "the tables are too new: upgrade the program",
        StoreError::Unsupported { .. } => "the database is not supported",
        _ => "the database answered with an error",
    }
}

/// Whether the records of the guard can be read.
async fn look(records: &dyn Records) -> Result<(), StoreError> {
    in_time(records.look(&NOBODY)).await.map(drop)
}

/// Looks for the records of the guard until it is aborted, and tells when they go and come.
pub(super) async fn watch(records: Arc<dyn Records>) {
    let gauge = metrics::gauge!("counterfoil_guard_unreadable");
    let mut gone = false;
    loop {
        let found = look(&*records).await;
        let before = std::mem::replace(&mut gone, found.is_err());
        match (found, before) {
            (Err(error), false) => tell(&error),
            (Ok(()), true) => tracing::info!("the guard's records can be read again"),
            (Err(_), true) | (Ok(()), false) => {}
        }
        gauge.set(f64::from(u8::from(gone)));
        tokio::time::sleep(OFTEN).await;
    }
}

/// A database that is away is told elsewhere, and comes back by itself.
fn tell(error: &StoreError) {
    let why = error.one_line();
    match error.disposition() {
        Disposition::Retry => {
            tracing::info!(
                why,
                "the guard's records cannot be read: no guarded request runs"
            );
        }
        Disposition::Fail => {
            tracing::error!(
                why,
                "the guard's records cannot be read: no guarded request runs"
            );
        }
    }
}
