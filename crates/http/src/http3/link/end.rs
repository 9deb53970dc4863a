//! The idle timeout, GOAWAY and the end of a connection.

use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::{Duration, Instant};

use weir_engine::{either, yield_now};
use weir_http2::{wait, wake};
use weir_metrics::{Histogram, Metric};
use weir_proto::http1::ComposeError;
use weir_proto::http3::{ErrorCode, frame};

use super::Link;
use crate::carrier::TIMED_OUT;
use crate::event_loop::{LoopState, OnRetire};
use crate::http3::stream::Stream;

/// A closed connection counts as present for this time, so that the loop sends its CONNECTION_CLOSE.
const CLOSING_TIME: Duration = Duration::from_millis(20);
/// It counts for at least so many turns of the loop.
const CLOSING_TURNS: usize = 4;
/// The least idle timeout: the next request may be in flight.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// The time for requests that the client sent before it received GOAWAY.
const IN_FLIGHT_TIME: Duration = Duration::from_secs(1);
/// What a page asks for sooner than this after another of its requests, or after an answer, belongs to that.
const BURST: Duration = Duration::from_millis(100);
/// The highest ID of a request stream.
const HIGHEST_REQUEST: u64 = (1 << 62) - 4;
/// A client that sends nothing for this time while a request is active gets a PING.
const PING_AFTER: Duration = Duration::from_secs(10);

/// The default of max_ack_delay: RFC 9000, section 18.2.
const ACK_DELAY: Duration = Duration::from_millis(25);
/// The most unsent bytes of a stream in QUIC.
const MOST_WAITING: u64 = 256 << 10;

/// How far the end of a connection has come.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) enum GoawayState {
    #[default]
    None,
    /// The worker retires. Requests are served until the client has had time to go elsewhere.
    Due,
    /// The client was told the last request. Later ones are rejected.
    Final,
}

impl Link {
    /// Waits until the written data of a stream is sent, for `send_timeout` at most. A reset discards unsent data.
    ///
    /// The stream's data goes before that of other streams. It is sent once the connection has sent `MOST_WAITING` bytes, or no
    /// STREAM frame for two round trips: by then an ACK has freed the congestion window if it was full.
    pub async fn flush_before_reset(&self, stream: &Rc<Stream>) {
        let handle = self.event_loop().handle.clone();
        let until = handle.now() + self.conf().core.send_timeout;
        self.quic.prioritize(stream.id);
        if !stream.write_all() {
            return;
        }
        let taken = poll_fn(|cx| stream.poll_written(cx));
        either(taken, handle.sleep_until(until)).await;
        yield_now().await;
        let mut before = self.quic.stats();
        let most = before.udp_tx.bytes + MOST_WAITING;
        while !stream.is_gone() && handle.now() < until {
            let quiet = handle.now() + before.path.rtt * 2 + ACK_DELAY;
            handle.sleep_until(quiet.min(until)).await;
            let now = self.quic.stats();
            if now.frame_tx.stream == before.frame_tx.stream || now.udp_tx.bytes > most {
                return;
            }
            before = now;
        }
    }

    /// Closes the connection and ends its streams. The data that tasks write in this turn is sent first.
    pub(super) fn close(&self, code: ErrorCode) {
        let reason: &[u8] = if code == ErrorCode::NoError { b"" } else { b"stream error" };
        self.close_because(code, reason);
    }

    fn close_because(&self, code: ErrorCode, reason: &'static [u8]) {
        if self.over.get() {
            return;
        }
        self.end();
        let quic = self.quic.clone();
        self.event_loop().handle.spawn(async move {
            yield_now().await;
            quic.close(code as u64, reason);
        });
    }

    /// Adds the packets since the last call to the loop's metrics.
    pub(super) fn count_packets(&self) {
        let path = self.quic.stats().path;
        let now = (path.sent_packets, path.lost_packets);
        let before = self.counted.replace(now);
        let metrics = &self.event_loop().metrics;
        metrics.add(Metric::QuicSent, now.0.saturating_sub(before.0));
        metrics.add(Metric::QuicLost, now.1.saturating_sub(before.1));
        if self.handshake_done.get() {
            metrics.record(Histogram::QuicRoundTrip, path.rtt);
        }
    }

