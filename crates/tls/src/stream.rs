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
use crate::offload::offload;
use crate::records::MOST_PLAIN;
use crate::words::RecordError;

/// Room for one read: a record of the largest size, and a little more.
const READ: usize = 17 * 1024;
/// Shorter segments in memory are gathered into one record of this size.
const RECORD: usize = MOST_PLAIN;
/// Reads in a row without plaintext, after which the task waits for the socket.
const EMPTY_READS: usize = 4;
/// The most reads in a row of whole records without contents. A peer that sends more is hostile.
const MOST_EMPTY: u32 = 64;
/// The number of encrypted or decrypted bytes that cost one point of the task's budget.
const SECURED: usize = 128;
/// The points that each such call costs besides its bytes.
const RECORDS: u32 = 16;
/// The most plaintext that becomes records before some of it is sent.
const BATCH: usize = 64 * 1024;

/// The state of a TLS connection without its socket. It is `Send`, so a parked connection can move
/// to another thread. It holds no buffer unless a record was received or sent in part.
pub struct Secured(Box<SecuredState>);

struct SecuredState {
    connection: TlsConnection,
    /// Records that are not sent yet.
    outgoing: Chain,
    /// How many bytes of the caller's chain these records carry.
    owed: u64,
    /// The peer sent a malformed record, or the socket failed.
    broken: bool,
    /// Reads in a row that were whole records without contents.
    empty: u32,
}

/// A connected socket with TLS. As with [`Stream`], one task may receive while another one sends.
pub struct TlsStream {
    stream: Stream,
    /// `None` while it is lent: [`TlsStream::lend`].
    state: RefCell<Option<Box<SecuredState>>>,
}

/// A handshake between two messages of the peer. It may move to another thread.
pub struct PendingHandshake {
    state: Box<SecuredState>,
    effort: Effort,
    /// Records to send that were made before.
    answer: Vec<u8>,
}

/// How the next step is run. The first step that answers the peer agrees on keys, and signs or
/// verifies. Later steps cost little.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Effort {
    /// On a thread of the file pool.
    Offloaded,
    /// On the loop, once the loop has room for heavy work.
    Heavy,
    /// The expensive step is behind.
    Little,
}

/// The result of a step of the handshake.
pub enum HandshakeProgress {
    /// The handshake is complete, or early data has arrived.
    Done(Secured),
    /// The peer must send more.
    Waits(PendingHandshake),
}

/// A step that was taken, and whose answer is not sent yet.
struct Step {
    state: Box<SecuredState>,
    effort: Effort,
    result: Result<ConnectionProgress, rustls::Error>,
    answer: Vec<u8>,
    plain: Vec<u8>,
}

/// A handshake with a server that has sent its certificates. The server gets no answer until
/// [`Inspected::finish`], and none if this is dropped.
pub struct Inspected(Step);

impl PendingHandshake {
    /// The bytes received before are in the connection already.
    pub(crate) fn new(connection: TlsConnection, offload: bool) -> PendingHandshake {
        let state =
            SecuredState { connection, outgoing: Chain::new(), owed: 0, broken: false, empty: 0 };
        let effort = if offload { Effort::Offloaded } else { Effort::Heavy };
        PendingHandshake { state: Box::new(state), effort, answer: Vec::new() }
    }

    /// A handshake whose first step was taken, with the answer that is not sent yet.
    pub(crate) fn answered(connection: TlsConnection, answer: Vec<u8>) -> PendingHandshake {
        PendingHandshake {
            effort: Effort::Little,
            answer,
            ..PendingHandshake::new(connection, false)
        }
    }

    /// Processes received bytes and sends the answer, by `until` at the latest.
    pub async fn advance(
        self,
        stream: &Stream,
        until: Instant,
    ) -> Result<HandshakeProgress, HandshakeError> {
        self.step(stream).await?.answer(stream, until).await
    }

