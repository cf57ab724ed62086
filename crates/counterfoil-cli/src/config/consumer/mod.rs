//! `[[consumer]]`: from the file to a consumer that can be started.

pub(super) mod file;

use std::sync::Arc;
use std::time::Duration;

use counterfoil::inbox::{self, Gate, Mapping, Place, Versions};
use counterfoil_core::inbox::queue_of;
use counterfoil_core::message::check_name;
use counterfoil_core::policy::Backoff;
use counterfoil_core::source::Source;
use counterfoil_engine::OnPark;

use super::at::At;
use super::file::File;
use super::nearest::hint;
use super::settings::Judge;
use super::{file as sections, queue};
use crate::bridge::statement::Statement;

/// More than this is a slip of the fingers.
const MOST_WORKERS: usize = 256;
const MOST_HELD: usize = 100_000;

/// A consumer that can be started.
pub(crate) struct Consumer {
    /// What is processed is remembered under this name.
    pub(crate) name: String,
    /// Where messages come from.
    pub(crate) source: Arc<dyn Source>,
    /// What its broker has given up, when that is to be parked here.
    pub(crate) dead_letters: Option<Arc<dyn Source>>,
    /// What becomes of them.
    pub(crate) effect: Effect,
    pub(crate) mapping: Mapping,
    pub(crate) skip: Vec<String>,
    pub(crate) workers: usize,
    pub(crate) batch: usize,
    pub(crate) held: usize,
    pub(crate) most_waiting: u32,
    pub(crate) timeout: Duration,
    pub(crate) backoff: Backoff,
    pub(crate) versions: Versions,
    pub(crate) on_park: OnPark,
    pub(crate) poison: inbox::Poison,
    pub(crate) keep: Duration,
    pub(crate) gate: Option<Arc<dyn Gate>>,
}

/// What becomes of a message.
pub(crate) enum Effect {
    /// It is put into the queue of a destination.
    Enqueue(Arc<str>),
    /// A statement runs.
    Run {
        statement: Statement,
        /// Whether it has failed when it changes nothing.
        expect_rows: bool,
    },
}

impl Consumer {
    /// For people: what goes where.
    pub(crate) fn describe(&self) -> String {
        let to = match &self.effect {
            Effect::Enqueue(queue) => format!("the destination {queue}"),
            Effect::Run { .. } => "a statement".into(),
        };
        format!("{}: {} → {to}", self.name, self.source.describe())
    }
}

/// All consumers in which nothing is wrong.
pub(super) fn consumers(file: &File, judge: &mut Judge<'_>) -> Vec<Consumer> {
    let mut names: Vec<&str> = Vec::new();
    let mut all = Vec::new();
    for (i, section) in file.consumers.iter().enumerate() {
        let name = section.name.as_deref().unwrap_or_default();
        let path = format!("consumer.{i}");
        let shown = match name {
            "" => "[[consumer]]".to_owned(),
            name => format!("[[consumer]] `{name}`"),
        };
        let mut at = At::new(path.clone(), shown, judge);
        if name.is_empty() {
            at.missing("name");
        } else if let Err(error) = check_name("the name of a consumer", &queue_of(name)) {
            at.wrong("name", &error);
        } else if names.contains(&name) {
            at.wrong("name", &"another consumer has this name");
        }
        names.push(name);
        all.extend(consumer(name, &path, section, file, &mut at));
    }
    all
}