    /// Ends all streams, and removes the connection from the loop's tables.
    pub(super) fn end(&self) {
        if self.over.replace(true) {
            return;
        }
        wake(&self.watcher);
        self.count_packets();
        self.event_loop().metrics.sub(Metric::QuicOpen, 1);
        if !self.handshake_done.get() {
            self.event_loop().metrics.add(Metric::QuicUnfinished, 1);
        }
        let all: Vec<_> = self.streams.borrow().values().cloned().collect();
        for stream in all.iter().filter(|stream| !stream.has_begun()) {
            self.cancel_in_decoder(stream.id);
            self.start_failed(stream, ComposeError::Cut);
        }
        all.iter().for_each(|stream| stream.fail());
        self.event_loop().unregister_link(self.number);
        if let Some(presence) = self.presence.take() {
            presence.quiet(&self.event_loop());
            let handle = self.event_loop().handle.clone();
            let sleep = handle.sleep(CLOSING_TIME);
            handle.spawn(async move {
                sleep.await;
                // The time may pass before the loop has a turn.
                for _ in 0..CLOSING_TURNS {
                    yield_now().await;
                }
                drop(presence);
            });
        }
    }

    /// Begins a graceful shutdown. In a pause of its requests the client is told to open no more streams, and the latest request is
    /// named once those that are on their way have come.
    pub(super) fn begin_shutdown(&self) {
        // A connection in its handshake calls this again once it is connected.
        if !self.handshake_done.get() || self.goaway.get() != GoawayState::None {
            return;
        }
        self.goaway.set(GoawayState::Due);
        self.event_loop().handle.spawn(Link::shut_down_in_pause(self.me.clone()));
    }

    async fn shut_down_in_pause(me: Weak<Link>) {
        let Some(handle) = me.upgrade().map(|link| link.event_loop().handle.clone()) else {
            return;
        };
        let latest = handle.now() + IN_FLIGHT_TIME;
        while let Some(at) = me.upgrade().map(|link| link.pause().min(latest))
            && at > handle.now()
        {
            handle.sleep_until(at).await;
        }
        let Some(time) = me.upgrade().and_then(|link| link.announce_goaway()) else { return };
        handle.sleep(time).await;
        let Some(link) = me.upgrade() else { return };
        link.send_goaway();
        if link.streams.borrow().is_empty() {
            link.close(ErrorCode::NoError);
        }
    }

    /// From when on the client may be told to open no more streams. The first request may be on its way. Chromium gives up
    /// requests of a page that it is about to send when GOAWAY comes.
    fn pause(&self) -> Instant {
        match self.requests.get() {
            0 => self.idle.get() + IN_FLIGHT_TIME,
            _ => self.active.get() + BURST,
        }
    }

    /// Tells the client to open no more streams, by a GOAWAY with the highest ID. Returns for how long streams that it opened before it
    /// knew may come: RFC 9114, section 5.2. An idle client is told the last request at once, as by nginx.
    fn announce_goaway(&self) -> Option<Duration> {
        if self.over.get() || self.goaway.get() == GoawayState::Final {
            return None;
        }
        if self.streams.borrow().is_empty() {
            self.send_goaway();
            self.event_loop().handle.spawn(Link::close_after_goaway(self.me.clone()));
            return None;
        }
        self.write_goaway(HIGHEST_REQUEST);
        Some(IN_FLIGHT_TIME.max(self.quic.stats().path.rtt * 2))
    }

    fn write_goaway(&self, id: u64) {
        let mut out = Vec::new();
        frame::write_goaway(id, &mut out);
        self.write_own(0, out);
    }

    /// Closes the connection some time after its last request. Requests that arrive meanwhile are rejected, so that the client repeats them
    /// on another connection.
    pub(super) async fn close_after_goaway(link: Weak<Link>) {
        let Some(found) = link.upgrade() else { return };
        let sleep = found.event_loop().handle.sleep(IN_FLIGHT_TIME);
        drop(found);
        sleep.await;
        if let Some(link) = link.upgrade().filter(|link| link.streams.borrow().is_empty()) {
            link.close(ErrorCode::NoError);
        }
    }

