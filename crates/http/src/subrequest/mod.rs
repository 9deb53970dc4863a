//! Subrequests: their responses become parts of another response, are examined or discarded. nginx:
//! ngx_http_subrequest, ngx_http_postpone_filter_module.
//!
//! A subrequest is a [`Request`] of its own, with the head, body and variables of its parent. If
//! its body becomes a part of the parent's response, it runs as a task and fills a [`Pipe`]. It
//! ends with its parent.

use std::io;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::{Chain, Either, Segment, either};
use weir_log::Level;
use weir_proto::http1::{Method, RequestParser};

use crate::answer::change::set_request;
use crate::answer::filters::{Then, into_bytes};
use crate::phases::{self, Step};
use crate::request::begun::Begun;
use crate::request::family::{Counted, DEPTH, Family, Sink, Stub, Sub};
use crate::request::pipe::{Ending, PIPE, Pipe, Subrequest};
use crate::request::{Request, Scratch};

mod capture;
mod post_action;
mod shared;

pub use capture::Capture;

/// The most concurrent subrequests of a main request. nginx allows 64535.
const MOST: u32 = 4096;

/// Making subrequests.
impl Request {
    /// Starts a subrequest whose body becomes a part of this request's response: see
    /// [`Request::send_subrequest`]. `None` if subrequests are nested too deeply or there are too
    /// many. That is logged.
    pub fn include(&mut self, path: &[u8], args: &[u8], stub: Option<Stub>) -> Option<Subrequest> {
        let pipe = Rc::new(Pipe::default());
        let mut sr = self.subrequest(path, args, Sink::Parent(pipe.clone()))?;
        if let Some(sub) = &mut sr.sub {
            sub.stub = stub;
        }
        Some(start(sr, pipe))
    }

    /// The same with another method, and optionally with a body.
    pub fn include_by(
        &mut self,
        method: Method,
        path: &[u8],
        args: &[u8],
        body: Option<Vec<u8>>,
    ) -> Option<Subrequest> {
        let pipe = Rc::new(Pipe::default());
        let mut sr = self.subrequest(path, args, Sink::Parent(pipe.clone()))?;
        sr.method = method;
        if let Some(body) = body {
            set_request(&mut sr, b"Content-Length", &[body.len().to_string().into_bytes()]);
            sr.body.replace(body.into());
        }
        Some(start(sr, pipe))
    }

    /// Starts a subrequest that runs this request's content handler again: see
    /// [`Request::send_subrequest`].
    pub fn ask_again(&mut self, prepare: impl FnOnce(&mut Request)) -> Option<Subrequest> {
        let pipe = Rc::new(Pipe::default());
        let mut sr = self.repeated(Sink::Parent(pipe.clone()))?;
        prepare(&mut sr);
        Some(start(sr, pipe))
    }

    /// The same as a captured subrequest, with a maximum length of the body.
    pub fn capture_again(&mut self, limit: u64) -> Option<Capture> {
        let mut sr = self.repeated(Sink::Value { body: Vec::new(), limit, whole: false })?;
        if sr.method == Method::Head {
            // Only the body tells the length that the caller's response will have.
            sr.method = Method::Get;
        }
        Some(Capture(Box::new(sr)))
    }

    fn repeated(&mut self, sink: Sink) -> Option<Request> {
        let (path, args) = (self.path.clone(), self.args.clone());
        let mut sr = self.subrequest(&path, &args, sink)?;
        if let Some(sub) = &mut sr.sub {
            sub.clone = true;
        }
        (sr.method, sr.location) = (self.method, self.location);
        sr.unchanged_path = self.unchanged_path;
        sr.rewritten_in_place = self.rewritten_in_place;
        sr.captures = self.captures.clone();
        Some(sr)
    }

