//! Clients over HTTP/3: quinn-proto without a socket, and frames of their own. They migrate, read
//! slowly, cancel requests, and vanish.

mod lost;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig,
    Event, IdleTimeout, ReadError, StreamEvent, StreamId, TransportConfig, VarInt, WriteError,
};
use weir_testkit::Dice;

use crate::client_request::{ClientRequest, RequestKind};
use crate::fields::{GOAWAY, SETTINGS, frame, take_number, write_number};
use crate::path::Path;
use crate::records::Records;
use crate::stream::{self, Stream};

const NO_ERROR: u64 = 0x100;
const REQUEST_REJECTED: u64 = 0x10b;
const REQUEST_CANCELLED: u64 = 0x10c;
/// The most connections that a client opens.
const ATTEMPTS: usize = 12;

/// An action of a client at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum ClientAction {
    Read,
    Finish(u64),
    Move,
    Vanish,
}

pub struct QuicClient {
    config: ClientConfig,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    pub server: SocketAddr,
    /// The client's sockets. The last one is in use.
    pub sockets: Vec<OwnedFd>,
    pub path: Path,
    pub dice: Dice,
    streams: BTreeMap<StreamId, Stream>,
    unsent: Vec<ClientRequest>,
    at_once: usize,
    /// The client reads at most this many bytes at once, then pauses.
    read_size: usize,
    pause: u64,
    readable: BTreeSet<StreamId>,
    actions: BTreeSet<(u64, ClientAction)>,
    control: BTreeMap<StreamId, Vec<u8>>,
    /// The stream number of a GOAWAY frame. Streams from it on are not served.
    goaway: Option<u64>,
    early: bool,
    handshake_done: bool,
    attempts: usize,
    moves: usize,
    gives_up: bool,
    /// Whether the worker of the connection may have been killed.
    worker_maybe_killed: bool,
    pub wants_socket: bool,
    pub planned: Option<u64>,
    pub done: bool,
}

/// Converts the world's time for quinn.
fn instant(now: u64) -> Instant {
    weir_sys::beginning::beginning() + Duration::from_nanos(now)
}

fn nanos(at: Instant) -> u64 {
    at.saturating_duration_since(weir_sys::beginning::beginning()).as_nanos() as u64
}

pub struct QuicClientSetup {
    pub server: SocketAddr,
    pub socket: OwnedFd,
    pub path: Path,
    pub requests: Vec<ClientRequest>,
    /// The length of the longest answer.
    pub heaviest: u64,
    pub breaks: bool,
}

impl QuicClient {
    pub fn new(
        mut tls: rustls::ClientConfig,
        nature: QuicClientSetup,
        dice: &mut Dice,
        now: u64,
    ) -> QuicClient {
        let QuicClientSetup { server, socket, path, requests, heaviest, breaks } = nature;
        let mut dice = Dice::new(dice.any());
        let window = dice.pick(&[1_000, 20_000, 1 << 20]).max(heaviest as u32 / 100);
        let mut transport = TransportConfig::default();
        transport.stream_receive_window(window.into());
        transport.receive_window((window * dice.pick(&[1, 4])).into());
        transport.max_idle_timeout(Some(IdleTimeout::from(VarInt::from_u32(60_000))));
        transport.max_concurrent_bidi_streams(0u32.into());
        if dice.one_in(3) {
            transport.keep_alive_interval(Some(Duration::from_secs(5)));
        }
        transport.datagram_receive_buffer_size(None);
        tls.alpn_protocols = vec![b"h3".to_vec()];
        tls.enable_early_data = dice.one_in(2);
        let tls = QuicClientConfig::try_from(tls).expect("TLS for QUIC");
        let mut config = ClientConfig::new(Arc::new(tls));
        config.transport_config(Arc::new(transport));
        let mut seed = [0; 32];
        seed.chunks_mut(8).for_each(|word| word.copy_from_slice(&dice.any().to_le_bytes()));
        let mut of_endpoint = EndpointConfig::default();
        of_endpoint.grease_quic_bit(dice.one_in(2));
        let endpoint = Endpoint::new(Arc::new(of_endpoint), None, true, Some(seed));
        let slow = dice.one_in(4);
        let mut quic_client = QuicClient {
            config,
            endpoint,
            connection: None,
            server,
            sockets: vec![socket],
            path,
            streams: BTreeMap::new(),
            unsent: requests,
            at_once: dice.pick(&[1, 3, 100]),
            read_size: if slow { (heaviest as usize / 50).max(500) } else { usize::MAX },
            pause: if slow { dice.pick(&[1_000_000, 50_000_000]) } else { 0 },
            readable: BTreeSet::new(),
            actions: BTreeSet::new(),
            control: BTreeMap::new(),
            goaway: None,
            early: false,
            handshake_done: false,
            attempts: 0,
            moves: dice.pick(&[0, 0, 1, 4]),
            worker_maybe_killed: false,
            gives_up: breaks && dice.one_in(3),
            wants_socket: false,
            planned: None,
            done: false,
            dice,
        };
        quic_client.plan_move(now);
        if breaks && quic_client.dice.one_in(8) {
            let after = quic_client.dice.pick(&[0, 1_000_000, 300_000_000, 3_000_000_000]);
            let after = quic_client.dice.below(after + 1) as u64;
            quic_client.actions.insert((now + after, ClientAction::Vanish));
        }
        quic_client
    }

