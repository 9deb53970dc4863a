//! Fetches a large response in slices of equal size, which are cached one by one.
//! nginx: ngx_http_slice_filter_module.

use std::cell::RefCell;
use std::io;
use std::rc::Rc;

use weir_conf::Directive as Line;
use weir_engine::{Boxed, Chain};
use weir_log::Level;
use weir_proto::http1::HeaderId;
use weir_proto::{Renew, date};

use crate::answer::filters::{BodyFilter, Filtered};
use crate::config::module::Module;
use crate::config::scope::{Directive, setting};
use crate::phases::Step;
use crate::request::Request;
use crate::request::contexts::ContextKey;
use crate::site::settings::LocationConf;
use crate::site::settings::{Key, Settings};
use crate::upstream::reading;

/// Settings.
#[derive(Debug, Clone, Default)]
pub struct Conf {
    /// The size of a slice. 0: off.
    size: u64,
}

impl Settings for Conf {}

const DIRECTIVES: &[Directive] =
    &[setting!("slice", CONF.size, Line::size, "The size of slices, for `$slice_range`; 0: off.")];

/// The state of a request.
static CONTEXT: ContextKey<Rc<RefCell<Slices>>> =
    ContextKey { for_update: Some(alone), ..ContextKey::passing() };

/// The module's settings.
pub static CONF: Key<Conf> = Key::new();

/// The module.
pub const MODULE: Module =
    Module { name: "http_slice", directives: DIRECTIVES, init, ..Module::NEW };

fn init(setup: &mut crate::config::Setup<'_>) {
    setup.variables.define("slice_range", |r, out| {
        let Some(slices) = slices_of(r) else { return false };
        let slices = slices.borrow();
        let text = format!("bytes={}-{}", slices.requested, slices.requested + slices.size - 1);
        out.extend_from_slice(text.as_bytes());
        true
    });
}

/// The progress of a response in slices, which its subrequests share.
#[derive(Debug)]
pub struct Slices {
    size: u64,
    /// The offset of the requested slice.
    requested: u64,
    /// The offset of the next slice.
    next: u64,
    /// The end of the part that is sent.
    end: u64,
    etag: Option<Vec<u8>>,
    /// `Last-Modified`
    modified: Option<i64>,
    /// Whether the requested slice has arrived.
    active: bool,
    /// Whether the whole response is sent, even if the client requested a range.
    whole: bool,
    /// Whether the first slice is dropped, since the response starts before it.
    drop_first: bool,
    /// Whether a background update fetches this slice alone, without sending a response.
    alone: bool,
}

impl Slices {
    /// The state before the first slice was received.
    fn from(requested: u64, size: u64) -> Slices {
        let (active, whole, drop_first, alone) = (false, false, false, false);
        let (etag, modified) = (None, None);
        Slices {
            size,
            requested,
            next: requested,
            end: 0,
            etag,
            modified,
            active,
            whole,
            drop_first,
            alone,
        }
    }
}

/// The state for a background update of the currently requested slice.
fn alone(slices: &Rc<RefCell<Slices>>) -> Rc<RefCell<Slices>> {
    let slices = slices.borrow();
    let (size, requested) = (slices.size, slices.requested);
    Rc::new(RefCell::new(Slices { alone: true, ..Slices::from(requested, size) }))
}

/// The state of a request. The first use of `$slice_range` creates it.
fn slices_of(r: &mut Request) -> Option<Rc<RefCell<Slices>>> {
    if CONTEXT.of(&r.contexts).is_none() {
        let size = CONF.of(r.conf()).size;
        if !r.is_main() || r.response.status != 0 || size == 0 {
            return None;
        }
        let slices = Slices::from(first_wanted(r) / size * size, size);
        CONTEXT.set(&mut r.contexts, Rc::new(RefCell::new(slices)));
    }
    CONTEXT.of(&r.contexts).cloned()
}

/// The first byte of the client's range.
fn first_wanted(r: &Request) -> u64 {
    let range = r.header(HeaderId::Range).filter(|_| r.header(HeaderId::IfRange).is_none());
    range.and_then(range_start).unwrap_or(0)
}

