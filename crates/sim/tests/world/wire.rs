//! A peer's end of a connection, and the network between it and the server.
//!
//! Bytes pass through a kernel socket without timers. A peer's bytes enter the socket at their time
//! of arrival, in pieces. The server's bytes are taken out only when they arrive at the peer. Until
//! then the pages of a file that was sent without a copy are still those of the file.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use weir_testkit::Dice;

use crate::tls::TlsEnd;

/// The properties of a link in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Link {
    /// The largest piece.
    pub piece: usize,
    /// A piece is delayed by one to two times this, in nanoseconds.
    pub delay: u64,
}

impl Link {
    /// Draws a link that needs at most about a thousand pieces for `bytes`.
    pub fn draw(dice: &mut Dice, bytes: u64) -> Link {
        let piece = dice.pick(&[1, 7, 100, 1460, 16_000, 64_000]);
        let delay = dice.pick(&[1_000, 50_000, 1_000_000, 20_000_000]);
        Link { piece: piece.max(bytes as usize / 600), delay }
    }

    /// Draws a link with short delays and large pieces.
    pub fn quick(dice: &mut Dice) -> Link {
        Link { piece: 64_000, delay: dice.pick(&[1_000, 30_000, 500_000]) }
    }

    pub fn time(&self, dice: &mut Dice) -> u64 {
        self.delay + dice.below(self.delay as usize + 1) as u64
    }
}

/// What a peer does once all bytes are sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stay,
    /// The peer shuts down its sending side.
    Half,
    Close,
}

pub struct Wire {
    pub fd: OwnedFd,
    pub there: Link,
    pub back: Link,
    /// The bytes that the peer has to send.
    pub out: Vec<u8>,
    at: usize,
    /// TLS, if the peer uses it.
    pub tls: Option<Box<TlsEnd>>,
    /// The offset in `out` from which on the bytes are stray, and whether some of these are at the
    /// server.
    pub stray_from: Option<usize>,
    pub stray_arrived: bool,
    pub finish: Finish,
    /// Whether an event is planned that sends a piece, and one that receives a piece.
    pub sending: bool,
    pub taking: bool,
    /// Whether the socket buffer is full, since the server does not read.
    pub stuck: bool,
}

/// The result of a receive.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    Bytes(usize),
    Nothing,
    End,
    Reset,
    /// The bytes are not valid TLS, or belong to another connection.
    Torn(String),
}

impl Wire {
    pub fn new(fd: OwnedFd, there: Link, back: Link) -> Wire {
        let (out, finish, tls) = (Vec::new(), Finish::Stay, None);
        let (sending, taking, stuck, stray_arrived) = (false, false, false, false);
        let (at, stray_from) = (0, None);
        Wire {
            fd,
            there,
            back,
            out,
            at,
            tls,
            stray_from,
            stray_arrived,
            finish,
            sending,
            taking,
            stuck,
        }
    }

    /// The number of bytes that were written and not sent.
    pub fn left(&self) -> usize {
        self.out.len() - self.at + self.tls.as_ref().map_or(0, |tls| tls.left())
    }

    /// Whether something can be sent now.
    pub fn has_more(&self) -> bool {
        match &self.tls {
            Some(tls) if tls.has_more() => true,
            Some(tls) if tls.is_handshaking() && !self.out.is_empty() => false,
            _ => self.at < self.out.len() || self.finish == Finish::Half,
        }
    }

    /// Whether all bytes were sent and the connection is to be closed now.
    pub fn is_over(&self) -> bool {
        let sent = self.tls.as_ref().is_none_or(|tls| !tls.has_more());
        sent && self.at >= self.out.len() && self.finish == Finish::Close
    }

    /// Delivers a piece to the server. False if the server has closed.
    pub fn send(&mut self, dice: &mut Dice) -> bool {
        self.stuck = false;
        let (out, at) = match &mut self.tls {
            Some(tls) => {
                tls.seal(&mut self.out);
                tls.sealed()
            }
            None => (&self.out, &mut self.at),
        };
        let left = &out[*at..];
        let piece = &left[..left.len().min(1 + dice.below(self.there.piece))];
        if !piece.is_empty() {
            match rustix::net::send(&self.fd, piece, SendFlags::NOSIGNAL | SendFlags::DONTWAIT) {
                Ok(n) => *at += n,
                Err(Errno::AGAIN) => self.stuck = true,
                Err(_) => {
                    *at = out.len();
                    self.at = self.out.len();
                    return false;
                }
            }
        }
        self.stray_arrived |= self.stray_from.take_if(|at| *at < self.at).is_some();
        let all = self.tls.as_mut().is_none_or(|tls| tls.forget_sent());
        // With TLS, stray bytes have arrived only when the whole record has.
        let sealed = self.tls.is_some() && all && self.out.is_empty();
        self.stray_arrived |= sealed && self.stray_from.take().is_some();
        if all && self.at == self.out.len() {
            self.out.clear();
            (self.at, self.stray_from) = (0, None);
            if self.finish == Finish::Half {
                self.finish = Finish::Stay;
                let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
            }
        }
        true
    }

    /// Delivers a piece to the peer.
    pub fn take(&mut self, dice: &mut Dice, into: &mut Vec<u8>) -> Received {
        into.clear();
        into.reserve_exact(1 + dice.below(self.back.piece));
        let room = into.capacity().min(self.back.piece.max(1));
        let mut piece = Vec::with_capacity(room);
        let got = rustix::net::recv(&self.fd, spare_capacity(&mut piece), RecvFlags::DONTWAIT);
        match &mut self.tls {
            None => into.append(&mut piece),
            Some(tls) => {
                if let Err(why) = tls.open(&piece, into) {
                    return Received::Torn(why);
                }
            }
        }
        match got {
            Ok((0, _)) => Received::End,
            Ok((n, _)) => Received::Bytes(n),
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::Reset,
        }
    }
}