fn consumer(
    name: &str,
    path: &str,
    section: &file::Consumer,
    file: &File,
    at: &mut At<'_, '_>,
) -> Option<Consumer> {
    // All are asked, so that what is wrong with one does not hide the others.
    let source = source(name, path, section, at);
    let dead_letters = dead_letters(name, path, section, at);
    let versions = versions(section, at);
    let effect = effect(section, file, at);
    let mapping = mapping(section, at);
    let backoff = queue::backoff(
        section.backoff_base.0,
        section.backoff_cap.0,
        section.max_attempts,
        &mut |key, error| at.wrong(key, error),
    );
    let gate = gate(section, at);
    check_bounds(section, at)?;
    Some(Consumer {
        name: name.to_owned(),
        source: source?,
        dead_letters: dead_letters?,
        effect: effect?,
        mapping: mapping?,
        skip: section.skip.clone(),
        workers: section.workers,
        batch: section.batch,
        held: section.held,
        most_waiting: section.most_waiting,
        timeout: section.timeout.0,
        backoff: backoff?,
        versions: versions?,
        on_park: match section.on_park {
            sections::OnPark::Hold => OnPark::Hold,
            sections::OnPark::Skip => OnPark::Skip,
        },
        poison: match section.poison {
            file::Poison::Park => inbox::Poison::Park,
            file::Poison::DeadLetter => inbox::Poison::DeadLetter,
        },
        keep: section.keep.0,
        gate: gate?,
    })
}

fn source(
    name: &str,
    path: &str,
    section: &file::Consumer,
    at: &mut At<'_, '_>,
) -> Option<Arc<dyn Source>> {
    let Some(from) = &section.from else {
        at.missing("from");
        return None;
    };
    let shown = format!("`from` of {}", at.shown());
    from.source(name, &mut At::new(format!("{path}.from"), shown, at.judge))
}

/// Nothing: something is wrong with it.
fn dead_letters(
    name: &str,
    path: &str,
    section: &file::Consumer,
    at: &mut At<'_, '_>,
) -> Option<Option<Arc<dyn Source>>> {
    let Some(from) = &section.dead_letters else {
        return Some(None);
    };
    let shown = format!("`dead-letters` of {}", at.shown());
    let mut at = At::new(format!("{path}.dead-letters"), shown, at.judge);
    // A group of its own: at the broker they are something else.
    from.source(&format!("{name}.dead-letters"), &mut at)
        .map(Some)
}

fn versions(section: &file::Consumer, at: &mut At<'_, '_>) -> Option<Versions> {
    match section.versions {
        file::Versions::Rising if section.first_version != 1 => {
            at.wrong("first-version", &"it is for versions = \"gapless\"");
            None
        }
        file::Versions::Rising => Some(Versions::Rising),
        file::Versions::Gapless if section.on_park == sections::OnPark::Skip => {
            let text = "\"skip\" goes on without what is parked, and versions = \"gapless\" waits for it: \
                        choose one of the two";
            at.wrong("on-park", &text);
            None
        }
        file::Versions::Gapless => Some(Versions::Gapless {
            first: section.first_version,
        }),
    }
}

fn effect(section: &file::Consumer, file: &File, at: &mut At<'_, '_>) -> Option<Effect> {
    let Some(to) = &section.to else {
        at.missing("to");
        return None;
    };
    match (&to.destination, &to.sql) {
        (Some(name), None) if to.expect_rows => {
            let text = format!("`expect-rows` is for statements, not for the destination `{name}`");
            at.wrong("to", &text);
            None
        }
        (Some(name), None) if file.destinations.contains_key(name) => {
            Some(Effect::Enqueue(Arc::from(name.as_str())))
        }
        (Some(name), None) => {
            let hint = hint(name, file.destinations.keys().map(String::as_str));
            at.wrong("to", &format!("`{name}` leads to no destination{hint}"));
            None
        }
        (None, Some(sql)) => match Statement::parse(sql) {
            Ok(statement) if to.expect_rows && !statement.tells_rows() => {
                let text = "`expect-rows`: CALL and SELECT do not tell how many rows they change; \
                            let the procedure raise an error instead";
                at.wrong("to", &text);
                None
            }
            Ok(statement) => Some(Effect::Run {
                statement,
                expect_rows: to.expect_rows,
            }),
            Err(error) => {
                at.wrong("to", &error);
                None
            }
        },
        _ => {
            at.wrong("to", &"write one of `destination` and `sql`");
            None
        }
    }
}

