//! A socket with TLS on it.

use std::cell::{RefCell, RefMut};
use std::fmt;
use std::io;
use std::time::Instant;

use weir_engine::{
    Chain, Handle, Patience, Segment, Stream, breathe, copies, is_spent, operation, spend,
};

use crate::client::TlsClient;
use crate::connection::{ConnectionProgress, TlsConnection};
use crate::hello::HandshakeError;
use crate::records::MOST_PLAIN;
use crate::words::RecordError;

/// Room for what is read at once: one record of the largest size, and a little.
const READ: usize = 17 * 1024;
/// Shorter pieces of memory are put together into one record of this size.
const RECORD: usize = MOST_PLAIN;
/// After so many reads of records that carry nothing, the socket is waited for.
const EMPTY_READS: usize = 4;
/// A peer that sends so many of them means no good.
const MOST_EMPTY: u32 = 64;
/// So many bytes that are encrypted, or decrypted, cost a point.
const SECURED: usize = 128;
/// What it costs beside the bytes.
const RECORDS: u32 = 16;
/// At the most this much becomes records before some of it is sent.
const BATCH: usize = 64 * 1024;

/// The state of a TLS connection apart from its socket. It is `Send`, so that a connection that rests can move to
/// another thread, and holds no buffer unless a record came in part or was sent in part.
pub struct Secured(Box<SecuredState>);

struct SecuredState {
    connection: TlsConnection,
    /// Records on their way.
    outgoing: Chain,
    /// How many bytes of the caller's chain those are.
    owed: u64,
    /// The peer sent what cannot be read, or the socket failed.
    broken: bool,
    /// So many reads one after another were whole records that carried nothing.
    empty: u32,
}

/// A connected socket with TLS on it. As with [`Stream`], one task may receive and another may send.
pub struct TlsStream {
    stream: Stream,
    /// None while it is lent out: [`TlsStream::lend`].
    state: RefCell<Option<Box<SecuredState>>>,
}

/// A handshake between two messages of the peer's: a value that is free to move to another thread.
pub struct Halfway {
    state: Box<SecuredState>,
    effort: Effort,
    /// What answers the peer already.
    answer: Vec<u8>,
}

/// The first step that answers the peer is the one that agrees on keys, and signs or verifies; those after it cost little.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// It is done by a thread.
    Offloaded,
    /// It waits until it is its turn.
    Heavy,
    /// It is behind.
    Little,
}

/// What a step of a handshake came to.
pub enum Advanced {
    /// The end.
    Done(Secured),
    /// It is the peer's turn.
    Waits(Halfway),
}

/// A step that is made, and whose answer the peer has not got yet.
struct Step {
    state: Box<SecuredState>,
    effort: Effort,
    result: Result<ConnectionProgress, rustls::Error>,
    answer: Vec<u8>,
    plain: Vec<u8>,
}

/// A handshake with a server that has shown its certificates. It gets no answer before this goes on; dropped, it gets none.
pub struct Inspected(Step);

impl Halfway {
    /// What was read before was fed to the connection.
    pub(crate) fn new(connection: TlsConnection, offload: bool) -> Halfway {
        let state =
            SecuredState { connection, outgoing: Chain::new(), owed: 0, broken: false, empty: 0 };
        let effort = if offload { Effort::Offloaded } else { Effort::Heavy };
        Halfway { state: Box::new(state), effort, answer: Vec::new() }
    }

    /// A handshake of which the first step was made; the peer has not got this answer yet.
    pub(crate) fn answered(connection: TlsConnection, answer: Vec<u8>) -> Halfway {
        Halfway { effort: Effort::Little, answer, ..Halfway::new(connection, false) }
    }

    /// Understands what was read, and answers it; the peer takes the answer by `until`.
    pub async fn advance(
        self,
        stream: &Stream,
        until: Instant,
    ) -> Result<Advanced, HandshakeError> {
        self.step(stream).await?.answer(stream, until).await
    }

    /// Understands what was read.
    async fn step(self, stream: &Stream) -> Result<Step, HandshakeError> {
        let Halfway { mut state, mut effort, answer } = self;
        if effort == Effort::Heavy && !state.connection.incoming.is_empty() {
            stream.handle().heavy().await;
            effort = Effort::Little;
        }
        let step = move || {
            let (mut plain, mut out) = (Vec::new(), answer);
            let result = state.connection.advance(&mut plain, &mut out);
            (result, out, state, plain)
        };
        let (result, answer, state, plain) = match effort {
            Effort::Offloaded => {
                effort = Effort::Little;
                stream.handle().files().run(step).await?
            }
            Effort::Heavy | Effort::Little => operation("TLS handshake", step),
        };
        Ok(Step { state, effort, result, answer, plain })
    }

