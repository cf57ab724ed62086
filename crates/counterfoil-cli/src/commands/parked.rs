//! `parked`: messages that could not pass.

use std::time::Duration;

use counterfoil_core::MessageId;
use counterfoil_core::desk::{Desk, Entry, Filter, MAX_PAGE, Redriven};
use serde_json::json;

use super::{outbox, show};
use crate::args::{Parked as What, Redrive};
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

/// So many go back in one go: a destination that just recovered is not flooded at once.
const CHUNK: usize = 200;
/// Between two goes.
const PAUSE: Duration = Duration::from_millis(50);

pub(super) async fn run(outbox: &dyn Outbox, what: What) -> Result {
    match what {
        What::List {
            filters,
            state,
            output,
        } => {
            let read = async |filter: &Filter| outbox.parked(filter).await;
            let entries = outbox::list(&filters, Some(state), read).await?;
            print::entries(&entries, output.json, "Nothing is parked.")
        }
        What::Show(one) => show::run(outbox, &one, Some("parked")).await,
        What::Redrive(args) => redrive(outbox, args).await,
        What::Ignore {
            ids,
            reason,
            operator,
            output,
        } => {
            let done = outbox.ignore(&ids, &reason, &operator.name()).await?;
            // Relays find what goes on by looking when they cannot be told.
            let _ = outbox.announce().await;
            say("ignored", &done.ignored, &done.refused, output.json)
        }
    }
}

async fn redrive(outbox: &dyn Outbox, args: Redrive) -> Result {
    let ids = match args.ids.is_empty() {
        true => {
            let chosen = chosen(outbox, &args).await?;
            if args.dry_run {
                return print::entries(&chosen, args.output.json, "Nothing would be redriven.");
            }
            chosen.into_iter().map(|entry| entry.id).collect()
        }
        false if args.dry_run => return dry_run(outbox, &args).await,
        false => args.ids.clone(),
    };
    let mut all = Redriven::default();
    for (n, chunk) in ids.chunks(CHUNK).enumerate() {
        if n > 0 {
            tokio::time::sleep(PAUSE).await;
        }
        let done = outbox
            .redrive(chunk, args.confirm, &args.operator.name())
            .await?;
        all.redriven.extend(done.redriven);
        all.refused.extend(done.refused);
        // Relays find them by polling when they cannot be told.
        let _ = outbox.announce().await;
    }
    if all.redriven.is_empty() && all.refused.is_empty() && !args.output.json {
        return print::line("Nothing to redrive.");
    }
    say("redriven", &all.redriven, &all.refused, args.output.json)
}

/// Every pending one that the options choose, lowest number first.
async fn chosen(desk: &dyn Desk, args: &Redrive) -> Result<Vec<Entry>> {
    let mut filter = Filter {
        queue: args.queue.clone(),
        state: Some("pending".into()),
        code: args.code.clone(),
        limit: MAX_PAGE,
        ..Filter::default()
    };
    let mut all = Vec::new();
    loop {
        let page = desk.parked(&filter).await?;
        let Some(last) = page.last() else {
            return Ok(all);
        };
        filter.after = last.seq;
        all.extend(page);
    }
}

async fn dry_run(desk: &dyn Desk, args: &Redrive) -> Result {
    let (mut chosen, mut missing) = (Vec::new(), Vec::new());
    let goes = |state: &str| state == "pending" || (state == "ignored" && args.confirm);
    for id in &args.ids {
        match desk.show(id).await? {
            Some(detail) if detail.place == "parked" && goes(&detail.entry.state) => {
                chosen.push(detail.entry);
            }
            _ => missing.push(print::clean(id)),
        }
    }
    chosen.sort_by_key(|entry| entry.seq);
    print::entries(&chosen, args.output.json, "Nothing would be redriven.")?;
    match missing.is_empty() {
        true => Ok(()),
        false => Err(Failure::NotFound(format!(
            "not parked: {}",
            missing.join(", ")
        ))),
    }
}

/// Says what was done to which messages, and what was refused.
fn say(what: &str, done: &[MessageId], refused: &[(String, String)], as_json: bool) -> Result {
    if as_json {
        let refused: Vec<_> = refused
            .iter()
            .map(|(id, why)| json!({ "id": id, "why": why }))
            .collect();
        print::json(&json!({ what: done, "refused": refused }))?;
    } else {
        for id in done {
            print::line(&format!("{id} {what}"))?;
        }
        for (id, why) in refused {
            let (id, why) = (print::clean(id), print::clean(why));
            print::line(&format!("{id} refused: {why}"))?;
        }
    }
    match refused.is_empty() {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}
