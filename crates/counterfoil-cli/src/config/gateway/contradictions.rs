//! Keys that would be read and do nothing, or that say two things at once.
//!
//! # Promise
//! What stands in the file holds. A key that could not hold, because another one says otherwise, is
//! refused with its line and with what to do; it is never ignored.

use super::super::read::fields_of;
use super::super::settings::Judge;
use super::super::value::shown;
use super::file::{Degraded, Gateway, GatewayRoute, Upstream};
use super::{RouteReader, refuse};

/// Keys of a route that have nothing to do with the guard.
const UNGUARDED: [&str; 6] = [
    "host",
    "path",
    "methods",
    "upstream",
    "preserve-host",
    "guard",
];

/// Of `[gateway]`.
pub(super) fn of_gateway(section: &Gateway, judge: &mut Judge<'_>) {
    for (key, needs, there) in [
        (
            "replay-cache-age",
            "replay-cache",
            section.replay_cache.is_some(),
        ),
        ("gate-prefix", "gate", section.gate.is_some()),
        ("gate-ttl", "gate", section.gate.is_some()),
        ("gate-patience", "gate", section.gate.is_some()),
    ] {
        let path = format!("gateway.{key}");
        if !there && judge.has(&path) {
            let text = format!("there is no `{needs}`: write it too, or leave this out");
            refuse(judge, &path, key, "[gateway]", text);
        }
    }
}

/// Of `[upstream.NAME]`.
pub(super) fn of_upstream(name: &str, section: &Upstream, judge: &mut Judge<'_>) {
    let (path, shown_as) = (format!("upstream.{name}"), format!("[upstream.{name}]"));
    let lonely = format!("{path}.breaker-slow-ratio");
    if section.breaker_slow_after.is_none() && judge.has(&lonely) {
        let text = "without `breaker-slow-after` no call is slow: write it too, or leave this out";
        refuse(judge, &lonely, "breaker-slow-ratio", &shown_as, text);
    }
    let timeout = section.timeout.0;
    if section.attempt_timeout.is_some_and(|span| span.0 > timeout) {
        let key = "attempt-timeout";
        let text = format!(
            "is longer than the `timeout` ({}), which ends the attempt before: shorten it, or \
             leave it out",
            shown(timeout)
        );
        refuse(judge, &format!("{path}.{key}"), key, &shown_as, text);
    }
}

/// Of `[[gateway.route]]`.
pub(super) fn of_route(reader: &mut RouteReader<'_, '_>) {
    copies(reader);
    match reader.section.guard {
        true => guarded(reader),
        false => unguarded(reader),
    }
}

/// Copies are for GET, whether the route is guarded or not.
fn copies(reader: &mut RouteReader<'_, '_>) {
    let section = reader.section;
    if section.degraded != Degraded::Cached {
        if reader.says("cached-age") {
            let text = "is for `degraded = \"cached\"`: write it too, or leave this out";
            reader.wrong("cached-age", text);
        }
        return;
    }
    if section.cached_age.0.is_zero() {
        reader.wrong("cached-age", "must be greater than zero");
    }
    if !section.methods.is_empty() && !section.methods.iter().any(|m| m == "GET") {
        let text = "copies are for GET, which is not in `methods`";
        reader.wrong("degraded", text);
    }
}

fn unguarded(reader: &mut RouteReader<'_, '_>) {
    let accepted = reader.section.degraded == Degraded::Accepted;
    for key in fields_of::<GatewayRoute>() {
        let about_copies = *key == "cached-age" || (*key == "degraded" && !accepted);
        if !UNGUARDED.contains(key) && !about_copies && reader.says(key) {
            let text = "is for guarded requests, and the route says `guard = false`: leave one \
                        of the two out";
            reader.wrong(key, text);
        }
    }
}

fn guarded(reader: &mut RouteReader<'_, '_>) {
    let section = reader.section;
    methods(reader);
    if let Some(both) = section
        .harmless
        .iter()
        .find(|status| section.r#final.contains(status))
    {
        let text = format!(
            "{both} is in `harmless` too: after it either nothing has happened, or it is the \
             answer of every repeat"
        );
        reader.wrong("final", text);
    }
    if !section.ignored_fields.is_empty()
        && !section.canonical_json
        && reader.says("canonical-json")
    {
        let text = "cannot be `false` with `ignored-fields`: fields are left out of the \
                    canonical form";
        reader.wrong("canonical-json", text);
    }
    if section.probe.is_none() {
        for key in ["probe-after", "probe-answer", "probe-host", "probe-headers"] {
            if reader.says(key) {
                reader.wrong(key, "there is no `probe`: write one, or leave this out");
            }
        }
    }
}

/// What is guarded must be able to come.
fn methods(reader: &mut RouteReader<'_, '_>) {
    let section = reader.section;
    let (all, guarded) = (&section.methods, &section.guarded_methods);
    if guarded.is_empty() {
        let text = "nothing would be guarded: name a method, or write `guard = false`";
        return reader.wrong("guarded-methods", text);
    }
    if all.is_empty() {
        return;
    }
    if !guarded.iter().any(|method| all.contains(method)) {
        let text = format!(
            "none of them is guarded ({} would be): write `guard = false`, or `guarded-methods`",
            guarded.join(", ")
        );
        return reader.wrong("methods", text);
    }
    let lost = guarded.iter().find(|method| !all.contains(method));
    if let Some(lost) = lost.filter(|_| reader.says("guarded-methods")) {
        let text = format!("{lost} does not come here: it is not in `methods`");
        reader.wrong("guarded-methods", text);
    }
}
