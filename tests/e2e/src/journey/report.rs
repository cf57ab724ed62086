//! What came of a journey.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::Options;

/// How many of one kind are shown.
const SHOWN: usize = 5;

/// Figures and violations of a run.
#[derive(Debug)]
pub struct Report {
    options: Options,
    /// What may not have happened, in sentences.
    pub violations: Vec<String>,
    /// Receptions that were recognised as repeats and did nothing.
    pub repeats: u64,
    /// Messages that were committed.
    pub committed: i64,
    /// Effects, of both consumers together.
    pub applied: i64,
    /// What can never pass, of both consumers together.
    pub parked: i64,
    /// What was put off and tried again, of both consumers together.
    pub put_off: i64,
    /// How often what was done to whom.
    pub happened: BTreeMap<String, u64>,
    logs: Option<PathBuf>,
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            violations: Vec::new(),
            repeats: 0,
            committed: 0,
            applied: 0,
            parked: 0,
            put_off: 0,
            happened: BTreeMap::new(),
            logs: None,
        }
    }

    /// Notes what should not be there.
    pub(super) fn found(&mut self, what: &str, found: &[(i32, i64)]) {
        if !found.is_empty() {
            let n = found.len();
            let some: Vec<_> = found.iter().take(SHOWN).collect();
            self.violations
                .push(format!("{what}: {n}, such as {some:?}"));
        }
    }

    /// Keeps the logs of a run that went wrong.
    pub(super) fn keep_logs(&mut self, logs: &Path) {
        let name = format!("counterfoil-journey-{}", self.options.seed);
        let kept = std::env::temp_dir().join(name);
        let files = std::fs::create_dir_all(&kept).and_then(|()| std::fs::read_dir(logs));
        for file in files.into_iter().flatten().flatten() {
            let _ = std::fs::copy(file.path(), kept.join(file.file_name()));
        }
        self.logs = Some(kept);
    }

    /// A table for people.
    pub fn table(&self) -> String {
        let mut table = Table::new();
        table.load_style(NOTHING);
        let mut row = |name: &str, value: String| {
            table.add_row([name.to_owned(), value]);
        };
        row("seed", self.options.seed.to_string());
        row("broker", self.options.broker.name());
        for (what, times) in &self.happened {
            row(what, times.to_string());
        }
        row("messages committed", self.committed.to_string());
        row("effects of two consumers", self.applied.to_string());
        row("parked by two consumers", self.parked.to_string());
        row("put off and tried again", self.put_off.to_string());
        row("duplicates absorbed", self.repeats.to_string());
        row("violations", self.violations.len().to_string());
        table.to_string()
    }

    /// The violations, and how to play the run again.
    pub fn complaint(&self) -> String {
        let list: String = self.violations.iter().map(|v| format!("  {v}\n")).collect();
        let logs = self
            .logs
            .as_ref()
            .map(|l| format!("logs: {}\n", l.display()));
        format!(
            "{} violations on {} with seed {}:\n{list}{}",
            self.violations.len(),
            self.options.broker.name(),
            self.options.seed,
            logs.unwrap_or_default()
        )
    }
}
