//! Counts tests from the output of `cargo test`.

use super::skips::Skip;

/// What happened in one test binary.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub(crate) struct Binary {
    /// Its name and source file.
    pub(crate) label: String,
    /// Tests that ran to their end.
    pub(crate) passed: usize,
    /// Tests that failed, and deaths without a result.
    pub(crate) failed: usize,
    /// Tests that did not run.
    pub(crate) skipped: usize,
}

/// What happened in all of them.
#[derive(Debug, Default, Clone)]
pub(crate) struct Tally {
    /// In the order in which they ran.
    pub(crate) binaries: Vec<Binary>,
    /// Tests that did not run, with the binary they are in.
    pub(crate) skips: Vec<(String, Skip)>,
    /// Names of failed tests and other failures.
    pub(crate) failures: Vec<String>,
    /// Failures outside of test binaries.
    others: usize,
}

impl Tally {
    /// Takes one line of output; says whether it counted. `skipped` tells which tests have skipped
    /// themselves since it was last asked, and is asked when a binary has ended.
    pub(crate) fn read(&mut self, line: &str, skipped: impl FnOnce() -> Vec<Skip>) -> bool {
        let line = without_colours(line);
        let line = line.trim();
        if let Some(label) = header(line) {
            self.binaries.push(Binary {
                label,
                ..Binary::default()
            });
        } else if let Some(counts) = counts(line) {
            self.add(counts, skipped());
        } else if line.starts_with("error: test failed")
            || line.starts_with("error: doctest failed")
        {
            self.died();
        } else if let Some((name, verdict)) = verdict(line) {
            self.note(name, verdict);
        } else {
            return false;
        }
        true
    }

    /// A binary that is run without cargo begins.
    pub(crate) fn begin(&mut self, label: String) {
        self.binaries.push(Binary {
            label,
            ..Binary::default()
        });
    }

    /// Adds a failure that is no test.
    pub(crate) fn fail(&mut self, what: String) {
        self.others += 1;
        self.failures.push(what);
    }

    /// All passed tests.
    pub(crate) fn passed(&self) -> usize {
        self.binaries.iter().map(|binary| binary.passed).sum()
    }

    /// All failures.
    pub(crate) fn failed(&self) -> usize {
        let failed: usize = self.binaries.iter().map(|binary| binary.failed).sum();
        failed + self.others
    }

    /// All tests that did not run.
    pub(crate) fn skipped(&self) -> usize {
        self.binaries.iter().map(|binary| binary.skipped).sum()
    }

    fn current(&mut self) -> &mut Binary {
        if self.binaries.is_empty() {
            self.binaries.push(Binary::default());
        }
        let last = self.binaries.len() - 1;
        &mut self.binaries[last]
    }

    fn add(&mut self, counts: Counts, skips: Vec<Skip>) {
        let binary = self.current();
        // A test that skips itself ends well, so the binary counts it as passed.
        binary.passed += counts.passed.saturating_sub(skips.len());
        binary.failed += counts.failed;
        binary.skipped += counts.ignored + skips.len();
        let label = binary.label.clone();
        self.skips
            .extend(skips.into_iter().map(|skip| (label.clone(), skip)));
    }

    fn died(&mut self) {
        let binary = self.current();
        if binary.failed == 0 {
            binary.failed = 1;
            let what = format!("{}: ended badly without a failed test", binary.label);
            self.failures.push(what);
        }
    }

    fn note(&mut self, name: &str, verdict: Verdict<'_>) {
        let label = self.current().label.clone();
        match verdict {
            Verdict::Failed => self.failures.push(format!("{label}: {name}")),
            Verdict::Ignored(reason) => self.skips.push((
                label,
                Skip {
                    test: name.to_owned(),
                    reason: reason.to_owned(),
                },
            )),
        }
    }
}

/// `Running unittests src/lib.rs (target/debug/deps/name-0123)` or `Doc-tests name`.
fn header(line: &str) -> Option<String> {
    if let Some(name) = line.strip_prefix("Doc-tests ") {
        return Some(format!("{name} (doc tests)"));
    }
    let (source, path) = line.strip_prefix("Running ")?.rsplit_once(" (")?;
    let file = path.strip_suffix(')')?.rsplit(['/', '\\']).next()?;
    let name = file.rsplit_once('-').map_or(file, |(name, _hash)| name);
    Some(format!("{name} ({source})"))
}

#[derive(Clone, Copy)]
struct Counts {
    passed: usize,
    failed: usize,
    ignored: usize,
}

