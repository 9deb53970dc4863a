//! One request: what the client asked, its server and location, and the answer so far. Handlers and filters get it as `&mut`.

pub mod begun;
pub mod cache_reason;
pub mod cached;
pub mod contexts;
pub mod family;
pub mod meaning;
pub mod origin;
pub mod passed;
pub mod pipe;
pub mod redirect;
pub mod step;
pub mod user_agent;

use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_proto::http1::{HeaderId, Method, RequestHead, RequestParser, Version};
use weir_proto::{Renew, Span};

use crate::address::Address;
use crate::answer::output::Output;
use crate::answer::response::Response;
use crate::body::Body;
use crate::carrier::{Carrier, Conn};
use crate::counts::cells::Processing;
use crate::event_loop::LoopState;
use crate::regex::Captures;
use crate::request::contexts::Contexts;
use crate::request::family::{Family, Sub};
use crate::site::content::Content;
use crate::site::location::Location;
use crate::site::settings::LocationConf;
use crate::site::{Server, Site};
use crate::variables::VariableValues;

/// One request, from its head's first byte to its log line.
pub struct Request {
    /// The connection that it came on.
    pub conn: Rc<Conn>,
    /// How it came, and how its answer goes.
    pub carrier: Carrier,
    /// The configuration: the newest when the request began.
    pub site: &'static Site,
    /// The server that the host name selected.
    pub server: &'static Server,
    /// The location that the path selected; the server's own settings before that.
    pub location: &'static Location,
    /// The handler of the last `if` that holds and names one.
    pub chosen_content: Option<&'static Content>,

    /// Bytes read: the head, and behind it what has been read of the body or of the next request.
    pub buf: Vec<u8>,
    /// Where things are in the head.
    pub parser: Box<RequestParser>,
    /// When the first byte of it was seen.
    pub started: Instant,
    /// Which request of its connection it is, from 1: `$connection_requests`.
    pub number: u64,

    /// The method, changed where an error page is asked for with GET.
    pub method: Method,
    /// What it speaks.
    pub version: Version,
    /// The path, decoded and normalised: `$uri`. Rewritten by `rewrite` and internal redirects.
    pub path: Vec<u8>,
    /// The query string: `$args`.
    pub args: Vec<u8>,
    /// The query string was set, and not sent by the client.
    pub(crate) args_set: bool,
    /// `$host`: lower case, without port; empty where none was sent.
    pub host: Vec<u8>,
    /// The path still is the one that the client sent, so that its own spelling may be passed on.
    pub unchanged_path: bool,
    /// `rewrite ... break` changed the path: it need not begin with the location's name any more.
    pub rewritten_in_place: bool,
    /// It has ended, and is being logged.
    pub is_logged: bool,
    /// The path came from within: `internal` locations may serve it.
    pub internal: bool,
    /// The path was changed by a rewrite, and a location must be looked for again.
    pub path_changed: bool,
    /// In a location with a regular expression and `alias`, `try_files` found a path below the alias.
    pub path_below_alias: bool,
    /// How many more times that may happen.
    pub path_changes_left: u8,
    /// Groups of the last regular expression.
    pub captures: Captures,
    /// Kept values of variables.
    pub values: VariableValues,
    /// States that modules keep for the request.
    pub contexts: Contexts,

    /// The client's body.
    pub body: Body,
    /// The answer's head.
    pub response: Box<Response>,
    /// The answer's way to the client.
    pub output: Box<Output>,
    /// The status that the client is told, whatever page stands for it; 0: the page's own.
    pub error_status: u16,
    /// An error page was looked for: there will be no other, unless `recursive_error_pages` says so.
    pub error_page: bool,
    /// What a handler of `satisfy any` has answered. Where another one leads to a location, this holds there, too.
    pub(crate) denied: Option<u16>,
    /// Another request may follow on the connection.
    pub keepalive: bool,
    /// Bytes of the head and body read.
    pub request_length: u64,
    /// Its first bytes came together with the request before.
    pub pipelined: bool,
    /// How long, at worst, one of its events waited for the loop.
    pub blocked: Duration,
    /// What it is counted as in progress under.
    pub(crate) processing: Processing,
    /// `set $limit_rate`: bytes a second, instead of the location's; 0 is no limit.
    pub limit_rate: Option<u64>,
    /// `limit_rate_after`, once it is evaluated.
    pub limit_rate_after: Option<u64>,
    /// What makes it a subrequest; `None` for a client's own request.
    pub sub: Option<Box<Sub>>,
    /// The location of the client's own request, when this subrequest of it began.
    pub main_location: Option<&'static Location>,
    /// What it shares with its subrequests, once it has or may have some.
    pub family: Option<Rc<Family>>,
    /// This loop's state. It owns the configuration that the other fields borrow from, so it is dropped last.
    pub event_loop: Rc<LoopState>,
}

/// How often the path may change: by rewrites, internal redirects and error pages. nginx: NGX_HTTP_MAX_URI_CHANGES.
const PATH_CHANGES: u8 = 11;

