//! Reads the head of a request, and what may precede the first one: a PROXY protocol header, or HTTP/2's preface.

use std::io;
use std::time::Instant;

use weir_log::{Cause, Level};
use weir_proto::Renew;
use weir_proto::http1::{HeadError, HeadLimits, HeadProgress, Version};
use weir_tls::ProxyHeaderError;
use weir_upstream::fault::failed;

use super::CLOSED;
use crate::carrier::{Conn, LEFT, TIMED_OUT};
use crate::http2::{self, Greeting};
use crate::request::Request;
use crate::request::meaning::{self, Unselected};

/// The initial size of the buffer. Most heads fit, with what a pipelining client sends behind them.
pub const FIRST_READ: usize = 4096;

/// The result of reading a head.
pub enum Head {
    /// The head is complete.
    Read,
    /// The head is malformed. The answer has this status.
    Refused(u16),
    /// There is no answer: the client is gone or too slow, or no server could be selected. The log line has this status. 0: no
    /// request had begun, and there is no line.
    Over(u16),
    /// The client has sent HTTP/2's preface.
    Http2,
    /// The head has begun, and a newer configuration serves the requests that begin now.
    Replaced,
}

/// Reads the head of the next request.
pub async fn read(r: &mut Request) -> Head {
    let conn = r.conn.clone();
    let several = !r.site.is_single(&conn);
    let (mut deadline, mut begun) = (None, false);
    if conn.requests.get() == 0
        && conn.tls.is_none()
        && r.site.protocols(&conn).proxy_protocol
        && !read_proxy_header(r, &conn, &mut deadline).await
    {
        return Head::Over(0);
    }
    if conn.requests.get() == 0 && speaks_http2(r) {
        match greets_in_http2(r, &conn, &mut deadline).await {
            Ok(true) => return Head::Http2,
            Ok(false) => {}
            Err(error) => return silent(r, &error),
        }
    }
    loop {
        if !r.buf.is_empty() {
            let limits = HeadLimits { pause_at_server: several, ..r.server.conf.head_limits };
            match r.parser.parse(&r.buf, &limits) {
                Ok(HeadProgress::Server) => {
                    if let Err(why) = meaning::select_server(r) {
                        return unselected(r, why);
                    }
                    continue;
                }
                Ok(HeadProgress::Done) => {
                    conn.wire().set_deadline(None);
                    if (!several || r.parser.head().server.is_none())
                        && let Err(why) = meaning::select_server(r)
                    {
                        return unselected(r, why);
                    }
                    r.body.starts_at(r.parser.head().end as usize);
                    meaning::accept(r);
                    meaning::tell_dropped(r);
                    return Head::Read;
                }
                Ok(HeadProgress::More) if r.parser.blank() => {
                    // The number of blank lines before a request is not limited, so they are not kept. A client that sends them
                    // without a pause is never waited for. It still has no more than the time of a head.
                    begun = true;
                    r.buf.clear();
                    r.parser.renew();
                    if r.event_loop.handle.now_or_later() >= until(r, &mut deadline) {
                        return cut(r, io::ErrorKind::TimedOut.into(), begun);
                    }
                }
                Ok(HeadProgress::More) => {}
                Err(error) => return refused(r, &error),
            }
        }
        begun |= !r.buf.is_empty();
        match read_more(r, &conn, &mut deadline).await {
            Ok(0) => return cut(r, io::ErrorKind::UnexpectedEof.into(), begun),
            // Only with TLS: without it a connection is parked until its first bytes are there.
            Ok(_) if !begun && conn.is_tls() && r.event_loop.is_replaced() => {
                return Head::Replaced;
            }
            Ok(_) => {}
            Err(error) => return cut(r, error, begun),
        }
    }
}

/// The connection has ended within a head.
fn cut(r: &mut Request, error: io::Error, begun: bool) -> Head {
    if !begun {
        return silent(r, &error);
    }
    r.request_length = r.parser.lines_len() as u64;
    if r.parser.line_parsed() {
        meaning::take_line(r);
    }
    match error.kind() {
        io::ErrorKind::TimedOut => {
            r.log(Level::Info, format_args!("{TIMED_OUT} while {}", reading(r)));
            r.conn.timed_out(r.conf().core.reset_timedout_connection);
            Head::Over(408)
        }
        io::ErrorKind::UnexpectedEof => {
            r.log(Level::Info, format_args!("{LEFT} while {}", reading(r)));
            Head::Over(400)
        }
        _ => {
            r.log(Level::Info, format_args!("{} while {}", lost(&error), reading(r)));
            Head::Over(400)
        }
    }
}

/// The log message for a connection that failed.
pub fn lost(error: &io::Error) -> String {
    failed("recv()", error)
}

/// The connection has ended before any byte of a request.
fn silent(r: &mut Request, error: &io::Error) -> Head {
    let (conn, timed_out) = (&r.conn, error.kind() == io::ErrorKind::TimedOut);
    if conn.requests.get() == 0 {
        let what = match error.kind() {
            io::ErrorKind::TimedOut => TIMED_OUT.into(),
            io::ErrorKind::UnexpectedEof => CLOSED.into(),
            _ => lost(error),
        };
        let text = format_args!("{what} while waiting for request");
        conn.log(r.site, &r.conf().core.error_log, Level::Info, text);
    } else if !timed_out {
        let cause = match error.kind() {
            io::ErrorKind::UnexpectedEof => String::new(),
            _ => format!(" {}", Cause(error)),
        };
        let client = conn.peer.host();
        let text = format_args!("client {client} closed keepalive connection{cause}");
        r.conf().core.error_log.write(Level::Info, Some(conn.number), text);
    }
    if timed_out {
        conn.timed_out(r.conf().core.reset_timedout_connection);
    }
    Head::Over(0)
}

