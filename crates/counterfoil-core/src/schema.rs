//! Migrations, and which program may read which schema.
//!
//! # Promise
//! Every step can be run twice without harm. A schema states the oldest program that may still
//! read it, so that during a rolling upgrade the old programs go on, and a program that is too old
//! refuses to start instead of guessing.

use crate::store::{Result, StoreError};

/// One step of the schema.
#[derive(Debug, Clone, Copy)]
pub struct Migration {
    /// The version that the schema has afterwards. A program's version is that of its last step.
    pub version: i64,
    /// The oldest program that can work with the schema afterwards.
    pub oldest_reader: i64,
    /// What it does.
    pub name: &'static str,
    /// The statements.
    pub sql: &'static str,
}

/// What the migrations table says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Applied {
    /// The highest version applied.
    pub version: i64,
    /// The oldest program that it allows.
    pub oldest_reader: i64,
}

/// The version of a program with these steps.
pub fn latest(migrations: &[Migration]) -> i64 {
    migrations.iter().map(|m| m.version).max().unwrap_or(0)
}

/// Whether a program with these steps may run on a schema.
pub fn judge(migrations: &[Migration], applied: Option<Applied>) -> Result<()> {
    let ours = latest(migrations);
    match applied {
        None => Err(StoreError::SchemaMissing),
        Some(found) if found.oldest_reader > ours => Err(too_new(ours, found)),
        Some(found) if found.version < ours => Err(StoreError::SchemaTooOld {
            found: found.version,
            needed: ours,
        }),
        Some(_) => Ok(()),
    }
}

/// The steps that are still to be run.
pub fn pending(migrations: &[Migration], applied: Option<Applied>) -> Result<Vec<Migration>> {
    let ours = latest(migrations);
    let from = match applied {
        Some(found) if found.oldest_reader > ours => return Err(too_new(ours, found)),
        Some(found) => found.version,
        None => 0,
    };
    Ok(migrations
        .iter()
        .filter(|m| m.version > from)
        .copied()
        .collect())
}

fn too_new(ours: i64, found: Applied) -> StoreError {
    StoreError::SchemaTooNew {
        found: found.version,
        oldest_reader: found.oldest_reader,
        ours,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STEPS: &[Migration] = &[
        Migration {
            version: 1,
            oldest_reader: 1,
            name: "first",
            sql: "",
        },
        Migration {
            version: 2,
            oldest_reader: 1,
            name: "second",
            sql: "",
        },
    ];

    #[test]
    fn a_program_refuses_what_it_cannot_read_and_accepts_what_allows_it() {
        let at = |version, oldest_reader| {
            Some(Applied {
                version,
                oldest_reader,
            })
        };

        assert!(matches!(judge(STEPS, None), Err(StoreError::SchemaMissing)));
        assert!(matches!(
            judge(STEPS, at(1, 1)),
            Err(StoreError::SchemaTooOld { .. })
        ));
        assert!(judge(STEPS, at(2, 1)).is_ok());
        assert!(
            judge(STEPS, at(9, 2)).is_ok(),
            "a newer schema may allow us"
        );
        assert!(matches!(
            judge(STEPS, at(9, 3)),
            Err(StoreError::SchemaTooNew { .. })
        ));
        assert!(matches!(
            pending(STEPS, at(9, 3)),
            Err(StoreError::SchemaTooNew { .. })
        ));
        assert_eq!(pending(STEPS, at(1, 1)).unwrap().len(), 1);
    }
}
