//! The state of one TLS connection, without a socket: ciphertext in, plaintext out, and back. It is `Send`
//! and, between two messages, holds no buffer. rustls makes the handshake; what follows is a server's own record layer
//! ([`Records`]), and rustls' for a client.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};
use rustls::{CommonState, Error, ProtocolVersion, ServerConfig};

use std::sync::Arc;

use weir_engine::copies;

use crate::client::TlsClient;
use crate::negotiated::{Agreed, Negotiated};
use crate::notes::{self, Notes};
use crate::records::{HEAD, MOST_PLAIN, Records, TrafficSecrets};

/// One end of a TLS connection.
pub struct TlsConnection {
    side: Side,
    /// What came and is not a whole record yet, or not a whole message of the handshake: rustls remembers
    /// where in it such a message stands, so that every step needs all of it.
    pub(crate) incoming: Vec<u8>,
    /// Contents of records that were met while something was sent.
    pub(crate) early: Vec<u8>,
    /// The peer has said that nothing more will come.
    pub(crate) peer_closed: bool,
    /// The handshake is done.
    open: bool,
    /// rustls has not been told that its last message was sent.
    untold: bool,
    /// What was wrong; nothing works any more.
    failed: Option<Error>,
    /// What the handshake has shown beside what rustls tells.
    notes: Notes,
    /// What later keys are derived from, until the handshake is done.
    secrets: Option<Box<TrafficSecrets>>,
}

enum Side {
    /// A server's end until it can go on without rustls.
    Server {
        connection: Box<UnbufferedServerConnection>,
        /// The most contents of a record.
        most: usize,
    },
    /// A client's end.
    Client(Box<UnbufferedClientConnection>),
    /// A server's end after the handshake.
    Open(Box<OpenServer>),
    /// One that could not go on.
    Lost,
}

struct OpenServer {
    records: Records,
    agreed: Agreed,
}

/// How far a connection is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionProgress {
    /// The handshake needs more from the peer.
    Handshake,
    /// Data may flow.
    Open,
    /// Both ends have closed.
    Closed,
}

/// What a step of the connection has come to.
enum HandshakeStep {
    Again,
    End(ConnectionProgress),
}

/// What a record takes beside its contents, generously.
const OVERHEAD: usize = 128;

/// A first record of this size moves the others to where they are copied fast.
const SHORT: usize = 512;

/// A fatal alert in a record of its own, before there are keys: RFC 5246, section 7.2.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];

impl TlsConnection {
    /// The server's end.
    pub fn server(config: Arc<ServerConfig>) -> Result<TlsConnection, Error> {
        // rustls counts the record's head in.
        let most = config.max_fragment_size.map_or(MOST_PLAIN, |size| size.saturating_sub(HEAD));
        let connection = Box::new(UnbufferedServerConnection::new(config)?);
        Ok(Self::new(Side::Server { connection, most }))
    }

    /// The client's end.
    pub fn client(client: &TlsClient) -> Result<TlsConnection, Error> {
        let (config, name) = (client.config(), client.name.clone());
        Ok(Self::new(Side::Client(Box::new(UnbufferedClientConnection::new(config, name)?))))
    }

    fn new(side: Side) -> TlsConnection {
        let (incoming, early) = (Vec::new(), Vec::new());
        TlsConnection {
            side,
            incoming,
            early,
            open: false,
            untold: false,
            peer_closed: false,
            failed: None,
            notes: Notes::default(),
            secrets: None,
        }
    }

    /// Appends what came of the peer, for the next [`TlsConnection::advance`].
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// Takes what came: the contents of whole records are appended to `plain`, and what is to be sent in
    /// answer to `out`. An error may leave an alert in `out`.
    pub fn advance(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        plain.append(&mut self.early);
        if let Side::Open(_) = self.side {
            return self.receive(plain, out);
        }
        let result = self.go_on(plain, out);
        if result == Ok(ConnectionProgress::Open) {
            self.leave_rustls()?;
        }
        result
    }

