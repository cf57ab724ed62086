//! Whom we believe when a connection is encrypted.
//!
//! # Promise
//! The public authorities are compiled in, so that an empty container can deliver; an operator may
//! add one. The provider is named here and no process-wide default is needed or changed.

use std::sync::Arc;

use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::crypto::ring;
use tokio_rustls::rustls::pki_types::CertificateDer;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use crate::settings::SettingsError;

/// A connector that trusts the public authorities and those in `extra_ca`.
pub(crate) fn connector(extra_ca: Option<&[u8]>) -> Result<TlsConnector, SettingsError> {
    let mut roots: RootCertStore = webpki_roots::TLS_SERVER_ROOTS.iter().cloned().collect();
    if let Some(pem) = extra_ca {
        add(&mut roots, pem)?;
    }
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|e| SettingsError::ExtraCa(format!("cannot be used: {e}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsConnector::from(Arc::new(config)))
}

fn add(roots: &mut RootCertStore, pem: &[u8]) -> Result<(), SettingsError> {
    let before = roots.len();
    for certificate in CertificateDer::pem_slice_iter(pem) {
        let certificate =
            certificate.map_err(|e| SettingsError::ExtraCa(format!("is not PEM: {e}")))?;
        roots
            .add(certificate)
            .map_err(|e| SettingsError::ExtraCa(format!("cannot be used: {e}")))?;
    }
    if roots.len() == before {
        return Err(SettingsError::ExtraCa("holds no certificate".into()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_certificates_is_refused() {
        let broken = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
        for pem in ["", "hello", broken] {
            let error = connector(Some(pem.as_bytes())).err().unwrap();
            assert!(matches!(error, SettingsError::ExtraCa(_)), "{error}");
        }
        assert!(connector(None).is_ok());
    }
}
