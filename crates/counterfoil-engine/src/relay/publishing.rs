//! Offering messages: who may be sent, what comes back, and what it says about the destination.

use std::sync::Arc;
use std::time::{Duration, Instant};

use counterfoil_core::policy::Class;
use counterfoil_core::policy::breaker::{Admission, State, Ticket};
use counterfoil_core::policy::budget::Taken;
use counterfoil_core::row::Delivery;
use counterfoil_core::store::Result;
use counterfoil_core::{Code, Outcome};

use super::{Done, Relay};
use crate::lifecycle::UNROUTED;
use crate::pipeline::Place;
use crate::publish::{self, Offered};
use crate::queue::Consequence;

/// How long a message that no route wants waits before it is looked at again.
const NO_ROUTE_PAUSE: Duration = Duration::from_secs(300);

/// Leave to make one call.
struct Leave {
    ticket: Ticket,
    place: Place,
}

impl Relay {
    pub(super) fn start_publish(&mut self, index: usize, now: Instant) {
        // Nothing is sent by a relay that may not be the owner any more.
        let live = self.deadline().is_some_and(|until| now < until);
        while live && !self.stopping && self.queues[index].may_publish() {
            let queue = &mut self.queues[index];
            let alone = queue.suspects > 0;
            let probe = queue.dependency.state() != State::Closed;
            let max = if alone { 1 } else { queue.caps.max_batch };
            let batch = match probe {
                true => queue.lanes.next_probe(),
                false => queue.lanes.next_batch(max),
            };
            let (batch, retries) = self.sort_out(index, batch);
            if batch.is_empty() {
                continue;
            }
            let queue = &mut self.queues[index];
            // The place first: a probe that is admitted and not made would be lost.
            let place = queue.dependency.try_enter();
            let leave = place.and_then(|place| match queue.dependency.admit() {
                Admission::Go(ticket) => Some(Leave { ticket, place }),
                _ => None,
            });
            let Some(leave) = leave else {
                // An operator was faster, or another relay in this process.
                batch.into_iter().for_each(|d| queue.lanes.put_back(d));
                for taken in retries {
                    queue.dependency.give_back(taken);
                }
                return;
            };
            self.spawn_publish(index, batch, alone, leave);
        }
    }

    /// Parks what cannot be delivered, and routes what has no queue yet. The rest is published, some
    /// of it as retries that the budget has allowed.
    fn sort_out(&mut self, index: usize, batch: Vec<Delivery>) -> (Vec<Delivery>, Vec<Taken>) {
        let unrouted = &**self.queues[index].name() == UNROUTED;
        let mut rest = Vec::with_capacity(batch.len());
        let mut retries = Vec::new();
        for mut delivery in batch {
            let queue = &mut self.queues[index];
            if let Some(defect) = delivery.defect.take() {
                let mut park = queue.park(&delivery, Code::VALIDATION_ERROR, defect, false);
                // It was never offered to anybody.
                park.attempts = delivery.attempt - 1;
                queue.lanes.park(&delivery, park);
            } else if unrouted {
                let targets = self.routes.queues(&delivery.event_type);
                let copies: Vec<_> = match targets.as_slice() {
                    [] => Vec::new(),
                    // One destination: the message keeps its id.
                    [one] => vec![(delivery.id, (*one).to_owned())],
                    many => many
                        .iter()
                        .map(|q| (delivery.id.derive(q), (*q).to_owned()))
                        .collect(),
                };
                if copies.is_empty() {
                    queue.lanes.deferred(&delivery, NO_ROUTE_PAUSE);
                } else {
                    queue.lanes.rerouted(&delivery, copies);
                }
                self.rerouted = true;
            } else if delivery.attempt > 1 && queue.suspects == 0 {
                match queue.dependency.take_retry() {
                    Some(taken) => {
                        retries.push(taken);
                        rest.push(delivery);
                    }
                    None => queue.postpone(delivery, &mut self.rng),
                }
            } else {
                rest.push(delivery);
            }
        }
        (rest, retries)
    }

