//! Which addresses are public.
//!
//! # Promise
//! An address passes only if the whole internet can mean the same host by it. Whatever a network
//! reserves for itself (loopback, private ranges, link-local, metadata services) does not pass, nor
//! does an IPv6 spelling of such an IPv4 address.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Whether this address may be connected to without permission.
pub(crate) fn is_public(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => is_public_v4(v4),
        IpAddr::V6(v6) => match behind_nat64(v6) {
            Some(v4) => is_public_v4(v4),
            None => is_public_v6(v6),
        },
    }
}

/// The ranges that IANA lists as special, and one address that a cloud uses for its own.
fn is_public_v4(address: Ipv4Addr) -> bool {
    !matches!(
        address.octets(),
        [0 | 10 | 127, ..]                  // this network, private, loopback
            | [100, 64..=127, ..]           // carrier-grade NAT
            | [168, 63, 129, 16]            // Azure's platform address
            | [169, 254, ..]                // link-local, metadata services
            | [172, 16..=31, ..]            // private
            | [192, 0, 0 | 2, _]            // protocol assignments, documentation
            | [192, 88, 99, _]              // 6to4 relays
            | [192, 168, ..]                // private
            | [198, 18 | 19, ..]            // benchmarks
            | [198, 51, 100, _]             // documentation
            | [203, 0, 113, _]              // documentation
            | [224..=255, ..] // multicast, reserved, broadcast
    )
}

/// Global unicast only; everything outside `2000::/3` is special or not given out.
fn is_public_v6(address: Ipv6Addr) -> bool {
    match address.segments() {
        [0x2001, 0..=0x01ff, ..] => false, // protocol assignments, Teredo
        [0x2001, 0x0db8, ..] => false,     // documentation
        [0x2002, ..] => false,             // 6to4 hides an IPv4 address
        [0x3fff, 0..=0x0fff, ..] => false, // documentation
        [0x2000..=0x3fff, ..] => true,
        _ => false,
    }
}

/// The IPv4 address behind NAT64, which is the only way to IPv4 receivers out of an IPv6-only
/// network. No other IPv6 spelling of an IPv4 address is public.
fn behind_nat64(address: Ipv6Addr) -> Option<Ipv4Addr> {
    match address.segments() {
        [0x64, 0xff9b, 0, 0, 0, 0, high, low] => {
            Some(Ipv4Addr::from(u32::from(high) << 16 | u32::from(low)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn public(text: &str) -> bool {
        is_public(text.parse().unwrap())
    }

    #[test]
    fn special_ipv4_ranges_are_refused_from_end_to_end() {
        for text in "0.0.0.0 0.255.255.255 10.0.0.0 10.255.255.255 100.64.0.0 100.127.255.255 \
             127.0.0.1 127.255.255.255 168.63.129.16 169.254.0.0 169.254.169.254 172.16.0.0 \
             172.31.255.255 192.0.0.192 192.0.2.1 192.88.99.1 192.168.0.0 192.168.255.255 \
             198.18.0.0 198.19.255.255 198.51.100.7 203.0.113.7 224.0.0.1 239.255.255.255 \
             240.0.0.1 255.255.255.255"
            .split(' ')
        {
            assert!(!public(text), "{text}");
        }
    }

    #[test]
    fn neighbours_of_special_ipv4_ranges_pass() {
        for text in "1.1.1.1 9.255.255.255 11.0.0.0 100.63.255.255 100.128.0.0 126.255.255.255 \
             128.0.0.1 168.63.129.17 169.253.255.255 169.255.0.0 172.15.255.255 172.32.0.0 \
             192.0.1.1 192.167.255.255 192.169.0.0 198.17.255.255 198.20.0.0 198.51.101.1 \
             203.0.114.1 223.255.255.255"
            .split(' ')
        {
            assert!(public(text), "{text}");
        }
    }

    #[test]
    fn special_ipv6_ranges_are_refused() {
        for text in ":: ::1 ::10.0.0.1 ::8.8.8.8 fc00::1 fdff::1 fe80::1 fec0::1 ff02::1 2001::1 \
             2001:db8::1 2002:a00:1::1 3fff::1 100::1 5f00::1 64:ff9b:1::1"
            .split(' ')
        {
            assert!(!public(text), "{text}");
        }
        assert!(public("2606:4700:4700::1111"));
        assert!(public("2a00:1450:4001:80b::200e"));
        assert!(public("2001:4860:4860::8888"));
    }

    #[test]
    fn an_ipv4_address_cannot_hide_in_an_ipv6_one() {
        for text in
            "::ffff:127.0.0.1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 ::ffff:8.8.8.8".split(' ')
        {
            assert!(!public(text), "{text}");
        }
        assert!(!public("64:ff9b::127.0.0.1"));
        assert!(!public("64:ff9b::10.1.2.3"));
        assert!(public("64:ff9b::8.8.8.8"));
    }
}
