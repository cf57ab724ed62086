//! How a record fits into a table: names and numbers, the same on every database.

use super::record::Snapshot;
use crate::store::{Result, StoreError};

/// The central table.
pub const GUARD_TABLE: &str = "counterfoil_guard";

/// The longest name of a table. Databases cut a name that is too long, silently, and two of them
/// could become one: the longest of ours has six characters more than the table, and PostgreSQL
/// takes 63.
const LONGEST: usize = 57;

/// Refuses a name that is not letters, digits and `_`, with at most so many parts between dots: it
/// is put into statements as it is.
pub fn check_table(name: &str, parts: usize) -> Result<()> {
    let usable = |part: &str| {
        !part.is_empty()
            && part.len() <= LONGEST
            && !part.starts_with(|c: char| c.is_ascii_digit())
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if name.split('.').count() <= parts && name.split('.').all(usable) {
        Ok(())
    } else {
        Err(StoreError::NotFound(format!(
            "{name:?} cannot be the name of a table: use at most {LONGEST} letters, digits and `_`"
        )))
    }
}

/// Statements of the central table for another one: its name, and the names of its indexes, which
/// are where their table is and do not say so.
pub fn renamed(sql: &str, name: &str) -> String {
    const INDEX: &str = "\u{1}";
    let plain = name.rsplit('.').next().unwrap_or(name);
    sql.replace("counterfoil_guard_", INDEX)
        .replace(GUARD_TABLE, name)
        .replace(INDEX, &format!("{plain}_"))
}

/// A statement with something in the place of each `{name}`. What is put in is not looked at again.
pub fn filled(sql: &str, mut put: impl FnMut(&str, &mut String)) -> String {
    let mut out = String::with_capacity(2 * sql.len());
    let mut rest = sql;
    while let Some((before, after)) = rest.split_once('{')
        && let Some((name, behind)) = after.split_once('}')
    {
        out.push_str(before);
        put(name, &mut out);
        rest = behind;
    }
    out.push_str(rest);
    out
}

/// A number of attempts for a signed column.
pub fn attempts(n: u32) -> i32 {
    i32::try_from(n).unwrap_or(i32::MAX)
}

/// Status, header lines and body of an answer.
pub type SnapshotColumns<'a> = (Option<i16>, Option<String>, Option<&'a [u8]>);

/// An answer in its three columns. [`Snapshot::from_columns`] puts it together again.
pub fn snapshot(snapshot: Option<&Snapshot>) -> SnapshotColumns<'_> {
    snapshot.map_or((None, None, None), |s| {
        (
            Some(i16::try_from(s.status).unwrap_or_default()),
            s.headers_text(),
            s.body.as_deref(),
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_tables_are_checked() {
        for bad in [
            "", "a b", "1a", "a;b", "a.b.c", ".a", "a.", "ä", "a\"b", "a`b", "a'b", "a\0",
        ] {
            assert!(check_table(bad, 2).is_err(), "{bad}");
        }
        assert!(check_table(&"x".repeat(58), 2).is_err());
        assert!(check_table(&format!("{}.a", "x".repeat(58)), 2).is_err());
        assert!(check_table(&"x".repeat(57), 1).is_ok());
        assert!(check_table("shop.pay_guard", 2).is_ok());
        assert!(check_table("shop.pay_guard", 1).is_err());
    }

    #[test]
    fn a_table_whose_name_begins_like_the_central_one_is_renamed_once() {
        let sql = "CREATE TABLE counterfoil_guard (); \
                   CREATE INDEX counterfoil_guard_over ON counterfoil_guard (over_at)";

        assert_eq!(renamed(sql, GUARD_TABLE), sql);
        assert_eq!(
            renamed(sql, "shop.counterfoil_guard_pay"),
            "CREATE TABLE shop.counterfoil_guard_pay (); \
             CREATE INDEX counterfoil_guard_pay_over ON shop.counterfoil_guard_pay (over_at)"
        );
    }

    #[test]
    fn what_is_put_into_a_statement_is_not_looked_at_again() {
        let put = |name: &str, out: &mut String| match name {
            "a" => out.push_str("{b}"),
            "b" => out.push('2'),
            _ => {}
        };

        assert_eq!(filled("{a}, {b}; {c}{a}", put), "{b}, 2; {b}");
        assert_eq!(filled("SELECT 1", put), "SELECT 1");
        assert_eq!(filled("{b} {b", put), "2 {b");
    }

    #[test]
    fn a_number_of_attempts_never_turns_negative() {
        assert_eq!((attempts(3), attempts(u32::MAX)), (3, i32::MAX));
    }

    #[test]
    fn an_answer_goes_into_its_columns_and_comes_back() {
        let whole = Snapshot {
            status: 201,
            headers: vec![("etag".into(), b"\"v1\"".to_vec())],
            body: Some("made".into()),
        };

        let (status, headers, body) = snapshot(Some(&whole));

        let status = status.unwrap().cast_unsigned();
        let back = Snapshot::from_columns(status, headers.as_deref(), body.map(Vec::from));
        assert_eq!(back, whole);
        assert_eq!(snapshot(None), (None, None, None));
    }
}
