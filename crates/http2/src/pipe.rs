//! The buffers of a connection, between its socket and the frame parser.

use std::io;

use weir_engine::{Chain, Handle};
use weir_tls::Wire;

use super::frames::{FrameHandler, Frames, ReadResult};
use super::link::Link;
use super::send::Stream;

/// The buffer for a read: a frame of the default largest size, and some more.
const ROOM: usize = 20 * 1024;

/// The buffers of a connection's task.
#[derive(Default)]
pub struct Pipe {
    /// Received bytes that are not parsed yet.
    read: Vec<u8>,
    /// Bytes from the outbox that the socket has not accepted.
    sending: Chain,
}

impl Pipe {
    /// The buffers of a connection from which `read` was received before.
    pub fn new(read: Vec<u8>) -> Pipe {
        Pipe { read, sending: Chain::new() }
    }

    /// Received bytes that are not parsed yet.
    pub fn unread(&self) -> &[u8] {
        &self.read
    }

    /// The socket has not accepted all bytes.
    pub fn is_sending(&self) -> bool {
        !self.sending.is_empty()
    }

    /// Discards received bytes.
    pub fn discard_received(&mut self) {
        self.read.clear();
    }

    /// Gives an empty receive buffer back to the loop, before the connection waits.
    pub fn release_buffer(&mut self, handle: &Handle) {
        if self.read.is_empty() {
            handle.give_buf(std::mem::take(&mut self.read));
        }
    }

    /// Parses and handles received frames. Returns the number of bytes.
    pub fn parse<E: FrameHandler>(&mut self, frames: &mut Frames<E>) -> ReadResult<usize> {
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

    /// Sends frames as far as the socket accepts them. True if it has accepted any bytes.
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

    /// Discards unsent bytes: the peer does not read.
    pub fn drop_output<S: Stream>(&mut self, link: &Link<S>) {
        self.sending.clear();
        while !link.out.take().is_empty() {}
        link.set_backlog(0);
    }

    /// Waits until the socket is readable (true), or the task has work.
    pub async fn wait<S: Stream>(&self, link: &Link<S>, wire: &Wire) -> io::Result<bool> {
        link.out.wait(self.is_sending(), wire.readable(), wire.writable()).await
    }

    /// Receives into the buffer. False at the end of the connection.
    pub fn receive(&mut self, handle: &Handle, wire: &Wire) -> io::Result<bool> {
        if self.read.capacity() == 0 {
            self.read = handle.take_buf(ROOM);
        } else if self.read.capacity() - self.read.len() < ROOM / 2 {
            self.read.reserve(ROOM);
        }
        Ok(wire.try_recv(&mut self.read)? != Some(0))
    }
}