    fn plan_move(&mut self, now: u64) {
        if self.moves > 0 {
            self.moves -= 1;
            let after = self.dice.pick(&[1_000_000, 100_000_000, 2_000_000_000]);
            let after = self.dice.below(after) as u64;
            self.actions.insert((now + after, ClientAction::Move));
        }
    }

    /// Opens a connection.
    fn connect(&mut self, now: u64, records: &mut Records) {
        self.attempts += 1;
        if self.attempts > ATTEMPTS {
            for request in std::mem::take(&mut self.unsent) {
                match request.excused || self.path.is_lossy() {
                    true => records.excused += 1,
                    false => request.suspect(
                        records,
                        format!("request {} is not served on any connection", request.id),
                    ),
                }
            }
            self.done = true;
            return;
        }
        let connected = self.endpoint.connect(instant(now), self.config.clone(), self.server, "h");
        let (handle, connection) = connected.expect("a connection");
        self.goaway = None;
        self.worker_maybe_killed = false;
        self.control.clear();
        self.handshake_done = false;
        self.early = connection.has_0rtt();
        self.connection = Some((handle, connection));
        if self.early {
            self.open_control_streams();
        }
    }

    /// Opens the control stream and the streams of QPACK.
    fn open_control_streams(&mut self) {
        let Some((_, connection)) = &mut self.connection else { return };
        let mut settings = Vec::new();
        write_number(&mut settings, 0);
        frame(&mut settings, SETTINGS, &[]);
        for bytes in [&settings[..], &[2], &[3]] {
            if let Some(id) = connection.streams().open(Dir::Uni) {
                let _ = connection.send_stream(id).write(bytes);
            }
        }
    }

    /// Sends requests, as many as may be in flight.
    fn send_requests(&mut self, now: u64, records: &mut Records) {
        // A request between the end of the handshake and its event would be lost if early data was
        // refused.
        let early = self.early && self.connection.as_ref().is_some_and(|(_, c)| c.is_handshaking());
        let may = |quic_client: &QuicClient, request: &ClientRequest| {
            quic_client.handshake_done || early && !matches!(request.kind, RequestKind::Upload(_))
        };
        while self.goaway.is_none()
            && self.streams.len() < self.at_once
            && self.unsent.last().is_some_and(|request| may(self, request))
            && let Some((_, connection)) = &mut self.connection
            && let Some(id) = connection.streams().open(Dir::Bi)
            && let Some(request) = self.unsent.pop()
        {
            let out = stream::write(&request, &mut self.dice);
            records.begun.insert(request.id, now);
            let late = self.dice.one_in(6);
            if late {
                let after = self.dice.below(3_000_000_000) as u64;
                self.actions.insert((now + after, ClientAction::Finish(id.into())));
            }
            let some = |dice: &mut Dice| dice.clone().pick(&[1, 3_000, 100_000]);
            let gives_up = self.gives_up && self.dice.one_in(3);
            let enough = gives_up.then(|| self.dice.below(some(&mut self.dice.clone())));
            let breaks = gives_up && self.dice.one_in(2);
            let breaks = breaks.then(|| self.dice.below(out.len() + 1));
            if breaks.is_some() {
                records.broken_requests.insert(request.id);
            }
            let stream = Stream {
                request,
                out,
                at: 0,
                ends: !late,
                buf: Vec::new(),
                data: 0,
                head: None,
                body: Vec::new(),
                enough,
                breaks,
            };
            self.streams.insert(id, stream);
            self.write(id);
        }
    }

