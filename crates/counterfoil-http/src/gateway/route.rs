//! Routes: which requests go where, and how they are guarded.
//!
//! # Promise
//! Which route a request takes does not depend on the order in which routes are written: the most
//! specific one wins, by host, then path from left to right, then method. Two routes that would
//! both win are refused.
//!
//! | pattern | matches |
//! |---|---|
//! | `/orders` | this path |
//! | `/orders/*` | one more segment |
//! | `/orders/**` | this path, and everything below it |

use std::cmp::Ordering;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use counterfoil_core::guard::Rules;
use http::request::Parts;
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::probe::Probe;
use super::target;
use super::upstream::Upstream;
use crate::Policy;

/// A pattern for paths.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern {
    segments: Vec<Segment>,
}

// In the order of preference: what is written out is before what stands for anything.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    Text(String),
    One,
    Rest,
}

/// A pattern that cannot be understood.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PatternError {
    /// No path at all.
    #[error("a path begins with `/`, and contains no `.`, `..` or odd characters as segments")]
    Path,
    /// `**` in the middle.
    #[error("`**` stands at the end of a path only")]
    RestInTheMiddle,
    /// A star beside letters.
    #[error("`*` stands for a whole segment, as in /orders/*")]
    PartialSegment,
}

impl Pattern {
    /// Reads a pattern.
    pub fn parse(text: &str) -> Result<Self, PatternError> {
        let path = target::canonical(text).ok_or(PatternError::Path)?;
        let words: Vec<&str> = path[1..].split('/').collect();
        let last = words.len() - 1;
        let mut segments = Vec::new();
        for (n, word) in words.into_iter().enumerate() {
            segments.push(match word {
                "**" if n == last => Segment::Rest,
                "**" => return Err(PatternError::RestInTheMiddle),
                "*" => Segment::One,
                word if word.contains('*') => return Err(PatternError::PartialSegment),
                word => Segment::Text(word.to_owned()),
            });
        }
        Ok(Self { segments })
    }

    /// Every path.
    pub fn everything() -> Self {
        Self {
            segments: vec![Segment::Rest],
        }
    }

    /// Whether this canonical path matches.
    pub fn matches(&self, path: &str) -> bool {
        let mut words = path.strip_prefix('/').unwrap_or(path).split('/');
        for segment in &self.segments {
            match segment {
                Segment::Rest => return true,
                Segment::One if words.next().is_some_and(|w| !w.is_empty()) => {}
                Segment::Text(text) if words.next() == Some(text) => {}
                _ => return false,
            }
        }
        words.next().is_none()
    }

    fn compare(&self, other: &Self) -> Ordering {
        let mut pairs = self.segments.iter().zip(&other.segments);
        let different = pairs.find_map(|(a, b)| Some(a.cmp(b)).filter(|o| o.is_ne()));
        // `/a` is more specific than `/a/**`, which is longer and matches it too.
        different.unwrap_or_else(|| self.segments.len().cmp(&other.segments.len()))
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for segment in &self.segments {
            match segment {
                Segment::Text(text) => write!(f, "/{text}")?,
                Segment::One => f.write_str("/*")?,
                Segment::Rest => f.write_str("/**")?,
            }
        }
        Ok(())
    }
}

/// Whose requests are whose.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallerRule {
    /// All keys are in one scope.
    One,
    /// The value of this header, which somebody in front of us must have set. Where there are
    /// proxies that we trust, nobody else can: from others it is taken away.
    Header(HeaderName),
}

impl CallerRule {
    /// Takes away what somebody says about callers who is not believed.
    pub(super) fn unsay(&self, headers: &mut HeaderMap) {
        if let CallerRule::Header(name) = self {
            headers.remove(name);
        }
    }

    /// The caller of a request. A header that is repeated or empty names nobody.
    pub fn of(&self, parts: &Parts) -> Option<String> {
        match self {
            CallerRule::One => Some(String::new()),
            CallerRule::Header(name) => {
                let mut lines = parts.headers.get_all(name).iter();
                let value = lines.next().filter(|_| lines.next().is_none())?;
                let value = value.to_str().ok()?.trim();
                Some(value.to_owned()).filter(|v| !v.is_empty())
            }
        }
    }
}

