//! `guard`: requests, and what is remembered of them.

use std::time::Duration;

use counterfoil_core::desk::Event;
use counterfoil_core::guard::{Found, Key, RecordFilter, Records, Snapshot, State, Verdict};
use counterfoil_engine::guard::reconcile;
use serde_json::{Value, json};

use super::show;
use crate::args::{Guard as What, Operator, Which};
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

/// So much of an answer is shown to people.
const SHOWN: usize = 2_000;

pub(super) async fn run(outbox: &dyn Outbox, what: What) -> Result {
    match what {
        What::List {
            which,
            state,
            limit,
            output,
        } => {
            let records = outbox.records(which.table.as_deref())?;
            let state = state.as_deref().map(parse_state).transpose()?;
            let filter = RecordFilter {
                state,
                limit,
                ..filter(&which, None)
            };
            list(&records.list(&filter).await?, output.json)
        }
        What::Show { key, which, output } => {
            let records = outbox.records(which.table.as_deref())?;
            let found = one(&*records, &key, &which).await?;
            let story = outbox.queue_history(&subject(&found.record.key)).await?;
            show(&found, &story, output.json)
        }
        What::History { key, which, output } => {
            let story = outbox
                .queue_history(&meant(outbox, &key, &which).await?)
                .await?;
            match output.json {
                true => print::json(&story),
                false => show::story(&story, "Nobody has settled or forgotten it."),
            }
        }
        What::Forget {
            key,
            which,
            force,
            reason,
            operator,
        } => {
            let records = outbox.records(which.table.as_deref())?;
            let found = one(&*records, &key, &which).await?;
            if found.state() == State::Processing && !force {
                return Err(Failure::failed(
                    "somebody still works on this request: the next one would run beside it. Wait until it is over, \
                     or say --force",
                ));
            }
            note(outbox, &found, "forgotten", &reason, &operator).await?;
            records.forget(&found.record.key.digest()).await?;
            print::line(&format!(
                "Forgotten: the next request with the key {} runs.",
                print::clean(&key)
            ))
        }
        What::Reconcile {
            key,
            which,
            happened,
            failed,
            status,
            body,
            content_type,
            keep,
            reason,
            operator,
            ..
        } => {
            let records = outbox.records(which.table.as_deref())?;
            let found = one(&*records, &key, &which).await?;
            let verdict = if happened {
                Verdict::Happened(answer(status.unwrap_or(200), body, &content_type))
            } else if failed {
                Verdict::Failed(answer(status.unwrap_or(422), body, &content_type))
            } else {
                Verdict::DidNotHappen
            };
            check_uncertain(&found)?;
            let kind = match verdict {
                Verdict::Happened(_) => "happened",
                Verdict::Failed(_) => "failed",
                _ => "did-not-happen",
            };
            note(outbox, &found, kind, &reason, &operator).await?;
            settle(&*records, &found, verdict, keep).await
        }
        What::Stats { table, output } => {
            let records = outbox.records(table.as_deref())?;
            stats(&*records, output.json).await
        }
        // It needs no database, and is done before one is opened.
        What::Table { .. } => Ok(()),
    }
}

/// The name under which the history of a request is kept.
fn subject(key: &Key) -> String {
    format!("guard:{}", key.digest())
}

/// The same of a request that may be forgotten: then its business type must be said.
async fn meant(outbox: &dyn Outbox, key: &str, which: &Which) -> Result<String> {
    if let Some(business_type) = &which.business_type {
        let caller = which.caller.as_deref().unwrap_or_default();
        let key = Key::new(caller, business_type.as_str(), key);
        return Ok(subject(&key.map_err(|e| Failure::config(e.to_string()))?));
    }
    let records = outbox.records(which.table.as_deref())?;
    match one(&*records, key, which).await {
        Err(Failure::NotFound(text)) => Err(Failure::NotFound(format!(
            "{text}; of one that was forgotten, say --type and --caller"
        ))),
        found => found.map(|found| subject(&found.record.key)),
    }
}

/// Says who does what and why, before it is done: nothing is done without a line.
async fn note(
    outbox: &dyn Outbox,
    found: &Found,
    kind: &str,
    reason: &str,
    operator: &Operator,
) -> Result {
    let subject = subject(&found.record.key);
    Ok(outbox
        .note(&subject, kind, reason, &operator.name())
        .await?)
}

fn filter(which: &Which, key: Option<&str>) -> RecordFilter {
    RecordFilter {
        business_type: which.business_type.clone(),
        scope: which.caller.clone(),
        key: key.map(ToOwned::to_owned),
        ..RecordFilter::default()
    }
}

fn parse_state(text: &str) -> Result<State> {
    State::parse(text).ok_or_else(|| {
        let names: Vec<&str> = State::ALL.iter().map(|s| s.as_str()).collect();
        Failure::config(format!(
            "{text:?} is not a state: use one of {}",
            names.join(", ")
        ))
    })
}

/// The one request that is meant.
async fn one(records: &dyn Records, key: &str, which: &Which) -> Result<Found> {
    let mut found = records.list(&filter(which, Some(key))).await?;
    match (found.pop(), found.len()) {
        (None, _) => Err(Failure::NotFound(format!(
            "no request with the key {key:?} is remembered"
        ))),
        (Some(one), 0) => Ok(one),
        (Some(_), more) => Err(Failure::config(format!(
            "{} requests have the key {key:?}: say which with --type and --caller (see `counterfoil guard list`)",
            more + 1
        ))),
    }
}

