//! Passes a body to the client while it is stored.

use std::cell::Cell;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::Poll;

use weir_cache::{Fill, FillEnd, MissingRest};
use weir_engine::Chain;
use weir_proto::http1::Method;

use super::hit::read_on;
use super::state::State;
use crate::answer::filters::into_bytes;
use crate::answer::headers::Headers;
use crate::phases::{self, Step};
use crate::request::Request;
use crate::upstream::client::{Waited, wait};
use crate::upstream::fault::{self, Doing};
use crate::upstream::passing::UpstreamConf;
use crate::upstream::protocol::Protocol;
use crate::upstream::relay::{self, Relayed, finish};
use crate::upstream::source::{Ahead, Broken, Came, Source};
use crate::upstream::transport::Transport;

/// The most bytes of a body in memory while it is received.
pub const IN_MEMORY: u64 = 512 * 1024;

/// Sends the head, which is filled in, and the body, and pushes the body into the fill. The body is
/// read to its end, even if the client leaves. `begun` was received with the head.
pub async fn relay<P: Protocol>(
    r: &mut Request,
    place: &State,
    passing: &'static UpstreamConf,
    transport: Transport,
    protocol: &mut P,
    begun: Vec<u8>,
    fill: &Arc<Fill>,
) -> Relayed {
    let rate = passing.limit_rate.as_ref();
    let rate = rate.map(|rate| rate.size(r)).filter(|n| *n > 0);
    let handle = r.event_loop.handle.clone();
    let ahead = Ahead { file: false, rate, within: passing.read_within(r) };
    let mut source = Source::new(transport, protocol, handle.clone(), passing, ahead);
    source.begin(begun);
    let (reader, pieces) = (fill.own_reader(), source.comes_in_pieces());
    let unfinished = Unfinished(fill);
    relay::postpone(r, passing);
    let head = r.send_head();
    if let Err(Step::Abort) = head {
        // A filter refuses the answer, as `slice` does with a part of another file. The next
        // request fetches a new one.
        return finish(r, source, Step::Abort);
    }
    let refused = head.is_err();
    if refused {
        // From here on, data are only for the cache.
        relay::tell(r, &mut source);
        relay::ends(r, source.take_count());
    }
    // Trailers are not stored, so a hit has none.
    let last: Cell<Option<(Headers, Came)>> = Cell::default();
    let filling = async {
        last.set(Some(fill_from(&mut source, fill).await));
        if fill.is_whole() {
            // Another answer may have been complete earlier, but this one is newer.
            place.received_whole(fill, handle.now());
        }
    };
    let sending = async {
        match head {
            Ok(()) => {
                let end = |r: &mut Request| {
                    let (trailers, came) = last.take().unwrap_or_default();
                    relay::ends(r, came);
                    relay::trailers(r, passing, trailers);
                };
                send(r, reader, pieces, end).await
            }
            Err(step) => refuse(r, step).await,
        }
    };
    let step = both(pin!(filling), pin!(sending)).await;
    drop(unfinished);
    // A server that was asked with HEAD may send no body. The answer is not stored, but that is no
    // fault.
    let bare = r.method == Method::Head && source.length == 0;
    if let Some(broken) = source.broken()
        && !(bare && matches!(broken, Broken::Closed))
    {
        relay::complain(r, broken);
    }
    if refused {
        return relay::hand_back(r, source, step);
    }
    if let (Some((_, came)), Some(attempt)) = (last.take(), r.contexts.upstream.attempt()) {
        // The client did not get the last piece, so `end` was not called.
        came.count(attempt);
    }
    finish(r, source, step)
}

/// Sends the answer of a filter instead, such as 416, while the body is received.
async fn refuse(r: &mut Request, step: Step) -> Step {
    if Box::pin(phases::go_on(r, step)).await { Step::Sent } else { Step::Abort }
}

/// Marks a fill as broken when its request is dropped.
struct Unfinished<'f>(&'f Fill);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        self.0.finish(FillEnd::Broken);
    }
}

async fn send(
    r: &mut Request,
    reader: weir_cache::FillReader,
    pieces: bool,
    end: impl Fn(&mut Request),
) -> Step {
    if r.response.header_only {
        // The body is only for the cache.
        let sent = r.send_body(Chain::new(), true).await;
        return sent.map_or(Step::Abort, |()| Step::Sent);
    }
    // The fetching request's reader never has to ask for the rest.
    read_on(r, reader, pieces, end).await.unwrap_or(Step::Abort)
}

/// Moves the body from the server into the fill. Returns the trailers, and how much was received.
async fn fill_from<P: Protocol>(source: &mut Source<'_, P>, fill: &Fill) -> (Headers, Came) {
    let mut trailers = Headers::default();
    loop {
        source.read_now();
        let mut chain = source.take();
        while let Some(segment) = chain.pop() {
            fill.push(into_bytes(segment));
        }
        if source.done {
            let whole = source.broken().is_none();
            source.trailers(&mut trailers);
            fill.finish(if whole { FillEnd::Whole } else { FillEnd::Broken });
            break;
        }
        if !fill.room().await {
            fill.finish(FillEnd::Broken);
            break;
        }
        source.wait().await;
    }
    (trailers, source.take_count())
}

/// Sends the rest of a body of which the client has the beginning. `begun` was received with the
/// head of the second answer. The bytes that the client has must be the beginning of the second
/// answer.
pub async fn go_on<P: Protocol>(
    r: &mut Request,
    passing: &'static UpstreamConf,
    transport: Transport,
    protocol: &mut P,
    begun: Vec<u8>,
    rest: &MissingRest,
) -> Relayed {
    let handle = r.event_loop.handle.clone();
    let ahead = Ahead { file: false, rate: None, within: passing.read_within(r) };
    let mut source = Source::new(transport, protocol, handle.clone(), passing, ahead);
    source.begin(begun);
    let mut at = 0;
    let step = loop {
        source.read_now();
        let mut new = source.take();
        let mut known = new.split_to(rest.at - at);
        while let Some(segment) = known.pop() {
            let bytes = into_bytes(segment);
            if !rest.has(handle.files(), at, &bytes).await {
                fault::complain(r, fault::OTHER, Doing::ReadingBody);
                return finish(r, source, Step::Abort);
            }
            at += bytes.len() as u64;
        }
        if at == rest.at {
            let sent = r.send_body(new, false).await;
            break sent.err().map(|_| Step::Abort);
        }
        if source.done {
            source.broken().into_iter().for_each(|broken| relay::complain(r, broken));
            break Some(Step::Abort);
        }
        match wait(r, passing, pin!(source.wait()), Some(Doing::ReadingBody)).await {
            Waited::For(()) => {}
            Waited::Gone => break Some(Step::Abort),
        }
    };
    relay::send_rest(r, passing, source, step).await
}

/// Runs both to their ends.
async fn both<T>(
    mut one: Pin<&mut impl Future<Output = ()>>,
    mut two: Pin<&mut impl Future<Output = T>>,
) -> T {
    let (mut done, mut out) = (false, None);
    std::future::poll_fn(move |cx| {
        done = done || one.as_mut().poll(cx).is_ready();
        if out.is_none()
            && let Poll::Ready(value) = two.as_mut().poll(cx)
        {
            out = Some(value);
        }
        match (done, out.take()) {
            (true, Some(value)) => Poll::Ready(value),
            (_, kept) => {
                out = kept;
                Poll::Pending
            }
        }
    })
    .await
}
