//! What clients say first, read before their connections begin.
//!
//! quinn wants a connection's TLS as soon as the client's first message is whole, and certificates may have to be loaded
//! for it. So a second state machine reads copies of the first datagrams. It sends nothing; the client waits meanwhile.

use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn_proto::{
    ConnectionHandle, DatagramEvent, EndpointConfig, EndpointEvent, Incoming, ServerConfig,
};
use rustc_hash::FxHashMap;
use weir_tls::Hello;
use weir_tls::quic::{QuicAlert, alert};

use super::{Asker, Begin, Endpoint};
use crate::crypto::{Initial, OneSession};
use crate::packet::{Packet, of_clients};

/// So many clients may have sent a part of their first message: one more gets no answer.
const MOST_READING: usize = 256;
/// A client that takes longer for it gets no answer either. The first repetition comes after a second (RFC 9002, section 6.2.2).
const LONGEST: Duration = Duration::from_secs(5);

/// The second state machine.
pub struct Scout {
    inner: quinn_proto::Endpoint,
    initial: Initial,
    base: ServerConfig,
    reading: FxHashMap<ConnectionHandle, Reading>,
}

/// A connection that has not begun.
pub struct NotBegun {
    pub(super) incoming: Incoming,
    pub(super) forged: Option<usize>,
    pub(super) ask: Asker,
    pub(super) begin: Begin,
}

/// One whose client has said a part of its first message.
struct Reading {
    connection: Box<quinn_proto::Connection>,
    hello: Arc<Mutex<Option<Hello>>>,
    not_begun: NotBegun,
    until: Instant,
}

/// What came of a datagram.
enum Read {
    Whole(Hello),
    Part(ConnectionHandle, Box<quinn_proto::Connection>, Arc<Mutex<Option<Hello>>>),
    /// It is no such message: the connection begins, and says so.
    Bad,
}

/// Why the second state machine has nothing to say.
fn only_read() -> QuicAlert {
    QuicAlert::new(alert::INTERNAL_ERROR, "the first message was only read")
}

fn taken(hello: &Mutex<Option<Hello>>) -> Option<Hello> {
    hello.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Scout {
    /// With the keys and tokens of an endpoint.
    pub fn new(config: Arc<EndpointConfig>, base: ServerConfig, initial: Initial) -> Scout {
        let server = Some(Arc::new(base.clone()));
        let inner = quinn_proto::Endpoint::new(config, server, true, None);
        Scout { inner, initial, base, reading: FxHashMap::default() }
    }

    /// Reads a client's first datagram.
    fn read(&mut self, now: Instant, packet: &Packet<'_>) -> Read {
        let mut unsent = Vec::new();
        let bytes = of_clients(packet.bytes);
        let event = self.inner.handle(now, packet.from, packet.to, None, bytes, &mut unsent);
        let Some(DatagramEvent::NewConnection(incoming)) = event else { return Read::Bad };
        let hello = Arc::new(Mutex::new(None));
        let found = hello.clone();
        let chooser = move |read| {
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            Err(only_read())
        };
        let (session, _) = OneSession::new(self.initial.clone(), Box::new(chooser));
        let mut config = self.base.clone();
        config.crypto = session;
        let accepted = self.inner.accept(incoming, now, &mut unsent, Some(Arc::new(config)));
        match (accepted, taken(&hello)) {
            (Ok((handle, _)), Some(hello)) => {
                self.forget(handle);
                Read::Whole(hello)
            }
            (Err(_), Some(hello)) => Read::Whole(hello),
            (Err(_), None) => Read::Bad,
            (Ok((handle, connection)), None) => Read::Part(handle, Box::new(connection), hello),
        }
    }

    /// Reads another one, of a client that has said a part: what it has said, once it has said all, or none if that is no
    /// first message.
    fn read_on(&mut self, now: Instant, packet: &Packet<'_>) -> Option<(NotBegun, Option<Hello>)> {
        let mut unsent = Vec::new();
        let bytes = of_clients(packet.bytes);
        let event = self.inner.handle(now, packet.from, packet.to, None, bytes, &mut unsent)?;
        let (handle, event) = match event {
            DatagramEvent::ConnectionEvent(handle, event) => (handle, event),
            DatagramEvent::NewConnection(incoming) => {
                self.inner.ignore(incoming);
                return None;
            }
            DatagramEvent::Response(_) => return None,
        };
        let reading = self.reading.get_mut(&handle)?;
        reading.connection.handle_event(event);
        let hello = taken(&reading.hello);
        if hello.is_none() && !reading.connection.is_closed() {
            return None;
        }
        let reading = self.reading.remove(&handle)?;
        self.forget(handle);
        Some((reading.not_begun, hello))
    }

    fn forget(&mut self, handle: ConnectionHandle) {
        let _ = self.inner.handle_event(handle, EndpointEvent::drained());
    }

    /// Gives up on those that take too long.
    fn expire(&mut self, now: Instant) -> Vec<NotBegun> {
        let late: Vec<_> = self
            .reading
            .iter()
            .filter(|(_, r)| r.until <= now)
            .map(|(handle, _)| *handle)
            .collect();
        late.iter().for_each(|handle| self.forget(*handle));
        let late = late.iter().filter_map(|handle| self.reading.remove(handle));
        late.map(|reading| reading.not_begun).collect()
    }
}

impl Endpoint {
    /// Reads what the client says first, and begins the connection when its TLS is known.
    pub(super) fn ask(self: &Rc<Self>, not_begun: NotBegun, packet: &Packet<'_>) {
        let (now, mut scout) = (self.now(), self.scout.borrow_mut());
        for late in scout.expire(now) {
            self.inner.borrow_mut().ignore(late.incoming);
        }
        match scout.read(now, packet) {
            Read::Whole(hello) => self.begin_later(not_begun, Some(hello)),
            Read::Bad => self.begin_later(not_begun, None),
            Read::Part(handle, ..) if scout.reading.len() >= MOST_READING => {
                scout.forget(handle);
                self.inner.borrow_mut().ignore(not_begun.incoming);
            }
            Read::Part(handle, connection, hello) => {
                let until = now + LONGEST;
                scout.reading.insert(handle, Reading { connection, hello, not_begun, until });
            }
        }
    }

    /// A datagram that is no connection's, or one's that has not begun.
    pub(super) fn ask_on(self: &Rc<Self>, packet: &Packet<'_>) {
        let mut scout = self.scout.borrow_mut();
        if !scout.reading.is_empty()
            && let Some((not_begun, hello)) = scout.read_on(self.now(), packet)
        {
            self.begin_later(not_begun, hello);
        }
    }

    fn begin_later(self: &Rc<Self>, not_begun: NotBegun, hello: Option<Hello>) {
        let NotBegun { incoming, forged, ask, begin } = not_begun;
        let me = self.clone();
        self.handle.spawn(async move {
            let chosen = match hello {
                Some(hello) => ask(hello).await,
                // What is wrong is found again, and said.
                None => Err(only_read()),
            };
            let mut answer = Vec::new();
            if me.connections() < me.most {
                me.accept(incoming, forged, Box::new(move |_| chosen), begin, &mut answer);
            } else {
                me.inner.borrow_mut().ignore(incoming);
            }
        });
    }
}
