//! Passes QUIC datagrams to the loop that has their connection. A connection's datagrams reach
//! another loop if the client's address changes, and a newer configuration's loop after a reload.
//! They travel over a socket pair for each loop. The master keeps all ends, so that workers of
//! later configurations have them, too.

mod firsts;
pub mod upgrade;

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use weir_engine::{Datagram, Handle};
use weir_http::{ANY_GENERATION, Packet, QuicHosts, QuicPlace};
use weir_values::Address;
use weir_values::listen::Listen;

use self::firsts::Firsts;

/// The number of older configurations whose loops can be reached, while their workers live.
const OLDER: usize = 16;
/// When two programs both load new configurations, their generation numbers are this far apart.
const APART: u16 = 0x4000;
/// More bytes than any QUIC datagram with its addresses.
const LONGEST: usize = 4096;

/// The socket pairs of all loops that can be reached.
#[derive(Debug, Default)]
pub struct Post {
    /// Those of this configuration.
    own: Boxes,
    /// Those of the next configuration. Its loops start before the loops of this one have left the
    /// sockets to them.
    next: Boxes,
    /// Those of the next configuration, if a successor program uses `next`. Both programs may load
    /// a new configuration then.
    aside: Boxes,
    /// A successor program uses `next`.
    left: AtomicBool,
    /// The sending ends for older configurations, and for another program's.
    older: Vec<(u16, Vec<Arc<OwnedFd>>)>,
    /// The owners of connections whose clients do not know a connection id of the server yet.
    firsts: Option<Arc<Firsts>>,
}

/// The socket pairs of one configuration's loops.
#[derive(Clone, Debug, Default)]
struct Boxes {
    generation: u16,
    all: Vec<PostBox>,
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

impl Boxes {
    fn new(generation: u16, loops: usize) -> io::Result<Boxes> {
        let all = (0..loops).map(|_| PostBox::new()).collect::<io::Result<_>>()?;
        Ok(Boxes { generation, all })
    }

    /// The sending ends with their generation, if there are any.
    fn ends(&self) -> impl Iterator<Item = (u16, Vec<Arc<OwnedFd>>)> + use<> {
        let all: Vec<_> = self.all.iter().map(|one| one.send.clone()).collect();
        (!all.is_empty()).then_some((self.generation, all)).into_iter()
    }
}

/// Whether a worker still has the receiving ends. An empty datagram does nothing there.
#[allow(clippy::disallowed_methods, reason = "an empty datagram, without waiting")]
fn is_received((_, ends): &(u16, Vec<Arc<OwnedFd>>)) -> bool {
    let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
    let is_gone = |sent| matches!(sent, Err(Errno::CONNREFUSED | Errno::NOTCONN));
    ends.iter().any(|end| !is_gone(rustix::net::send(end, &[], flags)))
}

/// The first generation number after this one that no other configuration has.
fn unused_after(generation: u16, older: &[(u16, Vec<Arc<OwnedFd>>)]) -> u16 {
    let mut next = generation.wrapping_add(1);
    while next == ANY_GENERATION || older.iter().any(|(other, _)| *other == next) {
        next = next.wrapping_add(1);
    }
    next
}

impl Post {
    /// For `loops` loops that serve `listens`, as the successor of `before`.
    pub fn after(before: &Post, loops: usize, listens: &[Listen]) -> io::Result<Post> {
        let loops = if listens.iter().any(|listen| listen.udp) { loops } else { 0 };
        let left = before.left.load(Relaxed);
        let planned = if left { &before.aside } else { &before.next };
        let mut own = Boxes::new(planned.generation, 0)?;
        own.all.extend(planned.all.iter().take(loops).cloned());
        while own.all.len() < loops {
            own.all.push(PostBox::new()?);
        }
        let mut older = before.older.clone();
        older.retain(is_received);
        older.extend(before.own.ends());
        older.extend(before.next.ends().filter(|_| left));
        older.drain(..older.len().saturating_sub(OLDER));
        let from = own.generation.wrapping_add(if left { APART } else { 0 });
        let next = Boxes::new(unused_after(from, &older), loops)?;
        // Skips the number of the configuration after the next.
        let from = next.generation.wrapping_add(APART);
        let aside = Boxes::new(unused_after(from, &older), loops)?;
        let firsts = if loops > 1 { Some(Arc::new(Firsts::new()?)) } else { None };
        Ok(Post { own, next, aside, left: AtomicBool::new(false), older, firsts })
    }

