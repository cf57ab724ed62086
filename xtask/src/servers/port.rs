//! Free ports.

use std::net::{Ipv4Addr, TcpListener};

use crate::scratch::nanos;
use crate::stop::Stop;

/// Below the range from which systems take ports for outgoing connections: such a port could be
/// gone again before the server binds it.
const FIRST: u16 = 20_000;
const COUNT: u16 = 10_000;

/// A port of 127.0.0.1 that nobody listens on.
pub(crate) fn free() -> Result<u16, Stop> {
    let seed = nanos() ^ std::process::id().rotate_left(16);
    // A prime step visits every port once.
    (0..u32::from(COUNT))
        .map(|turn| seed.wrapping_add(turn.wrapping_mul(7919)) % u32::from(COUNT))
        .filter_map(|offset| u16::try_from(offset).ok())
        .map(|offset| FIRST + offset)
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| Stop::failed("no free port on 127.0.0.1"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_free_port_can_be_bound() {
        let port = free().unwrap();

        TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
    }
}
