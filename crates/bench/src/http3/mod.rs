//! HTTP/3. Each connection has a socket of its own, so that a server spreads connections as it does those of different clients.
//!
//! QUIC is `quinn-proto`'s, without the settings of weir's server. The table of QPACK is not used.

mod answer;
mod line;

use std::rc::Rc;
use std::time::Instant;

use bytes::Bytes;
use http::{Method, Request};
use quinn_proto::StreamId;
use weir_proto::http3::{ErrorCode, frame, qpack};

use self::answer::Answer;
use self::line::Line;
use crate::RequestFailure;
use crate::site::{DueRequest, ThreadPlan};
use crate::streams::{Lost, Multiplexed};
use crate::tally::note;

/// Indices of names and fields that all answers to come share. RFC 9204 appendix A.
const AUTHORITY: u8 = 0;
const PATH: u8 = 1;
const METHOD: u8 = 15;
const METHOD_GET: u8 = 17;
const METHOD_POST: u8 = 20;
const SCHEME_HTTPS: u8 = 23;

/// A request's HEADERS frame.
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

/// A way to make requests of a connection.
#[derive(Clone)]
pub(crate) struct Sender(Rc<Open>);

/// The connection, until the last way to make requests is gone.
struct Open(Rc<Line>);

impl Drop for Open {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// A request under way. One that is given up is told of.
struct Stream<'a> {
    line: &'a Line,
    id: StreamId,
    is_over: bool,
}

impl Drop for Stream<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.line.give_up(self.id, ErrorCode::RequestCancelled as u64);
        }
    }
}

impl Multiplexed for Sender {
    async fn connect(site: &Rc<ThreadPlan>, peer: usize) -> Result<Sender, RequestFailure> {
        let Some(to) = site.plan.peers.get(peer) else { return Err(RequestFailure::Connect) };
        let began = Instant::now();
        let line = Line::open(site, to)?;
        let sender = Sender(Rc::new(Open(Rc::clone(&line))));
        line.connected(began + site.plan.timeout).await?;
        note(&mut site.tally.borrow_mut().handshake, began.elapsed());
        Ok(sender)
    }

    async fn exchange(self, site: &ThreadPlan, begun: &DueRequest<'_>) -> Result<(), Lost> {
        let line = &*self.0.0;
        let mut stream = Stream { line, id: line.stream().await?, is_over: false };
        let sent = Instant::now();
        line.send(stream.id, begun.call).await?;
        let (mut answer, mut is_first) = (Answer::default(), true);
        while let Some(bytes) = line.receive(stream.id).await? {
            if std::mem::take(&mut is_first) {
                note(&mut site.tally.borrow_mut().first_byte, sent.elapsed());
            }
            if answer.read(stream.id, &bytes).is_err() {
                return Err(Lost::For(RequestFailure::Malformed));
            }
        }
        stream.is_over = true;
        let status = answer.end().map_err(|_| Lost::For(RequestFailure::Malformed))?;
        site.answered(begun.began, status, 0);
        Ok(())
    }
}
