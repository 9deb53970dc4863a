//! Sends stored answers.

use weir_cache::{FillEnd, FillPiece, FillReader, MissingRest};
use weir_engine::{Chain, Segment};
use weir_log::Level;
use weir_proto::http1::{HeaderId, Method};

use super::kept::{Kept, Part};
use super::status_field;
use crate::phases::Step;
use crate::request::Request;
use crate::request::cached::Status;
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::{Answer, Found, Protocol, Reader as _};
use crate::upstream::relay::break_off;
use crate::upstream::seen;

/// Why an answer was not sent, or not completely.
#[derive(Debug)]
pub enum Unsent {
    /// The answer could not be read. Nothing was sent.
    Unusable,
    /// The answer is not stored any further, so the server must be asked for the rest.
    Rest(Option<Box<MissingRest>>),
}

/// Sends a stored answer.
pub async fn send<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    protocol: &mut P,
    kept: Kept,
) -> Result<Step, Unsent> {
    fill_head(r, passing, protocol, &kept)?;
    if let Err(step) = r.send_head() {
        return Ok(step);
    }
    let segment = match kept.part {
        Part::Coming(reader, length) => {
            return read_on(r, reader, length.is_none(), |_| {}).await.map_err(Unsent::Rest);
        }
        Part::Memory(bytes) => Segment::Bytes(bytes),
        Part::File(file, offset, len) => Segment::File { file, offset, len },
    };
    let mut chain = Chain::new();
    chain.push(segment);
    Ok(match r.send_body(chain, true).await {
        Ok(()) => Step::Sent,
        Err(_) => Step::Abort,
    })
}

/// Fills in the client's head, as if the server had sent the stored head now.
fn fill_head<P: Protocol>(
    r: &mut Request,
    passing: &UpstreamConf,
    protocol: &mut P,
    kept: &Kept,
) -> Result<(), Unsent> {
    let mut buf = kept.entry.head.clone();
    let mut answer = understand(r, protocol, kept, &mut buf)?;
    let announced = answer.length.filter(|n| *n > 0);
    let bodiless = matches!(answer.status, 204 | 304);
    // An answer to HEAD has no body, but gives the length of the body for GET.
    let of_head = announced.is_some() && kept.length() == Some(0);
    if of_head && !bodiless && r.method != Method::Head {
        // A stored answer to HEAD is sent for another method. The client waits for a body, and must
        // not take the next answer for it.
        r.keepalive = false;
    }
    let context = &mut r.contexts.upstream;
    (context.head, context.headers) = (buf, std::mem::take(&mut answer.headers));
    context.cached = true;
    seen::forget_duplicates(r);
    match kept.length() {
        Some(_) if of_head => r.response.header_only = true,
        Some(length) if !bodiless => answer.length = Some(length),
        _ => {}
    }
    seen::wishes(r, passing);
    seen::fill(r, passing, protocol, &answer);
    if passing.caching.keeps_standard() {
        fit(r, passing, kept);
    }
    let unchanged = r.contexts.upstream.cache.as_deref();
    let unchanged = unchanged.is_some_and(|shown| shown.status.get() == Status::Revalidated);
    // The answer may have been revalidated by an answer to HEAD as well as by a 304.
    let forwarded = r.contexts.upstream.attempts.last().map(|attempt| attempt.status);
    status_field::add(r, &passing.caching, forwarded.filter(|_| unchanged));
    Ok(())
}

/// Adapts the head by RFC 9111: adds `Age`, and removes fields that are not for stored answers.
fn fit(r: &mut Request, passing: &UpstreamConf, kept: &Kept) {
    let age = r.event_loop.handle.wall().secs.saturating_sub(kept.entry.times.date).max(0);
    let (facts, context) = (kept.facts(passing), &r.contexts.upstream);
    let response = &mut r.response;
    if let Some(date) = context.headers.iter().find(|header| header.id == HeaderId::Date) {
        response.date = Some(date.value.of(&context.head).to_vec());
    }
    // A complete stored answer can serve ranges.
    response.allow_ranges |= response.status == 200;
    if facts.withhold_some() {
        response.headers.retain(|name| !facts.withholds(name));
    }
    response.headers.set(b"Age", age.to_string().as_bytes());
}

/// Parses the stored head. For an answer in the memory tier, this is done once.
fn understand<P: Protocol>(
    r: &mut Request,
    protocol: &mut P,
    kept: &Kept,
    buf: &mut Vec<u8>,
) -> Result<Answer, Unsent> {
    let read = kept.read();
    if let Some(answer) = read.and_then(|read| read.answer.get()) {
        return Ok(answer.clone());
    }
    protocol.reader().restart();
    match protocol.reader().head(r, buf) {
        Ok(Found::Head(answer)) => {
            // Shared only if the head was not changed: its spans are offsets in the stored head.
            if let Some(read) = read.filter(|_| *buf == kept.entry.head) {
                read.answer.get_or_init(|| answer.clone());
            }
            Ok(answer)
        }
        _ => {
            let key = weir_log::Bytes(&kept.entry.key);
            r.log(Level::Crit, format_args!("cache entry \"{key}\" contains invalid header"));
            Err(Unsent::Unusable)
        }
    }
}

/// Sends a body while it is received. `end` is called before the last piece is sent. `pieces`: see
/// [`comes_in_pieces`](crate::upstream::protocol::Reader::comes_in_pieces). The error is the part
/// that is still to be sent.
///
/// The client must not see the end before the cache has the answer, since it may request it again
/// at once. So the piece that completes an announced length waits for the end of the server's
/// answer, which a FastCGI server signals later. Answers in pieces do not wait.
pub async fn read_on(
    r: &mut Request,
    mut reader: FillReader,
    pieces: bool,
    end: impl Fn(&mut Request),
) -> Result<Step, Option<Box<MissingRest>>> {
    let mut chain = Chain::new();
    loop {
        let next = match reader.next_now() {
            Some(next) => next,
            None if r.pause_body(pieces).await.is_err() => return Ok(Step::Abort),
            None => reader.next().await,
        };
        match next {
            FillPiece::Data(segment) => chain.push(segment),
            FillPiece::End(FillEnd::Whole) => {}
            FillPiece::End(FillEnd::Broken) => return Ok(break_off(r, chain).await),
            FillPiece::FetchRest if reader.has_announced() => {
                let sent = r.send_body(chain, true).await;
                return Ok(sent.map_or(Step::Abort, |()| Step::Sent));
            }
            FillPiece::FetchRest => {
                let sent = r.send_body(chain, false).await;
                return sent.map_or(Ok(Step::Abort), |()| Err(reader.rest().map(Box::new)));
            }
        }
        let last = reader.is_done();
        if last {
            end(r);
        } else if reader.has_announced() && !pieces {
            continue;
        }
        if r.send_body(std::mem::take(&mut chain), last).await.is_err() {
            return Ok(Step::Abort);
        }
        if last {
            return Ok(Step::Sent);
        }
    }
}
