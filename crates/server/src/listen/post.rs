//! Takes datagrams of QUIC to the loop that has their connection. A connection's datagrams come to another loop when its client
//! moves to another address, and to a newer configuration's after a reload. They travel over a socket pair for each loop.
//! The master keeps all ends, so that workers of later configurations have them, too.

pub mod upgrade;

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use weir_engine::{Datagram, Handle};
use weir_http::{Packet, QuicHosts, QuicPlace};
use weir_values::Address;
use weir_values::listen::Listen;

/// Connections of so many older configurations are found.
const OLDER: usize = 16;
/// Longer than any datagram of QUIC with its addresses.
const LONGEST: usize = 4096;

/// The socket pairs of all loops.
#[derive(Debug, Default)]
pub struct Post {
    generation: u16,
    /// The loops of this configuration.
    own: Vec<PostBox>,
    /// Those of the next, which begin before the loops of this one have left the sockets to them.
    next: Vec<PostBox>,
    /// The ends to send to, of older configurations.
    older: Vec<(u16, Vec<Arc<OwnedFd>>)>,
}

#[derive(Clone, Debug)]
struct PostBox {
    send: Arc<OwnedFd>,
    receive: Arc<OwnedFd>,
}

impl PostBox {
    fn new() -> io::Result<PostBox> {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let (send, receive) = socketpair(AddressFamily::UNIX, SocketType::DGRAM, flags, None)?;
        Ok(PostBox { send: Arc::new(send), receive: Arc::new(receive) })
    }
}

impl Post {
    /// For so many loops that serve `listens` after those of `before`.
    pub fn after(before: &Post, loops: usize, listens: &[Listen]) -> io::Result<Post> {
        let loops = if listens.iter().any(|listen| listen.udp) { loops } else { 0 };
        let mut own: Vec<_> = before.next.iter().take(loops).cloned().collect();
        while own.len() < loops {
            own.push(PostBox::new()?);
        }
        let next = (0..loops).map(|_| PostBox::new()).collect::<io::Result<_>>()?;
        let mut older = before.older.clone();
        if !before.own.is_empty() {
            let ends = before.own.iter().map(|own| own.send.clone()).collect();
            older.push((before.generation, ends));
        }
        older.drain(..older.len().saturating_sub(OLDER));
        Ok(Post { generation: before.generation.wrapping_add(1), own, next, older })
    }

    /// Some loop serves QUIC.
    pub fn is_used(&self) -> bool {
        !self.own.is_empty()
    }

    /// The place of the loop with this row.
    pub fn place(&self, row: usize) -> QuicPlace {
        QuicPlace { generation: self.generation, row: u16::try_from(row).unwrap_or(u16::MAX) }
    }

    /// Sends a datagram that came to the socket of this address. It is lost if the loop is gone, or does not keep up.
    pub fn send(&self, bound: &Address, place: QuicPlace, packet: &Packet<'_>) {
        let Address::Inet(bound) = bound else { return };
        let row = usize::from(place.row);
        let end = match place.generation.wrapping_sub(self.generation) {
            0 => self.own.get(row).map(|own| &own.send),
            1 => self.next.get(row).map(|next| &next.send),
            _ => {
                let older = self.older.iter().find(|(older, _)| *older == place.generation);
                older.and_then(|(_, ends)| ends.get(row))
            }
        };
        let Some(end) = end else { return };
        let mut message = Vec::with_capacity(packet.bytes.len() + 64);
        packet.write(*bound, &mut message);
        #[allow(clippy::disallowed_methods, reason = "one datagram, without waiting")]
        let _ = rustix::net::send(end, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// Gives the loop of this row what comes for it, from now on.
    pub fn receive(&self, handle: &Handle, row: usize, hosts: &Rc<QuicHosts>) -> io::Result<()> {
        let Some(own) = self.own.get(row) else { return Ok(()) };
        let socket = handle.datagram_shared(own.receive.clone())?;
        handle.spawn(receive(socket, Rc::clone(hosts)));
        Ok(())
    }
}

async fn receive(socket: Datagram, hosts: Rc<QuicHosts>) {
    let mut buf = Vec::with_capacity(LONGEST);
    loop {
        if std::future::poll_fn(|cx| socket.poll_readable(cx)).await.is_err() {
            return;
        }
        while !weir_engine::is_spent() {
            buf.clear();
            match socket.try_recv(&mut buf) {
                Ok(Some(_)) => {
                    if let Some((bound, packet)) = Packet::read(&buf) {
                        hosts.deliver(&Address::Inet(bound), &packet);
                    }
                }
                Ok(None) | Err(_) => break,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_reach_loops_of_older_configurations() {
        let mut listen = Listen::new(Address::Unknown);
        listen.udp = true;
        let first = Post::after(&Post::default(), 2, std::slice::from_ref(&listen)).unwrap();
        let second = Post::after(&first, 1, &[listen]).unwrap();
        assert_ne!(first.place(0).generation, second.place(0).generation);
        let bound = "127.0.0.1:443".parse().unwrap();
        let packet = Packet { from: bound, to: None, ecn: 0, bytes: b"quic" };
        second.send(&Address::Inet(bound), first.place(1), &packet);
        // There is no such loop.
        second.send(&Address::Inet(bound), first.place(2), &packet);
        let mut buf = [0; LONGEST];
        let receive = |fd: &OwnedFd, buf: &mut [u8]| {
            #[allow(clippy::disallowed_methods, reason = "a test")]
            rustix::net::recv(fd, buf, rustix::net::RecvFlags::DONTWAIT).map(|(n, _)| n)
        };
        let n = receive(&first.own[1].receive, &mut buf).unwrap();
        assert_eq!(Packet::read(&buf[..n]), Some((bound, packet)));
        assert!(receive(&first.own[0].receive, &mut buf).is_err());
        assert!(receive(&second.own[0].receive, &mut buf).is_err());
        // A loop of the first may still receive what is for one of the second.
        first.send(&Address::Inet(bound), second.place(0), &packet);
        assert!(receive(&second.own[0].receive, &mut buf).is_ok());
    }
}
