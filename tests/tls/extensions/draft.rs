//! A certificate that is written byte by byte: it may say what no tool would write.

use rustls::SignatureScheme;
use rustls::sign::SigningKey;

use super::changes::{BASIC, CA, USAGE};

/// A value of DER.
pub fn der(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let body = parts.concat();
    let length = match body.len() {
        n @ 0..=0x7f => vec![n as u8],
        n => vec![0x82, (n >> 8) as u8, n as u8],
    };
    [&[tag], length.as_slice(), &body].concat()
}

pub const SEQUENCE: u8 = 0x30;
pub const PRINTABLE: u8 = 0x13;
pub const UTF8: u8 = 0x0c;

/// A name of one common name, written as this type of string.
pub fn name(tag: u8, text: &str) -> Vec<u8> {
    let attribute = der(SEQUENCE, &[&[6, 3, 0x55, 4, 3], &der(tag, &[text.as_bytes()])]);
    der(SEQUENCE, &[&der(0x31, &[&attribute])])
}

/// What a certificate says before it is signed.
#[derive(Clone)]
pub struct Draft {
    pub version: u8,
    pub serial: u8,
    pub from: &'static [u8],
    pub to: &'static [u8],
    pub subject: Vec<u8>,
    pub issuer: Vec<u8>,
    /// Each with its identifier, whether it is critical, and its value.
    pub extensions: Vec<(Vec<u8>, bool, Vec<u8>)>,
}

impl Draft {
    pub fn new(serial: u8, subject: &str, issuer: &str) -> Draft {
        Draft {
            version: 3,
            serial,
            from: b"200101000000Z",
            to: b"490101000000Z",
            subject: name(UTF8, subject),
            issuer: name(UTF8, issuer),
            extensions: Vec::new(),
        }
    }

    pub fn authority(mut self) -> Draft {
        self.set(BASIC, true, &CA);
        self.set(USAGE, true, &[3, 2, 1, 6]);
        self
    }

    pub fn remove(&mut self, oid: &[u8]) {
        self.extensions.retain(|(known, ..)| known != oid);
    }

    pub fn set(&mut self, oid: &[u8], critical: bool, value: &[u8]) {
        self.remove(oid);
        self.add(oid, critical, value);
    }

    pub fn add(&mut self, oid: &[u8], critical: bool, value: &[u8]) {
        self.extensions.push((oid.to_vec(), critical, value.to_vec()));
    }

    pub fn signed(&self, subject_key: &dyn SigningKey, issuer_key: &dyn SigningKey) -> Vec<u8> {
        const ECDSA_SHA256: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];
        let version = match self.version {
            1 => Vec::new(),
            n => der(0xa0, &[&[2, 1, n - 1]]),
        };
        let validity = der(SEQUENCE, &[&der(0x17, &[self.from]), &der(0x17, &[self.to])]);
        let key = subject_key.public_key().unwrap();
        let list: Vec<u8> = self
            .extensions
            .iter()
            .flat_map(|(oid, critical, value)| {
                let critical: &[u8] = if *critical { &[1, 1, 0xff] } else { &[] };
                der(SEQUENCE, &[&der(6, &[oid]), critical, &der(4, &[value])])
            })
            .collect();
        let extensions = match list.is_empty() {
            true => Vec::new(),
            false => der(0xa3, &[&der(SEQUENCE, &[&list])]),
        };
        let serial = [2, 1, self.serial];
        let parts: [&[u8]; 8] = [
            &version,
            &serial,
            ECDSA_SHA256,
            &self.issuer,
            &validity,
            &self.subject,
            key.as_ref(),
            &extensions,
        ];
        let signed = der(SEQUENCE, &parts);
        let signer = issuer_key.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).unwrap();
        let signature = der(3, &[&[0], &signer.sign(&signed).unwrap()]);
        der(SEQUENCE, &[&signed, ECDSA_SHA256, &signature])
    }
}
