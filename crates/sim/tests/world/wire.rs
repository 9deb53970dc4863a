//! The world's end of a connection, and the network between it and the server.
//!
//! Bytes go through a socket of the kernel that has no timers. What a peer sends enters the socket
//! when it arrives, in pieces. What the server sent is taken out only when it arrives at the peer.
//! Until then the pages of a file that was sent without a copy belong to the file.

use std::os::fd::OwnedFd;

use rustix::buffer::spare_capacity;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use weir_testkit::Dice;

use crate::secured::Secured;

/// How bytes travel in one direction.
#[derive(Clone, Copy, Debug)]
pub struct Way {
    /// The largest piece.
    pub piece: usize,
    /// The delay of a piece is between one and two times so many nanoseconds.
    pub delay: u64,
}

impl Way {
    /// Draws a direction that takes at most about a thousand pieces for `bytes`.
    pub fn draw(dice: &mut Dice, bytes: u64) -> Way {
        let piece = dice.pick(&[1, 7, 100, 1460, 16_000, 64_000]);
        let delay = dice.pick(&[1_000, 50_000, 1_000_000, 20_000_000]);
        Way { piece: piece.max(bytes as usize / 600), delay }
    }

    /// Draws a direction with short delays and large pieces.
    pub fn quick(dice: &mut Dice) -> Way {
        Way { piece: 64_000, delay: dice.pick(&[1_000, 30_000, 500_000]) }
    }

    pub fn time(&self, dice: &mut Dice) -> u64 {
        self.delay + dice.below(self.delay as usize + 1) as u64
    }
}

/// What happens after everything was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    Stay,
    /// The peer shuts down its sending side.
    Half,
    Close,
}

pub struct Wire {
    pub fd: OwnedFd,
    pub there: Way,
    pub back: Way,
    /// What the peer has to send.
    pub out: Vec<u8>,
    at: usize,
    /// TLS, if the peer speaks it.
    pub tls: Option<Box<Secured>>,
    /// From this offset on, `out` has stray bytes. `strayed`: some of them are at the server.
    pub strange: Option<usize>,
    pub strayed: bool,
    pub finish: Finish,
    /// An event is planned that will send, or take, a piece.
    pub sending: bool,
    pub taking: bool,
    /// The server does not take what arrived.
    pub stuck: bool,
}

/// The result of a look at the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Came {
    Bytes(usize),
    Nothing,
    End,
    Reset,
    /// What came is no TLS, or belongs to another connection.
    Torn(String),
}

impl Wire {
    pub fn new(fd: OwnedFd, there: Way, back: Way) -> Wire {
        let (out, finish, tls) = (Vec::new(), Finish::Stay, None);
        let (sending, taking, stuck, strayed) = (false, false, false, false);
        let (at, strange) = (0, None);
        Wire { fd, there, back, out, at, tls, strange, strayed, finish, sending, taking, stuck }
    }

    /// The number of bytes that were written and have not left.
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

    /// Whether everything was sent, and the connection is to be closed now.
    pub fn is_over(&self) -> bool {
        let sent = self.tls.as_ref().is_none_or(|tls| !tls.has_more());
        sent && self.at >= self.out.len() && self.finish == Finish::Close
    }

    /// One piece arrives at the server. False if the server has closed.
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
        self.strayed |= self.strange.take_if(|at| *at < self.at).is_some();
        let all = self.tls.as_mut().is_none_or(|tls| tls.forget_sent());
        // Within TLS it has arrived only when all of it has.
        let sealed = self.tls.is_some() && all && self.out.is_empty();
        self.strayed |= sealed && self.strange.take().is_some();
        if all && self.at == self.out.len() {
            self.out.clear();
            (self.at, self.strange) = (0, None);
            if self.finish == Finish::Half {
                self.finish = Finish::Stay;
                let _ = rustix::net::shutdown(&self.fd, Shutdown::Write);
            }
        }
        true
    }

    /// One piece arrives at the peer.
    pub fn take(&mut self, dice: &mut Dice, into: &mut Vec<u8>) -> Came {
        into.clear();
        into.reserve_exact(1 + dice.below(self.back.piece));
        let room = into.capacity().min(self.back.piece.max(1));
        let mut piece = Vec::with_capacity(room);
        let got = rustix::net::recv(&self.fd, spare_capacity(&mut piece), RecvFlags::DONTWAIT);
        match &mut self.tls {
            None => into.append(&mut piece),
            Some(tls) => {
                if let Err(why) = tls.open(&piece, into) {
                    return Came::Torn(why);
                }
            }
        }
        match got {
            Ok((0, _)) => Came::End,
            Ok((n, _)) => Came::Bytes(n),
            Err(Errno::AGAIN) => Came::Nothing,
            Err(_) => Came::Reset,
        }
    }
}
