//! Runs a body through its filters, and inserts the bodies of subrequests.
//! nginx: ngx_http_copy_filter_module, ngx_http_postpone_filter_module.
//!
//! Filters are in the order in which the header filters added them. Filters before [`postpone`] see the body of their own
//! request. Those behind it see the whole answer, including the bodies of subrequests.

use std::collections::VecDeque;
use std::io;
use std::ops::Range;

use bytes::Bytes;
use weir_engine::{Boxed, Chain, Segment, breathe, spend};
use weir_proto::{Renew, as_new};
use weir_values::doing;

use crate::answer::output::SENDING;
use crate::carrier::Unsent;
use crate::phases::Step;
use crate::request::Request;
use crate::request::pipe::Subrequest;
pub use crate::request::pipe::Then;

/// The largest piece that filters get at once, so that none blocks the loop for long.
const PIECE: u64 = 32 * 1024;
/// The number of bytes for a filter that cost one point of the task's budget.
const FILTERED: u64 = 16;

/// The phase that is logged if a filter blocks the loop.
const PHASE: &str = "the body filters";

/// The result of a body filter.
pub enum Filtered<'a> {
    /// At once.
    Now(io::Result<Chain>),
    /// Later: the filter waits for a subrequest or a pool.
    Later(Boxed<'a, io::Result<Chain>>),
}

/// Changes a body while it is sent. Header filters add it with [`Request::add_body_filter`].
pub trait BodyFilter {
    /// nginx's name of the filter's module, without `ngx_http_` and `_module`.
    fn module(&self) -> &'static str;

    /// Takes the next piece. `last` marks the end of the body.
    fn filter<'a>(&'a mut self, r: &'a mut Request, input: Chain, last: bool) -> Filtered<'a>;

    /// Whether it reads the bytes. Then files are read into memory, and pieces are small.
    fn needs_memory(&self) -> bool {
        true
    }
}

/// The filters of one answer.
#[derive(Default)]
pub struct Filters {
    /// The running filter is taken out of the list.
    list: Vec<Option<Box<dyn BodyFilter>>>,
    /// Whether each filter reads the bytes.
    memory: Vec<bool>,
    /// The number of filters before the place where subrequests' bodies are inserted.
    own: usize,
    /// The running filter.
    running: usize,
    /// What follows the piece that it processes.
    then: Then,
    /// The filters were told that more follows at once.
    promised: bool,
    /// Parts that must be sent before the piece that filters process.
    queue: VecDeque<Part>,
}

/// A part of an answer, in its order.
enum Part {
    Data(Chain),
    Of(Subrequest),
}

impl Renew for Filters {
    fn renew(&mut self) {
        as_new!(self, Filters { list, memory, queue; own, running, then, promised });
    }
}

impl Filters {
    /// For a filter: what follows the piece that it processes.
    pub fn then(&self) -> Then {
        self.then
    }

    /// For a filter: whether the body ends with this piece. Another body may follow in the answer.
    pub fn ends_body(&self) -> bool {
        self.then >= Then::Part
    }

    fn any_needs_memory(&self, which: Range<usize>) -> bool {
        self.memory.get(which).is_some_and(|of| of.contains(&true))
    }
}

/// A header filter. Body filters that are added behind it also see the bodies of subrequests.
pub fn postpone(r: &mut Request) -> Result<(), Step> {
    r.output.filters.own = r.output.filters.list.len();
    Ok(())
}

/// How far a piece of a body got without waiting.
enum Begun {
    Sent,
    /// The socket or stream is full. This is the rest.
    Unsent(Unsent),
    /// Filters must process it first.
    Filtered(Chain),
}

impl Request {
    /// Adds a filter behind the others.
    pub fn add_body_filter(&mut self, filter: Box<dyn BodyFilter>) {
        let filters = &mut self.output.filters;
        filters.memory.push(filter.needs_memory());
        filters.list.push(Some(filter));
    }

    /// Sends a piece of the body through the filters. `last` marks its end. Waits while the client is slow.
    pub fn send_body(&mut self, chain: Chain, last: bool) -> impl Future<Output = io::Result<()>> {
        self.send_body_then(chain, if last { Then::End } else { Then::Pause })
    }

    /// Sends a piece that is not the last. The caller calls [`Request::pause_body`] before it waits
    /// for the next.
    pub fn send_body_on(&mut self, chain: Chain) -> impl Future<Output = io::Result<()>> {
        self.send_body_then(chain, Then::More)
    }

    /// Tells that the next piece comes at an unknown time. With `flush`, bytes behind the filters are sent now. Bytes that
    /// filters keep stay there.
    pub async fn pause_body(&mut self, flush: bool) -> io::Result<()> {
        self.send_head_ahead()?;
        if std::mem::take(&mut self.output.filters.promised) && !self.response.header_only {
            Box::pin(self.send_filtered(Chain::new(), Then::Pause)).await?;
        }
        match flush {
            true => self.send_on(Then::Pause).await,
            false => self.flush_head().await,
        }
    }

