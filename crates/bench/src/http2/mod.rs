//! HTTP/2. The protocol is the `h2` crate's, so that client and server share no code.

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
use crate::streams::{ExchangeError, Multiplexed};
use crate::tally::note;
use crate::thread_state::{DueRequest, ThreadState};
use crate::{PreparedRequest, RequestFailure, RequestShape, Url};

/// Connection-specific header fields, which HTTP/2 forbids. RFC 9113 section 8.2.2.
const CONNECTION_SPECIFIC: [&str; 5] =
    ["connection", "keep-alive", "proxy-connection", "transfer-encoding", "upgrade"];

/// Builds a request's head. `None` if HTTP/2 cannot carry the method, path or a field.
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
        } else if name != HOST && !CONNECTION_SPECIFIC.contains(&name.as_str()) {
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

/// Flow-control window of the client. It is the maximum, so that the client never slows the server.
const WINDOW: u32 = (1 << 31) - 1;
/// Longest frame of a response: the protocol's minimum.
const FRAME: u32 = 16 << 10;

impl Multiplexed for SendRequest<Bytes> {
    async fn connect(state: &Rc<ThreadState>, peer: usize) -> Result<Self, RequestFailure> {
        let Some(to) = state.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let socket = H2Socket::new(state.open(to).await?, Rc::clone(state));
        let (sender, connection) = Builder::new()
            .initial_window_size(WINDOW)
            .initial_connection_window_size(WINDOW)
            .max_frame_size(FRAME)
            .enable_push(false)
            .initial_max_send_streams(state.plan.protocol.streams())
            .handshake(socket)
            .await
            .map_err(|_| RequestFailure::Send)?;
        // The `h2` crate reports the end of the connection to each of its requests.
        state.h.spawn(async move { drop(connection.await) });
        Ok(sender)
    }

    async fn exchange(
        self,
        state: &ThreadState,
        due: &DueRequest<'_>,
    ) -> Result<(), ExchangeError> {
        // If the connection fails before the request is sent, the request may use another one.
        let ready = self.ready().await;
        let mut sender =
            ready.map_err(|_| ExchangeError::Unprocessed(RequestFailure::ClosedKept))?;
        let PreparedRequest { head: Some(head), body, .. } = due.call else {
            return Err(ExchangeError::Other(RequestFailure::Send));
        };
        let sent = Instant::now();
        let (answer, mut stream) =
            sender.send_request(head.clone(), body.is_empty()).map_err(|e| exchange_error(&e))?;
        drop(sender);
        if !body.is_empty() {
            stream.send_data(body.clone(), true).map_err(|e| exchange_error(&e))?;
        }
        let answer = answer.await.map_err(|e| exchange_error(&e))?;
        note(&mut state.tally.borrow_mut().first_byte, sent.elapsed());
        let status = answer.status().as_u16();
        let mut body = answer.into_body();
        while let Some(piece) = body.data().await {
            let len = piece.map_err(|e| exchange_error(&e))?.len();
            body.flow_control().release_capacity(len).map_err(|e| exchange_error(&e))?;
        }
        state.answered(due.began, status, 0);
        Ok(())
    }
}

fn exchange_error(error: &h2::Error) -> ExchangeError {
    if let Some(e) = error.get_io() {
        let failure = RequestFailure::of_receive(e);
        let ended =
            matches!(e.kind(), std::io::ErrorKind::UnexpectedEof | std::io::ErrorKind::BrokenPipe);
        return ExchangeError::Other(if ended { RequestFailure::Closed } else { failure });
    }
    let reason = error.reason().unwrap_or(Reason::INTERNAL_ERROR);
    match error {
        e if e.is_go_away() && e.is_remote() && reason == Reason::NO_ERROR => {
            ExchangeError::Unprocessed(RequestFailure::ClosedKept)
        }
        e if e.is_go_away() && e.is_remote() => ExchangeError::Other(RequestFailure::GoneAway),
        e if e.is_reset() && e.is_remote() && reason == Reason::REFUSED_STREAM => {
            ExchangeError::Unprocessed(RequestFailure::StreamRefused)
        }
        e if e.is_reset() && e.is_remote() => ExchangeError::Other(RequestFailure::StreamReset),
        // The `h2` crate found the response invalid.
        _ => ExchangeError::Other(RequestFailure::Malformed),
    }
}