    /// Waits for the peer's next words until then.
    pub async fn receive(&mut self, stream: &Stream, until: Instant) -> Result<(), HandshakeError> {
        stream.set_deadline(Some(until));
        let mut buf = std::mem::take(&mut self.state.connection.incoming);
        buf.reserve(4096);
        let (result, buf) = stream.recv(buf).await;
        self.state.connection.incoming = buf;
        if result? == 0 { Err(HandshakeError::Closed) } else { Ok(()) }
    }

    /// Goes through the rest of it, until then at the latest. The stream has no deadline afterwards.
    pub async fn finish(
        mut self,
        stream: &Stream,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        let secured = loop {
            self = match self.advance(stream, until).await? {
                Advanced::Done(secured) => break secured,
                Advanced::Waits(halfway) => halfway,
            };
            self.receive(stream, until).await?;
        };
        stream.set_deadline(None);
        Ok(secured)
    }
}

impl Step {
    /// The peer has shown its certificates, and they are good.
    fn has_certificates(&self) -> bool {
        self.result.is_ok() && !self.state.connection.peer_certificates().is_empty()
    }

    /// Answers the peer, which takes the answer by `until`.
    async fn answer(self, stream: &Stream, until: Instant) -> Result<Advanced, HandshakeError> {
        let Step { mut state, effort, result, answer, plain } = self;
        if !answer.is_empty() {
            let mut chain = Chain::new();
            chain.push(answer);
            if result.is_err() {
                let _ = stream.try_send(&mut chain);
            } else {
                stream.send(&mut chain, Patience::Until(until)).await?;
            }
        }
        let progress = match result? {
            // Data that needs no complete handshake may be acted upon at once.
            ConnectionProgress::Handshake if !plain.is_empty() => ConnectionProgress::Open,
            progress => progress,
        };
        match progress {
            ConnectionProgress::Open => {
                state.connection.early = plain;
                // A connection that waits for its first request needs no buffer.
                if state.connection.incoming.is_empty() {
                    stream.handle().give_buf(std::mem::take(&mut state.connection.incoming));
                }
                Ok(Advanced::Done(Secured(state)))
            }
            ConnectionProgress::Closed => Err(HandshakeError::Closed),
            ConnectionProgress::Handshake => {
                Ok(Advanced::Waits(Halfway { state, effort, answer: Vec::new() }))
            }
        }
    }
}

impl Inspected {
    /// What was agreed on so far, with the server's certificates.
    pub fn connection(&self) -> &TlsConnection {
        &self.0.state.connection
    }

    /// Answers the server, and goes through the rest of the handshake, until then at the latest. The stream has no deadline
    /// afterwards.
    pub async fn finish(self, stream: &Stream, until: Instant) -> Result<Secured, HandshakeError> {
        match self.0.answer(stream, until).await? {
            Advanced::Done(secured) => {
                stream.set_deadline(None);
                Ok(secured)
            }
            Advanced::Waits(mut halfway) => {
                halfway.receive(stream, until).await?;
                halfway.finish(stream, until).await
            }
        }
    }
}

impl fmt::Debug for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inspected")
    }
}

impl fmt::Debug for Halfway {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Halfway")
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secured")
    }
}

impl Secured {
    /// Opens TLS to a server, until then at the latest. The stream has no deadline afterwards.
    pub async fn connect(
        stream: &Stream,
        client: &TlsClient,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        Halfway::new(TlsConnection::client(client)?, false).finish(stream, until).await
    }

    /// The same, up to where the server has shown its certificates. What they are worth, the caller judges: the server has got
    /// nothing of ours yet but what opens the handshake.
    pub async fn inspect(
        stream: &Stream,
        client: &TlsClient,
        until: Instant,
    ) -> Result<Inspected, HandshakeError> {
        let mut halfway = Halfway::new(TlsConnection::client(client)?, false);
        loop {
            let step = halfway.step(stream).await?;
            if step.has_certificates() {
                return Ok(Inspected(step));
            }
            halfway = match step.answer(stream, until).await? {
                Advanced::Waits(halfway) => halfway,
                Advanced::Done(_) => return Err(rustls::Error::NoCertificatesPresented.into()),
            };
            halfway.receive(stream, until).await?;
        }
    }

    /// Puts the state on its socket.
    pub fn on(self, stream: Stream) -> TlsStream {
        TlsStream { stream, state: RefCell::new(Some(self.0)) }
    }

    /// What was agreed on.
    pub fn connection(&self) -> &TlsConnection {
        &self.0.connection
    }
}

impl TlsStream {
    /// The socket.
    pub fn socket(&self) -> &Stream {
        &self.stream
    }

    /// Takes socket and state apart, to be parked.
    pub fn part(self) -> (Stream, Option<Secured>) {
        (self.stream, self.state.into_inner().map(Secured))
    }

