//! The keys of one direction of a connection: RFC 8446, sections 5.2, 5.3 and 7; RFC 5288 and RFC 7905 for TLS 1.2.

use std::cell::Cell;
use std::fmt;

use aws_lc_rs::aead::{
    AES_128_GCM, AES_256_GCM, Aad, Algorithm, CHACHA20_POLY1305, LessSafeKey, Nonce, UnboundKey,
};
use aws_lc_rs::hkdf;
use rustls::{ConnectionTrafficSecrets, Error, KeyLog};
use zeroize::Zeroizing;

/// Bytes of a record's header: content type, version, length.
pub(crate) const HEAD: usize = 5;
/// Bytes of the tag that each cipher appends.
const TAG: usize = 16;
/// Bytes of the explicit nonce, which AES-GCM sends in each record of TLS 1.2.
const EXPLICIT: usize = 8;
/// Bytes of the longest traffic secret, that of SHA-384.
const SECRET: usize = 48;
/// The most records that AES-GCM may encrypt with one key (RFC 8446, section 5.5).
pub(super) const MOST_RECORDS: u64 = 1 << 24;

/// The versions whose records differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Version {
    Tls12,
    Tls13,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Cipher {
    Aes128,
    Aes256,
    ChaCha20,
}

impl Cipher {
    fn algorithm(self) -> &'static Algorithm {
        match self {
            Cipher::Aes128 => &AES_128_GCM,
            Cipher::Aes256 => &AES_256_GCM,
            Cipher::ChaCha20 => &CHACHA20_POLY1305,
        }
    }

    /// The hash of the key schedule in TLS 1.3 (RFC 8446, appendix B.4), and the length of its
    /// secrets.
    fn hkdf(self) -> (hkdf::Algorithm, usize) {
        match self {
            Cipher::Aes128 | Cipher::ChaCha20 => (hkdf::HKDF_SHA256, 32),
            Cipher::Aes256 => (hkdf::HKDF_SHA384, 48),
        }
    }
}

/// The traffic secret of one direction. The next keys are derived from it.
pub(super) type Secret = Zeroizing<[u8; SECRET]>;

/// The traffic secrets of both directions (TLS 1.3).
pub(crate) struct TrafficSecrets {
    pub(super) client: Secret,
    pub(super) server: Secret,
}

thread_local! {
    static SECRETS: Cell<Option<Box<TrafficSecrets>>> = const { Cell::new(None) };
}

/// Receives the traffic secrets from rustls, as its key log. rustls passes them during a step of
/// the handshake. The code that takes the step collects them right after it, on the same thread
/// ([`TrafficSecrets::take`]).
pub(crate) struct SecretsTaker;

impl fmt::Debug for SecretsTaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SecretsTaker")
    }
}

impl SecretsTaker {
    const CLIENT: &str = "CLIENT_TRAFFIC_SECRET_0";
    const SERVER: &str = "SERVER_TRAFFIC_SECRET_0";
}

impl KeyLog for SecretsTaker {
    fn log(&self, label: &str, _: &[u8], secret: &[u8]) {
        let empty = || Secret::new([0; SECRET]);
        let mut both = SECRETS
            .take()
            .unwrap_or_else(|| Box::new(TrafficSecrets { client: empty(), server: empty() }));
        let kept = if label == Self::CLIENT { &mut both.client } else { &mut both.server };
        if let Some(kept) = kept.get_mut(..secret.len()) {
            kept.copy_from_slice(secret);
        }
        SECRETS.set(Some(both));
    }

    fn will_log(&self, label: &str) -> bool {
        [Self::CLIENT, Self::SERVER].contains(&label)
    }
}

impl TrafficSecrets {
    /// The secrets of the handshake whose step this thread has just taken.
    pub(crate) fn take() -> Option<Box<TrafficSecrets>> {
        SECRETS.take()
    }
}

