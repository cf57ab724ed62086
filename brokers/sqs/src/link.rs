//! The way to one queue.
//!
//! # Promise
//! Nothing is sent, and no credentials are looked for, before somebody needs the queue. A request
//! goes out once: who offers it again is the caller, who knows what that means. The URL of a queue
//! that is known by its name is asked for once it answers, and then kept.

use std::time::Duration;

use aws_config::timeout::TimeoutConfig;
use aws_config::{BehaviorVersion, Region};
use aws_sdk_sqs::Client;
use aws_sdk_sqs::config::Credentials;
use aws_sdk_sqs::config::retry::RetryConfig;
use aws_smithy_http_client::Builder;
use aws_smithy_http_client::tls::{Provider, rustls_provider::CryptoMode};
use tokio::sync::OnceCell;

use crate::classify::{Problem, problem};
use crate::place::Place;

/// The way to one queue.
pub(crate) struct Link {
    pub(crate) place: Place,
    connect_timeout: Duration,
    client: OnceCell<Client>,
    url: OnceCell<String>,
}

/// A queue that can be asked.
#[derive(Clone)]
pub(crate) struct Queue {
    pub(crate) client: Client,
    pub(crate) url: String,
    pub(crate) name: String,
    pub(crate) fifo: bool,
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(place: Place, connect_timeout: Duration) -> Self {
        Self {
            place,
            connect_timeout,
            client: OnceCell::new(),
            url: OnceCell::new(),
        }
    }

    /// The queue itself.
    pub(crate) async fn queue(&self) -> Result<Queue, Problem> {
        let client = self.client.get_or_try_init(|| self.open()).await?;
        let find = || async {
            match &self.place.url {
                Some(url) => Ok(url.clone()),
                None => url_of(client, &self.place.name, None).await,
            }
        };
        let url = self.url.get_or_try_init(find).await?;
        Ok(Queue {
            client: client.clone(),
            url: url.clone(),
            name: self.place.name.clone(),
            fifo: self.place.is_fifo(),
        })
    }

    async fn open(&self) -> Result<Client, Problem> {
        let http = Builder::new()
            .tls_provider(Provider::Rustls(CryptoMode::Ring))
            .build_https();
        let timeouts = TimeoutConfig::builder()
            .connect_timeout(self.connect_timeout)
            .build();
        let mut loader = aws_config::defaults(BehaviorVersion::v2026_01_12())
            .http_client(http)
            .timeout_config(timeouts)
            .retry_config(RetryConfig::disabled());
        if let Some(region) = &self.place.region {
            loader = loader.region(Region::new(region.clone()));
        }
        if let Some(endpoint) = &self.place.endpoint {
            loader = loader.endpoint_url(endpoint);
        }
        if let Some(keys) = &self.place.keys {
            let token = keys.token.clone();
            let (id, secret) = (keys.id.clone(), keys.secret.clone());
            loader =
                loader.credentials_provider(Credentials::new(id, secret, token, None, "settings"));
        }
        let config = Box::pin(loader.load()).await;
        if config.region().is_none() {
            let error = "no region: neither the settings nor the surroundings name one";
            return Err(Problem::Denied(error.into()));
        }
        Ok(Client::new(&config))
    }
}

/// The URL of a queue by its name, of another account if that is given.
pub(crate) async fn url_of(
    client: &Client,
    name: &str,
    account: Option<&str>,
) -> Result<String, Problem> {
    let request = client
        .get_queue_url()
        .queue_name(name)
        .set_queue_owner_aws_account_id(account.map(ToOwned::to_owned));
    let asked = Box::pin(request.send()).await.map_err(|e| problem(&e))?;
    let nothing = || Problem::Unconfirmed("SQS gave no URL for the queue".into());
    asked.queue_url.ok_or_else(nothing)
}