/// How requests of a route are guarded.
#[derive(Debug, Clone)]
pub struct Guarded {
    /// What is guarded.
    pub policy: Policy,
    /// How long, how strict.
    pub rules: Rules,
    /// Whose requests are whose.
    pub caller: CallerRule,
    /// How uncertain requests are settled.
    pub probe: Option<Probe>,
    /// Whether each host has keys of its own. Not where one service has several names, and a caller
    /// may repeat a request under another one.
    pub per_host: bool,
    /// Whether callers whose request is uncertain are told "accepted, ask later": after this time.
    pub degraded: Option<Duration>,
}

impl Guarded {
    /// Whose keys are those of a request to this host: `host/caller`. A host has no slash.
    pub(super) fn scope(&self, parts: &Parts, authority: &HeaderValue) -> Option<String> {
        let caller = self.caller.of(parts)?;
        Some(match self.per_host {
            true => format!("{}/{caller}", target::site(authority)),
            false => caller,
        })
    }
}

/// The host, where each has keys of its own, and the caller of a scope.
pub(super) fn host_and_caller(scope: &str, per_host: bool) -> (Option<&str>, &str) {
    match scope.split_once('/').filter(|_| per_host) {
        Some((host, caller)) => (Some(host), caller),
        None => (None, scope),
    }
}

/// Which requests go where.
#[derive(Debug, Clone)]
pub struct Route {
    /// Only requests to this host; `*.example.com` stands for every name below it.
    pub host: Option<String>,
    /// Only requests to these paths.
    pub path: Pattern,
    /// Only requests with these methods; none: every method.
    pub methods: Vec<Method>,
    /// Where they go.
    pub upstream: Arc<Upstream>,
    /// Whether the service sees the host that the caller wrote, or its own.
    pub preserve_host: bool,
    /// How they are guarded, if they are.
    pub guard: Option<Guarded>,
    /// Whether a GET gets the last good answer while the service is in trouble: if it is younger than
    /// this.
    pub stale: Option<Duration>,
}

impl Route {
    /// Whether host and path match.
    pub fn covers(&self, host: &str, path: &str) -> bool {
        let host_matches = match self.host.as_deref() {
            None => true,
            Some(pattern) => match pattern.strip_prefix('*') {
                Some(suffix) => host.len() > suffix.len() && host.ends_with(suffix),
                None => host == pattern,
            },
        };
        host_matches && self.path.matches(path)
    }

    /// Whether the method matches. Who may GET may HEAD.
    pub fn allows(&self, method: &Method) -> bool {
        let head = method == Method::HEAD && self.methods.contains(&Method::GET);
        self.methods.is_empty() || head || self.methods.contains(method)
    }

    /// The headers by which the guard tells requests and callers apart.
    pub(super) fn telling(&self) -> Vec<HeaderName> {
        let Some(guard) = &self.guard else {
            return Vec::new();
        };
        let mut names = vec![guard.policy.header.clone()];
        if let CallerRule::Header(name) = &guard.caller {
            names.push(name.clone());
        }
        names
    }

    /// The more specific one first.
    pub fn compare(&self, other: &Self) -> Ordering {
        let rank = |route: &Self| match route.host.as_deref() {
            Some(host) if !host.starts_with('*') => (0, 0),
            // The longer the end of the name, the more specific.
            Some(host) => (1, usize::MAX - host.len()),
            None => (2, 0),
        };
        rank(self)
            .cmp(&rank(other))
            .then_with(|| self.path.compare(&other.path))
            .then_with(|| self.methods.is_empty().cmp(&other.methods.is_empty()))
    }

