//! The guard: every request takes effect once for its key.
//!
//! # Promise
//! What a record means is decided in one place, [`decide`], which is pure. Stores only keep records
//! and swap them: a write says which record it expects to find, and is refused when another has
//! taken its place. So two owners of one key cannot both end it.
//!
//! | module | what lives there |
//! |---|---|
//! | [`key`] | who asks for what, under which key |
//! | [`fingerprint`] | whether a repeat asks for the same |
//! | [`canonical`] | JSON in one spelling |
//! | [`record`] | what is remembered of a request |
//! | [`rules`] | how long, how strict |
//! | [`decide`] | what a request that finds a record has to do |
//! | [`records`] | the seam between the guard and a database |
//! | [`columns`] | how a record fits into a table |
//! | [`once`] | one-time tokens, and locks that run out |
//! | [`gate`] | the fast gate in front of it |
//! | [`storm`] | whether repeats have risen suddenly |

pub mod canonical;
pub mod columns;
mod decide;
pub mod fingerprint;
pub mod gate;
pub mod key;
pub mod once;
pub mod record;
pub mod records;
pub mod rules;
pub mod storm;

pub use decide::{Decision, decide};
pub use fingerprint::{Fingerprint, FingerprintBuilder};
pub use gate::{Gate, Gated};
pub use key::{Digest, Key, KeyError};
pub use once::{Consumed, Locks, Token, Tokens};
pub use record::{Found, Record, Snapshot, State, Verdict};
pub use records::{Change, Expect, GuardStats, Mark, RecordFilter, Records, Write};
pub use rules::{Mode, Rules, RulesError};
