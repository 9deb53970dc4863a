//! A stream's request, from its head to its log line.

use std::pin::pin;
use std::rc::Rc;
use std::time::Duration;

use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::ComposeError;
use weir_proto::http2::frame::ErrorCode;

use super::stream::Stream;
use crate::body::Linger;
use crate::carrier::{Carrier, RequestStream};
use crate::connection::check;
use crate::doing;
use crate::phases;
use crate::request::begun::Begun;
use crate::request::meaning::{self, Undecided};
use crate::request::{Request, Scratch};

/// A client that goes on sending to a stream that is answered is told so after this at the latest.
const BEHIND: Duration = Duration::from_millis(200);

/// A head that was read.
pub struct Fields {
    /// The room that it stands in.
    pub scratch: Scratch,
    /// What is to be said of it.
    pub verdict: Result<(), ComposeError>,
    /// Bytes that it took.
    pub len: u64,
    /// Its frame is the last of the request.
    pub ended: bool,
}

/// Starts a stream's request.
pub fn start(stream: Rc<Stream>, fields: Fields) {
    let handle = stream.link.event_loop.handle.clone();
    stream.link.event_loop.busy();
    let running = Running(stream);
    handle.spawn(async move { serve(running, fields).await });
}

/// The stream ends with its request, even by a panic.
struct Running(Rc<Stream>);

impl Drop for Running {
    fn drop(&mut self) {
        let Stream { link, id, .. } = &*self.0;
        link.remove(*id);
        link.event_loop.idle();
    }
}

async fn serve(running: Running, fields: Fields) {
    let stream = &running.0;
    let (conn, event_loop) = (stream.link.conn.clone(), stream.link.event_loop.clone());
    conn.requests.set(conn.requests.get() + 1);
    let Fields { scratch, verdict, len, ended } = fields;
    let mut r = Request::new(conn, event_loop.clone(), scratch);
    r.carrier = Carrier::of(stream.clone());
    let accepted = accept(&mut r, verdict.as_ref().err(), len, ended);
    let begun = Begun(&mut r);
    event_loop.metrics.add(Metric::Requests, 1);
    let (_, blocked) = {
        let _writing = event_loop.metrics.hold(Metric::Writing);
        let serving = pin!(async {
            let r = &mut *begun.0;
            let refused = match accepted {
                Err(HeadRefusal::Undecided) => {
                    r.response.status = 500;
                    return false;
                }
                Err(HeadRefusal::Malformed(fault)) => Some(fault.status()),
                Err(HeadRefusal::Disabled) => Some(421),
                Ok(()) => check(r).map(|refusal| refusal.status()),
            };
            match refused {
                Some(status) => phases::refuse(r, status).await,
                None => phases::serve(r).await,
            }
        });
        doing::blocked(&event_loop.handle, serving).await
    };
    begun.0.blocked = blocked;
    drop(begun);
    let core = &r.conf().core;
    r.carrier = Carrier::default();
    event_loop.give_scratch(r.give_room());
    let malformed = verdict.is_err();
    if !malformed && stream.is_closed() && core.lingering_close != Linger::Off {
        // Frames that came right behind the head are judged as those of a living stream.
        stream.touched(BEHIND.min(core.lingering_timeout)).await;
    }
    end(stream, malformed);
}

/// Why a head is refused. The log was told.
enum HeadRefusal<'f> {
    /// No server can be found for it: there is no answer.
    Undecided,
    /// It is malformed.
    Malformed(&'f ComposeError),
    /// Its server does not speak HTTP/2.
    Disabled,
}

/// Takes over what the head says.
fn accept<'f>(
    r: &mut Request,
    fault: Option<&'f ComposeError>,
    len: u64,
    ended: bool,
) -> Result<(), HeadRefusal<'f>> {
    let selected = meaning::select_server(r);
    meaning::accept(r);
    r.request_length = len;
    // All of a short body may have come with the head.
    let drained = r.carrier.arrival().is_none_or(|arrival| arrival.drained);
    r.body.starts_at(r.buf.len());
    r.body.comes_by_stream(drained, ended);
    selected.map_err(|Undecided| HeadRefusal::Undecided)?;
    meaning::tell_dropped(r);
    if let Some(fault) = fault {
        let text = fault.reason(&r.buf);
        r.log(Level::Info, format_args!("{text} while reading client request headers"));
        r.body.never_linger();
        return Err(HeadRefusal::Malformed(fault));
    }
    if !r.conf().core.http2.enabled && !r.site.protocols(&r.conn).http2 {
        let text = "client attempted to request the server name for which the negotiated \
                    protocol is disabled";
        r.log(Level::Info, format_args!("{text}"));
        return Err(HeadRefusal::Disabled);
    }
    Ok(())
}

/// Tells the client what it does not know yet of how the stream ended.
fn end(stream: &Stream, malformed: bool) {
    if stream.is_gone() {
        return;
    }
    let code = match (stream.is_closed(), stream.is_ended()) {
        (false, _) if stream.has_timed_out() => ErrorCode::Protocol,
        (false, _) => ErrorCode::Internal,
        (true, _) if malformed || stream.is_malformed() => ErrorCode::Protocol,
        (true, false) => ErrorCode::NoError,
        (true, true) => return,
    };
    stream.reset(code);
}
