//! `policies`: breakers and retry budgets.

use counterfoil_core::policy::simulate::{self, Scenario};
use counterfoil_engine::pipeline::Status;
use hyper::Method;
use serde_json::{Value, json};

use super::server::Server;
use crate::args::{Global, Policies as What, Setting, Simulate};
use crate::config::Scope;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(global: &Global, what: What) -> Result {
    match what {
        What::List { reach, output } => {
            list(&Server::find(global, &reach, Scope::Reader)?, output.json).await
        }
        What::Open(setting) => set(global, &setting, "open").await,
        What::Close(setting) => set(global, &setting, "closed").await,
        What::Auto(setting) => set(global, &setting, "auto").await,
        What::Simulate(args) => simulate(&args),
    }
}

async fn list(server: &Server, as_json: bool) -> Result {
    let mut answer = server.ask(Method::GET, "/v1/policies", None).await?;
    let policies = answer["policies"].take();
    if as_json {
        return print::json(&policies);
    }
    let all: Vec<Status> = understood(policies)?;
    let header = [
        "DESTINATION",
        "BREAKER",
        "WHY",
        "CHANGES",
        "RETRIES LEFT",
        "RETRIED",
        "NOT RETRIED",
        "ASKED TO WAIT",
        "CALLS",
        "WAITING",
        "TURNED AWAY",
        "SHARED",
    ];
    let rows = all.iter().map(|s| {
        vec![
            s.destination.clone(),
            breaker(s),
            why(s),
            s.counts.transitions.to_string(),
            format!("{} of {}", s.retries_left, s.retries_allowance),
            s.counts.retries_allowed.to_string(),
            s.counts.retries_exhausted.to_string(),
            s.counts.retry_after_honored.to_string(),
            format!("{} of {}", s.in_use, s.limit),
            s.waiting.to_string(),
            s.counts.rejected.to_string(),
            s.counts.coalesced.to_string(),
        ]
    });
    print::table(&header, rows.collect(), "This server has no destinations.")
}

fn breaker(status: &Status) -> String {
    match status.wait_ms {
        Some(wait) if wait > 0 => format!("{} for {wait} ms", status.breaker),
        _ => status.breaker.to_string(),
    }
}

fn why(status: &Status) -> String {
    match (&status.forced, &status.forced_by) {
        (Some(_), Some(by)) => format!("set by {by}"),
        (Some(_), None) => "set by hand".into(),
        (None, _) => status.cause.as_str().into(),
    }
}

async fn set(global: &Global, setting: &Setting, word: &str) -> Result {
    let server = Server::find(global, &setting.reach, Scope::Operator)?;
    let path = format!("/v1/policies/{}", escaped(&setting.destination));
    let body = json!({ "breaker": word, "by": setting.operator.name() });
    let answer = server.ask(Method::PUT, &path, Some(body)).await?;
    if setting.output.json {
        return print::json(&answer);
    }
    let status: Status = understood(answer)?;
    let name = print::clean(&status.destination);
    match word {
        "auto" => print::line(&format!("the breaker of {name} decides by itself again")),
        _ => print::line(&format!(
            "the breaker of {name} is {word} until you say otherwise"
        )),
    }
}

fn understood<T: serde::de::DeserializeOwned>(answer: Value) -> Result<T> {
    serde_json::from_value(answer)
        .map_err(|e| Failure::failed(format!("the server speaks another language: {e}")))
}

/// A name as one segment of a path.
fn escaped(name: &str) -> String {
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"-_.~".contains(&b);
    name.bytes()
        .map(|b| match plain(b) {
            true => char::from(b).to_string(),
            false => format!("%{b:02X}"),
        })
        .collect()
}

fn simulate(args: &Simulate) -> Result {
    let outcomes = simulate::all(Scenario {
        rate: args.rate,
        outage: args.outage,
        ratio: args.ratio,
        seed: args.seed,
    });
    if !args.output.json {
        return print::line(simulate::table(&outcomes).trim_end());
    }
    let rows: Vec<_> = outcomes
        .iter()
        .map(|o| {
            json!({
                "retries": o.strategy.as_str(),
                "requests": o.requests,
                "calls": o.calls,
                "retried": o.retries,
                "peak_calls_per_second": o.peak,
                "probes": o.probes.len(),
                "recovery_ms": o.recovery.as_millis(),
            })
        })
        .collect();
    print::json(&rows)
}
