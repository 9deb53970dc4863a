//! HTTP/2: a connection with several requests at a time.
//!
//! Each connection has as many streams as were asked for; each is a client that makes one request
//! after another. The first that needs the connection makes it, the others wait for it. The
//! protocol itself is the `h2` crate's: a foreign client, as a witness should be.

mod line;
mod socket;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use h2::Reason;
use h2::client::SendRequest;
use http::header::{HOST, HeaderName, USER_AGENT};
use http::{HeaderValue, Request, Uri, Version};
use weir_engine::{Either, either};

use self::line::ConnectionPool;
use crate::site::{DueRequest, Leave, ThreadPlan};
use crate::tally::note;
use crate::{PreparedRequest, RequestFailure, RequestShape, Url};

/// Fields of a connection, which HTTP/2 does not have.
const OF_CONNECTIONS: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// A request's head. `None` if it cannot be one: a method, path or field that the wire cannot carry.
pub(crate) fn head(url: &Url, shape: &RequestShape) -> Option<Request<()>> {
    let fields = || shape.headers.iter().filter_map(|line| line.split_once(':'));
    let host = fields().find(|(name, _)| name.trim().eq_ignore_ascii_case("host"));
    let authority = host.map_or(url.authority.as_str(), |(_, value)| value.trim());
    let uri = Uri::builder()
        .scheme(if url.secure { "https" } else { "http" })
        .authority(authority)
        .path_and_query(url.path.as_str());
    let mut request = Request::builder()
        .method(shape.method.as_str())
        .uri(uri.build().ok()?)
        .version(Version::HTTP_2)
        .header(USER_AGENT, "weir-bench");
    let headers = request.headers_mut()?;
    for (name, value) in fields() {
        let name: HeaderName = name.trim().parse().ok()?;
        let value = HeaderValue::from_str(value.trim()).ok()?;
        if name == USER_AGENT {
            headers.insert(name, value);
        } else if name != HOST && !OF_CONNECTIONS.contains(&name.as_str()) {
            headers.append(name, value);
        }
    }
    request.body(()).ok()
}

/// Starts the clients of one connection.
pub(crate) fn spawn(site: &Rc<ThreadPlan>, order: u32, streams: usize) {
    let line = ConnectionPool::new(site.plan.peers.len(), order);
    site.live.set(site.live.get() + streams);
    for n in 0..streams {
        let client =
            StreamLoop { site: Rc::clone(site), line: Rc::clone(&line), free: Instant::now() };
        site.h.spawn(client.run(order, n == 0));
    }
}

/// One stream after another of a connection.
struct StreamLoop {
    site: Rc<ThreadPlan>,
    line: Rc<ConnectionPool>,
    /// When the last request was over.
    free: Instant,
}

/// Why a request has no answer.
enum Lost {
    /// The server has said that it did not begin with it: it may be sent again.
    Untouched(RequestFailure),
    For(RequestFailure),
}

impl StreamLoop {
    async fn run(mut self, order: u32, is_first: bool) {
        let site = Rc::clone(&self.site);
        let _leave = Leave(Rc::clone(&site));
        if let Some(gap) = site.plan.connect_first {
            if is_first {
                site.h.sleep(gap.saturating_mul(order)).await;
                // A client that cannot connect tries again with the first request, where failures
                // count.
                let first = site.plan.calls.first().map_or(0, |call| call.peer);
                let _ = self.line.sender(&site, first).await;
            }
            site.h.sleep_until(site.schedule.began).await;
        }
        while let Some(start) = site.schedule.claim(Instant::now()) {
            let Some(begun) = site.begin(start, self.free).await else { return };
            if let Err(failure) = self.serve(&begun).await {
                site.failed(failure, 1).await;
            }
            self.free = Instant::now();
        }
    }

    /// One request. One that the server did not begin with, as when it ends the connection after so
    /// many requests, is sent once more over the next connection, as browsers do.
    async fn serve(&mut self, begun: &DueRequest<'_>) -> Result<(), RequestFailure> {
        let mut again = true;
        loop {
            let peer = begun.call.peer;
            let (sender, number) = self.line.sender(&self.site, peer).await?;
            let over = either(
                exchange(&self.site, begun, sender),
                self.site.h.sleep(self.site.plan.timeout),
            );
            match over.await {
                Either::Left(Ok(())) => {
                    if self.line.closes(&self.site) {
                        self.line.leave(peer, number);
                    }
                    return Ok(());
                }
                Either::Left(Err(Lost::Untouched(_))) if again => {
                    again = false;
                    self.line.leave(peer, number);
                }
                Either::Left(Err(Lost::Untouched(failure) | Lost::For(failure))) => {
                    if !matches!(
                        failure,
                        RequestFailure::StreamReset | RequestFailure::StreamRefused
                    ) {
                        self.line.leave(peer, number);
                    }
                    return Err(failure);
                }
                Either::Right(()) => return Err(RequestFailure::Timeout),
            }
        }
    }
}

async fn exchange(
    site: &ThreadPlan,
    begun: &DueRequest<'_>,
    sender: SendRequest<Bytes>,
) -> Result<(), Lost> {
    // What is wrong with a connection before anything was sent concerns no request.
    let ready = sender.ready().await;
    let mut sender = ready.map_err(|_| Lost::Untouched(RequestFailure::ClosedKept))?;
    let PreparedRequest { head: Some(head), body, .. } = begun.call else {
        return Err(Lost::For(RequestFailure::Send));
    };
    let sent = Instant::now();
    let (answer, mut stream) =
        sender.send_request(head.clone(), body.is_empty()).map_err(|e| lost(&e))?;
    drop(sender);
    if !body.is_empty() {
        stream.send_data(body.clone(), true).map_err(|e| lost(&e))?;
    }
    let answer = answer.await.map_err(|e| lost(&e))?;
    note(&mut site.tally.borrow_mut().first_byte, sent.elapsed());
    let status = answer.status().as_u16();
    let mut body = answer.into_body();
    while let Some(piece) = body.data().await {
        let len = piece.map_err(|e| lost(&e))?.len();
        body.flow_control().release_capacity(len).map_err(|e| lost(&e))?;
    }
    site.answered(begun.began, status, 0);
    Ok(())
}

fn lost(error: &h2::Error) -> Lost {
    if let Some(e) = error.get_io() {
        let failure = RequestFailure::of_receive(e);
        let ended =
            matches!(e.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::BrokenPipe);
        return Lost::For(if ended { RequestFailure::Closed } else { failure });
    }
    let reason = error.reason().unwrap_or(Reason::INTERNAL_ERROR);
    match error {
        e if e.is_go_away() && e.is_remote() && reason == Reason::NO_ERROR => {
            Lost::Untouched(RequestFailure::ClosedKept)
        }
        e if e.is_go_away() && e.is_remote() => Lost::For(RequestFailure::GoneAway),
        e if e.is_reset() && e.is_remote() && reason == Reason::REFUSED_STREAM => {
            Lost::Untouched(RequestFailure::StreamRefused)
        }
        e if e.is_reset() && e.is_remote() => Lost::For(RequestFailure::StreamReset),
        // Our own library found the answer at fault.
        _ => Lost::For(RequestFailure::Malformed),
    }
}