    /// Closes sending ends whose workers have all ended. A configuration with many loops has many
    /// of them.
    pub fn forget_ended(&mut self) {
        self.older.retain(is_received);
    }

    /// Whether any loop serves QUIC.
    pub fn is_used(&self) -> bool {
        !self.own.all.is_empty()
    }

    /// The number of loops that serve QUIC.
    pub fn loops(&self) -> usize {
        self.own.all.len()
    }

    /// The loop that has the connection with this number: the first loop that asked.
    pub fn owner(&self, first: u64, place: QuicPlace) -> QuicPlace {
        let Some(firsts) = &self.firsts else { return place };
        let row = firsts.owner(first, place.row, self.loops());
        QuicPlace { row, ..place }
    }

    /// The place of the loop with this row.
    pub fn place(&self, row: usize) -> QuicPlace {
        QuicPlace { generation: self.own.generation, row: u16::try_from(row).unwrap_or(u16::MAX) }
    }

    /// Sends a datagram that arrived at the socket with this address. It is lost if the loop has
    /// ended or is too slow.
    pub fn send(&self, bound: &Address, place: QuicPlace, packet: &Packet<'_>) {
        let (Address::Inet(bound), Some(end)) = (bound, self.end_to(place)) else { return };
        let mut message = Vec::with_capacity(packet.bytes.len() + 64);
        packet.write(*bound, &mut message);
        #[allow(clippy::disallowed_methods, reason = "one datagram, without waiting")]
        let _ = rustix::net::send(end, &message, SendFlags::NOSIGNAL | SendFlags::DONTWAIT);
    }

    /// The sending end for the loop at `place`. Loops of configurations after the next are unknown
    /// here. Their datagrams go to a loop of the next configuration, which passes them on.
    fn end_to(&self, place: QuicPlace) -> Option<&Arc<OwnedFd>> {
        let row = usize::from(place.row);
        let planned = [&self.own, &self.next, &self.aside];
        if let Some(boxes) = planned.into_iter().find(|boxes| boxes.generation == place.generation)
        {
            return boxes.all.get(row).map(|own| &own.send);
        }
        if let Some((_, ends)) = self.older.iter().find(|(older, _)| *older == place.generation) {
            return ends.get(row);
        }
        let next = self.next.all.first().filter(|_| place.is_newer_than(self.next.generation));
        next.map(|next| &next.send)
    }

