//! The API over TLS: a certificate and its key, read again when their files change.
//!
//! # Promise
//! What cannot work is refused at the start, with the file to blame. A file that was replaced by one
//! that cannot work changes nothing. The provider is named here and no process-wide default is changed.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError, RwLock};

use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::{ClientHello, ResolvesServerCert};
use tokio_rustls::rustls::sign::CertifiedKey;

use crate::config::Certificate;

type Result<T> = std::result::Result<T, String>;

/// What the server shows to its callers.
#[derive(Debug)]
pub(super) struct Identity {
    files: Certificate,
    key: RwLock<Arc<CertifiedKey>>,
}

impl Identity {
    /// Reads the files.
    pub(super) fn read(files: Certificate) -> Result<Arc<Self>> {
        let key = RwLock::new(Arc::new(certified(&files)?));
        Ok(Arc::new(Self { files, key }))
    }

    /// Reads them again. What cannot be used changes nothing.
    pub(super) fn read_again(&self) -> Result<()> {
        let key = Arc::new(certified(&self.files)?);
        *self.key.write().unwrap_or_else(PoisonError::into_inner) = key;
        Ok(())
    }

    /// Where they were read from.
    pub(super) fn files(&self) -> [PathBuf; 2] {
        [self.files.certificate.clone(), self.files.key.clone()]
    }

    /// Encrypts connections.
    pub(super) fn acceptor(self: &Arc<Self>) -> Result<TlsAcceptor> {
        let provider = Arc::new(ring::default_provider());
        let mut config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|e| e.to_string())?
            .with_no_client_auth()
            .with_cert_resolver(Arc::clone(self) as _);
        config.alpn_protocols = vec![b"http/1.1".to_vec()];
        Ok(TlsAcceptor::from(Arc::new(config)))
    }
}

impl ResolvesServerCert for Identity {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        let key = self.key.read().unwrap_or_else(PoisonError::into_inner);
        Some(Arc::clone(&key))
    }
}

fn certified(files: &Certificate) -> Result<CertifiedKey> {
    let wrong = |file: &Path, why: &dyn std::fmt::Display| format!("{}: {why}", file.display());
    let file = &files.certificate;
    let chain = CertificateDer::pem_file_iter(file)
        .and_then(Iterator::collect::<std::result::Result<Vec<_>, _>>)
        .map_err(|e| wrong(file, &e))?;
    if chain.is_empty() {
        return Err(wrong(file, &"it holds no certificate"));
    }
    let file = &files.key;
    let key = PrivateKeyDer::from_pem_file(file).map_err(|e| wrong(file, &e))?;
    CertifiedKey::from_der(chain, key, &ring::default_provider()).map_err(|e| wrong(file, &e))
}