    /// Sends pending output. Before a pause it does so if there is any of the body, for a flush also if there is only the head. A
    /// subrequest makes its parent do so.
    pub async fn send_on(&mut self, then: Then) -> io::Result<()> {
        match then {
            _ if !self.is_main() => self.urge_parent(then),
            Then::Flush => self.flush().await?,
            _ => self.flush_begun().await?,
        }
        Ok(())
    }

    /// As [`Request::send_body`], and tells what follows.
    async fn send_body_then(&mut self, chain: Chain, then: Then) -> io::Result<()> {
        // Most bodies go out at once. The state for a wait is allocated only if there is one.
        match self.send_body_now(chain, then)? {
            Begun::Sent => Ok(()),
            Begun::Unsent(unsent) => {
                Boxed::new(|| self.finish_unsent(unsent, then == Then::End)).await
            }
            Begun::Filtered(chain) => Boxed::new(|| self.send_filtered(chain, then)).await,
        }
    }

    fn send_body_now(&mut self, mut chain: Chain, then: Then) -> io::Result<Begun> {
        if let Some(cutter) = &mut self.output.cutter {
            chain = cutter.cut(chain)?;
        }
        let filtered = !self.output.filters.list.is_empty() || self.must_read(&chain);
        if self.is_main() && (!filtered || self.response.header_only) {
            let unsent = self.finish_now(chain, then == Then::End)?;
            return Ok(unsent.map_or(Begun::Sent, Begun::Unsent));
        }
        self.output.filters.promised = then == Then::More;
        Ok(Begun::Filtered(chain))
    }

    /// Sends all output that filters do not keep.
    pub async fn flush_body(&mut self) -> io::Result<()> {
        if !self.output.filters.list.is_empty() && !self.response.header_only {
            Box::pin(self.send_filtered(Chain::new(), Then::Flush)).await?;
        }
        self.send_on(Then::Flush).await
    }

    async fn send_filtered(&mut self, mut chain: Chain, then: Then) -> io::Result<()> {
        if self.response.header_only {
            return Ok(());
        }
        self.fill_empty_body(&mut chain, then == Then::End);
        let own = 0..self.output.filters.own;
        let small = self.output.filters.any_needs_memory(own.clone()) || self.must_read(&chain);
        loop {
            let piece = if small { self.next_piece(&mut chain).await? } else { take(&mut chain) };
            let then = if chain.is_empty() { then } else { Then::More };
            let piece = self.run_filters(own.clone(), piece, then).await?;
            self.send_queued().await?;
            self.deliver(piece, then).await?;
            if chain.is_empty() {
                return Ok(());
            }
        }
    }

    /// For a filter: sends a piece through the filters behind it, before its result.
    pub async fn send_ahead(&mut self, chain: Chain) -> io::Result<()> {
        self.send_ahead_then(chain, Then::More).await
    }

    /// The same for the last piece of a body, if another body follows.
    pub async fn send_last_ahead(&mut self, chain: Chain) -> io::Result<()> {
        self.send_ahead_then(chain, Then::Part).await
    }

    async fn send_ahead_then(&mut self, chain: Chain, then: Then) -> io::Result<()> {
        let running = self.output.filters.running;
        let behind = running + 1..self.output.filters.own;
        let piece = Box::pin(self.run_filters(behind, chain, then)).await?;
        if !piece.is_empty() {
            self.output.filters.queue.push_back(Part::Data(piece));
        }
        Ok(())
    }

    /// For a filter: inserts the body of a subrequest before its result.
    pub fn send_subrequest(&mut self, sub: Subrequest) {
        self.output.filters.queue.push_back(Part::Of(sub));
    }