/// `test result: ok. 12 passed; 0 failed; 3 ignored; 0 measured; 0 filtered out; …`
fn counts(line: &str) -> Option<Counts> {
    let (_verdict, numbers) = line.strip_prefix("test result: ")?.split_once(". ")?;
    let number = |what: &str| {
        numbers
            .split("; ")
            .find_map(|part| part.trim().strip_suffix(what)?.trim().parse().ok())
    };
    Some(Counts {
        passed: number("passed")?,
        failed: number("failed")?,
        ignored: number("ignored")?,
    })
}

#[derive(Clone, Copy)]
enum Verdict<'a> {
    Failed,
    Ignored(&'a str),
}

/// `test name ... FAILED` or `test name ... ignored, reason`.
fn verdict(line: &str) -> Option<(&str, Verdict<'_>)> {
    let (name, verdict) = line.strip_prefix("test ")?.rsplit_once(" ... ")?;
    if verdict == "FAILED" {
        return Some((name, Verdict::Failed));
    }
    let reason = verdict.strip_prefix("ignored")?;
    let reason = reason.strip_prefix(", ").unwrap_or("ignored");
    Some((name, Verdict::Ignored(reason)))
}

fn without_colours(line: &str) -> String {
    let mut plain = String::with_capacity(line.len());
    let mut rest = line;
    while let Some((before, after)) = rest.split_once("\u{1b}[") {
        plain.push_str(before);
        let end = after.find(|c: char| c.is_ascii_alphabetic());
        rest = end.map_or("", |end| &after[end + 1..]);
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
   Compiling counterfoil-core v0.1.0
\u{1b}[1m\u{1b}[92m     Running\u{1b}[0m unittests src/lib.rs (target/debug/deps/counterfoil_core-0123abcd)
running 3 tests
test ids::an_id_is_stable ... ok
test relay::needs_hours ... ignored, takes hours
test result: ok. 2 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.00s
     Running tests/suite.rs (target/debug/deps/suite-4567)
test claims_are_exclusive ... FAILED
test result: FAILED. 4 passed; 1 failed; 0 ignored; 0 measured; 7 filtered out; finished in 1.00s
error: test failed, to rerun pass `-p counterfoil-postgres --test suite`
     Running tests/crash.rs (target/debug/deps/crash-89)
error: test failed, to rerun pass `-p counterfoil-postgres --test crash`
   Doc-tests counterfoil_core
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.10s
";

    fn read(output: &str) -> Tally {
        let mut tally = Tally::default();
        for line in output.lines() {
            tally.read(line, Vec::new);
        }
        tally
    }

    #[test]
    fn counts_are_summed_over_all_binaries_and_a_death_is_a_failure() {
        let tally = read(OUTPUT);

        assert_eq!(tally.passed(), 10);
        assert_eq!(tally.failed(), 2);
        assert_eq!(tally.skipped(), 1);
        let labels: Vec<_> = tally.binaries.iter().map(|b| b.label.as_str()).collect();
        assert_eq!(
            labels,
            [
                "counterfoil_core (unittests src/lib.rs)",
                "suite (tests/suite.rs)",
                "crash (tests/crash.rs)",
                "counterfoil_core (doc tests)",
            ]
        );
    }

    #[test]
    fn failed_and_ignored_tests_are_named() {
        let tally = read(OUTPUT);

        assert_eq!(
            tally.failures,
            [
                "suite (tests/suite.rs): claims_are_exclusive",
                "crash (tests/crash.rs): ended badly without a failed test",
            ]
        );
        let (binary, skip) = &tally.skips[0];
        assert_eq!(binary, "counterfoil_core (unittests src/lib.rs)");
        assert_eq!(skip.test, "relay::needs_hours");
        assert_eq!(skip.reason, "takes hours");
    }

    #[test]
    fn a_test_that_skips_itself_is_not_passed() {
        let mut tally = Tally::default();
        let skip = Skip {
            test: "claims".to_owned(),
            reason: "no server".to_owned(),
        };
        let result = "test result: ok. 5 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out";

        tally.read(result, || vec![skip]);

        assert_eq!((tally.passed(), tally.skipped()), (4, 1));
    }

    #[test]
    fn what_tests_print_does_not_count() {
        let tally = read("Running late\ntest of patience\ntest result: splendid\n");

        assert!(tally.binaries.is_empty());
        assert_eq!(tally.failed(), 0);
    }
}