    /// Takes the state while nothing is pending in it, so that another thread can go on with it on the same socket.
    /// Until it comes back nothing can be sent or received here.
    pub fn lend(&self) -> Option<Secured> {
        let mut state = self.state.borrow_mut();
        state.take_if(|state| state.is_quiet()).map(Secured)
    }

    /// Takes it back.
    pub fn take_back(&self, secured: Secured) {
        self.state.replace(Some(secured.0));
    }

    fn state(&self) -> io::Result<RefMut<'_, SecuredState>> {
        let state = RefMut::filter_map(self.state.borrow_mut(), |state| state.as_deref_mut());
        state.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// What was agreed on.
    pub fn with<T>(&self, look: impl FnOnce(&TlsConnection) -> T) -> Option<T> {
        self.state().ok().map(|state| look(&state.connection))
    }

    /// Something came that is not received yet, though the socket may be silent.
    pub fn has_unread(&self) -> bool {
        self.state().is_ok_and(|state| !state.connection.early.is_empty())
    }

    /// The next receive need not wait for the socket: something came that is not received yet, or the peer has said
    /// that nothing more will.
    pub fn is_ready(&self) -> bool {
        self.has_unread() || self.state().is_ok_and(|state| state.connection.peer_closed)
    }

    /// Part of a record came.
    pub fn is_amid_record(&self) -> bool {
        self.state().is_ok_and(|state| !state.connection.incoming.is_empty())
    }

