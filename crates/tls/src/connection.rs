//! The state of one TLS connection, without a socket: ciphertext in, plaintext out, and the
//! reverse. It is `Send` and holds no buffer between two messages. rustls runs the handshake.
//! Afterwards a server uses weir's record layer ([`Records`]), and a client uses rustls'.

use rustls::client::UnbufferedClientConnection;
use rustls::server::UnbufferedServerConnection;
use rustls::unbuffered::{ConnectionState, EncodeError, EncryptError, InsufficientSizeError};
use rustls::{CommonState, Error, PeerIncompatible, ProtocolVersion, ServerConfig};

use std::sync::Arc;

use weir_engine::copies;

use crate::client::TlsClient;
use crate::negotiated::{Agreed, Negotiated};
use crate::notes::{self, Notes};
use crate::records::{HEAD, MOST_PLAIN, Records, TrafficSecrets};

/// One end of a TLS connection.
pub struct TlsConnection {
    side: Side,
    /// Received bytes that are not yet a whole record, or not yet a whole handshake message. rustls
    /// remembers the position of such a message in this buffer, so each step needs all of it.
    pub(crate) incoming: Vec<u8>,
    /// Plaintext of records that were opened while something was sent, or with the handshake.
    pub(crate) unread: Vec<u8>,
    /// The peer has sent close_notify, or its socket has ended.
    pub(crate) peer_closed: bool,
    /// The handshake is complete.
    open: bool,
    /// rustls has encoded a message and does not know yet that it was taken
    /// (`TransmitTlsData::done`).
    transmit_pending: bool,
    /// The first error. Every later call returns it.
    failed: Option<Error>,
    /// What rustls passed to callbacks of the handshake.
    notes: Notes,
    /// The traffic secrets of TLS 1.3, until [`Records`] takes them for key updates.
    secrets: Option<Box<TrafficSecrets>>,
}

enum Side {
    /// A server's end while rustls has it.
    Server {
        connection: Box<UnbufferedServerConnection>,
        /// The most plaintext in a record.
        most: usize,
        /// The client may offer a cipher that this end has.
        shares_cipher: bool,
    },
    /// A client's end.
    Client(Box<UnbufferedClientConnection>),
    /// A server's end after the handshake, with weir's record layer.
    Open(Box<OpenServer>),
    /// A server's end that could not change to weir's record layer.
    Lost,
}

struct OpenServer {
    records: Records,
    agreed: Agreed,
}

/// The state of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConnectionProgress {
    /// The handshake needs more from the peer.
    Handshake,
    /// Data may flow.
    Open,
    /// Both ends have closed.
    Closed,
}

/// The result of one step of rustls' state machine.
enum HandshakeStep {
    Again,
    End(ConnectionProgress),
}

/// Room for a record's header, nonce, tag and padding, generously.
const OVERHEAD: usize = 128;

/// The size of a first record that is made shorter so that the rest is copied fast.
const SHORT: usize = 512;

/// A fatal handshake_failure alert as a plaintext record: RFC 5246, section 7.2.
const HANDSHAKE_FAILURE: [u8; 7] = [21, 3, 3, 0, 2, 2, 40];

impl TlsConnection {
    /// The server's end.
    pub fn server(config: Arc<ServerConfig>) -> Result<TlsConnection, Error> {
        // `max_fragment_size` includes the record's header.
        let most = config.max_fragment_size.map_or(MOST_PLAIN, |size| size.saturating_sub(HEAD));
        let connection = Box::new(UnbufferedServerConnection::new(config)?);
        Ok(Self::new(Side::Server { connection, most, shares_cipher: true }))
    }

    /// The client offers no cipher that this end has. rustls looks at the curves first, and such a
    /// client need not name any.
    pub(crate) fn lacks_cipher(&mut self) {
        if let Side::Server { shares_cipher, .. } = &mut self.side {
            *shares_cipher = false;
        }
    }

    /// The reason that a failed handshake has in logs.
    fn reason(&self, error: Error) -> Error {
        let no_curve = Error::PeerIncompatible(PeerIncompatible::NoKxGroupsInCommon);
        match self.side {
            Side::Server { shares_cipher: false, .. } if error == no_curve => {
                PeerIncompatible::NoCipherSuitesInCommon.into()
            }
            _ => error,
        }
    }

    /// The client's end.
    pub fn client(client: &TlsClient) -> Result<TlsConnection, Error> {
        let (config, name) = (client.config(), client.name.clone());
        Ok(Self::new(Side::Client(Box::new(UnbufferedClientConnection::new(config, name)?))))
    }

