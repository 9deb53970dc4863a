//! Key updates (RFC 9001, section 6).
//!
//! quinn changes its keys for the first time after 10 to 1,000 packets, at random, so that peers that cannot follow are found early.
//! Such clients work with nginx, which never begins a change. So the keys here hold quinn's first change back: sent packets keep the
//! first key and its phase bit until the client has changed its keys, or until the packet number [`FIRST_UPDATE`]. Later changes are
//! quinn's alone; the second one comes when a key has protected as many packets as it may. Connections with 0-RTT change their keys when
//! quinn does.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, KeyPair, PacketKey};

use crate::keys::VersionKey;

/// The packet number of the server's first change of keys, if the client does not change them before. It is far below each cipher's
/// limit (RFC 9001, section 6.6), and some 20 MB are sent before it.
const FIRST_UPDATE: u64 = 1 << 14;
/// The Key Phase bit of a short header: RFC 9000, section 17.3.1.
const KEY_PHASE: u8 = 0x04;

/// A key of one direction, from quinn's first change on.
pub struct SecondKey {
    key: VersionKey,
    /// The first key, for sent packets.
    first: Option<VersionKey>,
    /// The first change of keys has begun: the client or this server has sent a packet with the second key. Both directions share it.
    begun: Arc<AtomicBool>,
}

impl SecondKey {
    /// The second pair of keys, which begins behind this first key for sent packets.
    pub fn pair(first: VersionKey, second: KeyPair<VersionKey>) -> KeyPair<SecondKey> {
        let begun = Arc::<AtomicBool>::default();
        KeyPair {
            local: SecondKey { key: second.local, first: Some(first), begun: begun.clone() },
            remote: SecondKey { key: second.remote, first: None, begun },
        }
    }
}

impl PacketKey for SecondKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        match &self.first {
            Some(first) if packet < FIRST_UPDATE && !self.begun.load(Relaxed) => {
                // quinn has written the bit of the second key.
                if let Some(byte) = buf.first_mut() {
                    *byte ^= KEY_PHASE;
                }
                first.encrypt(packet, buf, header_len);
            }
            _ => {
                self.begun.store(true, Relaxed);
                self.key.encrypt(packet, buf, header_len);
            }
        }
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        self.begun.store(true, Relaxed);
        Ok(())
    }

    fn tag_len(&self) -> usize {
        self.key.tag_len()
    }

    fn confidentiality_limit(&self) -> u64 {
        self.key.confidentiality_limit()
    }

    fn integrity_limit(&self) -> u64 {
        self.key.integrity_limit()
    }
}

#[cfg(test)]
mod tests {
    use weir_tls::quic::InitialSuite;

    use super::*;
    use crate::version::Version;

    /// A short header without a connection ID: the first byte, and a packet number of one byte.
    const HEADER: [u8; 2] = [0x40 | KEY_PHASE, 7];

    fn keys() -> [VersionKey; 2] {
        let suite = InitialSuite::new().unwrap();
        [b"first", b"other"].map(|id| {
            VersionKey::new(suite.keys(id, Version::One.tls()).local.packet, Version::One)
        })
    }

    fn pair([first, second]: &[VersionKey; 2]) -> KeyPair<SecondKey> {
        SecondKey::pair(first.clone(), KeyPair { local: second.clone(), remote: second.clone() })
    }

    /// Encrypts a packet as quinn does after its first change. Says whether the packet has the second key's bit.
    fn uses_second(key: &SecondKey, [first, second]: &[VersionKey; 2], number: u64) -> bool {
        let mut packet = [&HEADER[..], b"text", &vec![0; key.tag_len()]].concat();
        key.encrypt(number, &mut packet, HEADER.len());
        let (header, payload) = packet.split_at(HEADER.len());
        let is_second = header[0] & KEY_PHASE != 0;
        let mut payload = BytesMut::from(payload);
        let used = if is_second { second } else { first };
        used.decrypt(number, header, &mut payload).unwrap();
        assert_eq!(payload, b"text"[..]);
        is_second
    }

    #[test]
    fn the_server_changes_keys_once_many_packets_were_sent() {
        let keys = keys();
        let KeyPair { local: key, .. } = pair(&keys);
        for (number, is_second) in [(11, false), (FIRST_UPDATE - 1, false), (FIRST_UPDATE, true)] {
            assert_eq!(uses_second(&key, &keys, number), is_second, "{number}");
        }
        // A change is never taken back.
        assert!(uses_second(&key, &keys, 12));
    }

    #[test]
    fn the_server_follows_a_packet_with_the_clients_second_key() {
        let keys = keys();
        let KeyPair { local: send, remote: receive } = pair(&keys);
        let mut forged = BytesMut::from(&[0; 40][..]);
        assert!(receive.decrypt(3, &HEADER, &mut forged).is_err());
        assert!(!uses_second(&send, &keys, 11));
        let mut packet = [&HEADER[..], b"text", &vec![0; receive.tag_len()]].concat();
        keys[1].encrypt(3, &mut packet, HEADER.len());
        let mut payload = BytesMut::from(&packet[HEADER.len()..]);
        receive.decrypt(3, &HEADER, &mut payload).unwrap();
        assert!(uses_second(&send, &keys, 12));
    }
}
