//! How long a connection is kept, and how it ends.

use std::future::poll_fn;
use std::rc::{Rc, Weak};
use std::task::Poll;
use std::time::Duration;

use weir_engine::{either, yield_now};
use weir_http2::{wait, wake};
use weir_metrics::{Histogram, Metric};
use weir_proto::http1::ComposeError;
use weir_proto::http3::{ErrorCode, frame};

use super::Link;
use crate::event_loop::{LoopState, OnRetire};
use crate::http3::stream::Stream;

/// What is closed stays counted for so long: it has something to say to the client.
const LAST_WORD: Duration = Duration::from_millis(20);
/// It is said within so many turns of the loop.
const LAST_TURNS: usize = 4;
/// A connection without a request is kept for so long at least: its next request may be on its way.
const SHORTEST_IDLE: Duration = Duration::from_secs(1);
/// What a client has sent before it knew that the connection ends arrives within so long.
const UNDER_WAY: Duration = Duration::from_secs(1);
/// A client that was silent for so long while a request is under way is asked whether it is there.
const ASK_AFTER: Duration = Duration::from_secs(10);

/// A client acknowledges within so long what it has received: the default of max_ack_delay (RFC 9000, section 18.2).
const ACK_DELAY: Duration = Duration::from_millis(25);
/// Of one stream, at most so many bytes wait in QUIC.
const MOST_WAITING: u64 = 256 << 10;

impl Link {
    /// Waits until what a stream has written was sent. QUIC discards the rest when the stream is reset then.
    ///
    /// It goes before what other streams have written. All has left once so much was sent as can have waited, or once nothing was
    /// sent for two round trips: where the congestion window was full, an acknowledgement has made room meanwhile.
    pub async fn let_leave(&self, stream: &Rc<Stream>) {
        let handle = self.event_loop().handle.clone();
        let until = handle.now() + self.conf().core.send_timeout;
        self.quic.prioritize(stream.id);
        if !stream.hand_over() {
            return;
        }
        let taken = poll_fn(|cx| stream.poll_all_taken(cx));
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

    /// Ends the connection; streams end with it. What was said before goes first.
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

    /// Adds the packets since the last time to the loop's counters.
    pub(super) fn count_packets(&self) {
        let path = self.quic.stats().path;
        let now = (path.sent_packets, path.lost_packets);
        let before = self.counted.replace(now);
        let metrics = &self.event_loop().metrics;
        metrics.add(Metric::QuicSent, now.0.saturating_sub(before.0));
        metrics.add(Metric::QuicLost, now.1.saturating_sub(before.1));
        if self.shaken.get() {
            metrics.record(Histogram::QuicRoundTrip, path.rtt);
        }
    }

    /// The connection is no more.
    pub(super) fn end(&self) {
        if self.over.replace(true) {
            return;
        }
        wake(&self.watcher);
        self.count_packets();
        self.event_loop().metrics.sub(Metric::QuicOpen, 1);
        if !self.shaken.get() {
            self.event_loop().metrics.add(Metric::QuicUnfinished, 1);
        }
        let all: Vec<_> = self.streams.borrow().values().cloned().collect();
        for stream in all.iter().filter(|stream| !stream.has_begun()) {
            self.cancelled(stream.id);
            self.cut(stream, ComposeError::Cut);
        }
        all.iter().for_each(|stream| stream.fail());
        self.event_loop().unregister_link(self.number);
        if let Some(presence) = self.presence.take() {
            presence.quiet(&self.event_loop());
            let handle = self.event_loop().handle.clone();
            let sleep = handle.sleep(LAST_WORD);
            handle.spawn(async move {
                sleep.await;
                // The time may be over before the loop had a turn.
                for _ in 0..LAST_TURNS {
                    yield_now().await;
                }
                drop(presence);
            });
        }
    }

    /// Begins to end the connection. A client that has asked for nothing yet may be about to: it may ask once.
    pub(super) fn depart(&self) {
        // A connection in its handshake begins with this once it has one.
        if !self.shaken.get() || self.leaving.get() {
            return;
        }
        if self.requests.get() > 0 {
            return self.announce_last();
        }
        let (me, until) = (self.me.clone(), self.idle.get() + UNDER_WAY);
        let sleep = self.event_loop().handle.sleep_until(until);
        self.event_loop().handle.spawn(async move {
            sleep.await;
            if let Some(link) = me.upgrade() {
                link.announce_last();
            }
        });
    }

    /// What a client asks for before it knows which request was the last is refused, and not lost: it may ask again elsewhere.
    pub(super) async fn close_later(link: Weak<Link>) {
        let Some(found) = link.upgrade() else { return };
        let sleep = found.event_loop().handle.sleep(UNDER_WAY);
        drop(found);
        sleep.await;
        if let Some(link) = link.upgrade().filter(|link| link.streams.borrow().is_empty()) {
            link.close(ErrorCode::NoError);
        }
    }

    /// `keepalive_requests` and `keepalive_time`: the client is told which request is the last.
    pub(super) fn count_request(&self) {
        self.requests.set(self.requests.get() + 1);
        let core = &self.conf().core;
        let age = self.event_loop().handle.now().saturating_duration_since(self.started);
        if core.keepalive_timeout.is_zero()
            || self.requests.get() >= core.keepalive_requests
            || age > core.keepalive_time
            || self.event_loop().retiring()
        {
            self.announce_last();
        }
    }

    /// Tells the client that the latest request is the last. RFC 9114, section 5.2.
    pub(super) fn announce_last(&self) {
        if self.over.get() || self.leaving.replace(true) {
            return;
        }
        let mut out = Vec::new();
        frame::write_goaway(self.requests.get() * 4, &mut out);
        self.write_own(0, out);
        if self.streams.borrow().is_empty() {
            self.event_loop().handle.spawn(Link::close_later(self.me.clone()));
        }
    }

    /// Closes the connection once it has had no request for `keepalive_timeout`. While a request is under way that neither
    /// end has anything to say of, the client is asked whether it is still there.
    pub(super) async fn watch(link: Weak<Link>) {
        let mut asked = None;
        loop {
            let sleep = {
                let Some(link) = link.upgrade().filter(|link| !link.over.get()) else { return };
                link.count_packets();
                let now = link.event_loop().handle.now();
                let timeout = link.conf().core.keepalive_timeout.max(SHORTEST_IDLE);
                let until = if link.streams.borrow().is_empty() {
                    let until = link.idle.get() + timeout;
                    if until <= now {
                        return link.close(ErrorCode::NoError);
                    }
                    until
                } else {
                    if asked.is_none_or(|at| at + ASK_AFTER <= now) {
                        asked = Some(now);
                        if link.total.get() == link.heard.replace(link.total.get()) {
                            link.quic.ping();
                        }
                    }
                    // Looked at again so soon, it is not idle for longer than that.
                    now + ASK_AFTER.min(timeout)
                };
                link.event_loop().handle.sleep_until(until)
            };
            // A connection that ends does not stay in memory until then.
            let ended = poll_fn(|cx| match link.upgrade().filter(|link| !link.over.get()) {
                None => Poll::Ready(()),
                Some(link) => {
                    wait(&link.watcher, cx);
                    Poll::Pending
                }
            });
            either(sleep, ended).await;
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
        self.depart();
    }

    fn shut_down(&self) -> bool {
        self.close_because(ErrorCode::NoError, b"connection shutdown");
        true
    }
}
