//! HTTP/2. The protocol is the `h2` crate's: a foreign client, as a witness should be.

mod socket;
#[cfg(test)]
mod tests;

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use h2::Reason;
use h2::client::{Builder, SendRequest};
use http::header::{AUTHORIZATION, HOST, HeaderName, USER_AGENT};
use http::{HeaderValue, Request, Uri, Version};

use self::socket::H2Socket;
use crate::site::{DueRequest, ThreadPlan};
use crate::streams::{Lost, Multiplexed};
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
    if let Some(authorization) = &url.authorization
        && !headers.contains_key(AUTHORIZATION)
    {
        headers.insert(AUTHORIZATION, HeaderValue::from_str(authorization).ok()?);
    }
    request.body(()).ok()
}

/// How much a server may send before we have taken it; as large as it may be, so that it is never
/// the client that slows it.
const WINDOW: u32 = (1 << 31) - 1;
/// Room for a frame of an answer, as the protocol's least.
const FRAME: u32 = 16 << 10;

impl Multiplexed for SendRequest<Bytes> {
    async fn connect(site: &Rc<ThreadPlan>, peer: usize) -> Result<Self, RequestFailure> {
        let Some(to) = site.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let socket = H2Socket::new(site.open(to).await?, Rc::clone(site));
        let (sender, connection) = Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME)
            .enable_push(false)
            .initial_max_send_streams(site.plan.protocol.streams())
            .handshake(socket)
            .await
            .map_err(|_| RequestFailure::Send)?;
        // How it ends is told to each of its requests.
        site.h.spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn exchange(self, site: &ThreadPlan, begun: &DueRequest<'_>) -> Result<(), Lost> {
        // What is wrong with a connection before anything was sent concerns no request.
        let ready = self.ready().await;
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
