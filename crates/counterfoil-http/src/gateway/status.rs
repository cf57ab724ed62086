//! How a guarded request stands, for its caller.
//!
//! # Promise
//! Every key has a place where its state can be asked for: a path, or where a path with this key
//! would walk up (`..`), a query.

use axum::body::Body;
use axum::response::{IntoResponse as _, Response};
use counterfoil_core::guard::{Key, Records};
use counterfoil_engine::guard::in_time;
use http::{HeaderValue, header};
use serde_json::json;

use super::target;
use crate::Problem;

/// Paths of the gateway itself begin with this; they are never forwarded.
pub(super) const OURS: &str = "/.counterfoil/";
const REQUESTS: &str = "/.counterfoil/requests";

/// The path, with its query, under which the state of a request can be asked for.
pub(super) fn place(key: &Key) -> String {
    let (kind, key) = (encoded(key.business_type()), encoded(key.key()));
    let path = format!("{REQUESTS}/{kind}/{key}");
    match target::canonical(&path) {
        Some(_) => path,
        // Escapes do not help: they are read before the path is.
        None => format!("{REQUESTS}?business-type={kind}&key={key}"),
    }
}

/// The business type and the key that a place of [`place`] names.
pub(super) fn named(path: &str, query: Option<&str>) -> Option<(String, String)> {
    let (kind, key) = match path.strip_prefix(REQUESTS)?.strip_prefix('/') {
        Some(names) => names.split_once('/')?,
        None if path == REQUESTS => {
            let part = |name| {
                let mut parts = query?.split('&');
                parts.find_map(|part: &str| part.strip_prefix(name)?.strip_prefix('='))
            };
            (part("business-type")?, part("key")?)
        }
        None => return None,
    };
    Some((decoded(kind)?, decoded(key)?))
}

/// Every byte that could mean something in a URL as `%XX`.
pub(super) fn encoded(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'-' | b'.' | b'_' | b'~' => out.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => out.push(char::from(byte)),
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn decoded(text: &str) -> Option<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let digit = |b: Option<u8>| char::from(b?).to_digit(16);
        let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
        out.push(u8::try_from(value).ok()?);
    }
    String::from_utf8(out).ok()
}

/// How the request with this key stands, as JSON. Its answer is not shown: the same request, sent
/// again, gets it.
pub async fn status(records: &dyn Records, key: &Key) -> Response {
    let found = match in_time(records.look(&key.digest())).await {
        Ok(Some(found)) if !found.expired() => found,
        Ok(_) => return Problem::request_unknown().into_response(),
        Err(error) => {
            tracing::error!(
                error = error.one_line(),
                "the guard's records cannot be read"
            );
            return Problem::unavailable().into_response();
        }
    };
    let record = &found.record;
    let body = json!({
        "state": found.state().as_str(),
        "key": record.key.key(),
        "business_type": record.key.business_type(),
        "attempts": record.attempts,
        "created_at": record.created_at.to_rfc3339(),
        "updated_at": record.updated_at.to_rfc3339(),
        "status": record.snapshot.as_ref().map(|s| s.status).filter(|s| *s > 0),
    });
    let mut response = Response::new(Body::from(body.to_string()));
    let headers = response.headers_mut();
    let json = HeaderValue::from_static("application/json");
    headers.insert(header::CONTENT_TYPE, json);
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_place_of_a_key_names_it_again() {
        let texts = [
            "k-1",
            "a/b?c#d",
            "ü %2F",
            ".",
            "..",
            "...",
            "a/../b",
            "a\\..\\b",
            "../",
            "%2e%2e",
            "a&key=b+c",
            "//",
        ];
        let kinds = ["orders", "..", "a/../b"];
        for (kind, text) in kinds.iter().flat_map(|k| texts.map(|t| (*k, t))) {
            let key = Key::new("alice", kind, text).unwrap();
            let place: http::Uri = place(&key).parse().unwrap();
            let path = target::canonical(place.path()).unwrap();

            let found = named(&path, place.query());

            assert_eq!(found, Some((kind.to_owned(), text.to_owned())), "{place}");
        }
        let other_order = named("/.counterfoil/requests", Some("key=k&business-type=orders"));
        assert_eq!(other_order, Some(("orders".into(), "k".into())));
        let simple = Key::new("alice", "orders", "k-1").unwrap();
        assert_eq!(place(&simple), "/.counterfoil/requests/orders/k-1");
        for (path, query) in [
            ("/.counterfoil/requests", None),
            ("/.counterfoil/requests", Some("key=k")),
            ("/.counterfoil/requests", Some("business-type=orders")),
            ("/.counterfoil/requestsx", Some("business-type=a&key=k")),
            ("/.counterfoil/requests/orders", None),
            ("/.counterfoil/requests/orders/%zz", None),
        ] {
            assert_eq!(named(path, query), None, "{path}");
        }
    }
}
