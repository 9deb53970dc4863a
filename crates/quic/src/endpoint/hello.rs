//! Reads ClientHellos before their connections begin.
//!
//! quinn demands a connection's TLS configuration as soon as the ClientHello is complete, but certificates may have to be
//! loaded for it. So a second quinn endpoint reads copies of the first datagrams. It sends nothing: the client waits meanwhile.

use std::cell::Cell;
use std::rc::Rc;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use quinn_proto::{
    ConnectionHandle, DatagramEvent, EndpointConfig, EndpointEvent, Incoming, ServerConfig,
};
use rustc_hash::FxHashMap;
use weir_tls::Hello;
use weir_tls::quic::{QuicAlert, alert};

use super::{AsyncChooser, Begin, Endpoint};
use crate::crypto::{Initial, OneSession};
use crate::packet::{Packet, for_quinn};

/// The most time for a ClientHello. A client sends its first loss probe after a second (RFC 9002, section 6.2.2).
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

/// The second endpoint.
pub struct HelloEndpoint {
    inner: quinn_proto::Endpoint,
    initial: Initial,
    base: ServerConfig,
    partial: FxHashMap<ConnectionHandle, PartialHello>,
}

/// A connection attempt that waits for its TLS configuration.
pub struct PendingAttempt {
    pub(super) incoming: Incoming,
    pub(super) unvalidated_len: Option<usize>,
    pub(super) choose: AsyncChooser,
    pub(super) begin: Begin,
    pub(super) counted: Counted,
}

/// Counts an attempt for as long as it waits.
pub struct Counted(Rc<Cell<usize>>);

