//! Passes the body of an answer to the client.

use std::fmt;
use std::pin::pin;

use weir_engine::Chain;
use weir_log::{Cause, Level};
use weir_proto::http1::HeaderId;
use weir_upstream::Connection;

use super::client::{Waited, wait};
use super::exchange::Exchange;
use super::fault::{self, Doing};
use super::passing::UpstreamConf;
use super::protocol::{Extra, Protocol};
use super::seen::is_hop_by_hop;
use super::source::{Ahead, Broken, Came, Source};
use super::transport::Transport;
use super::upload::UnsentRequest;
use crate::answer::filters::Then;
use crate::answer::headers::Headers;
use crate::phases::Step;
use crate::request::Request;

/// The result of relaying a body.
pub struct Relayed {
    /// The end of the request.
    pub step: Step,
    /// The connection, if it can be used again.
    pub connection: Option<Box<Connection>>,
}

/// Sends the head, which is filled in, and the body. `begun` was received with the head. The `rest`
/// of the client's body is sent to the server meanwhile.
pub async fn relay<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    buffering: bool,
    transport: Transport,
    protocol: &mut P,
    begun: Vec<u8>,
    rest: Option<Box<UnsentRequest>>,
) -> Relayed {
    let mut exchange = rest.and_then(|rest| Exchange::new(rest, transport.sender()));
    let rate = match (&passing.limit_rate, buffering) {
        (Some(rate), true) => Some(rate.size(r)).filter(|n| *n > 0),
        _ => None,
    };
    r.output.unbuffered = !buffering;
    if !buffering {
        // Unbuffered data are passed on at once: `limit_rate` of the location does not apply.
        r.limit_rate = Some(0);
    }
    let handle = r.event_loop.handle.clone();
    let ahead = Ahead { file: buffering, rate, within: passing.read_within(r) };
    let mut source = Source::new(transport, protocol, handle, passing, ahead);
    source.begin(begun);
    if !buffering && matches!(source.transport, Transport::Stream(_)) {
        // Data from the same read are sent together with the head. They may be the whole body.
        source.read_now();
    }
    postpone(r, passing);
    let mut step = r.send_head().err();
    let wanted = !r.response.header_only;
    if step.is_none() && !wanted {
        // The client gets no body. If all of it was received already, the connection can be used
        // again.
        source.read_now();
        let sent = r.send_body(Chain::new(), true).await;
        step = Some(sent.map_or(Step::Abort, |()| Step::Sent));
    }
    if step.is_none() && !buffering {
        step = send_head_on(r, &source).await;
    }
    while step.is_none() {
        let Some(both) = &mut exchange else {
            step = turn(r, passing, buffering, &mut source).await;
            continue;
        };
        // Boxed, since few requests need it and it would make each request's future larger.
        match Box::pin(both.turn(r, passing, buffering, &mut source)).await {
            Ok(true) => {}
            Ok(false) => exchange = None,
            Err(end) => step = Some(end),
        }
    }
    let relayed = finish(r, source, step.unwrap_or(Step::Abort));
    if let Some(attempt) = r.contexts.upstream.attempt().filter(|_| !wanted) {
        attempt.length = 0;
    }
    relayed
}

/// `postpone_output` is at most the size of the smallest upstream buffer: as in nginx, a full
/// buffer is sent at once.
pub fn postpone(r: &mut Request, passing: &UpstreamConf) {
    let smallest = passing.buffer_size.min(passing.buffers.1);
    r.output.postpone = Some(smallest).filter(|size| *size < r.conf().core.postpone_output);
}

/// Sends the rest of a body, unless `step` has ended the request.
pub async fn send_rest<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    mut source: Source<'_, P>,
    mut step: Option<Step>,
) -> Relayed {
    let step = loop {
        match step {
            Some(step) => break step,
            None => step = turn(r, passing, true, &mut source).await,
        }
    };
    finish(r, source, step)
}

/// Flushes the head, if no part of the body was received with it. Returns a step if that fails.
pub async fn send_head_on<P: Protocol>(r: &mut Request, source: &Source<'_, P>) -> Option<Step> {
    if source.done || !source.is_empty() {
        return None;
    }
    r.send_on(Then::Flush).await.err().map(|_| Step::Abort)
}

/// Reads and sends once. Returns a step at the end.
async fn turn<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    buffering: bool,
    source: &mut Source<'_, P>,
) -> Option<Step> {
    source.read_now();
    tell(r, source);
    if source.is_empty() && !source.done {
        let pieces = source.comes_in_pieces();
        if source.ahead_of(pin!(r.pause_body(pieces))).await.is_err() {
            return Some(Step::Abort);
        }
        if !source.is_empty() || source.done {
            return None;
        }
        let waited = wait(r, passing, pin!(source.wait()), Some(Doing::ReadingBody)).await;
        return match waited {
            Waited::For(()) => None,
            Waited::Gone => Some(gone(r)),
        };
    }
    let chain = source.take();
    if source.done {
        if let Some(broken) = source.broken() {
            return Some(broke(r, chain, broken).await);
        }
        let mut came = Headers::default();
        source.trailers(&mut came);
        ends(r, source.take_count());
        trailers(r, passing, came);
        return Some(match r.send_body(chain, true).await {
            Ok(()) => Step::Sent,
            Err(_) => Step::Abort,
        });
    }
    let sent = if buffering {
        let sent = source.ahead_of(pin!(r.send_body_on(chain))).await;
        tell(r, source);
        sent
    } else {
        match r.send_body(chain, false).await {
            Ok(()) => r.flush_body().await,
            failed => failed,
        }
    };
    sent.err().map(|_| Step::Abort)
}