    fn spawn_publish(
        &mut self,
        index: usize,
        mut batch: Vec<Delivery>,
        alone: bool,
        Leave { ticket, place }: Leave,
    ) {
        let queue = &mut self.queues[index];
        queue.publishing += 1;
        let destination = Arc::clone(&queue.spec.destination);
        let timeout = queue.caps.timeout;
        if alone && let Some(delivery) = batch.pop() {
            queue.suspects -= 1;
            let row = queue.lanes.key(&delivery);
            let shards = [delivery.shard].into_iter().collect();
            let fence = self.queues[index].fence(&self.relay_id(), shards);
            let store = Arc::clone(&self.store);
            self.ops.spawn(async move {
                let outcomes =
                    publish::publish_suspect(store, fence, destination, (delivery, row), timeout)
                        .await;
                drop(place);
                Done::Published {
                    queue: index,
                    outcomes,
                    suspect: true,
                    ticket,
                }
            });
        } else {
            self.ops.spawn(async move {
                let outcomes = publish::publish(destination, batch, timeout).await;
                drop(place);
                Done::Published {
                    queue: index,
                    outcomes,
                    suspect: false,
                    ticket,
                }
            });
        }
    }

    pub(super) fn published(
        &mut self,
        index: usize,
        outcomes: Vec<Offered>,
        suspect: bool,
        ticket: Ticket,
    ) {
        let queue = &mut self.queues[index];
        queue.publishing -= 1;
        queue.prompt |= suspect;
        let (mut stored, mut consequence, mut class) = (0, Consequence::Nothing, None);
        for (delivery, outcome) in outcomes {
            let Some(outcome) = outcome else {
                // It stands in the store as before: what follows it must not overtake it.
                queue.lanes.forget(&delivery);
                queue.start_over();
                continue;
            };
            let said = queue.class(delivery.lane(), &outcome, ticket.is_probe());
            class = better(class, said);
            if let (Some(Class::Failed(_)), Some(error)) = (said, outcome.error()) {
                queue.dependency.failed_with(&error);
            }
            match &outcome {
                Outcome::Stored => stored += 1,
                other => {
                    metrics::counter!(
                        "counterfoil_failures_total",
                        "queue" => queue.name().to_string(), "outcome" => other.label()
                    )
                    .increment(1);
                }
            }
            let next = match outcome {
                Outcome::Unavailable { error } if suspect => queue.exonerate(delivery, error),
                outcome => queue.outcome(delivery, outcome, &mut self.rng),
            };
            if next != Consequence::Nothing {
                consequence = next;
            }
        }
        metrics::counter!("counterfoil_delivered_total", "queue" => queue.name().to_string())
            .increment(stored);
        queue.dependency.succeeded_times(stored);
        if let Some(class) = class {
            queue.dependency.record(ticket, class);
        }
        if suspect && queue.suspects == 0 {
            tracing::info!(
                queue = &**queue.name(),
                "what the dead relay left has been tried one by one"
            );
        }
        if suspect && !queue.lanes.has_ready() && queue.lanes.len() <= 1 {
            // Nothing more was left behind.
            queue.suspects = 0;
        }
        self.follow(index, consequence, ticket.is_probe());
    }

    fn follow(&mut self, index: usize, consequence: Consequence, probe: bool) {
        let queue = &mut self.queues[index];
        let (store, name) = (Arc::clone(&self.store), Arc::clone(queue.name()));
        match consequence {
            Consequence::Nothing => {}
            Consequence::Available => {
                tracing::info!(queue = &*name, "the destination answers again");
                self.ops.spawn(async move {
                    let result = store.note_unavailable(&name, false).await;
                    Done::Unavailable {
                        queue: index,
                        result,
                    }
                });
            }
            Consequence::Unavailable(error) => {
                let known = std::mem::replace(&mut queue.unavailable, true);
                if known && !probe {
                    return;
                }
                if !known {
                    tracing::warn!(
                        queue = &*name,
                        destination = queue.spec.destination.describe(),
                        error,
                        "nobody answers"
                    );
                }
                self.ops.spawn(async move {
                    let result = store.note_unavailable(&name, true).await;
                    Done::Unavailable {
                        queue: index,
                        result,
                    }
                });
            }
        }
    }

    pub(super) fn noted_unavailable(&mut self, index: usize, result: Result<Option<Duration>>) {
        match result {
            Err(error) => tracing::warn!(
                error = error.one_line(),
                "could not note that nobody answers"
            ),
            Ok(since) => {
                let over = since.is_some_and(|s| s >= self.settings.patience);
                self.queues[index].patience_over = over;
            }
        }
    }
}

/// What a call says about its destination when its messages fared differently: the best of it,
/// because whoever takes one message is alive.
fn better(a: Option<Class>, b: Option<Class>) -> Option<Class> {
    let rank = |class: &Option<Class>| match class {
        None => 0,
        Some(Class::Failed(_)) => 1,
        Some(Class::Throttled { .. }) => 2,
        Some(Class::Refused) => 3,
        Some(Class::Success) => 4,
    };
    std::cmp::max_by_key(a, b, rank)
}
