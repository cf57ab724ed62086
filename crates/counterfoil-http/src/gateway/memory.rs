//! Memory for guarded requests: their bodies, and the answers that are held whole.
//!
//! # Promise
//! The bodies of guarded requests take at most [`MOST`] together, and so do answers that are held
//! whole, whether they are being copied or are given again. One service has at most half of either:
//! callers who are slow at one do not turn away those of another. Memory is taken as bytes come, not
//! as they are announced, and nobody waits for it, so nobody can wait for one another in a circle:
//! who gets none is told so at once.
//!
//! An answer keeps its memory until its last byte was written to the caller. An upload that takes
//! longer than [`UPLOAD`] is given up.

use std::collections::HashMap;
use std::future::Future as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Body;
use axum::response::Response;
use bytes::Bytes;
use http_body::{Body as _, Frame, SizeHint};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::time::{Instant, Sleep, sleep_until};

use crate::Problem;
use crate::guard::answer::Replayed;

/// What a pot holds, in bytes.
pub(super) const MOST: usize = 256 << 20;
/// How long the upload of a guarded request may take.
pub(super) const UPLOAD: Duration = Duration::from_secs(120);
/// Memory is counted in these.
const STEP: usize = 1024;

/// Memory that is shared out.
pub(super) struct Pot {
    what: &'static str,
    steps: usize,
    all: Arc<Semaphore>,
    /// By the name of a service: a new set of routes finds what the former one has taken.
    shares: Mutex<HashMap<String, Share>>,
}

impl Pot {
    /// So many bytes, for this.
    pub(super) fn new(what: &'static str, bytes: usize) -> Self {
        let steps = bytes / STEP;
        Self {
            what,
            steps,
            all: Arc::new(Semaphore::new(steps)),
            shares: Mutex::default(),
        }
    }

    /// What one service may have of it: half.
    pub(super) fn share(&self, service: &str) -> Share {
        let mut shares = locked(&self.shares);
        let share = shares.entry(service.to_owned()).or_insert_with(|| Share {
            what: self.what,
            all: Arc::clone(&self.all),
            own: Arc::new(Semaphore::new(self.steps / 2)),
        });
        share.clone()
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The share of one service.
#[derive(Debug, Clone)]
pub(super) struct Share {
    what: &'static str,
    all: Arc<Semaphore>,
    own: Arc<Semaphore>,
}

impl Share {
    /// Room for so many bytes, if there is any.
    pub(super) fn lot(&self, bytes: usize) -> Option<Arc<Lot>> {
        let lot = Lot {
            share: self.clone(),
            taken: Mutex::default(),
        };
        lot.reserve(bytes).then(|| Arc::new(lot))
    }

    fn take(&self, steps: usize) -> Option<[OwnedSemaphorePermit; 2]> {
        let steps = u32::try_from(steps).ok()?;
        let own = Arc::clone(&self.own).try_acquire_many_owned(steps).ok()?;
        let all = Arc::clone(&self.all).try_acquire_many_owned(steps).ok()?;
        Some([own, all])
    }
}

/// What one request has taken. All of it is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Lot {
    share: Share,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    used: usize,
    permits: Option<[OwnedSemaphorePermit; 2]>,
}

impl Lot {
    /// Room for so many bytes in all, whether they come or not. If there is none, what is there
    /// stays.
    fn reserve(&self, bytes: usize) -> bool {
        let mut taken = locked(&self.taken);
        let has = taken
            .permits
            .as_ref()
            .map_or(0, |[own, _]| own.num_permits());
        let wanted = bytes.div_ceil(STEP).max(1);
        if wanted <= has {
            return true;
        }
        let Some(more) = self.share.take(wanted - has) else {
            let what = self.share.what;
            metrics::counter!("counterfoil_gateway_memory_refused_total", "for" => what)
                .increment(1);
            return false;
        };
        match &mut taken.permits {
            Some(permits) => permits.iter_mut().zip(more).for_each(|(p, m)| p.merge(m)),
            none => *none = Some(more),
        }
        true
    }

    /// So many bytes are there in all. If there is no room for them, what is there stays.
    pub(super) fn reach(&self, bytes: usize) -> bool {
        let fits = self.reserve(bytes);
        if fits {
            let mut taken = locked(&self.taken);
            taken.used = taken.used.max(bytes);
        }
        fits
    }