    /// Receives what is there, as [`Stream::try_recv`]. Records are taken whole: more may be appended to
    /// `buf` than it had room for.
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        if self.has_unread() {
            let mut early = std::mem::take(&mut self.state()?.connection.early);
            let n = early.len();
            buf.append(&mut early);
            return Ok(Some(n));
        }
        self.receive(buf)
    }

    fn receive(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        for _ in 0..EMPTY_READS {
            let mut state = self.state()?;
            if state.connection.peer_closed {
                return Ok(Some(0));
            }
            let mut incoming = std::mem::take(&mut state.connection.incoming);
            drop(state);
            if incoming.capacity() == 0 {
                incoming = self.handle().take_buf(READ);
            } else if incoming.capacity() - incoming.len() < READ / 2 {
                incoming.reserve(READ);
            }
            match self.stream.try_recv(&mut incoming) {
                Ok(Some(n)) if n > 0 => {}
                other => {
                    self.keep(incoming);
                    return other;
                }
            }
            let n = self.open_records(incoming, buf)?;
            if n > 0 {
                return Ok(Some(n));
            }
        }
        Ok(None)
    }

    /// Receives as [`Stream::recv`]; see [`TlsStream::try_recv`].
    pub async fn recv(&self, mut buf: Vec<u8>) -> (io::Result<usize>, Vec<u8>) {
        loop {
            match self.try_recv(&mut buf).transpose() {
                Some(result) => return (result, buf),
                None => {
                    if let Err(error) = self.stream.readable().await {
                        return (Err(error), buf);
                    }
                }
            }
        }
    }

    /// Waits until the handshake is complete, after early data; or until something else has come, or the deadline.
    pub async fn completed(&self) -> io::Result<()> {
        let mut early = Vec::new();
        while !self.is_ready() && self.with(TlsConnection::is_early) == Some(true) {
            if self.receive_ahead(&mut early).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until there is something to receive, the end included, or until the deadline. Records that carry
    /// nothing for the caller, such as tickets, do not end it.
    pub async fn readable(&self) -> io::Result<()> {
        let mut early = Vec::new();
        while !self.is_ready() {
            if self.receive_ahead(&mut early).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the socket and receives once, for the next receive. True at the end.
    async fn receive_ahead(&self, early: &mut Vec<u8>) -> io::Result<bool> {
        self.socket().readable().await?;
        let closed = self.receive(early)? == Some(0);
        self.keep_unread(early, closed);
        Ok(closed)
    }

    /// Keeps what was received for the next receive.
    fn keep_unread(&self, early: &mut Vec<u8>, closed: bool) {
        let Ok(mut state) = self.state() else { return };
        state.connection.early.append(early);
        state.connection.peer_closed |= closed;
    }

    fn open_records(&self, incoming: Vec<u8>, buf: &mut Vec<u8>) -> io::Result<usize> {
        let before = buf.len();
        let mut out = Vec::new();
        let mut state = self.state()?;
        spend(RECORDS + (incoming.len() / SECURED) as u32);
        state.connection.incoming = incoming;
        let result = state.connection.advance(buf, &mut out);
        let incoming = std::mem::take(&mut state.connection.incoming);
        if !out.is_empty() {
            state.outgoing.push(out);
            // What does not fit goes with the next that is sent.
            let _ = self.stream.try_send(&mut state.outgoing);
        }
        state.broken |= result.is_err();
        let n = buf.len() - before;
        state.empty = if n == 0 && incoming.is_empty() { state.empty + 1 } else { 0 };
        let flood = state.empty > MOST_EMPTY;
        drop(state);
        self.keep(incoming);
        if flood {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "too many empty records"));
        }
        match result {
            // What came before the fault is good.
            Err(error) if n == 0 => {
                Err(io::Error::new(io::ErrorKind::InvalidData, RecordError(error)))
            }
            _ => Ok(n),
        }
    }

    /// Keeps part of a record; an empty buffer goes back to the loop.
    fn keep(&self, incoming: Vec<u8>) {
        if incoming.is_empty() {
            self.handle().give_buf(incoming);
        } else {
            if let Ok(mut state) = self.state() {
                state.connection.incoming = incoming;
            }
        }
    }

    /// Sends what can be sent without waiting, as [`Stream::try_send`] with its bounds. Bytes leave `chain` when the whole of their
    /// record was sent: the same chain must come again until it is empty.
    pub fn try_send(&self, chain: &mut Chain) -> io::Result<Option<u64>> {
        let mut state = self.state()?;
        let mut sent = 0;
        loop {
            if !state.outgoing.is_empty() {
                let result = self.stream.try_send(&mut state.outgoing);
                state.broken |= result.is_err();
                result?;
                if !state.outgoing.is_empty() {
                    return Ok((sent > 0).then_some(sent));
                }
            }
            let owed = std::mem::take(&mut state.owed);
            chain.consume(owed, |buf| self.handle().give_buf(buf));
            sent += owed;
            if chain.is_empty() || (sent > 0 && is_spent()) {
                return Ok(Some(sent));
            }
            state.seal(chain, self.handle())?;
        }
    }

    /// Sends all of `chain`, as [`Stream::send`].
    pub async fn send(&self, chain: &mut Chain, patience: Patience) -> io::Result<()> {
        while !chain.is_empty() {
            self.send_some(chain, patience).await?;
        }
        Ok(())
    }

    /// Sends some of `chain`, as [`Stream::send_some`].
    pub async fn send_some(&self, chain: &mut Chain, patience: Patience) -> io::Result<()> {
        breathe().await;
        let mut waits = false;
        while self.try_send(chain)?.is_none() {
            if !std::mem::replace(&mut waits, true) {
                self.stream.begin_patience(patience);
            }
            self.stream.writable().await?;
        }
        Ok(())
    }

    /// Tells the peer that nothing more will come; the socket stays open. Only what fits into the socket's
    /// buffer is sent.
    pub fn close_notify(&self) {
        let Ok(mut state) = self.state() else { return };
        // In the midst of a record there is no place for another.
        if state.broken || state.owed > 0 {
            return;
        }
        let mut out = Vec::new();
        if state.connection.close(&mut out).is_ok() {
            state.outgoing.push(out);
            let _ = self.stream.try_send(&mut state.outgoing);
        }
    }

    fn handle(&self) -> &Handle {
        self.stream.handle()
    }
}

impl SecuredState {
    /// Neither end is in the midst of anything, as far as is known here.
    fn is_quiet(&self) -> bool {
        let received = self.connection.incoming.is_empty() && self.connection.early.is_empty();
        let connection = &self.connection;
        let open = !(self.broken || connection.peer_closed || connection.is_early());
        open && received && self.outgoing.is_empty() && self.owed == 0
    }

    /// Makes records of the head of the chain.
    fn seal(&mut self, chain: &Chain, handle: &Handle) -> io::Result<()> {
        let files = || io::Error::new(io::ErrorKind::InvalidInput, "a file cannot be encrypted");
        let front = chain.front().and_then(Segment::memory).ok_or_else(files)?;
        let several = chain.segments().nth(1).is_some();
        let mut gathered = None;
        let plain = if several && front.len() < RECORD {
            let buf: &mut Vec<u8> = gathered.insert(handle.take_buf(RECORD));
            for memory in chain.segments().map_while(Segment::memory) {
                let room = RECORD - buf.len();
                copies::append(buf, memory.get(..room).unwrap_or(memory));
                if buf.len() == RECORD {
                    break;
                }
            }
            buf.as_slice()
        } else {
            front.get(..BATCH).unwrap_or(front)
        };
        let mut out = handle.take_buf(plain.len() + plain.len() / 32 + 256);
        let result = self.connection.encrypt(plain, &mut out);
        spend(RECORDS + (plain.len() / SECURED) as u32);
        self.owed = plain.len() as u64;
        if let Some(buf) = gathered {
            handle.give_buf(buf);
        }
        match result {
            Ok(()) => self.outgoing.push(out),
            Err(error) => {
                self.broken = true;
                return Err(io::Error::other(error));
            }
        }
        Ok(())
    }
}
