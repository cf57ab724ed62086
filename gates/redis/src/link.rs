//! The connection to one Redis.
//!
//! # Promise
//! Whoever asks has an answer or a failure within [`Settings::patience`], connecting included. One
//! connection serves all. It is opened once, for everybody who waits for it, and goes on being
//! opened when they have given up, so that a slow handshake succeeds in the end. After a failure
//! Redis is left alone for [`Settings::rest`]: meanwhile asking fails at once.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use counterfoil_core::{BoxError, StoreError};
use futures_util::FutureExt as _;
use futures_util::future::{BoxFuture, Shared};
use redis::aio::MultiplexedConnection;
use redis::{
    AsyncConnectionConfig, Client, Cmd, ConnectionAddr, FromRedisValue, IntoConnectionInfo as _,
    RedisError, RedisResult, TlsCertificates,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::OptionsError;

/// How long a connection may take that nobody waits for any more.
const CONNECT: Duration = Duration::from_secs(2);

/// A connection, or the way to it. Ready for all who hold it as soon as it is for one.
type Opening = Shared<BoxFuture<'static, Result<MultiplexedConnection, Failure>>>;

/// Why there is no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Failure {
    /// Certainly not asked.
    #[error("it did not answer a moment ago")]
    Resting,
    /// It may still do what it was asked.
    #[error("no answer in time")]
    Late,
    /// The connection, or Redis itself, said so.
    #[error("{0}")]
    Said(RedisError),
}

impl From<Failure> for StoreError {
    fn from(failure: Failure) -> Self {
        let Failure::Said(error) = &failure else {
            return Self::Unreachable(failure.into());
        };
        match error.code() {
            _ if error.is_io_error() => Self::Unreachable(failure.into()),
            Some("OOM" | "READONLY" | "MISCONF" | "NOREPLICAS") => {
                Self::NotWritable(error.to_string(), failure.into())
            }
            Some("LOADING" | "BUSY" | "MASTERDOWN") => Self::Busy(failure.into()),
            _ => Self::Database(failure.into()),
        }
    }
}

/// How long things may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Settings {
    /// How long somebody waits for an answer.
    pub(crate) patience: Duration,
    /// How long Redis is left alone after a failure.
    pub(crate) rest: Duration,
}

impl Settings {
    /// For what nobody else can decide: everybody asks, also after a failure.
    pub(crate) fn restless(patience: Duration) -> Self {
        Self {
            patience,
            rest: Duration::ZERO,
        }
    }
}

/// The connection to one Redis.
pub(crate) struct Link {
    client: Client,
    settings: Settings,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Counts connections: a late failure of an old one says nothing about the present one.
    turn: u64,
    opening: Option<Opening>,
    rests_until: Option<Instant>,
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(
        url: &str,
        ca: Option<&[u8]>,
        settings: Settings,
    ) -> Result<Self, OptionsError> {
        if settings.patience.is_zero() {
            return Err(OptionsError::Patience);
        }
        Ok(Self {
            client: client(url, ca)?,
            settings,
            state: Mutex::default(),
        })
    }

    /// Asks Redis.
    pub(crate) async fn ask<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Failure> {
        let ask = async |mut connection| command.query_async(&mut connection).await;
        self.with(ask).await
    }

    /// Asks Redis something longer.
    pub(crate) async fn with<T, F, Fut>(&self, ask: F) -> Result<T, Failure>
    where
        F: FnOnce(MultiplexedConnection) -> Fut,
        Fut: Future<Output = RedisResult<T>>,
    {
        let (turn, opening) = self.opening()?;
        let answer = tokio::time::timeout(self.settings.patience, async {
            ask(opening.await?).await.map_err(Failure::Said)
        });
        let answer = answer.await.unwrap_or(Err(Failure::Late));
        if answer.is_err() {
            self.failed(turn);
        }
        answer
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn opening(&self) -> Result<(u64, Opening), Failure> {
        let mut state = self.state();
        if state
            .rests_until
            .is_some_and(|until| Instant::now() < until)
        {
            return Err(Failure::Resting);
        }
        if let Some(opening) = &state.opening
            && !matches!(opening.peek(), Some(Err(_)))
        {
            return Ok((state.turn, opening.clone()));
        }
        let opening = self.open();
        state.turn += 1;
        state.opening = Some(opening.clone());
        Ok((state.turn, opening))
    }

    fn open(&self) -> Opening {
        let client = self.client.clone();
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(CONNECT.max(self.settings.patience)))
            // Who asks has a limit of its own.
            .set_response_timeout(None);
        // A task: it goes on when nobody waits any more.
        let task = tokio::spawn(async move {
            client
                .get_multiplexed_async_connection_with_config(&config)
                .await
        });
        async move {
            match task.await {
                Ok(connected) => connected.map_err(Failure::Said),
                // The runtime has ended.
                Err(_) => Err(Failure::Late),
            }
        }
        .boxed()
        .shared()
    }

    fn failed(&self, turn: u64) {
        let mut state = self.state();
        if state.turn != turn {
            return;
        }
        // A connection that is there was no good; one that is still on its way may be.
        if state.opening.as_ref().is_some_and(|o| o.peek().is_some()) {
            state.opening = None;
        }
        state.rests_until = Some(Instant::now() + self.settings.rest);
    }
}

/// A client that encrypts when the URL says `rediss://`, and then believes nobody but the authorities
/// of the system, or those in `ca` instead.
fn client(url: &str, ca: Option<&[u8]>) -> Result<Client, OptionsError> {
    let unusable = |e: RedisError| OptionsError::Address(BoxError::from(e));
    let info = url.into_connection_info().map_err(unusable)?;
    match info.addr() {
        ConnectionAddr::TcpTls { insecure: true, .. } => {
            let why = "`#insecure` trusts everybody: name the authority instead";
            return Err(OptionsError::Address(why.into()));
        }
        ConnectionAddr::TcpTls { .. } => {}
        _ if ca.is_some() => return Err(OptionsError::Plain),
        _ => return Client::open(info).map_err(unusable),
    }
    if let Some(pem) = ca {
        let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        if found.is_ok_and(|found| found.is_empty()) {
            return Err(OptionsError::Ca("it holds no certificate in PEM".into()));
        }
    }
    // Whoever has chosen another provider for the whole program keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: ca.map(<[u8]>::to_vec),
    };
    Client::build_with_tls(info, certificates).map_err(|e| OptionsError::Ca(e.into()))
}