fn range_start(range: &[u8]) -> Option<u64> {
    let (unit, range) = range.split_at_checked(6)?;
    if !unit.eq_ignore_ascii_case(b"bytes=") || range.contains(&b',') {
        return None;
    }
    let range = range.trim_ascii_start();
    let digits = range.iter().take_while(|b| b.is_ascii_digit()).count();
    // Bounded, so that sums do not overflow.
    std::str::from_utf8(&range[..digits]).ok()?.parse().ok().filter(|n| *n <= i64::MAX as u64)
}

/// A value of `Content-Range`.
#[derive(Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    /// The offset behind the last byte.
    end: u64,
    /// The complete length, if it is known.
    length: Option<u64>,
}

impl Span {
    fn read(value: &[u8]) -> Option<Span> {
        let value = std::str::from_utf8(value).ok()?.strip_prefix("bytes ")?;
        let (range, length) = value.split_once('/')?;
        let (start, last) = range.split_once('-')?;
        let start = start.trim().parse::<u64>().ok()?;
        let end = last.trim().parse::<u64>().ok()?.checked_add(1)?;
        let length = match length.trim() {
            "*" => None,
            length => Some(length.parse().ok()?),
        };
        (start < end).then_some(Span { start, end, length })
    }
}

/// Whether a location has anything to do here.
pub fn wanted(conf: &LocationConf) -> bool {
    CONF.of(conf).size > 0
}

/// First header filter: makes the response of a slice look like that of the whole resource.
pub fn header_filter(r: &mut Request) -> Result<(), Step> {
    let Some(slices) = CONTEXT.of(&r.contexts).cloned().filter(|s| !s.borrow().alone) else {
        return Ok(());
    };
    if r.response.status != 206 {
        if r.is_main() {
            CONTEXT.take(&mut r.contexts);
            return Ok(());
        }
        let status = r.response.status;
        return fail(r, &format!("unexpected status code {status} in slice response"));
    }
    let mut slices = slices.borrow_mut();
    let etag = &r.response.etag;
    if slices.etag.is_some() && slices.etag != *etag {
        return fail(r, "etag mismatch in slice response");
    }
    let modified = r.response.last_modified;
    if r.is_main() {
        slices.modified = modified;
    } else if r.response.by_standard && slices.etag.is_none() && slices.modified != modified {
        return fail(r, "Last-Modified mismatch in slice response");
    }
    if etag.is_some() {
        slices.etag.clone_from(etag);
    }
    let Some(span) = r.response.headers.get(b"Content-Range").and_then(Span::read) else {
        return fail(r, "invalid range in slice response");
    };
    let Some(length) = span.length else {
        return fail(r, "no complete length in slice response");
    };
    let end = span.start.saturating_add(slices.size).min(length);
    if span.start != slices.requested || span.end != end {
        let (start, requested) = (span.start, slices.requested);
        let text = format!(
            "unexpected range in slice response: {start}-{}, expected: {requested}-{end}",
            span.end
        );
        return fail(r, &text);
    }
    (slices.next, slices.active) = (end, true);
    if r.is_main() {
        // The first slice sets the end of the part that is sent. Later ones only know the complete
        // length.
        slices.end = length;
    }
    let response = &mut r.response;
    (response.status, response.status_line) = (200, None);
    response.content_length = Some(length);
    response.content_offset = span.start;
    response.headers.remove(b"Content-Range");
    response.headers.remove(b"Accept-Ranges");
    (response.allow_ranges, response.single_range) = (true, true);
    response.is_slice = !slices.whole;
    if r.is_main() {
        r.add_body_filter(Box::new(NextSlices));
    }
    Ok(())
}

/// Header filter behind the range filter, which has decided on the ranges.
pub fn last_header_filter(r: &mut Request) -> Result<(), Step> {
    let Some(slices) = CONTEXT.of(&r.contexts).filter(|_| r.is_main()) else { return Ok(()) };
    if r.response.status == 206 {
        let mut slices = slices.borrow_mut();
        let start = r.response.content_offset;
        if slices.next + slices.size <= start {
            slices.next = start / slices.size * slices.size;
        }
        slices.end = start + r.response.content_length.unwrap_or(0);
    } else {
        // The client's range is not applied, for example if a filter changes the body. So all
        // slices are sent.
        let mut slices = slices.borrow_mut();
        slices.whole = true;
        if std::mem::take(&mut r.response.content_offset) > 0 {
            (slices.next, slices.drop_first) = (0, true);
        }
    }
    if r.response.by_standard && next_slice(slices).is_some() && !has_strong_validator(r) {
        let text = "slices without a strong ETag or Last-Modified cannot be joined under the rules of RFC 9111; \
                    serve this location without \"slice\"";
        r.log(Level::Error, format_args!("{text}"));
        r.response.renew();
        return Err(Step::Status(502));
    }
    Ok(())
}