    /// Writes as much of a request as the stream accepts.
    fn write(&mut self, id: StreamId) {
        let (Some(stream), Some((_, connection))) =
            (self.streams.get_mut(&id), &mut self.connection)
        else {
            return;
        };
        let mut to = connection.send_stream(id);
        let most = stream.breaks.unwrap_or(stream.out.len());
        while stream.at < most {
            match to.write(&stream.out[stream.at..most]) {
                Ok(n) => stream.at += n,
                Err(WriteError::Blocked) => return,
                // The server has answered and wants no more of the request.
                Err(_) => stream.at = most,
            }
        }
        if stream.breaks.is_some() {
            let _ = to.reset(code(REQUEST_CANCELLED));
            let _ = connection.recv_stream(id).stop(code(REQUEST_CANCELLED));
            self.streams.remove(&id);
        } else if stream.ends {
            stream.ends = false;
            let _ = to.finish();
        }
    }

    /// Receives a datagram.
    pub fn receive(&mut self, now: u64, bytes: &[u8]) {
        let mut unsent = Vec::new();
        let event = self.endpoint.handle(
            instant(now),
            self.server,
            None,
            None,
            BytesMut::from(bytes),
            &mut unsent,
        );
        if let Some(DatagramEvent::ConnectionEvent(handle, event)) = event
            && let Some((own, connection)) = &mut self.connection
            && handle == *own
        {
            connection.handle_event(event);
        }
    }

