//! Callers of a guarded server, its database, and the line between the two.
//!
//! # Promise
//! What took effect is decided by one table, in which every effect is a row. A receipt names its
//! effect, so that the answer of a second run cannot look like a repetition of the first.

mod caller;
mod ledger;
mod line;
mod shop;

use http::HeaderMap;
use serde::{Deserialize, Serialize};

pub use caller::{Answer, Ask, Door};
pub use ledger::{Home, Ledger};
pub use line::{Line, Passes};
pub use shop::{Server, Shop};

/// Where the guard is transactional.
pub const PAY: &str = "/pay";
/// Where the guard is leased.
pub const CHARGE: &str = "/charge";
/// The header by which a request asks to stand still.
pub const HALT: &str = "x-halt";

/// A point on the way of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Moment {
    /// The key is claimed, and nothing is done.
    Claimed,
    /// The effect is there, and is not recorded.
    Done,
    /// The handler has failed, and the claim is not given back. `/pay` has written its effect
    /// before that, `/charge` has not.
    Failed,
    /// The answer is recorded, and the caller does not have it.
    Answered,
}

impl Moment {
    const ALL: [Self; 4] = [Self::Claimed, Self::Done, Self::Failed, Self::Answered];

    /// Its name in a header.
    pub fn name(self) -> &'static str {
        match self {
            Self::Claimed => "claimed",
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Answered => "answered",
        }
    }

    /// Where a request with these headers wants to stand still.
    pub fn asked(headers: &HeaderMap) -> Option<Self> {
        let name = headers.get(HALT)?.to_str().ok()?;
        Self::ALL.into_iter().find(|m| m.name() == name)
    }
}

/// What happened because of one run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Effect {
    /// The request's key.
    pub request: String,
    /// Different in every run.
    pub receipt: String,
}

/// What the caller gets.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Receipt {
    /// Which effect it is for.
    pub receipt: String,
}

impl Effect {
    /// A new effect.
    pub fn of(request: &str) -> Self {
        Self {
            request: request.to_owned(),
            receipt: format!("{:016x}", fastrand::u64(..)),
        }
    }

    /// What its caller gets.
    pub fn receipt(&self) -> Receipt {
        Receipt {
            receipt: self.receipt.clone(),
        }
    }
}
