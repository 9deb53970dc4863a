//! Passes a server's answer to the client.

use std::io;
use std::sync::Arc;

use weir_cache::{Fill, FillEnd};
use weir_engine::{Boxed, Chain, Patience};
use weir_log::{Cause, Level};
use weir_proto::http1::{HeaderId, Method};
use weir_tls::failed_call;
use weir_upstream::balance::Measure;
use weir_upstream::fault::is_late;
use weir_upstream::tunnel::{self, PassedBytes, TunnelEnd, TunnelError, TunnelOptions};

use super::{Run, Talk};
use crate::carrier::TIMED_OUT;
use crate::connection::presence::Guest;
use crate::phases::Step;
use crate::request::Request;
use crate::upstream::fault::{Doing, OTHER, complain, operation};
use crate::upstream::protocol::{Answer, Protocol, Reader};
use crate::upstream::source::Came;
use crate::upstream::transport::Transport;
use crate::upstream::{cache, relay, seen, store};
use crate::variables::upstream_header;

impl Run {
    /// Passes the answer to the client. Instead of it, the client may get a stale answer, an error
    /// page of this server, or the target of `X-Accel-Redirect`. Otherwise the head is filled in. A
    /// tunnel, nothing or a body follows, which may be stored.
    pub(super) async fn answer<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
        talk: Talk,
        answer: &mut Answer,
    ) -> Step {
        if protocol.tells_emptiness() && answer.length.is_none() && talk.transport.is_bare() {
            answer.length = Some(0);
        }
        let passing = self.passing;
        talk.transport.count(r);
        self.bind(r);
        if self.place.as_ref().is_some_and(|place| place.has_begun()) {
            return Box::pin(self.go_on(r, protocol, talk, answer)).await;
        }
        let mut status = answer.status;
        if let Some(place) = self.place.as_deref_mut().filter(|_| cache::asks_with_head(r))
            && Box::pin(cache::is_revalidated_by_head(r, place, passing, answer)).await
        {
            status = 304;
        }
        if let Some(place) =
            self.place.take_if(|place| place.is_replaced_by_stored(passing, status))
        {
            self.leave(r, talk, answer, protocol);
            let sent = Box::pin(cache::send_stored(r, place, passing, protocol, status)).await;
            let step = sent.unwrap_or_else(|place| {
                self.place = Some(place);
                Step::Abort
            });
            return self.over(r, step);
        }
        if self.is_intercepted(r, answer, protocol) {
            self.intercept(r, answer.status);
            self.leave(r, talk, answer, protocol);
            return self.over(r, Step::Status(answer.status));
        }
        if answer.status == 101 && !r.carrier.can_upgrade() {
            // RFC 9113, section 8.6: HTTP/2 has no 101. The client may have asked for it, so the
            // server is not to blame.
            complain(r, "upstream sent 101, which HTTP/2 does not have", Doing::ReadingHead);
            return self.over(r, Step::Status(502));
        }
        self.answered(r);
        if passing.caching.keeps_standard() && self.place.is_none() {
            Box::pin(cache::invalidate(r, passing, protocol, answer.status)).await;
        }
        let wishes = seen::wishes(r, passing);
        if let Some(target) = wishes.redirect {
            self.leave(r, talk, answer, protocol);
            self.over(r, Step::Done);
            // The redirected request has a cache state of its own.
            self.place = None;
            return seen::redirect(r, passing, protocol, &target);
        }
        let buffering = wishes.buffering.unwrap_or(passing.buffering);
        let keeps = buffering && !talk.goes_both_ways();
        let place = self.place.as_deref_mut();
        let judged = place.map(|place| (cache::judged(r, place, passing, answer.status), place));
        // Filled in before `keep`: this server handles conditions and ranges if the answer may be
        // stored, whether or not it is.
        seen::fill(r, passing, protocol, answer);
        let fill = judged
            .and_then(|(verdict, place)| cache::keep(r, place, verdict, passing, answer, keeps));
        if passing.caching.is_on() {
            cache::status_field::add(r, &passing.caching, None);
        }
        if is_tunnel(r, answer, protocol) {
            return Box::pin(self.tunnel(r, talk, answer)).await;
        }
        if !protocol.reader().has_body(r, answer) {
            let framing = protocol.reader().framing_behind(answer.end) as u64;
            if let Some(attempt) = r.contexts.upstream.attempts.last_mut()
                && r.method != Method::Head
            {
                attempt.length = framing;
            }
            return self.bodiless(r, talk, answer, fill).await;
        }
        self.body(r, protocol, talk, answer, fill, buffering).await
    }

    /// Whether an error page of this server replaces the answer.
    fn is_intercepted<P: Protocol>(&self, r: &Request, answer: &Answer, protocol: &P) -> bool {
        self.passing.intercept_errors
            && answer.status >= 300
            && (protocol.is_missing(answer.status)
                || crate::answer::errors::has_error_page(r, answer.status))
    }

    fn intercept(&mut self, r: &mut Request, status: u16) {
        self.authenticate(r, status);
        if let Some(place) = self.place.take() {
            cache::intercepted(r, *place, self.passing, status);
        }
    }

    /// Adds the cookie that binds the client.
    pub(super) fn bind(&mut self, r: &mut Request) {
        if let Some(cookie) = self.binding.as_mut().and_then(|binding| binding.cookie.take()) {
            r.response.headers.add(b"Set-Cookie", &cookie);
        }
    }

    /// Notes that the head for the client was received.
    fn answered(&mut self, r: &mut Request) {
        let Some(picked) = &mut self.picked else { return };
        if let Some(header) = r.contexts.upstream.attempt().and_then(|attempt| attempt.header) {
            self.group.reached(picked, Measure::First, header, r.event_loop.handle.now());
        }
        if let Some(binding) = &self.binding {
            binding.sticky.answered(r, &binding.bound, &picked.peer);
        }
    }

    /// Sends an answer without a body. The connection is kept before the client gets the head.
    async fn bodiless(
        &mut self,
        r: &mut Request,
        talk: Talk,
        answer: &Answer,
        fill: Option<Arc<Fill>>,
    ) -> Step {
        let store = self.store(r, answer).filter(|_| fill.is_none());
        if let (Some(fill), Some(place)) = (fill, &self.place) {
            fill.finish(FillEnd::Whole);
            place.received_whole(&fill, r.event_loop.handle.now());
        }
        if let Some(to) = store {
            Box::pin(store::empty(r, self.passing, to)).await;
        }
        let clean = r.contexts.upstream.head.len() == answer.end;
        if clean && talk.rest.is_none() && answer.keepalive {
            self.keep(r, talk.transport);
        }
        if let Err(step) = r.send_head() {
            return self.over(r, step);
        }
        relay::ends(r, Came::default());
        let step = match r.send_body(Chain::new(), true).await {
            Ok(()) => Step::Sent,
            Err(_) => Step::Abort,
        };
        self.over(r, step)
    }

    /// The file that `..._store` writes the answer to.
    fn store(&self, r: &Request, answer: &Answer) -> Option<&'static store::Store> {
        let store = self.passing.store.as_ref();
        store.filter(|_| answer.status == 200 && r.method != Method::Head)
    }

    /// Relays an answer with a body, and stores it if it has a fill or a file.
    async fn body<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
        talk: Talk,
        answer: &Answer,
        fill: Option<Arc<Fill>>,
        buffering: bool,
    ) -> Step {
        let store = self.store(r, answer).filter(|_| !talk.goes_both_ways());
        let passing = self.passing;
        let begun = begun(r, protocol, answer);
        let Talk { transport, rest } = talk;
        let complete = rest.is_none();
        let relayed = match (self.place.as_deref().zip(fill), store) {
            (Some((place, fill)), _) => {
                Boxed::new(|| cache::relay(r, place, passing, transport, protocol, begun, &fill))
                    .await
            }
            (None, Some(to)) => {
                Box::pin(store::relay(r, passing, to, transport, protocol, begun, buffering)).await
            }
            (None, None) => {
                relay::relay(r, passing, buffering, transport, protocol, begun, rest).await
            }
        };
        if let Some(connection) = relayed.connection
            && answer.keepalive
            && complete
        {
            self.keep(r, Transport::Own(connection));
        }
        self.over(r, relayed.step)
    }

    /// Sends the rest of an answer of which the client has the beginning, if this is the same
    /// answer.
    async fn go_on<P: Protocol>(
        &mut self,
        r: &mut Request,
        protocol: &mut P,
        talk: Talk,
        answer: &Answer,
    ) -> Step {
        let passing = self.passing;
        let rest = self.place.as_mut().and_then(|place| place.rest(r, passing, answer));
        let Some(rest) = rest.filter(|_| protocol.reader().has_body(r, answer)) else {
            complain(r, OTHER, Doing::ReadingHead);
            self.leave(r, talk, answer, protocol);
            return self.over(r, Step::Abort);
        };
        let begun = begun(r, protocol, answer);
        let relayed = cache::go_on(r, passing, talk.transport, protocol, begun, &rest).await;
        self.over(r, relayed.step)
    }

    /// An error page for 401 keeps the server's `WWW-Authenticate`.
    fn authenticate(&self, r: &mut Request, status: u16) {
        if status != 401 {
            return;
        }
        let context = &r.contexts.upstream;
        for value in upstream_header(context, b"www_authenticate") {
            r.response.headers.add(b"WWW-Authenticate", value);
        }
    }

    /// Passes bytes in both directions, after 101 or CONNECT.
    async fn tunnel(&mut self, r: &mut Request, talk: Talk, answer: &Answer) -> Step {
        let Some(connection) = talk.transport.into_own() else {
            // A stream cannot switch protocols.
            return self.over(r, Step::Status(502));
        };
        let conn = r.conn.clone();
        #[expect(clippy::disallowed_methods, reason = "a tunnel takes the carrier's place")]
        let client = conn.wire();
        if let Err(step) = r.send_head() {
            return self.over(r, step);
        }
        if r.flush().await.is_err() {
            return self.over(r, Step::Abort);
        }
        let server = &connection.stream;
        let (mut down, mut up) = (Chain::new(), Chain::new());
        let early = r.contexts.upstream.head.get(answer.end..).unwrap_or_default().to_vec();
        let early_len = early.len() as u64;
        down.push(early);
        let unread = r.take_unread();
        let unread_len = unread.len() as u64;
        up.push(unread);
        let _ = client.socket().nodelay(true);
        let _ = server.socket().nodelay(true);
        let to_client = Patience::Idle(r.conf().core.send_timeout);
        if let Err(error) = client.send(&mut down, to_client).await {
            client_broke(r, "send()", &error);
            r.output.sent += early_len - down.len();
            return self.over(r, Step::Abort);
        }
        r.output.sent += early_len;
        let handle = r.event_loop.handle.clone();
        let to_server = Patience::Idle(self.passing.send_within(r));
        if let Err(error) = server.send(&mut up, to_server).await {
            operation(r, "send()", &error, Doing::Upgraded);
        } else {
            let (idle, up) = (self.passing.read_within(r), self.passing.send_within(r));
            let ways = TunnelOptions::plain(idle, up, r.conf().core.send_timeout);
            let passed = Arc::new(PassedBytes::default());
            let tally = TunnelTally { r, passed: Arc::clone(&passed), unread: unread_len };
            let guest = Guest::arrive;
            let ended = tunnel::run_movable(&handle, client, server, ways, &passed, guest).await;
            let r = &mut *tally.r;
            r.output.complete = match &ended {
                Some(Err(broke)) => tunnel_broke(r, broke),
                Some(Ok(_)) | None => true,
            };
        }
        self.over(r, Step::Sent)
    }
}

