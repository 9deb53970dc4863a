//! A QUIC connection to a server, and the task that drives it.

use std::cell::{Cell, RefCell};
use std::future::poll_fn;
use std::io::{self, IoSliceMut};
use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Instant;

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, ConnectionError, ConnectionHandle, DatagramEvent, Dir, EcnCodepoint,
    EndpointConfig, Event, ReadError, StreamEvent, StreamId, Transmit, TransportConfig,
    TransportErrorCode, VarInt, WriteError,
};
use quinn_udp::{RecvMeta, UdpSocketState};
use rustls::AlertDescription;
use weir_engine::{ConnectOptions, Datagram, Either, either};
use weir_proto::http3::varint::PartialVarint;
use weir_proto::http3::{ControlFrames, ControlPart, ErrorCode, Role, Settings, StreamType, frame};

use crate::site::ThreadPlan;
use crate::streams::Lost;
use crate::{PreparedRequest, RequestFailure, TargetServer};

/// What the kernel may put together of one sender's datagrams, and how many of these are received with one call.
const BATCH: usize = 65_535;
const BATCHES: usize = 4;
/// So many datagrams are sent with one call.
const SEGMENTS: usize = 10;
/// Read of a stream at once.
const READ: usize = 64 << 10;
/// How much a server may send before we have taken it: it is never the client that slows it.
const WINDOW: u32 = 64 << 20;
/// What the kernel keeps of it while this process does not run, if `net.core.rmem_max` permits. What the default holds comes within
/// 11 ms at 100 Mbit/s. The server takes the loss of what does not fit for that of a full path.
const RECEIVE_BUFFER: usize = 4 << 20;

/// How far a connection is.
#[derive(Clone, Copy)]
enum Phase {
    Handshake,
    Open,
    /// The server begins with no request whose stream has this number or a higher one.
    Leaving(u64),
    /// It ended in this way.
    Over(RequestFailure),
}

/// A stream that the server has opened.
#[derive(Default)]
struct FromServer {
    kind: PartialVarint,
    control: Option<ControlFrames>,
    is_of_no_interest: bool,
}

pub(super) struct Line {
    site: Rc<ThreadPlan>,
    socket: Datagram,
    udp: UdpSocketState,
    endpoint: RefCell<quinn_proto::Endpoint>,
    handle: ConnectionHandle,
    inner: RefCell<quinn_proto::Connection>,
    phase: Cell<Phase>,
    /// Nobody wants it any more.
    is_left: Cell<bool>,
    driver: RefCell<Option<Waker>>,
    /// Tasks that wait for something of the connection, or of a stream.
    waiting: RefCell<Vec<Waker>>,
    streams: RefCell<Vec<(StreamId, Waker)>>,
    from_server: RefCell<Vec<(StreamId, FromServer)>>,
    /// What did not fit into the socket, and its bytes.
    unsent: RefCell<(Option<Transmit>, Vec<u8>)>,
}

