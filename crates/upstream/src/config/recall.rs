//! The last known addresses of names. All workers and configurations share them, so that a new
//! worker can serve before its name server answers. nginx: ngx_http_upstream_zone_preresolve.

use std::hash::{BuildHasher, BuildHasherDefault, DefaultHasher};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Instant;

use crate::{Peer, PeerAddress};
use weir_zone::{Claimed, Declarations, Row, Rows, Use, ZoneError, ZoneRef};

/// Words of a row, each for one address: the number of addresses (in the first row of a name), the
/// address, port, weight and `backup`, then the server's name.
const VALUES: usize = NAME + NAME_WORDS;
const COUNT: usize = 0;
const HIGH: usize = 1;
const LOW: usize = 2;
const PORT: usize = 3;
const WEIGHT: usize = 4;
const BACKUP: usize = 5;
const NAME: usize = 6;
/// Room for 256 bytes. A DNS name has 255 at most.
const NAME_WORDS: usize = 32;
/// Bytes of the zone: room for about 200 addresses. Beyond that, the oldest are evicted.
const SIZE: u64 = 192 * 1024;
/// The most addresses of one name.
const MOST: usize = 100;

/// A stored address of a name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RecalledAddress {
    /// The address.
    pub address: SocketAddr,
    /// The target of an SRV record, or the server as written.
    pub server: String,
    /// The weight.
    pub weight: u32,
    /// Whether the peer is a backup.
    pub backup: bool,
}

/// The stored addresses of a group's names.
#[derive(Debug)]
pub struct Recall {
    group: String,
    zone: ZoneRef,
}

impl Recall {
    /// Declares the zone of a group.
    pub fn declare(zones: &Declarations, group: &str) -> Result<Recall, ZoneError> {
        let purpose = Use::of("upstream names", 0);
        let zone = zones.declare(&format!("names of upstream {group}"), SIZE, purpose)?;
        Ok(Recall { group: group.to_owned(), zone })
    }

    /// The stored addresses of a name.
    pub fn read(&self, name: &str, now: Instant) -> Vec<RecalledAddress> {
        let Some(zone) = self.zone.get() else { return Vec::new() };
        let (mut rows, now) = (zone.rows(VALUES), zone.msec(now));
        let Some(first) = self.row(&mut rows, name, 0, now) else { return Vec::new() };
        let count = usize::try_from(rows.value(first, COUNT)).unwrap_or(0).min(MOST);
        let each = (0..count).filter_map(|i| {
            let row = self.row(&mut rows, name, i, now)?;
            known(&rows, row)
        });
        each.collect()
    }

    /// Stores the addresses of a name.
    pub fn write(&self, name: &str, peers: &[std::sync::Arc<Peer>], now: Instant) {
        let Some(zone) = self.zone.get() else { return };
        let (mut rows, now) = (zone.rows(VALUES), zone.msec(now));
        let Some(first) = self.row(&mut rows, name, 0, now) else { return };
        // A process that is killed in between leaves no addresses, not a mixture of old and new
        // ones.
        rows.set_value(first, COUNT, 0);
        let mut count = 0;
        for peer in peers.iter().take(MOST) {
            let PeerAddress::Inet(address) = &peer.endpoint else { continue };
            let Some(row) = self.row(&mut rows, name, count, now) else { break };
            let bits = match address.ip() {
                IpAddr::V4(ip) => ip.to_ipv6_mapped().to_bits(),
                IpAddr::V6(ip) => ip.to_bits(),
            };
            rows.set_value(row, HIGH, (bits >> 64) as u64);
            rows.set_value(row, LOW, bits as u64);
            rows.set_value(row, PORT, address.port().into());
            rows.set_value(row, WEIGHT, peer.options.weight.into());
            rows.set_value(row, BACKUP, peer.options.backup.into());
            write_name(&mut rows, row, &peer.server);
            count += 1;
        }
        rows.set_value(first, COUNT, count as u64);
    }