/// Logs why a tunnel failed. Returns whether all received data were passed on.
fn tunnel_broke(r: &Request, broke: &TunnelError) -> bool {
    let call = if broke.sending { "send()" } else { "recv()" };
    let is_late = is_late(&broke.error);
    // If both ends are silent and nothing waits to be sent, the tunnel times out. The server's end
    // is logged, and the answer counts as complete.
    match broke.end {
        TunnelEnd::Client if broke.sending || !is_late => client_broke(r, call, &broke.error),
        TunnelEnd::Client | TunnelEnd::Server => {
            operation(r, call, &broke.error, Doing::Upgraded);
        }
    }
    is_late && !broke.sending
}

/// Logs that the client did not accept data in time, or that its connection failed.
fn client_broke(r: &Request, call: &str, error: &io::Error) {
    let doing = Doing::Upgraded.text();
    if is_late(error) {
        r.log(Level::Info, format_args!("{TIMED_OUT} {doing}"));
        r.timed_out();
    } else {
        let call = failed_call(call, error);
        r.log(Level::Info, format_args!("{call} failed {} {doing}", Cause(error)));
    }
}

/// Adds a tunnel's bytes to its request when the tunnel ends, even if the worker ends first.
struct TunnelTally<'r> {
    r: &'r mut Request,
    passed: Arc<PassedBytes>,
    /// Bytes that were sent to the server before the tunnel.
    unread: u64,
}

