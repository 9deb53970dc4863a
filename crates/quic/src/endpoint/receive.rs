//! Received datagrams, and the connections that begin with them.

use std::io::{self, IoSliceMut};
use std::os::fd::AsFd;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use quinn_proto::{ConnectionError, DatagramEvent, EcnCodepoint, Incoming, TransportErrorCode};
use quinn_udp::RecvMeta;
use weir_engine::{is_spent, spend};

use super::hello::{Counted, PendingAttempt};
use super::{Admission, Begin, DATAGRAM, Endpoint, NewConnection, socket};
use crate::connection::Connection;
use crate::crypto::{Chooser, OneSession};
use crate::ids::{ANY_GENERATION, Place, chosen_by_client, destination};
use crate::packet::{Packet, for_quinn};
use crate::version::Version;

/// The largest batch of datagrams from one sender that the kernel returns as one message: UDP_GRO.
const BATCH: usize = 65_535;
/// Batches per receive call.
const BATCHES: usize = 8;
/// The receive buffer.
pub(super) const RECEIVE_BUFFER: usize = BATCH * BATCHES;
/// New clients get a Retry once one in so many of the endpoint's connections has an unvalidated address, or waits to begin. The
/// endpoint's limit is half of `worker_connections`, so this is an eighth of these.
const UNVALIDATED_SHARE: usize = 4;

/// A failure of TLS: CRYPTO_ERROR (RFC 9000, section 20.1).
fn is_crypto_error(code: TransportErrorCode) -> bool {
    (0x100..0x200).contains(&u64::from(code))
}

impl Endpoint {
    /// Receives until the socket is empty or the task's budget is spent.
    pub(super) fn receive(self: &Rc<Self>) {
        let Some(datagrams) = self.socket.borrow().clone() else { return };
        let mut room = self.receive_buffer.take();
        room.resize(RECEIVE_BUFFER, 0);
        while !is_spent() {
            let mut metas = [RecvMeta::default(); BATCHES];
            let received = datagrams.try_receive(|fd| {
                let mut parts = room.chunks_mut(BATCH);
                let mut slices: [IoSliceMut<'_>; BATCHES] =
                    std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
                socket::receive(&self.udp, fd, &mut slices, &mut metas)
            });
            let n = match received {
                Ok(Some(n)) => n,
                // The kernel reports an ICMP error for an earlier datagram.
                Ok(None) | Err(_) => break,
            };
            for (meta, part) in metas.iter().zip(room.chunks(BATCH)).take(n) {
                self.split(meta, part);
            }
        }
        self.receive_buffer.replace(room);
    }

    /// Takes a packet that another loop has received for a connection of this one. A packet for a newer configuration, which the
    /// other loop does not know, is passed on.
    pub fn deliver(self: &Rc<Self>, packet: &Packet<'_>) {
        let place =
            self.place_in_id(packet).filter(|place| place.is_newer_than(self.place.generation));
        if let (Some(place), Some(accepts)) = (place, self.accepts.get()) {
            return accepts.misplaced(place, packet);
        }
        self.process(packet);
        self.wake();
    }

    /// The place in a packet's destination connection ID. `None` if the client or a Retry has chosen the ID.
    fn place_in_id(&self, packet: &Packet<'_>) -> Option<Place> {
        let place = destination(packet.bytes).and_then(|id| self.ids.read(id));
        place.filter(|place| place.generation != ANY_GENERATION)
    }

    /// Receives from the socket that all loops share. True if a connection has begun, `None` if the socket is empty.
    ///
    /// # Errors
    ///
    /// The kernel reports an ICMP error for an earlier datagram.
    pub fn receive_first(self: &Rc<Self>) -> io::Result<Option<bool>> {
        let Some((fd, udp)) = self.shared.take() else { return Ok(None) };
        let (before, mut room) = (self.begun.get(), self.receive_buffer.take());
        room.resize(RECEIVE_BUFFER, 0);
        let mut meta = [RecvMeta::default()];
        let part = room.get_mut(..BATCH).unwrap_or_default();
        let received = self.handle.receive_shared(fd.as_fd(), |fd| {
            socket::receive(&udp, fd, &mut [IoSliceMut::new(part)], &mut meta)
        });
        self.shared.replace(Some((fd, udp)));
        let outcome = received.map(|received| {
            received.map(|_| {
                meta.iter().for_each(|meta| self.split(meta, part));
                self.begun.get() != before
            })
        });
        self.receive_buffer.replace(room);
        outcome
    }

    /// Splits a batch into its datagrams, and routes each.
    fn split(self: &Rc<Self>, meta: &RecvMeta, part: &[u8]) {
        let bytes = part.get(..meta.len).unwrap_or(part);
        for packet in bytes.chunks(meta.stride.max(1)) {
            let ecn = meta.ecn.map_or(0, |ecn| ecn as u8);
            self.route(&Packet { from: meta.addr, to: meta.dst_ip, ecn, bytes: packet });
        }
    }

    fn route(self: &Rc<Self>, packet: &Packet<'_>) {
        let Some(accepts) = self.accepts.get() else { return };
        let place = match self.place_in_id(packet) {
            None if self.ids.has_other_loops() => {
                let first = chosen_by_client(packet.bytes);
                first.and_then(|id| accepts.owner(self.ids.hash(id)))
            }
            place => place,
        };
        match place.filter(|place| *place != self.place) {
            Some(place) => accepts.misplaced(place, packet),
            None => self.process(packet),
        }
    }

    /// Processes a packet of this loop. A panic drops the packet.
    fn process(self: &Rc<Self>, packet: &Packet<'_>) {
        spend(DATAGRAM);
        self.handle.guard(|| self.handle(packet));
    }

    fn handle(self: &Rc<Self>, packet: &Packet<'_>) {
        let Packet { from, to, ecn, bytes } = *packet;
        let (now, mut answer) = (self.now(), Vec::new());
        let ecn = EcnCodepoint::from_bits(ecn);
        let (len, bytes) = (bytes.len(), for_quinn(bytes));
        let event = self.inner.borrow_mut().handle(now, from, to, ecn, bytes, &mut answer);
        match event {
            // It may belong to a connection whose ClientHello is incomplete.
            None => self.read_more_hello(packet),
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                let connection = self.connections.borrow().get(&handle).cloned();
                if let Some(connection) = connection {
                    self.guard(&connection, || {
                        connection.count_received(from, len);
                        connection.inner.borrow_mut().handle_event(event);
                        connection.update_path(len);
                        connection.undispatched.set(true);
                        self.mark(&connection);
                    });
                }
            }
            Some(DatagramEvent::NewConnection(incoming)) => {
                self.admit(incoming, packet, &mut answer);
            }
            Some(DatagramEvent::Response(transmit)) => self.send_stateless(transmit, answer),
        }
    }

