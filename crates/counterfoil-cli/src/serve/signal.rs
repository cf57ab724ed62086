//! SIGTERM and SIGINT: the first asks to stop, the second insists.

use std::future::Future;

use tokio::sync::watch;

use crate::failure::Result;

/// Counts the signals that have come.
pub(crate) struct Signals {
    count: watch::Receiver<u32>,
}

impl Signals {
    /// From now on a signal no longer ends the process by itself.
    pub(crate) fn listen() -> Result<Self> {
        let (tell, count) = watch::channel(0);
        #[cfg(unix)]
        {
            use tokio::signal::unix::{SignalKind, signal};
            let mut terminate = signal(SignalKind::terminate())?;
            let mut interrupt = signal(SignalKind::interrupt())?;
            tokio::spawn(async move {
                loop {
                    tokio::select! {
                        _ = terminate.recv() => {}
                        _ = interrupt.recv() => {}
                    }
                    tell.send_modify(|n| *n += 1);
                }
            });
        }
        #[cfg(not(unix))]
        tokio::spawn(async move {
            while tokio::signal::ctrl_c().await.is_ok() {
                tell.send_modify(|n| *n += 1);
            }
        });
        Ok(Self { count })
    }

    /// Returns when a signal has come.
    pub(crate) fn first(&self) -> impl Future<Output = ()> + Send + 'static {
        self.at_least(1)
    }

    /// Returns when a second one has come.
    pub(crate) fn second(&self) -> impl Future<Output = ()> + Send + 'static {
        self.at_least(2)
    }

    fn at_least(&self, wanted: u32) -> impl Future<Output = ()> + Send + 'static {
        let mut count = self.count.clone();
        async move {
            // Without a sender nobody can ask any more: then only SIGKILL ends us.
            if count.wait_for(|n| *n >= wanted).await.is_err() {
                std::future::pending::<()>().await;
            }
        }
    }
}