/// Whether the response has a strong validator, so that slices with the same one belong together
/// (RFC 9110, section 8.8.1). `Last-Modified` is strong if it is earlier than `Date` (section
/// 8.8.2.2).
fn has_strong_validator(r: &Request) -> bool {
    let response = &r.response;
    if let Some(etag) = &response.etag {
        return !etag.starts_with(b"W/");
    }
    let date = response.date.as_deref().and_then(date::parse);
    let date = date.unwrap_or_else(|| r.event_loop.handle.wall().secs);
    response.last_modified.is_some_and(|modified| modified < date)
}

fn fail(r: &Request, text: &str) -> Result<(), Step> {
    r.log(Level::Error, format_args!("{text}{}", reading(r)));
    Err(Step::Abort)
}

/// Body filter: requests the other slices after the first one.
struct NextSlices;

impl BodyFilter for NextSlices {
    fn module(&self) -> &'static str {
        "slice_filter"
    }

    fn filter<'a>(&'a mut self, r: &'a mut Request, input: Chain, last: bool) -> Filtered<'a> {
        let Some(slices) = CONTEXT.of(&r.contexts).cloned() else {
            return Filtered::Now(Ok(input));
        };
        let input = if slices.borrow().drop_first { Chain::new() } else { input };
        if !last {
            return Filtered::Now(Ok(input));
        }
        Filtered::Later(Boxed::new(move || async move {
            r.send_last_ahead(input).await?;
            if next_slice(&slices).is_some() {
                // The bytes of this slice are sent even if the next slice fails.
                r.send_queued().await?;
                r.flush().await?;
            }
            while let Some(next) = next_slice(&slices) {
                {
                    let mut slices = slices.borrow_mut();
                    (slices.requested, slices.active) = (next, false);
                }
                let shared = slices.clone();
                let sub = r.ask_again(|sr| CONTEXT.set(&mut sr.contexts, shared));
                r.send_subrequest(sub.ok_or(io::ErrorKind::Other)?);
                r.send_queued().await?;
                if !slices.borrow().active {
                    r.log(Level::Error, format_args!("missing slice response"));
                    return Err(io::ErrorKind::UnexpectedEof.into());
                }
            }
            Ok(Chain::new())
        }))
    }

    fn needs_memory(&self) -> bool {
        false
    }
}

/// The offset of the next slice, if another one is needed.
fn next_slice(slices: &RefCell<Slices>) -> Option<u64> {
    let slices = slices.borrow();
    (slices.next < slices.end).then_some(slices.next)
}

#[cfg(test)]
mod tests {
    use super::{Span, range_start};

    #[test]
    fn the_first_wanted_byte_is_read() {
        assert_eq!(range_start(b"bytes=12-"), Some(12));
        assert_eq!(range_start(b"Bytes= 7-9"), Some(7));
        for other in [b"bytes=-5".as_slice(), b"bytes=1-2,4-5", b"lines=1-", b"bytes=", b"x"] {
            assert_eq!(range_start(other), None);
        }
    }

    #[test]
    fn the_range_of_a_slice_is_read() {
        let span = Span { start: 0, end: 10, length: Some(20) };
        assert_eq!(Span::read(b"bytes 0-9/20"), Some(span));
        assert_eq!(Span::read(b"bytes 5-5/*"), Some(Span { start: 5, end: 6, length: None }));
        for other in [
            b"bytes */20".as_slice(),
            b"bytes 5-4/20",
            b"0-9/20",
            b"bytes 0-9",
            b"bytes 0-18446744073709551615/1",
        ] {
            assert_eq!(Span::read(other), None);
        }
    }
}