    /// Passes datagrams for the loop of this row to it from now on.
    pub fn receive(&self, handle: &Handle, row: usize, hosts: &Rc<QuicHosts>) -> io::Result<()> {
        let Some(own) = self.own.all.get(row) else { return Ok(()) };
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

    fn listen() -> Listen {
        Listen { udp: true, ..Listen::new(Address::Unknown) }
    }

    /// Sends a datagram from one configuration to a loop of another. True if it has arrived.
    fn reaches(from: &Post, to: &Post, row: usize) -> bool {
        let bound = "127.0.0.1:443".parse().unwrap();
        let packet = Packet { from: bound, to: None, ecn: 0, bytes: b"quic" };
        from.send(&Address::Inet(bound), to.place(row), &packet);
        let mut buf = [0; LONGEST];
        let Some(own) = to.own.all.get(row) else { return false };
        #[allow(clippy::disallowed_methods, reason = "a test")]
        let got = rustix::net::recv(&own.receive, &mut buf, rustix::net::RecvFlags::DONTWAIT);
        got.is_ok_and(|(n, _)| Packet::read(&buf[..n]) == Some((bound, packet)))
    }

    #[test]
    fn datagrams_reach_loops_of_older_configurations() {
        let first = Post::after(&Post::default(), 2, &[listen()]).unwrap();
        let second = Post::after(&first, 1, &[listen()]).unwrap();
        assert_ne!(first.place(0).generation, second.place(0).generation);
        assert!(reaches(&second, &first, 1) && !reaches(&second, &first, 2));
        // A loop of the first configuration may still receive datagrams for one of the second.
        assert!(reaches(&first, &second, 0) && !reaches(&first, &second, 1));
        // A datagram for a loop of the third goes to one of the second, which knows the third.
        let third = Post::after(&second, 2, &[listen()]).unwrap();
        assert!(!reaches(&first, &third, 1));
        let mut buf = [0; LONGEST];
        #[allow(clippy::disallowed_methods, reason = "a test")]
        let passed = rustix::net::recv(
            &second.own.all[0].receive,
            &mut buf,
            rustix::net::RecvFlags::DONTWAIT,
        );
        assert!(passed.is_ok() && reaches(&second, &third, 0));
    }

    #[test]
    fn generations_that_have_ended_are_forgotten() {
        let first = Post::after(&Post::default(), 2, &[listen()]).unwrap();
        let second = Post::after(&first, 2, &[listen()]).unwrap();
        let mut third = Post::after(&second, 2, &[listen()]).unwrap();
        let numbers = |post: &Post| post.older.iter().map(|(n, _)| *n).collect::<Vec<_>>();
        let [one, two] = [&first, &second].map(|post| post.place(0).generation);
        assert_eq!(numbers(&third), [one, two]);
        drop(first);
        third.forget_ended();
        assert_eq!(numbers(&third), [two]);
        // A living loop ignores empty datagrams.
        assert!(!reaches(&third, &second, 0) && reaches(&third, &second, 0));
        drop(second);
        let fourth = Post::after(&third, 2, &[listen()]).unwrap();
        assert_eq!(numbers(&fourth), [third.place(0).generation]);
    }

    /// The state of a successor program, as [`upgrade`] passes it on.
    fn successor(old: &Post) -> Post {
        old.left.store(true, Relaxed);
        let mut older = old.older.clone();
        older.extend(old.own.ends());
        older.extend(old.aside.ends());
        Post { next: old.next.clone(), older, ..Post::default() }
    }

    #[test]
    fn both_programs_may_reload_at_an_upgrade() {
        let old = Post::after(&Post::default(), 2, &[listen()]).unwrap();
        let new = Post::after(&successor(&old), 2, &[listen()]).unwrap();
        let old_reloaded = Post::after(&old, 2, &[listen()]).unwrap();
        let new_reloaded = Post::after(&new, 2, &[listen()]).unwrap();
        let all = [&old, &new, &old_reloaded, &new_reloaded];
        let numbers: std::collections::BTreeSet<_> =
            all.iter().map(|post| post.place(0).generation).collect();
        assert_eq!(numbers.len(), 4);
        for (from, to) in [(&old, &new), (&new, &old), (&new, &old_reloaded)] {
            assert!(reaches(from, to, 1), "{from:?} {to:?}");
        }
        for (from, to) in [(&old_reloaded, &new), (&new_reloaded, &old_reloaded)] {
            assert!(reaches(from, to, 1), "{from:?} {to:?}");
        }
        // Configurations that one program loads later are unknown to the other, which must not take
        // them for its own.
        let again = Post::after(&old_reloaded, 2, &[listen()]).unwrap();
        let later = Post::after(&new_reloaded, 2, &[listen()]).unwrap();
        assert_ne!(again.place(0).generation, later.place(0).generation);
        assert_ne!(again.place(0).generation, new_reloaded.place(0).generation);
        assert!(!reaches(&new_reloaded, &again, 0));
    }
}
