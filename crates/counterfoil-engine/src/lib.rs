//! The loops of Counterfoil.
//!
//! # Promise
//! Every committed message is offered to its destination at least once, always under the same id,
//! and messages of one aggregate in order. An [`Engine`] that is told to stop finishes what it has
//! begun, within a limit, and gives its shards back.
//!
//! # When it is dropped
//! Messages in flight stay owned until the lease runs out; then another relay offers them again.
//!
//! | module | what it does |
//! |---|---|
//! | `lifecycle` | start, nudge, drain |
//! | `relay` | the loop: reads, publishes, settles |
//! | `bounded` | a store whose operations end |
//! | `lanes` | the order of deliveries, without I/O |
//! | `queue` | what the relay knows about one queue |
//! | `publish` | one call of a destination: deadline, timeout, panic |
//! | `unsettled` | settlements that the store has not taken yet |
//! | `tasks` | handlers in this process as a destination |
//! | [`pipeline`] | calls of a dependency: retries inside a budget, breaker, bulkhead |
//! | [`consume`] | from a broker into the inbox |
//! | `settings` | settings, checked before anything starts |

mod bounded;
pub mod consume;
pub mod guard;
mod lanes;
mod lifecycle;
pub mod metric;
pub mod pipeline;
mod publish;
mod queue;
mod relay;
mod settings;
mod tasks;
mod unsettled;

pub use lifecycle::{Engine, EngineBuilder, Nudge, StartError};
pub use publish::panic_text;
pub use settings::{OnPark, QueueSpec, Settings, SettingsError};
pub use tasks::{
    Current, HandlerAnswer, Task, TaskError, TaskOptions, TaskRegistry, chain, queue_of_scene,
    task_message,
};