    /// Makes the steps of the handshake that can be made, and keeps what rustls said of them.
    fn go_on(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        let result = self.steps(plain, out);
        self.notes.add(notes::take());
        self.secrets = TrafficSecrets::take().or(self.secrets.take());
        result
    }

    /// Takes what came after the handshake.
    fn receive(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let Side::Open(server) = &mut self.side else { return Err(Error::HandshakeNotComplete) };
        let result = server.records.receive(&mut self.incoming, plain, out);
        self.peer_closed |= server.records.peer_closed;
        match result {
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
            Ok(()) if server.records.is_over() => Ok(ConnectionProgress::Closed),
            Ok(()) => Ok(ConnectionProgress::Open),
        }
    }

    /// Goes on without rustls, once its handshake is done and nothing of a record or message is with it.
    fn leave_rustls(&mut self) -> Result<(), Error> {
        let Side::Server { connection, .. } = &self.side else { return Ok(()) };
        let calm = !self.untold && self.incoming.is_empty() && !connection.wants_write();
        let version = connection.protocol_version();
        let renews = self.secrets.is_some() || version != Some(ProtocolVersion::TLSv1_3);
        if !calm || !renews || self.peer_closed {
            return Ok(());
        }
        let Side::Server { connection, most } = std::mem::replace(&mut self.side, Side::Lost)
        else {
            return Ok(());
        };
        let agreed = Agreed::of(&connection);
        let version = version.ok_or(Error::HandshakeNotComplete)?;
        let opened = connection.dangerous_into_kernel_connection().and_then(|(keys, _)| {
            let records = Records::new(keys, version, self.secrets.take(), most)?;
            Ok(OpenServer { records, agreed })
        });
        match opened {
            Ok(server) => self.side = Side::Open(Box::new(server)),
            Err(error) => {
                self.failed = Some(error.clone());
                return Err(error);
            }
        }
        Ok(())
    }

