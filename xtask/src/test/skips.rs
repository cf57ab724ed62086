//! The file into which tests write that they skip.
//!
//! Each test appends one line, `name<TAB>reason`, to the file named in `COUNTERFOIL_TEST_SKIPS`.

use std::fs;
use std::path::PathBuf;

/// A test that did not run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Skip {
    /// The name of the test.
    pub(crate) test: String,
    /// Why it did not run.
    pub(crate) reason: String,
}

/// Reads what was added to the file since the last time.
#[derive(Debug)]
pub(crate) struct Skips {
    path: PathBuf,
    read: usize,
}

impl Skips {
    /// Starts after what the file holds now.
    pub(crate) fn of(path: PathBuf) -> Self {
        let read = fs::read(&path).map_or(0, |content| content.len());
        Self { path, read }
    }

    /// The tests that skipped since the last call, each one once.
    pub(crate) fn new_ones(&mut self) -> Vec<Skip> {
        let content = fs::read(&self.path).unwrap_or_default();
        let new = content.get(self.read..).unwrap_or_default();
        self.read = content.len();
        parse(&String::from_utf8_lossy(new))
    }
}

fn parse(content: &str) -> Vec<Skip> {
    let mut skips: Vec<Skip> = Vec::new();
    for line in content.lines().filter(|line| !line.trim().is_empty()) {
        let (test, reason) = line.split_once('\t').unwrap_or((line, "no reason given"));
        if skips.iter().all(|known| known.test != test) {
            skips.push(Skip {
                test: test.to_owned(),
                reason: reason.to_owned(),
            });
        }
    }
    skips
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scratch::Scratch;

    #[test]
    fn only_lines_that_are_new_count_and_each_test_once() {
        let scratch = Scratch::new().unwrap();
        let path = scratch.join("skips");
        fs::write(&path, "old\tx\n").unwrap();
        let mut skips = Skips::of(path.clone());
        fs::write(&path, "old\tx\na\tno server\na\tno server\nb\n").unwrap();

        let new = skips.new_ones();

        let names: Vec<_> = new.iter().map(|skip| skip.test.as_str()).collect();
        assert_eq!(names, ["a", "b"]);
        assert_eq!(new[0].reason, "no server");
        assert!(skips.new_ones().is_empty());
    }
}