    fn admit(self: &Rc<Self>, incoming: Incoming, packet: &Packet<'_>, answer: &mut Vec<u8>) {
        self.expire_hellos();
        let attempts = self.attempts.get();
        let new = NewConnection {
            peer: incoming.remote_address(),
            local: incoming.local_ip(),
            validated: incoming.remote_address_validated(),
            crowded: self.unvalidated.get() + attempts
                >= (self.most_connections / UNVALIDATED_SHARE).max(1),
        };
        let unvalidated_len = (!new.validated).then_some(packet.bytes.len());
        let Some(accepts) = self.accepts.get() else {
            return self.inner.borrow_mut().ignore(incoming);
        };
        // As many attempts may wait as there may be connections.
        let most = self.connections().max(attempts);
        let admission = match most < self.most_connections {
            true => accepts.admit(&new),
            false => {
                accepts.full(most, false);
                Admission::Ignore
            }
        };
        let transmit = match admission {
            Admission::AcceptLater(choose, begin) => {
                let counted = Counted::new(&self.attempts);
                let attempt = PendingAttempt { incoming, unvalidated_len, choose, begin, counted };
                return self.read_hello(attempt, packet);
            }
            Admission::Accept(chooser, begin) => {
                return self.accept(incoming, unvalidated_len, chooser, begin, answer);
            }
            Admission::Retry => {
                self.for_retry.store(true, Relaxed);
                let transmit = self.inner.borrow_mut().retry(incoming, answer);
                self.for_retry.store(false, Relaxed);
                let Ok(transmit) = transmit else { return };
                if let Some(version) = Version::of_packet(answer) {
                    version.write_header(answer);
                }
                transmit
            }
            Admission::Refuse => self.inner.borrow_mut().refuse(incoming, answer),
            Admission::Ignore => return self.inner.borrow_mut().ignore(incoming),
        };
        self.send_stateless(transmit, std::mem::take(answer));
    }

    pub(super) fn accept(
        self: &Rc<Self>,
        incoming: Incoming,
        unvalidated_len: Option<usize>,
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
                    self.receive_window,
                    unvalidated_len,
                );
                if connection.is_unvalidated() {
                    self.unvalidated.update(|n| n + 1);
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
                    && is_crypto_error(cause.code)
                    && let Some(accepts) = self.accepts.get()
                {
                    accepts.refused(peer, &cause.reason);
                }
                if let Some(transmit) = error.response {
                    self.send_stateless(transmit, std::mem::take(answer));
                }
            }
        }
    }
}
