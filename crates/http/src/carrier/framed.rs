//! Requests over a stream of HTTP/2 or HTTP/3. Answers are sent as frames.

#![expect(clippy::disallowed_methods, reason = "this is the room")]

use std::future::poll_fn;
use std::io;
use std::rc::Rc;
use std::task::Context;
use std::time::Duration;

use weir_engine::{Chain, Either, Handle, either};
use weir_http2::{Pause, send_with};
use weir_values::Subject;

use super::{Following, Interim, RequestStream, Section, Sending, TakeField, Unsent};
use crate::answer::head::Fields;
use crate::answer::rate;
use crate::escape::OwnTexts;
use crate::request::Request;

/// The initial capacity for the value of a field.
const VALUE: usize = 512;

pub async fn receive(r: &mut Request, stream: &Rc<dyn RequestStream>) -> io::Result<usize> {
    readable(r, stream).await;
    stream.receive(&mut r.buf)
}

/// Waits until something can be received, or `client_body_timeout` is over.
pub async fn readable(r: &Request, stream: &Rc<dyn RequestStream>) {
    if stream.has_incoming() || stream.has_timed_out() {
        return;
    }
    let core = &r.conf().core;
    stream.invite(core.client_body_buffer_size);
    let sleep = r.event_loop.handle.sleep(core.client_body_timeout);
    if let Either::Right(()) = either(poll_fn(|cx| stream.poll_incoming(cx)), sleep).await {
        stream.time_out();
    }
}

/// Connection-specific fields, which a stream must not carry (RFC 9113, section 8.2.2). Servers behind and configurations may
/// add them.
const OF_A_CONNECTION: [&[u8]; 5] =
    [b"Connection", b"Upgrade", b"Keep-Alive", b"Proxy-Connection", b"Transfer-Encoding"];

/// A block of fields.
struct Block<'a> {
    take: TakeField<'a>,
    value: &'a mut Vec<u8>,
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
        write(self.value);
        (self.take)(name, self.value);
    }

    #[inline]
    fn own_texts(&self) -> &'static OwnTexts {
        self.own_texts
    }
}

/// Writes the head as a field section that does not end the stream.
pub fn write_head(r: &Request, stream: &dyn RequestStream, out: &mut Vec<u8>) {
    let own_texts = r.site.variables.own_texts();
    let mut value = r.event_loop.handle.take_buf(VALUE);
    let mut fields = |take: TakeField<'_>| {
        r.write_fields(&mut Block { take, value: &mut value, own_texts });
    };
    stream.write(Section::Head(r.response.status), &mut fields, out);
    r.event_loop.handle.give_buf(value);
}

pub fn send_waiting(r: &mut Request, stream: &dyn RequestStream) -> io::Result<Option<Unsent>> {
    let (mut head, mut chain, ending) = r.output.take();
    let (ends_here, trailers) = ends(r, ending);
    let limit = rate::rate(r).filter(|_| !chain.is_empty());
    if !head.is_empty() {
        let following = match chain.len() {
            0 if ends_here => Following::Nothing,
            len if len > 0 && limit.is_none() => Following::Body(len),
            _ => Following::Later,
        };
        stream.send_head(&mut head, following)?;
        r.output.sent += head.len() as u64;
        r.event_loop.handle.give_buf(head);
    }
    if limit.is_some() {
        return Ok(Some(Unsent { chain, ending }));
    }
    if !chain.is_empty() || ends_here {
        let before = stream.sent();
        let tried = stream.send_body(&mut chain, ends_here, chunk(r, stream));
        r.output.sent += stream.sent() - before;
        if !matches!(tried?, Pause::Done) {
            return Ok(Some(Unsent { chain, ending }));
        }
    }
    if trailers {
        send_trailers(r, stream)?;
    }
    Ok(None)
}

pub async fn send_unsent(
    r: &mut Request,
    stream: &Rc<dyn RequestStream>,
    unsent: Unsent,
) -> io::Result<()> {
    let Unsent { mut chain, ending } = unsent;
    let (ends_here, trailers) = ends(r, ending);
    if let Some(limit) = rate::rate(r) {
        rate::send_limited(r, &mut chain, limit).await?;
    }
    if !chain.is_empty() || ends_here {
        send_body(r, stream, &mut chain, ends_here).await?;
    }
    if trailers {
        send_trailers(r, &**stream)?;
    }
    Ok(())
}

