//! What `cargo xtask test` says at the end.

use std::fmt::Write;

use super::tally::Tally;
use crate::servers::{Presence, Server};

/// The summary; its last line is `N passed, N failed, N skipped`.
pub(crate) fn text(presence: &[(&Server, Presence)], tally: &Tally) -> String {
    let mut text = String::from("\nservers\n");
    for (server, presence) in presence {
        line(&mut text, &format!("{:<12} {presence}", server.title));
    }
    text.push_str("tests\n");
    let mut empty = 0;
    for binary in &tally.binaries {
        let (passed, failed, skipped) = (binary.passed, binary.failed, binary.skipped);
        if passed + failed + skipped == 0 {
            empty += 1;
            continue;
        }
        let counts = format!("{passed:>5} passed {failed:>4} failed {skipped:>4} skipped");
        line(&mut text, &format!("{counts}  {}", binary.label));
    }
    if empty > 0 {
        line(&mut text, &format!("and {empty} without a test"));
    }
    section(&mut text, "failed", tally.failures.iter().cloned());
    let skips = tally.skips.iter();
    section(
        &mut text,
        "skipped",
        skips.map(|(binary, skip)| format!("{binary}: {}: {}", skip.test, skip.reason)),
    );
    let (passed, failed, skipped) = (tally.passed(), tally.failed(), tally.skipped());
    let _ = writeln!(
        text,
        "\n{passed} passed, {failed} failed, {skipped} skipped"
    );
    text
}

fn section(text: &mut String, title: &str, lines: impl Iterator<Item = String>) {
    for (index, content) in lines.enumerate() {
        if index == 0 {
            let _ = writeln!(text, "{title}");
        }
        line(text, &content);
    }
}

fn line(text: &mut String, content: &str) {
    // A reason may be long, such as the end of a server's log.
    let _ = writeln!(text, "  {}", content.replace('\n', "\n    "));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::servers;

    #[test]
    fn the_last_line_has_the_three_numbers() {
        let mut tally = Tally::default();
        tally.read("Running tests/a.rs (target/a-1)", Vec::new);
        tally.read("test slow ... ignored, slow", Vec::new);
        tally.read("test result: ok. 3 passed; 0 failed; 1 ignored", Vec::new);
        tally.fail("missing: PostgreSQL".to_owned());
        let presence = [(
            &servers::ALL[0],
            Presence::Missing("gone\nfor good".to_owned()),
        )];

        let text = text(&presence, &tally);

        assert_eq!(text.lines().last(), Some("3 passed, 1 failed, 1 skipped"));
        assert!(text.contains("PostgreSQL   missing: gone\n    for good"));
        assert!(text.contains("a (tests/a.rs): slow: slow"));
        assert!(text.contains("missing: PostgreSQL"));
    }
}
