//! HTTP/2: a request is a stream, and its answer becomes frames of it.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::io;
use std::rc::Rc;

use weir_engine::Chain;
use weir_proto::http2::frame::{self, END_STREAM, FrameHead};
use weir_proto::http2::hpack;
use weir_values::Subject;

use super::Sending;
use crate::answer::head::Fields;
use crate::answer::rate;
use crate::escape::OwnTexts;
use crate::http2::Stream;
use crate::request::Request;

pub async fn receive(
    r: &Request,
    stream: &Stream,
    mut buf: Vec<u8>,
) -> (io::Result<usize>, Vec<u8>) {
    let core = &r.conf().core;
    let (window, timeout) = (core.client_body_buffer_size, core.client_body_timeout);
    (stream.receive(&mut buf, window, timeout).await, buf)
}

/// What an upstream or a configuration may say of its own connection, and no answer over HTTP/2 may: RFC 9113,
/// section 8.2.2. nginx: ngx_http_upstream_copy_upgrade.
const OF_A_CONNECTION: [&[u8]; 4] =
    [b"Upgrade", b"Keep-Alive", b"Proxy-Connection", b"Transfer-Encoding"];

/// A block of fields.
struct Block<'a> {
    out: &'a mut Vec<u8>,
    value: Vec<u8>,
    own_texts: &'static OwnTexts,
}

impl Fields for Block<'_> {
    const OF_CONNECTION: bool = false;

    #[inline]
    fn own(&mut self, name: &[u8], write: impl FnOnce(&mut Vec<u8>)) {
        if OF_A_CONNECTION.iter().any(|of| name.eq_ignore_ascii_case(of)) {
            return;
        }
        self.value.clear();
        write(&mut self.value);
        hpack::field(name, &self.value, self.out);
    }

    #[inline]
    fn own_texts(&self) -> &'static OwnTexts {
        self.own_texts
    }
}

/// A head, as frames that do not end the stream.
pub fn write_head(r: &Request, stream: &Stream, out: &mut Vec<u8>) {
    let begin = frame::leave_head(out);
    let link = &stream.link;
    link.ledger.answers.set(link.ledger.answers.get() + 1);
    if link.table_changed() {
        hpack::empty_table(out);
    }
    hpack::status(r.response.status, out);
    let own_texts = r.site.variables.own_texts();
    let mut block = Block { out, value: link.take_room(), own_texts };
    r.write_fields(&mut block);
    link.give_room(block.value);
    frame::finish_headers(out, begin, stream.id, 0, link.frame_size());
}

pub async fn send_waiting(r: &mut Request, stream: &Rc<Stream>) -> io::Result<()> {
    let (mut head, mut chain, ending) = r.output.take();
    let trailers = ending && !r.response.trailers.is_empty();
    let ends_here = ending && !trailers;
    if !head.is_empty() {
        let whole = ends_here && chain.is_empty();
        if whole {
            end_stream(&mut head);
        }
        r.output.sent += head.len() as u64;
        stream.send_head(&head, whole)?;
        r.event_loop.handle.give_buf(head);
    }
    match rate::rate(r).filter(|_| !chain.is_empty()) {
        Some(limit) => rate::send_limited(r, &mut chain, limit).await?,
        None if chain.is_empty() => {}
        None => send_body(r, stream, &mut chain, ends_here).await?,
    }
    if ends_here {
        send_body(r, stream, &mut chain, true).await?;
    } else if trailers {
        send_trailers(r, stream)?;
    }
    Ok(())
}

/// A head is a frame of its own, so it need not wait for its body: as with nginx.
pub fn send_head_ahead(r: &mut Request, stream: &Stream) -> io::Result<()> {
    let head = r.output.take_head();
    if head.is_empty() {
        return Ok(());
    }
    stream.send_head(&head, false)?;
    r.output.sent += head.len() as u64;
    r.event_loop.handle.give_buf(head);
    Ok(())
}

/// Sends a piece of the body, in frames of `http2_chunk_size`.
pub async fn send_body(
    r: &mut Request,
    stream: &Rc<Stream>,
    chain: &mut Chain,
    last: bool,
) -> io::Result<()> {
    let timeout = r.conf().core.send_timeout;
    let (bytes, sent) = stream.send(chain, last, chunk(r), timeout).await;
    r.output.sent += bytes;
    sent.inspect_err(|error| r.log_late(error))
}

pub fn send_held(r: &mut Request, stream: Rc<Stream>) -> Option<Sending> {
    let (head, mut chain, _) = r.output.take();
    if head.is_empty() && chain.is_empty() {
        return None;
    }
    let (chunk, timeout) = (chunk(r), r.conf().core.send_timeout);
    Some(Box::pin(async move {
        if !head.is_empty()
            && let Err(error) = stream.send_head(&head, false)
        {
            return (0, Err(error));
        }
        let (bytes, sent) = stream.send(&mut chain, false, chunk, timeout).await;
        (head.len() as u64 + bytes, sent)
    }))
}

fn chunk(r: &Request) -> usize {
    usize::try_from(r.conf().core.http2.chunk_size).unwrap_or(frame::MAX_PAYLOAD)
}

fn send_trailers(r: &mut Request, stream: &Stream) -> io::Result<()> {
    let mut frames = Vec::new();
    let begin = frame::leave_head(&mut frames);
    let mut text = Vec::new();
    for (name, value) in r.response.trailers.iter() {
        text.clear();
        text.extend_from_slice(value);
        r.within_line(&mut text, 0);
        hpack::field(name, &text, &mut frames);
    }
    let most = stream.link.frame_size();
    frame::finish_headers(&mut frames, begin, stream.id, END_STREAM, most);
    r.output.sent += frames.len() as u64;
    stream.send_trailers(&frames)
}

/// The frames of a head become the whole answer.
fn end_stream(frames: &mut [u8]) {
    // Those before may be of interim answers; the last HEADERS frame is the one.
    let (mut at, mut last) = (0, None);
    while let Some(head) = FrameHead::read(frames.get(at..).unwrap_or_default()) {
        if head.kind == frame::FrameType::Headers {
            last = Some((at, head));
        }
        at += frame::HEAD + head.len;
    }
    if let Some((at, head)) = last {
        frame::put_head(frames, at, FrameHead { flags: head.flags | END_STREAM, ..head });
    }
}
