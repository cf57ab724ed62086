//! `outbox`: messages that are not delivered yet.

use counterfoil_core::desk::{Desk, Entry, Filter, QueueStats};
use counterfoil_core::store::Result as StoreResult;
use serde_json::json;

use super::show;
use crate::args::{Filters, Outbox as What};
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(outbox: &dyn Outbox, what: What) -> Result {
    match what {
        What::List {
            filters,
            state,
            output,
        } => {
            let read = async |filter: &Filter| outbox.outbox(filter).await;
            let entries = list(&filters, state, read).await?;
            print::entries(&entries, output.json, "No message waits.")
        }
        What::Show(one) => show::run(outbox, &one, None).await,
        What::Stats(output) => stats(outbox, output.json).await,
        What::Cancel {
            ids,
            reason,
            operator,
            output,
        } => {
            let mut cancelled = Vec::new();
            for id in &ids {
                if outbox.cancel(id, &reason, &operator.name()).await? {
                    cancelled.push(id);
                }
            }
            say_cancelled(&ids, &cancelled, output.json)
        }
    }
}

/// Reads one page. An aggregate is found by its id, or as `type/id`, as tables show it.
pub(super) async fn list(
    filters: &Filters,
    state: Option<String>,
    read: impl AsyncFn(&Filter) -> StoreResult<Vec<Entry>>,
) -> Result<Vec<Entry>> {
    let mut filter = Filter {
        queue: filters.queue.clone(),
        state,
        aggregate_id: filters.aggregate.clone(),
        code: filters.code.clone(),
        after: filters.after,
        limit: filters.limit,
    };
    let found = read(&filter).await?;
    let typed = filters
        .aggregate
        .as_deref()
        .and_then(|text| text.split_once('/'));
    match typed {
        Some((kind, id)) if found.is_empty() => {
            filter.aggregate_id = Some(id.to_owned());
            let mut found = read(&filter).await?;
            found.retain(|entry| entry.aggregate.as_ref().is_some_and(|a| a.kind == kind));
            Ok(found)
        }
        _ => Ok(found),
    }
}

async fn stats(desk: &dyn Desk, as_json: bool) -> Result {
    let stats = desk.stats().await?;
    if as_json {
        return print::json(&stats);
    }
    let header = [
        "QUEUE",
        "PENDING",
        "NEW",
        "SCHEDULED",
        "NO ROUTE",
        "RETRYING",
        "HELD",
        "PARKED",
        "KEPT",
        "OLDEST",
    ];
    let rows = stats.iter().map(|q| {
        vec![
            print::queue(&q.queue),
            q.pending().to_string(),
            q.new.to_string(),
            q.scheduled.to_string(),
            q.no_route.to_string(),
            q.retrying.to_string(),
            q.held.to_string(),
            q.parked.to_string(),
            q.kept.to_string(),
            oldest(q),
        ]
    });
    print::table(&header, rows.collect(), "No queue has messages.")
}

/// How long the oldest undelivered message has waited.
pub(super) fn oldest(queue: &QueueStats) -> String {
    let rounded = |seconds: f64| std::time::Duration::from_secs(seconds.max(0.0).round() as u64);
    print::or_dash(
        queue
            .oldest_seconds
            .map(|seconds| crate::config::shown(rounded(seconds))),
    )
}

fn say_cancelled(asked: &[String], cancelled: &[&String], as_json: bool) -> Result {
    let missing: Vec<&String> = asked.iter().filter(|id| !cancelled.contains(id)).collect();
    if as_json {
        print::json(&json!({ "cancelled": cancelled, "not_found": missing }))?;
    } else {
        for id in cancelled {
            print::line(&format!("{} cancelled", print::clean(id)))?;
        }
    }
    match missing.as_slice() {
        [] => Ok(()),
        missing => {
            let ids: Vec<String> = missing.iter().map(|id| print::clean(id)).collect();
            Err(Failure::NotFound(format!(
                "not in the outbox: {}",
                ids.join(", ")
            )))
        }
    }
}
