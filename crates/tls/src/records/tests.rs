//! A server's record layer and one like it in the client's place, which may send anything.

use proptest::prelude::{any, prop};
use rustls::crypto::cipher::{AeadKey, Iv};
use rustls::{ConnectionTrafficSecrets, Error, ExtractedSecrets, ProtocolVersion};

use super::half::MOST_RECORDS;
use super::*;

pub(super) const VERSIONS: [ProtocolVersion; 2] =
    [ProtocolVersion::TLSv1_2, ProtocolVersion::TLSv1_3];

/// The two ends of a connection with keys of these bytes.
pub(super) fn ends(version: ProtocolVersion, chacha: bool) -> [Records; 2] {
    let keys = |byte| {
        let (key, iv) = (AeadKey::from([byte; 32]), Iv::from([byte + 1; 12]));
        let keys = match chacha {
            true => ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv },
            false => ConnectionTrafficSecrets::Aes256Gcm { key, iv },
        };
        (0, keys)
    };
    let secret = |byte| zeroize::Zeroizing::new([byte; 48]);
    let end = |own: u8, other: u8| {
        let keys = ExtractedSecrets { tx: keys(own), rx: keys(other) };
        let secrets = TrafficSecrets { server: secret(own), client: secret(other) };
        Records::new(keys, version, Some(Box::new(secrets)), MOST_PLAIN).unwrap()
    };
    [end(1, 11), end(11, 1)]
}

/// Lets an end receive bytes: the data, the answer, and the result.
pub(super) fn receive(
    end: &mut Records,
    mut bytes: Vec<u8>,
) -> (Vec<u8>, Vec<u8>, Result<(), Error>) {
    let (mut plain, mut out) = (Vec::new(), Vec::new());
    let result = end.receive(&mut bytes, &mut plain, &mut out);
    (plain, out, result)
}

/// The alert that an end has sent.
fn alert(end: &mut Records, bytes: Vec<u8>) -> Option<u8> {
    match receive(end, bytes).2 {
        Err(Error::AlertReceived(alert)) => Some(u8::from(alert)),
        _ => None,
    }
}

fn sealed(end: &mut Records, records: &[(u8, &[u8])]) -> Vec<u8> {
    let mut wire = Vec::new();
    for (kind, contents) in records {
        end.sends.seal(*kind, contents, &mut wire).unwrap();
    }
    wire
}

#[test]
fn data_arrives_however_it_is_cut() {
    for (version, chacha) in VERSIONS.into_iter().flat_map(|v| [(v, false), (v, true)]) {
        let [mut server, mut client] = ends(version, chacha);
        for size in [1, 2, 16_383, 16_384, 16_385, 100_000] {
            let data: Vec<u8> = (0..size).map(|n| n as u8).collect();
            let mut wire = Vec::new();
            client.send(&data, &mut wire).unwrap();
            let (mut incoming, mut plain, mut out) = (Vec::new(), Vec::new(), Vec::new());
            for piece in wire.chunks(size / 7 + 1) {
                incoming.extend_from_slice(piece);
                server.receive(&mut incoming, &mut plain, &mut out).unwrap();
            }
            assert_eq!(
                (plain, incoming, out),
                (data.clone(), vec![], vec![]),
                "{version:?} {size}"
            );
            let mut wire = Vec::new();
            server.send(&data, &mut wire).unwrap();
            assert_eq!(receive(&mut client, wire), (data, vec![], Ok(())));
        }
    }
}

#[test]
fn nothing_follows_close_notify() {
    for version in VERSIONS {
        let [mut server, mut client] = ends(version, false);
        let mut wire = Vec::new();
        client.send(b"data", &mut wire).unwrap();
        client.close(&mut wire);
        client.close(&mut wire);
        assert_eq!(client.send(b"more", &mut wire), Err(Error::EncryptError));
        wire.extend_from_slice(b"anything");
        assert_eq!(receive(&mut server, wire), (b"data".to_vec(), vec![], Ok(())));
        assert!(server.peer_closed && !server.is_over());
        let mut wire = Vec::new();
        server.send(b"answer", &mut wire).unwrap();
        server.close(&mut wire);
        assert!(server.is_over());
        assert_eq!(receive(&mut client, wire).0, b"answer");
        assert!(client.is_over());
    }
}

