//! Address validation of the handshake, and path validation of a migration (RFC 9000, sections 8.1 and 8.2).
//!
//! quinn sends to a client's new address from the first packet that comes from there. Access rules and logs must not use the
//! address before path validation succeeds: a PATH_RESPONSE from there answers a PATH_CHALLENGE that was sent there. quinn does
//! not report this. So the packet keys look for both frames in plaintext, but only during a migration.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, PacketKey};

const PATH_CHALLENGE: u64 = 0x1a;
const PATH_RESPONSE: u64 = 0x1b;
/// The number of sent challenges that are kept. The oldest are dropped.
const MOST_CHALLENGES: usize = 16;

/// The data of a PATH_CHALLENGE or PATH_RESPONSE frame.
type Token = [u8; 8];

/// The validation state of a client's addresses. The packet keys and the connection share it.
#[derive(Debug, Default)]
pub struct PathValidation {
    /// The client sends from a new address that is not validated yet.
    migrating: AtomicBool,
    /// A Handshake or 1-RTT packet was received, which validates the client's first address (RFC 9000, section 8.1).
    validated: AtomicBool,
    tokens: Mutex<Tokens>,
}

#[derive(Debug, Default)]
struct Tokens {
    /// Challenges in encrypted packets whose destination is not known yet.
    pending: Vec<Token>,
    /// Challenges that were sent to the new address.
    sent: VecDeque<Token>,
    /// The packets that are being decrypted come from the new address.
    from_new_address: bool,
    /// A response from the new address matched a challenge in `sent`.
    answered: bool,
}

impl PathValidation {
    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A migration begins: the client sends from a new address.
    pub fn begin(&self) {
        *self.tokens() = Tokens::default();
        self.migrating.store(true, Relaxed);
    }

    /// The migration ends: the new address is validated, or the client sends from the validated one again.
    pub fn end(&self) {
        self.migrating.store(false, Relaxed);
        *self.tokens() = Tokens::default();
    }

    /// A packet of the client has validated its first address. False for an address that only a token has validated.
    pub fn is_validated(&self) -> bool {
        self.validated.load(Relaxed)
    }

    pub fn is_migrating(&self) -> bool {
        self.migrating.load(Relaxed)
    }

    /// Says where the packets that are decrypted next come from.
    pub fn receiving(&self, from_new_address: bool) {
        if self.is_migrating() {
            self.tokens().from_new_address = from_new_address;
        }
    }

    /// Says where the packets went that were encrypted since the last call.
    pub fn sent(&self, to_new_address: bool) {
        if self.is_migrating() {
            let mut tokens = self.tokens();
            let pending = std::mem::take(&mut tokens.pending);
            if to_new_address {
                tokens.sent.extend(pending);
                let many = tokens.sent.len().saturating_sub(MOST_CHALLENGES);
                tokens.sent.drain(..many);
            }
        }
    }

    /// The new address is validated.
    pub fn new_address_is_validated(&self) -> bool {
        self.is_migrating() && self.tokens().answered
    }

    fn record_challenges(&self, frames: &[u8]) {
        let mut tokens = self.tokens();
        each_token(frames, PATH_CHALLENGE, |token| tokens.pending.push(token));
    }

    fn check_responses(&self, frames: &[u8]) {
        let mut tokens = self.tokens();
        if tokens.from_new_address {
            let mut answered = false;
            each_token(frames, PATH_RESPONSE, |token| answered |= tokens.sent.contains(&token));
            tokens.answered |= answered;
        }
    }
}

/// A packet key that reports to a [`PathValidation`].
pub struct WatchedKey<K> {
    pub key: K,
    pub paths: std::sync::Arc<PathValidation>,
    /// A packet that this key decrypts validates the client's first address: RFC 9000, section 8.1.
    pub validates: bool,
}

impl<K: PacketKey> PacketKey for WatchedKey<K> {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        if self.paths.is_migrating() {
            let end = buf.len().saturating_sub(self.key.tag_len());
            self.paths.record_challenges(buf.get(header_len..end).unwrap_or_default());
        }
        self.key.encrypt(packet, buf, header_len);
    }

    fn decrypt(
        &self,
        packet: u64,
        header: &[u8],
        payload: &mut BytesMut,
    ) -> Result<(), CryptoError> {
        self.key.decrypt(packet, header, payload)?;
        if self.validates {
            self.paths.validated.store(true, Relaxed);
        }
        if self.paths.is_migrating() {
            self.paths.check_responses(payload);
        }
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

/// Calls `found` with the data of each frame of the `wanted` type (RFC 9000, section 19). Stops at the first unknown or truncated frame.
pub fn each_token(frames: &[u8], wanted: u64, mut found: impl FnMut(Token)) {
    let mut rest = Frames(frames);
    while rest.next(wanted, &mut found).is_some() {}
}

/// A reader of frames and of their fields. It holds the unread bytes.
pub struct Frames<'a>(pub &'a [u8]);

