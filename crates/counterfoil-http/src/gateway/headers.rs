//! Headers on their way through.
//!
//! # Promise
//! What belongs to one connection stays on it, in both directions. Who is asking is said by us and
//! not by the caller: `X-Forwarded-*`, `X-Real-IP` and `Forwarded` of a caller are taken away, and
//! ours said instead, unless it is a proxy that we trust; then ours is added behind. Nobody but us
//! sets `Counterfoil-*`.
//!
//! Many services read `_` in a name as `-`. Whoever it comes from, a name that would then be one of
//! these, or one that the guard goes by, does not pass.

use std::net::{IpAddr, SocketAddr};

use bytes::Bytes;
use counterfoil::guard::Context;
use http::header::{
    CONNECTION, CONTENT_LENGTH, CONTENT_TYPE, COOKIE, EXPECT, FORWARDED, HOST, TE, TRAILER,
    TRANSFER_ENCODING, UPGRADE, VIA,
};
use http::{HeaderMap, HeaderName, HeaderValue};

use crate::Problem;

/// Headers of one connection, named by the standard or by habit.
static OF_THE_CONNECTION: [HeaderName; 6] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    TE,
    TRANSFER_ENCODING,
    UPGRADE,
];
/// Headers that a caller must not have removed by calling them headers of the connection.
static OF_THE_REQUEST: [HeaderName; 5] = [
    HOST,
    CONTENT_LENGTH,
    CONTENT_TYPE,
    COOKIE,
    http::header::AUTHORIZATION,
];
const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const X_FORWARDED_PROTO: HeaderName = HeaderName::from_static("x-forwarded-proto");
/// Headers that say who is asking, as we set them.
const OF_WHO_ASKS: usize = 4;
/// Names that begin so are ours.
const OURS: &str = "counterfoil-";
/// The number of the claim under which a request is forwarded.
pub(super) const FENCE: HeaderName = HeaderName::from_static("counterfoil-fence");
/// Which run of the request it is.
pub(super) const ATTEMPT: HeaderName = HeaderName::from_static("counterfoil-attempt");

/// The proxies whose word is believed, as addresses or networks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Trust(Vec<(IpAddr, u32)>);

/// Something that is neither an address nor a network.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is neither an address nor a network such as 10.0.0.0/8")]
pub struct TrustError(String);

impl Trust {
    /// Reads addresses and networks.
    pub fn parse<T: AsRef<str>>(list: impl IntoIterator<Item = T>) -> Result<Self, TrustError> {
        let one = |text: &str| -> Option<(IpAddr, u32)> {
            let (address, bits) = match text.split_once('/') {
                Some((address, bits)) => (address, Some(bits)),
                None => (text, None),
            };
            let address: IpAddr = address.trim().parse().ok()?;
            let most = if address.is_ipv4() { 32 } else { 128 };
            let bits = bits.map_or(Some(most), |b| b.trim().parse().ok())?;
            (bits <= most).then_some((address, bits))
        };
        let all = list.into_iter().map(|text| {
            let text = text.as_ref();
            one(text).ok_or_else(|| TrustError(text.to_owned()))
        });
        Ok(Self(all.collect::<Result<_, _>>()?))
    }

    /// Whether there is nobody whose word is believed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether the word of this peer is believed.
    pub fn holds(&self, peer: IpAddr) -> bool {
        let peer = peer.to_canonical();
        self.0.iter().any(|(network, bits)| match (network, peer) {
            (IpAddr::V4(n), IpAddr::V4(p)) => {
                let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
                n.to_bits() & mask == p.to_bits() & mask
            }
            (IpAddr::V6(n), IpAddr::V6(p)) => {
                let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
                n.to_bits() & mask == p.to_bits() & mask
            }
            _ => false,
        })
    }
}

