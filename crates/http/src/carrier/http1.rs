//! HTTP/1: the request has the connection to itself.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::io;
use std::time::Instant;

use weir_engine::{Chain, FileWay, Patience};
use weir_proto::http1::Version;
use weir_values::Subject;

use super::{Interim, Sending, Unsent};
use crate::answer::head::{Fields, write_status};
use crate::answer::rate;
use crate::escape::OwnTexts;
use crate::request::Request;
use crate::site::core::Conf;

/// Room for one read of a body.
const PIECE: usize = 16 * 1024;

fn status_line(what: Interim) -> Vec<u8> {
    match what {
        Interim::Continue => b"HTTP/1.1 100 Continue\r\n".to_vec(),
        Interim::EarlyHints => b"HTTP/1.1 103 Early Hints\r\n".to_vec(),
        Interim::Other(102) => b"HTTP/1.1 102 Processing\r\n".to_vec(),
        Interim::Other(status) => format!("HTTP/1.1 {status} \r\n").into_bytes(),
    }
}

pub async fn receive(r: &mut Request, end: Option<Instant>) -> io::Result<usize> {
    if r.body.is_late() {
        return Err(io::ErrorKind::TimedOut.into());
    }
    let (core, now) = (&r.conf().core, r.event_loop.handle.now());
    r.buf.reserve(PIECE);
    let deadline = match end {
        Some(end) => end.min(now + core.lingering_timeout),
        None => now + core.client_body_timeout,
    };
    r.conn.wire().set_deadline(Some(deadline));
    let received = loop {
        if let Some(received) = r.conn.wire().try_recv(&mut r.buf).transpose() {
            break received;
        }
        if let Err(error) = r.conn.wire().socket().readable().await {
            break Err(error);
        }
    };
    r.conn.wire().set_deadline(None);
    received
}

/// Waits until something can be received, or `client_body_timeout` is over.
pub async fn readable(r: &Request) {
    if r.body.is_late() {
        return;
    }
    let end = r.event_loop.handle.now() + r.conf().core.client_body_timeout;
    r.conn.wire().set_deadline(Some(end));
    if let Err(error) = r.conn.wire().readable().await
        && error.kind() == io::ErrorKind::TimedOut
    {
        r.body.time_out();
    }
}

pub async fn left(r: &Request) {
    // The deadline of an earlier send would end this wait too soon.
    r.conn.wire().set_deadline(None);
    let _ = r.conn.wire().socket().closed().await;
}

/// Writes lines. Each begins with the line end of the line before it.
struct Lines<'a> {
    out: &'a mut Vec<u8>,
    own_texts: &'static OwnTexts,
}

impl Fields for Lines<'_> {
    const OF_CONNECTION: bool = true;

    #[inline]
    fn own(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        self.out.extend_from_slice(b"\r\n");
        self.out.extend_from_slice(name);
        self.out.extend_from_slice(b": ");
        write(self.out);
    }

    #[inline]
    fn own_texts(&self) -> &'static OwnTexts {
        self.own_texts
    }
}

/// Writes the head. A request without a version (HTTP/0.9) gets none.
pub fn write_head(r: &Request, out: &mut Vec<u8>) {
    if r.version <= Version::Http09 {
        return;
    }
    let response = &r.response;
    out.reserve(512);
    out.extend_from_slice(b"HTTP/1.1 ");
    match &response.status_line {
        Some(line) => {
            let start = out.len();
            out.extend_from_slice(line);
            r.within_line(out, start);
        }
        None => write_status(response.status, out),
    }
    let own_texts = r.site.variables.own_texts();
    r.write_fields(&mut Lines { out, own_texts });
    out.extend_from_slice(b"\r\n\r\n");
}

fn set_file_sending(chain: &mut Chain, core: &Conf) {
    chain.set_file_chunk(core.sendfile_max_chunk);
    chain.set_file_way(if core.sendfile { FileWay::Cheapest } else { FileWay::Copy });
}

pub fn send_waiting(r: &mut Request) -> io::Result<Option<Unsent>> {
    let (head, mut chain, ending) = r.output.take();
    if !head.is_empty() {
        chain.push_front(head);
    }
    let total = chain.len();
    if total == 0 {
        return Ok(None);
    }
    let core = &r.conf().core;
    set_file_sending(&mut chain, core);
    if !ending {
        // With Nagle's algorithm the next piece would wait until this one is acknowledged.
        r.conn.set_nodelay(core.tcp_nodelay);
    }
    if rate::rate(r).is_none() {
        // The usual case is one buffer and one send, without a look at the clock.
        let sent = r.conn.wire().try_send(&mut chain);
        // If the send failed, only the bytes that were sent count.
        r.output.sent += total.saturating_sub(chain.len());
        sent?;
    }
    Ok((!chain.is_empty()).then_some(Unsent { chain, ending }))
}

pub async fn send_unsent(r: &mut Request, mut unsent: Unsent) -> io::Result<()> {
    match rate::rate(r) {
        Some(limit) => rate::send_limited(r, &mut unsent.chain, limit).await,
        None => send_part(r, &mut unsent.chain).await,
    }
}

pub async fn send_part(r: &mut Request, part: &mut Chain) -> io::Result<()> {
    let total = part.len();
    let sent = send_chain(r, part).await;
    r.output.sent += total.saturating_sub(part.len());
    sent
}

async fn send_chain(r: &Request, chain: &mut Chain) -> io::Result<()> {
    let patience = Patience::Idle(r.conf().core.send_timeout);
    let sent = r.conn.wire().send(chain, patience).await;
    sent.inspect_err(|error| r.sending_failed(error))
}

pub fn send_held(r: &mut Request) -> Option<Sending> {
    let (head, mut chain, _) = r.output.take();
    if !head.is_empty() {
        chain.push_front(head);
    }
    if chain.is_empty() {
        return None;
    }
    let core = &r.conf().core;
    r.conn.set_nodelay(core.tcp_nodelay);
    set_file_sending(&mut chain, core);
    let (conn, total, patience) = (r.conn.clone(), chain.len(), core.send_timeout);
    Some(Box::pin(async move {
        let sent = conn.wire().send(&mut chain, Patience::Idle(patience)).await;
        (total.saturating_sub(chain.len()), sent)
    }))
}

pub async fn send_interim<'a>(
    r: &Request,
    what: Interim,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> (u64, io::Result<()>) {
    let mut text = status_line(what);
    for (name, value) in fields {
        text.extend_from_slice(&[name, b": ", value, b"\r\n"].concat());
    }
    text.extend_from_slice(b"\r\n");
    let (mut chain, len) = (Chain::new(), text.len() as u64);
    chain.push(text);
    let patience = Patience::Idle(r.conf().core.send_timeout);
    (len, r.conn.wire().send(&mut chain, patience).await)
}

pub fn expect_reading(r: &Request) {
    let end = r.event_loop.handle.now() + r.conf().core.send_timeout;
    r.conn.wire().set_deadline(Some(end));
}
