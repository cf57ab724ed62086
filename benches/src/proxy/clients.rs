//! Many callers that ask now and then, and what they cost the gateway.

use std::net::SocketAddr;
use std::time::Duration;

use tokio::task::{JoinSet, LocalSet};
use tokio::time::{Instant, sleep};

use super::Program;
use super::asker::{Ask, Line};

/// How often the process is looked at.
const LOOK: Duration = Duration::from_millis(250);

/// What a process took at the most.
#[derive(Debug, Clone, Copy, Default)]
pub struct Taken {
    /// Resident memory.
    pub rss_mb: f64,
    /// Sockets, of callers and to everything else.
    pub sockets: usize,
    /// Requests that were answered meanwhile.
    pub requests: u64,
}

/// So many callers at one time, each asking once in about `pause`, for a while. The kinds of
/// requests take turns.
pub fn many(
    address: SocketAddr,
    program: &Program,
    clients: usize,
    asks: &[Ask],
    pause: Duration,
    time: Duration,
) -> anyhow::Result<Taken> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    LocalSet::new().block_on(&runtime, async move {
        let mut lines = Vec::with_capacity(clients);
        for _ in 0..clients {
            lines.push(Line::connect(address).await?);
        }
        let until = Instant::now() + time;
        let mut workers = JoinSet::new();
        for (n, line) in lines.into_iter().enumerate() {
            let asks = asks.to_vec();
            let first = pause * u32::try_from(n)? / u32::try_from(clients)?;
            workers.spawn_local(work(line, n, asks, first, pause, until));
        }
        let mut taken = Taken::default();
        while Instant::now() < until {
            taken.rss_mb = taken.rss_mb.max(program.memory_mb("VmRSS"));
            taken.sockets = taken.sockets.max(program.sockets());
            sleep(LOOK).await;
        }
        while let Some(done) = workers.join_next().await {
            taken.requests += done??;
        }
        Ok(taken)
    })
}

async fn work(
    mut line: Line,
    n: usize,
    asks: Vec<Ask>,
    first: Duration,
    pause: Duration,
    until: Instant,
) -> anyhow::Result<u64> {
    let (mut asked, mut next) = (0_u64, Instant::now() + first);
    while next < until {
        tokio::time::sleep_until(next).await;
        let number = u64::try_from(n)? + asked * 1_000_000;
        let which = (number + asked) % u64::try_from(asks.len())?;
        line.ask(asks[usize::try_from(which)?], number).await?;
        asked += 1;
        next += pause;
    }
    Ok(asked)
}