/// Who is at the other end of a caller's connection.
#[derive(Debug, Clone)]
pub(super) struct Peer {
    pub(super) ip: IpAddr,
    /// As it stands in a header: written once for each connection.
    shown: HeaderValue,
}

impl Peer {
    pub(super) fn new(address: SocketAddr) -> Self {
        let ip = address.ip().to_canonical();
        Self {
            ip,
            shown: HeaderValue::from_str(&ip.to_string())
                .unwrap_or_else(|_| HeaderValue::from_static("unknown")),
        }
    }
}

/// Where a request came from.
#[derive(Debug, Clone)]
pub(super) struct Origin {
    pub(super) peer: Peer,
    pub(super) trusted: bool,
    /// The host as the caller wrote it.
    pub(super) authority: HeaderValue,
}

/// Refuses a caller that calls a header of the request one of the connection, so that a service
/// would not see what the guard has seen.
pub(super) fn check_connection(headers: &HeaderMap, more: &[HeaderName]) -> Result<(), Problem> {
    for name in named(headers) {
        let protected = OF_THE_REQUEST.iter().chain(more).any(|p| *p == name);
        if protected || is_ours(&name) {
            return Err(Problem::bad_request(format!(
                "The header {name} does not belong to the connection."
            )));
        }
    }
    Ok(())
}

/// The names that `Connection` lists. What it says about the connection itself is no name.
fn named(headers: &HeaderMap) -> Vec<HeaderName> {
    let itself = |word: &[u8]| {
        [&b"keep-alive"[..], b"close"]
            .iter()
            .any(|w| word.eq_ignore_ascii_case(w))
    };
    headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|b| *b == b','))
        .map(<[u8]>::trim_ascii)
        .filter(|word| !itself(word))
        .filter_map(|name| HeaderName::from_bytes(name).ok())
        .collect()
}

fn is_ours(name: &HeaderName) -> bool {
    is_set_by_us(name) || says_who_asks(name.as_str())
}

/// Whether a header of this name says who is asking, how, or by which way.
fn says_who_asks(name: &str) -> bool {
    name.starts_with("x-forwarded-") || matches!(name, "forwarded" | "x-real-ip")
}

/// Whether a service could take this name for another one that means something to us.
fn is_twin(name: &HeaderName, telling: &[HeaderName]) -> bool {
    let text = name.as_str();
    let twin = |other: &HeaderName| other != name && alike(other.as_str(), text);
    if telling.iter().any(twin) {
        return true;
    }
    if memchr::memchr(b'_', text.as_bytes()).is_none() {
        return false;
    }
    let text = text.replace('_', "-");
    let mut known = OF_THE_CONNECTION.iter().chain(&OF_THE_REQUEST);
    known.any(|other| other.as_str() == text) || text.starts_with(OURS) || says_who_asks(&text)
}

fn alike(one: &str, other: &str) -> bool {
    let read = |byte: u8| if byte == b'_' { b'-' } else { byte };
    let mut pairs = one.bytes().zip(other.bytes());
    one.len() == other.len() && pairs.all(|(a, b)| read(a) == read(b))
}

/// Whether a header says where a message begins and ends, or how its connection is used.
pub(super) fn is_framing(name: &HeaderName) -> bool {
    OF_THE_CONNECTION.contains(name) || [HOST, CONTENT_LENGTH, EXPECT].contains(name)
}

/// Nobody else has a word in these, not even a proxy that we trust.
pub(super) fn is_set_by_us(name: &HeaderName) -> bool {
    name.as_str().starts_with(OURS)
}

/// Removes what belongs to the connection.
pub(super) fn strip(headers: &mut HeaderMap) {
    for name in named(headers) {
        headers.remove(name);
    }
    remove_all(headers, |name| OF_THE_CONNECTION.contains(name));
}

/// Removes the headers of these names. There are few, if any, so it looks at what is there instead
/// of asking for each name.
fn remove_all(headers: &mut HeaderMap, wanted: impl Fn(&HeaderName) -> bool) {
    while let Some(name) = headers.keys().find(|name| wanted(name)).cloned() {
        headers.remove(name);
    }
}