/// No server could be selected. The connection is closed without an answer.
fn unselected(r: &mut Request, why: Unselected) -> Head {
    meaning::take_line(r);
    match why {
        Unselected::Undecided => Head::Over(500),
        Unselected::Misdirected => {
            r.request_length = r.parser.lines_len() as u64;
            r.body.refused(r.buf.len(), true);
            Head::Refused(421)
        }
    }
}

/// Whether this port speaks HTTP/2 without TLS.
fn speaks_http2(r: &Request) -> bool {
    r.conn.tls.is_none() && (r.conf().core.http2.enabled || r.site.protocols(&r.conn).http2)
}

/// Whether the first bytes are HTTP/2's preface. An error if the connection ends within it.
async fn greets_in_http2(
    r: &mut Request,
    conn: &Conn,
    deadline: &mut Option<Instant>,
) -> io::Result<bool> {
    loop {
        match http2::greeting(&r.buf) {
            Greeting::Http2 => return Ok(true),
            Greeting::Other => return Ok(false),
            Greeting::Unclear => {}
        }
        if read_more(r, conn, deadline).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Reads the PROXY protocol's header before the first request. Returns false if the connection must be closed.
async fn read_proxy_header(r: &mut Request, conn: &Conn, deadline: &mut Option<Instant>) -> bool {
    // The head that follows has the same deadline.
    let until = *deadline.insert(r.event_loop.handle.now() + r.server.conf.client_header_timeout);
    conn.wire().set_deadline(Some(until));
    if r.buf.is_empty() {
        r.buf.reserve(FIRST_READ);
    }
    let mut buf = std::mem::take(&mut r.buf);
    let read = conn.wire().read_proxy_header(&mut buf).await;
    r.buf = buf;
    match read {
        Ok(header) => {
            if let Some(header) = header {
                // It is set nowhere else, and only once.
                let _ = conn.proxy.set(header.into());
            }
            true
        }
        Err(error) => {
            let (level, what) = without_header(&error);
            let text = format_args!("{what} while reading PROXY protocol");
            conn.log(r.site, &r.conf().core.error_log, level, text);
            false
        }
    }
}

/// What happened to a client that has sent no whole PROXY header, and the level of its message.
pub fn without_header(error: &ProxyHeaderError) -> (Level, String) {
    match error {
        ProxyHeaderError::Invalid(error) => (Level::Error, error.to_string()),
        ProxyHeaderError::Closed => (Level::Info, CLOSED.to_owned()),
        ProxyHeaderError::Io(error) if error.kind() == io::ErrorKind::TimedOut => {
            (Level::Info, TIMED_OUT.to_owned())
        }
        ProxyHeaderError::Io(error) => (Level::Info, lost(error)),
    }
}

fn refused(r: &mut Request, error: &HeadError) -> Head {
    let doing = match error {
        HeadError::InvalidHostInLine => reading_line(r),
        _ => reading(r),
    };
    if matches!(error, HeadError::MissingHost)
        && let Err(why) = meaning::select_server(r)
    {
        return unselected(r, why);
    }
    meaning::tell_dropped(r);
    r.log(Level::Info, format_args!("{} while {doing}", error.reason(&r.buf)));
    r.request_length = r.parser.lines_len() as u64;
    let head = r.parser.head();
    if head.line_end > 0 && head.version == Version::Http09 {
        // An answer without a head would be empty without a body, also to HEAD.
        r.version = Version::Http09;
    } else {
        // An answer to HEAD has no body, even if the target is malformed.
        r.method = head.method;
    }
    if error.line_parsed() {
        meaning::take_line(r);
        meaning::take_host(r);
    } else if r.conn.requests.get() == 0 && speaks_http2(r) && is_foreign(&r.buf) {
        // A client of HTTP/2 with a wrong preface would read an answer as frames: RFC 9113, section 3.4.
        return Head::Over(error.status());
    }
    // Bytes behind the fault may be a body. They are not read as another request.
    r.body.refused(r.buf.len(), error.lingers());
    if r.parser.lines_len() < r.buf.len() {
        r.body.note_bytes_behind_error();
    }
    Head::Refused(error.status())
}

/// Whether the first line is complete and names no version of HTTP.
fn is_foreign(buf: &[u8]) -> bool {
    let line = memchr::memchr(b'\n', buf).and_then(|end| buf.get(..end));
    line.is_some_and(|line| memchr::memmem::find(line, b"HTTP/").is_none())
}

fn reading_line(r: &Request) -> &'static str {
    match r.pipelined {
        true => "reading client pipelined request line",
        false => "reading client request line",
    }
}

/// The words of nginx's log for the part of the head that was being read.
fn reading(r: &Request) -> &'static str {
    if r.parser.line_parsed() { "reading client request headers" } else { reading_line(r) }
}

async fn read_more(
    r: &mut Request,
    conn: &Conn,
    deadline: &mut Option<Instant>,
) -> io::Result<usize> {
    let mut buf = std::mem::take(&mut r.buf);
    let room = if buf.is_empty() { FIRST_READ } else { buf.len() };
    if buf.capacity() - buf.len() < room / 2 {
        buf.reserve(room);
    }
    if let Some(n) = conn.wire().try_recv(&mut buf).transpose() {
        r.buf = buf;
        return n;
    }
    conn.wire().set_deadline(Some(until(r, deadline)));
    let (result, buf) = conn.wire().recv(buf).await;
    r.buf = buf;
    result
}

/// The deadline of the head. There is one for the whole head, so that a client cannot stretch it byte by byte.
fn until(r: &Request, deadline: &mut Option<Instant>) -> Instant {
    let timeout = r.server.conf.client_header_timeout;
    *deadline.get_or_insert_with(|| r.event_loop.handle.now() + timeout)
}