impl<'a> Frames<'a> {
    /// Reads one frame. `None` at the end, and at an unknown or truncated frame.
    fn next(&mut self, wanted: u64, found: &mut impl FnMut(Token)) -> Option<()> {
        let kind = self.varint()?;
        match kind {
            // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK
            0x00 | 0x01 | 0x1e | 0x1f => {}
            // ACK, with its ranges and ECN counts
            0x02 | 0x03 => {
                self.varints(2)?;
                let ranges = self.varint()?;
                self.varint()?;
                for _ in 0..ranges {
                    self.varints(2)?;
                }
                self.varints(if kind == 0x03 { 3 } else { 0 })?;
            }
            // RESET_STREAM
            0x04 => self.varints(3)?,
            // CRYPTO
            0x06 => {
                self.varint()?;
                self.length_prefixed()?;
            }
            // NEW_TOKEN
            0x07 => self.length_prefixed().map(drop)?,
            // STREAM: 0x04 is the OFF bit, 0x02 the LEN bit
            0x08..=0x0f => {
                self.varints(if kind & 0x04 > 0 { 2 } else { 1 })?;
                if kind & 0x02 > 0 {
                    self.length_prefixed()?;
                } else {
                    self.0 = &[];
                }
            }
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
            0x05 | 0x11 | 0x15 => self.varints(2)?,
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.varints(1)?,
            // NEW_CONNECTION_ID
            0x18 => {
                self.varints(2)?;
                let (length, rest) = self.0.split_first()?;
                self.0 = rest.get(usize::from(*length) + 16..)?;
            }
            PATH_CHALLENGE | PATH_RESPONSE => {
                let (token, rest) = self.0.split_first_chunk::<8>()?;
                self.0 = rest;
                if kind == wanted {
                    found(*token);
                }
            }
            // ACK_FREQUENCY
            0xaf => self.varints(4)?,
            _ => return None,
        }
        Some(())
    }

    /// A variable-length integer: RFC 9000, section 16.
    pub fn varint(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let (bytes, rest) = self.0.split_at_checked(1 << (first >> 6))?;
        self.0 = rest;
        let whole = bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Some(whole & (u64::MAX >> (66 - 8 * bytes.len() as u32)))
    }

    fn varints(&mut self, n: usize) -> Option<()> {
        (0..n).try_for_each(|_| self.varint().map(drop))
    }

    /// A length as a variable-length integer, and as many bytes.
    pub fn length_prefixed(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.varint()?).ok()?;
        let (bytes, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TOKEN: Token = *b"12345678";

    fn frames(before: &[u8], kind: u8) -> Vec<u8> {
        [before, &[kind], &TOKEN, &[0, 0]].concat()
    }

    #[test]
    fn frames_before_a_token_are_passed_over() {
        let ack = [0x03, 0x40, 0x41, 0x10, 0x01, 0x02, 0x05, 0x06, 1, 2, 3];
        let id = [&[0x18, 1, 0, 4][..], &[9; 4], &[8; 16]].concat();
        let stream = [0x0e, 4, 0x41, 0x00, 2, 7, 7];
        for before in [&[][..], &[1, 0], &ack, &id, &stream, &[0x06, 0, 2, 5, 5], &[0x07, 1, 5]] {
            let mut found = Vec::new();
            each_token(&frames(before, 0x1a), PATH_CHALLENGE, |token| found.push(token));
            assert_eq!(found, [TOKEN], "{before:?}");
            each_token(&frames(before, 0x1a), PATH_RESPONSE, |_| panic!("another kind"));
        }
        // A frame that fills the packet, one that ends within itself, and an unknown one.
        for before in [&[0x08, 4][..], &[0x06, 0, 0x7f, 0xff], &[0x40, 0x99]] {
            each_token(&frames(before, 0x1a), PATH_CHALLENGE, |_| panic!("{before:?}"));
        }
    }

    #[test]
    fn only_a_response_from_the_challenged_address_validates_it() {
        let paths = PathValidation::default();
        let (challenge, answer) = (frames(&[], 0x1a), frames(&[], 0x1b));
        for (to_new, from_new, counts) in
            [(true, true, true), (false, true, false), (true, false, false)]
        {
            paths.begin();
            paths.record_challenges(&challenge);
            paths.sent(to_new);
            paths.receiving(from_new);
            paths.check_responses(&answer);
            assert_eq!(paths.new_address_is_validated(), counts, "{to_new} {from_new}");
            paths.end();
            assert!(!paths.is_migrating() && !paths.new_address_is_validated());
        }
    }
}