/// Turns the headers of a caller into those for the service. By those that are `telling` the guard
/// tells requests and callers apart. The body's framing is not theirs to say: see
/// [`super::forward`].
pub(super) fn outward(
    headers: &mut HeaderMap,
    origin: &Origin,
    host: HeaderValue,
    telling: &[HeaderName],
) {
    let wants_trailers = headers.get_all(TE).iter().any(|line| {
        let mut codings = line.as_bytes().split(|b| *b == b',');
        codings.any(|c| c.trim_ascii().eq_ignore_ascii_case(b"trailers"))
    });
    strip(headers);
    headers.remove(EXPECT);
    if wants_trailers {
        headers.insert(TE, HeaderValue::from_static("trailers"));
        headers.insert(CONNECTION, HeaderValue::from_static("te"));
    }
    let is_claimed = |name: &HeaderName| {
        let claimed = match origin.trusted {
            true => is_set_by_us(name),
            false => is_ours(name),
        };
        claimed || is_twin(name, telling)
    };
    remove_all(headers, is_claimed);
    announce(headers, |name| !is_claimed(name) && !telling.contains(name));
    // HTTP/2 may split them, and HTTP/1 may not.
    if headers.get_all(COOKIE).iter().nth(1).is_some() {
        join(headers, COOKIE, b"; ", None);
    }
    say_who(headers, origin);
    headers.insert(HOST, host);
    headers.append(VIA, HeaderValue::from_static("1.1 counterfoil"));
    if let Some(context) = Context::current() {
        headers.insert(FENCE, context.fence().into());
        headers.insert(ATTEMPT, context.attempt().into());
    }
}

/// Lets only these fields trail a body: what is not announced is not sent.
fn announce(headers: &mut HeaderMap, may_trail: impl Fn(&HeaderName) -> bool) {
    if !headers.contains_key(TRAILER) {
        return;
    }
    let lines = headers.get_all(TRAILER).iter();
    let names = lines.flat_map(|line| line.as_bytes().split(|b| *b == b','));
    let names = names.filter_map(|name| HeaderName::from_bytes(name.trim_ascii()).ok());
    let names: Vec<HeaderName> = names.filter(|name| may_trail(name)).collect();
    headers.remove(TRAILER);
    for name in names {
        headers.append(TRAILER, name.into());
    }
}

/// What a stranger says about it is not among the headers any more.
fn say_who(headers: &mut HeaderMap, origin: &Origin) {
    headers.reserve(OF_WHO_ASKS);
    let (before, after) = match origin.peer.ip {
        IpAddr::V4(_) => ("for=", ";host=\""),
        IpAddr::V6(_) => ("for=\"[", "]\";host=\""),
    };
    let address = &origin.peer.shown;
    let forwarded = [
        before.as_bytes(),
        address.as_bytes(),
        after.as_bytes(),
        origin.authority.as_bytes(),
        b"\";proto=http",
    ];
    let forwarded = Bytes::from(forwarded.concat());
    let forwarded = HeaderValue::from_maybe_shared(forwarded);
    if origin.trusted {
        append(headers, X_FORWARDED_FOR, address.as_bytes());
        if let Ok(forwarded) = &forwarded {
            append(headers, FORWARDED, forwarded.as_bytes());
        }
        if !headers.contains_key(X_FORWARDED_HOST) {
            headers.insert(X_FORWARDED_HOST, origin.authority.clone());
        }
        if !headers.contains_key(X_FORWARDED_PROTO) {
            headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
        }
        return;
    }
    headers.insert(X_FORWARDED_FOR, address.clone());
    if let Ok(forwarded) = forwarded {
        headers.insert(FORWARDED, forwarded);
    }
    headers.insert(X_FORWARDED_HOST, origin.authority.clone());
    headers.insert(X_FORWARDED_PROTO, HeaderValue::from_static("http"));
}

