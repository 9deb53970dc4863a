//! The bytes of a connection, between its socket and the reader of frames.

use std::io;

use weir_engine::{Chain, Handle};
use weir_tls::Wire;

use super::frames::{FrameHandler, Frames, ReadResult};
use super::link::Link;
use super::way::Stream;

/// Room for one read: a whole frame of the usual largest size, and a little.
const ROOM: usize = 20 * 1024;

/// What a connection's task holds of its bytes.
#[derive(Default)]
pub struct Pipe {
    /// Read, and not understood yet.
    read: Vec<u8>,
    /// On its way.
    sending: Chain,
}

impl Pipe {
    /// Of a connection of which so much was read.
    pub fn new(read: Vec<u8>) -> Pipe {
        Pipe { read, sending: Chain::new() }
    }

    /// What was read, and is not understood yet.
    pub fn unread(&self) -> &[u8] {
        &self.read
    }

    /// Something has not been taken by the socket.
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Throws away what was read.
    pub fn forget(&mut self) {
        self.read.clear();
    }

    /// A connection that waits needs no buffer.
    pub fn give_room(&mut self, handle: &Handle) {
        if self.read.is_empty() {
            handle.give_buf(std::mem::take(&mut self.read));
        }
    }

    /// Handles the frames that were read, as far as they are there: how many bytes that were.
    pub fn understand<E: FrameHandler>(&mut self, frames: &mut Frames<E>) -> ReadResult<usize> {
        if self.read.is_empty() {
            return Ok(0);
        }
        let read = frames.read(&self.read)?;
        if read == self.read.len() {
            self.read.clear();
        } else {
            self.read.drain(..read);
        }
        Ok(read)
    }

    /// Hands to the socket what waits, as far as it takes it: whether it took anything.
    pub fn flush<S: Stream>(&mut self, link: &Link<S>, wire: &Wire) -> io::Result<bool> {
        let mut moved = false;
        loop {
            if self.sending.is_empty() {
                let out = link.out.take();
                if out.is_empty() {
                    break;
                }
                self.sending.push(out);
            }
            let before = self.sending.len();
            wire.try_send(&mut self.sending)?;
            moved |= self.sending.len() < before;
            if !self.sending.is_empty() {
                break;
            }
        }
        link.set_backlog(self.sending.len());
        Ok(moved)
    }

    /// Throws away what waits, since the peer does not take it.
    pub fn drop_output<S: Stream>(&mut self, link: &Link<S>) {
        self.sending.clear();
        while !link.out.take().is_empty() {}
        link.set_backlog(0);
    }

    /// Waits for something to read (true), or to do.
    pub async fn wait<S: Stream>(&self, link: &Link<S>, wire: &Wire) -> io::Result<bool> {
        link.out.wait(self.is_sending(), wire.readable(), wire.writable()).await
    }

    /// Reads what is there; false if there will be no more.
    pub fn receive(&mut self, handle: &Handle, wire: &Wire) -> io::Result<bool> {
        if self.read.capacity() == 0 {
            self.read = handle.take_buf(ROOM);
        } else if self.read.capacity() - self.read.len() < ROOM / 2 {
            self.read.reserve(ROOM);
        }
        Ok(wire.try_recv(&mut self.read)? != Some(0))
    }
}
