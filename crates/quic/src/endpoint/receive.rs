//! Datagrams that come, and the connections that begin with them.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quinn_proto::{ConnectionError, DatagramEvent, EcnCodepoint, Incoming, TransportErrorCode};
use quinn_udp::RecvMeta;
use weir_engine::{is_spent, spend};

use super::scout::NotBegun;
use super::{Admission, Begin, DATAGRAM, Endpoint, NewConnection};
use crate::connection::Connection;
use crate::crypto::{Chooser, OneSession};
use crate::ids::{ANY_GENERATION, Place, chosen_by_client, destination};
use crate::packet::{Packet, of_clients};
use crate::version::Version;

/// Datagrams of one sender that the kernel may put together.
const BATCH: usize = 65_535;
/// So many batches are received with one call.
const BATCHES: usize = 8;
/// All of them.
pub(super) const ROOM: usize = BATCH * BATCHES;
/// New clients have to show their address once this part of all connections may be forged: an eighth of `worker_connections`,
/// of which datagrams get half.
const UNSHOWN_SHARE: usize = 4;

/// TLS has failed. RFC 9000, section 20.1: CRYPTO_ERROR.
fn is_of_tls(code: TransportErrorCode) -> bool {
    (0x100..0x200).contains(&u64::from(code))
}