impl Line {
    /// Sends the first packet.
    pub(super) fn open(
        site: &Rc<ThreadPlan>,
        to: &TargetServer,
    ) -> Result<Rc<Line>, RequestFailure> {
        let (Some(tls), Some(name)) = (&to.tls, &to.name) else {
            return Err(RequestFailure::Connect);
        };
        let address = SocketAddr::try_from(to.address.clone());
        let address = address.map_err(|_| RequestFailure::Connect)?;
        let failed = |e: io::Error| RequestFailure::of_connect(&e);
        let how = ConnectOptions { rcvbuf: Some(RECEIVE_BUFFER), ..ConnectOptions::default() };
        let socket = site.h.connect_datagrams(&to.address, &how).map_err(failed)?;
        let udp = UdpSocketState::new((&socket).into()).map_err(failed)?;
        let crypto = QuicClientConfig::try_from(tls.config()).map_err(|e| {
            site.tally.borrow_mut().explain(RequestFailure::Handshake, &e.to_string());
            RequestFailure::Handshake
        })?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport(site)));
        let mut settings = EndpointConfig::default();
        if let Some(longest) = site.plan.longest_datagram {
            let set = settings.max_udp_payload_size(longest);
            set.map_err(|_| RequestFailure::Connect)?;
        }
        let mut endpoint = quinn_proto::Endpoint::new(Arc::new(settings), None, true, None);
        let connected = endpoint.connect(Instant::now(), config, address, name);
        let (handle, inner) = connected.map_err(|_| RequestFailure::Connect)?;
        let line = Rc::new(Line {
            site: Rc::clone(site),
            socket,
            udp,
            endpoint: RefCell::new(endpoint),
            handle,
            inner: RefCell::new(inner),
            phase: Cell::new(Phase::Handshake),
            is_left: Cell::new(false),
            driver: RefCell::default(),
            waiting: RefCell::default(),
            streams: RefCell::default(),
            from_server: RefCell::default(),
            unsent: RefCell::default(),
        });
        site.h.spawn(Rc::clone(&line).run());
        Ok(line)
    }

    /// Waits until requests can be made.
    pub(super) async fn connected(&self, until: Instant) -> Result<(), RequestFailure> {
        let open = poll_fn(|cx| match self.phase.get() {
            Phase::Handshake => self.wait(cx),
            Phase::Over(failure) => Poll::Ready(Err(failure)),
            Phase::Open | Phase::Leaving(_) => Poll::Ready(Ok(())),
        });
        match either(open, self.site.h.sleep_until(until)).await {
            Either::Left(open) => open,
            Either::Right(()) => Err(RequestFailure::ConnectTimeout),
        }
    }

    /// A stream for a request.
    pub(super) async fn stream(&self) -> Result<StreamId, Lost> {
        poll_fn(|cx| match self.phase.get() {
            Phase::Over(RequestFailure::Closed) | Phase::Leaving(_) => {
                Poll::Ready(Err(Lost::Untouched(RequestFailure::ClosedKept)))
            }
            Phase::Over(failure) => Poll::Ready(Err(Lost::Untouched(failure))),
            Phase::Handshake | Phase::Open => {
                match self.inner.borrow_mut().streams().open(Dir::Bi) {
                    Some(id) => Poll::Ready(Ok(id)),
                    None => self.wait(cx),
                }
            }
        })
        .await
    }

    /// Sends a request.
    pub(super) async fn send(&self, id: StreamId, call: &PreparedRequest) -> Result<(), Lost> {
        let mut parts = vec![call.frame.clone()];
        if !call.body.is_empty() {
            let mut head = Vec::new();
            frame::write_data_head(call.body.len() as u64, &mut head);
            parts.extend([head.into(), call.body.clone()]);
        }
        poll_fn(|cx| {
            loop {
                if let Phase::Over(failure) = self.phase.get() {
                    return Poll::Ready(Err(Lost::For(failure)));
                }
                let mut inner = self.inner.borrow_mut();
                let mut stream = inner.send_stream(id);
                match stream.write_chunks(&mut parts) {
                    Ok(written) => {
                        parts.drain(..written.chunks);
                        if parts.is_empty() {
                            // The server may have stopped it: its answer says so.
                            let _ = stream.finish();
                            break;
                        }
                    }
                    Err(WriteError::Blocked) => {
                        drop(inner);
                        self.touch();
                        return self.wait_for(id, cx);
                    }
                    // The answer is there without all of the request.
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
                }
            }
            self.touch();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// The next piece of an answer; none at its end.
    pub(super) async fn receive(&self, id: StreamId) -> Result<Option<Bytes>, Lost> {
        poll_fn(|cx| {
            let mut inner = self.inner.borrow_mut();
            let mut stream = inner.recv_stream(id);
            let closed = Lost::For(RequestFailure::Closed);
            let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Err(closed)) };
            let read = chunks.next(READ);
            let transmit = chunks.finalize().should_transmit();
            drop(inner);
            if transmit {
                self.touch();
            }
            match (read, self.phase.get()) {
                (Ok(Some(chunk)), _) => Poll::Ready(Ok(Some(chunk.bytes))),
                (Ok(None), _) => Poll::Ready(Ok(None)),
                (Err(ReadError::Reset(code)), _) => {
                    Poll::Ready(Err(if code.into_inner() == ErrorCode::RequestRejected as u64 {
                        Lost::Untouched(RequestFailure::StreamRefused)
                    } else {
                        Lost::For(RequestFailure::StreamReset)
                    }))
                }
                (Err(ReadError::Blocked), Phase::Leaving(first)) if u64::from(id) >= first => {
                    Poll::Ready(Err(Lost::Untouched(RequestFailure::ClosedKept)))
                }
                (Err(ReadError::Blocked), Phase::Over(failure)) => {
                    Poll::Ready(Err(Lost::For(failure)))
                }
                (Err(ReadError::Blocked), _) => self.wait_for(id, cx),
            }
        })
        .await
    }

    /// Wants no more of a request.
    pub(super) fn give_up(&self, id: StreamId, code: u64) {
        let code = VarInt::from_u64(code).unwrap_or_default();
        let mut inner = self.inner.borrow_mut();
        // One that is closed needs neither.
        let _ = inner.recv_stream(id).stop(code);
        let _ = inner.send_stream(id).reset(code);
        drop(inner);
        self.streams.borrow_mut().retain(|(other, _)| *other != id);
        self.touch();
    }

    /// Ends the connection.
    pub(super) fn close(&self) {
        self.is_left.set(true);
        self.touch();
    }

    fn wait<T>(&self, cx: &Context<'_>) -> Poll<T> {
        self.waiting.borrow_mut().push(cx.waker().clone());
        Poll::Pending
    }

    fn wait_for<T>(&self, id: StreamId, cx: &Context<'_>) -> Poll<T> {
        let mut streams = self.streams.borrow_mut();
        match streams.iter_mut().find(|(other, _)| *other == id) {
            Some((_, waker)) => waker.clone_from(cx.waker()),
            None => streams.push((id, cx.waker().clone())),
        }
        Poll::Pending
    }

    fn wake(&self, id: StreamId) {
        let mut streams = self.streams.borrow_mut();
        if let Some(at) = streams.iter().position(|(other, _)| *other == id) {
            streams.swap_remove(at).1.wake();
        }
    }

    fn wake_all(&self) {
        self.waiting.take().into_iter().for_each(Waker::wake);
        self.streams.take().into_iter().for_each(|(_, waker)| waker.wake());
    }

    /// The driver looks at the connection.
    fn touch(&self) {
        if let Some(driver) = self.driver.take() {
            driver.wake();
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.phase.get(), Phase::Over(_))
    }

    async fn run(self: Rc<Self>) {
        let mut is_first = true;
        loop {
            if !std::mem::take(&mut is_first) {
                poll_fn(|cx| self.poll_work(cx)).await;
            }
            self.receive_datagrams();
            let now = Instant::now();
            let due = self.inner.borrow_mut().poll_timeout().is_some_and(|at| at <= now);
            if due {
                self.inner.borrow_mut().handle_timeout(now);
            }
            if self.is_left.get() && !self.is_over() {
                let code = VarInt::from_u64(ErrorCode::NoError as u64).unwrap_or_default();
                self.inner.borrow_mut().close(now, code, Bytes::new());
                self.phase.set(Phase::Over(RequestFailure::Closed));
            }
            self.dispatch();
            self.transmit();
            self.inform_endpoint();
            if self.is_over() {
                return self.wake_all();
            }
        }
    }

    /// Ready when there is something to do.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<()> {
        // Whatever woke the task is dealt with by now; a touch from here on wakes it again.
        let untouched = self.driver.borrow_mut().replace(cx.waker().clone()).is_some();
        let unsent = self.unsent.borrow().0.is_some();
        let deadline = self.inner.borrow_mut().poll_timeout();
        self.socket.set_deadline(deadline);
        let ready = !untouched
            || deadline.is_some_and(|at| at <= Instant::now())
            || (unsent && self.socket.poll_writable(cx).is_ready())
            || self.socket.poll_readable(cx).is_ready();
        if ready { Poll::Ready(()) } else { Poll::Pending }
    }

    fn receive_datagrams(&self) {
        let mut room = self.site.datagrams.take();
        room.resize(BATCH * BATCHES, 0);
        let mut metas = [RecvMeta::default(); BATCHES];
        let received = self.socket.try_receive(|fd| {
            let mut parts = room.chunks_mut(BATCH);
            let mut slices: [IoSliceMut<'_>; BATCHES] =
                std::array::from_fn(|_| IoSliceMut::new(parts.next().unwrap_or_default()));
            self.udp.recv((&fd).into(), &mut slices, &mut metas)
        });
        match received {
            Ok(n) => {
                let now = Instant::now();
                for (meta, part) in metas.iter().zip(room.chunks(BATCH)).take(n.unwrap_or(0)) {
                    self.site.tally.borrow_mut().bytes += meta.len as u64;
                    let bytes = part.get(..meta.len).unwrap_or(part);
                    for datagram in bytes.chunks(meta.stride.max(1)) {
                        self.came(now, meta, datagram);
                    }
                }
            }
            // Nothing receives there. Once there is a connection, anybody could say so.
            Err(e) if matches!(self.phase.get(), Phase::Handshake) => {
                self.phase.set(Phase::Over(RequestFailure::of_connect(&e)));
            }
            Err(_) => {}
        }
        self.site.datagrams.replace(room);
    }

    fn came(&self, now: Instant, meta: &RecvMeta, datagram: &[u8]) {
        let ecn = meta.ecn.and_then(|ecn| EcnCodepoint::from_bits(ecn as u8));
        let (bytes, mut answer) = (BytesMut::from(datagram), Vec::new());
        let mut endpoint = self.endpoint.borrow_mut();
        let event = endpoint.handle(now, meta.addr, meta.dst_ip, ecn, bytes, &mut answer);
        if let Some(DatagramEvent::ConnectionEvent(_, event)) = event {
            self.inner.borrow_mut().handle_event(event);
        }
    }

    fn dispatch(&self) {
        loop {
            let event = self.inner.borrow_mut().poll();
            let Some(event) = event else { return };
            match event {
                Event::Connected => self.begin(),
                Event::ConnectionLost { reason } => self.lost(&reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => self.opened(),
                Event::Stream(StreamEvent::Readable { id }) if id.dir() == Dir::Uni => {
                    self.read(id);
                }
                Event::Stream(
                    StreamEvent::Readable { id }
                    | StreamEvent::Writable { id }
                    | StreamEvent::Stopped { id, .. },
                ) => self.wake(id),
                Event::Stream(StreamEvent::Available { .. }) => {
                    self.waiting.take().into_iter().for_each(Waker::wake);
                }
                Event::Stream(StreamEvent::Finished { .. } | StreamEvent::Opened { .. })
                | Event::HandshakeDataReady
                | Event::DatagramReceived
                | Event::DatagramsUnblocked => {}
            }
        }
    }

    /// The handshake is complete: says what HTTP/3 says first.
    fn begin(&self) {
        let mut first = Vec::new();
        frame::write_stream_type(StreamType::Control, &mut first);
        Settings::default().write(&mut first);
        let mut inner = self.inner.borrow_mut();
        if let Some(id) = inner.streams().open(Dir::Uni) {
            // So few bytes fit, or the server lets nobody speak HTTP/3.
            let _ = inner.send_stream(id).write(&first);
        }
        drop(inner);
        self.phase.set(Phase::Open);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    fn lost(&self, reason: &ConnectionError) {
        let (failure, needs_a_reason) = match (self.phase.get(), reason) {
            (_, ConnectionError::LocallyClosed) => return,
            (Phase::Handshake, ConnectionError::TimedOut) => {
                (RequestFailure::ConnectTimeout, false)
            }
            (Phase::Handshake, reason) => (of_handshake(reason), true),
            (_, ConnectionError::TimedOut) => (RequestFailure::Closed, false),
            (_, ConnectionError::Reset) => (RequestFailure::Reset, false),
            (_, ConnectionError::ApplicationClosed(close))
                if close.error_code.into_inner() == ErrorCode::NoError as u64 =>
            {
                (RequestFailure::Closed, false)
            }
            (_, ConnectionError::ApplicationClosed(_) | ConnectionError::ConnectionClosed(_)) => {
                (RequestFailure::GoneAway, true)
            }
            (_, _) => (RequestFailure::Malformed, true),
        };
        if needs_a_reason {
            self.site.tally.borrow_mut().explain(failure, &words(reason));
        }
        self.phase.set(Phase::Over(failure));
    }

    fn opened(&self) {
        loop {
            let id = self.inner.borrow_mut().streams().accept(Dir::Uni);
            let Some(id) = id else { return };
            self.from_server.borrow_mut().push((id, FromServer::default()));
            self.read(id);
        }
    }

    /// Reads a stream that the server has opened.
    fn read(&self, id: StreamId) {
        let mut all = self.from_server.borrow_mut();
        let Some((_, stream)) = all.iter_mut().find(|(other, _)| *other == id) else { return };
        let mut inner = self.inner.borrow_mut();
        let mut receive = inner.recv_stream(id);
        let Ok(mut chunks) = receive.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(READ) {
            match stream.take(&chunk.bytes) {
                Ok(None) => {}
                Ok(Some(first)) => {
                    self.phase.set(Phase::Leaving(first));
                    self.wake_all();
                }
                Err(()) => {
                    self.phase.set(Phase::Over(RequestFailure::Malformed));
                    self.wake_all();
                }
            }
        }
        // What is to be said goes with what follows.
        let _ = chunks.finalize();
    }

    fn inform_endpoint(&self) {
        loop {
            let event = self.inner.borrow_mut().poll_endpoint_events();
            let Some(event) = event else { return };
            let answer = self.endpoint.borrow_mut().handle_event(self.handle, event);
            if let Some(answer) = answer {
                self.inner.borrow_mut().handle_event(answer);
                self.touch();
            }
        }
    }

    fn transmit(&self) {
        let (mut unsent, mut out) = self.unsent.take();
        let most = self.udp.max_gso_segments().min(SEGMENTS);
        loop {
            let next = unsent.take().or_else(|| {
                out.clear();
                self.inner.borrow_mut().poll_transmit(Instant::now(), most, &mut out)
            });
            let Some(transmit) = next else { break };
            let message = quinn_udp::Transmit {
                destination: transmit.destination,
                ecn: transmit.ecn.and_then(|e| quinn_udp::EcnCodepoint::from_bits(e as u8)),
                contents: out.get(..transmit.size).unwrap_or_default(),
                segment_size: transmit.segment_size,
                src_ip: transmit.src_ip,
            };
            let sent = self.socket.try_send_by(|fd| self.udp.try_send((&fd).into(), &message));
            if matches!(sent, Ok(None)) {
                unsent = Some(transmit);
                break;
            }
        }
        self.unsent.replace((unsent, out));
    }
}

impl FromServer {
    /// Takes bytes of it. The first stream that is not served, when the server leaves.
    fn take(&mut self, mut bytes: &[u8]) -> Result<Option<u64>, ()> {
        if self.control.is_none() && !self.is_of_no_interest {
            let Some(kind) = self.kind.read(&mut bytes) else { return Ok(None) };
            match StreamType::from(kind) {
                StreamType::Control => self.control = Some(ControlFrames::new(Role::Client)),
                _ => self.is_of_no_interest = true,
            }
        }
        let (Some(control), mut leaves) = (&mut self.control, None) else { return Ok(None) };
        while !bytes.is_empty() {
            let (used, part) = control.read(bytes).map_err(|_| ())?;
            if let ControlPart::Goaway(first) = part {
                leaves = Some(first);
            }
            bytes = bytes.get(used..).unwrap_or_default();
        }
        Ok(leaves)
    }
}

fn transport(site: &ThreadPlan) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(WINDOW.into());
    transport.receive_window(WINDOW.into());
    transport.max_concurrent_bidi_streams(0_u32.into());
    transport.datagram_receive_buffer_size(None);
    transport.max_idle_timeout(site.plan.timeout.try_into().ok());
    transport
}

/// Why a connection was lost, for people.
fn words(reason: &ConnectionError) -> String {
    let ConnectionError::TransportError(error) = reason else { return reason.to_string() };
    // Its code is a number, which the reason explains. A refused certificate is wrapped in the names of rustls' types.
    let wrapped = error.reason.strip_prefix("invalid peer certificate: Other(OtherError(");
    let text = wrapped.and_then(|text| text.strip_suffix("))")).unwrap_or(&error.reason);
    let text = text.strip_prefix("upstream SSL ").unwrap_or(text);
    if text.is_empty() { error.to_string() } else { text.to_owned() }
}

/// Why a handshake failed.
fn of_handshake(reason: &ConnectionError) -> RequestFailure {
    let code = match reason {
        ConnectionError::TransportError(error) => error.code,
        ConnectionError::ConnectionClosed(close) => close.error_code,
        ConnectionError::Reset => return RequestFailure::Reset,
        _ => return RequestFailure::Handshake,
    };
    let is = |alert: AlertDescription| code == TransportErrorCode::crypto(alert.into());
    let of_certificates = [
        AlertDescription::BadCertificate,
        AlertDescription::UnsupportedCertificate,
        AlertDescription::CertificateRevoked,
        AlertDescription::CertificateExpired,
        AlertDescription::CertificateUnknown,
        AlertDescription::UnknownCA,
        AlertDescription::DecryptError,
    ];
    if is(AlertDescription::NoApplicationProtocol) {
        RequestFailure::NoHttp3
    } else if of_certificates.into_iter().any(is) {
        RequestFailure::Certificate
    } else {
        RequestFailure::Handshake
    }
}
