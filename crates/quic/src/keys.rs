//! Packet keys that convert headers between the connection's version and version 1: see [`Version`].

use std::sync::{Arc, OnceLock};

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, Nonce, UnboundKey};
use bytes::BytesMut;
use quinn_proto::ConnectionId;
use quinn_proto::crypto::{CryptoError, HeaderKey, KeyPair, Keys, PacketKey};
use weir_tls::quic::{InitialSuite, Keys as TlsKeys, PacketKey as TlsKey};

use crate::version::Version;

/// A Handshake, 0-RTT or 1-RTT packet key of a version.
#[derive(Clone)]
pub struct VersionKey {
    key: Arc<Box<dyn TlsKey>>,
    version: Version,
}

impl VersionKey {
    pub fn new(key: Box<dyn TlsKey>, version: Version) -> VersionKey {
        VersionKey { key: Arc::new(key), version }
    }
}

impl PacketKey for VersionKey {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        self.version.write_header(buf);
        PacketKey::encrypt(&*self.key, packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        PacketKey::decrypt(&*self.key, packet, &Version::as_sent(header), payload)
    }

    fn tag_len(&self) -> usize {
        PacketKey::tag_len(&*self.key)
    }

    fn confidentiality_limit(&self) -> u64 {
        PacketKey::confidentiality_limit(&*self.key)
    }

    fn integrity_limit(&self) -> u64 {
        PacketKey::integrity_limit(&*self.key)
    }
}

/// The negotiated version of a connection, once it is known.
pub type Agreed = Arc<OnceLock<Version>>;

/// The Initial keys of a connection: RFC 9001, section 5.2. Received packets have the client's original version or the negotiated
/// one; sent packets have the negotiated one (RFC 9369, section 4.1).
struct InitialKeys {
    suite: InitialSuite,
    id: ConnectionId,
    first: Version,
    agreed: Agreed,
    one: OnceLock<TlsKeys>,
    two: OnceLock<TlsKeys>,
}

impl InitialKeys {
    fn of(&self, version: Version) -> &TlsKeys {
        let keys = match version {
            Version::One => &self.one,
            Version::Two => &self.two,
        };
        keys.get_or_init(|| self.suite.keys(&self.id, version.tls()))
    }

    fn send_version(&self) -> Version {
        self.agreed.get().copied().unwrap_or(self.first)
    }

    fn of_packet(&self, packet: &[u8]) -> &TlsKeys {
        self.of(Version::of_packet(packet).unwrap_or(self.first))
    }
}

/// The Initial keys as quinn's header and packet key, for both directions.
struct Initial(Arc<InitialKeys>);

impl PacketKey for Initial {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        let version = self.0.send_version();
        version.write_header(buf);
        PacketKey::encrypt(&self.0.of(version).local.packet, packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        let key = &self.0.of_packet(header).remote.packet;
        PacketKey::decrypt(key, packet, &Version::as_sent(header), payload)
    }

    fn tag_len(&self) -> usize {
        PacketKey::tag_len(&self.0.of(self.0.first).local.packet)
    }

    fn confidentiality_limit(&self) -> u64 {
        PacketKey::confidentiality_limit(&self.0.of(self.0.first).local.packet)
    }

    fn integrity_limit(&self) -> u64 {
        PacketKey::integrity_limit(&self.0.of(self.0.first).remote.packet)
    }
}

impl HeaderKey for Initial {
    fn decrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        HeaderKey::decrypt(&self.0.of_packet(packet).remote.header, pn_offset, packet);
    }

    fn encrypt(&self, pn_offset: usize, packet: &mut [u8]) {
        HeaderKey::encrypt(&self.0.of_packet(packet).local.header, pn_offset, packet);
    }

    fn sample_size(&self) -> usize {
        HeaderKey::sample_size(&self.0.of(self.0.first).local.header)
    }
}

/// The server's Initial keys for the connection ID that the client has chosen.
pub fn initial(suite: InitialSuite, first: Version, id: &ConnectionId, agreed: Agreed) -> Keys {
    let (one, two) = (OnceLock::new(), OnceLock::new());
    let keys = Arc::new(InitialKeys { suite, id: *id, first, agreed, one, two });
    let key = || Box::new(Initial(keys.clone()));
    Keys {
        header: KeyPair { local: key(), remote: key() },
        packet: KeyPair { local: key(), remote: key() },
    }
}