    fn row(&self, rows: &mut Rows<'_>, name: &str, nth: usize, now: u64) -> Option<Row> {
        // The hash must be the same in every process, so it has no random keys.
        let hash = BuildHasherDefault::<DefaultHasher>::default();
        let all = (&self.group, name, nth);
        let id =
            u128::from(hash.hash_one((0u8, &all))) << 64 | u128::from(hash.hash_one((1u8, &all)));
        match rows.claim(id, now)? {
            Claimed::Known(row) | Claimed::New(row) => Some(row),
        }
    }
}

/// Writes a name, eight bytes a word, padded with zeros.
fn write_name(rows: &mut Rows<'_>, row: Row, name: &str) {
    let mut words = name.as_bytes().chunks(8);
    for at in NAME..VALUES {
        let mut bytes = [0; 8];
        for (byte, of_name) in bytes.iter_mut().zip(words.next().unwrap_or_default()) {
            *byte = *of_name;
        }
        rows.set_value(row, at, u64::from_le_bytes(bytes));
    }
}

fn read_name(rows: &Rows<'_>, row: Row) -> String {
    let bytes = (NAME..VALUES).flat_map(|at| rows.value(row, at).to_le_bytes());
    let name: Vec<u8> = bytes.take_while(|byte| *byte != 0).collect();
    String::from_utf8_lossy(&name).into_owned()
}

fn known(rows: &Rows<'_>, row: Row) -> Option<RecalledAddress> {
    let bits = u128::from(rows.value(row, HIGH)) << 64 | u128::from(rows.value(row, LOW));
    let port = u16::try_from(rows.value(row, PORT)).ok().filter(|_| bits != 0)?;
    let ip = Ipv6Addr::from_bits(bits).to_canonical();
    let weight = u32::try_from(rows.value(row, WEIGHT)).unwrap_or(1).max(1);
    let backup = rows.value(row, BACKUP) != 0;
    let server = read_name(rows, row);
    Some(RecalledAddress { address: SocketAddr::new(ip, port), server, weight, backup })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crate::PeerOptions;
    use weir_zone::Zones;

    use super::*;

    const NAMED: &str = "server-1.example.com";

    fn peer(address: &str, weight: u32, backup: bool) -> Arc<Peer> {
        let endpoint = PeerAddress::Inet(address.parse().unwrap());
        Arc::new(Peer::new(
            endpoint,
            NAMED,
            PeerOptions { weight, backup, ..PeerOptions::default() },
        ))
    }

    #[test]
    fn the_next_configuration_knows_what_the_last_one_was_told() {
        let now = Instant::now();
        let open = |old: &Zones| {
            let zones = Declarations::default();
            let recall = Recall::declare(&zones, "u").unwrap();
            (recall, zones.open(old).unwrap())
        };
        let (old, zones) = open(&Zones::default());
        assert_eq!(old.read("a", now), []);
        let peers = [peer("127.0.0.1:80", 2, false), peer("[2001:db8::1]:81", 1, true)];
        old.write("a", &peers, now);
        old.write("b", &peers[..1], now);
        let (new, _) = open(&zones);
        let known = new.read("a", now);
        let seen = known.iter().map(|k| (k.address.to_string(), k.weight, k.backup));
        assert_eq!(
            seen.collect::<Vec<_>>(),
            [("127.0.0.1:80".to_owned(), 2, false), ("[2001:db8::1]:81".to_owned(), 1, true)]
        );
        assert!(known.iter().all(|k| k.server == NAMED));
        assert_eq!(new.read("b", now).len(), 1);
        new.write("a", &[], now);
        assert_eq!(new.read("a", now), []);
        assert_eq!(new.read("c", now), []);
    }

    #[test]
    fn more_than_there_is_room_for_is_forgotten() {
        let (zones, now) = (Declarations::default(), Instant::now());
        let recall = Recall::declare(&zones, "u").unwrap();
        let _open = zones.open(&Zones::default()).unwrap();
        let peers: Vec<_> = (1..200).map(|n| peer(&format!("127.0.0.1:{n}"), 1, false)).collect();
        for (i, name) in (0..).zip(["a", "b", "c", "d", "e"]) {
            let now = now + std::time::Duration::from_secs(i);
            recall.write(name, &peers, now);
            assert_eq!(recall.read(name, now).len(), MOST, "{name}");
        }
    }
}
