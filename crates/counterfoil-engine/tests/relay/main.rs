//! The relay on an outbox in memory: order, retries, parking, tasks, drain.

mod failures;
mod order;
mod stopping;
mod support;
mod tasks;
