//! Serves requests over streams, from the head to the log line. HTTP/2 and HTTP/3 share this code.

use std::pin::pin;
use std::rc::Rc;
use std::time::{Duration, Instant};

use weir_log::Level;
use weir_metrics::Metric;
use weir_proto::http1::{ComposeError, Version};

use crate::body::Linger;
use crate::carrier::{Carrier, Conn, RequestStream};
use crate::connection::check;
use crate::doing;
use crate::event_loop::LoopState;
use crate::phases;
use crate::request::begun::Begun;
use crate::request::meaning::{self, Unselected};
use crate::request::{Request, Scratch};

/// A head that was decoded.
pub struct Fields {
    /// The buffers that it is in.
    pub scratch: Scratch,
    /// Whether it is well-formed.
    pub verdict: Result<(), ComposeError>,
    /// Its length in bytes.
    pub len: u64,
    /// The request ends with it.
    pub ended: bool,
    /// When its first bytes arrived, if that may have been earlier than its end.
    pub begun: Option<Instant>,
}

/// Facts of a served request, for its stream.
pub struct Served {
    /// Its head was malformed.
    pub malformed: bool,
    /// `lingering_close`
    pub lingers: bool,
    /// `lingering_time`
    pub lingering_time: Duration,
    /// `lingering_timeout`
    pub lingering_timeout: Duration,
}

/// Serves the request of a stream. `is_enabled` says whether the request's server speaks this version.
pub async fn serve(
    conn: Rc<Conn>,
    event_loop: Rc<LoopState>,
    stream: Rc<dyn RequestStream>,
    fields: Fields,
    is_enabled: impl Fn(&Request) -> bool,
) -> Served {
    // The connection may be older than the site.
    let event_loop = event_loop.newest();
    let Fields { scratch, verdict, len, ended, begun } = fields;
    let mut r = Box::new(Request::new(conn, event_loop.clone(), scratch));
    r.started = begun.unwrap_or(r.started);
    r.count();
    r.carrier = Carrier::of(stream);
    let accepted = accept(&mut r, verdict.as_ref().err(), len, ended, is_enabled);
    let begun = Begun(&mut r);
    event_loop.metrics.add(Metric::Requests, 1);
    let (_, blocked) = {
        let _writing = event_loop.metrics.hold(Metric::Writing);
        let serving = pin!(async {
            let r = &mut *begun.0;
            let refused = match accepted {
                Err(HeadRefusal::Unselected(Unselected::Undecided)) => {
                    r.response.status = 500;
                    return false;
                }
                Err(HeadRefusal::Malformed(fault)) => Some(fault.status()),
                Err(HeadRefusal::Unselected(Unselected::Misdirected) | HeadRefusal::Disabled) => {
                    Some(421)
                }
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
    if let Some(text) = begun.0.carrier.stream().and_then(|stream| stream.farewell()) {
        let doing = begun.0.doing();
        begun.0.log(Level::Info, format_args!("{text}{doing}"));
    }
    drop(begun);
    let core = &r.conf().core;
    r.carrier = Carrier::default();
    event_loop.give_scratch(r.into_scratch());
    Served {
        malformed: verdict.is_err_and(|error| error.is_malformed()),
        lingers: core.lingering_close != Linger::Off,
        lingering_time: core.lingering_time,
        lingering_timeout: core.lingering_timeout,
    }
}

/// Logs a request whose head was cut off, with this status and the fields that are known. It gets no answer.
pub fn log_unread(
    conn: Rc<Conn>,
    event_loop: Rc<LoopState>,
    stream: Rc<dyn RequestStream>,
    fields: Fields,
    status: u16,
) {
    let event_loop = event_loop.newest();
    let mut r = Box::new(Request::new(conn, event_loop.clone(), fields.scratch));
    r.started = fields.begun.unwrap_or(r.started);
    r.count();
    event_loop.metrics.add(Metric::Requests, 1);
    r.carrier = Carrier::of(stream);
    // If no server can be selected, the default server's log has the line.
    let _ = meaning::select_server(&mut r);
    meaning::accept(&mut r);
    r.request_length = fields.len;
    r.response.status = status;
    drop(Begun(&mut r));
    r.carrier = Carrier::default();
    event_loop.give_scratch(r.into_scratch());
}

/// Why a head is refused, which was logged.
enum HeadRefusal<'f> {
    /// No server could be selected. There is no answer, since no server could give it.
    Unselected(Unselected),
    /// It is malformed.
    Malformed(&'f ComposeError),
    /// Its server does not speak this version.
    Disabled,
}

/// Takes the head's fields over into the request.
fn accept<'f>(
    r: &mut Request,
    fault: Option<&'f ComposeError>,
    len: u64,
    ended: bool,
    is_enabled: impl Fn(&Request) -> bool,
) -> Result<(), HeadRefusal<'f>> {
    let selected = meaning::select_server(r);
    meaning::accept(r);
    r.request_length = len;
    // A short body may have arrived with the head.
    let drained = r.carrier.arrival().is_none_or(|arrival| arrival.drained);
    r.body.starts_at(r.buf.len());
    r.body.expect_frames(drained, ended);
    selected.map_err(HeadRefusal::Unselected)?;
    meaning::tell_dropped(r);
    if let Some(fault) = fault {
        let text = fault.reason(&r.buf, r.version);
        let doing = match r.version {
            Version::Http30 => "reading client request",
            _ => "reading client request headers",
        };
        r.log(Level::Info, format_args!("{text} while {doing}"));
        r.body.never_linger();
        return Err(HeadRefusal::Malformed(fault));
    }
    if !is_enabled(r) {
        let text = "client attempted to request the server name for which the negotiated \
                    protocol is disabled";
        r.log(Level::Info, format_args!("{text}"));
        return Err(HeadRefusal::Disabled);
    }
    Ok(())
}
