//! The record layer of a server's connection after the handshake: RFC 8446, sections 4.6.3, 5 and
//! 6, and RFC 5246, sections 6 and 7.2.
//!
//! rustls runs the handshake and then hands out its keys. It would keep several times the memory
//! that a connection needs from then on. It also encrypts into memory of its own, which is then
//! copied into the send buffer. Here the cipher writes into the send buffer directly.

#[cfg(test)]
mod fuzz;
mod half;
#[cfg(test)]
mod tests;

use rustls::{
    AlertDescription, ContentType, Error, ExtractedSecrets, InvalidMessage, PeerMisbehaved,
    ProtocolVersion,
};

pub(crate) use half::{HEAD, SecretsTaker, TrafficSecrets};
use half::{Half, Version};

const CHANGE_CIPHER_SPEC: u8 = 20;
const ALERT: u8 = 21;
const HANDSHAKE: u8 = 22;
const DATA: u8 = 23;

const CLIENT_HELLO: u8 = 1;
const KEY_UPDATE: u8 = 24;

const WARNING: u8 = 1;
const FATAL: u8 = 2;

/// The most plaintext of a record.
pub(crate) const MOST_PLAIN: usize = 1 << 14;
/// The most bytes behind a record's header, in TLS 1.2 and 1.3: RFC 5246, section 6.2.3, and RFC
/// 8446, section 5.2.
const MOST_SEALED: [usize; 2] = [MOST_PLAIN + 2048, MOST_PLAIN + 256];

/// The most records in a row without contents. rustls has the same limit.
const MOST_EMPTY: u8 = 32;
/// The most key updates of the peer between two pieces of data. rustls and BoringSSL have the same
/// limit.
const MOST_UPDATES: u8 = 32;
/// The most warnings on a connection. rustls and BoringSSL have the same limit.
const MOST_WARNINGS: u8 = 4;

/// Both directions of a connection, and how far the peer is from its limits.
pub(crate) struct Records {
    sends: Half,
    receives: Half,
    version: Version,
    /// The most plaintext of a record that is sent.
    most: u16,
    /// The peer has sent close_notify.
    pub(crate) peer_closed: bool,
    /// This end has sent close_notify or a fatal alert.
    closed: bool,
    /// The peer has requested a key update, which precedes the next data.
    owes_update: bool,
    empty: u8,
    updates: u8,
    warnings: u8,
    renegotiations: u8,
    message: Message,
}

/// A handshake message that has arrived in part.
#[derive(Default)]
struct Message {
    /// Its header: type and length.
    head: [u8; 4],
    /// How many bytes of the header have arrived.
    have: u8,
    /// How many bytes of the body are missing.
    rest: u32,
}

impl Message {
    fn is_none(&self) -> bool {
        self.have == 0
    }
}

/// What is wrong with a record, and the alert for the peer.
struct Fault {
    alert: Option<AlertDescription>,
    error: Error,
}

impl Fault {
    fn new(alert: AlertDescription, error: impl Into<Error>) -> Fault {
        Fault { alert: Some(alert), error: error.into() }
    }

    fn unexpected(got: ContentType) -> Fault {
        let expect_types = vec![ContentType::ApplicationData];
        let error = Error::InappropriateMessage { expect_types, got_type: got };
        Fault::new(AlertDescription::UnexpectedMessage, error)
    }
}

impl Records {
    /// Continues after a handshake. `most` is the most plaintext of a record that is sent. TLS 1.3
    /// needs the traffic secrets.
    pub(crate) fn new(
        keys: ExtractedSecrets,
        version: ProtocolVersion,
        secrets: Option<Box<TrafficSecrets>>,
        most: usize,
    ) -> Result<Records, Error> {
        let version = match version {
            ProtocolVersion::TLSv1_3 => Version::Tls13,
            _ => Version::Tls12,
        };
        let (client, server) = match secrets {
            Some(both) => (Some(both.client.clone()), Some(both.server.clone())),
            None => (None, None),
        };
        Ok(Records {
            sends: Half::new(keys.tx, version, server)?,
            receives: Half::new(keys.rx, version, client)?,
            version,
            most: u16::try_from(most.clamp(1, MOST_PLAIN)).unwrap_or(u16::MAX),
            peer_closed: false,
            closed: false,
            owes_update: false,
            empty: 0,
            updates: 0,
            warnings: 0,
            renegotiations: 0,
            message: Message::default(),
        })
    }

    /// Both ends have closed.
    pub(crate) fn is_over(&self) -> bool {
        self.closed && self.peer_closed
    }

