//! Clients over HTTP/3: quinn-proto without a socket, and frames of their own. They move, are slow, give up, and vanish.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use quinn_proto::crypto::rustls::QuicClientConfig;
use quinn_proto::{
    ClientConfig, Connection, ConnectionError, ConnectionHandle, DatagramEvent, Dir, Endpoint,
    EndpointConfig, Event, IdleTimeout, ReadError, StreamEvent, StreamId, TransportConfig,
    TransportErrorCode, VarInt, WriteError,
};
use weir_testkit::Dice;

use crate::book::Book;
use crate::client::{Ask, Kind};
use crate::fields::{GOAWAY, SETTINGS, frame, take_number, write_number};
use crate::path::Path;
use crate::stream::{self, Stream};

const NO_ERROR: u64 = 0x100;
const REQUEST_REJECTED: u64 = 0x10b;
const REQUEST_CANCELLED: u64 = 0x10c;
/// A client begins so many connections at most.
const ATTEMPTS: usize = 12;

/// What a client does at a time of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Act {
    Read,
    Finish(u64),
    Move,
    Vanish,
}

pub struct Caller {
    config: ClientConfig,
    endpoint: Endpoint,
    connection: Option<(ConnectionHandle, Connection)>,
    pub server: SocketAddr,
    /// The last one is in use.
    pub sockets: Vec<OwnedFd>,
    pub path: Path,
    pub dice: Dice,
    streams: BTreeMap<StreamId, Stream>,
    later: Vec<Ask>,
    at_once: usize,
    /// The client reads so much, and pauses then.
    gulp: usize,
    pause: u64,
    readable: BTreeSet<StreamId>,
    acts: BTreeSet<(u64, Act)>,
    control: BTreeMap<StreamId, Vec<u8>>,
    /// Streams from this number on are not served.
    goaway: Option<u64>,
    early: bool,
    shaken: bool,
    attempts: usize,
    moves: usize,
    gives_up: bool,
    /// The worker of its connection may be no more.
    bereft: bool,
    pub wants_socket: bool,
    pub planned: Option<u64>,
    pub done: bool,
}

/// A moment of the world as quinn knows it.
fn instant(now: u64) -> Instant {
    weir_sys::beginning::beginning() + Duration::from_nanos(now)
}

fn nanos(at: Instant) -> u64 {
    at.saturating_duration_since(weir_sys::beginning::beginning()).as_nanos() as u64
}

pub struct Nature {
    pub server: SocketAddr,
    pub socket: OwnedFd,
    pub path: Path,
    pub asks: Vec<Ask>,
    /// The most bytes of an answer.
    pub heaviest: u64,
    pub breaks: bool,
}

impl Caller {
    pub fn new(mut tls: rustls::ClientConfig, nature: Nature, dice: &mut Dice, now: u64) -> Caller {
        let Nature { server, socket, path, asks, heaviest, breaks } = nature;
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
        let mut caller = Caller {
            config,
            endpoint,
            connection: None,
            server,
            sockets: vec![socket],
            path,
            streams: BTreeMap::new(),
            later: asks,
            at_once: dice.pick(&[1, 3, 100]),
            gulp: if slow { (heaviest as usize / 50).max(500) } else { usize::MAX },
            pause: if slow { dice.pick(&[1_000_000, 50_000_000]) } else { 0 },
            readable: BTreeSet::new(),
            acts: BTreeSet::new(),
            control: BTreeMap::new(),
            goaway: None,
            early: false,
            shaken: false,
            attempts: 0,
            moves: dice.pick(&[0, 0, 1, 4]),
            bereft: false,
            gives_up: breaks && dice.one_in(3),
            wants_socket: false,
            planned: None,
            done: false,
            dice,
        };
        caller.plan_move(now);
        if breaks && caller.dice.one_in(8) {
            let after = caller.dice.pick(&[0, 1_000_000, 300_000_000, 3_000_000_000]);
            let after = caller.dice.below(after + 1) as u64;
            caller.acts.insert((now + after, Act::Vanish));
        }
        caller
    }