    fn used(&self) -> usize {
        locked(&self.taken).used
    }
}

/// Why an upload was not read to its end.
pub(super) type Refused = Arc<OnceLock<Problem>>;

/// There is no memory for the upload, or it takes too long.
#[derive(Debug, thiserror::Error)]
#[error("the upload was not read to its end")]
struct NotRead;

/// The body of a guarded request while it comes.
struct Arriving {
    body: Body,
    lot: Arc<Lot>,
    read: usize,
    until: Instant,
    timer: Option<Pin<Box<Sleep>>>,
    refused: Refused,
}

/// The same body. Whoever reads it is stopped when there is no room or no time left; then `refused`
/// says why.
pub(super) fn arriving(body: Body, lot: Arc<Lot>, refused: Refused) -> Body {
    if body.is_end_stream() {
        return body;
    }
    Body::new(Arriving {
        body,
        lot,
        read: 0,
        until: Instant::now() + UPLOAD,
        timer: None,
        refused,
    })
}

impl Arriving {
    fn refuse(&self, problem: Problem) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        // The first reason stands.
        let _ = self.refused.set(problem);
        Poll::Ready(Some(Err(NotRead.into())))
    }
}

impl http_body::Body for Arriving {
    type Data = Bytes;
    type Error = axum::BoxError;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::BoxError>>> {
        let Poll::Ready(frame) = Pin::new(&mut self.body).poll_frame(cx) else {
            let until = self.until;
            let timer = self
                .timer
                .get_or_insert_with(|| Box::pin(sleep_until(until)));
            ready!(timer.as_mut().poll(cx));
            return self.refuse(Problem::upload_too_slow(UPLOAD));
        };
        if let Some(Ok(frame)) = &frame
            && let Some(data) = frame.data_ref()
        {
            self.read += data.len();
            if !self.lot.reach(self.read) {
                return self.refuse(Problem::busy());
            }
        }
        Poll::Ready(frame.map(|f| f.map_err(Into::into)))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// An answer on its way to the caller: as long as what was held whole is there, so is its lot. One
/// that is given again is counted now that its size is known.
pub(super) fn outgoing(response: Response, lot: Arc<Lot>) -> Result<Response, Problem> {
    if response.extensions().get::<Replayed>().is_some() {
        let size = response.body().size_hint().exact().unwrap_or(u64::MAX);
        if !lot.reach(usize::try_from(size).unwrap_or(usize::MAX)) {
            return Err(Problem::busy());
        }
    }
    let left = lot.used();
    if left == 0 {
        return Ok(response);
    }
    let lot = Some(lot);
    Ok(response.map(|body| Body::new(Outgoing { body, left, lot })))
}

struct Outgoing {
    body: Body,
    /// Bytes of what was held whole that are still to come.
    left: usize,
    lot: Option<Arc<Lot>>,
}

/// Bytes that give their memory back when the last piece of them is gone, wherever it is held.
struct Held {
    data: Bytes,
    _lot: Arc<Lot>,
}

impl AsRef<[u8]> for Held {
    fn as_ref(&self) -> &[u8] {
        &self.data
    }
}

impl Outgoing {
    fn held(&mut self, data: Bytes) -> Bytes {
        let Some(lot) = self.lot.clone() else {
            return data;
        };
        self.left = self.left.saturating_sub(data.len());
        if self.left == 0 {
            self.lot = None;
        }
        Bytes::from_owner(Held { data, _lot: lot })
    }
}

impl http_body::Body for Outgoing {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        let frame = ready!(Pin::new(&mut self.body).poll_frame(cx));
        Poll::Ready(frame.map(|f| f.map(|frame| frame.map_data(|data| self.held(data)))))
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::stream;
    use http_body_util::BodyExt as _;

    use super::*;

    const KIB: usize = 1024;

    #[test]
    fn one_service_has_half_and_a_second_one_the_rest() {
        let pot = Pot::new("test", 8 * KIB);
        let (shop, bank) = (pot.share("shop"), pot.share("bank"));

        let held = shop.lot(4 * KIB).unwrap();
        assert!(shop.lot(1).is_none());
        assert!(pot.share("shop").lot(1).is_none(), "whoever asks for it");
        assert!(bank.lot(4 * KIB).is_some());
        assert!(bank.lot(5 * KIB).is_none());

        drop(held);
        assert!(shop.lot(4 * KIB).is_some());
    }

    #[test]
    fn a_lot_that_cannot_grow_keeps_what_it_has() {
        let share = Pot::new("test", 8 * KIB).share("shop");
        let lot = share.lot(1).unwrap();

        assert!(lot.reach(KIB));
        assert!(lot.reach(KIB + 1));
        assert!(!lot.reach(4 * KIB + 1));

        assert!(share.lot(2 * KIB).is_some());
        assert!(share.lot(2 * KIB + 1).is_none());
        assert_eq!(lot.used(), KIB + 1);
    }

    #[test]
    fn a_service_gets_no_more_than_others_have_left() {
        let pot = Pot::new("test", 8 * KIB);
        let [a, b, c] = ["a", "b", "c"].map(|name| pot.share(name));

        let _held = [a.lot(3 * KIB).unwrap(), b.lot(4 * KIB).unwrap()];

        assert!(c.lot(2 * KIB).is_none());
        assert!(c.lot(KIB).is_some());
    }

    fn body(pieces: usize, pause: Duration) -> Body {
        Body::from_stream(stream::unfold(0, move |n| async move {
            tokio::time::sleep(pause).await;
            let piece = Ok::<_, axum::BoxError>(Bytes::from_static(&[7; KIB]));
            (n < pieces).then_some((piece, n + 1))
        }))
    }

    #[tokio::test(start_paused = true)]
    async fn memory_is_taken_as_it_comes_and_an_upload_without_any_is_stopped() {
        let share = Pot::new("test", 8 * KIB).share("shop");
        let (lot, refused) = (share.lot(1).unwrap(), Refused::default());
        let mut upload = arriving(body(5, Duration::ZERO), lot, Arc::clone(&refused));

        for left in [3, 2, 1, 0] {
            assert!(upload.frame().await.unwrap().is_ok());
            assert_eq!(share.own.available_permits(), left);
        }

        assert!(upload.frame().await.unwrap().is_err());
        assert_eq!(refused.get(), Some(&Problem::busy()));
        drop(upload);
        assert_eq!(share.own.available_permits(), 4);
    }

    #[tokio::test(start_paused = true)]
    async fn an_upload_that_trickles_is_stopped() {
        let share = Pot::new("test", MOST).share("shop");
        let (lot, refused) = (share.lot(1).unwrap(), Refused::default());
        let trickle = body(1_000, Duration::from_secs(1));

        let begun = Instant::now();
        let read = arriving(trickle, lot, Arc::clone(&refused));

        assert!(read.collect().await.is_err());
        assert_eq!(begun.elapsed(), UPLOAD);
        assert_eq!(refused.get(), Some(&Problem::upload_too_slow(UPLOAD)));
    }

    #[tokio::test]
    async fn an_answer_holds_its_memory_until_its_last_piece_is_gone() {
        let share = Pot::new("test", 8 * KIB).share("shop");
        let mut replay = Response::new(Body::from(vec![7; 3 * KIB]));
        replay.extensions_mut().insert(Replayed);

        let lot = share.lot(1).unwrap();
        let mut body = outgoing(replay, lot).unwrap().into_body();
        assert_eq!(body.size_hint().exact(), Some(3 * KIB as u64));
        let mut data = body.frame().await.unwrap().unwrap().into_data().unwrap();
        drop(body);
        let last = data.split_off(3 * KIB - 1);
        drop(data);

        assert_eq!(share.own.available_permits(), 1);
        drop(last);
        assert_eq!(share.own.available_permits(), 4);
    }

    #[test]
    fn an_answer_without_room_is_not_given_again_now() {
        let share = Pot::new("test", 8 * KIB).share("shop");
        let mut replay = Response::new(Body::from(vec![7; 5 * KIB]));
        replay.extensions_mut().insert(Replayed);

        let told = outgoing(replay, share.lot(1).unwrap()).unwrap_err();

        assert_eq!(told, Problem::busy());
        assert_eq!(share.own.available_permits(), 4);
    }
}