impl Counted {
    pub(super) fn new(count: &Rc<Cell<usize>>) -> Counted {
        count.update(|n| n + 1);
        Counted(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.update(|n| n - 1);
    }
}

/// A connection attempt whose ClientHello is incomplete, and the second endpoint's connection that reads it.
struct PartialHello {
    connection: Box<quinn_proto::Connection>,
    hello: Arc<Mutex<Option<Hello>>>,
    attempt: PendingAttempt,
    until: Instant,
}

/// The result of a client's first datagram.
enum HelloRead {
    Whole(Hello),
    Part(ConnectionHandle, Box<quinn_proto::Connection>, Arc<Mutex<Option<Hello>>>),
    /// It contains no valid ClientHello. The real connection finds the same error, and reports it to the client.
    Bad,
}

/// The error that ends each connection of the second endpoint.
fn read_only() -> QuicAlert {
    QuicAlert::new(alert::INTERNAL_ERROR, "the first message was only read")
}

fn take_hello(hello: &Mutex<Option<Hello>>) -> Option<Hello> {
    hello.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl HelloEndpoint {
    /// A second endpoint with the keys and tokens of the first.
    pub fn new(config: Arc<EndpointConfig>, base: ServerConfig, initial: Initial) -> HelloEndpoint {
        let server = Some(Arc::new(base.clone()));
        let inner = quinn_proto::Endpoint::new(config, server, true, None);
        HelloEndpoint { inner, initial, base, partial: FxHashMap::default() }
    }

    /// Reads a client's first datagram.
    fn read(&mut self, now: Instant, packet: &Packet<'_>) -> HelloRead {
        let mut unsent = Vec::new();
        let bytes = for_quinn(packet.bytes);
        let event = self.inner.handle(now, packet.from, packet.to, None, bytes, &mut unsent);
        let Some(DatagramEvent::NewConnection(incoming)) = event else { return HelloRead::Bad };
        let hello = Arc::new(Mutex::new(None));
        let found = hello.clone();
        let chooser = move |read| {
            *found.lock().unwrap_or_else(PoisonError::into_inner) = Some(read);
            Err(read_only())
        };
        let (session, _) = OneSession::new(self.initial.clone(), Box::new(chooser));
        let mut config = self.base.clone();
        config.crypto = session;
        let accepted = self.inner.accept(incoming, now, &mut unsent, Some(Arc::new(config)));
        match (accepted, take_hello(&hello)) {
            (Ok((handle, _)), Some(hello)) => {
                self.forget(handle);
                HelloRead::Whole(hello)
            }
            (Err(_), Some(hello)) => HelloRead::Whole(hello),
            (Err(_), None) => HelloRead::Bad,
            (Ok((handle, connection)), None) => {
                HelloRead::Part(handle, Box::new(connection), hello)
            }
        }
    }

    /// Reads a further datagram for an incomplete ClientHello. Returns the attempt once that is complete, or invalid (no `Hello`).
    fn read_more(
        &mut self,
        now: Instant,
        packet: &Packet<'_>,
    ) -> Option<(PendingAttempt, Option<Hello>)> {
        let mut unsent = Vec::new();
        let bytes = for_quinn(packet.bytes);
        let event = self.inner.handle(now, packet.from, packet.to, None, bytes, &mut unsent)?;
        let (handle, event) = match event {
            DatagramEvent::ConnectionEvent(handle, event) => (handle, event),
            DatagramEvent::NewConnection(incoming) => {
                self.inner.ignore(incoming);
                return None;
            }
            DatagramEvent::Response(_) => return None,
        };
        let partial = self.partial.get_mut(&handle)?;
        partial.connection.handle_event(event);
        let hello = take_hello(&partial.hello);
        if hello.is_none() && !partial.connection.is_closed() {
            return None;
        }
        let partial = self.partial.remove(&handle)?;
        self.forget(handle);
        Some((partial.attempt, hello))
    }

    fn forget(&mut self, handle: ConnectionHandle) {
        let _ = self.inner.handle_event(handle, EndpointEvent::drained());
    }

    /// Removes the attempts whose time is over.
    fn expire(&mut self, now: Instant) -> Vec<PendingAttempt> {
        let late: Vec<_> = self
            .partial
            .iter()
            .filter(|(_, r)| r.until <= now)
            .map(|(handle, _)| *handle)
            .collect();
        late.iter().for_each(|handle| self.forget(*handle));
        let late = late.iter().filter_map(|handle| self.partial.remove(handle));
        late.map(|partial| partial.attempt).collect()
    }
}

impl Endpoint {
    /// Reads the ClientHello of an attempt, and accepts the connection once its TLS configuration is known.
    pub(super) fn read_hello(self: &Rc<Self>, attempt: PendingAttempt, packet: &Packet<'_>) {
        let (now, mut hello_endpoint) = (self.now(), self.hello_endpoint.borrow_mut());
        match hello_endpoint.read(now, packet) {
            HelloRead::Whole(hello) => self.accept_later(attempt, Some(hello)),
            HelloRead::Bad => self.accept_later(attempt, None),
            HelloRead::Part(handle, connection, hello) => {
                let until = now + HELLO_TIMEOUT;
                hello_endpoint
                    .partial
                    .insert(handle, PartialHello { connection, hello, attempt, until });
            }
        }
    }

    /// Gives up the attempts whose ClientHellos have been incomplete for too long.
    pub(super) fn expire_hellos(&self) {
        for late in self.hello_endpoint.borrow_mut().expire(self.now()) {
            self.inner.borrow_mut().ignore(late.incoming);
        }
    }

    /// Takes a datagram that quinn's first endpoint has no connection for. It may belong to an attempt.
    pub(super) fn read_more_hello(self: &Rc<Self>, packet: &Packet<'_>) {
        let mut hello_endpoint = self.hello_endpoint.borrow_mut();
        if !hello_endpoint.partial.is_empty()
            && let Some((attempt, hello)) = hello_endpoint.read_more(self.now(), packet)
        {
            self.accept_later(attempt, hello);
        }
    }

    fn accept_later(self: &Rc<Self>, attempt: PendingAttempt, hello: Option<Hello>) {
        let PendingAttempt { incoming, unvalidated_len, choose, begin, counted } = attempt;
        let me = self.clone();
        self.handle.spawn(async move {
            let chosen = match hello {
                Some(hello) => choose(hello).await,
                // The real connection finds the error in the ClientHello before it asks the chooser.
                None => Err(read_only()),
            };
            drop(counted);
            let mut answer = Vec::new();
            if me.connections() < me.most_connections {
                me.accept(incoming, unvalidated_len, Box::new(move |_| chosen), begin, &mut answer);
            } else {
                me.inner.borrow_mut().ignore(incoming);
            }
        });
    }
}
