//! Connections to one Redis.
//!
//! # Promise
//! Whoever opens a connection has one that is logged in and has answered, or the reason why not.
//! Settings of the server that can lose data are looked at once.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::Outcome;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, RedisError, Value};
use tokio::time::timeout;

use crate::address::{Address, Login};
use crate::classify::why;
use crate::durability;
use crate::settings::SettingsError;

/// The way to one Redis.
pub(crate) struct Server {
    client: Client,
    login: Login,
    shown: String,
    pub(crate) connect_timeout: Duration,
    max_payload: usize,
    /// Whether the server's settings were looked at.
    looked: Arc<AtomicBool>,
}

impl Server {
    /// Opens nothing yet. `max_payload` is the largest that is sent.
    pub(crate) fn new(
        address: Address,
        connect_timeout: Duration,
        max_payload: usize,
    ) -> Result<Self, SettingsError> {
        Ok(Self {
            client: client(&address)?,
            login: address.login,
            shown: address.shown,
            connect_timeout,
            max_payload,
            looked: Arc::default(),
        })
    }

    /// A new connection within the connect timeout. The failure is the outcome of everything that
    /// was to be sent.
    pub(crate) async fn open_in_time(&self) -> Result<MultiplexedConnection, Outcome> {
        match timeout(self.connect_timeout, self.open()).await {
            Ok(opened) => opened,
            Err(_) => Err(Outcome::Unavailable {
                error: format!("Redis did not answer within {:?}", self.connect_timeout),
            }),
        }
    }

    /// A new connection. Who waits has a limit of its own.
    pub(crate) async fn open(&self) -> Result<MultiplexedConnection, Outcome> {
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let unavailable = |error: RedisError| Outcome::Unavailable { error: why(&error) };
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(unavailable)?;
        let hello = self.login.hello();
        let answers: Vec<Value> = hello
            .query_async(&mut connection)
            .await
            .map_err(unavailable)?;
        if let Some(refused) = self.login.refused(&answers) {
            return Err(refused);
        }
        self.look_once(&connection);
        Ok(connection)
    }

    /// Looks at the server's settings in the background: nobody waits for it.
    fn look_once(&self, connection: &MultiplexedConnection) {
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, looked) = (connection.clone(), Arc::clone(&self.looked));
        let (shown, max_payload) = (self.shown.clone(), self.max_payload);
        tokio::spawn(async move {
            if !durability::look(connection, &shown, max_payload).await {
                // The connection broke; the next one is as good.
                looked.store(false, Ordering::Relaxed);
            }
        });
    }
}

fn client(address: &Address) -> Result<Client, SettingsError> {
    use redis::{ConnectionAddr, TlsCertificates};
    use rustls::pki_types::CertificateDer;
    use rustls::pki_types::pem::PemObject as _;

    if !matches!(address.server.addr(), ConnectionAddr::TcpTls { .. }) {
        return Client::open(address.server.clone()).map_err(|e| SettingsError::Url(why(&e)));
    }
    if let Some(pem) = &address.ca {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        if read.is_ok_and(|found| found.is_empty()) {
            return Err(SettingsError::Ca("hold no certificate in PEM".into()));
        }
    }
    // Whoever has chosen another provider for the whole program keeps it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certificates = TlsCertificates {
        client_tls: None,
        root_cert: address.ca.clone(),
    };
    Client::build_with_tls(address.server.clone(), certificates)
        .map_err(|e| SettingsError::Ca(format!("cannot be used: {}", why(&e))))
}