    fn new(side: Side) -> TlsConnection {
        let (incoming, unread) = (Vec::new(), Vec::new());
        TlsConnection {
            side,
            incoming,
            unread,
            open: false,
            transmit_pending: false,
            peer_closed: false,
            failed: None,
            notes: Notes::default(),
            secrets: None,
        }
    }

    /// Appends bytes from the peer, for the next [`TlsConnection::advance`].
    pub fn feed(&mut self, bytes: &[u8]) {
        self.incoming.extend_from_slice(bytes);
    }

    /// Processes the received bytes. The plaintext of whole records is appended to `plain`, and
    /// records to send in response to `out`. An error may leave an alert in `out`.
    pub fn advance(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        plain.append(&mut self.unread);
        if let Side::Open(_) = self.side {
            return self.receive(plain, out);
        }
        let result = self.drive(plain, out).map_err(|error| self.reason(error));
        if result == Ok(ConnectionProgress::Open) {
            self.leave_rustls()?;
        }
        result
    }

    /// Takes the steps that can be taken, and collects what rustls passed to callbacks meanwhile.
    fn drive(
        &mut self,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<ConnectionProgress, Error> {
        let result = self.steps(plain, out);
        self.notes.add(notes::take());
        self.secrets = TrafficSecrets::take().or(self.secrets.take());
        result
    }

    /// Opens the records received after the handshake.
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

    /// Hands the connection from rustls to weir's record layer. The handshake must be complete, and
    /// no part of a record or message pending.
    fn leave_rustls(&mut self) -> Result<(), Error> {
        let Side::Server { connection, .. } = &self.side else { return Ok(()) };
        let idle = !self.transmit_pending && self.incoming.is_empty() && !connection.wants_write();
        let version = connection.protocol_version();
        let renews = self.secrets.is_some() || version != Some(ProtocolVersion::TLSv1_3);
        if !idle || !renews || self.peer_closed {
            return Ok(());
        }
        let Side::Server { connection, most, .. } = std::mem::replace(&mut self.side, Side::Lost)
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
                // Usually the step has consumed everything, and another step would find nothing.
                Ok(HandshakeStep::Again) if self.is_idle() => return Ok(ConnectionProgress::Open),
                Ok(HandshakeStep::Again) => {}
                // rustls can send a response to early data before the handshake is complete.
                Ok(HandshakeStep::End(ConnectionProgress::Open)) if self.is_early() => {
                    return Ok(ConnectionProgress::Handshake);
                }
                Ok(HandshakeStep::End(progress)) => {
                    self.open |= progress == ConnectionProgress::Open;
                    return Ok(progress);
                }
                Err(error) => {
                    // rustls may have an alert to send. Stop after it: rustls must see no record
                    // behind the one that failed.
                    let before = out.len();
                    while self.wants_write() && self.step(plain, out).is_ok() {}
                    if matches!(error, Error::General(_)) && !self.open && out.len() == before {
                        // In TLS 1.2, rustls sends no alert if the key has no signature scheme that
                        // the client offers.
                        out.extend_from_slice(&HANDSHAKE_FAILURE);
                    }
                    self.failed = Some(error.clone());
                    return Err(error);
                }
            }
        }
    }

    /// The handshake is complete, and nothing waits to be processed or sent.
    fn is_idle(&self) -> bool {
        self.open
            && !self.transmit_pending
            && self.failed.is_none()
            && self.incoming.is_empty()
            && !self.wants_write()
    }

    fn wants_write(&self) -> bool {
        self.common().is_some_and(CommonState::wants_write)
    }

    /// Takes one step of rustls' state machine.
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
                        self.transmit_pending = true;
                        encoded.map(|()| HandshakeStep::Again)
                    }
                    ConnectionState::TransmitTlsData(data) => {
                        data.done();
                        self.transmit_pending = false;
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
        // rustls copies the plaintext to a place behind the record's header, which may be slow.
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

    /// Appends close_notify. An error if the handshake is not complete.
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
        // rustls reaches its state for writing only after its own messages have been taken.
        if !self.is_idle() {
            let mut unread = std::mem::take(&mut self.unread);
            let ready = self.drive(&mut unread, out);
            self.unread = unread;
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

    /// Changes this end's keys and asks the peer to do the same (KeyUpdate of TLS 1.3).
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

    /// rustls' view of the connection, while rustls has it.
    fn common(&self) -> Option<&CommonState> {
        match &self.side {
            Side::Server { connection, .. } => Some(connection),
            Side::Client(connection) => Some(connection),
            Side::Open(_) | Side::Lost => None,
        }
    }

    /// What both ends have negotiated so far.
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

/// Appends to `out` what `write` puts into the room that it gets. Tries again with more room if
/// `write` asks for it.
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
