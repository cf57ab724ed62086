//! Kafka: `[destination.NAME]` and `from` with `type = "kafka"`.

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_core::source::Source;
use serde::Deserialize;

use super::super::at::At;
use super::super::file::destination;
use super::super::value::{Pointed, Size, Span};

/// How a password is shown to the broker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Mechanism {
    Plain,
    #[serde(rename = "scram-sha-256")]
    ScramSha256,
    #[serde(rename = "scram-sha-512")]
    ScramSha512,
}

destination!(
    /// `[destination.NAME]` with `type = "kafka"`
    Kafka, "kafka", {
        /// Where Kafka is.
        url: Option<Pointed> = None,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed> = None,
        /// How the password is shown.
        mechanism: Option<Mechanism> = None,
        /// A file with the certificates to trust.
        ca_file: Option<String> = None,
        /// The topic, perhaps with placeholders.
        topic: Option<String> = None,
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
    /// `from` with `type = "kafka"`
    "kafka", {
        /// Where Kafka is.
        url: Option<Pointed>,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed>,
        /// How the password is shown.
        mechanism: Option<Mechanism>,
        /// A file with the certificates to trust.
        ca_file: Option<String>,
        /// The topic.
        topic: Option<String>,
        /// The group; absent: the name of the consumer.
        group: Option<String>,
        /// Messages in memory.
        prefetch: Option<usize>,
        /// For one answer.
        timeout: Option<Span>,
        /// For name, TCP, TLS and login.
        connect_timeout: Option<Span>,
    }
);

#[cfg(feature = "kafka")]
mod built {
    use counterfoil_kafka::{
        Kafka, KafkaSource, Mechanism, Settings, SettingsError, SourceSettings,
    };

    use super::super::given;
    use super::*;

    /// The keys that both directions have.
    macro_rules! access {
        ($settings:ident, $section:ident, $at:ident) => {
            if let Some(password) = $at.optional("password", $section.password.as_ref())? {
                $settings = $settings.password(password);
            }
            if let Some(mechanism) = $section.mechanism {
                $settings = $settings.mechanism(match mechanism {
                    super::Mechanism::Plain => Mechanism::Plain,
                    super::Mechanism::ScramSha256 => Mechanism::ScramSha256,
                    super::Mechanism::ScramSha512 => Mechanism::ScramSha512,
                });
            }
            if let Some(file) = &$section.ca_file {
                $settings = $settings.ca_file($at.file(file));
            }
        };
    }

    pub(crate) fn destination(
        section: &super::Kafka,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Destination>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[("password", section.password.as_ref())]);
        if section.topic.is_none() {
            at.missing("topic");
        }
        let mut settings = Settings::new(url?, section.topic.as_ref()?);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout], values: [source, max_batch]);
        if let Some(size) = section.max_payload {
            settings = settings.max_payload(size.0);
        }
        match Kafka::new(settings) {
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
        let fine = at.look(&[("password", section.password.as_ref())]);
        if section.topic.is_none() {
            at.missing("topic");
        }
        let group = section.group.as_deref().unwrap_or(consumer);
        let mut settings = SourceSettings::new(url?, section.topic.as_ref()?, group);
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout], values: [prefetch]);
        match KafkaSource::new(settings) {
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
            SettingsError::TwoPasswords | SettingsError::EmptyPassword | SettingsError::NoUser => {
                "password"
            }
            SettingsError::CaWithoutTls | SettingsError::CaFile(_) => "ca-file",
            SettingsError::Topic(_) => "topic",
            SettingsError::Group => "group",
            SettingsError::Source(_) => "source",
            SettingsError::Timeout(_) => "timeout",
            SettingsError::ConnectTimeout(_) => "connect-timeout",
            SettingsError::MaxBatch(_) => "max-batch",
            SettingsError::MaxPayload(_) => "max-payload",
            SettingsError::Prefetch(_) => "prefetch",
            _ => "url",
        }
    }
}

#[cfg(not(feature = "kafka"))]
mod built {
    use super::*;

    pub(crate) fn destination(_: &Kafka, at: &mut At<'_, '_>) -> Option<Arc<dyn Destination>> {
        at.left_out("Kafka", "kafka");
        None
    }

    pub(crate) fn source(_: &From, _: &str, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        at.left_out("Kafka", "kafka");
        None
    }
}

pub(crate) use built::{destination, source};
