//! The name that somebody probably meant.

/// The candidate nearest to `name`, if one is near enough to be a slip of the fingers.
pub(crate) fn nearest<'a>(
    name: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let allowed = (name.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (distance(name, candidate), candidate))
        .filter(|(distance, _)| *distance <= allowed)
        .min()
        .map(|(_, candidate)| candidate)
}

/// `; did you mean "x"?`, or nothing.
pub(crate) fn hint<'a>(name: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    nearest(name, candidates)
        .map(|n| format!("; did you mean `{n}`?"))
        .unwrap_or_default()
}

/// Insertions, deletions, replacements and swaps of neighbours between two words. Dashes and
/// underscores count as the same.
fn distance(a: &str, b: &str) -> usize {
    let letters = |word: &str| -> Vec<char> {
        word.chars()
            .map(|c| {
                if c == '_' {
                    '-'
                } else {
                    c.to_ascii_lowercase()
                }
            })
            .collect()
    };
    let (a, b) = (letters(a), letters(b));
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slips_are_recognised_and_strangers_are_not() {
        let keys = ["lease", "poll", "keep-sent", "batch"];

        assert_eq!(nearest("leese", keys), Some("lease"));
        assert_eq!(nearest("laese", keys), Some("lease"));
        assert_eq!(nearest("keep_sent", keys), Some("keep-sent"));
        assert_eq!(nearest("Poll", keys), Some("poll"));
        assert_eq!(nearest("concurrency", keys), None);
        assert_eq!(nearest("", keys), None);
    }
}