    /// Starts a subrequest with this request's method, without waiting for its response. The main
    /// request waits for it at its end.
    pub fn copy_to(&mut self, path: &[u8], args: &[u8]) -> bool {
        let Some(mut sr) = self.subrequest(path, args, Sink::Nowhere) else { return false };
        sr.method = self.method;
        sr.response.header_only = true;
        if let Some(sub) = &mut sr.sub {
            sub.detached = true;
        }
        let sub = start(sr, Rc::default());
        self.leave_in_background(sub);
        true
    }

    /// Runs a subrequest for the head of its response. `None` if there was none.
    pub async fn ask(&mut self, path: &[u8], args: &[u8]) -> Option<Box<Request>> {
        let mut sr = Box::new(self.subrequest(path, args, Sink::Nowhere)?);
        sr.response.header_only = true;
        sr.body = self.body.for_subrequest_without();
        let in_order = run(&mut sr).await;
        if !in_order {
            self.breaks_off_with(sr.response.status);
        }
        in_order.then_some(sr)
    }

    /// Prepares a captured subrequest.
    pub fn capture(&mut self, path: &[u8], args: &[u8]) -> Option<Capture> {
        let sink = Sink::Value { body: Vec::new(), limit: u64::MAX, whole: false };
        self.subrequest(path, args, sink).map(|sr| Capture(Box::new(sr)))
    }

    /// Runs a subrequest and returns its response. `None` if a subrequest is not possible here.
    pub async fn fetch(&mut self, path: &[u8], args: &[u8]) -> Option<io::Result<Fetched>> {
        let sink = Sink::Memory { body: Vec::new(), limit: 0 };
        let mut sr = Box::new(self.subrequest(path, args, sink)?);
        let in_order = run(&mut sr).await;
        let status = sr.response.status;
        if !in_order {
            self.breaks_off_with(status);
        }
        Some(match sr.sub.take().map(|sub| sub.sink) {
            Some(Sink::Memory { body, .. }) if in_order => Ok(Fetched { status, body }),
            _ => Err(io::ErrorKind::ConnectionAborted.into()),
        })
    }

    fn subrequest(&mut self, path: &[u8], args: &[u8], sink: Sink) -> Option<Request> {
        let depth = self.sub.as_ref().map_or(DEPTH, |sub| sub.depth);
        if depth == 0 {
            let path = weir_log::Bytes(path);
            let doing = self.doing();
            let text = format_args!("subrequests cycle while processing \"{path}\"{doing}");
            self.log(Level::Error, text);
            return None;
        }
        if self.sub.as_ref().is_some_and(|sub| matches!(sub.sink, Sink::Memory { .. })) {
            let path = weir_log::Bytes(path);
            self.log(Level::Error, format_args!("nested in-memory subrequest \"{path}\""));
            return None;
        }
        let family = self.family();
        if family.live.get() >= MOST {
            let path = weir_log::Bytes(path);
            let text = "request reference counter overflow while processing";
            self.log(Level::Crit, format_args!("{text} \"{path}\""));
            return None;
        }
        let counted = Counted::new(family.clone());
        let mut sr = Request::new(self.conn.clone(), self.event_loop.clone(), Scratch::default());
        sr.carrier = self.carrier.clone();
        sr.number = self.number;
        sr.server = self.server;
        sr.location = self.site.location(self.server.location);
        sr.main_location = Some(self.main_location.unwrap_or(self.location));
        let mut head = self.head().clone();
        sr.buf = self.buf.get(..head.end as usize).unwrap_or_default().to_vec();
        (head.quoted, head.plus) = (false, false);
        *sr.parser = RequestParser::with_head(head);
        sr.body = self.body.for_subrequest();
        sr.version = self.version;
        sr.method = Method::Get;
        sr.host = self.host.clone();
        (sr.path, sr.args) = (path.to_vec(), args.to_vec());
        (sr.internal, sr.unchanged_path) = (true, false);
        sr.values = self.values.share();
        sr.contexts = self.contexts.for_subrequest();
        sr.family = Some(family);
        let charset = match &self.sub {
            Some(sub) => sub.charset.clone(),
            None => self.response.charset.clone(),
        };
        sr.sub = Some(Box::new(Sub {
            sink,
            depth: depth - 1,
            stub: None,
            clone: false,
            own: false,
            detached: false,
            pageless: false,
            method: self.main_method().to_vec(),
            charset,
            error_log: Some(self.error_log().clone()),
            _counted: counted,
        }));
        Some(sr)
    }

