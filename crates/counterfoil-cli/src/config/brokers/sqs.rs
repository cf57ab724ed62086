//! Amazon SQS: `[destination.NAME]` and `from` with `type = "sqs"`.

use std::sync::Arc;

use counterfoil_core::Destination;
use counterfoil_core::source::Source;

use super::super::at::At;
use super::super::file::destination;
use super::super::value::{Pointed, Size, Span};

destination!(
    /// `[destination.NAME]` with `type = "sqs"`
    Sqs, "sqs", {
        /// The queue: its name or its URL.
        queue: Option<Pointed> = None,
        /// Where requests go instead of the service in the region.
        endpoint: Option<Pointed> = None,
        /// The region.
        region: Option<String> = None,
        /// To sign with.
        access_key_id: Option<Pointed> = None,
        /// And its secret.
        secret_access_key: Option<Pointed> = None,
        /// And the token of a session.
        session_token: Option<Pointed> = None,
        /// Where messages say that they come from.
        source: Option<String> = None,
        /// For a whole batch.
        timeout: Option<Span> = None,
        /// For name, TCP and TLS.
        connect_timeout: Option<Span> = None,
        /// Messages in one call.
        max_batch: Option<usize> = None,
        /// The most bytes of a message.
        max_message: Option<Size> = None,
        /// Larger payloads are parked.
        max_payload: Option<Size> = None,
    }
);

super::from!(
    /// `from` with `type = "sqs"`
    "sqs", {
        /// The queue: its name or its URL.
        queue: Option<Pointed>,
        /// Where requests go instead of the service in the region.
        endpoint: Option<Pointed>,
        /// The region.
        region: Option<String>,
        /// To sign with.
        access_key_id: Option<Pointed>,
        /// And its secret.
        secret_access_key: Option<Pointed>,
        /// And the token of a session.
        session_token: Option<Pointed>,
        /// How long a request waits for messages.
        wait: Option<Span>,
        /// After which others get what a dead consumer had.
        visibility: Option<Span>,
        /// The name of the queue for dead letters.
        dead_letters: Option<String>,
        /// The most bytes of a message.
        max_message: Option<Size>,
        /// For one answer.
        timeout: Option<Span>,
        /// For name, TCP and TLS.
        connect_timeout: Option<Span>,
    }
);

#[cfg(feature = "sqs")]
mod built {
    use counterfoil_sqs::{Settings, SettingsError, SourceSettings, Sqs, SqsSource};

    use super::super::given;
    use super::*;

    /// The keys that both directions have.
    macro_rules! access {
        ($settings:ident, $section:ident, $at:ident) => {
            if let Some(url) = $at.optional("endpoint", $section.endpoint.as_ref())? {
                $settings = $settings.endpoint(url);
            }
            let id = $at.optional("access-key-id", $section.access_key_id.as_ref())?;
            let secret = $at.optional("secret-access-key", $section.secret_access_key.as_ref())?;
            let token = $at.optional("session-token", $section.session_token.as_ref())?;
            $settings = match (id, secret, token) {
                (Some(id), Some(secret), None) => $settings.credentials(id, secret),
                (Some(id), Some(secret), Some(token)) => {
                    $settings.session_credentials(id, secret, token)
                }
                (None, None, None) => $settings,
                _ => {
                    let text = "`access-key-id` and `secret-access-key` go together";
                    $at.wrong("access-key-id", &text);
                    return None;
                }
            };
            if let Some(size) = $section.max_message {
                $settings = $settings.max_message(size.0);
            }
        };
    }

    pub(crate) fn destination(
        section: &super::Sqs,
        at: &mut At<'_, '_>,
    ) -> Option<Arc<dyn Destination>> {
        let queue = at.needed("queue", section.queue.as_ref());
        at.look(&[
            ("endpoint", section.endpoint.as_ref()),
            ("access-key-id", section.access_key_id.as_ref()),
            ("secret-access-key", section.secret_access_key.as_ref()),
            ("session-token", section.session_token.as_ref()),
        ])?;
        let mut settings = Settings::new(queue?);
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout],
            values: [region, source, max_batch]);
        if let Some(size) = section.max_payload {
            settings = settings.max_payload(size.0);
        }
        match Sqs::new(settings) {
            Ok(destination) => Some(Arc::new(destination)),
            Err(error) => {
                at.wrong(key(&error), &error);
                None
            }
        }
    }

    pub(crate) fn source(section: &From, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        let queue = at.needed("queue", section.queue.as_ref());
        at.look(&[
            ("endpoint", section.endpoint.as_ref()),
            ("access-key-id", section.access_key_id.as_ref()),
            ("secret-access-key", section.secret_access_key.as_ref()),
            ("session-token", section.session_token.as_ref()),
        ])?;
        let mut settings = SourceSettings::new(queue?);
        access!(settings, section, at);
        given!(settings, section, spans: [timeout, connect_timeout, wait, visibility],
            values: [region, dead_letters]);
        match SqsSource::new(settings) {
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
            SettingsError::Endpoint(_) => "endpoint",
            SettingsError::Region(_) => "region",
            SettingsError::TwoCredentials | SettingsError::EmptyCredentials => "access-key-id",
            SettingsError::Source(_) => "source",
            SettingsError::Timeout(_) => "timeout",
            SettingsError::ConnectTimeout(_) => "connect-timeout",
            SettingsError::MaxBatch(_) => "max-batch",
            SettingsError::MaxMessage(_) => "max-message",
            SettingsError::MaxPayload(_) => "max-payload",
            SettingsError::Wait(_) => "wait",
            SettingsError::Visibility(_) => "visibility",
            SettingsError::DeadLetters(_) => "dead-letters",
            _ => "queue",
        }
    }
}

#[cfg(not(feature = "sqs"))]
mod built {
    use super::*;

    pub(crate) fn destination(_: &Sqs, at: &mut At<'_, '_>) -> Option<Arc<dyn Destination>> {
        at.left_out("SQS", "sqs");
        None
    }

    pub(crate) fn source(_: &From, at: &mut At<'_, '_>) -> Option<Arc<dyn Source>> {
        at.left_out("SQS", "sqs");
        None
    }
}

pub(crate) use built::{destination, source};