    fn steps(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        loop {
            match self.step(plain, out) {
                // The usual case, one request or answer and nothing else, needs no second look.
                Ok(HandshakeStep::Again) if self.is_calm() => return Ok(ConnectionProgress::Open),
                Ok(HandshakeStep::Again) => {}
                // With early data answers may be written before the handshake is done.
                Ok(HandshakeStep::End(ConnectionProgress::Open)) if self.is_early() => {
                    return Ok(ConnectionProgress::Handshake);
                }
                Ok(HandshakeStep::End(progress)) => {
                    self.open |= progress == ConnectionProgress::Open;
                    return Ok(progress);
                }
                Err(error) => {
                    // An alert may be left to send; rustls must see no record after the one that failed.
                    let before = out.len();
                    while self.wants_write() && self.step(plain, out).is_ok() {}
                    if matches!(error, Error::General(_)) && !self.open && out.len() == before {
                        // There is no key for what the client offers: rustls ends without a word.
                        out.extend_from_slice(&HANDSHAKE_FAILURE);
                    }
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// Data may flow, and rustls has nothing else to do.
    fn is_calm(&self) -> bool {
        self.open
            && !self.untold
            && self.failed.is_none()
            && self.incoming.is_empty()
            && !self.wants_write()
    }

    fn wants_write(&self) -> bool {
        self.common().is_some_and(CommonState::wants_write)
    }

    /// One state of rustls.
    fn step(&mut self, plain: &mut Vec<u8>, out: &mut Vec<u8>) -> Result<HandshakeStep, Error> {
        let mut incoming = std::mem::take(&mut self.incoming);
        let (discard, step) = self.step_in(&mut incoming, plain, out);
        if discard >= incoming.len() {
            incoming.clear();
        } else if discard > 0 {
            incoming.drain(..discard);
        }
        self.incoming = incoming;
        step
    }

    fn step_in(
        &mut self,
        incoming: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> (usize, Result<HandshakeStep, Error>) {
        macro_rules! common {
            ($state:expr, $discard:ident) => {
                match $state {
                    ConnectionState::ReadTraffic(mut traffic) => loop {
                        match traffic.next_record() {
                            None => break Ok(HandshakeStep::Again),
                            Some(Err(error)) => break Err(error),
                            Some(Ok(record)) => {
                                plain.extend_from_slice(record.payload);
                                $discard += record.discard;
                            }
                        }
                    },
                    ConnectionState::EncodeTlsData(mut data) => {
                        let encoded = grow(out, 512, |room| {
                            data.encode(room).map_err(|error| match error {
                                EncodeError::InsufficientSize(size) => Some(size),
                                EncodeError::AlreadyEncoded => None,
                            })
                        });
                        self.untold = true;
                        encoded.map(|()| HandshakeStep::Again)
                    }
                    ConnectionState::TransmitTlsData(data) => {
                        data.done();
                        self.untold = false;
                        Ok(HandshakeStep::Again)
                    }
                    ConnectionState::BlockedHandshake => {
                        Ok(HandshakeStep::End(ConnectionProgress::Handshake))
                    }
                    ConnectionState::WriteTraffic(_) => {
                        Ok(HandshakeStep::End(ConnectionProgress::Open))
                    }
                    ConnectionState::PeerClosed => {
                        self.peer_closed = true;
                        Ok(HandshakeStep::Again)
                    }
                    ConnectionState::Closed => Ok(HandshakeStep::End(ConnectionProgress::Closed)),
                    _ => Err(Error::General("an unknown state of TLS".to_owned())),
                }
            };
        }
        match &mut self.side {
            Side::Server { connection, .. } => {
                let status = connection.process_tls_records(incoming);
                let mut discard = status.discard;
                let step = match status.state {
                    Err(error) => Err(error),
                    Ok(ConnectionState::ReadEarlyData(mut early)) => loop {
                        match early.next_record() {
                            None => break Ok(HandshakeStep::Again),
                            Some(Err(error)) => break Err(error),
                            Some(Ok(record)) => {
                                plain.extend_from_slice(record.payload);
                                discard += record.discard;
                            }
                        }
                    },
                    Ok(state) => common!(state, discard),
                };
                (discard, step)
            }
            Side::Client(connection) => {
                let status = connection.process_tls_records(incoming);
                let mut discard = status.discard;
                let step = status.state.and_then(|state| common!(state, discard));
                (discard, step)
            }
            Side::Open(_) | Side::Lost => (0, Err(Error::HandshakeNotComplete)),
        }
    }

    /// Appends `plain` to `out` as records.
    pub fn encrypt(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        if let Side::Open(server) = &mut self.side {
            return match &self.failed {
                None => server.records.send(plain, out),
                Some(error) => Err(error.clone()),
            };
        }
        // rustls copies what is encrypted to a place behind a record's head.
        let short = if copies::is_slow(plain, HEAD) { SHORT } else { 0 };
        let (first, rest) = plain.split_at_checked(short).unwrap_or((&[], plain));
        if !first.is_empty() {
            self.encrypt_by_rustls(first, out)?;
        }
        self.encrypt_by_rustls(rest, out)
    }

    fn encrypt_by_rustls(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        self.write(out, plain.len() + plain.len() / 32 + OVERHEAD, |writer, room| match writer {
            Writer::Server(mut w) => w.encrypt(plain, room),
            Writer::Client(mut w) => w.encrypt(plain, room),
        })
    }

    /// Appends the message that nothing more will come. Nothing, if the handshake is not done.
    pub fn close(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        if let Side::Open(server) = &mut self.side {
            server.records.close(out);
            return Ok(());
        }
        self.write(out, OVERHEAD, |writer, room| match writer {
            Writer::Server(mut w) => w.queue_close_notify(room),
            Writer::Client(mut w) => w.queue_close_notify(room),
        })
    }

    fn write(
        &mut self,
        out: &mut Vec<u8>,
        size: usize,
        mut with: impl FnMut(Writer<'_>, &mut [u8]) -> Result<usize, EncryptError>,
    ) -> Result<(), Error> {
        // Answers that rustls owes the peer go first: they stand before the state that writes.
        if !self.is_calm() {
            let mut early = std::mem::take(&mut self.early);
            let ready = self.go_on(&mut early, out);
            self.early = early;
            ready?;
        }
        let TlsConnection { side, incoming, .. } = self;
        grow(out, size, |room| {
            let writer = match &mut *side {
                Side::Server { connection: c, .. } => match c.process_tls_records(incoming).state {
                    Ok(ConnectionState::WriteTraffic(w)) => Writer::Server(w),
                    _ => return Err(None),
                },
                Side::Client(c) => match c.process_tls_records(incoming).state {
                    Ok(ConnectionState::WriteTraffic(w)) => Writer::Client(w),
                    _ => return Err(None),
                },
                Side::Open(_) | Side::Lost => return Err(None),
            };
            with(writer, room).map_err(|error| match error {
                EncryptError::InsufficientSize(size) => Some(size),
                EncryptError::EncryptExhausted => None,
            })
        })
    }

    /// Asks for new keys (TLS 1.3).
    #[cfg(test)]
    pub(crate) fn refresh_keys(&mut self) -> Result<(), Error> {
        let state = match &mut self.side {
            Side::Client(connection) => connection.process_tls_records(&mut self.incoming).state?,
            _ => return Err(Error::HandshakeNotComplete),
        };
        match state {
            ConnectionState::WriteTraffic(writer) => writer.refresh_traffic_keys(),
            _ => Err(Error::HandshakeNotComplete),
        }
    }

    #[cfg(test)]
    pub(crate) fn is_without_rustls(&self) -> bool {
        matches!(self.side, Side::Open(_))
    }

    /// What rustls knows, while it is asked.
    fn common(&self) -> Option<&CommonState> {
        match &self.side {
            Side::Server { connection, .. } => Some(connection),
            Side::Client(connection) => Some(connection),
            Side::Open(_) | Side::Lost => None,
        }
    }

    /// What both ends have agreed on so far.
    pub fn negotiated(&self) -> Negotiated<'_> {
        match &self.side {
            Side::Server { connection, .. } => Negotiated::of(connection, &self.notes),
            Side::Client(connection) => Negotiated::of(connection, &self.notes),
            Side::Open(server) => server.agreed.negotiated(&self.notes),
            Side::Lost => Negotiated::none(&self.notes),
        }
    }

    /// As [`Negotiated::is_early`].
    pub fn is_early(&self) -> bool {
        self.common().is_some_and(CommonState::is_handshaking)
    }

    /// As [`Negotiated::alpn`].
    pub fn alpn(&self) -> Option<&[u8]> {
        self.negotiated().alpn()
    }

    /// As [`Negotiated::peer_certificates`].
    pub fn peer_certificates(&self) -> &[rustls::pki_types::CertificateDer<'static>] {
        self.negotiated().peer_certificates()
    }
}

enum Writer<'c> {
    Server(rustls::unbuffered::WriteTraffic<'c, rustls::server::ServerConnectionData>),
    Client(rustls::unbuffered::WriteTraffic<'c, rustls::client::ClientConnectionData>),
}

/// Appends to `out` what `write` puts into the room that it is given; a room too small is made larger.
fn grow(
    out: &mut Vec<u8>,
    mut size: usize,
    mut write: impl FnMut(&mut [u8]) -> Result<usize, Option<InsufficientSizeError>>,
) -> Result<(), Error> {
    let start = out.len();
    loop {
        out.resize(start + size, 0);
        match write(out.get_mut(start..).unwrap_or_default()) {
            Ok(written) => {
                out.truncate(start + written);
                return Ok(());
            }
            Err(Some(InsufficientSizeError { required_size })) if required_size > size => {
                size = required_size;
            }
            Err(_) => {
                out.truncate(start);
                return Err(Error::EncryptError);
            }
        }
    }
}
