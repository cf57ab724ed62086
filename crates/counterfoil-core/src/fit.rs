//! How much a read brings into memory.
//!
//! A relay asks for thousands of rows at a time, because most are small. Where they are not, the rows
//! that it asked for may be larger than the machine. A store cannot know before it looks, and looking
//! twice would make every read slower. So it looks once: rows up to their [`share`] of the budget come
//! with their content, the others with their size. Then [`fit`] says which of those are brought too.
//!
//! # Promise
//! What is chosen is a beginning of what was found, and together no larger than the budget; the first
//! row is chosen whatever its size, so that it is delivered some time.

use crate::row::RawRow;

/// What a row holds besides its content, about.
pub(crate) const ROW: usize = 512;

/// A row as it was found.
#[derive(Debug)]
pub struct Found {
    /// The row; without its content when `left_out` is set.
    pub row: RawRow,
    /// The size of the content, where that was too large to come along.
    pub left_out: Option<usize>,
}

/// The content of a row.
#[derive(Debug, Default)]
pub struct Content {
    /// The text payload as written.
    pub payload: Option<String>,
    /// The opaque payload as written.
    pub payload_bin: Option<Vec<u8>>,
    /// The headers as written.
    pub headers: Option<String>,
    /// What could not be read, in words.
    pub unreadable: Option<String>,
}

/// Which of the rows that were found are brought into memory.
#[derive(Debug, Default)]
pub struct Fit {
    /// In the order in which they were found; some without their content.
    pub rows: Vec<RawRow>,
    /// The numbers of those whose content is to be read.
    pub left_out: Vec<i64>,
    /// There are more rows than fit.
    pub cut: bool,
}

impl RawRow {
    /// About how much memory it takes, in bytes.
    pub fn weight(&self) -> usize {
        let text = |text: &Option<String>| text.as_ref().map_or(0, String::len);
        let bin = self.payload_bin.as_ref().map_or(0, Vec::len);
        ROW + text(&self.payload) + text(&self.headers) + bin
    }

    /// Takes in its content.
    pub fn fill(&mut self, content: Content) {
        self.payload = content.payload;
        self.payload_bin = content.payload_bin;
        self.headers = content.headers;
        if let Some(odd) = content.unreadable {
            match &mut self.unreadable {
                Some(all) => {
                    all.push_str("; ");
                    all.push_str(&odd);
                }
                none => *none = Some(odd),
            }
        }
    }
}

/// The size up to which content comes along at once, when so many rows are asked for: all of them
/// together are within the budget.
pub fn share(bytes: usize, limit: usize) -> i64 {
    let share = bytes.checked_div(limit).unwrap_or(bytes);
    i64::try_from(share.saturating_sub(ROW)).unwrap_or(i64::MAX)
}

/// Chooses the beginning of what was found that fits into so many bytes.
pub fn fit(found: impl IntoIterator<Item = Found>, bytes: usize) -> Fit {
    let mut fit = Fit::default();
    let mut sum = 0_usize;
    for Found { row, left_out } in found {
        sum = sum.saturating_add(row.weight() + left_out.unwrap_or(0));
        if sum > bytes && !fit.rows.is_empty() {
            fit.cut = true;
            break;
        }
        if left_out.is_some() {
            fit.left_out.push(row.seq);
        }
        fit.rows.push(row);
    }
    fit
}

impl Fit {
    /// Takes in the contents that were read. Rows that are gone by now are left out.
    pub fn fill(self, contents: impl IntoIterator<Item = (i64, Content)>) -> Vec<RawRow> {
        let mut rows = self.rows;
        if self.left_out.is_empty() {
            return rows;
        }
        let mut contents: std::collections::HashMap<i64, Content> = contents.into_iter().collect();
        rows.retain_mut(|row| {
            if !self.left_out.contains(&row.seq) {
                return true;
            }
            let content = contents.remove(&row.seq);
            content.map(|content| row.fill(content)).is_some()
        });
        rows
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::row::{RowState, WrittenId};

    fn found(seq: i64, inside: usize, left_out: Option<usize>) -> Found {
        let row = RawRow {
            seq,
            shard: 0,
            id: None,
            written_id: WrittenId::Absent,
            aggregate_type: None,
            aggregate_id: None,
            version: None,
            event_type: None,
            payload: (inside > 0).then(|| "x".repeat(inside)),
            payload_bin: None,
            headers: None,
            state: RowState::New,
            attempts: 0,
            crashes: 0,
            early: false,
            behind: false,
            created_at: DateTime::UNIX_EPOCH,
            unreadable: None,
        };
        Found { row, left_out }
    }

    fn numbers(fit: &Fit) -> Vec<i64> {
        fit.rows.iter().map(|row| row.seq).collect()
    }

    #[test]
    fn a_beginning_is_chosen_that_fits() {
        let rows = [
            found(1, 100, None),
            found(2, 0, Some(5_000)),
            found(3, 0, Some(5_000)),
            found(4, 1, None),
        ];

        let fit = fit(rows, 10_000);

        assert_eq!(numbers(&fit), [1, 2], "a small one does not overtake");
        assert_eq!(fit.left_out, [2]);
        assert!(fit.cut);
    }

    #[test]
    fn the_first_is_chosen_whatever_its_size() {
        let fit = fit([found(1, 0, Some(1 << 30)), found(2, 1, None)], 10_000);

        assert_eq!(numbers(&fit), [1]);
        assert!(fit.cut);
    }

    #[test]
    fn what_is_gone_when_its_content_is_read_is_left_out() {
        let fit = fit([found(1, 0, Some(9)), found(2, 0, Some(9))], 10_000);
        let content = Content {
            payload: Some("2".into()),
            ..Content::default()
        };

        let rows = fit.fill([(2, content)]);

        assert_eq!(rows.len(), 1);
        assert_eq!(rows[0].payload.as_deref(), Some("2"));
    }

    #[test]
    fn shares_together_are_within_the_budget() {
        assert_eq!(share(16 << 20, 2_000), (16 << 20) / 2_000 - 512);
        assert_eq!(share(100, 0), 0);
        assert_eq!(share(1, 2_000), 0);
    }
}