fn mapping(section: &file::Consumer, at: &mut At<'_, '_>) -> Option<Mapping> {
    let mut wrong = false;
    let mut place = |key: &str, text: &Option<String>| match text.as_deref()?.parse::<Place>() {
        Ok(place) => Some(place),
        Err(error) => {
            at.wrong(key, &error);
            wrong = true;
            None
        }
    };
    let mapping = Mapping {
        dedup: match section.dedup {
            file::Dedup::Id => inbox::Dedup::Id,
            file::Dedup::Version => inbox::Dedup::Version,
        },
        id: place("id", &section.id),
        aggregate_type: place("aggregate-type", &section.aggregate_type),
        aggregate_id: place("aggregate-id", &section.aggregate_id),
        version: place("version", &section.version),
        event_type: place("event-type", &section.event_type),
    };
    (!wrong).then_some(mapping)
}

fn check_bounds(section: &file::Consumer, at: &mut At<'_, '_>) -> Option<()> {
    let mut fine = Some(());
    for (key, count, most) in [
        ("workers", section.workers, MOST_WORKERS),
        ("batch", section.batch, MOST_HELD),
        ("held", section.held, MOST_HELD),
    ] {
        if !(1..=most).contains(&count) {
            at.wrong(key, &format!("it is 1 to {most}, not {count}"));
            fine = None;
        }
    }
    if section.most_waiting == 0 {
        at.wrong("most-waiting", &"it must not be zero");
        fine = None;
    }
    for (key, span) in [("timeout", section.timeout), ("keep", section.keep)] {
        if span.0.is_zero() {
            at.wrong(key, &"it must not be zero");
            fine = None;
        }
    }
    fine
}

/// Nothing: something is wrong with it.
fn gate(section: &file::Consumer, at: &mut At<'_, '_>) -> Option<Option<Arc<dyn Gate>>> {
    match at.optional("gate", section.gate.as_ref())? {
        Some(url) => open(&url, section, at).map(Some),
        None => Some(None),
    }
}

#[cfg(feature = "redis")]
fn open(url: &str, section: &file::Consumer, at: &mut At<'_, '_>) -> Option<Arc<dyn Gate>> {
    use std::error::Error as _;

    use counterfoil_redis_gate::{OptionsError, RedisSeen, SeenOptions};

    if section.gate_prefix.trim().is_empty() {
        at.wrong("gate-prefix", &"without it names could be those of others");
        return None;
    }
    if section.gate_ttl.0 > section.keep.0 {
        at.wrong(
            "gate-ttl",
            &"it is not above `keep`: the database would have forgotten before",
        );
        return None;
    }
    let ca = match section.gate_ca_file.as_deref().map(|name| at.file(name)) {
        None => None,
        Some(file) => match std::fs::read(&file) {
            Ok(pem) => Some(pem),
            Err(error) => {
                let text = format!("{} cannot be read: {error}", file.display());
                at.wrong("gate-ca-file", &text);
                return None;
            }
        },
    };
    let options = SeenOptions {
        prefix: section.gate_prefix.clone(),
        ttl: section.gate_ttl.0,
        patience: section.gate_patience.0,
        ca,
    };
    let error = match RedisSeen::new(url, options) {
        Ok(gate) => return Some(Arc::new(gate)),
        Err(error) => error,
    };
    let key = match error {
        OptionsError::SeenTtl(_) => "gate-ttl",
        OptionsError::Patience => "gate-patience",
        OptionsError::Ca(_) | OptionsError::Plain => "gate-ca-file",
        _ => "gate",
    };
    match error.source() {
        Some(source) => at.wrong(key, &format!("{error}: {source}; write redis://HOST:PORT/")),
        None => at.wrong(key, &error),
    }
    None
}

#[cfg(not(feature = "redis"))]
fn open(_: &str, _: &file::Consumer, at: &mut At<'_, '_>) -> Option<Arc<dyn Gate>> {
    let text =
        "this program was built without Redis: leave it out, or build it with the feature `redis`";
    at.wrong("gate", &text);
    None
}