/// The keys of one direction.
pub(super) struct Half {
    key: LessSafeKey,
    iv: [u8; 12],
    /// The number of records with this key so far: the sequence number of the next one.
    count: u64,
    cipher: Cipher,
    version: Version,
    /// The secret that the next keys are derived from, in TLS 1.3.
    secret: Option<Secret>,
}

impl Half {
    /// From the keys that rustls extracts.
    pub(super) fn new(
        (count, keys): (u64, ConnectionTrafficSecrets),
        version: Version,
        secret: Option<Secret>,
    ) -> Result<Half, Error> {
        let (cipher, key, iv) = match &keys {
            ConnectionTrafficSecrets::Aes128Gcm { key, iv } => (Cipher::Aes128, key, iv),
            ConnectionTrafficSecrets::Aes256Gcm { key, iv } => (Cipher::Aes256, key, iv),
            ConnectionTrafficSecrets::Chacha20Poly1305 { key, iv } => (Cipher::ChaCha20, key, iv),
            _ => return Err(Error::General("an unknown cipher".to_owned())),
        };
        let iv = iv.as_ref().first_chunk().copied().ok_or(Error::EncryptError)?;
        Ok(Half { key: Self::key(cipher, key.as_ref())?, iv, count, cipher, version, secret })
    }

    fn key(cipher: Cipher, key: &[u8]) -> Result<LessSafeKey, Error> {
        let key = UnboundKey::new(cipher.algorithm(), key).map_err(|_| Error::EncryptError)?;
        Ok(LessSafeKey::new(key))
    }

    /// Sets the number of records with this key.
    #[cfg(test)]
    pub(super) fn set_count(&mut self, count: u64) {
        self.count = count;
    }

    /// This key has encrypted as many records as it may. ChaCha20-Poly1305 has no such limit.
    pub(super) fn is_exhausted(&self) -> bool {
        self.cipher != Cipher::ChaCha20 && self.count >= MOST_RECORDS
    }

    /// How many bytes of the nonce each record carries.
    fn explicit(&self) -> usize {
        match (self.version, self.cipher) {
            (Version::Tls12, Cipher::Aes128 | Cipher::Aes256) => EXPLICIT,
            _ => 0,
        }
    }

    /// The nonce and the sequence number of the next record.
    pub(super) fn next(&mut self) -> Result<([u8; 12], [u8; 8]), Error> {
        let count = self.count;
        // No nonce is used twice.
        self.count = count.checked_add(1).ok_or(Error::EncryptError)?;
        let mut nonce = self.iv;
        for (byte, of) in nonce.iter_mut().skip(4).zip(count.to_be_bytes()) {
            *byte ^= of;
        }
        Ok((nonce, count.to_be_bytes()))
    }

    /// The additional data of TLS 1.2, for a record with so many bytes of contents: RFC 5246,
    /// section 6.2.3.3.
    fn authenticated(count: [u8; 8], head: [u8; HEAD], contents: usize) -> [u8; 13] {
        let mut all = [0; 13];
        let [kind, major, minor, ..] = head;
        let [high, low] = u16::try_from(contents).unwrap_or(u16::MAX).to_be_bytes();
        let tail = [kind, major, minor, high, low];
        for (byte, of) in all.iter_mut().zip(count.into_iter().chain(tail)) {
            *byte = of;
        }
        all
    }

    /// Appends `plain` to `out` as a record of this kind.
    pub(super) fn seal(&mut self, kind: u8, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let start = out.len();
        let result = self.seal_at(start, kind, plain, out);
        if result.is_none() {
            out.truncate(start);
        }
        result.ok_or(Error::EncryptError)
    }

