//! HTTP/3. Each connection has a socket of its own, so that a server balances them like those of
//! different clients.
//!
//! QUIC is `quinn-proto`'s, with settings of its own. The dynamic table of QPACK is not used.

mod answer;
mod connection;

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request};
use quinn_proto::StreamId;
use weir_proto::http3::{ErrorCode, frame, qpack};

use self::answer::Answer;
use self::connection::QuicConnection;
use crate::RequestFailure;
use crate::streams::{ExchangeError, Multiplexed};
use crate::tally::note;
use crate::thread_state::{DueRequest, ThreadState};

/// Indices in the static table of QPACK. RFC 9204 appendix A.
const AUTHORITY: u8 = 0;
const PATH: u8 = 1;
const METHOD: u8 = 15;
const METHOD_GET: u8 = 17;
const METHOD_POST: u8 = 20;
const SCHEME_HTTPS: u8 = 23;

/// Encodes the HEADERS frame of a request.
pub(crate) fn head(request: &Request<()>) -> Bytes {
    let mut out = Vec::with_capacity(128);
    let begin = frame::leave_headers_head(&mut out);
    qpack::begin_section(&mut out);
    match *request.method() {
        Method::GET => qpack::indexed(METHOD_GET, &mut out),
        Method::POST => qpack::indexed(METHOD_POST, &mut out),
        ref method => qpack::with_name_of(METHOD, method.as_str().as_bytes(), &mut out),
    }
    qpack::indexed(SCHEME_HTTPS, &mut out);
    let authority = request.uri().authority().map_or("", |authority| authority.as_str());
    qpack::with_name_of(AUTHORITY, authority.as_bytes(), &mut out);
    let path = request.uri().path_and_query().map_or("/", |path| path.as_str());
    qpack::with_name_of(PATH, path.as_bytes(), &mut out);
    for (name, value) in request.headers() {
        qpack::field(name.as_str().as_bytes(), value.as_bytes(), &mut out);
    }
    frame::finish_headers(&mut out, begin);
    out.into()
}

/// A handle to make requests on a connection.
#[derive(Clone)]
pub(crate) struct Sender(Rc<Open>);

/// Closes the connection when its last handle is dropped.
struct Open(Rc<QuicConnection>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A request in progress. Dropping it early cancels the stream.
struct Stream<'a> {
    connection: &'a QuicConnection,
    id: StreamId,
    is_over: bool,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.connection.cancel(self.id, ErrorCode::RequestCancelled as u64);
        }
    }
}

impl Multiplexed for Sender {
    async fn connect(state: &Rc<ThreadState>, peer: usize) -> Result<Sender, RequestFailure> {
        let Some(to) = state.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let began = Instant::now();
        let connection = QuicConnection::open(state, to)?;
        let sender = Sender(Rc::new(Open(Rc::clone(&connection))));
        connection.connected(began + state.plan.timeout).await?;
        note(&mut state.tally.borrow_mut().handshake, began.elapsed());
        Ok(sender)
    }

    async fn exchange(
        self,
        state: &ThreadState,
        due: &DueRequest<'_>,
    ) -> Result<(), ExchangeError> {
        let connection = &*self.0.0;
        let mut stream = Stream { connection, id: connection.stream().await?, is_over: false };
        connection.send(stream.id, due.call).await?;
        let sent = Instant::now();
        let (mut answer, mut is_first) = (Answer::new(due.call.is_head), true);
        while let Some(bytes) = connection.receive(stream.id).await? {
            if std::mem::take(&mut is_first) {
                note(&mut state.tally.borrow_mut().first_byte, sent.elapsed());
            }
            if answer.read(stream.id, &bytes).is_err() {
                return Err(ExchangeError::Other(RequestFailure::Malformed));
            }
        }
        stream.is_over = true;
        let status = answer.end().map_err(|_| ExchangeError::Other(RequestFailure::Malformed))?;
        state.answered(due.began, status, 0);
        Ok(())
    }
}