    /// Counts a request. Sends GOAWAY if it is the last by `keepalive_requests` or `keepalive_time`.
    pub(super) fn count_request(&self) {
        let now = self.event_loop().handle.now();
        self.requests.set(self.requests.get() + 1);
        self.active.set(now);
        let core = &self.conf().core;
        if core.keepalive_timeout.is_zero()
            || self.requests.get() >= core.keepalive_requests
            || now.saturating_duration_since(self.started) > core.keepalive_time
        {
            self.send_goaway();
        }
    }

    /// Sends GOAWAY: the latest request is the last. RFC 9114, section 5.2.
    pub(super) fn send_goaway(&self) {
        if self.over.get() || self.goaway.replace(GoawayState::Final) == GoawayState::Final {
            return;
        }
        self.write_goaway(self.requests.get() * 4);
    }

    /// Closes the connection if its handshake has not ended within `client_header_timeout`: QUIC's idle timeout begins anew with each
    /// packet of the client. Closes it later once it has had no request for `keepalive_timeout`. While a request is active and the
    /// client sends nothing, sends PING: an acknowledgement resets QUIC's idle timeout.
    pub(super) async fn watch(link: Weak<Link>) {
        let mut asked = None;
        loop {
            let (sleep, was_shaken) = {
                let Some(link) = link.upgrade().filter(|link| !link.over.get()) else { return };
                link.count_packets();
                let Some(until) = link.next_check(&mut asked) else { return };
                (link.event_loop().handle.sleep_until(until), link.handshake_done.get())
            };
            // The end of the connection ends the wait, so that its memory is freed.
            let is_waiting =
                |link: &Rc<Link>| !link.over.get() && link.handshake_done.get() == was_shaken;
            let ended = poll_fn(|cx| match link.upgrade().filter(is_waiting) {
                None => Poll::Ready(()),
                Some(link) => {
                    wait(&link.watcher, cx);
                    Poll::Pending
                }
            });
            either(sleep, ended).await;
        }
    }

    /// When to look again. `None` if a time has run out, and the connection has ended for it.
    fn next_check(&self, asked: &mut Option<Instant>) -> Option<Instant> {
        let now = self.event_loop().handle.now();
        let timeout = self.conf().core.keepalive_timeout.max(SHORTEST_IDLE);
        let is_idle = self.streams.borrow().is_empty();
        let until = match self.handshake_done.get() {
            false => self.started + self.default.get().conf.client_header_timeout,
            true if is_idle => self.idle.get() + timeout,
            true => {
                self.ask_silent(now, asked);
                // The request may end meanwhile. The next check is soon enough for the idle timeout.
                return Some(now + PING_AFTER.min(timeout));
            }
        };
        if now < until {
            return Some(until);
        }
        if !self.handshake_done.get() {
            self.event_loop().metrics.add(Metric::TlsFailed, 1);
            self.log(format_args!("{TIMED_OUT} in the handshake"));
        }
        self.close(ErrorCode::NoError);
        None
    }

    /// Sends PING if the client has sent nothing since the last one was due.
    fn ask_silent(&self, now: Instant, asked: &mut Option<Instant>) {
        if asked.is_none_or(|at| at + PING_AFTER <= now) {
            *asked = Some(now);
            if self.total.get() == self.checked_total.replace(self.total.get()) {
                self.quic.ping();
            }
        }
    }
}

impl OnRetire for Link {
    fn replaced(&self, next: &Rc<LoopState>) {
        let site = next.site;
        self.default.set(site.server(site.default_at(self.listen, self.local.ip())));
        self.event_loop.replace(next.clone());
    }

    fn retiring(&self) {
        self.begin_shutdown();
    }

    fn shut_down(&self) -> bool {
        self.close_because(ErrorCode::NoError, b"connection shutdown");
        true
    }
}
