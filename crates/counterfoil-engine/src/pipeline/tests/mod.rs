//! Time is paused: it moves when everybody waits, and by exactly what they wait for.

mod limits;
mod retries;
mod shared;
mod turned_away;

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use ::http::{Request, Response};
use counterfoil_core::policy::backoff::Jitter;
use tokio::time::Instant;
use tower::util::BoxCloneSyncService;
use tower::{Layer, ServiceExt, service_fn};

use super::*;

const MS: Duration = Duration::from_millis(1);
const S: Duration = Duration::from_secs(1);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Broken;

type Answer = Result<Response<()>, CallError<Broken>>;
type Client = BoxCloneSyncService<Request<()>, Response<()>, CallError<Broken>>;

/// What the dependency does with one call.
#[derive(Debug, Clone, Copy)]
enum Act {
    Status(u16),
    /// A status with `Retry-After` in seconds.
    Later(u16, u32),
    Broken,
    /// Answers 200 after this time.
    After(Duration),
    Hang,
    Panic,
}

/// A dependency that does as it is told, and the last thing for ever.
#[derive(Clone)]
struct Upstream {
    script: Arc<Mutex<VecDeque<Act>>>,
    calls: Arc<Mutex<Vec<Instant>>>,
}

impl Upstream {
    fn new(script: &[Act]) -> Self {
        Self {
            script: Arc::new(Mutex::new(script.iter().copied().collect())),
            calls: Arc::default(),
        }
    }

    fn then(&self, script: &[Act]) {
        *self.script.lock().unwrap() = script.iter().copied().collect();
    }

    fn calls(&self) -> usize {
        self.calls.lock().unwrap().len()
    }

    async fn act(self) -> Result<Response<()>, Broken> {
        let act = {
            self.calls.lock().unwrap().push(Instant::now());
            let mut script = self.script.lock().unwrap();
            let next = script.pop_front().unwrap();
            if script.is_empty() {
                script.push_back(next);
            }
            next
        };
        let mut answer = Response::new(());
        match act {
            Act::Status(status) => *answer.status_mut() = status.try_into().unwrap(),
            Act::Later(status, seconds) => {
                *answer.status_mut() = status.try_into().unwrap();
                answer.headers_mut().insert("retry-after", seconds.into());
            }
            Act::Broken => return Err(Broken),
            Act::After(time) => tokio::time::sleep(time).await,
            Act::Hang => std::future::pending().await,
            Act::Panic => panic!("as told"),
        }
        Ok(answer)
    }

    fn behind(&self, dependency: &Arc<Dependency>) -> Client {
        let upstream = self.clone();
        let call = service_fn(move |_: Request<()>| upstream.clone().act());
        BoxCloneSyncService::new(dependency.stack(Http).layer(call))
    }
}

/// No jitter, and nothing that stops a test by accident.
fn limits() -> Limits {
    let mut limits = Limits::default();
    limits.backoff = limits.backoff.with_jitter(Jitter::None);
    limits.deadline = 60 * S;
    limits.budget.floor = 1_000;
    limits.breaker.consecutive = None;
    limits.breaker.min_calls = 1_000;
    limits
}

fn dependency(change: impl FnOnce(&mut Limits)) -> Arc<Dependency> {
    let mut limits = limits();
    change(&mut limits);
    Dependency::new("stock", limits).unwrap()
}

fn get() -> Request<()> {
    Request::new(())
}

fn post(header: Option<&'static str>) -> Request<()> {
    let mut request = Request::builder().method("POST");
    if let Some(name) = header {
        request = request.header(name, "one");
    }
    request.body(()).unwrap()
}

async fn send(client: &Client, request: Request<()>) -> Answer {
    client.clone().oneshot(request).await
}

fn report(answer: &Answer) -> Report {
    *answer.as_ref().unwrap().extensions().get().unwrap()
}

fn status(answer: &Answer) -> u16 {
    answer.as_ref().unwrap().status().as_u16()
}
