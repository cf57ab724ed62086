//! What both services have in common: where things are, and when to end.

use crate::broker;

/// Any error: a service that cannot start says why and ends.
pub type Any = Box<dyn std::error::Error + Send + Sync>;

/// Where things are, from the environment.
#[derive(Debug)]
pub struct Config {
    /// `DATABASE_URL`: `sqlite:FILE` or `postgres://…`.
    pub database: String,
    /// `BROKER_URL`: see [`broker`].
    pub broker: String,
    /// `LISTEN`: where this service answers.
    pub listen: String,
}

impl Config {
    /// Reads the environment. A service has a database and a port of its own.
    pub fn from_env(service: &str, port: u16) -> Self {
        let or = |name, default: String| std::env::var(name).unwrap_or(default);
        Self {
            database: or("DATABASE_URL", format!("sqlite:{service}.db")),
            broker: or("BROKER_URL", broker::DEFAULT.to_owned()),
            listen: or("LISTEN", format!("127.0.0.1:{port}")),
        }
    }
}

/// Ctrl-C, or the signal with which process managers ask.
pub async fn until_told_to_end() {
    let kind = tokio::signal::unix::SignalKind::terminate();
    let Ok(mut terminate) = tokio::signal::unix::signal(kind) else {
        let _ = tokio::signal::ctrl_c().await;
        return;
    };
    tokio::select! {
        _ = tokio::signal::ctrl_c() => {}
        _ = terminate.recv() => {}
    }
}
