//! NATS JetStream: `[destination.NAME]` and `from` with `type = "nats"`.

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_core::source::Source;

use super::super::at::At;
use super::super::file::destination;
use super::super::value::{Pointed, Size, Span};

destination!(
    /// `[destination.NAME]` with `type = "nats"`
    Nats, "nats", {
        /// Where NATS is.
        url: Option<Pointed> = None,
        /// To log in with, as the user of the URL.
        password: Option<Pointed> = None,
        /// Or a token.
        token: Option<Pointed> = None,
        /// Or the seed of a key.
        nkey: Option<Pointed> = None,
        /// Or a file of credentials.
        credentials_file: Option<String> = None,
        /// A file with the certificates to trust.
        ca_file: Option<String> = None,
        /// A file with a certificate to show.
        certificate_file: Option<String> = None,
        /// And one with its key.
        key_file: Option<String> = None,
        /// Over TLS only.
        require_tls: bool = false,
        /// The subject.
        subject: Option<String> = None,
        /// How many subjects it is.
        partitions: Option<u16> = None,
        /// Make the stream when it is missing.
        create: bool = false,
        /// How many servers hold each message of a stream that is made.
        replicas: Option<u8> = None,
        /// After which time its messages are dropped.
        max_age: Option<Span> = None,
        /// Where messages say that they come from.
        source: Option<String> = None,
        /// For a whole batch.
        timeout: Option<Span> = None,
        /// For name, TCP, TLS and login.
        connect_timeout: Option<Span> = None,
        /// Messages in one call.
        max_batch: Option<usize> = None,
        /// Larger payloads are parked.
        max_payload: Option<Size> = None,
    }
);

super::from!(
    /// `from` with `type = "nats"`
    "nats", {
        /// Where NATS is.
        url: Option<Pointed>,
        /// To log in with, as the user of the URL.
        password: Option<Pointed>,
        /// Or a token.
        token: Option<Pointed>,
        /// Or the seed of a key.
        nkey: Option<Pointed>,
        /// Or a file of credentials.
        credentials_file: Option<String>,
        /// A file with the certificates to trust.
        ca_file: Option<String>,
        /// A file with a certificate to show.
        certificate_file: Option<String>,
        /// And one with its key.
        key_file: Option<String>,
        /// Over TLS only.
        require_tls: bool,
        /// The subject.
        subject: Option<String>,
        /// The group; absent: the name of the consumer.
        group: Option<String>,
        /// As many as the destination has.
        partitions: Option<u16>,
        /// Make streams when they are missing.
        create: bool,
        /// How many servers hold each message of a stream that is made.
        replicas: Option<u8>,
        /// After which time its messages are dropped.
        max_age: Option<Span>,
        /// The subject of what cannot pass.
        dead_letters: Option<String>,
        /// After which a silent member is replaced.
        ack_wait: Option<Span>,
        /// Messages of a partition that are out.
        max_in_flight: Option<usize>,
        /// For one answer.
        timeout: Option<Span>,
        /// For name, TCP, TLS and login.
        connect_timeout: Option<Span>,
    }
);

#[cfg(feature = "nats")]
mod built {
    use counterfoil_nats::{Create, Nats, NatsSource, Settings, SettingsError, SourceSettings};

    use super::super::given;
    use super::*;

    /// The keys that both directions have.
    macro_rules! access {
        ($settings:ident, $section:ident, $at:ident) => {
            if let Some(password) = $at.optional("password", $section.password.as_ref())? {
                $settings = $settings.password(password);
            }
            if let Some(token) = $at.optional("token", $section.token.as_ref())? {
                $settings = $settings.token(token);
            }
            if let Some(seed) = $at.optional("nkey", $section.nkey.as_ref())? {
                $settings = $settings.nkey(seed);
            }
            if let Some(file) = &$section.credentials_file {
                $settings = $settings.credentials_file($at.file(file));
            }
            if let Some(file) = &$section.ca_file {
                $settings = $settings.ca_file($at.file(file));
            }
            match (&$section.certificate_file, &$section.key_file) {
                (Some(certificate), Some(key)) => {
                    let (certificate, key) = ($at.file(certificate), $at.file(key));
                    $settings = $settings.client_certificate(certificate, key);
                }
                (None, None) => {}
                _ => {
                    let text = "`certificate-file` and `key-file` go together";
                    $at.wrong("certificate-file", &text);
                    return None;
                }
            }
            if $section.require_tls {
                $settings = $settings.require_tls();
            }
            if $section.create {
                let mut create = Create::new();
                given!(create, $section, spans: [max_age], values: [replicas]);
                $settings = $settings.create(create);
            } else if $section.replicas.is_some() || $section.max_age.is_some() {
                $at.wrong("create", &"`replicas` and `max-age` need create = true");
                return None;
            }
        };
    }

    pub(crate) fn destination(
        section: &super::Nats,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Destination>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[
            ("password", section.password.as_ref()),
            ("token", section.token.as_ref()),
            ("nkey", section.nkey.as_ref()),
        ]);
        if section.subject.is_none() {
            at.missing("subject");
        }
        let mut settings = Settings::new(url?, section.subject.as_ref()?);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout],
            values: [partitions, source, max_batch]);
        if let Some(size) = section.max_payload {
            settings = settings.max_payload(size.0);
        }
        match Nats::new(settings) {
            Ok(destination) => Some(Arc::new(destination)),
            Err(error) => {
                at.wrong(key(&error), &error);
                None
            }
        }
    }

    pub(crate) fn source(
        section: &From,
        consumer: &str,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Source>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[
            ("password", section.password.as_ref()),
            ("token", section.token.as_ref()),
            ("nkey", section.nkey.as_ref()),
        ]);
        if section.subject.is_none() {
            at.missing("subject");
        }
        let group = section.group.as_deref().unwrap_or(consumer);
        let mut settings = SourceSettings::new(url?, section.subject.as_ref()?, group);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [ack_wait, timeout, connect_timeout],
            values: [partitions, dead_letters, max_in_flight]);
        match NatsSource::new(settings) {
            Ok(source) => Some(Arc::new(source)),
            Err(error) => {
                at.wrong(key(&error), &error);
                None
            }
        }
    }

    /// The key that is to blame.
    fn key(error: &SettingsError) -> &'static str {
        match error {
            SettingsError::TwoCredentials
            | SettingsError::EmptySecret
            | SettingsError::NoPassword
            | SettingsError::NoUser => "password",
            SettingsError::Subject(_) => "subject",
            SettingsError::Partitions(_) => "partitions",
            SettingsError::Name(_) => "group",
            SettingsError::Source(_) => "source",
            SettingsError::Replicas(_) => "replicas",
            SettingsError::MaxAge(_) => "max-age",
            SettingsError::Timeout(_) => "timeout",
            SettingsError::ConnectTimeout(_) => "connect-timeout",
            SettingsError::AckWait(_) => "ack-wait",
            SettingsError::MaxInFlight(_) => "max-in-flight",
            SettingsError::MaxBatch(_) => "max-batch",
            SettingsError::MaxPayload(_) => "max-payload",
            _ => "url",
        }
    }
}

#[cfg(not(feature = "nats"))]
mod built {
    use super::*;

    pub(crate) fn destination(_: &Nats, at: &mut At<'_, '_>) -> Option<Arc<dyn Destination>> {
        at.left_out("NATS", "nats");
        None
    }

    pub(crate) fn source(_: &From, _: &str, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        at.left_out("NATS", "nats");
        None
    }
}

pub(crate) use built::{destination, source};
