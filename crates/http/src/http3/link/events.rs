//! QUIC's events of a connection.

use std::sync::PoisonError;
use std::time::{Duration, Instant};

use weir_http2::wake;
use weir_metrics::{Histogram, Metric};
use weir_proto::http3::ErrorCode;
use weir_quic::{ConnectionError, Dir, Events, StreamId};

use super::Link;
use crate::http3::HQ;
use crate::http3::control::Incoming;

/// How long after its handshake a connection without a request keeps its place.
const FIRST_REQUEST: Duration = Duration::from_secs(1);

impl Events for Link {
    fn negotiated(&self) {
        let hq = self.quic.tls(|tls| tls.alpn() == Some(HQ));
        self.hq.set(hq.unwrap_or_default());
        let context = {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            found.as_ref().and_then(|secure| secure.shown.context.clone())
        };
        if context.is_some_and(|context| !context.asks_client()) {
            self.ready.set(true);
        }
    }

    fn connected(&self) {
        let metrics = &self.event_loop().metrics;
        metrics.add(Metric::TlsHandshakes, 1);
        metrics.add(Metric::QuicConnections, 1);
        let took = self.event_loop().handle.now().saturating_duration_since(self.started);
        metrics.record(Histogram::QuicHandshake, took);
        let resumed = self.quic.tls(|tls| tls.is_resumed()).unwrap_or_default();
        metrics.add(Metric::TlsResumed, resumed.into());
        if let Some(presence) = &*self.presence.borrow() {
            presence.quiet(&self.event_loop());
        }
        self.handshake_done.set(true);
        if !self.hq.get() {
            self.open_own_streams();
        }
        self.idle.set(self.event_loop().handle.now());
        if self.event_loop().retiring() {
            self.begin_shutdown();
        }
        if self.ready.get() {
            self.accept();
        } else {
            self.check_certificate();
        }
        wake(&self.watcher);
    }

    fn opened(&self, dir: Dir) {
        match dir {
            Dir::Bi => self.accept(),
            Dir::Uni => {
                while let Some(id) = self.quic.accept(Dir::Uni) {
                    if self.hq.get() {
                        self.quic.stop(id, ErrorCode::StreamCreation as u64);
                        continue;
                    }
                    self.incoming.borrow_mut().insert(id, Incoming::new());
                    self.read_incoming(id);
                }
            }
        }
    }

    fn readable(&self, id: StreamId) {
        match id.dir() {
            Dir::Bi => self.read_arrived(id),
            Dir::Uni => self.read_incoming(id),
        }
    }

    fn writable(&self, id: StreamId) {
        let stream = self.streams.borrow().get(&id).cloned();
        if let Some(stream) = stream {
            return stream.writable();
        }
        let own = self.own.get().and_then(|own| own.iter().position(|own| *own == id));
        if let Some(which) = own {
            self.flush_own(which);
        }
    }

    fn finished(&self, id: StreamId) {
        let stream = self.streams.borrow().get(&id).cloned();
        if let Some(stream) = stream {
            stream.on_acknowledged();
        }
    }

    fn stopped(&self, id: StreamId, _: u64) {
        let stream = self.streams.borrow().get(&id).cloned();
        match stream {
            Some(stream) => stream.stopped(),
            None if self.own.get().is_some_and(|own| own.contains(&id)) => {
                let text = "stopped a stream of the connection";
                self.close_for(ErrorCode::ClosedCriticalStream, text);
            }
            None => self.quic.reset(id, ErrorCode::RequestCancelled as u64),
        }
    }

    /// A client that has just completed the handshake is about to send its first request.
    fn idle_since(&self) -> Option<Instant> {
        let is_open = self.handshake_done.get() && !self.over.get();
        let since = self.idle.get();
        let is_new =
            || self.requests.get() == 0 && self.event_loop().handle.now() < since + FIRST_REQUEST;
        let is_idle = is_open && self.streams.borrow().is_empty() && !is_new();
        is_idle.then_some(since)
    }

    fn make_room(&self) {
        self.close(ErrorCode::NoError);
    }

    fn lost(&self, why: &ConnectionError) {
        let was_shaken = self.handshake_done.get();
        match why {
            ConnectionError::LocallyClosed | ConnectionError::ApplicationClosed(_) => {}
            why if was_shaken => self.log(format_args!("{why}")),
            why => {
                self.event_loop().metrics.add(Metric::TlsFailed, 1);
                self.log(format_args!("{why} in the handshake"));
            }
        }
        self.end();
    }
}
