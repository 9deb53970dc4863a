//! Private keys from PEM, also encrypted ones: PKCS#8 with PBES2, as OpenSSL writes them since 3.0,
//! and the older form with a `DEK-Info` header.
//!
//! `rustls-pki-types` has types for keys, but its PEM reader knows neither headers such as
//! `DEK-Info` nor the label `ENCRYPTED PRIVATE KEY`. `pkcs8` 0.11 would save 25 lines of parameters
//! for six crates; it reads the same ciphers.

use std::fmt;
use std::num::NonZeroU32;

use aws_lc_rs::cipher::UnboundCipherKey;
use aws_lc_rs::cipher::{AES_128, AES_192, AES_256, DecryptionContext, PaddedBlockDecryptingKey};
use aws_lc_rs::iv::FixedLength;
use aws_lc_rs::pbkdf2;
use md5::{Digest, Md5};
use rustls::pki_types::{PrivateKeyDer, PrivatePkcs1KeyDer, PrivatePkcs8KeyDer, PrivateSec1KeyDer};

use crate::pem::{self, PemError, Section};
use crate::x509::der::{self, DerReader};

/// Why there is no private key, in OpenSSL's words.
#[derive(Debug, PartialEq)]
pub enum KeyError {
    /// The text is no PEM, or has no key.
    Pem(PemError),
    /// The key is encrypted in a way that weir does not support.
    Encryption,
    /// The key is encrypted, and there is no password.
    NoPassword,
    /// No password opens the key.
    WrongPassword,
    /// The PEM label names no supported kind of key.
    Label(String),
    /// rustls does not take the key.
    Rejected(rustls::Error),
    /// The certificate is for another key.
    Mismatch,
}

impl fmt::Display for KeyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            KeyError::Pem(error) => error.fmt(f),
            KeyError::Encryption => f.write_str("unsupported encryption of the key"),
            KeyError::NoPassword => {
                f.write_str("the key is encrypted, and no \"ssl_password_file\" opens it")
            }
            KeyError::WrongPassword => f.write_str("bad decrypt"),
            KeyError::Label(label) => write!(f, "\"{label}\" is not supported"),
            KeyError::Rejected(error) => error.fmt(f),
            KeyError::Mismatch => f.write_str("key values mismatch"),
        }
    }
}

/// The first private key of a PEM text. An encrypted one is tried with each password.
pub fn load(text: &[u8], passwords: &[Vec<u8>]) -> Result<PrivateKeyDer<'static>, KeyError> {
    let sections = pem::sections(text).map_err(KeyError::Pem)?;
    let section = sections.iter().find(|s| s.label.ends_with("PRIVATE KEY"));
    let Section { label, headers, der } = section.ok_or(KeyError::Pem(PemError::NoStart))?;
    let opened;
    let der = match headers.iter().find(|(name, _)| name == "DEK-Info") {
        None => der,
        Some((_, info)) => {
            let encrypted = LegacyKey::parse(info, der).ok_or(KeyError::Encryption)?;
            opened = try_each(passwords, |password| encrypted.open(password))?;
            &opened
        }
    };
    match label.as_str() {
        "PRIVATE KEY" => Ok(PrivatePkcs8KeyDer::from(der.clone()).into()),
        "RSA PRIVATE KEY" => Ok(PrivatePkcs1KeyDer::from(der.clone()).into()),
        "EC PRIVATE KEY" => Ok(PrivateSec1KeyDer::from(der.clone()).into()),
        "ENCRYPTED PRIVATE KEY" => {
            let encrypted = Pbes2Key::parse(der).ok_or(KeyError::Encryption)?;
            let plain = try_each(passwords, |password| encrypted.open(password))?;
            Ok(PrivatePkcs8KeyDer::from(plain).into())
        }
        other => Err(KeyError::Label(other.to_owned())),
    }
}

fn try_each(
    passwords: &[Vec<u8>],
    open: impl Fn(&[u8]) -> Option<Vec<u8>>,
) -> Result<Vec<u8>, KeyError> {
    if passwords.is_empty() {
        return Err(KeyError::NoPassword);
    }
    passwords.iter().find_map(|password| open(password)).ok_or(KeyError::WrongPassword)
}

/// The passwords of a password file, one a line, in the order in which they are tried, as in nginx.
pub fn passwords(text: &[u8]) -> Vec<Vec<u8>> {
    let lines = text.split(|b| *b == b'\n').map(|l| l.strip_suffix(b"\r").unwrap_or(l));
    lines.filter(|l| !l.is_empty()).map(<[u8]>::to_vec).collect()
}

/// An EncryptedPrivateKeyInfo (RFC 5958) that uses PBES2 (RFC 8018).
struct Pbes2Key<'a> {
    hash: pbkdf2::Algorithm,
    salt: &'a [u8],
    rounds: NonZeroU32,
    cipher: &'static aws_lc_rs::cipher::Algorithm,
    key_len: usize,
    iv: [u8; 16],
    body: &'a [u8],
}

/// The most rounds of PBKDF2. No tool writes more, and more would only delay the start.
const MOST_ROUNDS: u32 = 50_000_000;