    /// Opens whole records at the front of `incoming`. Appends their data to `plain`, and what must
    /// be sent at once to `out`.
    pub(crate) fn receive(
        &mut self,
        incoming: &mut Vec<u8>,
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let mut at = 0;
        let result = loop {
            // Bytes behind the peer's close_notify are ignored.
            if self.peer_closed {
                at = incoming.len();
                break Ok(());
            }
            match self.next(incoming.get_mut(at..).unwrap_or_default(), plain, out) {
                Ok(0) => break Ok(()),
                Ok(length) => at += length,
                Err(fault) => break Err(fault),
            }
        };
        if at >= incoming.len() {
            incoming.clear();
        } else if at > 0 {
            incoming.drain(..at);
        }
        result.map_err(|fault| {
            if let Some(alert) = fault.alert {
                self.send_alert(FATAL, alert, out);
            }
            fault.error
        })
    }

    /// Opens one record. Returns its length, or 0 if it is not whole.
    fn next(
        &mut self,
        bytes: &mut [u8],
        plain: &mut Vec<u8>,
        out: &mut Vec<u8>,
    ) -> Result<usize, Fault> {
        let Some((head, rest)) = bytes.split_first_chunk_mut::<HEAD>() else { return Ok(0) };
        let head = *head;
        let length = self.check(head)?;
        let Some(body) = rest.get_mut(..length) else { return Ok(0) };
        let contents = self.receives.open(head, body);
        let contents =
            contents.map_err(|error| Fault::new(AlertDescription::BadRecordMac, error))?;
        let (kind, contents) = match self.version {
            Version::Tls12 => (head[0], &*contents),
            Version::Tls13 => unpadded(contents)?,
        };
        if contents.len() > MOST_PLAIN {
            return Err(oversized());
        }
        if !self.message.is_none() && kind != HANDSHAKE {
            let error = PeerMisbehaved::MessageInterleavedWithHandshakeMessage;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        self.empty = if contents.is_empty() { self.empty + 1 } else { 0 };
        if self.empty > MOST_EMPTY {
            let error = PeerMisbehaved::TooManyEmptyFragments;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        match kind {
            DATA => {
                if !contents.is_empty() {
                    self.updates = 0;
                }
                plain.extend_from_slice(contents);
            }
            ALERT => self.alert(contents)?,
            HANDSHAKE => self.handshake(contents, out)?,
            other => return Err(Fault::unexpected(ContentType::from(other))),
        }
        Ok(HEAD + length)
    }

    /// The number of bytes behind this header, if a record may have it.
    fn check(&self, head: [u8; HEAD]) -> Result<usize, Fault> {
        let [kind, major, _, high, low] = head;
        let length = usize::from(u16::from_be_bytes([high, low]));
        let wrong = |error| Err(Fault::new(AlertDescription::DecodeError, error));
        if !(CHANGE_CIPHER_SPEC..=DATA).contains(&kind) {
            return wrong(InvalidMessage::InvalidContentType);
        }
        if major != 3 {
            return wrong(InvalidMessage::UnknownProtocolVersion);
        }
        let [old, new] = MOST_SEALED;
        if length > if self.version == Version::Tls13 { new } else { old } {
            return Err(Fault::new(
                AlertDescription::RecordOverflow,
                InvalidMessage::MessageTooLarge,
            ));
        }
        if self.version == Version::Tls13 && kind != DATA {
            return Err(Fault::unexpected(ContentType::from(kind)));
        }
        Ok(length)
    }

    fn alert(&mut self, contents: &[u8]) -> Result<(), Fault> {
        let [level, description] = *contents else {
            let error = InvalidMessage::MissingData("AlertMessagePayload");
            let alert = match contents {
                [] => AlertDescription::UnexpectedMessage,
                _ => AlertDescription::DecodeError,
            };
            return Err(Fault::new(alert, error));
        };
        let description = AlertDescription::from(description);
        let error = Error::AlertReceived(description);
        if ![WARNING, FATAL].contains(&level) {
            return Err(Fault::new(AlertDescription::IllegalParameter, error));
        }
        if description == AlertDescription::CloseNotify {
            self.peer_closed = true;
            return Ok(());
        }
        if level == FATAL {
            return Err(Fault { alert: None, error });
        }
        self.warnings += 1;
        if self.warnings > MOST_WARNINGS {
            let error = PeerMisbehaved::TooManyWarningAlertsReceived;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        // TLS 1.3 has no other warning.
        if self.version == Version::Tls13 && description != AlertDescription::UserCanceled {
            return Err(Fault::new(AlertDescription::DecodeError, error));
        }
        Ok(())
    }

    /// Reads a part of a handshake message, or several messages.
    fn handshake(&mut self, mut contents: &[u8], out: &mut Vec<u8>) -> Result<(), Fault> {
        if contents.is_empty() {
            let error = InvalidMessage::InvalidEmptyPayload;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        while let Some((&byte, after)) = contents.split_first() {
            let message = &mut self.message;
            if let Some(place) = message.head.get_mut(usize::from(message.have)) {
                *place = byte;
                message.have += 1;
                contents = after;
                let [kind, a, b, c] = message.head;
                message.rest = u32::from_be_bytes([0, a, b, c]);
                if message.have == 1 {
                    self.expect(kind)?;
                } else if self.message.have == 4 {
                    self.expect_length()?;
                }
                continue;
            }
            match self.version {
                Version::Tls13 => {
                    self.message = Message::default();
                    // A key update ends its record, since the next one has other keys.
                    if !after.is_empty() {
                        let error = PeerMisbehaved::KeyEpochWithPendingFragment;
                        return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
                    }
                    return self.key_update(byte);
                }
                Version::Tls12 => {
                    let skipped = contents.len().min(message.rest as usize);
                    contents = contents.get(skipped..).unwrap_or_default();
                    message.rest -= skipped as u32;
                    if message.rest == 0 {
                        self.message = Message::default();
                        self.refuse_renegotiation(out)?;
                    }
                }
            }
        }
        Ok(())
    }

    /// After the handshake, a client may only send a KeyUpdate (TLS 1.3) or a ClientHello (TLS
    /// 1.2), which is refused.
    fn expect(&self, kind: u8) -> Result<(), Fault> {
        let expected = match self.version {
            Version::Tls13 => KEY_UPDATE,
            Version::Tls12 => CLIENT_HELLO,
        };
        if kind == expected { Ok(()) } else { Err(Fault::unexpected(ContentType::Handshake)) }
    }

    fn expect_length(&self) -> Result<(), Fault> {
        let good = match self.version {
            Version::Tls13 => self.message.rest == 1,
            Version::Tls12 => (1..=u32::from(u16::MAX)).contains(&self.message.rest),
        };
        let error = InvalidMessage::HandshakePayloadTooLarge;
        if good { Ok(()) } else { Err(Fault::new(AlertDescription::DecodeError, error)) }
    }

    /// The peer changes to its next keys. With `request` 1 (update_requested), this end must do so
    /// as well.
    fn key_update(&mut self, request: u8) -> Result<(), Fault> {
        if request > 1 {
            let error = InvalidMessage::InvalidKeyUpdate;
            return Err(Fault::new(AlertDescription::IllegalParameter, error));
        }
        self.updates += 1;
        if self.updates > MOST_UPDATES {
            let error = PeerMisbehaved::TooManyKeyUpdateRequests;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        self.owes_update |= request == 1;
        let renewed = self.receives.renew();
        renewed.map_err(|error| Fault::new(AlertDescription::InternalError, error))
    }

    /// Refuses renegotiation with a warning. A second attempt ends the connection.
    fn refuse_renegotiation(&mut self, out: &mut Vec<u8>) -> Result<(), Fault> {
        self.renegotiations += 1;
        if self.renegotiations > 1 {
            let error = PeerMisbehaved::TooManyRenegotiationRequests;
            return Err(Fault::new(AlertDescription::UnexpectedMessage, error));
        }
        self.send_alert(WARNING, AlertDescription::NoRenegotiation, out);
        Ok(())
    }

    /// Appends an alert, unless this end has closed already.
    fn send_alert(&mut self, level: u8, alert: AlertDescription, out: &mut Vec<u8>) {
        if self.closed {
            return;
        }
        self.closed = level == FATAL || alert == AlertDescription::CloseNotify;
        // Without an alert, the end of the socket still tells the peer.
        let _ = self.sends.seal(ALERT, &[level, u8::from(alert)], out);
    }

    /// Appends close_notify, once.
    pub(crate) fn close(&mut self, out: &mut Vec<u8>) {
        self.send_alert(WARNING, AlertDescription::CloseNotify, out);
    }

    /// Appends `plain` as records.
    pub(crate) fn send(&mut self, plain: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        for piece in plain.chunks(usize::from(self.most)) {
            if self.closed {
                return Err(Error::EncryptError);
            }
            if self.owes_update || self.sends.is_exhausted() {
                self.renew(out)?;
            }
            self.sends.seal(DATA, piece, out)?;
        }
        Ok(())
    }

    /// Changes to this end's next keys. TLS 1.2 has no key update, so its connection ends.
    fn renew(&mut self, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.version == Version::Tls12 {
            self.close(out);
            return Err(Error::EncryptError);
        }
        self.owes_update = false;
        // update_not_requested: RFC 8446, section 4.6.3.
        self.sends.seal(HANDSHAKE, &[KEY_UPDATE, 0, 0, 1, 0], out)?;
        self.sends.renew()
    }
}

/// The content type and the contents of a record, without padding: RFC 8446, section 5.4.
fn unpadded(inner: &[u8]) -> Result<(u8, &[u8]), Fault> {
    if inner.len() > MOST_PLAIN + 1 {
        return Err(oversized());
    }
    let end = inner.iter().rposition(|byte| *byte != 0);
    let found = end.and_then(|end| Some((*inner.get(end)?, inner.get(..end)?)));
    found.ok_or_else(|| {
        let error = PeerMisbehaved::IllegalTlsInnerPlaintext;
        Fault::new(AlertDescription::UnexpectedMessage, error)
    })
}

fn oversized() -> Fault {
    Fault::new(AlertDescription::RecordOverflow, Error::PeerSentOversizedRecord)
}
