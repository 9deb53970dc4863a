//! Relays a session's datagrams to its server, and the answers back.

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

use super::flow::{EndReason, Expected, Flow};
use super::{FlowGuard, MAX_DATAGRAM};
use crate::proxy::{HeldPeer, ProxyEnd, connected, first_bytes, rate, record_passed};
use crate::session::Session;
use crate::settings::Proxy;
use crate::status::SessionError;

/// What wakes a session's task.
enum FlowEvent {
    End(EndReason),
    Readable(io::Result<()>),
    /// The session may be complete.
    Full,
}

/// Relays datagrams both ways until the session is complete, or neither end has sent one within the
/// time-out.
pub async fn relay(
    s: &mut Session,
    proxy: &Proxy,
    held: &HeldPeer<'_>,
    place: &FlowGuard,
    server: Datagram,
) -> ProxyEnd {
    let server = Rc::new(server);
    connected(s, held, || server.local_addr());
    let first = first_bytes(s, proxy.proxy_protocol);
    let passed = match server.try_send_to(&first, None) {
        Ok(sent) => {
            let attempt = s.attempts.last_mut();
            attempt.into_iter().for_each(|a| a.sent = sent.unwrap_or_default() as u64);
            exchange(s, proxy, held, place, &server).await
        }
        Err(error) => send_failed(s, &error),
    };
    record_passed(s);
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
            log_totals(s, flow, "udp done");
            return ProxyEnd { outcome: Ok(()), failed };
        }
        match wait(flow, server).await {
            FlowEvent::Full => {}
            FlowEvent::End(EndReason::SendFailed) => {
                return send_failed(s, &flow.take_send_error());
            }
            FlowEvent::End(EndReason::Evicted) => {
                log_totals(s, flow, "udp session makes room for another");
                return ProxyEnd { outcome: Ok(()), failed };
            }
            FlowEvent::End(EndReason::Shutdown) => return shut_down(s, failed),
            // The session must end: the server had less time than `proxy_timeout`, so this is no
            // failure of it.
            FlowEvent::Readable(Err(_)) if flow.leave_time_is_over(handle.now()) => {
                return shut_down(s, failed);
            }
            FlowEvent::Readable(Err(_)) => return timed_out(s, flow, expected, failed),
            FlowEvent::Readable(Ok(())) => match down {
                None => failed |= relay_answers(s, held, flow, server),
                Some(down) => {
                    let before = flow.passed.down.get();
                    failed |= relay_answer(s, held, flow, server).unwrap_or_default();
                    pace(s, flow, down, before).await;
                    flow.restart_timeout(handle.now());
                }
            },
        }
    }
}

async fn wait(flow: &Flow, server: &Datagram) -> FlowEvent {
    let mut waits = false;
    poll_fn(|cx| {
        if let Poll::Ready(reason) = flow.poll_end(cx) {
            return Poll::Ready(FlowEvent::End(reason));
        }
        if let Poll::Ready(readable) = server.poll_readable(cx) {
            return Poll::Ready(FlowEvent::Readable(readable));
        }
        // Woken without an event: the client's last datagram may have completed the session.
        if std::mem::replace(&mut waits, true) {
            Poll::Ready(FlowEvent::Full)
        } else {
            Poll::Pending
        }
    })
    .await
}

/// Relays all waiting answers, even more than `proxy_responses`. True if one of them reported that
/// the server is not there.
fn relay_answers(s: &Session, held: &HeldPeer<'_>, flow: &Flow, server: &Datagram) -> bool {
    let mut failed = false;
    while let Some(refused) = relay_answer(s, held, flow, server) {
        failed |= refused;
        if weir_engine::is_spent() {
            break;
        }
    }
    failed
}

/// Relays one answer, if there is one. True if it reported that the server is not there.
fn relay_answer(s: &Session, held: &HeldPeer<'_>, flow: &Flow, server: &Datagram) -> Option<bool> {
    let now = s.event_loop.handle.now();
    let mut scratch = s.event_loop.datagrams.scratch.borrow_mut();
    scratch.clear();
    scratch.reserve(MAX_DATAGRAM);
    match server.try_recv(&mut scratch) {
        Ok(None) => None,
        Ok(Some(n)) => {
            if flow.count_answer(n as u64, now) {
                held.reached(Measure::First, now);
            }
            if flow.answer(&scratch) {
                flow.passed.down_sent.add(n as u64);
            }
            Some(false)
        }
        // As in nginx, an error counts as an answer: the server will send none.
        Err(error) => {
            let doing = "while proxying and reading from upstream";
            s.log(Level::Error, format_args!("recv() failed {} {doing}", Cause(&error)));
            flow.count_answer(0, now);
            Some(fault::blame(&error).counts())
        }
    }
}

/// Waits as the download rate demands. A datagram is relayed whole, so the wait follows it.
async fn pace(s: &Session, flow: &Flow, rate: Rate, before: u64) {
    let handle = &s.event_loop.handle;
    let passed = flow.passed.down.get();
    let beyond = passed.saturating_sub(rate.granted(handle.now()));
    let time = rate.time_of(beyond.max(passed - before));
    if !time.is_zero() {
        let _ = either(handle.sleep(time), std::pin::pin!(flow.ended())).await;
    }
}

/// The session ends because the worker does.
fn shut_down(s: &Session, failed: bool) -> ProxyEnd {
    s.log_bare(Level::Info, format_args!("disconnected on shutdown"));
    ProxyEnd { outcome: Ok(()), failed }
}

/// Neither end has sent anything within the time-out.
fn timed_out(s: &Session, flow: &Flow, expected: Expected, failed: bool) -> ProxyEnd {
    if expected.answered(flow.requests.get(), flow.answers.get()) {
        log_totals(s, flow, "udp timed out");
        return ProxyEnd { outcome: Ok(()), failed };
    }
    let cause = fault::late();
    let text = "while proxying connection";
    s.log(Level::Error, format_args!("upstream timed out {} {text}", Cause(&cause)));
    ProxyEnd { outcome: Err(SessionError::BadGateway), failed: true }
}

/// Sending to the server failed.
fn send_failed(s: &Session, error: &io::Error) -> ProxyEnd {
    let doing = "while proxying and sending to upstream";
    s.log(Level::Error, format_args!("sendmsg() failed {} {doing}", Cause(error)));
    ProxyEnd { outcome: Ok(()), failed: fault::blame(error).counts() }
}

fn log_totals(s: &Session, flow: &Flow, what: &str) {
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