#[test]
fn a_forbidden_record_ends_the_connection_with_an_alert() {
    let long = vec![7; MOST_PLAIN + 1];
    let hello = [&[CLIENT_HELLO, 0, 0, 40][..], &[0; 40]].concat();
    let hellos = [&hello[..], &hello].concat();
    let empty = [(DATA, &[][..]); 33];
    let update = [(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0][..])];
    let before: Vec<_> = [(ALERT, &[1, 90][..]); 5].into();
    let [old, new] = VERSIONS;
    for (version, records, expected) in [
        (old, &[(DATA, &long[..])][..], 22),
        (new, &[(DATA, &long)], 22),
        (old, &empty, 10),
        (new, &empty, 10),
        (old, &[(ALERT, &[1])], 50),
        (new, &[(ALERT, &[1, 0, 0])], 50),
        (old, &[(ALERT, &[])], 10),
        (new, &[(ALERT, &[])], 10),
        (old, &[(ALERT, &[3, 40])], 47),
        (new, &[(ALERT, &[1, 100])], 50),
        (old, &before, 10),
        (new, &before, 10),
        (old, &[(CHANGE_CIPHER_SPEC, &[1])], 10),
        (new, &[(CHANGE_CIPHER_SPEC, &[1])], 10),
        (new, &[(HANDSHAKE, &[])], 10),
        (new, &[(HANDSHAKE, &hello)], 10),
        (new, &[(HANDSHAKE, &[KEY_UPDATE, 0, 0, 2, 0, 0])], 50),
        (new, &[(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 2])], 47),
        (new, &[(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0, KEY_UPDATE])], 10),
        (new, &[(HANDSHAKE, &[KEY_UPDATE, 0]), (DATA, b"x")], 10),
        (old, &update, 10),
        (old, &[(HANDSHAKE, &hellos)], 10),
        (old, &[(HANDSHAKE, &hello[..9]), (DATA, b"x")], 10),
        (old, &[(HANDSHAKE, &[CLIENT_HELLO, 1, 0, 0])], 50),
        (old, &[(HANDSHAKE, &[CLIENT_HELLO, 0, 0, 0])], 50),
    ] {
        let [mut server, mut client] = ends(version, false);
        let mut wire = sealed(&mut client, &[(DATA, b"good")]);
        wire.extend(sealed(&mut client, records));
        let (plain, mut out, result) = receive(&mut server, wire);
        assert_eq!(plain, b"good");
        assert!(result.is_err(), "{version:?} {expected}");
        // The first ClientHello was refused with a warning.
        if records == [(HANDSHAKE, &hellos[..])] {
            out.drain(..HEAD + 8 + 2 + 16);
            client.receives.next().unwrap();
        }
        assert_eq!(alert(&mut client, out), Some(expected), "{version:?} {records:?}");
        let mut out = Vec::new();
        server.close(&mut out);
        assert_eq!((out, server.send(b"x", &mut Vec::new())), (vec![], Err(Error::EncryptError)));
    }
}

#[test]
fn an_invalid_header_is_refused_before_the_rest_of_its_record() {
    let [old, new] = VERSIONS;
    for (version, head, expected) in [
        (old, [0x47, 0x45, 0x54, 0x20, 0x2f], 50),
        (old, [DATA, 2, 0, 0, 0], 50),
        (old, [DATA, 3, 3, 0xff, 0xff], 22),
        (old, [DATA, 3, 3, 0x48, 0x01], 22),
        (new, [DATA, 3, 3, 0x41, 0x01], 22),
        (new, [ALERT, 3, 3, 0, 2], 10),
        (new, [CHANGE_CIPHER_SPEC, 3, 3, 0, 1], 10),
    ] {
        let [mut server, mut client] = ends(version, false);
        let (plain, out, result) = receive(&mut server, head.to_vec());
        assert!(plain.is_empty() && result.is_err());
        assert_eq!(alert(&mut client, out), Some(expected), "{head:?}");
    }
}

#[test]
fn a_fatal_alert_ends_the_connection_without_an_answer() {
    for version in VERSIONS {
        let [mut server, mut client] = ends(version, false);
        let wire = sealed(&mut client, &[(ALERT, &[2, 40])]);
        let (_, out, result) = receive(&mut server, wire);
        let refused = Error::AlertReceived(AlertDescription::HandshakeFailure);
        assert_eq!((out, result), (vec![], Err(refused)));
    }
}

#[test]
fn padding_is_not_data() {
    let [mut server, mut client] = ends(ProtocolVersion::TLSv1_3, true);
    // The kind, then padding, as contents; the kind that is appended is padding, too.
    let wire = sealed(&mut client, &[(0, b"data\x17\0\0\0"), (0, b"\x17")]);
    assert_eq!(receive(&mut server, wire), (b"data".to_vec(), vec![], Ok(())));
    let wire = sealed(&mut client, &[(0, &[0; 100])]);
    let (_, out, _) = receive(&mut server, wire);
    assert_eq!(alert(&mut client, out), Some(10));
}