    fn plan_move(&mut self, now: u64) {
        if self.moves > 0 {
            self.moves -= 1;
            let after = self.dice.pick(&[1_000_000, 100_000_000, 2_000_000_000]);
            let after = self.dice.below(after) as u64;
            self.acts.insert((now + after, Act::Move));
        }
    }

    /// Begins a connection.
    fn connect(&mut self, now: u64, book: &mut Book) {
        self.attempts += 1;
        if self.attempts > ATTEMPTS {
            for ask in std::mem::take(&mut self.later) {
                match ask.excused || self.path.is_lossy() {
                    true => book.excused += 1,
                    false => ask.doubt(book, format!("request {} is served nowhere", ask.id)),
                }
            }
            self.done = true;
            return;
        }
        let connected = self.endpoint.connect(instant(now), self.config.clone(), self.server, "h");
        let (handle, connection) = connected.expect("a connection");
        self.goaway = None;
        self.bereft = false;
        self.control.clear();
        self.shaken = false;
        self.early = connection.has_0rtt();
        self.connection = Some((handle, connection));
        if self.early {
            self.introduce();
        }
    }

    /// Opens the streams that carry no request.
    fn introduce(&mut self) {
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

    /// Asks for as much as is to be asked for at once.
    fn ask(&mut self, now: u64, book: &mut Book) {
        // What is asked between the end of the handshake and the event of it is lost with a refusal.
        let early = self.early && self.connection.as_ref().is_some_and(|(_, c)| c.is_handshaking());
        let may = |caller: &Caller, ask: &Ask| {
            caller.shaken || early && !matches!(ask.kind, Kind::Upload(_))
        };
        while self.goaway.is_none()
            && self.streams.len() < self.at_once
            && self.later.last().is_some_and(|ask| may(self, ask))
            && let Some((_, connection)) = &mut self.connection
            && let Some(id) = connection.streams().open(Dir::Bi)
            && let Some(ask) = self.later.pop()
        {
            let out = stream::write(&ask, &mut self.dice);
            book.begun.insert(ask.id, now);
            let late = self.dice.one_in(6);
            if late {
                let after = self.dice.below(3_000_000_000) as u64;
                self.acts.insert((now + after, Act::Finish(id.into())));
            }
            let some = |dice: &mut Dice| dice.clone().pick(&[1, 3_000, 100_000]);
            let gives_up = self.gives_up && self.dice.one_in(3);
            let enough = gives_up.then(|| self.dice.below(some(&mut self.dice.clone())));
            let breaks = gives_up && self.dice.one_in(2);
            let breaks = breaks.then(|| self.dice.below(out.len() + 1));
            if breaks.is_some() {
                book.spoiled.insert(ask.id);
            }
            let stream = Stream {
                ask,
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

    /// Writes what a stream takes.
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
                // The server has answered, and wants no more.
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

    /// A datagram arrives.
    pub fn hear(&mut self, now: u64, bytes: &[u8]) {
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

    /// Does what is due, and what follows from what has come. Returns the datagrams to send.
    pub fn act(&mut self, now: u64, book: &mut Book) -> Vec<Vec<u8>> {
        let mut sent = Vec::new();
        while let Some((at, act)) = self.acts.first().copied()
            && at <= now
        {
            self.acts.pop_first();
            self.does(act, now, book);
        }
        while !self.done {
            if self.connection.is_none() {
                match self.later.is_empty() {
                    true => self.done = true,
                    false => self.connect(now, book),
                }
                continue;
            }
            self.ask(now, book);
            let Some((_, connection)) = &mut self.connection else { continue };
            if connection.poll_timeout().is_some_and(|at| at <= instant(now)) {
                connection.handle_timeout(instant(now));
            }
            let mut any = false;
            while let Some(event) = self.connection.as_mut().and_then(|(_, c)| c.poll()) {
                any = true;
                self.happens(event, now, book);
            }
            let over = self.later.is_empty() && self.streams.is_empty();
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
            // A connection that was closed is forgotten: the client answers nothing more.
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

    fn does(&mut self, act: Act, now: u64, book: &mut Book) {
        match act {
            Act::Read => {
                for id in std::mem::take(&mut self.readable) {
                    self.read(id, now, book);
                }
            }
            Act::Finish(id) => {
                let found = self.streams.keys().copied().find(|stream| u64::from(*stream) == id);
                if let Some(id) = found
                    && let Some(stream) = self.streams.get_mut(&id)
                {
                    stream.ends = true;
                    self.write(id);
                }
            }
            Act::Move => {
                let Some((_, connection)) = &mut self.connection else { return };
                if connection.stats().frame_rx.handshake_done == 0 {
                    // Until then, a client that moves begins anew (RFC 9000, section 9).
                    self.acts.insert((now + 50_000_000, Act::Move));
                    return;
                }
                self.wants_socket = true;
                // A router gives the client another port, or the client knows that it has moved.
                if self.dice.one_in(2) {
                    connection.local_address_changed();
                }
                if self.dice.one_in(4) {
                    let time = self.dice.below(8_000_000_000) as u64;
                    self.path.dark_until = now + time;
                }
                self.plan_move(now);
            }
            Act::Vanish => {
                for stream in
                    self.streams.values().filter(|s| matches!(s.ask.kind, Kind::Upload(_)))
                {
                    book.spoiled.insert(stream.ask.id);
                }
                self.done = true;
            }
        }
    }

    fn happens(&mut self, event: Event, now: u64, book: &mut Book) {
        match event {
            Event::Connected => {
                let Some((_, connection)) = &self.connection else { return };
                let refused = self.early && !connection.accepted_0rtt();
                if refused {
                    let streams = std::mem::take(&mut self.streams).into_values();
                    self.later.extend(streams.map(|stream| stream.ask));
                }
                if refused || !self.early {
                    self.introduce();
                }
                book.early += u64::from(self.early && !refused);
                self.shaken = true;
            }
            Event::ConnectionLost { reason } => self.lost(reason, book),
            Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                while let Some(id) =
                    self.connection.as_mut().and_then(|(_, c)| c.streams().accept(Dir::Uni))
                {
                    self.control.insert(id, Vec::new());
                    self.hear_control(id, book);
                }
            }
            Event::Stream(StreamEvent::Readable { id }) if self.control.contains_key(&id) => {
                self.hear_control(id, book);
            }
            Event::Stream(StreamEvent::Readable { id }) => self.will_read(id, now, book),
            Event::Stream(StreamEvent::Writable { id }) => self.write(id),
            Event::Stream(StreamEvent::Stopped { id, .. }) => self.write(id),
            _ => {}
        }
    }

    fn will_read(&mut self, id: StreamId, now: u64, book: &mut Book) {
        if self.pause == 0 {
            return self.read(id, now, book);
        }
        if self.readable.is_empty() {
            self.acts.insert((now + self.pause, Act::Read));
        }
        self.readable.insert(id);
    }

    fn hear_control(&mut self, id: StreamId, book: &mut Book) {
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
        while let (Some(kind), Some(len)) = (take_number(&mut bytes), take_number(&mut bytes))
            && let Some((mut payload, rest)) = bytes.split_at_checked(len as usize)
        {
            bytes = rest;
            if kind == GOAWAY {
                let last = take_number(&mut payload);
                if self.goaway.is_some_and(|before| last.is_none_or(|last| last > before)) {
                    book.find("a later GOAWAY is for more streams than an earlier one".to_owned());
                }
                self.goaway = last.or(Some(0));
            }
        }
    }

    /// Reads an answer as far as it has come.
    fn read(&mut self, id: StreamId, now: u64, book: &mut Book) {
        let (Some((_, connection)), Some(stream)) =
            (&mut self.connection, self.streams.get_mut(&id))
        else {
            return;
        };
        let mut from = connection.recv_stream(id);
        let Ok(mut chunks) = from.read(true) else { return };
        let mut left = self.gulp;
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
            let (id, path) = (stream.ask.id, stream.ask.path());
            book.find(format!("request {id} {path} over HTTP/3: {why}"));
        }
        let enough = stream.enough.is_some_and(|enough| stream.body.len() >= enough);
        match ended {
            None if enough => {
                if let Some(stream) = self.streams.remove(&id) {
                    stream.judge(false, book);
                    book.spoiled.insert(stream.ask.id);
                }
                let _ = connection.recv_stream(id).stop(code(REQUEST_CANCELLED));
                let _ = connection.send_stream(id).reset(code(REQUEST_CANCELLED));
            }
            None if full => self.will_read(id, now, book),
            None => {}
            Some(Ok(())) => {
                let Some(stream) = self.streams.remove(&id) else { return };
                // What was not sent is not wanted.
                let _ = connection.send_stream(id).reset(code(NO_ERROR));
                stream.judge(true, book);
            }
            Some(Err(why)) => {
                let Some(stream) = self.streams.remove(&id) else { return };
                let _ = connection.send_stream(id).reset(code(NO_ERROR));
                if why == REQUEST_REJECTED && stream.head.is_none() {
                    self.later.push(stream.ask);
                    // It is not asked here again.
                    self.goaway.get_or_insert(u64::from(id));
                    return;
                }
                stream.judge(false, book);
                // A slow client may leave a stream without room for `send_timeout` while it reads others.
                match why == REQUEST_CANCELLED && self.pause > 0 {
                    true => book.excused += 1,
                    false => stream.fails(format!("reset with {why:#x}"), book),
                }
            }
        }
    }

    /// The connection is no more.
    fn lost(&mut self, reason: ConnectionError, book: &mut Book) {
        let streams = std::mem::take(&mut self.streams);
        self.readable.clear();
        self.acts.retain(|(_, act)| !matches!(act, Act::Read | Act::Finish(_)));
        let (mut kind, mut again) = ("lost", false);
        let excused = self.bereft || self.path.is_lossy();
        match &reason {
            ConnectionError::ApplicationClosed(close) => {
                kind = "closed";
                again = close.error_code.into_inner() == NO_ERROR;
                if !again {
                    book.find(format!("a server closed with {close}"));
                }
            }
            ConnectionError::TimedOut => {
                kind = "timed out";
                again = excused;
            }
            ConnectionError::LocallyClosed => {}
            // The server has closed, and what it said was lost. Or a worker that knows nothing of the connection said so.
            ConnectionError::Reset if excused => again = true,
            // It has closed after its answer, of which not all has come, not even the end of the handshake.
            ConnectionError::ConnectionClosed(close)
                if excused && close.error_code == TransportErrorCode::APPLICATION_ERROR =>
            {
                again = true;
            }
            reason => {
                let (attempt, path) = (self.attempts, self.path);
                book.find(format!("connection {attempt} of a client ended: {reason}; {path:?}"));
            }
        }
        for (id, stream) in streams {
            let refused = self.goaway.is_some_and(|from| u64::from(id) >= from);
            let upload = matches!(stream.ask.kind, Kind::Upload(_));
            let unserved = again && stream.head.is_none() && !upload;
            if refused || unserved {
                self.later.push(stream.ask);
            } else if again && upload {
                book.excused += 1;
            } else {
                stream.judge(false, book);
                match again && excused {
                    true => book.excused += 1,
                    false => stream.fails(format!("connection {kind}, {:?}", self.path), book),
                }
            }
        }
    }

    /// A worker was killed, perhaps the one that serves it. It cannot know before the server resets its connection.
    pub fn is_bereft(&mut self) {
        let asked = self.streams.values_mut().map(|stream| &mut stream.ask);
        asked.chain(&mut self.later).for_each(|ask| ask.excused = true);
        self.bereft |= self.connection.is_some();
    }

    /// When the client does something by itself.
    pub fn next(&mut self) -> Option<u64> {
        let timeout = self.connection.as_mut().and_then(|(_, c)| c.poll_timeout()).map(nanos);
        let act = self.acts.first().map(|(at, _)| *at);
        timeout.into_iter().chain(act).min()
    }

    /// What the client waits for, in words.
    pub fn waits_for(&self) -> String {
        let waits = |s: &Stream| format!("{} after {} bytes", s.ask.path(), s.body.len());
        let all: Vec<String> = self.streams.values().map(waits).collect();
        let (later, attempts) = (self.later.len(), self.attempts);
        format!("{} over HTTP/3, {later} later, in connection {attempts}", all.join(", "))
    }
}

fn code(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}