/// The Retry integrity tag (RFC 9001, section 5.8; RFC 9369, section 3.3.3). `id` is the original destination connection ID;
/// `packet` has the type bits of version 1, as quinn writes it.
pub fn retry_tag(version: Version, id: &ConnectionId, packet: &[u8]) -> [u8; 16] {
    let (key, nonce): ([u8; 16], [u8; 12]) = match version {
        Version::One => (
            0xbe0c_690b_9f66_575a_1d76_6b54_e368_c84e_u128.to_be_bytes(),
            [0x46, 0x15, 0x99, 0xd3, 0x5d, 0x63, 0x2b, 0xf2, 0x23, 0x98, 0x25, 0xbb],
        ),
        Version::Two => (
            0x8fb4_b01b_56ac_48e2_60fb_cbce_ad7c_cc92_u128.to_be_bytes(),
            [0xd8, 0x69, 0x69, 0xbc, 0x2d, 0x7c, 0x6d, 0x99, 0x90, 0xef, 0xb0, 0x4a],
        ),
    };
    let mut all = vec![id.len() as u8];
    all.extend_from_slice(id);
    let at = all.len();
    all.extend_from_slice(packet);
    version.write_header(all.get_mut(at..).unwrap_or_default());
    let tag = UnboundKey::new(&AES_128_GCM, &key).and_then(|key| {
        let (key, nonce) = (LessSafeKey::new(key), Nonce::assume_unique_for_key(nonce));
        key.seal_in_place_separate_tag(nonce, Aad::from(all), &mut [])
    });
    // A key of this length is always valid. A client would drop a Retry with a wrong tag.
    tag.ok().and_then(|tag| tag.as_ref().first_chunk().copied()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(hex: &str) -> Vec<u8> {
        let digits = hex.as_bytes().chunks(2);
        digits
            .map(|two| u8::from_str_radix(std::str::from_utf8(two).unwrap(), 16).unwrap())
            .collect()
    }

    /// The client's connection ID in the examples of RFC 9001 and RFC 9369, appendix A of each.
    fn id() -> ConnectionId {
        ConnectionId::new(&bytes("8394c8f03e515708"))
    }

    #[test]
    fn a_retry_shows_which_packet_it_answers() {
        for (version, packet, tag) in [
            (
                Version::One,
                "ff000000010008f067a5502a4262b5746f6b656e",
                "04a265ba2eff4d829058fb3f0f2496ba",
            ),
            (
                Version::Two,
                "ff6b3343cf0008f067a5502a4262b5746f6b656e",
                "c8646ce8bfe33952d955543665dcc7b6",
            ),
        ] {
            assert_eq!(retry_tag(version, &id(), &bytes(packet)), bytes(tag)[..], "{version:?}");
        }
    }

    /// The server's Initial packet of the examples.
    #[test]
    fn a_first_packet_has_the_form_of_its_version() {
        let frames = "02000000000600405a020000560303eefce7f7b37ba1d1632e96677825ddf73988cfc79825df566dc5430b9a045a12\
                      00130100002e00330024001d00209d3c940d89690b84d08a60993c144eca684d1081287c834d5311bcf32bb9da1a00\
                      2b00020304";
        for (version, sent) in [
            (
                Version::One,
                "cf000000010008f067a5502a4262b5004075c0d95a482cd0991cd25b0aac406a5816b6394100f37a1c69797554780bb38c\
                 c5a99f5ede4cf73c3ec2493a1839b3dbcba3f6ea46c5b7684df3548e7ddeb9c3bf9c73cc3f3bded74b562bfb19fb84022f\
                 8ef4cdd93795d77d06edbb7aaf2f58891850abbdca3d20398c276456cbc42158407dd074ee",
            ),
            (
                Version::Two,
                "dc6b3343cf0008f067a5502a4262b5004075d92faaf16f05d8a4398c47089698baeea26b91eb761d9b89237bbf87263017\
                 915358230035f7fd3945d88965cf17f9af6e16886c61bfc703106fbaf3cb4cfa52382dd16a393e42757507698075b2c984\
                 c707f0a0812d8cd5a6881eaf21ceda98f4bd23f6fe1a3e2c43edd9ce7ca84bed8521e2e140",
            ),
        ] {
            let suite = InitialSuite::new().unwrap();
            // The client's first packet had version 1, and this version was negotiated.
            let agreed = Arc::new(OnceLock::from(version));
            let keys = initial(suite, Version::One, &id(), agreed);
            let head = bytes("c1000000010008f067a5502a4262b50040750001");
            let mut packet = [&head[..], &bytes(frames), &[0; 16]].concat();
            keys.packet.local.encrypt(1, &mut packet, head.len());
            keys.header.local.encrypt(head.len() - 2, &mut packet);
            assert_eq!(packet, bytes(sent), "{version:?}");
        }
    }
}
