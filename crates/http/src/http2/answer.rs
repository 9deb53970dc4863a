//! Answers as frames.

use std::io;
use std::rc::Rc;

use weir_engine::Chain;
use weir_proto::http2::frame::{self, END_STREAM, FrameHead};
use weir_proto::http2::hpack;

use super::stream::Stream;
use crate::answer::output::Sending;
use crate::answer::rate;
use crate::request::Request;
use weir_values::Subject;

impl Request {
    /// Sends all that waits of an answer over HTTP/2.
    pub async fn flush_h2(&mut self, stream: &Rc<Stream>) -> io::Result<()> {
        let (mut head, mut chain, ending) = self.output.take();
        let trailers = ending && !self.response.trailers.is_empty();
        let ends_here = ending && !trailers;
        if !head.is_empty() {
            let whole = ends_here && chain.is_empty();
            if whole {
                end_stream(&mut head);
            }
            self.output.sent += head.len() as u64;
            stream.send_head(&head, whole)?;
            self.event_loop.handle.give_buf(head);
        }
        match rate::rate(self).filter(|_| !chain.is_empty()) {
            Some(limit) => rate::send_limited(self, &mut chain, limit).await?,
            None if chain.is_empty() => {}
            None => self.send_h2_body(stream, &mut chain, ends_here).await?,
        }
        if ends_here {
            self.send_h2_body(stream, &mut chain, true).await?;
        } else if trailers {
            self.send_h2_trailers(stream)?;
        }
        Ok(())
    }

    /// Sends a head whose body is still to come: a frame of its own, it need not wait for company, as with nginx.
    pub fn send_h2_head_ahead(&mut self) -> io::Result<()> {
        let Some(stream) = self.h2.as_ref().filter(|_| self.is_main()) else { return Ok(()) };
        let head = self.output.take_head();
        if head.is_empty() {
            return Ok(());
        }
        stream.send_head(&head, false)?;
        self.output.sent += head.len() as u64;
        self.event_loop.handle.give_buf(head);
        Ok(())
    }

    /// Sends a piece of the body, in frames of `http2_chunk_size`.
    pub async fn send_h2_body(
        &mut self,
        stream: &Rc<Stream>,
        chain: &mut Chain,
        last: bool,
    ) -> io::Result<()> {
        let timeout = self.conf().core.send_timeout;
        let (bytes, sent) = stream.send(chain, last, self.chunk(), timeout).await;
        self.output.sent += bytes;
        sent.inspect_err(|error| self.log_late(error))
    }

    /// As [`Request::send_held`].
    pub fn send_h2_held(&mut self, stream: Rc<Stream>) -> Option<Sending> {
        let (head, mut chain, _) = self.output.take();
        if head.is_empty() && chain.is_empty() {
            return None;
        }
        let (chunk, timeout) = (self.chunk(), self.conf().core.send_timeout);
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

    fn chunk(&self) -> usize {
        usize::try_from(self.conf().core.http2.chunk_size).unwrap_or(frame::MAX_PAYLOAD)
    }

    fn send_h2_trailers(&mut self, stream: &Stream) -> io::Result<()> {
        let mut frames = Vec::new();
        let begin = frame::leave_head(&mut frames);
        let mut text = Vec::new();
        for (name, value) in self.response.trailers.iter() {
            text.clear();
            text.extend_from_slice(value);
            self.within_line(&mut text, 0);
            hpack::field(name, &text, &mut frames);
        }
        let most = stream.link.frame_size();
        frame::finish_headers(&mut frames, begin, stream.id, END_STREAM, most);
        self.output.sent += frames.len() as u64;
        stream.send_trailers(&frames)
    }
}

/// The frames of a head become the whole answer.
fn end_stream(frames: &mut [u8]) {
    // Those before may be of interim answers; the last HEADERS frame is the one.
    let (mut at, mut last) = (0, None);
    while let Some(head) = FrameHead::read(frames.get(at..).unwrap_or_default()) {
        if head.kind == frame::Kind::Headers {
            last = Some((at, head));
        }
        at += frame::HEAD + head.len;
    }
    if let Some((at, head)) = last {
        frame::put_head(frames, at, FrameHead { flags: head.flags | END_STREAM, ..head });
    }
}
