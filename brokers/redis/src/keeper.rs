//! The task that gives signs of life.
//!
//! # Promise
//! While a subscription lives, nobody takes over what it has. What was taken over nevertheless, because
//! the process stood still for too long, is noticed and neither handed out nor settled any more.

use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::source::SourceError;
use redis::aio::MultiplexedConnection;
use tokio::time::{Instant, sleep};

use crate::group::Group;
use crate::hold::{Hold, Inner, Over, Stand};

/// The longest time between two signs of life.
const LONGEST_BEAT: Duration = Duration::from_secs(5);
/// Between two trims.
const TRIM_EVERY: Duration = Duration::from_secs(5);

/// Gives signs of life until it is over.
pub(crate) async fn run(
    hold: Arc<Hold>,
    group: Arc<Group>,
    mut connection: MultiplexedConnection,
    trim: bool,
) {
    let pause = (group.missed_after / 4).min(LONGEST_BEAT);
    let mut trimmed: Option<Instant> = None;
    loop {
        sleep(pause).await;
        if hold.lock().over.is_some() {
            return;
        }
        let mut beaten = beat(&hold, &group, &mut connection).await;
        if beaten.is_ok() && trim && trimmed.is_none_or(|at| at.elapsed() >= TRIM_EVERY) {
            trimmed = Some(Instant::now());
            beaten = trim_all(&hold, &group, &mut connection).await;
        }
        if let Err(error) = beaten {
            hold.end(Over::of(&error));
            return;
        }
    }
}

/// One sign of life.
async fn beat(
    hold: &Hold,
    group: &Group,
    connection: &mut MultiplexedConnection,
) -> Result<(), SourceError> {
    let sent = Instant::now();
    if group.partitioned {
        let given = hold.lock().left();
        let (share, owned) = group.share(connection, &given).await?;
        adopt(&mut hold.lock(), &given, share, &owned);
        hold.wanted.notify_one();
    }
    for place in 0..group.streams.len() {
        let ids = hold.lock().ids(place);
        if !ids.is_empty() {
            let lost = group.renew(connection, place, &ids, false).await?;
            hold.lock().lose(place, &lost);
        }
    }
    hold.lock().alive_until = sent + group.missed_after;
    Ok(())
}

/// Goes by what Redis says that we own, after we gave some up. One of those may be ours again.
fn adopt(inner: &mut Inner, given: &[usize], share: usize, owned: &[usize]) {
    for place in given {
        inner.stands[*place] = Stand::Foreign;
    }
    for place in 0..inner.stands.len() {
        match (
            owned.contains(&place),
            inner.stands[place] == Stand::Foreign,
        ) {
            (true, true) => inner.stands[place] = Stand::Catching("0-0".into()),
            (false, false) => inner.lose_place(place),
            _ => {}
        }
    }
    let active = |stand: &Stand| matches!(stand, Stand::Flowing | Stand::Catching(_));
    let mine = inner.stands.iter().enumerate();
    let mine: Vec<usize> = mine.filter(|(_, s)| active(s)).map(|(p, _)| p).collect();
    for place in mine.iter().skip(share) {
        inner.begin_to_leave(*place);
    }
}

async fn trim_all(
    hold: &Hold,
    group: &Group,
    connection: &mut MultiplexedConnection,
) -> Result<(), SourceError> {
    let stands = hold.lock().stands.clone();
    for (place, stand) in stands.iter().enumerate() {
        if *stand == Stand::Flowing {
            let gone = group.trim(connection, place).await?;
            tracing::debug!(stream = group.streams[place], gone, "trimmed");
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn catching() -> Stand {
        Stand::Catching("0-0".into())
    }

    fn stands(before: &[Stand], given: &[usize], share: usize, owned: &[usize]) -> Vec<Stand> {
        let hold = Hold::new(before.to_vec(), Instant::now());
        let mut inner = hold.lock();
        adopt(&mut inner, given, share, owned);
        inner.stands.clone()
    }

    #[test]
    fn what_is_new_is_caught_up_with_and_what_is_lost_is_foreign() {
        let before = [Stand::Foreign, Stand::Flowing, Stand::Flowing];

        let after = stands(&before, &[], 2, &[0, 2]);

        assert_eq!(after, [catching(), Stand::Foreign, Stand::Flowing]);
    }

    #[test]
    fn what_is_above_the_share_is_left() {
        let before = [Stand::Flowing, Stand::Flowing, Stand::Flowing];

        let after = stands(&before, &[], 1, &[0, 1, 2]);

        assert_eq!(after, [Stand::Flowing, Stand::Leaving, Stand::Leaving]);
    }

    #[test]
    fn what_was_given_up_and_is_ours_again_is_read_again() {
        let before = [Stand::Flowing, Stand::Leaving];

        let after = stands(&before, &[1], 2, &[0, 1]);

        assert_eq!(after, [Stand::Flowing, catching()]);
    }
}
