//! The connection.
//!
//! # Promise
//! Whoever asks for a connection has one that answered a moment ago, or a failure within the connect
//! timeout, and nothing of a message was sent meanwhile. One connection serves all. One that broke,
//! or that left somebody without an answer, is not given to anybody again.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use counterfoil_core::{Code, Outcome};
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Pipeline, RedisError, Value, cmd, pipe};
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use crate::classify::{refusal, why};
use crate::durability;
use crate::settings::{Checked, Login};

/// A connection that nobody used for so long may be gone without our knowing: it is asked first.
const REST: Duration = Duration::from_secs(1);

/// The way to one Redis.
pub(crate) struct Link {
    client: Client,
    login: Login,
    shown: String,
    connect_timeout: Duration,
    max_payload: usize,
    live: Mutex<Option<Live>>,
    /// Whether the server's settings were looked at.
    looked: Arc<AtomicBool>,
}

/// A connection that several use.
#[derive(Clone)]
pub(crate) struct Live {
    pub(crate) connection: MultiplexedConnection,
    /// Somebody found out that it is no good.
    over: Arc<AtomicBool>,
    used: Instant,
}

impl Link {
    /// Opens nothing yet.
    pub(crate) fn new(checked: &mut Checked) -> Result<Self, RedisError> {
        let login = Login {
            user: checked.login.user.take(),
            password: checked.login.password.take(),
            database: checked.login.database,
        };
        Ok(Self {
            client: Client::open(checked.server.clone())?,
            login,
            shown: checked.shown.clone(),
            connect_timeout: checked.connect_timeout,
            max_payload: checked.max_payload,
            live: Mutex::default(),
            looked: Arc::default(),
        })
    }

    /// A connection that answers. The failure is the outcome of everything that was to be sent.
    pub(crate) async fn take(&self) -> Result<Live, Outcome> {
        // Waiting for somebody else who connects counts too.
        match timeout(self.connect_timeout, self.find()).await {
            Ok(found) => found,
            Err(_) => Err(Outcome::Unavailable {
                error: format!("Redis did not answer within {:?}", self.connect_timeout),
            }),
        }
    }

    /// Nobody gets this connection any more. Waits for nobody.
    pub(crate) fn discard(&self, broken: &Live) {
        broken.over.store(true, Ordering::Relaxed);
        // Closed now, unless somebody is busy here, who will see that it is over.
        if let Ok(mut live) = self.live.try_lock()
            && live.as_ref().is_some_and(Live::is_over)
        {
            *live = None;
        }
    }

    async fn find(&self) -> Result<Live, Outcome> {
        let mut live = self.live.lock().await;
        // Taken out: when we are cut off while we ask, it does not answer, and nobody gets it.
        if let Some(mut present) = live.take().filter(|live| !live.is_over()) {
            let fresh = present.used.elapsed() < REST;
            if fresh || present.answers().await {
                present.used = Instant::now();
                *live = Some(present.clone());
                return Ok(present);
            }
        }
        let opened = self.open().await?;
        *live = Some(opened.clone());
        Ok(opened)
    }

    async fn open(&self) -> Result<Live, Outcome> {
        // Who waits has a limit of its own.
        let config = AsyncConnectionConfig::new()
            .set_connection_timeout(None)
            .set_response_timeout(None);
        let unavailable = |error: RedisError| Outcome::Unavailable { error: why(&error) };
        let mut connection = self
            .client
            .get_multiplexed_async_connection_with_config(&config)
            .await
            .map_err(unavailable)?;
        let hello = self.login.hello();
        let answers: Vec<Value> = hello
            .query_async(&mut connection)
            .await
            .map_err(unavailable)?;
        if let Some(refused) = self.login.refused(&answers) {
            return Err(refused);
        }
        self.look_once(&connection);
        Ok(Live {
            connection,
            over: Arc::default(),
            used: Instant::now(),
        })
    }

    /// Looks at the server's settings in the background: nobody waits for it.
    fn look_once(&self, connection: &MultiplexedConnection) {
        if self.looked.swap(true, Ordering::Relaxed) {
            return;
        }
        let (connection, looked) = (connection.clone(), Arc::clone(&self.looked));
        let (shown, max_payload) = (self.shown.clone(), self.max_payload);
        tokio::spawn(async move {
            if !durability::look(connection, &shown, max_payload).await {
                // The connection broke; the next one is as good.
                looked.store(false, Ordering::Relaxed);
            }
        });
    }
}

impl Live {
    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// Whether somebody is there. An error that Redis gives is an answer too.
    async fn answers(&mut self) -> bool {
        let mut question = pipe();
        question.ignore_errors().cmd("PING");
        let answer: Result<Vec<Value>, _> = question.query_async(&mut self.connection).await;
        answer.is_ok()
    }
}

impl Login {
    /// What a new connection says. The last question shows that Redis answers at all: a system
    /// accepts connections in the name of a process that hangs.
    fn hello(&self) -> Pipeline {
        let mut hello = pipe();
        hello.ignore_errors();
        if let Some(password) = &self.password {
            let mut auth = cmd("AUTH");
            if let Some(user) = &self.user {
                auth.arg(user);
            }
            auth.arg(password);
            hello.add_command(auth);
        }
        if self.database != 0 {
            hello.cmd("SELECT").arg(self.database);
        }
        hello.cmd("PING");
        hello
    }

    /// Why we are not let in. Nothing was sent: what is not refused for good is only unavailable.
    fn refused(&self, answers: &[Value]) -> Option<Outcome> {
        let last = answers.len().saturating_sub(1);
        let first = answers.iter().enumerate().find_map(|(i, answer)| {
            let Value::ServerError(error) = answer else {
                return None;
            };
            Some((i, error))
        });
        let (i, error) = first?;
        let wrong_settings = i < last && error.code() == "ERR";
        Some(match refusal(error) {
            refused @ Outcome::DestinationRefused { .. } => refused,
            Outcome::Retry { error, .. } | Outcome::Refused { error, .. } if wrong_settings => {
                // No password is wanted, or there is no such database.
                Outcome::DestinationRefused {
                    code: Code::DESTINATION_REFUSED,
                    error,
                }
            }
            Outcome::Retry { error, .. } | Outcome::Refused { error, .. } => {
                Outcome::Unavailable { error }
            }
            other => other,
        })
    }
}
