//! RabbitMQ: `[destination.NAME]` and `from` with `type = "rabbitmq"`.

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_core::source::Source;

use super::super::at::At;
use super::super::file::destination;
use super::super::value::{Pointed, Size, Span};

destination!(
    /// `[destination.NAME]` with `type = "rabbitmq"`
    RabbitMq, "rabbitmq", {
        /// Where RabbitMQ is.
        url: Option<Pointed> = None,
        /// To log in as, when it does not stand in the URL.
        user: Option<Pointed> = None,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed> = None,
        /// A file with the certificates to trust.
        ca_file: Option<String> = None,
        /// The topic that groups read.
        topic: Option<String> = None,
        /// Or the queue that all share.
        queue: Option<String> = None,
        /// Or an exchange.
        exchange: Option<String> = None,
        /// With this routing key, perhaps with placeholders.
        routing_key: Option<String> = None,
        /// How many queues the queue is.
        partitions: Option<usize> = None,
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
    /// `from` with `type = "rabbitmq"`
    "rabbitmq", {
        /// Where RabbitMQ is.
        url: Option<Pointed>,
        /// To log in as, when it does not stand in the URL.
        user: Option<Pointed>,
        /// To log in with, when it does not stand in the URL.
        password: Option<Pointed>,
        /// A file with the certificates to trust.
        ca_file: Option<String>,
        /// The topic.
        topic: Option<String>,
        /// The group that reads it; absent: the name of the consumer.
        group: Option<String>,
        /// Or a queue that all share.
        queue: Option<String>,
        /// How many queues the group or queue is.
        partitions: Option<usize>,
        /// Declares nothing.
        passive: bool,
        /// Messages of a partition in memory.
        prefetch: Option<u16>,
        /// For one answer.
        timeout: Option<Span>,
        /// For name, TCP, TLS and login.
        connect_timeout: Option<Span>,
    }
);

#[cfg(feature = "rabbitmq")]
mod built {
    use counterfoil_rabbitmq::{RabbitMq, RabbitMqSource, Settings, SettingsError, SourceSettings};

    use super::super::given;
    use super::*;

    /// The keys that both directions have.
    macro_rules! access {
        ($settings:ident, $section:ident, $at:ident) => {
            if let Some(user) = $at.optional("user", $section.user.as_ref())? {
                $settings = $settings.user(user);
            }
            if let Some(password) = $at.optional("password", $section.password.as_ref())? {
                $settings = $settings.password(password);
            }
            if let Some(file) = &$section.ca_file {
                $settings = $settings.ca_file($at.file(file));
            }
        };
    }

    pub(crate) fn destination(
        section: &super::RabbitMq,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Destination>> {
        let url = at.needed("url", section.url.as_ref());
        let fine = at.look(&[
            ("user", section.user.as_ref()),
            ("password", section.password.as_ref()),
        ]);
        let places = (&section.topic, &section.queue, &section.exchange);
        let mut settings = match places {
            (Some(topic), None, None) => Settings::new(url?, topic),
            (None, Some(queue), None) => Settings::queue(url?, queue),
            (None, None, Some(exchange)) => {
                let key = section.routing_key.as_deref().unwrap_or_default();
                Settings::exchange(url?, exchange, key)
            }
            _ => {
                at.wrong("topic", &"write one of `topic`, `queue` and `exchange`");
                return None;
            }
        };
        if section.routing_key.is_some() && section.exchange.is_none() {
            at.wrong("routing-key", &"it needs an `exchange`");
            return None;
        }
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout],
            values: [partitions, source, max_batch]);
        if let Some(size) = section.max_payload {
            settings = settings.max_payload(size.0);
        }
        match RabbitMq::new(settings) {
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
            ("user", section.user.as_ref()),
            ("password", section.password.as_ref()),
        ]);
        let group = section.group.as_deref().unwrap_or(consumer);
        let mut settings = match (&section.topic, &section.queue) {
            (Some(topic), None) => SourceSettings::new(url?, topic, group),
            (None, Some(queue)) if section.group.is_none() => SourceSettings::queue(url?, queue),
            (None, Some(_)) => {
                at.wrong("group", &"all who read a `queue` share it: leave it out");
                return None;
            }
            _ => {
                at.wrong("topic", &"write one of `topic` and `queue`");
                return None;
            }
        };
        if section.passive {
            settings = settings.passive();
        }
        fine?;
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout],
            values: [partitions, prefetch]);
        match RabbitMqSource::new(settings) {
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
            SettingsError::TwoUsers | SettingsError::NoUser => "user",
            SettingsError::TwoPasswords | SettingsError::EmptyPassword => "password",
            SettingsError::CaFile(..) => "ca-file",
            SettingsError::Partitions(_) | SettingsError::NoPartitions => "partitions",
            SettingsError::Prefetch => "prefetch",
            SettingsError::Source(_) => "source",
            SettingsError::Timeout(_) => "timeout",
            SettingsError::ConnectTimeout(_) => "connect-timeout",
            SettingsError::MaxBatch(_) => "max-batch",
            SettingsError::MaxPayload(_) => "max-payload",
            _ => "url",
        }
    }
}

#[cfg(not(feature = "rabbitmq"))]
mod built {
    use super::*;

    pub(crate) fn destination(_: &RabbitMq, at: &mut At<'_, '_>) -> Option<Arc<dyn Destination>> {
        at.left_out("RabbitMQ", "rabbitmq");
        None
    }

    pub(crate) fn source(_: &From, _: &str, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        at.left_out("RabbitMQ", "rabbitmq");
        None
    }
}

pub(crate) use built::{destination, source};