    /// Sends the parts before the piece that filters process, and waits for subrequests among them.
    pub async fn send_queued(&mut self) -> io::Result<()> {
        while let Some(part) = self.output.filters.queue.pop_front() {
            match part {
                Part::Data(chain) => Box::pin(self.deliver(chain, Then::Pause)).await?,
                Part::Of(sub) => {
                    if !sub.has_more() {
                        self.prepare_to_wait().await?;
                    }
                    while let Some((chain, then)) = self.next_of(&sub).await? {
                        Box::pin(self.deliver(chain, then.max(Then::Pause))).await?;
                        if then > Then::More {
                            self.send_on(then).await?;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// The next piece of a subrequest's body. If the subrequest broke off, this request does so, too.
    async fn next_of(&mut self, sub: &Subrequest) -> io::Result<Option<(Chain, Then)>> {
        let next = sub.next().await;
        if next.is_err() {
            self.breaks_off_with(sub.broken_status());
        }
        next
    }

    /// For a filter that is about to wait: sends the parts of an unbuffered answer that are before the first queued
    /// subrequest.
    pub async fn send_unbuffered(&mut self) -> io::Result<()> {
        if !self.output.unbuffered {
            return Ok(());
        }
        while let Some(Part::Data(chain)) = self.output.filters.queue.front_mut() {
            let chain = take(chain);
            self.output.filters.queue.pop_front();
            Box::pin(self.deliver(chain, Then::Pause)).await?;
        }
        self.flush_delivered().await
    }

    async fn prepare_to_wait(&mut self) -> io::Result<()> {
        self.send_head_ahead()?;
        if self.output.unbuffered { self.flush_delivered().await } else { Ok(()) }
    }

    /// Sends all parts before the piece that filters process.
    pub async fn flush_delivered(&mut self) -> io::Result<()> {
        Box::pin(self.deliver(Chain::new(), Then::Flush)).await?;
        self.send_on(Then::Flush).await
    }

    /// Passes a piece on to the client, or to the parent request.
    async fn deliver(&mut self, mut chain: Chain, then: Then) -> io::Result<()> {
        if !self.is_main() {
            return self.give_to_parent(chain).await;
        }
        let whole = self.output.filters.own..self.output.filters.list.len();
        let small = self.output.filters.any_needs_memory(whole.clone()) || self.must_read(&chain);
        loop {
            let piece = if small { self.next_piece(&mut chain).await? } else { take(&mut chain) };
            let then = if chain.is_empty() { then } else { Then::More };
            let piece = self.run_filters(whole.clone(), piece, then).await?;
            self.finish(piece, then == Then::End).await?;
            if chain.is_empty() {
                return Ok(());
            }
        }
    }

    /// Whether files must be read here: for TLS over HTTP/1. Streams read files themselves.
    fn must_read(&self, chain: &Chain) -> bool {
        self.carrier.needs_files_in_memory(self.conn.is_tls())
            && chain.segments().any(|s| s.memory().is_none())
    }

    async fn run_filters(
        &mut self,
        which: Range<usize>,
        mut chain: Chain,
        then: Then,
    ) -> io::Result<Chain> {
        let outer = (self.output.filters.running, self.output.filters.then);
        for i in which {
            let slot = self.output.filters.list.get_mut(i);
            let Some(mut filter) = slot.and_then(Option::take) else { continue };
            (self.output.filters.running, self.output.filters.then) = (i, then);
            let (module, location) = (filter.module(), self.location);
            doing::note(PHASE, module, self.location);
            if self.output.filters.any_needs_memory(i..i + 1) {
                spend(u32::try_from(chain.len() / FILTERED).unwrap_or(u32::MAX));
            }
            let filtered = match filter.filter(self, chain, then == Then::End) {
                Filtered::Now(result) => result,
                Filtered::Later(future) => doing::noting(PHASE, module, location, future).await,
            };
            doing::note(SENDING, "", self.location);
            if let Some(slot) = self.output.filters.list.get_mut(i) {
                *slot = Some(filter);
            }
            chain = filtered?;
        }
        (self.output.filters.running, self.output.filters.then) = outer;
        Ok(chain)
    }

    /// Reads a piece of the chain into memory. Other tasks may run before the next piece.
    async fn next_piece(&mut self, chain: &mut Chain) -> io::Result<Chain> {
        let mut piece = Chain::new();
        while piece.len() < PIECE
            && let Some(segment) = chain.pop()
        {
            match segment {
                Segment::File { file, offset, len } => {
                    let want = len.min(PIECE - piece.len());
                    let buf = self.event_loop.handle.take_buf(want as usize);
                    let (read, mut buf) =
                        self.event_loop.handle.files().read_at(&file, buf, offset).await;
                    buf.truncate(read?.min(want as usize));
                    let read = buf.len() as u64;
                    if read == 0 {
                        let error = weir_engine::truncated(&file);
                        self.sending_failed(&error);
                        return Err(error);
                    }
                    chain.push_front(Segment::File {
                        file,
                        offset: offset + read,
                        len: len - read,
                    });
                    piece.push(buf);
                }
                memory => {
                    let mut bytes = into_bytes(memory);
                    let room = (PIECE - piece.len()) as usize;
                    if bytes.len() > room {
                        chain.push_front(bytes.split_off(room));
                    }
                    piece.push(bytes);
                }
            }
        }
        if !chain.is_empty() {
            breathe().await;
        }
        Ok(piece)
    }
}

fn take(chain: &mut Chain) -> Chain {
    std::mem::take(chain)
}

/// The bytes of a segment in memory, shared. Empty for a file.
pub fn into_bytes(segment: Segment) -> Bytes {
    match segment {
        Segment::Bytes(bytes) => bytes,
        Segment::Buf { buf, start } => {
            let mut bytes = Bytes::from(buf);
            bytes.split_off(start.min(bytes.len()))
        }
        Segment::File { .. } => Bytes::new(),
    }
}