impl Drop for TunnelTally<'_> {
    fn drop(&mut self) {
        let (up, down) = (self.passed.up_sent.get(), self.passed.down_sent.get());
        self.r.output.sent += down;
        if let Some(attempt) = self.r.contexts.upstream.attempt() {
            attempt.received += down;
            attempt.length = down;
            attempt.sent += self.unread + up;
        }
    }
}

/// Takes the beginning of the body that was received with the head. The head stays, since variables
/// may ask for it.
fn begun<P: Protocol>(r: &mut Request, protocol: &mut P, answer: &Answer) -> Vec<u8> {
    let head = &mut r.contexts.upstream.head;
    let mut begun = Vec::new();
    if let Some(body) = head.get(answer.end..).filter(|body| !body.is_empty()) {
        begun = r.event_loop.handle.take_buf(body.len());
        begun.extend_from_slice(body);
        head.truncate(answer.end);
    }
    let framing = protocol.reader().framing_behind(answer.end) as u64;
    if let Some(attempt) = r.contexts.upstream.attempt() {
        attempt.length = framing;
    }
    begun
}

/// Whether a tunnel follows. After 101, the client must have asked for it.
fn is_tunnel<P: Protocol>(r: &mut Request, answer: &Answer, protocol: &P) -> bool {
    if answer.status == 101 {
        r.keepalive = false;
        return protocol.is_tunnel() || (r.is_main() && r.header(HeaderId::Upgrade).is_some());
    }
    protocol.is_tunnel()
}
