//! Concurrent requests with one key cause one call.
//!
//! # Promise
//! While a call with a key is under way, others with this key wait for its result and cause none of
//! their own. The call goes to its end even if the one that began it is dropped.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::marker::PhantomData;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};

use tokio::sync::watch;
use tower::{Layer, Service};

use super::CallFuture;
use super::error::CallError;
use super::meter;

/// Concurrent requests with one key cause one call.
///
/// The key has to say everything that makes two requests the same: method, address, caller and
/// content, not only the idempotency key. Requests without a key go through. Put it outside of the
/// [`Stack`](super::Stack), so that only the one call is retried.
#[derive(Clone)]
pub struct CoalesceLayer<Req, K> {
    destination: Arc<str>,
    key: K,
    of: PhantomData<fn(Req)>,
}

impl<Req, K: Fn(&Req) -> Option<String>> CoalesceLayer<Req, K> {
    /// Calls of this destination, by this key.
    pub fn new(destination: &str, key: K) -> Self {
        Self {
            destination: Arc::from(destination),
            key,
            of: PhantomData,
        }
    }
}

impl<S, K, Req> Layer<S> for CoalesceLayer<Req, K>
where
    S: Service<Req>,
    K: Clone,
{
    type Service = Coalesce<S, K, S::Response, S::Error>;

    fn layer(&self, inner: S) -> Self::Service {
        Coalesce {
            inner,
            destination: Arc::clone(&self.destination),
            key: self.key.clone(),
            under_way: Arc::default(),
        }
    }
}

type Landed<T, E> = Option<Result<T, E>>;
type UnderWay<T, E> = Arc<Mutex<HashMap<String, watch::Receiver<Landed<T, E>>>>>;

/// The service of [`CoalesceLayer`].
pub struct Coalesce<S, K, T, E> {
    inner: S,
    destination: Arc<str>,
    key: K,
    under_way: UnderWay<T, E>,
}

impl<S: Clone, K: Clone, T, E> Clone for Coalesce<S, K, T, E> {
    fn clone(&self) -> Self {
        Self {
            inner: self.inner.clone(),
            destination: Arc::clone(&self.destination),
            key: self.key.clone(),
            under_way: Arc::clone(&self.under_way),
        }
    }
}

/// Takes the key off the board, however the call ends.
struct Seat<T, E> {
    key: String,
    under_way: UnderWay<T, E>,
}

impl<T, E> Drop for Seat<T, E> {
    fn drop(&mut self) {
        let mut board = self
            .under_way
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        board.remove(&self.key);
    }
}

impl<S, K, Req, E> Service<Req> for Coalesce<S, K, S::Response, CallError<E>>
where
    S: Service<Req, Error = CallError<E>> + Clone + Send + 'static,
    S::Future: Send + 'static,
    S::Response: Clone + Send + Sync + 'static,
    K: Fn(&Req) -> Option<String>,
    Req: Send + 'static,
    E: Clone + Send + Sync + 'static,
{
    type Response = S::Response;
    type Error = CallError<E>;
    type Future = CallFuture<S::Response, Self::Error>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Req) -> Self::Future {
        let Some(key) = (self.key)(&request) else {
            return Box::pin(self.inner.call(request));
        };
        let (land, landing) = watch::channel(None);
        let earlier = {
            let mut board = self
                .under_way
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            match board.entry(key.clone()) {
                Entry::Occupied(there) => Some(there.get().clone()),
                Entry::Vacant(free) => {
                    free.insert(landing.clone());
                    None
                }
            }
        };
        if let Some(landing) = earlier {
            meter::coalesced(&self.destination);
            return Box::pin(wait(landing));
        }
        let seat = Seat {
            key,
            under_way: Arc::clone(&self.under_way),
        };
        let call = self.inner.call(request);
        tokio::spawn(async move {
            let result = call.await;
            // Off the board first: who comes after the result is there calls anew.
            drop(seat);
            let _ = land.send(Some(result));
        });
        Box::pin(wait(landing))
    }
}

async fn wait<T: Clone, E: Clone>(
    mut landing: watch::Receiver<Landed<T, CallError<E>>>,
) -> Result<T, CallError<E>> {
    match landing.wait_for(Option::is_some).await {
        Ok(landed) => landed.clone().unwrap_or(Err(CallError::Abandoned)),
        Err(_) => Err(CallError::Abandoned),
    }
}
