//! Which address of a client is known to be its own.
//!
//! A client may move to another address, and quinn sends to that one from its first packet on. Whoever decides by addresses
//! must wait until the client has shown that it receives there: it has answered a PATH_CHALLENGE that was sent there with its
//! PATH_RESPONSE (RFC 9000, section 8.2). quinn does not tell, so the keys of packets look for these frames, while a client is
//! on its way, and only then.

use std::collections::VecDeque;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use bytes::BytesMut;
use quinn_proto::crypto::{CryptoError, PacketKey};

use crate::keys::VersionKey;

const PATH_CHALLENGE: u64 = 0x1a;
const PATH_RESPONSE: u64 = 0x1b;
/// Challenges that are remembered.
const MOST: usize = 16;

/// The data of a challenge.
type Token = [u8; 8];

/// Looks for challenges that go out, and for their answers.
#[derive(Debug, Default)]
pub struct PathWatch {
    /// The client is on its way.
    on: AtomicBool,
    /// A packet of the handshake proper came: the client has what was sent to it. RFC 9000 section 8.1.
    shown: AtomicBool,
    tokens: Mutex<Tokens>,
}

#[derive(Debug, Default)]
struct Tokens {
    /// Sent with the packets of one call, whose destination is not known yet.
    fresh: Vec<Token>,
    /// Sent to the new address.
    sent: VecDeque<Token>,
    /// What comes now comes from the new address.
    listens: bool,
    answered: bool,
}

impl PathWatch {
    fn tokens(&self) -> MutexGuard<'_, Tokens> {
        self.tokens.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The client has begun to use another address.
    pub fn begin(&self) {
        *self.tokens() = Tokens::default();
        self.on.store(true, Relaxed);
    }

    /// The client has arrived, or gone back.
    pub fn end(&self) {
        self.on.store(false, Relaxed);
        *self.tokens() = Tokens::default();
    }

    /// The client's first address is its own.
    pub fn is_shown(&self) -> bool {
        self.shown.load(Relaxed)
    }

    /// The client is on its way.
    pub fn is_on(&self) -> bool {
        self.on.load(Relaxed)
    }

    /// What is received next comes from the new address, or not.
    pub fn listen(&self, from_there: bool) {
        if self.is_on() {
            self.tokens().listens = from_there;
        }
    }

    /// What was sent since the last time went to the new address, or elsewhere.
    pub fn went(&self, there: bool) {
        if self.is_on() {
            let mut tokens = self.tokens();
            let fresh = std::mem::take(&mut tokens.fresh);
            if there {
                tokens.sent.extend(fresh);
                let many = tokens.sent.len().saturating_sub(MOST);
                tokens.sent.drain(..many);
            }
        }
    }

    /// A challenge was answered from where it was sent to.
    pub fn is_answered(&self) -> bool {
        self.is_on() && self.tokens().answered
    }

    fn sends(&self, frames: &[u8]) {
        let mut tokens = self.tokens();
        each_token(frames, PATH_CHALLENGE, |token| tokens.fresh.push(token));
    }

    fn receives(&self, frames: &[u8]) {
        let mut tokens = self.tokens();
        if tokens.listens {
            let mut answered = false;
            each_token(frames, PATH_RESPONSE, |token| answered |= tokens.sent.contains(&token));
            tokens.answered |= answered;
        }
    }
}

/// A key for packets that go out or come in, with a watch.
pub struct Watched {
    pub key: VersionKey,
    pub watch: std::sync::Arc<PathWatch>,
    /// A client that has this key has received what was sent to its address.
    pub shows: bool,
}

impl PacketKey for Watched {
    fn encrypt(&self, packet: u64, buf: &mut [u8], header_len: usize) {
        if self.watch.is_on() {
            let end = buf.len().saturating_sub(self.key.tag_len());
            self.watch.sends(buf.get(header_len..end).unwrap_or_default());
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
        if self.shows {
            self.watch.shown.store(true, Relaxed);
        }
        if self.watch.is_on() {
            self.watch.receives(payload);
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

/// The data of all frames of this kind, as far as the frames can be read: RFC 9000, section 19.
pub fn each_token(frames: &[u8], wanted: u64, mut found: impl FnMut(Token)) {
    let mut rest = Frames(frames);
    while rest.next(wanted, &mut found).is_some() {}
}

/// What is left to read of a packet.
pub struct Frames<'a>(pub &'a [u8]);

impl<'a> Frames<'a> {
    /// Passes over a frame; none at the end, or where there is something that is not known.
    fn next(&mut self, wanted: u64, found: &mut impl FnMut(Token)) -> Option<()> {
        let kind = self.number()?;
        match kind {
            // PADDING, PING, HANDSHAKE_DONE, IMMEDIATE_ACK
            0x00 | 0x01 | 0x1e | 0x1f => {}
            // ACK, with its ranges and counts of ECN
            0x02 | 0x03 => {
                self.numbers(2)?;
                let ranges = self.number()?;
                self.number()?;
                for _ in 0..ranges {
                    self.numbers(2)?;
                }
                self.numbers(if kind == 0x03 { 3 } else { 0 })?;
            }
            // RESET_STREAM
            0x04 => self.numbers(3)?,
            // CRYPTO
            0x06 => {
                self.number()?;
                self.text()?;
            }
            // NEW_TOKEN
            0x07 => self.text().map(drop)?,
            // STREAM: with an offset or without, to the end of the packet or not
            0x08..=0x0f => {
                self.numbers(if kind & 0x04 > 0 { 2 } else { 1 })?;
                if kind & 0x02 > 0 {
                    self.text()?;
                } else {
                    self.0 = &[];
                }
            }
            // STOP_SENDING, MAX_STREAM_DATA, STREAM_DATA_BLOCKED
            0x05 | 0x11 | 0x15 => self.numbers(2)?,
            // MAX_DATA, MAX_STREAMS, DATA_BLOCKED, STREAMS_BLOCKED, RETIRE_CONNECTION_ID
            0x10 | 0x12..=0x14 | 0x16 | 0x17 | 0x19 => self.numbers(1)?,
            // NEW_CONNECTION_ID
            0x18 => {
                self.numbers(2)?;
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
            0xaf => self.numbers(4)?,
            _ => return None,
        }
        Some(())
    }

    /// RFC 9000, section 16.
    pub fn number(&mut self) -> Option<u64> {
        let first = *self.0.first()?;
        let (bytes, rest) = self.0.split_at_checked(1 << (first >> 6))?;
        self.0 = rest;
        let whole = bytes.iter().fold(0u64, |sum, byte| sum << 8 | u64::from(*byte));
        Some(whole & (u64::MAX >> (66 - 8 * bytes.len() as u32)))
    }

    fn numbers(&mut self, n: usize) -> Option<()> {
        (0..n).try_for_each(|_| self.number().map(drop))
    }

    /// Bytes behind their length.
    pub fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        let (text, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(text)
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
    fn only_an_answer_from_where_the_challenge_went_counts() {
        let watch = PathWatch::default();
        let (challenge, answer) = (frames(&[], 0x1a), frames(&[], 0x1b));
        for (went_there, from_there, counts) in
            [(true, true, true), (false, true, false), (true, false, false)]
        {
            watch.begin();
            watch.sends(&challenge);
            watch.went(went_there);
            watch.listen(from_there);
            watch.receives(&answer);
            assert_eq!(watch.is_answered(), counts, "{went_there} {from_there}");
            watch.end();
            assert!(!watch.is_on() && !watch.is_answered());
        }
    }
}