    /// The state that this request shares with its subrequests.
    pub fn family(&mut self) -> Rc<Family> {
        self.family.get_or_insert_with(Rc::default).clone()
    }

    /// Adds a subrequest whose response is discarded. This request may end before it, the main
    /// request may not.
    pub fn leave_in_background(&mut self, sub: Subrequest) {
        self.family().background.borrow_mut().push(sub);
    }

    /// Whether there are subrequests whose responses are discarded.
    pub fn has_background(&self) -> bool {
        self.family.as_ref().is_some_and(|family| !family.background.borrow().is_empty())
    }

    /// Waits until the subrequests whose responses are discarded have ended.
    pub async fn join_background(&mut self) {
        let family = self.family();
        let next = || family.background.borrow_mut().pop();
        while let Some(sub) = next() {
            while let Ok(Some(_)) = sub.next().await {}
        }
    }
}

/// Functions of subrequests.
impl Request {
    /// Whether the access phase already ran for the main request, so that it is skipped here.
    pub fn skips_access(&self) -> bool {
        self.sub.as_ref().is_some_and(|sub| !sub.own)
    }

    /// Whether it continues after the client has disconnected.
    pub fn is_detached(&self) -> bool {
        self.sub.as_ref().is_some_and(|sub| sub.detached)
    }

    /// Whether its body may end too early without ending the parent's response. A slice must be
    /// complete, since the position of its bytes is fixed.
    pub fn may_break_off(&self) -> bool {
        let Some(sub) = &self.sub else { return false };
        !sub.clone && matches!(sub.sink, Sink::Parent(_) | Sink::Memory { .. })
    }

    /// The method of the main request.
    pub fn main_method(&self) -> &[u8] {
        match &self.sub {
            Some(sub) => &sub.method,
            None => self.method_name(),
        }
    }

    /// Passes a piece of a subrequest's body to its destination.
    pub async fn give_to_parent(&mut self, mut chain: Chain) -> io::Result<()> {
        let Some(sub) = &mut self.sub else { return Ok(()) };
        if !chain.is_empty() {
            sub.stub = None;
        }
        match &mut sub.sink {
            Sink::Nowhere => Ok(()),
            Sink::Parent(_) if chain.is_empty() => Ok(()),
            Sink::Parent(pipe) => {
                let pipe = pipe.clone();
                pipe.write(chain).await
            }
            Sink::Memory { .. } | Sink::Value { .. } => {
                self.expect_memory()?;
                while let Some(segment) = chain.pop() {
                    self.keep_in_memory(segment).await?;
                }
                Ok(())
            }
        }
    }

    /// Makes the parent send the body that it was given.
    pub fn urge_parent(&self, then: Then) {
        if let Some(Sub { sink: Sink::Parent(pipe), .. }) = self.sub.as_deref() {
            pipe.urge(then);
        }
    }

