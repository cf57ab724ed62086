//! The receiver's moods.

use std::time::Duration;

use crate::actor::POISON;
use crate::book::{Manner, Offer};
use crate::wire::Verdict;
use crate::world::World;

/// How the receiver treats what is offered.
#[derive(Debug, Clone, Copy)]
enum Mood {
    /// Stores everything.
    Fine,
    /// Takes its time.
    Slow,
    /// Fails now and then.
    Failing,
    /// Hangs up now and then.
    HangingUp,
    /// Does not answer now and then.
    Silent,
    /// Nobody is at home.
    Away,
    /// Nobody listens.
    Down,
}

/// Fine comes often, so that something passes.
const MOODS: [Mood; 9] = [
    Mood::Fine,
    Mood::Fine,
    Mood::Fine,
    Mood::Slow,
    Mood::Failing,
    Mood::HangingUp,
    Mood::Silent,
    Mood::Away,
    Mood::Down,
];

/// Changes moods at random.
pub(super) struct Moods {
    rng: fastrand::Rng,
    /// How often it has changed.
    pub(super) changes: u64,
}

impl Moods {
    pub(super) fn new(rng: fastrand::Rng) -> Self {
        Self { rng, changes: 0 }
    }

    /// Takes up another mood.
    pub(super) async fn change(&mut self, world: &World) {
        self.changes += 1;
        let mood = *self.rng.choice(&MOODS).unwrap_or(&Mood::Fine);
        let mut rng = self.rng.fork();
        world
            .book()
            .answer(move |offer| mood.treat(offer, &mut rng));
        match mood {
            Mood::Down => world.receiver.close().await,
            _ => world.receiver.open().await,
        }
    }

    /// From now on everything passes, except poison.
    pub(super) async fn heal(&self, world: &World) {
        world.book().answer(|offer| Manner::Now(fair(offer)));
        world.receiver.open().await;
    }
}

/// From now on poison passes too.
pub(super) fn mend(world: &World) {
    world.book().store_all();
}

/// What becomes of a message when nothing else goes wrong.
fn fair(offer: &Offer) -> Verdict {
    if offer.item.event == POISON {
        Verdict::Refused
    } else {
        Verdict::Stored
    }
}

impl Mood {
    fn treat(self, offer: &Offer, rng: &mut fastrand::Rng) -> Manner {
        let one_in = |n: u32, rng: &mut fastrand::Rng| rng.u32(0..n) == 0;
        let fair = fair(offer);
        match self {
            Self::Slow => Manner::After(Duration::from_millis(rng.u64(0..200)), fair),
            Self::Failing if one_in(3, rng) => Manner::Now(Verdict::Failed),
            Self::HangingUp if one_in(4, rng) => Manner::Now(Verdict::HungUp),
            Self::Silent if one_in(8, rng) => Manner::Hold,
            Self::Away if one_in(2, rng) => Manner::Now(Verdict::Away),
            _ => Manner::Now(fair),
        }
    }
}
