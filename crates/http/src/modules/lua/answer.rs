//! Collects what scripts write to the client, and sends it when they yield or end.

use std::cell::Cell;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use weir_engine::Chain;
use weir_proto::http1::{Method, Version};

use super::anchors::Anchor;
use super::conf::CONF;
use super::socket::{BodySocket, OwnSockets, Socket};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;

/// What a request keeps for its scripts.
#[derive(Default)]
pub struct Context {
    /// `ngx.ctx`
    pub ctx: Option<Anchor>,
    /// `ngx.on_abort`
    pub on_abort: Option<Anchor>,
    /// Written but not sent.
    pending: Vec<u8>,
    /// Whether a script has written anything of the body.
    has_body: bool,
    /// The whole answer is held back until its end, so that an HTTP/1.0 client gets its length.
    whole: bool,
    /// Whether `ngx.eof` was called.
    eof: bool,
    /// Whether sending failed: the client is gone, or a filter refused the answer.
    broken: bool,
    /// Whether a script removed the type of the answer. No default is set then.
    pub typeless: bool,
    /// The step of a filter that refused the head. The request ends with it.
    refused: Option<Step>,
    /// Sockets that close with the request, unless they are kept alive.
    pub sockets: OwnSockets,
    /// The socket from which a script reads the body. Nothing else reads it then.
    pub body_socket: Option<Rc<BodySocket>>,
    /// The client's connection that a script took over. Nothing else answers then.
    raw_socket: Option<Rc<Socket>>,
    /// The number of subrequests that its scripts wait for.
    captures: Rc<Cell<usize>>,
    /// Whether a header filter's script has ended the request. It does not run again for the error
    /// page.
    pub filter_exited: bool,
}

impl Drop for Context {
    fn drop(&mut self) {
        if let Some(socket) = &self.raw_socket {
            socket.close();
        }
        if let Some(body) = &self.body_socket {
            body.end();
        }
    }
}

impl Context {
    /// Counts a script that waits for subrequests, as long as the result lives.
    pub fn capture(&self) -> PendingCapture {
        self.captures.set(self.captures.get() + 1);
        PendingCapture(self.captures.clone())
    }

    /// Refuses to end a request whose script waits for subrequests.
    pub fn may_abort(&self) -> Result<(), &'static str> {
        match self.captures.get() {
            0 => Ok(()),
            _ => Err("attempt to abort with pending subrequests"),
        }
    }

    /// Drops what was written, since another page is the answer.
    pub fn forget_output(&mut self) {
        self.pending.clear();
        (self.whole, self.typeless) = (false, false);
    }
}

/// Counts a script that waits for subrequests.
pub struct PendingCapture(Rc<Cell<usize>>);

impl Drop for PendingCapture {
    fn drop(&mut self) {
        self.0.set(self.0.get().saturating_sub(1));
    }
}

/// What scripts keep with the request.
pub(super) static CONTEXT: ContextKey<Context> = ContextKey::passing();

/// The request's context, created if it is missing.
pub fn context(r: &mut Request) -> &mut Context {
    CONTEXT.or_insert_with(&mut r.contexts, Context::default)
}

/// Whether a script has begun the answer. It may be held back for its length, or a filter may have
/// refused its head, so that nothing was sent yet.
pub fn is_begun(r: &Request) -> bool {
    let is_kept = |context: &Context| context.whole || context.refused.is_some();
    r.response.sent || CONTEXT.of(&r.contexts).is_some_and(is_kept)
}

/// `ngx.req.socket(true)`: the script alone sends to the client and receives from it. What was
/// written before is sent first.
pub async fn take_over(r: &mut Request) -> Result<Rc<Socket>, &'static str> {
    if context(r).whole {
        return Err("http 1.0 buffering");
    }
    if context(r).raw_socket.is_some() {
        return Err("duplicate call");
    }
    if r.body.is_half_read() {
        return Err("pending request body reading in some other thread");
    }
    if r.response.sent {
        let sent = send_pending(r, false).await.is_ok() && r.flush_body().await.is_ok();
        sent.then_some(()).ok_or("client aborted")?;
    }
    (r.response.sent, r.keepalive) = (true, false);
    r.conn.set_nodelay(r.conf().core.tcp_nodelay);
    let conf = CONF.of(r.conf());
    let times = (conf.connect_timeout, conf.send_timeout, conf.read_timeout);
    let unread = r.take_unread();
    let socket =
        Rc::new(Socket::of_client((r.conn.clone(), conf.check_client_abort), unread, times));
    context(r).raw_socket = Some(socket.clone());
    Ok(socket)
}

/// Whether a script has taken over the client's connection.
pub fn is_taken_over(r: &Request) -> bool {
    CONTEXT.of(&r.contexts).is_some_and(|context| context.raw_socket.is_some())
}

