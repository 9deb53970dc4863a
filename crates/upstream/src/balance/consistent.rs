//! `hash KEY consistent`: ketama's ring. A peer that is added or removed moves only its own share
//! of the keys. The points are those of Cache::Memcached::Fast and nginx.

use std::time::Instant;

use crc32fast::Hasher;

use super::{Balance, HASH_TRIES};
use crate::group::Choice;
use crate::peer_set::PeerSet;

/// Points on the ring for each unit of weight.
const POINTS: u32 = 160;

/// The method, with its ring.
#[derive(Debug, Default)]
pub struct Consistent {
    points: Vec<Point>,
    servers: Vec<String>,
    generation: u64,
}

#[derive(Debug, Clone, Copy)]
struct Point {
    hash: u32,
    server: u32,
}

impl Balance for Consistent {
    fn prepare(&mut self, peers: &PeerSet) {
        self.build(peers);
    }

    fn pick(&mut self, peers: &mut PeerSet, choice: &mut Choice, now: Instant) -> Option<usize> {
        // Weights may have changed since the ring was built.
        if self.generation != peers.generation {
            self.build(peers);
        }
        if choice.refused == 0 {
            let hash = crc32fast::hash(&choice.key);
            choice.hash = self.points.partition_point(|p| p.hash < hash) as u64;
        }
        while choice.refused <= HASH_TRIES && !self.points.is_empty() && !choice.key.is_empty() {
            choice.hash %= self.points.len() as u64;
            let point = self.points.get(choice.hash as usize)?;
            let server = self.servers.get(point.server as usize)?;
            let found = peers.smooth(&choice.tried, now, |s| s.peer.server == *server);
            if found.is_some() {
                return found;
            }
            choice.hash += 1;
            choice.refused += 1;
        }
        peers.turn(&choice.tried, now)
    }
}

impl Consistent {
    fn build(&mut self, peers: &PeerSet) {
        *self = Consistent { generation: peers.generation, ..Consistent::default() };
        for state in peers.list() {
            let server = &state.peer.server;
            if self.servers.contains(server) {
                continue;
            }
            let index = self.servers.len() as u32;
            self.servers.push(server.clone());
            let base = base(server);
            let mut previous = 0u32;
            for _ in 0..state.weight().saturating_mul(POINTS) {
                let mut crc = base.clone();
                crc.update(&previous.to_le_bytes());
                previous = crc.finalize();
                self.points.push(Point { hash: previous, server: index });
            }
        }
        self.points.sort_by_key(|p| p.hash);
        self.points.dedup_by_key(|p| p.hash);
    }
}

/// The checksum over host, a zero byte and port.
fn base(server: &str) -> Hasher {
    let plain = match server.get(..5) {
        Some(prefix) if prefix.eq_ignore_ascii_case("unix:") => server.get(5..).unwrap_or(""),
        _ => server,
    };
    let digits = plain.bytes().rev().take_while(u8::is_ascii_digit).count();
    let (head, port) = plain.split_at(plain.len() - digits);
    let (host, port) = match head.strip_suffix(':') {
        Some(host) => (host, port),
        None => (plain, ""),
    };
    let mut crc = Hasher::new();
    crc.update(host.as_bytes());
    crc.update(&[0]);
    crc.update(port.as_bytes());
    crc
}
