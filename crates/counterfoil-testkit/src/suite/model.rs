//! Any sequence of calls gives the same answers as on the memory store.

use chrono::Utc;
use counterfoil_core::desk::{Entry, Filter};
use counterfoil_core::message::{Message, MessageId};
use counterfoil_core::row::RawRow;
use counterfoil_core::store::{Park, Settlement};

use crate::fixture::{
    Fixture, LATER, OTHER, PLENTY, QUEUE, Relay, id, keyed, keys, message, park, retry,
};
use crate::harness::Harness;
use crate::memory::MemoryHarness;
use crate::suite::Seed;

const STEPS: usize = 300;
const QUEUES: [&str; 2] = [QUEUE, OTHER];

/// One step, the same for both stores.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<Message>),
    TakeBack(Vec<Message>),
    PutKeyed(Message, String),
    Sent(MessageId, bool),
    Retry(MessageId),
    Hold(MessageId),
    Schedule(MessageId),
    Defer(MessageId),
    Park(MessageId, bool),
    Reroute(MessageId, &'static str),
    Suspect(MessageId),
    Cancel(MessageId),
    Redrive(Vec<MessageId>, bool),
    Ignore(Vec<MessageId>),
    Pause(&'static str),
    Resume(&'static str),
    MakeDue,
    ChangeHands,
}

/// One of the two stores.
struct Side<H: Harness> {
    t: Fixture<H>,
    relay: Relay,
}

impl<H: Harness> Side<H> {
    async fn new(t: Fixture<H>) -> Self {
        let relay = t.relay(&QUEUES).await;
        Self { t, relay }
    }

    async fn visible(&self) -> Vec<(&'static str, RawRow)> {
        let mut all = Vec::new();
        for queue in QUEUES {
            all.extend(
                self.relay
                    .everything(queue)
                    .await
                    .into_iter()
                    .map(|r| (queue, r)),
            );
        }
        all
    }

    async fn settle(&self, message: MessageId, say: impl FnOnce(&RawRow) -> Settlement) {
        let all = self.visible().await;
        let (queue, row) = all
            .iter()
            .find(|(_, r)| id(r) == message)
            .expect("visible on one side");
        self.relay.settle(queue, &say(row)).await;
    }

    async fn apply(&mut self, step: &Step) -> String {
        let (t, nothing) = (&self.t, Settlement::default);
        let one = |row: &RawRow| keys(std::slice::from_ref(row));
        match step.clone() {
            Step::Put(messages) => t.put(&messages).await,
            Step::TakeBack(messages) => {
                let mut tx = t.harness.begin().await;
                t.harness.enqueue(&mut tx, &messages).await.unwrap();
                t.harness.rollback(tx).await;
            }
            Step::PutKeyed(message, key) => {
                return format!("{:?}", t.put_keyed(&keyed(message, "task", &key)).await);
            }
            Step::Sent(m, keep_sent) => {
                self.settle(m, |r| Settlement {
                    sent: one(r),
                    keep_sent,
                    ..nothing()
                })
                .await;
            }
            Step::Retry(m) => {
                let say = |r: &RawRow| Settlement {
                    retry: vec![retry(r, LATER)],
                    ..nothing()
                };
                self.settle(m, say).await;
            }
            Step::Hold(m) => {
                self.settle(m, |r| Settlement {
                    hold: one(r),
                    ..nothing()
                })
                .await;
            }
            Step::Schedule(m) => {
                self.settle(m, |r| Settlement {
                    schedule: one(r),
                    ..nothing()
                })
                .await;
            }
            Step::Defer(m) => {
                let defer = |r: &RawRow| vec![(r.key(), LATER)];
                self.settle(m, |r| Settlement {
                    defer: defer(r),
                    ..nothing()
                })
                .await;
            }
            Step::Park(m, hold) => {
                let park = |r: &RawRow| vec![Park { hold, ..park(r) }];
                self.settle(m, |r| Settlement {
                    park: park(r),
                    ..nothing()
                })
                .await;
            }
            Step::Reroute(m, queue) => {
                let copies = vec![(m.derive(queue), queue.to_owned())];
                let reroute = |r: &RawRow| counterfoil_core::store::Reroute {
                    row: r.key(),
                    copies,
                };
                self.settle(m, |r| Settlement {
                    reroute: vec![reroute(r)],
                    ..nothing()
                })
                .await;
            }
            Step::Suspect(m) => {
                let all = self.visible().await;
                let (queue, row) = all.iter().find(|(_, r)| id(r) == m).unwrap();
                let fence = self.relay.fence(queue);
                return format!(
                    "{:?}",
                    self.relay.store.suspect(&fence, &row.key()).await.unwrap()
                );
            }
            Step::Cancel(m) => {
                return t
                    .desk
                    .cancel(&m.to_string(), "a reason", "ann")
                    .await
                    .unwrap()
                    .to_string();
            }
            Step::Redrive(ids, confirmed) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                let answer = t.desk.redrive(&ids, confirmed, "ann").await.unwrap();
                return format!("{:?} {:?}", answer.redriven, answer.refused);
            }
            Step::Ignore(ids) => {
                let ids: Vec<String> = ids.iter().map(ToString::to_string).collect();
                let answer = t.desk.ignore(&ids, "a reason", "ann").await.unwrap();
                return format!("{:?} {:?}", answer.ignored, answer.refused);
            }
            Step::Pause(queue) => t.desk.pause_queue(queue, "a reason", "ann").await.unwrap(),
            Step::Resume(queue) => {
                return t.desk.resume_queue(queue, "ann").await.unwrap().to_string();
            }
            Step::MakeDue => t.harness.make_due().await,
            Step::ChangeHands => {
                self.relay.store.leave(&self.relay.id).await.unwrap();
                self.relay = t.relay(&QUEUES).await;
            }
        }
        String::new()
    }

    /// Everything that can be seen from outside, without times, numbers and shards.
    async fn view(&self, asked: Option<MessageId>) -> Vec<String> {
        let desk = &self.t.desk;
        let mut lines = vec![format!("{:?}", desk.audit().await.unwrap())];
        for queue in QUEUES {
            let mut add = |way: &str, rows: &[RawRow]| {
                let line = |(n, row)| format!("{queue}: {way} {n}: {}", show(row));
                lines.extend(rows.iter().enumerate().map(line));
            };
            add("read", &self.relay.read(queue).await);
            let mut waiting = self.relay.waiting(queue).await;
            // Two clocks may order what comes due within a millisecond differently.
            waiting.sort_by_key(|row| row.seq);
            add("waiting", &waiting);
            let lanes = self.relay.runnable(queue).await;
            add(
                "lane",
                &self
                    .relay
                    .store
                    .read_lanes(queue, &lanes, 3, PLENTY)
                    .await
                    .unwrap()
                    .rows,
            );
            lines.extend(lanes.iter().map(|lane| format!("{queue}: runnable {lane}")));
        }
        for state in ["pending", "redriven", "delivered", "ignored"] {
            let filter = Filter {
                state: Some(state.into()),
                limit: 1_000,
                ..Filter::default()
            };
            let entries = desk.parked(&filter).await.unwrap();
            let line = |e: &Entry| format!("parked, {state}: {} {}", e.id, e.attempts);
            lines.extend(entries.iter().map(line));
        }
        for mut queue in self.t.stats().await {
            queue.oldest_seconds = None;
            lines.push(format!("{queue:?}"));
        }
        if let Some(asked) = asked {
            let sentence = desk.facts(&asked.to_string()).await.unwrap().sentence();
            lines.push(mask_times(
                &sentence.replace(self.relay.id.as_str(), "the relay"),
            ));
        }
        lines
    }
}

/// What one has and the other has not.
fn difference(seen: &[String], wanted: &[String]) -> String {
    let only = |these: &[String], those: &[String], word: &str| -> String {
        let missing = these.iter().filter(|line| !those.contains(line));
        missing.map(|line| format!("\n  {word} {line}")).collect()
    };
    only(wanted, seen, "missing ") + &only(seen, wanted, "too much")
}

fn show(row: &RawRow) -> String {
    format!(
        "{} {:?} v{:?} attempts {} crashes {} early {} behind {}",
        id(row),
        row.state,
        row.version,
        row.attempts,
        row.crashes,
        row.early,
        row.behind
    )
}

/// `2025-06-30 12:00:00 UTC` becomes `# # UTC`. The end of a lease goes altogether: a store without
/// leases has none to tell.
fn mask_times(sentence: &str) -> String {
    let words: Vec<&str> = sentence.split(' ').collect();
    let time = |w: &str| w.len() > 7 && w.chars().all(|c| c.is_ascii_digit() || "-:.".contains(c));
    words
        .into_iter()
        .map(|w| if time(w) { "#" } else { w })
        .collect::<Vec<_>>()
        .join(" ")
        .replace(" until # # UTC", "")
}

/// Chooses a step that makes sense in what the model shows.
async fn choose(seed: &mut Seed, model: &Side<MemoryHarness>, known: &[MessageId]) -> Step {
    let visible = model.visible().await;
    let lot = model.t.desk.parked(&Filter::default()).await.unwrap();
    let (queue, other) = if seed.below(2) == 0 {
        (QUEUE, OTHER)
    } else {
        (OTHER, QUEUE)
    };
    let mut new = || {
        let mut m = message(seed.below(4), 0).queue(queue);
        match seed.below(8) {
            0 => m.aggregate = None,
            1 => m = m.not_before(Utc::now() + LATER),
            2 => m = m.not_before(Utc::now() - LATER),
            _ => {}
        }
        m
    };
    let some = vec![new(), new()];
    let any = |seed: &mut Seed| known.get(seed.below(known.len().max(1))).copied();
    let row = visible.get(seed.below(visible.len().max(1)));
    let settled = |seed: &mut Seed, (of, row): &(&'static str, RawRow)| {
        let m = id(row);
        match seed.below(12) {
            0 | 1 => Step::Sent(m, false),
            2 | 3 => Step::Sent(m, true),
            4 | 5 => Step::Retry(m),
            6 if row.aggregate_id.is_some() => Step::Hold(m),
            7 if row.early => Step::Schedule(m),
            8 => Step::Defer(m),
            9 => Step::Park(m, seed.below(3) > 0),
            10 if *of == queue => Step::Reroute(m, other),
            _ => Step::Suspect(m),
        }
    };
    match (seed.below(20), row, any(seed)) {
        (0..4, ..) => Step::Put(some),
        (4, ..) => Step::TakeBack(some),
        (5, ..) => Step::PutKeyed(some[0].clone(), seed.below(10).to_string()),
        (6, _, Some(m)) => Step::Cancel(m),
        (7, _, Some(m)) => {
            let lot = lot.iter().filter_map(|e| MessageId::parse(&e.id));
            Step::Redrive(lot.chain([m]).collect(), seed.below(2) == 0)
        }
        (8, _, Some(m)) => {
            let one = lot.get(seed.below(lot.len().max(1)));
            let one = one.and_then(|e| MessageId::parse(&e.id)).unwrap_or(m);
            match seed.below(3) {
                0 => Step::Ignore(vec![m, one]),
                _ => Step::Redrive(vec![one], true),
            }
        }
        (9, ..) => Step::Pause(queue),
        (10 | 11, ..) => Step::Resume(queue),
        (12 | 13, ..) => Step::MakeDue,
        (14, ..) if seed.below(4) == 0 => Step::ChangeHands,
        (_, Some(row), _) => settled(seed, row),
        _ => Step::Put(some),
    }
}

/// Hundreds of random steps, compared with the memory store after each.
pub async fn a_store_answers_as_the_model_does<H: Harness>(t: Fixture<H>) {
    let mut seed = Seed::new("a_store_answers_as_the_model_does");
    let model = MemoryHarness::fresh().await.unwrap();
    let mut model = Side::new(Fixture::new(std::sync::Arc::new(model))).await;
    let mut store = Side::new(t).await;
    let mut known: Vec<MessageId> = Vec::new();

    for n in 0..STEPS {
        let step = choose(&mut seed, &model, &known).await;
        if let Step::Put(messages) = &step {
            known.extend(messages.iter().map(|m| m.id));
        }
        let asked = known.get(seed.below(known.len().max(1))).copied();

        let (expected, found) = (model.apply(&step).await, store.apply(&step).await);
        let (wanted, seen) = (model.view(asked).await, store.view(asked).await);

        assert_eq!(found, expected, "the answer to step {n}: {step:?}");
        let difference = difference(&seen, &wanted);
        assert!(
            difference.is_empty(),
            "after step {n}: {step:?}{difference}"
        );
    }
}