    fn seal_at(&mut self, start: usize, kind: u8, plain: &[u8], out: &mut Vec<u8>) -> Option<()> {
        let (nonce, count) = self.next().ok()?;
        let explicit = self.explicit();
        // TLS 1.3 encrypts the content type. The header says application_data.
        let inner: &[u8] = if self.version == Version::Tls13 { &[kind] } else { &[] };
        let length = explicit + plain.len() + inner.len() + TAG;
        let [high, low] = u16::try_from(length).ok()?.to_be_bytes();
        let kind = if self.version == Version::Tls13 { super::DATA } else { kind };
        let head = [kind, 3, 3, high, low];
        out.resize(start + HEAD + length, 0);
        let (first, rest) = out.get_mut(start..)?.split_at_mut_checked(HEAD + explicit)?;
        let (before, after) = first.split_at_mut_checked(HEAD)?;
        before.copy_from_slice(&head);
        after.copy_from_slice(nonce.get(12 - explicit..)?);
        let (sealed, tail) = rest.split_at_mut_checked(plain.len())?;
        let nonce = Nonce::assume_unique_for_key(nonce);
        let key = &self.key;
        match self.version {
            Version::Tls13 => {
                key.seal_out_of_place_scatter(nonce, Aad::from(head), plain, sealed, inner, tail)
            }
            Version::Tls12 => {
                let aad = Aad::from(Self::authenticated(count, head, plain.len()));
                key.seal_out_of_place_scatter(nonce, aad, plain, sealed, inner, tail)
            }
        }
        .ok()
    }

    /// Decrypts a record with this header. In TLS 1.3, the result ends with the content type and
    /// padding.
    pub(super) fn open<'r>(
        &mut self,
        head: [u8; HEAD],
        body: &'r mut [u8],
    ) -> Result<&'r mut [u8], Error> {
        let explicit = self.explicit();
        let length = body.len().checked_sub(explicit + TAG).ok_or(Error::DecryptError)?;
        let (mut nonce, count) = self.next()?;
        let (sent, sealed) = body.split_at_mut_checked(explicit).ok_or(Error::DecryptError)?;
        if let Some(nonce) = nonce.get_mut(12 - explicit..) {
            nonce.copy_from_slice(sent);
        }
        let nonce = Nonce::assume_unique_for_key(nonce);
        match self.version {
            Version::Tls13 => self.key.open_in_place(nonce, Aad::from(head), sealed),
            Version::Tls12 => {
                let aad = Aad::from(Self::authenticated(count, head, length));
                self.key.open_in_place(nonce, aad, sealed)
            }
        }
        .map_err(|_| Error::DecryptError)
    }

    /// Changes to the next keys: RFC 8446, section 7.2.
    pub(super) fn renew(&mut self) -> Result<(), Error> {
        let secret = self.secret.as_ref().ok_or(Error::EncryptError)?;
        let (_, length) = self.cipher.hkdf();
        let mut next = Secret::new([0; SECRET]);
        self.expand(secret, b"traffic upd", next.get_mut(..length))?;
        let mut key = Zeroizing::new([0; 32]);
        let length = self.cipher.algorithm().key_len();
        self.expand(&next, b"key", key.get_mut(..length))?;
        let mut iv = [0; 12];
        self.expand(&next, b"iv", Some(&mut iv))?;
        self.key = Self::key(self.cipher, key.get(..length).unwrap_or_default())?;
        self.iv = iv;
        self.count = 0;
        self.secret = Some(next);
        Ok(())
    }

    /// HKDF-Expand-Label with an empty context: RFC 8446, section 7.1.
    fn expand(&self, secret: &Secret, label: &[u8], out: Option<&mut [u8]>) -> Result<(), Error> {
        let out = out.ok_or(Error::EncryptError)?;
        let (algorithm, length) = self.cipher.hkdf();
        let secret = secret.get(..length).ok_or(Error::EncryptError)?;
        let [high, low] = u16::try_from(out.len()).unwrap_or_default().to_be_bytes();
        let name = u8::try_from(TLS13.len() + label.len()).unwrap_or_default();
        let info = [&[high, low, name], TLS13, label, &[0]];
        hkdf::Prk::new_less_safe(algorithm, secret)
            .expand(&info, Length(out.len()))
            .and_then(|material| material.fill(out))
            .map_err(|_| Error::EncryptError)
    }
}

const TLS13: &[u8] = b"tls13 ";

struct Length(usize);

impl hkdf::KeyType for Length {
    fn len(&self) -> usize {
        self.0
    }
}