fn as_json(found: &Found) -> Value {
    let record = &found.record;
    json!({
        "caller": record.key.scope(),
        "business_type": record.key.business_type(),
        "key": record.key.key(),
        "state": found.state().as_str(),
        "attempts": record.attempts,
        "fence": record.fence,
        "created_at": record.created_at,
        "updated_at": record.updated_at,
        "lease_until": record.lease_until,
        "retry_at": record.retry_at,
        "expires_at": record.expires_at,
        "status": record.snapshot.as_ref().map(|s| s.status),
        "result_kept": record.snapshot.as_ref().is_some_and(|s| s.body.is_some()),
    })
}

fn list(found: &[Found], json: bool) -> Result {
    if json {
        return print::json(&found.iter().map(as_json).collect::<Vec<_>>());
    }
    let rows = found.iter().map(|f| {
        let record = &f.record;
        vec![
            print::or_dash(Some(record.key.scope())),
            record.key.business_type().to_owned(),
            record.key.key().to_owned(),
            f.state().as_str().to_owned(),
            record.attempts.to_string(),
            print::or_dash(
                record
                    .snapshot
                    .as_ref()
                    .map(|s| s.status)
                    .filter(|s| *s > 0),
            ),
            print::time(record.created_at),
            print::time(record.updated_at),
        ]
    });
    let header = [
        "CALLER", "TYPE", "KEY", "STATE", "RUNS", "STATUS", "CREATED", "CHANGED",
    ];
    print::table(&header, rows.collect(), "No request is remembered.")
}

fn show(found: &Found, story: &[Event], json: bool) -> Result {
    let record = &found.record;
    let snapshot = record.snapshot.as_ref();
    let body = snapshot.and_then(|s| s.body.as_ref());
    let text = body.map(|b| String::from_utf8_lossy(b).into_owned());
    if json {
        let mut value = as_json(found);
        value["headers"] = json!(snapshot.map(|s| {
            s.headers
                .iter()
                .map(|(name, value)| (name, String::from_utf8_lossy(value)))
                .collect::<Vec<_>>()
        }));
        value["body"] = json!(text);
        value["events"] = json!(story);
        return print::json(&value);
    }
    let mut rows = vec![
        ("caller", print::or_dash(Some(record.key.scope()))),
        ("type", record.key.business_type().to_owned()),
        ("key", record.key.key().to_owned()),
        ("state", found.state().as_str().to_owned()),
        ("runs", record.attempts.to_string()),
        ("number of the claim", record.fence.to_string()),
        ("created", print::time(record.created_at)),
        ("changed", print::time(record.updated_at)),
        (
            "lease until",
            print::or_dash(record.lease_until.map(print::time)),
        ),
        (
            "not again before",
            print::or_dash(record.retry_at.map(print::time)),
        ),
        ("remembered until", print::time(record.expires_at)),
    ];
    if let Some(snapshot) = snapshot {
        rows.push((
            "status",
            print::or_dash(Some(snapshot.status).filter(|s| *s > 0)),
        ));
        for (name, value) in &snapshot.headers {
            rows.push((
                "header",
                format!("{name}: {}", String::from_utf8_lossy(value)),
            ));
        }
        rows.push((
            "answer",
            match text {
                None => "not kept".into(),
                Some(text) if text.len() > SHOWN => {
                    format!(
                        "{}… ({} bytes; all of it with --json)",
                        text.chars().take(SHOWN).collect::<String>(),
                        text.len()
                    )
                }
                Some(text) => text,
            },
        ));
    }
    print::facts(&rows)?;
    show::events(story)
}

fn answer(status: u16, body: Option<String>, content_type: &str) -> Snapshot {
    let headers = match body {
        Some(_) => vec![("content-type".to_owned(), content_type.as_bytes().to_vec())],
        None => Vec::new(),
    };
    Snapshot {
        status,
        headers,
        body: body.map(Into::into),
    }
}

fn check_uncertain(found: &Found) -> Result {
    match found.state() {
        State::Uncertain => Ok(()),
        State::Processing => Err(Failure::failed(
            "somebody still works on this request: it can be settled when its lease is over",
        )),
        over => Err(Failure::failed(format!(
            "this request is not uncertain: it is {}",
            over.as_str()
        ))),
    }
}

async fn settle(records: &dyn Records, found: &Found, verdict: Verdict, keep: Duration) -> Result {
    let done = match verdict {
        Verdict::DidNotHappen => "Released: the next request with this key runs.",
        _ => "Settled: repeats get this answer.",
    };
    if reconcile::apply(records, found, verdict, keep).await? {
        print::line(done)
    } else {
        Err(Failure::failed(
            "something has happened to this request meanwhile: look at it again",
        ))
    }
}

async fn stats(records: &dyn Records, json: bool) -> Result {
    let stats = records.stats().await?;
    if json {
        return print::json(&stats);
    }
    let rows = stats.iter().map(|s| {
        vec![
            s.business_type.clone(),
            s.processing.to_string(),
            s.succeeded.to_string(),
            s.retryable.to_string(),
            s.failed.to_string(),
            s.uncertain.to_string(),
            print::or_dash(s.oldest_open_seconds.map(|n| format!("{n:.0} s"))),
        ]
    });
    let header = [
        "TYPE",
        "PROCESSING",
        "SUCCEEDED",
        "RETRYABLE",
        "FAILED",
        "UNCERTAIN",
        "OLDEST OPEN",
    ];
    print::table(&header, rows.collect(), "No request is remembered.")
}