/// Adds to a list that is one line: some readers look at the first line only, and some at the last.
fn append(headers: &mut HeaderMap, name: HeaderName, item: &[u8]) {
    join(headers, name, b", ", Some(item));
}

/// Makes one line of several, and of one more.
fn join(headers: &mut HeaderMap, name: HeaderName, between: &[u8], more: Option<&[u8]>) {
    let lines = headers.get_all(&name).iter().map(HeaderValue::as_bytes);
    let lines: Vec<&[u8]> = lines.chain(more).collect();
    if let Ok(value) = HeaderValue::from_bytes(&lines.join(between)) {
        headers.insert(name, value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(lines: &[(&'static str, &str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, value.parse().unwrap());
        }
        headers
    }

    fn origin(trusted: bool) -> Origin {
        Origin {
            peer: Peer::new("192.0.2.7:4711".parse().unwrap()),
            trusted,
            authority: HeaderValue::from_static("shop.example"),
        }
    }

    const CLAIMS: [(&str, &str); 12] = [
        ("x-forwarded-for", "10.9.9.9"),
        ("x-forwarded-proto", "https"),
        ("x-forwarded-host", "public.example"),
        ("forwarded", "for=10.9.9.9"),
        ("counterfoil-fence", "99"),
        ("x-forwarded-port", "443"),
        ("x-forwarded-prefix", "/admin"),
        ("x-forwarded-server", "inside"),
        ("x-real-ip", "10.9.9.9"),
        ("x_forwarded_for", "10.9.9.9"),
        ("x-real_ip", "10.9.9.9"),
        ("counterfoil_fence", "99"),
    ];
    const GONE_FROM_ALL: [&str; 4] = [
        "counterfoil-fence",
        "x_forwarded_for",
        "x-real_ip",
        "counterfoil_fence",
    ];

    fn sent_outward(headers: &mut HeaderMap, origin: &Origin) {
        let telling = ["x-account", "order_key"].map(HeaderName::from_static);
        outward(headers, origin, HeaderValue::from_static("up"), &telling);
    }

    /// What is not announced is not sent.
    #[test]
    fn nothing_that_counts_trails_a_body() {
        for trusted in [false, true] {
            let mut headers = headers(&[
                ("trailer", "x-checksum, Counterfoil-Fence,x-account"),
                (
                    "trailer",
                    "counterfoil_fence, x_account, \u{fc}, x-signature",
                ),
            ]);

            sent_outward(&mut headers, &origin(trusted));

            let announced: Vec<_> = headers.get_all(TRAILER).iter().collect();
            assert_eq!(announced, ["x-checksum", "x-signature"]);
        }
        let mut headers = headers(&[("trailer", "x-forwarded-for, x-real-ip")]);
        sent_outward(&mut headers, &origin(false));
        assert!(!headers.contains_key(TRAILER));
    }

    #[test]
    fn what_a_stranger_claims_is_replaced() {
        let mut headers = headers(&CLAIMS);

        sent_outward(&mut headers, &origin(false));

        assert_eq!(headers["x-forwarded-for"], "192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "http");
        assert_eq!(headers["x-forwarded-host"], "shop.example");
        assert_eq!(
            headers["forwarded"],
            "for=192.0.2.7;host=\"shop.example\";proto=http"
        );
        assert_eq!(headers["host"], "up");
        let ours = [
            "x-forwarded-port",
            "x-forwarded-prefix",
            "x-forwarded-server",
        ];
        for gone in ours.iter().chain(&["x-real-ip"]).chain(&GONE_FROM_ALL) {
            assert!(!headers.contains_key(*gone), "{gone}");
        }
    }

    #[test]
    fn what_a_trusted_proxy_says_is_kept_and_added_to() {
        let mut headers = headers(&CLAIMS);

        sent_outward(&mut headers, &origin(true));

        assert_eq!(headers["x-forwarded-for"], "10.9.9.9, 192.0.2.7");
        assert_eq!(headers["x-forwarded-proto"], "https");
        assert_eq!(headers["x-forwarded-host"], "public.example");
        assert_eq!(headers["x-forwarded-port"], "443");
        assert_eq!(headers["x-forwarded-prefix"], "/admin");
        assert_eq!(headers["x-real-ip"], "10.9.9.9");
        for gone in GONE_FROM_ALL {
            assert!(!headers.contains_key(gone), "{gone}");
        }
    }

    #[test]
    fn a_name_that_a_service_could_take_for_another_does_not_pass() {
        let twins = [
            "x_account",
            "order-key",
            "content_length",
            "content_type",
            "transfer_encoding",
            "x_forwarded_proto",
            "x_real_ip",
            "counterfoil_attempt",
        ];
        for trusted in [false, true] {
            let mut headers = headers(&twins.map(|name| (name, "1")));
            for stays in ["x-account", "order_key", "x_own", "account"] {
                headers.insert(stays, HeaderValue::from_static("2"));
            }

            sent_outward(&mut headers, &origin(trusted));

            for gone in twins {
                assert!(!headers.contains_key(gone), "{gone}");
            }
            for stays in ["x-account", "order_key", "x_own", "account"] {
                assert_eq!(headers[stays], "2");
            }
        }
    }

    #[test]
    fn headers_of_the_connection_stay_on_it() {
        let mut headers = headers(&[
            ("connection", "close, X-Hop"),
            ("connection", "x-other"),
            ("x-hop", "1"),
            ("x-other", "2"),
            ("keep-alive", "timeout=5"),
            ("upgrade", "websocket"),
            ("transfer-encoding", "chunked"),
            ("te", "gzip, trailers"),
            ("x-stays", "3"),
            ("cookie", "a=1"),
            ("cookie", "b=2"),
        ]);

        sent_outward(&mut headers, &origin(false));

        for gone in [
            "x-hop",
            "x-other",
            "keep-alive",
            "upgrade",
            "transfer-encoding",
        ] {
            assert!(!headers.contains_key(gone), "{gone}");
        }
        assert_eq!(headers["te"], "trailers");
        assert_eq!(headers["x-stays"], "3");
        assert_eq!(headers["cookie"], "a=1; b=2");
    }

    #[test]
    fn a_header_of_the_request_cannot_be_made_to_vanish() {
        let key = HeaderName::from_static("idempotency-key");
        for name in [
            "Idempotency-Key",
            "content-length",
            "X-Forwarded-For",
            "x-forwarded-port",
            "X-Real-IP",
            "close, host",
        ] {
            let headers = headers(&[("connection", name)]);
            assert!(
                check_connection(&headers, std::slice::from_ref(&key)).is_err(),
                "{name}"
            );
        }
        assert!(check_connection(&headers(&[("connection", "close, x-hop")]), &[key]).is_ok());
    }

    #[test]
    fn networks_hold_their_addresses() {
        let trust = Trust::parse(["10.0.0.0/8", "192.0.2.1", "fd00::/8", "0.0.0.0/0"]).unwrap();
        assert!(trust.holds("8.8.8.8".parse().unwrap()));
        let trust = Trust::parse(["10.0.0.0/8", "192.0.2.1", "fd00::/8"]).unwrap();
        for inside in ["10.255.0.1", "192.0.2.1", "::ffff:10.1.1.1", "fd12::1"] {
            assert!(trust.holds(inside.parse().unwrap()), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.2", "fe80::1", "::1"] {
            assert!(!trust.holds(outside.parse().unwrap()), "{outside}");
        }
        for wrong in ["10.0.0.0/33", "proxy", "10.0.0.0/x", ""] {
            assert!(Trust::parse([wrong]).is_err(), "{wrong}");
        }
    }
}
