//! Where a request is addressed: host and path, in one reading.
//!
//! # Promise
//! A path is matched in a spelling that services agree about: what needs no escape is written
//! without one, and repeated slashes count as one. A path that walks up (`..`, in any spelling) is
//! refused: it could pass a route that is not guarded and arrive at one that is.

use http::HeaderValue;
use http::header::HOST;
use http::request::Parts;

use crate::Problem;

/// Where a request goes.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Target {
    /// The host with its port, as the caller wrote it.
    pub(super) authority: HeaderValue,
    /// The host without the port and the dot that ends it, in lower case.
    pub(super) host: String,
    /// The path to be matched.
    pub(super) path: String,
}

/// Reads host and path.
pub(super) fn read(parts: &Parts) -> Result<Target, Problem> {
    let authority = authority(parts)?;
    let (host, _) = split(&authority);
    let odd = |b: u8| !b.is_ascii_graphic() || b"/\\?#@,\"<>".contains(&b);
    if host.is_empty() || host.bytes().any(odd) {
        return Err(Problem::bad_request("The host cannot be understood."));
    }
    let path = canonical(parts.uri.path()).ok_or_else(|| {
        Problem::bad_request("The path walks up, or contains bytes that no path has.")
    })?;
    Ok(Target {
        host: host.to_ascii_lowercase(),
        authority,
        path,
    })
}

/// The host without the dot that ends it, and the port.
fn split(authority: &HeaderValue) -> (&str, Option<&str>) {
    let text = authority.to_str().unwrap_or_default();
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|b| b.is_ascii_digit()) => (host, Some(port)),
        _ => (text, None),
    };
    (host.strip_suffix('.').unwrap_or(host), port)
}

/// Host and port in one spelling: lower case, without the dot that ends a name, and without the port
/// that HTTP or HTTPS has anyway. Which of the two the caller spoke is known to a proxy before us
/// only.
pub(super) fn site(authority: &HeaderValue) -> String {
    let (host, port) = split(authority);
    let mut site = host.to_ascii_lowercase();
    let port = port.map(|port| port.trim_start_matches('0'));
    if let Some(port) = port.filter(|port| !matches!(*port, "" | "80" | "443")) {
        site.push(':');
        site.push_str(port);
    }
    site
}

fn authority(parts: &Parts) -> Result<HeaderValue, Problem> {
    let mut hosts = parts.headers.get_all(HOST).iter();
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Problem::bad_request("The header Host occurs twice."));
    }
    // With a whole address as its target (and always in HTTP/2) the request says it there.
    if let Some(authority) = parts.uri.authority() {
        return HeaderValue::from_str(authority.as_str())
            .map_err(|_| Problem::bad_request("The host cannot be understood."));
    }
    match host {
        Some(host) => Ok(host.clone()),
        None => Err(Problem::bad_request("The header Host is missing.")),
    }
}

/// Whether there is no other spelling of a path: most are like this.
fn is_plain(path: &str) -> bool {
    let mut before = 0;
    path.bytes().all(|byte| {
        let after_slash = std::mem::replace(&mut before, byte) == b'/';
        match byte {
            b'/' | b'.' => !after_slash,
            b'-' | b'_' | b'~' => true,
            _ => byte.is_ascii_alphanumeric(),
        }
    })
}

/// The path as it is matched; nothing when it cannot be.
pub(super) fn canonical(path: &str) -> Option<String> {
    if !path.starts_with('/') {
        return None;
    }
    if is_plain(path) {
        return Some(path.to_owned());
    }
    let mut out = Vec::with_capacity(path.len());
    let mut bytes = path.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'%' => {
                let digit = |b: Option<u8>| char::from(b?).to_digit(16);
                let value = digit(bytes.next())? * 16 + digit(bytes.next())?;
                let value = u8::try_from(value).ok()?;
                match value {
                    b'-' | b'.' | b'_' | b'~' => out.push(value),
                    _ if value.is_ascii_alphanumeric() => out.push(value),
                    0 => return None,
                    _ => out.extend_from_slice(format!("%{value:02X}").as_bytes()),
                }
            }
            b'/' if out.last() == Some(&b'/') => {}
            b'\\' | 0..=b' ' | 127.. => return None,
            _ => out.push(byte),
        }
    }
    let path = String::from_utf8(out).ok()?;
    let walks = |segment: &str| {
        // Some services cut off what follows a semicolon, and some take %5C or %2F for a slash.
        let plain = segment.split(';').next().unwrap_or_default();
        plain == "." || plain == ".."
    };
    let up = match path.contains('%') {
        true => path
            .replace("%2F", "/")
            .replace("%5C", "/")
            .split('/')
            .any(walks),
        false => path.split('/').any(walks),
    };
    match up {
        true => None,
        false => Some(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_path_has_one_spelling() {
        for (path, expected) in [
            ("/orders", "/orders"),
            ("/%6Frders", "/orders"),
            ("//orders///1", "/orders/1"),
            ("/a%2fb%20c", "/a%2Fb%20c"),
            ("/v1.0/a..b/...", "/v1.0/a..b/..."),
            ("/", "/"),
        ] {
            assert_eq!(canonical(path).as_deref(), Some(expected), "{path}");
        }
    }

    #[test]
    fn a_path_that_walks_up_is_refused_in_every_spelling() {
        for path in [
            "/a/../b",
            "/a/..",
            "/./a",
            "/a/%2e%2e/b",
            "/a/.%2E",
            "/a%2f..%2fb",
            "/a/..;x/b",
            "/a\\b",
            "/a%00",
            "/a%zz",
            "/a%",
            "/a%2",
            "a",
            "",
            "/a%5c..%5cb",
        ] {
            assert_eq!(canonical(path), None, "{path}");
        }
    }

    #[test]
    fn the_host_is_said_once() {
        let ask = |uri: &str, hosts: &[&str]| {
            let mut request = http::Request::builder().uri(uri);
            for host in hosts {
                request = request.header(HOST, *host);
            }
            read(&request.body(()).unwrap().into_parts().0)
                .map(|t| t.host)
                .ok()
        };

        assert_eq!(
            ask("/", &["Shop.example:80"]).as_deref(),
            Some("shop.example")
        );
        assert_eq!(
            ask("/", &["shop.example."]).as_deref(),
            Some("shop.example")
        );
        assert_eq!(ask("/", &["[::1]:80"]).as_deref(), Some("[::1]"));
        assert_eq!(ask("http://real/", &["other"]).as_deref(), Some("real"));
        assert_eq!(ask("/", &[]), None);
        assert_eq!(ask("/", &["a", "a"]), None);
        assert_eq!(ask("/", &[""]), None);
        assert_eq!(ask("/", &["a b"]), None);
        assert_eq!(ask("/", &["a/b"]), None);
        assert_eq!(ask("/", &["."]), None);
    }

    #[test]
    fn one_host_has_one_spelling() {
        for (written, expected) in [
            ("shop.example", "shop.example"),
            ("Shop.EXAMPLE.", "shop.example"),
            ("shop.example:80", "shop.example"),
            ("shop.example.:443", "shop.example"),
            ("shop.example:", "shop.example"),
            ("shop.example:08080", "shop.example:8080"),
            ("[FE80::1]:80", "[fe80::1]"),
            ("[::1]", "[::1]"),
        ] {
            let authority = HeaderValue::from_static(written);
            assert_eq!(site(&authority), expected, "{written}");
        }
    }
}
