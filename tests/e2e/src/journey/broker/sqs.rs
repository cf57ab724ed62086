//! A server that speaks SQS, with queues that keep the order of each aggregate.

use std::time::Duration;

use async_trait::async_trait;
use counterfoil_core::BoxError;
use counterfoil_sqs::{Settings, SourceSettings, Sqs, SqsSource};
use counterfoil_testkit::server::PrivateSqs;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::{Server, TIMEOUT, own_queue};

pub(super) async fn start() -> Option<Box<dyn Server>> {
    Some(Box::new(PrivateSqs::start().await?))
}

fn name(queue: &str) -> String {
    format!("{queue}.fifo")
}

pub(super) fn destination(url: &str, queue: &str) -> Result<Sqs, BoxError> {
    let settings = Settings::new(name(queue))
        .endpoint(url)
        .credentials("key", "secret")
        .timeout(TIMEOUT);
    Ok(Sqs::new(settings)?)
}

pub(super) fn source(url: &str, queue: &str) -> Result<SqsSource, BoxError> {
    let settings = SourceSettings::new(name(queue))
        .endpoint(url)
        .credentials("key", "secret")
        .wait(Duration::from_secs(1))
        .visibility(Duration::from_secs(3))
        .timeout(TIMEOUT * 2);
    Ok(SqsSource::new(settings)?)
}

/// As any program makes a queue: one request.
async fn make(url: &str, queue: &str) {
    let host = url.trim_start_matches("http://").trim_end_matches('/');
    let body = format!(
        "Action=CreateQueue&Version=2012-11-05&QueueName={}&Attribute.1.Name=FifoQueue&Attribute.1.Value=true",
        name(queue)
    );
    let request = format!(
        "POST / HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\
         content-type: application/x-www-form-urlencoded\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = TcpStream::connect(host).await.expect("nobody listens");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[async_trait]
impl Server for PrivateSqs {
    fn url(&self) -> String {
        self.url()
    }

    /// The messages are there after a kill, but not which groups were busy: later ones would come
    /// before earlier ones.
    fn survives(&self) -> bool {
        false
    }

    async fn kill(&mut self) {
        self.kill().await;
    }

    async fn restart(&mut self) {
        self.restart().await;
    }

    async fn pause(&mut self) {
        PrivateSqs::pause(self).await;
    }

    fn resume(&mut self) {
        PrivateSqs::resume(self);
    }

    async fn prepare(&self, consumers: &[&str]) {
        for consumer in consumers {
            make(&self.url(), &own_queue(consumer)).await;
        }
    }
}
