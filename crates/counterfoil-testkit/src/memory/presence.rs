//! Who is there: consumers that report, and relays with what they own.

use chrono::{DateTime, TimeDelta, Utc};
use counterfoil_core::presence::{self, ConsumerEntry, ConsumerReport, RelayEntry};

use super::clock::span;
use super::state::{Consumer, State};

/// Who has been silent for longer is forgotten.
const REMEMBERED: TimeDelta = TimeDelta::days(1);

impl State {
    pub(super) fn report(&mut self, report: ConsumerReport<'_>, now: DateTime<Utc>) {
        let consumer = Consumer {
            name: report.consumer.to_owned(),
            status: report.status.clone(),
            reported_at: now,
            lease_until: now + span(report.lease),
        };
        self.consumers
            .retain(|_, c| c.lease_until >= now - REMEMBERED);
        self.consumers.insert(report.member.clone(), consumer);
    }

    pub(super) fn list_consumers(&self, now: DateTime<Utc>) -> Vec<ConsumerEntry> {
        let known = self.consumers.iter();
        let lately = known.filter(|(_, c)| c.lease_until >= now - REMEMBERED);
        let mut all: Vec<ConsumerEntry> = lately
            .map(|(member, consumer)| ConsumerEntry {
                consumer: consumer.name.clone(),
                member: member.to_string(),
                alive: consumer.lease_until > now,
                reported_at: consumer.reported_at,
                status: consumer.status.clone(),
            })
            .collect();
        all.sort_by(|a, b| (&a.consumer, &a.member).cmp(&(&b.consumer, &b.member)));
        all
    }

    pub(super) fn list_relays(&self, now: DateTime<Utc>) -> Vec<RelayEntry> {
        let known = self.relays.iter().map(|(relay, member)| RelayEntry {
            relay: relay.to_string(),
            alive: member.lease_until > now,
            queues: member.queues.clone(),
            lease_until: Some(member.lease_until),
            ..RelayEntry::default()
        });
        let owned = self.shards.iter().filter_map(|((queue, shard), owned)| {
            Some((queue.clone(), *shard, owned.owner.as_ref()?.to_string()))
        });
        presence::relays(known.collect(), owned)
    }
}