/// Why nothing that a script writes can be sent, if so.
fn obstacle(context: &Context) -> Result<(), &'static str> {
    match context {
        Context { raw_socket: Some(_), .. } => Err("raw request socket acquired"),
        Context { eof: true, .. } => Err("seen eof"),
        Context { broken: true, .. } => Err("nginx output filter error"),
        _ => Ok(()),
    }
}

/// Why no body can be sent, if so.
fn obstacle_to_body(r: &mut Request) -> Result<(), &'static str> {
    let has_no_body = r.response.header_only && r.response.sent;
    let context = context(r);
    if has_no_body && context.raw_socket.is_none() {
        return Err("header only");
    }
    obstacle(context)
}

/// `ngx.print`
pub fn print(r: &mut Request, bytes: &[u8]) -> Result<(), &'static str> {
    obstacle_to_body(r)?;
    let keeps = r.version < Version::Http11 && CONF.of(r.conf()).http10_buffering;
    // The head of an answer without a body waits for nothing.
    let has_body = !r.response.header_only && r.method != Method::Head;
    if keeps && has_body && !is_begun(r) && r.response.content_length.is_none() {
        context(r).whole = true;
        set_status(r);
    }
    send_head(r)?;
    if !(r.response.header_only && r.response.sent) {
        let context = context(r);
        context.has_body |= !bytes.is_empty();
        context.pending.extend_from_slice(bytes);
    }
    Ok(())
}

/// Sets the status to 200 if the script has set none.
fn set_status(r: &mut Request) {
    if r.response.status == 0 {
        r.response.status = 200;
    }
}

/// Sends the head, unless it was sent or is held back with the body.
pub fn send_head(r: &mut Request) -> Result<(), &'static str> {
    if r.response.sent || context(r).whole {
        return Ok(());
    }
    if context(r).refused.is_some() {
        return Err("the response head was refused");
    }
    set_status(r);
    let has_type = r.response.status != 304 && !context(r).typeless;
    if CONF.of(r.conf()).use_default_type && has_type {
        r.set_content_type();
    }
    match r.send_head() {
        Ok(()) => Ok(()),
        Err(step) => {
            context(r).refused = Some(step);
            Err("the response head was refused")
        }
    }
}

/// Sends what was written, if there is enough of it (`postpone_output`).
pub async fn push(r: &mut Request) -> Result<(), ()> {
    let least = r.conf().core.postpone_output;
    let Some(context) = CONTEXT.change(&mut r.contexts) else { return Ok(()) };
    if context.whole || context.pending.is_empty() || (context.pending.len() as u64) < least {
        return Ok(());
    }
    send_pending(r, false).await.map_err(|_| ())
}

/// A failing subrequest sends what was written to its parent.
pub async fn send_to_parent(r: &mut Request) {
    if !r.is_main() {
        // The subrequest fails in any case.
        let _ = send_pending(r, false).await;
    }
}

/// `ngx.flush`
pub async fn flush(r: &mut Request, waits: bool) -> Result<(), &'static str> {
    obstacle_to_body(r)?;
    let context = context(r);
    if context.whole {
        return Err("buffering");
    }
    if !(context.has_body || waits) || !r.response.sent {
        return Err("nothing to flush");
    }
    send_pending(r, false).await.map_err(unsent)?;
    r.flush_body().await.map_err(unsent)
}

/// `ngx.eof`
pub async fn eof(r: &mut Request) -> Result<(), &'static str> {
    obstacle(context(r))?;
    end(r).await.map_err(|_| "client aborted")
}

/// Sends what was written and ends the answer.
pub async fn finish(r: &mut Request) -> Step {
    match end(r).await {
        Ok(()) => Step::Sent,
        Err(step) => step,
    }
}

async fn end(r: &mut Request) -> Result<(), Step> {
    let context = context(r);
    if context.eof {
        return Ok(());
    }
    if let Some(socket) = &context.raw_socket {
        let sent = socket.sent();
        socket.close();
        context.eof = true;
        r.output.sent += sent;
        return Ok(());
    }
    if std::mem::take(&mut context.whole) {
        let length = context.pending.len() as u64;
        r.response.content_length = Some(length);
    }
    if send_head(r).is_err() {
        let context = self::context(r);
        context.forget_output();
        return Err(context.refused.take().unwrap_or(Step::Abort));
    }
    self::context(r).eof = true;
    send_pending(r, true).await.map_err(|_| Step::Abort)
}

async fn send_pending(r: &mut Request, last: bool) -> io::Result<()> {
    let pending = std::mem::take(&mut context(r).pending);
    let mut chain = Chain::new();
    if !pending.is_empty() {
        chain.push(Bytes::from(pending));
    }
    let sent = r.send_body(chain, last).await;
    if sent.is_err() {
        context(r).broken = true;
    }
    sent
}

/// The error of a failed send, as scripts get it.
fn unsent(error: io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::TimedOut => "timeout",
        _ => "client aborted",
    }
}