/// Handles the trailers of an answer. They go to variables and, unless hidden, to the client.
/// Hop-by-hop and framing fields must not be trailers (RFC 9110, section 6.5.1; RFC 9113, section
/// 8.2.2).
pub fn trailers(r: &mut Request, passing: &UpstreamConf, came: Headers) {
    if passing.pass_trailers {
        for (name, value) in came.iter() {
            let id = HeaderId::from_name(name);
            if !passing.hidden.contains(id, name) && !is_hop_by_hop(id) {
                r.response.trailers.add(name, value);
            }
        }
    }
    r.contexts.upstream.trailers = came;
}

/// Logs the server's messages and, once, that a temporary file is used because the client is slow.
pub fn tell<P: Protocol>(r: &Request, source: &mut Source<'_, P>) {
    source.said().iter().for_each(|text| fault::complain(r, text, Doing::ReadingBody));
    if let Some(path) = source.spilled.take() {
        let text = "an upstream response is buffered to a temporary file";
        let doing = Doing::ReadingBody.text();
        r.log(Level::Warn, format_args!("{text} {} {doing}", path.display()));
    }
}

/// Ends a request whose client has left. If nothing of the answer was sent, the status is 499.
fn gone(r: &mut Request) -> Step {
    r.keepalive = false;
    if r.output.sent == 0 {
        r.response.status = 499;
    }
    Step::Abort
}

/// Ends a request whose server failed after the head. The received part of the body is sent.
pub async fn broke(r: &mut Request, chain: Chain, broken: &Broken<impl fmt::Display>) -> Step {
    complain(r, broken);
    let step = break_off(r, chain).await;
    // A failed temporary file is a fault of this server, so the request is aborted.
    if matches!(broken, Broken::File(_)) { Step::Abort } else { step }
}

/// Sends the last part of an incomplete body. The client learns of it only because its connection
/// is closed. A subrequest ends in order, as in nginx, so that the rest of the page is sent.
pub async fn break_off(r: &mut Request, chain: Chain) -> Step {
    r.keepalive = false;
    let sent = match r.send_body(chain, false).await {
        Ok(()) => r.flush_body().await,
        failed => failed,
    };
    if sent.is_ok() && r.may_break_off() { Step::Sent } else { Step::Abort }
}

/// Logs why the rest of a body will not arrive.
pub fn complain(r: &Request, broken: &Broken<impl fmt::Display>) {
    match broken {
        Broken::Closed => {
            fault::complain(r, "upstream prematurely closed connection", Doing::ReadingBody);
        }
        Broken::Io(error) => {
            // nginx reads into several buffers if it buffers.
            let call = if r.output.unbuffered { "recv()" } else { "readv()" };
            fault::operation(r, call, error, Doing::ReadingBody);
        }
        Broken::Cut => {
            fault::complain(r, "upstream prematurely closed stream", Doing::ReadingBody);
        }
        Broken::Invalid(error) => fault::complain(r, error, Doing::ReadingBody),
        Broken::File(error) => {
            r.log(
                Level::Crit,
                format_args!("temporary file failed {} while reading upstream", Cause(error)),
            );
        }
    }
}

/// Ends a relay: counts the received bytes and takes the connection back.
pub fn finish<P: Protocol>(r: &mut Request, mut source: Source<'_, P>, step: Step) -> Relayed {
    note(r, &mut source);
    hand_back(r, source, step)
}

/// Ends a relay whose bytes were counted already.
pub fn hand_back<P: Protocol>(r: &Request, source: Source<'_, P>, step: Step) -> Relayed {
    if let Some(Extra { text, level }) = source.extra() {
        r.log(level, format_args!("{text} while reading upstream"));
    }
    Relayed { step, connection: source.into_reusable() }
}

/// Notes the end of the server's answer. The attempt's figures are final before the last piece is
/// sent, since a trailer of this server may show them.
pub fn ends(r: &mut Request, came: Came) {
    let now = r.event_loop.handle.now();
    if let Some(attempt) = r.contexts.upstream.attempt() {
        came.count(attempt);
        attempt.ends(now);
    }
}

/// Counts the received bytes for the attempt.
pub fn note<P: Protocol>(r: &mut Request, source: &mut Source<'_, P>) {
    tell(r, source);
    if let Some(attempt) = r.contexts.upstream.attempt() {
        source.take_count().count(attempt);
    }
}
