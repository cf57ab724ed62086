//! `cargo xtask check`: everything that can be said about the code without running it.
//!
//! # Promise
//! Every step runs, also after one has failed, and the end names those that did.

use crate::cargo::{CHECKS, cargo};
use crate::deny;
use crate::process::interactive;
use crate::stop::Stop;

/// Runs the checks.
pub(crate) fn run(fast: bool) -> Result<u8, Stop> {
    let mut failed = Vec::new();
    let mut left_out = Vec::new();
    for step in CHECKS {
        let line = format!("cargo {}", step.args.join(" "));
        if fast && step.slow {
            left_out.push(format!("{line} (--fast)"));
        } else {
            eprintln!("xtask: {line}");
            let mut command = cargo();
            command.args(step.args).envs(step.env.iter().copied());
            if !interactive(&mut command)?.success() {
                failed.push(line);
            }
        }
    }
    if deny::run()? > 0 {
        failed.push("cargo deny check".to_owned());
    }
    for line in &left_out {
        eprintln!("xtask: left out: {line}");
    }
    for line in &failed {
        eprintln!("xtask: failed: {line}");
    }
    if failed.is_empty() {
        eprintln!("xtask: check passed");
    }
    Ok(u8::from(!failed.is_empty()))
}