    /// Performs due actions and handles events. Returns the datagrams to send.
    pub fn act(&mut self, now: u64, records: &mut Records) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some((at, act)) = self.actions.first().copied()
            && at <= now
        {
            self.actions.pop_first();
            self.perform_action(act, now, records);
        }
        while !self.done {
            if self.connection.is_none() {
                match self.unsent.is_empty() {
                    true => self.done = true,
                    false => self.connect(now, records),
                }
                continue;
            }
            self.send_requests(now, records);
            let Some((_, connection)) = &mut self.connection else { continue };
            if connection.poll_timeout().is_some_and(|at| at <= instant(now)) {
                connection.handle_timeout(instant(now));
            }
            let mut any = false;
            while let Some(event) = self.connection.as_mut().and_then(|(_, c)| c.poll()) {
                any = true;
                self.on_event(event, now, records);
            }
            let over = self.unsent.is_empty() && self.streams.is_empty();
            let leaves = self.goaway.is_some() && self.streams.is_empty();
            if (over || leaves)
                && let Some((_, connection)) = &mut self.connection
                && !connection.is_closed()
            {
                connection.close(instant(now), code(NO_ERROR), Bytes::new());
                any = true;
            }
            let Some((handle, connection)) = &mut self.connection else { continue };
            let mut out = Vec::new();
            while let Some(transmit) = connection.poll_transmit(instant(now), 1, &mut out) {
                sent.push(out[..transmit.size].to_vec());
                out.clear();
            }
            let mut drained = false;
            while let Some(event) = connection.poll_endpoint_events() {
                any = true;
                drained |= event.is_drained();
                if let Some(event) = self.endpoint.handle_event(*handle, event) {
                    connection.handle_event(event);
                }
            }
            // A closed connection is dropped at once, so that the client sends nothing more.
            if drained || connection.is_closed() && over {
                self.connection = None;
                self.done |= over;
                continue;
            }
            if !any {
                break;
            }
        }
        sent
    }

    fn perform_action(&mut self, act: ClientAction, now: u64, records: &mut Records) {
        match act {
            ClientAction::Read => {
                for id in std::mem::take(&mut self.readable) {
                    self.read(id, now, records);
                }
            }
            ClientAction::Finish(id) => {
                let found = self.streams.keys().copied().find(|stream| u64::from(*stream) == id);
                if let Some(id) = found
                    && let Some(stream) = self.streams.get_mut(&id)
                {
                    stream.ends = true;
                    self.write(id);
                }
            }
            ClientAction::Move => {
                let Some((_, connection)) = &mut self.connection else { return };
                if connection.stats().frame_rx.handshake_done == 0 {
                    // A client that moves before the handshake is confirmed starts anew (RFC 9000,
                    // section 9).
                    self.actions.insert((now + 50_000_000, ClientAction::Move));
                    return;
                }
                self.wants_socket = true;
                // Either a NAT gives the client another port, or the client itself notices that it
                // has moved.
                if self.dice.one_in(2) {
                    connection.local_address_changed();
                }
                if self.dice.one_in(4) {
                    let time = self.dice.below(8_000_000_000) as u64;
                    self.path.dark_until = now + time;
                }
                self.plan_move(now);
            }
            ClientAction::Vanish => {
                for stream in self
                    .streams
                    .values()
                    .filter(|s| matches!(s.request.kind, RequestKind::Upload(_)))
                {
                    records.broken_requests.insert(stream.request.id);
                }
                self.done = true;
            }
        }
    }

    fn on_event(&mut self, event: Event, now: u64, records: &mut Records) {
        match event {
            Event::Connected => {
                let Some((_, connection)) = &self.connection else { return };
                let refused = self.early && !connection.accepted_0rtt();
                if refused {
                    let streams = std::mem::take(&mut self.streams).into_values();
                    self.unsent.extend(streams.map(|stream| stream.request));
                }
                if refused || !self.early {
                    self.open_control_streams();
                }
                records.early += u64::from(self.early && !refused);
                self.handshake_done = true;
            }
            Event::ConnectionLost { reason } => self.lost(reason, records),
            Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                while let Some(id) =
                    self.connection.as_mut().and_then(|(_, c)| c.streams().accept(Dir::Uni))
                {
                    self.control.insert(id, Vec::new());
                    self.read_control(id, records);
                }
            }
            Event::Stream(StreamEvent::Readable { id }) if self.control.contains_key(&id) => {
                self.read_control(id, records);
            }
            Event::Stream(StreamEvent::Readable { id }) => self.will_read(id, now, records),
            Event::Stream(StreamEvent::Writable { id }) => self.write(id),
            Event::Stream(StreamEvent::Stopped { id, .. }) => self.write(id),
            _ => {}
        }
    }

    fn will_read(&mut self, id: StreamId, now: u64, records: &mut Records) {
        if self.pause == 0 {
            return self.read(id, now, records);
        }
        if self.readable.is_empty() {
            self.actions.insert((now + self.pause, ClientAction::Read));
        }
        self.readable.insert(id);
    }

    fn read_control(&mut self, id: StreamId, records: &mut Records) {
        let (Some((_, connection)), Some(buf)) = (&mut self.connection, self.control.get_mut(&id))
        else {
            return;
        };
        let mut stream = connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(true) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            buf.extend_from_slice(&chunk.bytes);
        }
        let _ = chunks.finalize();
        let mut bytes = &buf[..];
        if take_number(&mut bytes) != Some(0) {
            return;
        }
        // All that has come is read again.
        let mut least = None;
        while let (Some(kind), Some(len)) = (take_number(&mut bytes), take_number(&mut bytes))
            && let Some((mut payload, rest)) = bytes.split_at_checked(len as usize)
        {
            bytes = rest;
            if kind == GOAWAY {
                let last = take_number(&mut payload).unwrap_or(0);
                if least.is_some_and(|before| last > before) {
                    records.report(
                        "a later GOAWAY is for more streams than an earlier one".to_owned(),
                    );
                }
                least = Some(last);
            }
        }
        self.goaway = least.or(self.goaway);
    }

    /// Reads an answer as far as it has arrived.
    fn read(&mut self, id: StreamId, now: u64, records: &mut Records) {
        let (Some((_, connection)), Some(stream)) =
            (&mut self.connection, self.streams.get_mut(&id))
        else {
            return;
        };
        let mut from = connection.recv_stream(id);
        let Ok(mut chunks) = from.read(true) else { return };
        let mut left = self.read_size;
        let ended = loop {
            if left == 0 {
                break None;
            }
            match chunks.next(left) {
                Ok(Some(chunk)) => {
                    left -= chunk.bytes.len().min(left);
                    stream.buf.extend_from_slice(&chunk.bytes);
                }
                Ok(None) => break Some(Ok(())),
                Err(ReadError::Blocked) => break None,
                Err(ReadError::Reset(code)) => break Some(Err(code.into_inner())),
            }
        };
        let _ = chunks.finalize();
        let full = left == 0;
        let torn = stream.parse();
        if let Some(why) = torn {
            let (id, path) = (stream.request.id, stream.request.path());
            records.report(format!("request {id} {path} over HTTP/3: {why}"));
        }
        let enough = stream.enough.is_some_and(|enough| stream.body.len() >= enough);
        match ended {
            None if enough => {
                if let Some(stream) = self.streams.remove(&id) {
                    stream.judge(false, records);
                    records.broken_requests.insert(stream.request.id);
                }
                let _ = connection.recv_stream(id).stop(code(REQUEST_CANCELLED));
                let _ = connection.send_stream(id).reset(code(REQUEST_CANCELLED));
            }
            None if full => self.will_read(id, now, records),
            None => {}
            Some(Ok(())) => {
                let Some(stream) = self.streams.remove(&id) else { return };
                // The rest of the request is not needed.
                let _ = connection.send_stream(id).reset(code(NO_ERROR));
                stream.judge(true, records);
            }
            Some(Err(why)) => {
                let Some(stream) = self.streams.remove(&id) else { return };
                let _ = connection.send_stream(id).reset(code(NO_ERROR));
                if why == REQUEST_REJECTED && stream.head.is_none() {
                    self.unsent.push(stream.request);
                    // The request is not sent again on this connection.
                    self.goaway.get_or_insert(u64::from(id));
                    return;
                }
                stream.judge(false, records);
                // A slow client may leave a stream without flow-control credit for `send_timeout`
                // while it reads others.
                match why == REQUEST_CANCELLED && self.pause > 0 {
                    true => records.excused += 1,
                    false => stream.fails(format!("reset with {why:#x}"), records),
                }
            }
        }
    }

    /// Notes that a worker was killed, perhaps that of this connection. The client cannot know
    /// until the server resets the connection.
    pub fn worker_killed(&mut self) {
        let asked = self.streams.values_mut().map(|stream| &mut stream.request);
        asked.chain(&mut self.unsent).for_each(|request| request.excused = true);
        self.worker_maybe_killed |= self.connection.is_some();
    }

    /// The next time at which the client has work.
    pub fn next(&mut self) -> Option<u64> {
        let timeout = self.connection.as_mut().and_then(|(_, c)| c.poll_timeout()).map(nanos);
        let act = self.actions.first().map(|(at, _)| *at);
        timeout.into_iter().chain(act).min()
    }

    /// Describes what the client waits for.
    pub fn waits_for(&self) -> String {
        let waits = |s: &Stream| format!("{} after {} bytes", s.request.path(), s.body.len());
        let all: Vec<String> = self.streams.values().map(waits).collect();
        let (unsent, attempts) = (self.unsent.len(), self.attempts);
        format!("{} over HTTP/3, {unsent} later, in connection {attempts}", all.join(", "))
    }
}

fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
