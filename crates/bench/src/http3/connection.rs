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

use crate::streams::ExchangeError;
use crate::thread_state::ThreadState;
use crate::{PreparedRequest, RequestFailure, TargetServer};

/// The longest batch that GRO may form of datagrams, and the number of batches per receive call.
const BATCH: usize = 65_535;
const BATCHES: usize = 4;
/// Most datagrams per send call (GSO).
const MAX_SEGMENTS: usize = 10;
/// Most bytes per read of a stream.
const READ: usize = 64 << 10;
/// Flow-control window of the client, so large that the client does not slow the server.
const WINDOW: u32 = 64 << 20;
/// Size of the kernel's receive buffer, if `net.core.rmem_max` permits. The default size fills in
/// 11 ms at 100 Mbit/s while this process does not run. The server would take the overflow for
/// congestion.
const RECEIVE_BUFFER: usize = 4 << 20;

/// The state of a connection.
#[derive(Clone, Copy)]
enum Phase {
    Handshake,
    Open,
    /// The server has sent GOAWAY. It does not process streams from this number on.
    GoingAway(u64),
    /// The connection ended with this failure.
    Over(RequestFailure),
}

/// A unidirectional stream of the server.
#[derive(Default)]
struct ServerStream {
    kind: PartialVarint,
    control: Option<ControlFrames>,
    ignored: bool,
}

pub(super) struct QuicConnection {
    state: Rc<ThreadState>,
    socket: Datagram,
    udp: UdpSocketState,
    endpoint: RefCell<quinn_proto::Endpoint>,
    handle: ConnectionHandle,
    inner: RefCell<quinn_proto::Connection>,
    phase: Cell<Phase>,
    /// Whether the connection is to be closed.
    close_requested: Cell<bool>,
    driver: RefCell<Option<Waker>>,
    /// Wakers of tasks that wait for the connection, and of those that wait for a stream.
    waiting: RefCell<Vec<Waker>>,
    streams: RefCell<Vec<(StreamId, Waker)>>,
    server_streams: RefCell<Vec<(StreamId, ServerStream)>>,
    /// A transmit that the socket did not accept, and its bytes.
    unsent: RefCell<(Option<Transmit>, Vec<u8>)>,
}

impl QuicConnection {
    /// Opens the socket and starts the task of the connection.
    pub(super) fn open(
        state: &Rc<ThreadState>,
        to: &TargetServer,
    ) -> Result<Rc<QuicConnection>, RequestFailure> {
        let (Some(tls), Some(name)) = (&to.tls, &to.name) else {
            return Err(RequestFailure::Connect);
        };
        let address = SocketAddr::try_from(to.address.clone());
        let address = address.map_err(|_| RequestFailure::Connect)?;
        let failed = |e: io::Error| RequestFailure::of_connect(&e);
        let how = ConnectOptions { rcvbuf: Some(RECEIVE_BUFFER), ..ConnectOptions::default() };
        let socket = state.h.connect_datagrams(&to.address, &how).map_err(failed)?;
        let udp = UdpSocketState::new((&socket).into()).map_err(failed)?;
        let crypto = QuicClientConfig::try_from(tls.config()).map_err(|e| {
            state.tally.borrow_mut().explain(RequestFailure::Handshake, &e.to_string());
            RequestFailure::Handshake
        })?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(Arc::new(transport(state)));
        let mut settings = EndpointConfig::default();
        if let Some(longest) = state.plan.longest_datagram {
            let set = settings.max_udp_payload_size(longest);
            set.map_err(|_| RequestFailure::Connect)?;
        }
        let mut endpoint = quinn_proto::Endpoint::new(Arc::new(settings), None, true, None);
        let connected = endpoint.connect(Instant::now(), config, address, name);
        let (handle, inner) = connected.map_err(|_| RequestFailure::Connect)?;
        let connection = Rc::new(QuicConnection {
            state: Rc::clone(state),
            socket,
            udp,
            endpoint: RefCell::new(endpoint),
            handle,
            inner: RefCell::new(inner),
            phase: Cell::new(Phase::Handshake),
            close_requested: Cell::new(false),
            driver: RefCell::default(),
            waiting: RefCell::default(),
            streams: RefCell::default(),
            server_streams: RefCell::default(),
            unsent: RefCell::default(),
        });
        state.h.spawn(Rc::clone(&connection).run());
        Ok(connection)
    }

    /// Waits for the end of the handshake.
    pub(super) async fn connected(&self, until: Instant) -> Result<(), RequestFailure> {
        let open = poll_fn(|cx| match self.phase.get() {
            Phase::Handshake => self.wait(cx),
            Phase::Over(failure) => Poll::Ready(Err(failure)),
            Phase::Open | Phase::GoingAway(_) => Poll::Ready(Ok(())),
        });
        match either(open, self.state.h.sleep_until(until)).await {
            Either::Left(open) => open,
            Either::Right(()) => Err(RequestFailure::ConnectTimeout),
        }
    }