impl<'a> Pbes2Key<'a> {
    fn parse(bytes: &'a [u8]) -> Option<Self> {
        const PBES2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 13];
        const PBKDF2: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 5, 12];
        let mut outer = DerReader::new(bytes).require(der::SEQUENCE)?.inner();
        let mut scheme = outer.require(der::SEQUENCE)?.inner();
        let body = outer.require(der::OCTET_STRING)?.body;
        if scheme.require(der::OID)?.body != PBES2 {
            return None;
        }
        let mut parts = scheme.require(der::SEQUENCE)?.inner();
        let mut derive = parts.require(der::SEQUENCE)?.inner();
        if derive.require(der::OID)?.body != PBKDF2 {
            return None;
        }
        let mut derive = derive.require(der::SEQUENCE)?.inner();
        let salt = derive.require(der::OCTET_STRING)?.body;
        let rounds = derive.require(der::INTEGER)?.body;
        let rounds =
            rounds.iter().try_fold(0u32, |n, b| n.checked_mul(256)?.checked_add((*b).into()));
        let rounds = NonZeroU32::new(rounds.filter(|n| *n <= MOST_ROUNDS)?)?;
        derive.optional(der::INTEGER);
        let hash = match derive.optional(der::SEQUENCE) {
            Some(prf) => hash(prf.inner().require(der::OID)?.body)?,
            None => pbkdf2::PBKDF2_HMAC_SHA1,
        };
        let mut seal = parts.require(der::SEQUENCE)?.inner();
        let (cipher, key_len) = cipher(seal.require(der::OID)?.body)?;
        let iv = seal.require(der::OCTET_STRING)?.body.try_into().ok()?;
        Some(Pbes2Key { hash, salt, rounds, cipher, key_len, iv, body })
    }

    fn open(&self, password: &[u8]) -> Option<Vec<u8>> {
        let mut key = vec![0; self.key_len];
        pbkdf2::derive(self.hash, self.rounds, self.salt, password, &mut key);
        decrypt(self.cipher, &key, &self.iv, self.body)
    }
}

fn decrypt(
    cipher: &'static aws_lc_rs::cipher::Algorithm,
    key: &[u8],
    iv: &[u8; 16],
    body: &[u8],
) -> Option<Vec<u8>> {
    let key = UnboundCipherKey::new(cipher, key).ok()?;
    let key = PaddedBlockDecryptingKey::cbc_pkcs7(key).ok()?;
    let mut body = body.to_vec();
    let context = DecryptionContext::Iv128(FixedLength::from(iv));
    let plain = key.decrypt(&mut body, context).ok()?.to_vec();
    // A wrong password passes the padding check now and then, but hardly ever yields a whole
    // SEQUENCE.
    DerReader::new(&plain)
        .next()
        .filter(|v| v.tag == der::SEQUENCE && v.whole.len() == plain.len())?;
    Some(plain)
}

/// A key that is encrypted as OpenSSL did before PKCS#8: the key of AES-CBC comes from MD5, one
/// round for each block.
struct LegacyKey<'a> {
    cipher: &'static aws_lc_rs::cipher::Algorithm,
    key_len: usize,
    iv: [u8; 16],
    body: &'a [u8],
}

impl<'a> LegacyKey<'a> {
    /// `info` is a cipher such as `AES-256-CBC`, a comma, and the initialization vector in
    /// hexadecimal.
    fn parse(info: &str, body: &'a [u8]) -> Option<Self> {
        let (name, iv) = info.split_once(',')?;
        let (cipher, key_len) = match name.trim() {
            "AES-128-CBC" => (&AES_128, 16),
            "AES-192-CBC" => (&AES_192, 24),
            "AES-256-CBC" => (&AES_256, 32),
            _ => return None,
        };
        let iv: u128 = u128::from_str_radix(iv.trim(), 16).ok()?;
        Some(LegacyKey { cipher, key_len, iv: iv.to_be_bytes(), body })
    }

    fn open(&self, password: &[u8]) -> Option<Vec<u8>> {
        let salt = self.iv.get(..8)?;
        let (mut key, mut last) = (Vec::new(), Vec::new());
        while key.len() < self.key_len {
            let digest = Md5::new().chain_update(&last).chain_update(password).chain_update(salt);
            last = digest.finalize().to_vec();
            key.extend_from_slice(&last);
        }
        decrypt(self.cipher, key.get(..self.key_len)?, &self.iv, self.body)
    }
}

fn hash(oid: &[u8]) -> Option<pbkdf2::Algorithm> {
    let [0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 2, last] = oid else { return None };
    Some(match last {
        7 => pbkdf2::PBKDF2_HMAC_SHA1,
        9 => pbkdf2::PBKDF2_HMAC_SHA256,
        10 => pbkdf2::PBKDF2_HMAC_SHA384,
        11 => pbkdf2::PBKDF2_HMAC_SHA512,
        _ => return None,
    })
}

fn cipher(oid: &[u8]) -> Option<(&'static aws_lc_rs::cipher::Algorithm, usize)> {
    let [0x60, 0x86, 0x48, 1, 0x65, 3, 4, 1, last] = oid else { return None };
    Some(match last {
        2 => (&AES_128, 16),
        22 => (&AES_192, 24),
        42 => (&AES_256, 32),
        _ => return None,
    })
}