    /// Processes received bytes.
    async fn step(self, stream: &Stream) -> Result<Step, HandshakeError> {
        let PendingHandshake { mut state, mut effort, answer } = self;
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
                offload(stream.handle(), step).await?
            }
            Effort::Heavy | Effort::Little => operation("TLS handshake", step),
        };
        Ok(Step { state, effort, result, answer, plain })
    }

    /// Receives more bytes from the peer, by `until` at the latest.
    pub async fn receive(&mut self, stream: &Stream, until: Instant) -> Result<(), HandshakeError> {
        stream.set_deadline(Some(until));
        let mut buf = std::mem::take(&mut self.state.connection.incoming);
        buf.reserve(4096);
        let (result, buf) = stream.recv(buf).await;
        self.state.connection.incoming = buf;
        if result? == 0 { Err(HandshakeError::Closed) } else { Ok(()) }
    }

    /// Runs the rest of the handshake, by `until` at the latest. The stream has no deadline
    /// afterwards.
    pub async fn finish(
        mut self,
        stream: &Stream,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        let secured = loop {
            self = match self.advance(stream, until).await? {
                HandshakeProgress::Done(secured) => break secured,
                HandshakeProgress::Waits(pending) => pending,
            };
            self.receive(stream, until).await?;
        };
        stream.set_deadline(None);
        Ok(secured)
    }
}

impl Step {
    /// The server has sent its certificates, and the verifier has accepted them.
    fn has_certificates(&self) -> bool {
        self.result.is_ok() && !self.state.connection.peer_certificates().is_empty()
    }

    /// Sends the answer, by `until` at the latest.
    async fn answer(
        self,
        stream: &Stream,
        until: Instant,
    ) -> Result<HandshakeProgress, HandshakeError> {
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
            // Early data may be processed before the handshake is complete.
            ConnectionProgress::Handshake if !plain.is_empty() => ConnectionProgress::Open,
            progress => progress,
        };
        match progress {
            ConnectionProgress::Open => {
                state.connection.unread = plain;
                // A connection that waits for its first request needs no buffer.
                if state.connection.incoming.is_empty() {
                    stream.handle().give_buf(std::mem::take(&mut state.connection.incoming));
                }
                Ok(HandshakeProgress::Done(Secured(state)))
            }
            ConnectionProgress::Closed => Err(HandshakeError::Closed),
            ConnectionProgress::Handshake => {
                Ok(HandshakeProgress::Waits(PendingHandshake { state, effort, answer: Vec::new() }))
            }
        }
    }
}

impl Inspected {
    /// The connection, with the server's certificates.
    pub fn connection(&self) -> &TlsConnection {
        &self.0.state.connection
    }

    /// Sends the answer and runs the rest of the handshake, by `until` at the latest. The stream
    /// has no deadline afterwards.
    pub async fn finish(self, stream: &Stream, until: Instant) -> Result<Secured, HandshakeError> {
        match self.0.answer(stream, until).await? {
            HandshakeProgress::Done(secured) => {
                stream.set_deadline(None);
                Ok(secured)
            }
            HandshakeProgress::Waits(mut pending) => {
                pending.receive(stream, until).await?;
                pending.finish(stream, until).await
            }
        }
    }
}

impl fmt::Debug for Inspected {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Inspected")
    }
}

impl fmt::Debug for PendingHandshake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("PendingHandshake")
    }
}

impl fmt::Debug for Secured {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secured")
    }
}

impl Secured {
    /// Opens TLS to a server, by `until` at the latest. The stream has no deadline afterwards.
    pub async fn connect(
        stream: &Stream,
        client: &TlsClient,
        until: Instant,
    ) -> Result<Secured, HandshakeError> {
        PendingHandshake::new(TlsConnection::client(client)?, false).finish(stream, until).await
    }

    /// As [`Secured::connect`], up to the server's certificates, which the caller then judges. The
    /// server has received only the ClientHello so far.
    pub async fn inspect(
        stream: &Stream,
        client: &TlsClient,
        until: Instant,
    ) -> Result<Inspected, HandshakeError> {
        let mut pending = PendingHandshake::new(TlsConnection::client(client)?, false);
        loop {
            let step = pending.step(stream).await?;
            if step.has_certificates() {
                return Ok(Inspected(step));
            }
            pending = match step.answer(stream, until).await? {
                HandshakeProgress::Waits(pending) => pending,
                HandshakeProgress::Done(_) => {
                    return Err(rustls::Error::NoCertificatesPresented.into());
                }
            };
            pending.receive(stream, until).await?;
        }
    }

    /// Joins the state with its socket.
    pub fn on(self, stream: Stream) -> TlsStream {
        TlsStream { stream, state: RefCell::new(Some(self.0)) }
    }

    /// The connection, with what was negotiated.
    pub fn connection(&self) -> &TlsConnection {
        &self.0.connection
    }
}

