//! Passes a session's datagrams on to its server, and the answers back.

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Poll;

use weir_engine::{Datagram, either};
use weir_log::{Cause, Level};
use weir_metrics::Metric;
use weir_upstream::balance::Measure;
use weir_upstream::{Rate, fault};
use weir_values::Subject;

use super::flow::{Expected, Flow, Over};
use super::{FlowGuard, LONGEST};
use crate::proxy::{HeldPeer, ProxyEnd, connected, head, note_end, rate};
use crate::session::Session;
use crate::settings::Proxy;
use crate::status::SessionError;

/// What a session waits for.
enum FlowEvent {
    Over(Over),
    Readable(io::Result<()>),
    /// It may be complete.
    Full,
}

/// Datagrams both ways, until the session is complete, or neither end has sent one for the
/// time-out.
pub async fn converse(
    s: &mut Session,
    proxy: &Proxy,
    held: &HeldPeer<'_>,
    place: &FlowGuard,
    server: Datagram,
) -> ProxyEnd {
    let server = Rc::new(server);
    connected(s, held, || server.local_addr());
    let first = head(s, proxy.proxy_protocol);
    let passed = match server.try_send_to(&first, None) {
        Ok(sent) => {
            let attempt = s.attempts.last_mut();
            attempt.into_iter().for_each(|a| a.sent = sent.unwrap_or_default() as u64);
            exchange(s, proxy, held, place, &server).await
        }
        Err(error) => broken(s, &error),
    };
    note_end(s);
    passed
}

async fn exchange(
    s: &mut Session,
    proxy: &Proxy,
    held: &HeldPeer<'_>,
    place: &FlowGuard,
    server: &Rc<Datagram>,
) -> ProxyEnd {
    let (handle, flow) = (s.event_loop.handle.clone(), &*place.flow);
    let up = rate(s, proxy.upload_rate.as_ref());
    let down = rate(s, proxy.download_rate.as_ref());
    let dropped = flow.connect(&handle, server.clone(), up);
    s.event_loop.metrics.add(Metric::DroppedDatagrams, dropped);
    let (expected, down) = (Expected::of(proxy), Rate::new(down, handle.now()));
    let mut failed = false;
    loop {
        let (requests, answers) = (flow.requests.get(), flow.answers.get());
        if expected.is_done(requests, answers) {
            say(s, flow, "udp done");
            return ProxyEnd { outcome: Ok(()), failed };
        }
        match wait(flow, server).await {
            FlowEvent::Full => {}
            FlowEvent::Over(Over::Broken) => return broken(s, &flow.why_broken()),
            FlowEvent::Over(Over::Evicted) => {
                say(s, flow, "udp session makes room for another");
                return ProxyEnd { outcome: Ok(()), failed };
            }
            FlowEvent::Over(Over::Shutdown) => return disconnected(s, failed),
            // The server had less time than `proxy_timeout`: it is not late.
            FlowEvent::Readable(Err(_)) if flow.has_left(handle.now()) => {
                return disconnected(s, failed);
            }
            FlowEvent::Readable(Err(_)) => return late(s, flow, expected, failed),
            FlowEvent::Readable(Ok(())) => match down {
                None => failed |= hear(s, held, flow, server),
                Some(down) => {
                    let before = flow.passed.down.get();
                    failed |= hear_one(s, held, flow, server).unwrap_or_default();
                    pause(s, flow, down, before).await;
                    flow.wait_anew(handle.now());
                }
            },
        }
    }
}

async fn wait(flow: &Flow, server: &Datagram) -> FlowEvent {
    let mut waits = false;
    poll_fn(|cx| {
        if let Poll::Ready(over) = flow.poll_over(cx) {
            return Poll::Ready(FlowEvent::Over(over));
        }
        if let Poll::Ready(readable) = server.poll_readable(cx) {
            return Poll::Ready(FlowEvent::Readable(readable));
        }
        // Woken, and there is nothing: the client's last datagram may have made it complete.
        if std::mem::replace(&mut waits, true) {
            Poll::Ready(FlowEvent::Full)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Passes on all that the server has sent, be it more than the session needs; true if that says that no server is there.
fn hear(s: &Session, held: &HeldPeer<'_>, flow: &Flow, server: &Datagram) -> bool {
    let mut failed = false;
    while let Some(refused) = hear_one(s, held, flow, server) {
        failed |= refused;
        if weir_engine::is_spent() {
            break;
        }
    }
    failed
}

/// The same for one datagram, if there is one.
fn hear_one(s: &Session, held: &HeldPeer<'_>, flow: &Flow, server: &Datagram) -> Option<bool> {
    let now = s.event_loop.handle.now();
    let mut scratch = s.event_loop.datagrams.scratch.borrow_mut();
    scratch.clear();
    scratch.reserve(LONGEST);
    match server.try_recv(&mut scratch) {
        Ok(None) => None,
        Ok(Some(n)) => {
            if flow.heard(n as u64, now) {
                held.reached(Measure::First, now);
            }
            if flow.answer(&scratch) {
                flow.passed.down_sent.add(n as u64);
            }
            Some(false)
        }
        // nginx counts it as an answer: nothing better is to come.
        Err(error) => {
            let doing = "while proxying and reading from upstream";
            s.log(Level::Error, format_args!("recv() failed {} {doing}", Cause(&error)));
            flow.heard(0, now);
            Some(fault::blame(&error).counts())
        }
    }
}

/// No faster to the client than its limit allows, though every datagram is passed on whole.
async fn pause(s: &Session, flow: &Flow, rate: Rate, before: u64) {
    let handle = &s.event_loop.handle;
    let passed = flow.passed.down.get();
    let beyond = passed.saturating_sub(rate.granted(handle.now()));
    let time = rate.time_of(beyond.max(passed - before));
    if !time.is_zero() {
        let _ = either(handle.sleep(time), std::pin::pin!(flow.over())).await;
    }
}

/// The worker ends.
fn disconnected(s: &Session, failed: bool) -> ProxyEnd {
    s.log_bare(Level::Info, format_args!("disconnected on shutdown"));
    ProxyEnd { outcome: Ok(()), failed }
}

/// Neither end has sent anything for long.
fn late(s: &Session, flow: &Flow, expected: Expected, failed: bool) -> ProxyEnd {
    if expected.answered(flow.requests.get(), flow.answers.get()) {
        say(s, flow, "udp timed out");
        return ProxyEnd { outcome: Ok(()), failed };
    }
    let cause = fault::late();
    let text = "while proxying connection";
    s.log(Level::Error, format_args!("upstream timed out {} {text}", Cause(&cause)));
    ProxyEnd { outcome: Err(SessionError::BadGateway), failed: true }
}

/// What is sent to the server does not go out.
fn broken(s: &Session, error: &io::Error) -> ProxyEnd {
    let doing = "while proxying and sending to upstream";
    s.log(Level::Error, format_args!("sendmsg() failed {} {doing}", Cause(error)));
    ProxyEnd { outcome: Ok(()), failed: fault::blame(error).counts() }
}

fn say(s: &Session, flow: &Flow, what: &str) {
    let sent = s.attempts.last().map_or(0, |attempt| attempt.sent);
    s.log_bare(
        Level::Info,
        format_args!(
            "{what}, packets from/to client:{}/{}, bytes from/to client:{}/{}, \
             bytes from/to upstream:{}/{}",
            flow.requests.get(),
            flow.answers.get(),
            s.bytes_received(),
            s.bytes_sent(),
            flow.passed.down.get(),
            sent + flow.passed.up_sent.get(),
        ),
    );
}