/// The room of an ended request, for the next one: buffers keep their capacity. It is handed from task to task,
/// so it is a pointer.
#[derive(Default)]
pub struct Scratch(Box<Room>);

#[derive(Default)]
struct Room {
    buf: Vec<u8>,
    parser: Box<RequestParser>,
    path: Vec<u8>,
    args: Vec<u8>,
    host: Vec<u8>,
    captures: Captures,
    values: VariableValues,
    response: Box<Response>,
    output: Box<Output>,
}

impl Request {
    /// An empty request on a connection, in the room of an earlier one.
    pub fn new(conn: Rc<Conn>, event_loop: Rc<LoopState>, scratch: Scratch) -> Request {
        let site = event_loop.site;
        let server = site.default_server(&conn);
        let Room { buf, parser, path, args, host, captures, values, response, output } = *scratch.0;
        Request {
            started: event_loop.handle.now(),
            number: 0,
            conn,
            carrier: Carrier::default(),
            event_loop,
            site,
            server,
            location: site.location(server.location),
            chosen_content: None,
            buf,
            parser,
            method: Method::Get,
            version: Version::Http11,
            path,
            args,
            args_set: false,
            host,
            unchanged_path: true,
            rewritten_in_place: false,
            is_logged: false,
            internal: false,
            path_changed: false,
            path_below_alias: false,
            path_changes_left: PATH_CHANGES,
            captures,
            values,
            contexts: Contexts::default(),
            body: Body::default(),
            response,
            output,
            error_status: 0,
            error_page: false,
            denied: None,
            keepalive: false,
            request_length: 0,
            pipelined: false,
            blocked: Duration::ZERO,
            processing: Processing::default(),
            limit_rate: None,
            limit_rate_after: None,
            sub: None,
            main_location: None,
            family: None,
        }
    }

    /// Makes ready for the connection's next request, in place: what was read of it stands first in `buf`, all else
    /// is as [`Request::new`] makes it.
    pub fn renew(&mut self) {
        let read = self.body.read_to();
        self.server = self.site.default_server(&self.conn);
        self.location = self.site.location(self.server.location);
        self.started = self.event_loop.handle.now();
        self.contexts.renew(|head| self.event_loop.handle.give_buf(head));
        let Request {
            conn: _,
            event_loop: _,
            site: _,
            server: _,
            location: _,
            chosen_content,
            started: _,
            number,
            carrier,
            buf,
            parser,
            method,
            version,
            path,
            args,
            args_set,
            host,
            unchanged_path,
            rewritten_in_place,
            is_logged,
            internal,
            path_changed,
            path_below_alias,
            path_changes_left,
            captures,
            values,
            contexts: _,
            body,
            response,
            output,
            error_status,
            error_page,
            denied,
            keepalive,
            request_length,
            pipelined,
            blocked,
            processing,
            limit_rate,
            limit_rate_after,
            sub,
            main_location,
            family,
        } = self;
        drain(buf, read);
        renew_room(parser, [path, args, host], captures, values, response, output);
        *chosen_content = None;
        (*method, *version) = (Method::Get, Version::Http11);
        (*unchanged_path, *rewritten_in_place, *internal) = (true, false, false);
        (*path_changed, *path_below_alias, *args_set) = (false, false, false);
        *is_logged = false;
        *path_changes_left = PATH_CHANGES;
        *body = Body::default();
        (*error_status, *error_page, *denied, *keepalive) = (0, false, None, false);
        (*request_length, *pipelined, *number) = (0, !buf.is_empty(), 0);
        (*blocked, *limit_rate, *limit_rate_after) = (Duration::ZERO, None, None);
        *processing = Processing::default();
        *carrier = Carrier::default();
        (*sub, *main_location, *family) = (None, None, None);
    }

    /// The request has begun: its connection has one more.
    pub fn count(&mut self) {
        self.number = self.conn.requests.get() + 1;
        self.conn.requests.set(self.number);
    }

    /// Ends the request and gives back its room as it is. It stays in its box, so that no move copies all of it.
    #[inline]
    pub fn into_scratch(self: Box<Self>) -> Scratch {
        let Request { buf, parser, path, args, host, captures, values, response, output, .. } =
            *self;
        let room = Room { buf, parser, path, args, host, captures, values, response, output };
        Scratch(Box::new(room))
    }

    /// The path is another one from now on.
    pub fn set_path(&mut self, path: &[u8]) {
        self.path.clear();
        self.path.extend_from_slice(path);
    }

    /// A client's own request, not one that was made for another one.
    pub fn is_main(&self) -> bool {
        self.sub.is_none()
    }