    /// Whether there is a request for which neither of the two is more specific.
    pub fn overlaps(&self, other: &Self) -> bool {
        // One may allow what the other does not write out: GET allows HEAD.
        let share = |a: &Self, b: &Self| a.methods.iter().any(|m| b.allows(m));
        self.host == other.host
            && self.path == other.path
            && self.methods.is_empty() == other.methods.is_empty()
            && (self.methods.is_empty() || share(self, other) || share(other, self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gateway::UpstreamSettings;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).unwrap()
    }

    fn route(host: Option<&str>, path: &str, methods: &[Method]) -> Route {
        let settings = UpstreamSettings::default();
        Route {
            host: host.map(ToOwned::to_owned),
            path: pattern(path),
            methods: methods.to_vec(),
            upstream: Arc::new(Upstream::new("up", "http://localhost:1", settings).unwrap()),
            preserve_host: true,
            guard: None,
            stale: None,
        }
    }

    #[test]
    fn patterns_match_whole_segments() {
        for (text, yes, no) in [
            (
                "/orders",
                vec!["/orders"],
                vec!["/orders/", "/orders/1", "/order", "/"],
            ),
            (
                "/orders/*",
                vec!["/orders/1"],
                vec!["/orders", "/orders/", "/orders/1/2"],
            ),
            (
                "/orders/**",
                vec!["/orders", "/orders/", "/orders/1/2"],
                vec!["/ordersx", "/"],
            ),
            ("/**", vec!["/", "/a", "/a/b"], vec![]),
            ("/", vec!["/"], vec!["/a"]),
            ("/*/x", vec!["/a/x"], vec!["/a/y", "//x", "/a"]),
        ] {
            for path in yes {
                assert!(pattern(text).matches(path), "{text} {path}");
            }
            for path in no {
                assert!(!pattern(text).matches(path), "{text} {path}");
            }
            assert_eq!(pattern(text).to_string(), text);
        }
    }

    #[test]
    fn nonsense_is_refused() {
        for (text, error) in [
            ("orders", PatternError::Path),
            ("/a/../b", PatternError::Path),
            ("/a/**/b", PatternError::RestInTheMiddle),
            ("/a*/b", PatternError::PartialSegment),
        ] {
            assert_eq!(Pattern::parse(text), Err(error));
        }
    }

    #[test]
    fn the_most_specific_route_comes_first() {
        let mut routes = [
            route(None, "/**", &[]),
            route(None, "/a/**", &[]),
            route(None, "/a/*", &[]),
            route(None, "/a", &[]),
            route(None, "/a/b", &[]),
            route(None, "/a/b", &[Method::POST]),
            route(Some("*.example.com"), "/**", &[]),
            route(Some("*.shop.example.com"), "/**", &[]),
            route(Some("shop.example.com"), "/**", &[]),
        ];

        routes.sort_by(Route::compare);

        let shown: Vec<String> = routes
            .iter()
            .map(|r| {
                format!(
                    "{}{}{}",
                    r.host.as_deref().unwrap_or(""),
                    r.path,
                    r.methods.len()
                )
            })
            .collect();
        assert_eq!(
            shown,
            [
                "shop.example.com/**0",
                "*.shop.example.com/**0",
                "*.example.com/**0",
                "/a0",
                "/a/b1",
                "/a/b0",
                "/a/*0",
                "/a/**0",
                "/**0",
            ]
        );
    }

    #[test]
    fn routes_that_could_both_win_overlap() {
        let get = [Method::GET];
        let overlap = |a: Route, b: Route| {
            assert_eq!(a.overlaps(&b), b.overlaps(&a), "{a:?} {b:?}");
            a.overlaps(&b)
        };

        assert!(overlap(route(None, "/a", &[]), route(None, "/a", &[])));
        assert!(overlap(route(None, "/a", &get), route(None, "/a", &get)));
        assert!(!overlap(route(None, "/a", &get), route(None, "/a", &[])));
        assert!(!overlap(
            route(None, "/a", &get),
            route(None, "/a", &[Method::POST])
        ));
        assert!(!overlap(route(None, "/a", &[]), route(None, "/b", &[])));
        assert!(!overlap(
            route(Some("h"), "/a", &[]),
            route(None, "/a", &[])
        ));
    }

    #[test]
    fn methods_overlap_exactly_when_a_request_fits_both_whichever_comes_first() {
        let all = [Method::GET, Method::HEAD, Method::POST];
        let some = |bits: usize| -> Vec<Method> {
            let chosen = all.iter().enumerate().filter(|(n, _)| bits >> n & 1 == 1);
            chosen.map(|(_, method)| method.clone()).collect()
        };
        for (one, two) in (1..8).flat_map(|a| (1..8).map(move |b| (a, b))) {
            let (one, two) = (some(one), some(two));
            let (a, b) = (route(None, "/a", &one), route(None, "/a", &two));

            let both = all.iter().any(|m| a.allows(m) && b.allows(m));

            assert_eq!(a.overlaps(&b), both, "{one:?} {two:?}");
        }
    }

    #[test]
    fn hosts_match_whole_names() {
        let route = route(Some("*.example.com"), "/**", &[]);

        assert!(route.covers("a.example.com", "/"));
        assert!(!route.covers("example.com", "/"));
        assert!(!route.covers(".example.com", "/"));
        assert!(!route.covers("evilexample.com", "/"));
    }
}
