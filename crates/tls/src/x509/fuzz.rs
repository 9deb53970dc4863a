//! Certificates, revocation lists and OCSP responses of peers, with some bytes changed.

use super::ocsp::{OcspRequest, Signer};
use super::{Certificate, KnownList, Purpose, TrustStore, host, name, verify};

macro_rules! data {
    ($name:literal) => {
        include_bytes!(concat!("../../testdata/", $name)).as_slice()
    };
}

/// January 2027.
const NOW: i64 = 1_800_000_000;

fn der(pem: &[u8]) -> Vec<u8> {
    crate::certificates(pem).expect("testdata").remove(0).to_vec()
}

/// Each change is two bytes of position and the new byte. A last single byte is the number of bytes
/// to cut off the end.
fn changed(mut bytes: Vec<u8>, changes: &[u8]) -> Vec<u8> {
    let (changes, end) = changes.as_chunks::<3>();
    for [high, low, byte] in changes {
        let at = usize::from(u16::from_be_bytes([*high, *low])) % bytes.len().max(1);
        bytes.iter_mut().skip(at).take(1).for_each(|old| *old = *byte);
    }
    if let [byte] = end {
        bytes.truncate(bytes.len().saturating_sub(usize::from(*byte)));
    }
    bytes
}

/// Does with a certificate of a peer all that weir does. It is trusted only if its signed part is
/// unchanged.
fn look_at(bytes: &[u8], of: &[u8], root: &[u8], lists: &[KnownList]) {
    let Some(certificate) = Certificate::parse(bytes) else { return };
    for text in [name::rfc2253(certificate.subject), name::oneline(certificate.issuer)] {
        assert!(text.len() <= 16 * bytes.len() + 16, "{text}");
    }
    assert!(name::same(certificate.subject, certificate.subject));
    host::matches(&certificate, b"www.example.org");
    let anchors = [root.to_vec()];
    for lists in [&[], lists] {
        let trust = TrustStore { anchors: &anchors, lists, depth: 5, now: NOW };
        for purpose in [Purpose::Client, Purpose::Server, Purpose::Responder] {
            if verify::path(&[bytes, root], &trust, purpose).is_ok() {
                let before = Certificate::parse(of).map(|certificate| certificate.tbs);
                assert_eq!(Some(certificate.tbs), before);
            }
        }
    }
}

#[test]
fn signed_bytes() {
    let [root, inter, leaf] = [data!("root.pem"), data!("inter.pem"), data!("leaf.pem")].map(der);
    let client = der(data!("client.pem"));
    let list = crate::pem::sections(data!("root.crl")).expect("testdata").remove(0).der;
    let answers = [data!("good.ocsp"), data!("delegated.ocsp"), data!("revoked.ocsp")];
    let read = |bytes: &[u8]| Certificate::parse(bytes).is_some();
    assert!([&root, &inter, &leaf, &client].iter().all(|bytes| read(bytes)));
    bolero::check!().for_each(|input: &[u8]| {
        let Some((which, changes)) = input.split_first() else { return };
        match which % 8 {
            0 => look_at(changes, &[], &root, &[]),
            1..=4 => {
                let of = [&root, &inter, &leaf, &client][usize::from(which % 8 - 1)];
                look_at(&changed(of.clone(), changes), of, &root, &[]);
            }
            5 => {
                let lists = KnownList::new(changed(list.clone(), changes));
                look_at(&inter, &inter, &root, &Vec::from_iter(lists));
            }
            _ => {
                let answer = answers[usize::from(which / 8) % answers.len()];
                let answer = changed(answer.to_vec(), changes);
                let certificate = |der| Certificate::parse(der).expect("testdata");
                let question = OcspRequest::new(&certificate(&leaf), &certificate(&inter));
                let anchors = [root.clone()];
                let trust = TrustStore { anchors: &anchors, lists: &[], depth: 5, now: NOW };
                let signer = Signer::Trusted { trust, known: false };
                let _ = question.answer(&answer, &[certificate(&inter)], signer, NOW);
            }
        }
    });
}