    /// Opens a stream for a request.
    pub(super) async fn stream(&self) -> Result<StreamId, ExchangeError> {
        poll_fn(|cx| match self.phase.get() {
            Phase::Over(RequestFailure::Closed) | Phase::GoingAway(_) => {
                Poll::Ready(Err(ExchangeError::Unprocessed(RequestFailure::ClosedKept)))
            }
            Phase::Over(failure) => Poll::Ready(Err(ExchangeError::Unprocessed(failure))),
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
    pub(super) async fn send(
        &self,
        id: StreamId,
        call: &PreparedRequest,
    ) -> Result<(), ExchangeError> {
        let mut parts = vec![call.frame.clone()];
        if !call.body.is_empty() {
            let mut head = Vec::new();
            frame::write_data_head(call.body.len() as u64, &mut head);
            parts.extend([head.into(), call.body.clone()]);
        }
        poll_fn(|cx| {
            loop {
                if let Phase::Over(failure) = self.phase.get() {
                    return Poll::Ready(Err(ExchangeError::Other(failure)));
                }
                let mut inner = self.inner.borrow_mut();
                let mut stream = inner.send_stream(id);
                match stream.write_chunks(&mut parts) {
                    Ok(written) => {
                        parts.drain(..written.chunks);
                        if parts.is_empty() {
                            // If the server has stopped the stream, its response says why.
                            let _ = stream.finish();
                            break;
                        }
                    }
                    Err(WriteError::Blocked) => {
                        drop(inner);
                        self.wake_driver();
                        return self.wait_for(id, cx);
                    }
                    // The server answers without the rest of the request.
                    Err(WriteError::Stopped(_) | WriteError::ClosedStream) => break,
                }
            }
            self.wake_driver();
            Poll::Ready(Ok(()))
        })
        .await
    }

    /// Returns the next piece of a response. `None` at its end.
    pub(super) async fn receive(&self, id: StreamId) -> Result<Option<Bytes>, ExchangeError> {
        poll_fn(|cx| {
            let mut inner = self.inner.borrow_mut();
            let mut stream = inner.recv_stream(id);
            let closed = ExchangeError::Other(RequestFailure::Closed);
            let Ok(mut chunks) = stream.read(true) else { return Poll::Ready(Err(closed)) };
            let read = chunks.next(READ);
            let transmit = chunks.finalize().should_transmit();
            drop(inner);
            if transmit {
                self.wake_driver();
            }
            match (read, self.phase.get()) {
                (Ok(Some(chunk)), _) => Poll::Ready(Ok(Some(chunk.bytes))),
                (Ok(None), _) => Poll::Ready(Ok(None)),
                (Err(ReadError::Reset(code)), _) => {
                    Poll::Ready(Err(if code.into_inner() == ErrorCode::RequestRejected as u64 {
                        ExchangeError::Unprocessed(RequestFailure::StreamRefused)
                    } else {
                        ExchangeError::Other(RequestFailure::StreamReset)
                    }))
                }
                (Err(ReadError::Blocked), Phase::GoingAway(first)) if u64::from(id) >= first => {
                    Poll::Ready(Err(ExchangeError::Unprocessed(RequestFailure::ClosedKept)))
                }
                (Err(ReadError::Blocked), Phase::Over(failure)) => {
                    Poll::Ready(Err(ExchangeError::Other(failure)))
                }
                (Err(ReadError::Blocked), _) => self.wait_for(id, cx),
            }
        })
        .await
    }

    /// Cancels a request.
    pub(super) fn cancel(&self, id: StreamId, code: u64) {
        let code = VarInt::from_u64(code).unwrap_or_default();
        let mut inner = self.inner.borrow_mut();
        // Both fail on a closed stream, where nothing is left to cancel.
        let _ = inner.recv_stream(id).stop(code);
        let _ = inner.send_stream(id).reset(code);
        drop(inner);
        self.streams.borrow_mut().retain(|(other, _)| *other != id);
        self.wake_driver();
    }

    /// Closes the connection.
    pub(super) fn close(&self) {
        self.close_requested.set(true);
        self.wake_driver();
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

    /// Wakes the driver task.
    fn wake_driver(&self) {
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
            if self.close_requested.get() && !self.is_over() {
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

    /// Ready when the driver has work.
    fn poll_work(&self, cx: &mut Context<'_>) -> Poll<()> {
        // The reason of this wake-up is handled below. A later wake-up takes the new waker.
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
        let mut room = self.state.datagrams.take();
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
                    self.state.tally.borrow_mut().bytes += meta.len as u64;
                    let bytes = part.get(..meta.len).unwrap_or(part);
                    for datagram in bytes.chunks(meta.stride.max(1)) {
                        self.handle_datagram(now, meta, datagram);
                    }
                }
            }
            // No server listens there. After the handshake the error is ignored, since anyone could
            // forge it.
            Err(e) if matches!(self.phase.get(), Phase::Handshake) => {
                self.phase.set(Phase::Over(RequestFailure::of_connect(&e)));
            }
            Err(_) => {}
        }
        self.state.datagrams.replace(room);
    }

    fn handle_datagram(&self, now: Instant, meta: &RecvMeta, datagram: &[u8]) {
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
                Event::Connected => self.handshake_completed(),
                Event::ConnectionLost { reason } => self.connection_lost(&reason),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    self.accept_server_streams()
                }
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

    /// Completes the handshake: opens the control stream and sends the settings.
    fn handshake_completed(&self) {
        let mut first = Vec::new();
        frame::write_stream_type(StreamType::Control, &mut first);
        Settings::default().write(&mut first);
        let mut inner = self.inner.borrow_mut();
        if let Some(id) = inner.streams().open(Dir::Uni) {
            // The write fails only if the server permits too few bytes for HTTP/3.
            let _ = inner.send_stream(id).write(&first);
        }
        drop(inner);
        self.phase.set(Phase::Open);
        self.waiting.take().into_iter().for_each(Waker::wake);
    }

    fn connection_lost(&self, reason: &ConnectionError) {
        let (failure, needs_a_reason) = match (self.phase.get(), reason) {
            (_, ConnectionError::LocallyClosed) => return,
            (Phase::Handshake, ConnectionError::TimedOut) => {
                (RequestFailure::ConnectTimeout, false)
            }
            (Phase::Handshake, reason) => (handshake_failure(reason), true),
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
            self.state.tally.borrow_mut().explain(failure, &describe(reason));
        }
        self.phase.set(Phase::Over(failure));
    }

    fn accept_server_streams(&self) {
        loop {
            let id = self.inner.borrow_mut().streams().accept(Dir::Uni);
            let Some(id) = id else { return };
            self.server_streams.borrow_mut().push((id, ServerStream::default()));
            self.read(id);
        }
    }

    /// Reads a unidirectional stream of the server.
    fn read(&self, id: StreamId) {
        let mut all = self.server_streams.borrow_mut();
        let Some((_, stream)) = all.iter_mut().find(|(other, _)| *other == id) else { return };
        let mut inner = self.inner.borrow_mut();
        let mut receive = inner.recv_stream(id);
        let Ok(mut chunks) = receive.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(READ) {
            match stream.take(&chunk.bytes) {
                Ok(None) => {}
                Ok(Some(first)) => {
                    self.phase.set(Phase::GoingAway(first));
                    self.wake_all();
                }
                Err(()) => {
                    self.phase.set(Phase::Over(RequestFailure::Malformed));
                    self.wake_all();
                }
            }
        }
        // Updates of flow control are sent with the next packet.
        let _ = chunks.finalize();
    }

    fn inform_endpoint(&self) {
        loop {
            let event = self.inner.borrow_mut().poll_endpoint_events();
            let Some(event) = event else { return };
            let answer = self.endpoint.borrow_mut().handle_event(self.handle, event);
            if let Some(answer) = answer {
                self.inner.borrow_mut().handle_event(answer);
                self.wake_driver();
            }
        }
    }

    fn transmit(&self) {
        let (mut unsent, mut out) = self.unsent.take();
        let most = self.udp.max_gso_segments().min(MAX_SEGMENTS);
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

impl ServerStream {
    /// Parses received bytes. Returns the stream number of a GOAWAY frame.
    fn take(&mut self, mut bytes: &[u8]) -> Result<Option<u64>, ()> {
        if self.control.is_none() && !self.ignored {
            let Some(kind) = self.kind.read(&mut bytes) else { return Ok(None) };
            match StreamType::from(kind) {
                StreamType::Control => self.control = Some(ControlFrames::new(Role::Client)),
                _ => self.ignored = true,
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

fn transport(state: &ThreadState) -> TransportConfig {
    let mut transport = TransportConfig::default();
    transport.stream_receive_window(WINDOW.into());
    transport.receive_window(WINDOW.into());
    transport.max_concurrent_bidi_streams(0_u32.into());
    transport.datagram_receive_buffer_size(None);
    transport.max_idle_timeout(state.plan.timeout.try_into().ok());
    transport
}

/// Describes why a connection was connection_lost.
fn describe(reason: &ConnectionError) -> String {
    let ConnectionError::TransportError(error) = reason else { return reason.to_string() };
    // The reason explains the error code. rustls wraps the reason of a refused certificate in names
    // of its types.
    let wrapped = error.reason.strip_prefix("invalid peer certificate: Other(OtherError(");
    let text = wrapped.and_then(|text| text.strip_suffix("))")).unwrap_or(&error.reason);
    let text = text.strip_prefix("upstream SSL ").unwrap_or(text);
    if text.is_empty() { error.to_string() } else { text.to_owned() }
}

/// The failure for an error of a handshake.
fn handshake_failure(reason: &ConnectionError) -> RequestFailure {
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
