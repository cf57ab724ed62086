//! `queue`: figures, pause, resume, history.

use counterfoil_core::desk::Desk;
use counterfoil_core::message::check_name;

use super::outbox::oldest;
use super::show;
use crate::args::Queue as What;
use crate::config::hint;
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(outbox: &dyn Outbox, configured: &[String], what: What) -> Result {
    match what {
        What::List(output) => list(outbox, output.json).await,
        What::Pause {
            queue,
            reason,
            operator,
            force,
        } => {
            check_name("the queue's name", &queue)?;
            if !force {
                check_known(outbox, &queue, configured).await?;
            }
            outbox
                .pause_queue(&queue, &reason, &operator.name())
                .await?;
            print::line(&format!("{queue} is paused"))
        }
        What::Resume { queue, operator } => {
            if !outbox.resume_queue(&queue, &operator.name()).await? {
                let text = format!("the queue `{}` is not paused", print::clean(&queue));
                return Err(Failure::NotFound(text));
            }
            // Relays find out by polling when they cannot be told.
            let _ = outbox.announce().await;
            print::line(&format!("{queue} goes on"))
        }
        What::History { queue, output } => {
            let lines = outbox.queue_history(&queue).await?;
            if output.json {
                return print::json(&lines);
            }
            show::story(&lines, "Nobody has paused it.")
        }
    }
}

/// Refuses a name that nobody has seen: a slip of the fingers would pause nothing and say that it did.
async fn check_known(desk: &dyn Desk, queue: &str, configured: &[String]) -> Result {
    let stats = desk.stats().await?;
    let seen = stats.iter().map(|q| q.queue.as_str());
    let known: Vec<&str> = seen.chain(configured.iter().map(String::as_str)).collect();
    if known.contains(&queue) {
        return Ok(());
    }
    let hint = hint(queue, known);
    Err(Failure::NotFound(format!(
        "no queue is called `{}`: it has no messages, no relay serves it, and the configuration does not \
         name it (--force pauses it before it is first used){hint}",
        print::clean(queue)
    )))
}

async fn list(desk: &dyn Desk, as_json: bool) -> Result {
    let stats = desk.stats().await?;
    if as_json {
        return print::json(&stats);
    }
    let header = ["QUEUE", "PENDING", "PARKED", "OLDEST", "RELAYS", "STATUS"];
    let rows = stats.iter().map(|q| {
        let breaker = q.breaker.as_ref().map(|b| format!("breaker {b}"));
        let status = match (&q.paused, q.unavailable_since) {
            (Some(reason), _) => format!("paused: {reason}"),
            (None, Some(since)) => {
                let breaker = breaker.map(|b| format!("; {b}")).unwrap_or_default();
                format!("nobody answers since {}{breaker}", print::time(since))
            }
            (None, None) if breaker.is_some() => breaker.unwrap_or_default(),
            (None, None) if q.unserved() => "nobody serves it".into(),
            (None, None) if q.no_route > 0 => format!("no route matches {}", q.no_route),
            (None, None) => "ok".into(),
        };
        vec![
            print::queue(&q.queue),
            q.pending().to_string(),
            q.parked.to_string(),
            oldest(q),
            q.relays.to_string(),
            status,
        ]
    });
    print::table(&header, rows.collect(), "There are no queues yet.")
}
