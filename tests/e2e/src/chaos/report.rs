//! What came of a run.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use comfy_table::Table;
use comfy_table::presets::NOTHING;

use super::Options;
use crate::book::Offer;
use crate::checker::{Evidence, Violation};
use crate::site::{Place, Standing};

/// How many violations are shown.
const SHOWN: usize = 30;

/// Figures and violations of a run.
#[derive(Debug)]
pub struct Report {
    options: Options,
    /// What may not have happened, in sentences.
    pub violations: Vec<String>,
    /// Where the logs of a run with violations are.
    pub logs: Option<PathBuf>,
    pub(super) moods: u64,
    pub(super) redriven: usize,
    pub(super) happened: BTreeMap<&'static str, u64>,
    parked: BTreeMap<String, usize>,
    committed: usize,
    offers: usize,
    stored: usize,
    repeats: usize,
}

impl Report {
    pub(super) fn new(options: &Options) -> Self {
        Self {
            options: options.clone(),
            violations: Vec::new(),
            logs: None,
            moods: 0,
            redriven: 0,
            happened: BTreeMap::new(),
            parked: BTreeMap::new(),
            committed: 0,
            offers: 0,
            stored: 0,
            repeats: 0,
        }
    }

    /// The number of messages that the writers committed.
    pub fn committed(&self) -> usize {
        self.committed
    }

    /// How often something of this kind was done to a process.
    pub fn times(&self, what: &str) -> u64 {
        self.happened.get(what).copied().unwrap_or(0)
    }

    pub(super) fn add(&mut self, when: &str, found: &[Violation]) {
        self.violations
            .extend(found.iter().map(|v| format!("{when}: {v}")));
    }

    pub(super) fn parked(&mut self, standings: &[Standing]) {
        for standing in standings {
            if let Place::Parked(code) = &standing.place {
                *self.parked.entry(code.clone()).or_default() += 1;
            }
        }
    }

    pub(super) fn evidence(&mut self, evidence: &Evidence) {
        let mut stored = BTreeMap::new();
        for offer in evidence.offers.iter().filter(|o| o.stored()) {
            *stored.entry(offer.item.id).or_insert(0usize) += 1;
        }
        self.committed = evidence.committed.len();
        self.offers = evidence.offers.len();
        self.stored = stored.len();
        self.repeats = stored.values().map(|n| n - 1).sum();
    }

    /// Keeps what a person needs who looks into a violation: the logs and the book.
    pub(super) fn keep_logs(&mut self, logs: &Path, offers: &[Offer]) {
        let kept = std::env::temp_dir().join(format!("counterfoil-chaos-{}", self.options.seed));
        let copied = std::fs::create_dir_all(&kept).and_then(|()| std::fs::read_dir(logs));
        for file in copied.into_iter().flatten().flatten() {
            let _ = std::fs::copy(file.path(), kept.join(file.file_name()));
        }
        let book: String = offers.iter().map(|offer| format!("{offer:?}\n")).collect();
        let _ = std::fs::write(kept.join("book.txt"), book);
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
        row("store", format!("{:?}", self.options.store).to_lowercase());
        row("length", format!("{:?}", self.options.length));
        for (what, times) in &self.happened {
            row(what, times.to_string());
        }
        row("changes of mood", self.moods.to_string());
        row("messages committed", self.committed.to_string());
        row("offers", self.offers.to_string());
        row("messages stored", self.stored.to_string());
        row("duplicates absorbed", self.repeats.to_string());
        for (code, count) in &self.parked {
            row(&format!("parked, {code}"), count.to_string());
        }
        row("redriven", self.redriven.to_string());
        row("violations", self.violations.len().to_string());
        table.to_string()
    }

    /// The violations, and how to play the run again.
    pub fn complaint(&self) -> String {
        let mut text: String = self
            .violations
            .iter()
            .take(SHOWN)
            .map(|v| format!("  {v}\n"))
            .collect();
        if self.violations.len() > SHOWN {
            text.push_str(&format!("  and {} more\n", self.violations.len() - SHOWN));
        }
        let logs = self
            .logs
            .as_ref()
            .map(|l| format!("logs: {}\n", l.display()))
            .unwrap_or_default();
        format!(
            "{} violations with seed {}:\n{text}{logs}",
            self.violations.len(),
            self.options.seed
        )
    }
}
