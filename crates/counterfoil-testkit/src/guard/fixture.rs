//! What every case of the guard starts with.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::{
    Change, Digest, Expect, Fingerprint, Found, Key, Records, Snapshot, State, Write,
};

use super::harness::GuardHarness;

/// Longer than any case takes.
pub const LEASE: Duration = Duration::from_secs(600);
/// Longer than a lease.
pub const KEEP: Duration = Duration::from_secs(86_400);

/// An empty guard under test.
pub struct GuardFixture<H: GuardHarness> {
    /// The harness of the store.
    pub harness: Arc<H>,
    /// The guard over the application's pool.
    pub guard: H::Guard,
}

impl<H: GuardHarness> GuardFixture<H> {
    /// A fixture on a fresh harness.
    pub fn new(harness: Arc<H>) -> Self {
        Self {
            guard: harness.guard(),
            harness,
        }
    }

    /// Puts a record and answers its number.
    pub async fn put(&self, write: &Write) -> i64 {
        self.guard.put(write).await.unwrap().expect("not expected")
    }

    /// Claims a key for [`LEASE`].
    pub async fn claim(&self, name: &str) -> Claim {
        let digest = key(name).digest();
        let fence = self.put(&claim(name)).await;
        Claim { digest, fence }
    }

    /// Claims a key and ends it, to be kept for [`KEEP`].
    pub async fn ended(&self, name: &str, state: State) -> Claim {
        let claim = self.claim(name).await;
        assert!(self.change(claim, &end(state)).await);
        claim
    }

    /// Changes a record as its owner.
    pub async fn change(&self, claim: Claim, change: &Change) -> bool {
        self.guard
            .change(&claim.digest, claim.fence, change)
            .await
            .unwrap()
    }

    /// The record of a key.
    pub async fn look(&self, name: &str) -> Option<Found> {
        self.guard.look(&key(name).digest()).await.unwrap()
    }

    /// The record of a key that has one.
    pub async fn find(&self, name: &str) -> Found {
        self.look(name).await.expect("no record")
    }

    /// Lets so much time pass.
    pub async fn advance(&self, by: Duration) {
        self.harness.advance(by).await;
    }
}

/// A claimed record.
#[derive(Debug, Clone, Copy)]
pub struct Claim {
    /// Which.
    pub digest: Digest,
    /// Under which number.
    pub fence: i64,
}

impl Claim {
    /// The same record under another number.
    pub fn under(self, fence: i64) -> Self {
        Self { fence, ..self }
    }
}

/// A key of the shop's payments.
pub fn key(name: &str) -> Key {
    Key::new("shop", "pay", name).unwrap()
}

/// What most cases ask for.
pub const ASKED: Fingerprint = Fingerprint([7; 32]);

/// A claim in leased mode.
pub fn claim(name: &str) -> Write {
    claim_of(key(name))
}

/// A claim in leased mode, of any key.
pub fn claim_of(key: Key) -> Write {
    Write {
        key,
        fingerprint: ASKED,
        state: State::Processing,
        attempt: 1,
        lease: Some(LEASE),
        keep: KEEP,
        retry_in: None,
        snapshot: None,
        expect: Expect::Absent,
    }
}

/// A finished record, as transactional mode writes it.
pub fn finished(name: &str, expect: Expect) -> Write {
    Write {
        state: State::Succeeded,
        lease: None,
        snapshot: Some(answer()),
        expect,
        ..claim(name)
    }
}

/// The end of a leased run.
pub fn end(state: State) -> Change {
    Change::End {
        state,
        snapshot: Some(answer()),
        keep: KEEP,
        retry_in: None,
    }
}

/// The answer that most cases give.
pub fn answer() -> Snapshot {
    Snapshot {
        status: 201,
        headers: vec![("location".into(), b"/pay/7".to_vec())],
        body: Some(b"{\"id\":7}".to_vec().into()),
    }
}

/// Every change there is.
pub fn every_change() -> Vec<Change> {
    vec![
        Change::Heartbeat { lease: LEASE },
        end(State::Succeeded),
        end(State::Failed),
        Change::Doubt,
        Change::Release,
    ]
}