impl Endpoint {
    /// Receives until nothing is there, or the task has done enough for this turn.
    pub(super) fn receive(self: &Rc<Self>) {
        let Some(socket) = self.socket.borrow().clone() else { return };
        let mut room = self.room.take();
        room.resize(ROOM, 0);
        while !is_spent() {
            let mut metas = [RecvMeta::default(); BATCHES];
            let received = socket.try_receive(|fd| {
                let mut parts = room.chunks_mut(BATCH);
                let mut slices: [IoSliceMut<'_>; BATCHES] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
                self.udp.recv((&fd).into(), &mut slices, &mut metas)
            });
            let n = match received {
                Ok(Some(n)) => n,
                // An error is an earlier datagram's: its receiver is gone.
                Ok(None) | Err(_) => break,
            };
            for (meta, part) in metas.iter().zip(room.chunks(BATCH)).take(n) {
                self.split(meta, part);
            }
        }
        self.room.replace(room);
    }

    /// A packet that another loop has received for a connection of this one, or of a configuration that is too new for the
    /// other loop to know.
    pub fn deliver(self: &Rc<Self>, packet: &Packet<'_>) {
        let place = self.named(packet).filter(|place| place.is_newer_than(self.place.generation));
        if let (Some(place), Some(accepts)) = (place, self.accepts.get()) {
            return accepts.misplaced(place, packet);
        }
        self.take(packet);
        self.wake();
    }

    /// Where a packet's connection lives, if its id says so.
    fn named(&self, packet: &Packet<'_>) -> Option<Place> {
        let place = destination(packet.bytes).and_then(|id| self.ids.read(id));
        place.filter(|place| place.generation != ANY_GENERATION)
    }

    /// Takes the next datagram from the socket that all loops share: true if a connection has begun. None if nothing is there.
    ///
    /// # Errors
    ///
    /// An earlier datagram's: its receiver is gone.
    pub fn receive_first(self: &Rc<Self>) -> io::Result<Option<bool>> {
        let Some((fd, udp)) = self.shared.take() else { return Ok(None) };
        let (before, mut room) = (self.begun.get(), self.room.take());
        room.resize(ROOM, 0);
        let mut meta = [RecvMeta::default()];
        let part = room.get_mut(..BATCH).unwrap_or_default();
        let received = self.handle.receive_shared(fd.as_fd(), |fd| {
            udp.recv((&fd).into(), &mut [IoSliceMut::new(part)], &mut meta)
        });
        self.shared.replace(Some((fd, udp)));
        let outcome = received.map(|received| {
            received.map(|_| {
                meta.iter().for_each(|meta| self.split(meta, part));
                self.begun.get() != before
            })
        });
        self.room.replace(room);
        outcome
    }

    /// Takes the datagrams that the kernel has put together.
    fn split(self: &Rc<Self>, meta: &RecvMeta, part: &[u8]) {
        let bytes = part.get(..meta.len).unwrap_or(part);
        for packet in bytes.chunks(meta.stride.max(1)) {
            let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
            self.came(&Packet { from: meta.addr, to: meta.dst_ip, ecn, bytes: packet });
        }
    }

    fn came(self: &Rc<Self>, packet: &Packet<'_>) {
        let Some(accepts) = self.accepts.get() else { return };
        let place = match self.named(packet) {
            None if self.ids.has_others() => {
                let first = chosen_by_client(packet.bytes);
                first.and_then(|id| accepts.owner(self.ids.number(id)))
            }
            place => place,
        };
        match place.filter(|place| *place != self.place) {
            Some(place) => accepts.misplaced(place, packet),
            None => self.take(packet),
        }
    }

    /// A panic drops the packet, and ends its connection.
    fn take(self: &Rc<Self>, packet: &Packet<'_>) {
        spend(DATAGRAM);
        self.handle.guard(|| self.read(packet));
    }

    fn read(self: &Rc<Self>, packet: &Packet<'_>) {
        let Packet { from, to, ecn, bytes } = *packet;
        let (now, mut answer) = (self.now(), Vec::new());
        let ecn = EcnCodepoint::from_bits(ecn);
        let (len, bytes) = (bytes.len(), of_clients(bytes));
        let event = self.inner.borrow_mut().handle(now, from, to, ecn, bytes, &mut answer);
        match event {
            // It may be of a connection that has not begun.
            None => self.ask_on(packet),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let connection = self.connections.borrow().get(&handle).cloned();
                if let Some(connection) = connection {
                    self.guard(&connection, || {
                        connection.receives(from, len);
                        connection.inner.borrow_mut().handle_event(event);
                        connection.look_for_client(len);
                        connection.came.set(true);
                        self.mark(&connection);
                    });
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.asked(incoming, packet, &mut answer);
            }
            Some(DatagramEvent::Response(transmit)) => self.say(transmit, answer),
        }
    }

    fn asked(self: &Rc<Self>, incoming: Incoming, packet: &Packet<'_>, answer: &mut Vec<u8>) {
        let new = NewConnection {
            peer: incoming.remote_address(),
            local: incoming.local_ip(),
            validated: incoming.remote_address_validated(),
            crowded: self.unshown.get() >= (self.most / UNSHOWN_SHARE).max(1),
        };
        let forged = (!new.validated).then_some(packet.bytes.len());
        let Some(accepts) = self.accepts.get() else {
            return self.inner.borrow_mut().ignore(incoming);
        };
        let admission = match self.connections() < self.most {
            true => accepts.admit(&new),
            false => {
                accepts.full(self.connections(), false);
                Admission::Ignore
            }
        };
        let transmit = match admission {
            Admission::Ask(ask, begin) => {
                return self.ask(NotBegun { incoming, forged, ask, begin }, packet);
            }
            Admission::Accept(chooser, begin) => {
                return self.accept(incoming, forged, chooser, begin, answer);
            }
            Admission::Retry => {
                self.for_retry.store(true, Relaxed);
                let transmit = self.inner.borrow_mut().retry(incoming, answer);
                self.for_retry.store(false, Relaxed);
                let Ok(transmit) = transmit else { return };
                if let Some(version) = Version::of_packet(answer) {
                    version.write_head(answer);
                }
                transmit
            }
            Admission::Refuse => self.inner.borrow_mut().refuse(incoming, answer),
            Admission::Ignore => return self.inner.borrow_mut().ignore(incoming),
        };
        self.say(transmit, std::mem::take(answer));
    }

    pub(super) fn accept(
        self: &Rc<Self>,
        incoming: Incoming,
        forged: Option<usize>,
        chooser: Chooser,
        begin: Begin,
        answer: &mut Vec<u8>,
    ) {
        let (session, secure) = OneSession::new(self.initial.clone(), chooser);
        let mut config = self.base.clone();
        config.crypto = session;
        if let Some(transport) = self.transports.to(incoming.remote_address()) {
            config.transport_config(transport.clone());
        }
        let config = Arc::new(config);
        let (now, peer) = (self.now(), incoming.remote_address());
        let accepted = self.inner.borrow_mut().accept(incoming, now, answer, Some(config));
        match accepted {
            Ok((handle, inner)) => {
                let connection = Connection::new(
                    Rc::downgrade(self),
                    handle,
                    inner,
                    secure,
                    self.window,
                    forged,
                );
                if connection.is_unshown() {
                    self.unshown.update(|n| n + 1);
                }
                let connection = Rc::new(connection);
                self.begun.update(|begun| begun + 1);
                self.connections.borrow_mut().insert(handle, connection.clone());
                let events = begin(&connection);
                connection.events.replace(Some(events));
                self.mark(&connection);
                self.make_room();
            }
            Err(error) => {
                if let ConnectionError::TransportError(cause) = &error.cause
                    && is_of_tls(cause.code)
                    && let Some(accepts) = self.accepts.get()
                {
                    accepts.refused(peer, &cause.reason);
                }
                if let Some(transmit) = error.response {
                    self.say(transmit, std::mem::take(answer));
                }
            }
        }
    }
}