    /// Settings of the location.
    pub fn conf(&self) -> &'static LocationConf {
        &self.location.conf
    }

    /// The parsed head.
    pub fn head(&self) -> &RequestHead {
        self.parser.head()
    }

    /// Path and query as the client sent them, if nothing has changed them. `http://a?b` has none: its path is empty, and a
    /// server is asked for `/?b`.
    pub fn target_as_sent(&self) -> Option<&[u8]> {
        let head = self.head();
        (self.unchanged_path && !head.empty_path).then(|| head.target.of(&self.buf))
    }

    /// Bytes of the head.
    pub fn text(&self, span: Span) -> &[u8] {
        span.of(&self.buf)
    }

    /// The client's address, or the one that `realip` found behind it.
    pub fn peer(&self) -> &Address {
        self.contexts.realip.as_deref().unwrap_or(&self.conn.peer)
    }

    /// The method's name: as sent, or GET where a page from within is asked for.
    pub fn method_name(&self) -> &[u8] {
        let head = self.head();
        match self.method.name() {
            Some(name) if self.method != head.method => name.as_bytes(),
            _ => head.method_name.of(&self.buf),
        }
    }

    /// A page from within is asked for with GET, whatever the client's method was.
    pub fn ask_with_get(&mut self) {
        if self.method != Method::Head {
            self.method = Method::Get;
        }
    }

    /// The request line without its end; of a refused one, what was read of it.
    pub fn request_line(&self) -> &[u8] {
        let line = self.text(self.head().line);
        if !line.is_empty() {
            return line;
        }
        self.parser.logged_line(&self.buf)
    }

    /// The first header of a well-known name.
    pub fn header(&self, id: HeaderId) -> Option<&[u8]> {
        self.head().header(id).map(|h| h.value.of(&self.buf))
    }

    /// The first header of any name.
    pub fn header_named(&self, name: &[u8]) -> Option<&[u8]> {
        self.headers().find(|(n, _)| n.eq_ignore_ascii_case(name)).map(|(_, v)| v)
    }

    /// All headers, as they came: name, value.
    pub fn headers(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.head().headers.iter().map(|h| (h.name.of(&self.buf), h.value.of(&self.buf)))
    }

    /// The error log of the location. A subrequest has that of the client's own request, as in nginx.
    pub fn error_log(&self) -> &Arc<weir_log::Log> {
        let of_client = self.sub.as_ref().and_then(|sub| sub.error_log.as_ref());
        of_client.unwrap_or(&self.conf().core.error_log)
    }

    /// Writes to the error log, with what nginx adds: client, server, request, host, referrer.
    pub fn log(&self, level: weir_log::Level, text: std::fmt::Arguments<'_>) {
        let log = self.error_log();
        if !log.enabled(level) || self.contexts.is_silent {
            return;
        }
        let mut line = weir_log::message(text);
        self.describe(&mut line);
        log.write(level, Some(self.conn.number), format_args!("{line}"));
    }

    /// Appends what the error log is told of the request.
    pub fn describe(&self, line: &mut String) {
        use std::fmt::Write;
        let _ = write!(line, ", client: {}, server: {}", self.peer().host(), self.server.name());
        let request = self.parser.logged_line(&self.buf);
        if !request.is_empty() {
            let _ = write!(line, ", request: \"{}\"", weir_log::Bytes(request));
        }
        if self.sub.as_ref().is_some_and(|sub| !sub.own) {
            let _ = write!(line, ", subrequest: \"{}\"", weir_log::Bytes(&self.path));
        }
        self.contexts.upstream.describe(line);
        if let Some(host) = self.header(HeaderId::Host) {
            let _ = write!(line, ", host: \"{}\"", weir_log::Bytes(host));
        }
        if let Some(referer) = self.header(HeaderId::Referer) {
            let _ = write!(line, ", referrer: \"{}\"", weir_log::Bytes(referer));
        }
    }
}

impl Scratch {
    /// The room for a head: where things are, and its text.
    pub fn head(&mut self) -> (&mut RequestParser, &mut Vec<u8>) {
        (&mut self.0.parser, &mut self.0.buf)
    }

    /// Makes the room as new, whatever was done in it: each part is replaced, and only memory stays, within bounds.
    pub fn renew(&mut self) {
        let Room { buf, parser, path, args, host, captures, values, response, output } =
            &mut *self.0;
        buf.renew();
        renew_room(parser, [path, args, host], captures, values, response, output);
    }

    /// Takes over what was read of the next request before.
    pub fn fill(&mut self, read: Vec<u8>) {
        let buf = &mut self.0.buf;
        if !read.is_empty() {
            *buf = read;
        } else if buf.capacity() == 0 {
            *buf = read;
            buf.renew();
        }
    }
}

/// What a room holds beside the bytes that were read.
fn renew_room(
    parser: &mut RequestParser,
    texts: [&mut Vec<u8>; 3],
    captures: &mut Captures,
    values: &mut VariableValues,
    response: &mut Response,
    output: &mut Output,
) {
    parser.renew();
    texts.into_iter().for_each(Renew::renew);
    captures.renew();
    values.renew();
    response.renew();
    output.renew();
}

/// What was read of a request is gone; behind it the next one's begins.
fn drain(buf: &mut Vec<u8>, read: usize) {
    if read >= buf.len() {
        buf.renew();
    } else {
        buf.drain(..read);
    }
}
