//! Records of a client that has the keys, and bytes of one that does not.

use super::tests::{VERSIONS, ends, receive};
use super::*;

/// The first byte chooses version and cipher. Then follow pieces: a kind, a length, and as many
/// bytes. A kind below 10 sends the bytes as they are, 10 is a key update of the client, and others
/// are content types of records.
fn wire_of(input: &[u8], client: &mut Records) -> (Vec<u8>, Vec<u8>) {
    let (mut wire, mut data) = (Vec::new(), Vec::new());
    let mut rest = input;
    while let [kind, length, tail @ ..] = rest {
        let (contents, tail) = tail.split_at(tail.len().min(usize::from(*length)));
        match kind {
            0..10 => wire.extend_from_slice(contents),
            10 if client.version == Version::Tls13 => {
                let request = contents.first().copied().unwrap_or_default();
                let update = [KEY_UPDATE, 0, 0, 1, request];
                client.sends.seal(HANDSHAKE, &update, &mut wire).unwrap();
                client.sends.renew().unwrap();
            }
            _ => {
                client.sends.seal(*kind, contents, &mut wire).unwrap();
                if *kind == DATA {
                    data.extend_from_slice(contents);
                }
            }
        }
        rest = tail;
    }
    (wire, data)
}

fn check(input: &[u8]) {
    let Some((first, input)) = input.split_first() else { return };
    let (version, chacha) = (VERSIONS[usize::from(first & 1)], first & 2 > 0);
    let [mut server, mut client] = ends(version, chacha);
    let (wire, data) = wire_of(input, &mut client);
    let (plain, mut out, result) = receive(&mut server, wire.clone());
    // No data arrives that the client has not sent.
    assert_eq!(plain, &data[..plain.len()]);

    // Byte by byte, the data and the answers are the same.
    let [mut other, _] = ends(version, chacha);
    let (mut incoming, mut again, mut answers) = (Vec::new(), Vec::new(), Vec::new());
    let mut end = Ok(());
    for byte in wire {
        incoming.push(byte);
        end = other.receive(&mut incoming, &mut again, &mut answers);
        if end.is_err() {
            break;
        }
    }
    assert_eq!((again, answers, end), (plain, out.clone(), result.clone()));

    // The client can decrypt all that the server sends.
    let sent = server.send(b"answer", &mut out);
    server.close(&mut out);
    let (answer, _, read) = receive(&mut client, out);
    assert!(!matches!(read, Err(Error::DecryptError)), "{read:?}");
    assert_eq!(answer == b"answer", sent.is_ok());
    assert!(sent.is_err() || result.is_ok() || matches!(result, Err(Error::AlertReceived(_))));
}

#[test]
fn records() {
    bolero::check!().for_each(|input: &[u8]| check(input));
}