impl TlsStream {
    /// The socket.
    pub fn socket(&self) -> &Stream {
        &self.stream
    }

    /// Separates socket and state, to park the connection.
    pub fn part(self) -> (Stream, Option<Secured>) {
        (self.stream, self.state.into_inner().map(Secured))
    }

    /// Takes the state if nothing is pending in it, so that another thread can use it on the same
    /// socket. Nothing can be sent or received here until [`TlsStream::take_back`].
    pub fn lend(&self) -> Option<Secured> {
        let mut state = self.state.borrow_mut();
        state.take_if(|state| state.is_quiet()).map(Secured)
    }

    /// Takes the state back.
    pub fn take_back(&self, secured: Secured) {
        self.state.replace(Some(secured.0));
    }

    fn state(&self) -> io::Result<RefMut<'_, SecuredState>> {
        let state = RefMut::filter_map(self.state.borrow_mut(), |state| state.as_deref_mut());
        state.map_err(|_| io::ErrorKind::NotConnected.into())
    }

    /// Calls `look` with the connection, unless the state is lent.
    pub fn with<T>(&self, look: impl FnOnce(&TlsConnection) -> T) -> Option<T> {
        self.state().ok().map(|state| look(&state.connection))
    }

    /// There is plaintext to receive, although the socket may have nothing to read.
    pub fn has_unread(&self) -> bool {
        self.state().is_ok_and(|state| !state.connection.unread.is_empty())
    }

    /// The next receive need not wait for the socket: there is plaintext, or the peer has closed.
    pub fn is_ready(&self) -> bool {
        self.has_unread() || self.state().is_ok_and(|state| state.connection.peer_closed)
    }

    /// A record has arrived in part.
    pub fn has_partial_record(&self) -> bool {
        self.state().is_ok_and(|state| !state.connection.incoming.is_empty())
    }

    /// Receives without waiting, as [`Stream::try_recv`]. Records are opened whole, so `buf` may
    /// grow beyond its capacity.
    pub fn try_recv(&self, buf: &mut Vec<u8>) -> io::Result<Option<usize>> {
        if self.has_unread() {
            let mut unread = std::mem::take(&mut self.state()?.connection.unread);
            let n = unread.len();
            buf.append(&mut unread);
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

    /// Waits until the handshake is complete, after early data. Ends early if there is something to
    /// receive, and with an error at the deadline.
    pub async fn completed(&self) -> io::Result<()> {
        let mut unread = Vec::new();
        while !self.is_ready() && self.with(TlsConnection::is_early) == Some(true) {
            if self.receive_ahead(&mut unread).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits until there is something to receive, the end included. Fails at the deadline. Records
    /// without contents for the caller, such as tickets, do not end the wait.
    pub async fn readable(&self) -> io::Result<()> {
        let mut unread = Vec::new();
        while !self.is_ready() {
            if self.receive_ahead(&mut unread).await? {
                break;
            }
        }
        Ok(())
    }

    /// Waits for the socket and receives once, for a later receive. True at the end.
    async fn receive_ahead(&self, unread: &mut Vec<u8>) -> io::Result<bool> {
        self.socket().readable().await?;
        let closed = self.receive(unread)? == Some(0);
        self.keep_unread(unread, closed);
        Ok(closed)
    }

    /// Keeps plaintext for the next receive.
    fn keep_unread(&self, unread: &mut Vec<u8>, closed: bool) {
        let Ok(mut state) = self.state() else { return };
        state.connection.unread.append(unread);
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
            // Records that do not fit are sent with the next ones.
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
            // Plaintext before the faulty record is valid.
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

    /// Sends what it can without waiting, as [`Stream::try_send`] with its bounds. Bytes leave
    /// `chain` once their whole record is sent. So the caller passes the same chain again until it
    /// is empty.
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

    /// Sends close_notify; the socket stays open. Only what fits into the socket's buffer is sent.
    pub fn close_notify(&self) {
        let Ok(mut state) = self.state() else { return };
        // A record cannot begin inside another one.
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
    /// Nothing is pending: no bytes to read, no records to send, and neither end is closing.
    fn is_quiet(&self) -> bool {
        let received = self.connection.incoming.is_empty() && self.connection.unread.is_empty();
        let connection = &self.connection;
        let open = !(self.broken || connection.peer_closed || connection.is_early());
        open && received && self.outgoing.is_empty() && self.owed == 0
    }

    /// Encrypts the front of the chain into records.
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
