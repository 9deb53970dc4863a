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

/// How the body went.
pub struct Relayed {
    /// How the request ends.
    pub step: Step,
    /// The connection, if it is good for another request.
    pub connection: Option<Box<Connection>>,
}

/// Sends the head, which is filled in, and the body behind it. `begun` is what came with the head; `rest`, of the
/// client's body, goes to the server meanwhile.
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
        // What comes goes on at once: no rate of the location holds it back.
        r.limit_rate = Some(0);
    }
    let handle = r.event_loop.handle.clone();
    let ahead = Ahead { file: buffering, rate, within: passing.read_within(r) };
    let mut source = Source::new(transport, protocol, handle, passing, ahead);
    source.begin(begun);
    if !buffering && matches!(source.transport, Transport::Stream(_)) {
        // What came in the same read goes out with the head: it may be all that there is.
        source.read_now();
    }
    postpone(r, passing);
    let mut step = r.send_head().err();
    let wanted = !r.response.header_only;
    if step.is_none() && !wanted {
        // The client waits for nothing. What is there may be all of it, and the connection good for
        // another request.
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
        // Few requests need it, and all would have to hold its room.
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

/// As in nginx, a buffer that is full does not wait for more, however small it is.
pub fn postpone(r: &mut Request, passing: &UpstreamConf) {
    let smallest = passing.buffer_size.min(passing.buffers.1);
    r.output.postpone = Some(smallest).filter(|size| *size < r.conf().core.postpone_output);
}

/// Sends what is left of a body after its head, unless this has come to an end.
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

/// Sends a head on that no part of the body has come with; a step if that fails.
pub async fn send_head_on<P: Protocol>(r: &mut Request, source: &Source<'_, P>) -> Option<Step> {
    if source.done || !source.is_empty() {
        return None;
    }
    r.send_on(Then::Flush).await.err().map(|_| Step::Abort)
}

/// Reads and sends once; a step when it is over.
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

/// Trailers that came behind a body: variables know them, and the client has those that are not hidden. What is about a connection or
/// the framing of a body must not stand there (RFC 9110, section 6.5.1, and RFC 9113, section 8.2.2).
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

/// Tells the log what the server has said for it and, once, that a file holds what the client does not take fast enough.
pub fn tell<P: Protocol>(r: &Request, source: &mut Source<'_, P>) {
    source.said().iter().for_each(|text| fault::complain(r, text, Doing::ReadingBody));
    if let Some(path) = source.spilled.take() {
        let text = "an upstream response is buffered to a temporary file";
        let doing = Doing::ReadingBody.text();
        r.log(Level::Warn, format_args!("{text} {} {doing}", path.display()));
    }
}

/// The client has left. If it has got nothing of the answer, the log says so in place of the answer's status.
fn gone(r: &mut Request) -> Step {
    r.keepalive = false;
    if r.output.sent == 0 {
        r.response.status = 499;
    }
    Step::Abort
}

/// The server failed behind the head: what came of the body is sent.
pub async fn broke(r: &mut Request, chain: Chain, broken: &Broken<impl fmt::Display>) -> Step {
    complain(r, broken);
    let step = break_off(r, chain).await;
    // A file that could not be written is not the server's failure.
    if matches!(broken, Broken::File(_)) { Step::Abort } else { step }
}

/// Sends the last of a body that its server did not complete. A client's answer ends with its connection, which is all
/// that tells the client. A part of another answer ends in order, as in nginx: the rest of the page is good.
pub async fn break_off(r: &mut Request, chain: Chain) -> Step {
    r.keepalive = false;
    let sent = match r.send_body(chain, false).await {
        Ok(()) => r.flush_body().await,
        failed => failed,
    };
    if sent.is_ok() && r.may_break_off() { Step::Sent } else { Step::Abort }
}

/// Logs why the rest of a body does not come.
pub fn complain(r: &Request, broken: &Broken<impl fmt::Display>) {
    match broken {
        Broken::Closed => {
            fault::complain(r, "upstream prematurely closed connection", Doing::ReadingBody);
        }
        Broken::Io(error) => {
            // nginx reads into several buffers where it reads ahead.
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

/// The connection, if it may serve another request, and what is remembered of the body.
pub fn finish<P: Protocol>(r: &mut Request, mut source: Source<'_, P>, step: Step) -> Relayed {
    note(r, &mut source);
    hand_back(r, source, step)
}

/// The same, if all of it is remembered already.
pub fn hand_back<P: Protocol>(r: &Request, source: Source<'_, P>, step: Step) -> Relayed {
    if let Some(Extra { text, level }) = source.extra() {
        r.log(level, format_args!("{text} while reading upstream"));
    }
    Relayed { step, connection: source.into_reusable() }
}

/// The server has sent all. The attempt's figures are final before the last piece goes: a trailer of this server may tell them.
pub fn ends(r: &mut Request, came: Came) {
    let now = r.event_loop.handle.now();
    if let Some(attempt) = r.contexts.upstream.attempt() {
        came.count(attempt);
        attempt.ends(now);
    }
}

/// Remembers how much of the body came.
pub fn note<P: Protocol>(r: &mut Request, source: &mut Source<'_, P>) {
    tell(r, source);
    if let Some(attempt) = r.contexts.upstream.attempt() {
        source.take_count().count(attempt);
    }
}