    /// Sets the limit for a body in memory, which is that of the location that answers.
    fn expect_memory(&mut self) -> io::Result<()> {
        let most = self.conf().core.subrequest_output_buffer_size;
        let announced = self.response.content_length;
        let Some(Sub { sink: Sink::Memory { limit, .. }, .. }) = self.sub.as_deref_mut() else {
            return Ok(());
        };
        *limit = announced.unwrap_or(most);
        if *limit > most {
            let limit = *limit;
            self.log(Level::Error, format_args!("too big subrequest response: {limit}"));
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        Ok(())
    }

    async fn keep_in_memory(&mut self, segment: Segment) -> io::Result<()> {
        let Segment::File { file, mut offset, len } = segment else {
            return self.keep_bytes(&into_bytes(segment));
        };
        let (end, mut buf) = (offset.saturating_add(len), Vec::new());
        while offset < end {
            buf.clear();
            buf.reserve_exact((end - offset).min(PIPE) as usize);
            let (read, back) = self.event_loop.handle.files().read_at(&file, buf, offset).await;
            buf = back;
            if read? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            buf.truncate((end - offset) as usize);
            self.keep_bytes(&buf)?;
            offset += buf.len() as u64;
        }
        Ok(())
    }

    fn keep_bytes(&mut self, bytes: &[u8]) -> io::Result<()> {
        let (body, limit) = match self.sub.as_deref_mut().map(|sub| &mut sub.sink) {
            Some(Sink::Memory { body, limit }) => (body, *limit),
            Some(Sink::Value { body, limit, .. }) => (body, *limit),
            _ => return Ok(()),
        };
        if (body.len() + bytes.len()) as u64 > limit {
            self.log(Level::Error, format_args!("too big subrequest response"));
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        body.extend_from_slice(bytes);
        Ok(())
    }

    /// At the end of an empty body, appends the stub of the subrequest.
    pub fn fill_empty_body(&mut self, chain: &mut Chain, last: bool) {
        let Some(sub) = &mut self.sub else { return };
        if !chain.is_empty() {
            sub.stub = None;
        } else if last && let Some(stub) = sub.stub.take() {
            for bytes in stub.body {
                chain.push(bytes);
            }
        }
    }

    /// Ends this request because a subrequest broke off with this status. If the client was the
    /// cause, and nothing of the response was sent, the log line has that status.
    pub fn breaks_off_with(&mut self, status: u16) {
        self.keepalive = false;
        if self.output.sent == 0 && matches!(status, 408 | 444 | 499) {
            self.response.status = status;
        }
    }

    /// Whether a status ends the request without an error page.
    pub fn is_pageless(&self) -> bool {
        self.sub.as_ref().is_some_and(|sub| sub.pageless)
    }

    /// Replaces the error page of a failed subrequest by its stub, if it has one.
    pub fn stub_for(&mut self, step: Step) -> Step {
        if self.sub.is_none() || !matches!(step, Step::Status(_)) || self.response.sent {
            return step;
        }
        let Some(stub) = self.sub.as_mut().and_then(|sub| sub.stub.take()) else { return step };
        self.response.forget_body();
        self.response.content_type = stub.content_type;
        Step::Respond(Bytes::from(stub.body.concat()))
    }
}

fn start(mut sr: Request, pipe: Rc<Pipe>) -> Subrequest {
    let handle = sr.event_loop.handle.clone();
    let sub = Subrequest::reads(pipe.clone());
    handle.spawn(async move {
        let mut ending = Ending::of(pipe);
        match either(run(&mut sr), ending.abandoned()).await {
            Either::Left(true) => ending.is_in_order(),
            Either::Left(false) => ending.breaks_off_with(sr.response.status),
            Either::Right(()) => {}
        }
        drop(sr);
        drop(ending);
    });
    sub
}

/// Runs all phases of a subrequest.
async fn run(sr: &mut Request) -> bool {
    let logged = Logged(sr);
    let sr = &mut *logged.0;
    match sr.sub.as_ref().is_some_and(|sub| sub.clone) {
        true => phases::serve_clone(sr).await,
        false => phases::serve_subrequest(sr).await,
    }
}

/// A subrequest that has begun. With `log_subrequest`, the log phase runs when this is dropped.
struct Logged<'r>(&'r mut Request);

impl Drop for Logged<'_> {
    fn drop(&mut self) {
        if self.0.conf().core.log_subrequest {
            drop(Begun(self.0));
        }
    }
}

/// A response in memory.
pub struct Fetched {
    /// The status.
    pub status: u16,
    /// The body.
    pub body: Vec<u8>,
}
