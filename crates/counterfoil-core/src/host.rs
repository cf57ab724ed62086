//! Whether a server is on this machine.
//!
//! Connections to another machine are encrypted, and the server's certificate and name verified, unless
//! the URL says otherwise: who can read or forge them can read and forge every message.

use std::net::IpAddr;

/// Whether this host, as it stands in a URL, or this path of a socket, is on this machine.
pub fn is_this_machine(host: &str) -> bool {
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    let name = bare.unwrap_or(host);
    name.is_empty()
        || name.starts_with('/')
        || name.eq_ignore_ascii_case("localhost")
        || name
            .parse::<IpAddr>()
            .is_ok_and(|address| address.to_canonical().is_loopback())
}

/// Whether the query of a URL has one of these keys.
pub fn url_says(url: &str, keys: &[&str]) -> bool {
    let query = url.split_once('?').map_or("", |(_, query)| query);
    let query = query.split_once('#').map_or(query, |(query, _)| query);
    query
        .split('&')
        .filter_map(|pair| pair.split('=').next())
        .any(|key| keys.contains(&key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_loopback_and_sockets_are_this_machine() {
        let here = [
            "localhost",
            "LOCALHOST",
            "127.0.0.1",
            "127.9.9.9",
            "::1",
            "[::1]",
            "::ffff:127.0.0.1",
            "/run/postgresql",
            "",
        ];
        for host in here {
            assert!(is_this_machine(host), "{host}");
        }
        let elsewhere = [
            "db.example.com",
            "localhost.example.com",
            "localhost.",
            "10.0.0.1",
            "0.0.0.0",
            "192.168.1.1",
            "fd00::1",
            "postgres",
        ];
        for host in elsewhere {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn a_key_of_a_url_is_found_in_its_query_only() {
        let keys = ["sslmode", "ssl-mode"];

        assert!(url_says("postgres://h/a?sslmode=disable", &keys));
        assert!(url_says("postgres://h/a?x=1&ssl-mode=require#y", &keys));
        assert!(!url_says("postgres://sslmode=a@h/sslmode?x=sslmode", &keys));
        assert!(!url_says("postgres://h/a?x=1#&sslmode=disable", &keys));
    }
}
