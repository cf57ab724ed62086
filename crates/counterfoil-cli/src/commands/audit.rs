//! `audit`: count every message by state and look for what is missing or double.

use serde_json::json;

use crate::args::Audit;
use crate::database::Outbox;
use crate::failure::{Failure, Result};
use crate::print;

pub(super) async fn run(outbox: &dyn Outbox, args: &Audit) -> Result {
    let audit = outbox.audit().await?;
    let findings = audit.findings(args.history_kept);
    if args.output.json {
        print::json(&json!({ "counts": audit, "findings": findings }))?;
    } else {
        let rows = [
            ("pending", audit.pending),
            ("sent and kept", audit.sent_kept),
            ("cancelled", audit.cancelled),
            ("parked", audit.parked),
            ("ignored", audit.ignored),
            ("keys in the ledger", audit.ledger),
        ];
        let rows = rows.map(|(what, n)| vec![what.to_owned(), n.to_string()]);
        print::table(&["WHAT", "MESSAGES"], rows.into(), "")?;
        match findings.is_empty() {
            true => print::line("\nNothing is missing and nothing is double.")?,
            false => print::line("")?,
        }
        for finding in &findings {
            print::line(&format!("FOUND: {finding}"))?;
        }
    }
    match findings.is_empty() {
        true => Ok(()),
        false => Err(Failure::Told),
    }
}