#[test]
fn renegotiation_is_refused_once() {
    let [mut server, mut client] = ends(ProtocolVersion::TLSv1_2, false);
    let hello = [&[CLIENT_HELLO, 0, 1, 0][..], &[0; 256]].concat();
    let wire = sealed(&mut client, &[(HANDSHAKE, &hello[..3]), (HANDSHAKE, &hello[3..])]);
    let (_, out, result) = receive(&mut server, wire);
    assert_eq!(result, Ok(()));
    // no_renegotiation, a warning.
    assert_eq!(receive(&mut client, out).2, Ok(()));
    assert_eq!(client.warnings, 1);
    let wire = sealed(&mut client, &[(DATA, b"data")]);
    assert_eq!(receive(&mut server, wire).0, b"data");
}

#[test]
fn a_requested_key_update_comes_once_and_before_data() {
    for chacha in [false, true] {
        let [mut server, mut client] = ends(ProtocolVersion::TLSv1_3, chacha);
        for _ in 0..3 {
            let mut wire = Vec::new();
            for _ in 0..3 {
                client.sends.seal(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 1], &mut wire).unwrap();
                client.sends.renew().unwrap();
                client.send(b"data", &mut wire).unwrap();
            }
            assert_eq!(receive(&mut server, wire), (b"data".repeat(3), vec![], Ok(())));
            for kept in [false, true] {
                let mut wire = Vec::new();
                server.send(b"answer", &mut wire).unwrap();
                assert_eq!(wire.len() == HEAD + 6 + 1 + 16, kept);
                assert_eq!(receive(&mut client, wire).0, b"answer");
            }
        }
    }
}

#[test]
fn an_exhausted_key_is_replaced_or_ends_the_connection() {
    for version in VERSIONS {
        let [mut server, mut client] = ends(version, false);
        server.sends.set_count(MOST_RECORDS - 1);
        client.receives.set_count(MOST_RECORDS - 1);
        let mut wire = Vec::new();
        server.send(b"last", &mut wire).unwrap();
        assert!(server.sends.is_exhausted());
        let more = server.send(b"more", &mut wire);
        let (plain, _, result) = receive(&mut client, wire);
        if version == ProtocolVersion::TLSv1_3 {
            assert_eq!((plain, more, result), (b"lastmore".to_vec(), Ok(()), Ok(())));
        } else {
            assert_eq!((plain, more), (b"last".to_vec(), Err(Error::EncryptError)));
            assert!(client.peer_closed);
        }
    }
}

proptest::proptest! {
    #[test]
    fn a_changed_byte_is_found(
        new in any::<bool>(), chacha in any::<bool>(),
        pieces in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 1..5),
        at in any::<prop::sample::Index>(), change in 1u8..,
    ) {
        let [mut server, mut client] = ends(VERSIONS[usize::from(new)], chacha);
        let (mut wire, mut ends) = (Vec::new(), vec![(0, 0)]);
        let mut sent = 0;
        for piece in &pieces {
            client.sends.seal(DATA, piece, &mut wire).unwrap();
            sent += piece.len();
            ends.push((wire.len(), sent));
        }
        let at = at.index(wire.len());
        wire[at] ^= change;
        let (plain, _, result) = receive(&mut server, wire);
        // The records before it have arrived, and nothing else. A longer length may wait for more.
        let good = ends.iter().rev().find(|(end, _)| *end <= at).unwrap().1;
        assert_eq!(plain, &pieces.concat()[..good]);
        let record = ends.iter().rev().find(|(end, _)| *end <= at).unwrap().0;
        assert!(result.is_err() || (3..HEAD).contains(&(at - record)));
    }

    #[test]
    fn any_bytes_are_decided(new in any::<bool>(), bytes in any::<Vec<u8>>(), kind in 20u8..24) {
        let [mut server, mut client] = ends(VERSIONS[usize::from(new)], false);
        let mut wire = sealed(&mut client, &[(kind, &bytes)]);
        let cut = wire.len() / 2;
        wire.extend_from_slice(&bytes);
        let rest = wire.split_off(cut);
        let (mut plain, mut out) = (Vec::new(), Vec::new());
        for piece in [wire, rest] {
            let mut incoming = piece;
            let _ = server.receive(&mut incoming, &mut plain, &mut out);
            let _ = server.send(b"x", &mut out);
        }
        server.close(&mut out);
    }
}
