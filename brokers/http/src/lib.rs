//! Webhooks: a queue whose destination is a URL.
//!
//! # Promise
//! Every message is offered as one signed POST, always under the same id. It counts as stored only
//! after a complete 2xx answer. Every other answer, and every way of getting none, has an outcome
//! that says whether the receiver may have seen the message. No request goes to a private address
//! unless that is allowed, and none follows a redirect or a proxy setting of the environment.
//!
//! # When it is dropped
//! Connections close. A request in flight is cut off, and the receiver may have seen it: the relay
//! offers it again under the same id.
//!
//! ```no_run
//! use counterfoil_webhook::{Secret, Settings, WebhookDestination};
//!
//! let secret = Secret::parse(&std::env::var("WEBHOOK_SECRET")?)?;
//! let destination = WebhookDestination::new(Settings::signed("https://example.com/hook", [secret]))?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # Why hyper's connections and no ready-made client
//! We dial ourselves, so that the address that was checked is the address that is used, and so
//! that every failure is known to lie before or after the request was sent.
//!
//! | module | what lives there |
//! |---|---|
//! | `settings` | what can be configured, and what is refused |
//! | `endpoint` | the URL, taken apart and checked |
//! | `address` | which addresses are public |
//! | `connect` | name, address, TCP, TLS; in that order and nothing sent |
//! | `tls` | whom we believe when a connection is encrypted |
//! | `pool` | connections that wait for the next message |
//! | `request` | the headers that a receiver sees |
//! | `signature` | Standard Webhooks: signing and verifying |
//! | `classify` | what an answer means |
//! | `destination` | all of it together |

mod address;
mod classify;
mod connect;
mod destination;
mod endpoint;
mod pool;
mod request;
mod settings;
mod signature;
mod tls;

pub use classify::MAX_RETRY_AFTER;
pub use destination::WebhookDestination;
pub use settings::{Settings, SettingsError};
pub use signature::{Secret, SecretError, VerifyError, verify};