/// Whether the body ends the stream, and whether trailers behind it do. `ending`: this is the end of the answer.
fn ends(r: &Request, ending: bool) -> (bool, bool) {
    let trailers = ending && !r.response.trailers.is_empty();
    (ending && !trailers, trailers)
}

/// Sends the head before its body comes, as nginx does: it is a frame of its own.
pub fn send_head_ahead(r: &mut Request, stream: &dyn RequestStream) -> io::Result<()> {
    let mut head = r.output.take_head();
    if head.is_empty() {
        return Ok(());
    }
    stream.send_head(&mut head, Following::Later)?;
    r.output.sent += head.len() as u64;
    r.event_loop.handle.give_buf(head);
    Ok(())
}

/// Sends a piece of the body, in frames of `http2_chunk_size`.
pub async fn send_body(
    r: &mut Request,
    stream: &Rc<dyn RequestStream>,
    chain: &mut Chain,
    last: bool,
) -> io::Result<()> {
    let (handle, timeout) = (&r.event_loop.handle, r.conf().core.send_timeout);
    let (bytes, sent) = send(stream, handle, chain, last, chunk(r, &**stream), timeout).await;
    r.output.sent += bytes;
    sent.inspect_err(|error| r.sending_failed(error))
}

/// Sends a piece of the body in frames of at most `chunk` bytes. `last` ends the body. Waits while flow control blocks
/// the stream or the connection. Returns the number of bytes sent, frame headers included, and the result.
async fn send(
    stream: &Rc<dyn RequestStream>,
    handle: &Handle,
    chain: &mut Chain,
    last: bool,
    chunk: usize,
    timeout: Duration,
) -> (u64, io::Result<()>) {
    let before = stream.sent();
    let some = |chain: &mut Chain| stream.send_body(chain, last, chunk);
    let room = |cx: &mut Context<'_>| stream.clone().poll_room(cx);
    let sent = send_with(handle, chain, timeout, some, room).await;
    if sent.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::TimedOut) {
        stream.time_out();
    }
    (stream.sent() - before, sent)
}

pub fn send_held(r: &mut Request, stream: Rc<dyn RequestStream>) -> Option<Sending> {
    let (mut head, mut chain, _) = r.output.take();
    if head.is_empty() && chain.is_empty() {
        return None;
    }
    let (chunk, timeout) = (chunk(r, &*stream), r.conf().core.send_timeout);
    let handle = r.event_loop.handle.clone();
    let following = match chain.len() {
        0 => Following::Later,
        len => Following::Body(len),
    };
    Some(Box::pin(async move {
        if !head.is_empty()
            && let Err(error) = stream.send_head(&mut head, following)
        {
            return (0, Err(error));
        }
        let (bytes, sent) = send(&stream, &handle, &mut chain, false, chunk, timeout).await;
        (head.len() as u64 + bytes, sent)
    }))
}

/// Sends an interim answer. Returns the number of its bytes and the result.
pub fn send_interim<'a>(
    stream: &dyn RequestStream,
    what: Interim,
    fields: impl Iterator<Item = (&'a [u8], &'a [u8])>,
) -> (u64, io::Result<()>) {
    let (mut written, mut fields) = (Vec::new(), fields);
    let mut each =
        |take: TakeField<'_>| fields.by_ref().for_each(|(name, value)| take(name, value));
    stream.write(Section::Interim(what), &mut each, &mut written);
    match stream.send_head(&mut written, Following::Later) {
        Ok(()) => (written.len() as u64, Ok(())),
        Err(error) => (0, Err(error)),
    }
}

fn chunk(r: &Request, stream: &dyn RequestStream) -> usize {
    let of_http2 = || usize::try_from(r.conf().core.http2.chunk_size).unwrap_or(usize::MAX);
    stream.chunk().unwrap_or_else(of_http2)
}

fn send_trailers(r: &mut Request, stream: &dyn RequestStream) -> io::Result<()> {
    let (mut written, mut text) = (Vec::new(), Vec::new());
    let mut fields = |take: TakeField<'_>| {
        for (name, value) in r.response.trailers.iter() {
            text.clear();
            text.extend_from_slice(value);
            r.within_line(&mut text, 0);
            take(name, &text);
        }
    };
    stream.write(Section::Trailers, &mut fields, &mut written);
    stream.send_trailers(&written)?;
    r.output.sent += written.len() as u64;
    Ok(())
}
