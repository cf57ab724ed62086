//! `explain`: why has this message not arrived? One sentence.

use counterfoil_core::explain::Facts;
use serde_json::json;

use crate::args::One;
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(outbox: &dyn Outbox, one: &One) -> Result {
    let facts = outbox.facts(&one.id).await?;
    let sentence = facts.sentence();
    if one.output.json {
        print::json(&json!({ "explain": sentence, "facts": facts }))?;
    }
    match facts {
        Facts::Unknown { in_ledger: false } => Err(Failure::NotFound(sentence)),
        _ if one.output.json => Ok(()),
        _ => print::line(&print::clean(&sentence)),
    }
}
