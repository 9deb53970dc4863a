//! OpenSSL's words for failures in logs, which operators and their tools know.

use std::{fmt, io};

use rustls::{AlertDescription, Error, InvalidMessage, PeerIncompatible};

/// Why a handshake or a connection failed.
pub(crate) struct Reason<'a>(pub(crate) &'a Error);

impl fmt::Display for Reason<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Error::AlertReceived(alert) => {
                let number = u8::from(*alert);
                match alert_words(*alert) {
                    Some(words) => write!(f, "{words}:SSL alert number {number}"),
                    None => write!(f, "unknown alert type:SSL alert number {number}"),
                }
            }
            error => match words(error) {
                Some(words) => f.write_str(words),
                None => error.fmt(f),
            },
        }
    }
}

/// A record of the peer that is malformed, or an alert that ends the connection.
#[derive(Debug)]
pub(crate) struct RecordError(pub(crate) Error);

impl fmt::Display for RecordError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SSL: {}", Reason(&self.0))
    }
}

impl std::error::Error for RecordError {}

/// The call that failed, for the log: `call`, or OpenSSL's `SSL_read()` if a TLS record is at
/// fault.
pub fn failed_call<'a>(call: &'a str, error: &io::Error) -> &'a str {
    match error.get_ref().is_some_and(|inner| inner.is::<RecordError>()) {
        true => "SSL_read()",
        false => call,
    }
}

/// OpenSSL's words for an error, if they say no less than rustls'.
fn words(error: &Error) -> Option<&'static str> {
    match error {
        Error::NoApplicationProtocol => Some("no application protocol"),
        Error::DecryptError => Some("decryption failed or bad record mac"),
        Error::PeerSentOversizedRecord => Some("packet length too long"),
        Error::InvalidMessage(
            InvalidMessage::InvalidContentType | InvalidMessage::UnknownProtocolVersion,
        ) => Some("wrong version number"),
        Error::InvalidMessage(InvalidMessage::MessageTooLarge) => Some("packet length too long"),
        Error::PeerIncompatible(why) => incompatible(why),
        _ => None,
    }
}

fn incompatible(why: &PeerIncompatible) -> Option<&'static str> {
    match why {
        PeerIncompatible::NoCipherSuitesInCommon => Some("no shared cipher"),
        PeerIncompatible::NoKxGroupsInCommon => Some("no suitable key share"),
        PeerIncompatible::NoSignatureSchemesInCommon => Some("no suitable signature algorithm"),
        PeerIncompatible::ServerDoesNotSupportTls12Or13
        | PeerIncompatible::ServerTlsVersionIsDisabledByOurConfig
        | PeerIncompatible::SupportedVersionsExtensionRequired
        | PeerIncompatible::Tls12NotOffered
        | PeerIncompatible::Tls12NotOfferedOrEnabled
        | PeerIncompatible::Tls13RequiredForQuic => Some("unsupported protocol"),
        _ => None,
    }
}

fn alert_words(alert: AlertDescription) -> Option<&'static str> {
    use AlertDescription as Alert;
    Some(match alert {
        Alert::UnexpectedMessage => "sslv3 alert unexpected message",
        Alert::BadRecordMac => "sslv3 alert bad record mac",
        Alert::DecryptionFailed => "tlsv1 alert decryption failed",
        Alert::RecordOverflow => "tlsv1 alert record overflow",
        Alert::DecompressionFailure => "sslv3 alert decompression failure",
        Alert::HandshakeFailure => "sslv3 alert handshake failure",
        Alert::NoCertificate => "sslv3 alert no certificate",
        Alert::BadCertificate => "sslv3 alert bad certificate",
        Alert::UnsupportedCertificate => "sslv3 alert unsupported certificate",
        Alert::CertificateRevoked => "sslv3 alert certificate revoked",
        Alert::CertificateExpired => "sslv3 alert certificate expired",
        Alert::CertificateUnknown => "sslv3 alert certificate unknown",
        Alert::IllegalParameter => "sslv3 alert illegal parameter",
        Alert::UnknownCA => "tlsv1 alert unknown ca",
        Alert::AccessDenied => "tlsv1 alert access denied",
        Alert::DecodeError => "tlsv1 alert decode error",
        Alert::DecryptError => "tlsv1 alert decrypt error",
        Alert::ExportRestriction => "tlsv1 alert export restriction",
        Alert::ProtocolVersion => "tlsv1 alert protocol version",
        Alert::InsufficientSecurity => "tlsv1 alert insufficient security",
        Alert::InternalError => "tlsv1 alert internal error",
        Alert::InappropriateFallback => "tlsv1 alert inappropriate fallback",
        Alert::UserCanceled => "tlsv1 alert user cancelled",
        Alert::NoRenegotiation => "tlsv1 alert no renegotiation",
        Alert::MissingExtension => "tlsv13 alert missing extension",
        Alert::UnsupportedExtension => "tlsv1 unsupported extension",
        Alert::CertificateUnobtainable => "tlsv1 certificate unobtainable",
        Alert::UnrecognisedName => "tlsv1 unrecognized name",
        Alert::BadCertificateStatusResponse => "tlsv1 bad certificate status response",
        Alert::BadCertificateHashValue => "tlsv1 bad certificate hash value",
        Alert::UnknownPSKIdentity => "tlsv1 alert unknown psk identity",
        Alert::CertificateRequired => "tlsv13 alert certificate required",
        Alert::NoApplicationProtocol => "tlsv1 alert no application protocol",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_have_openssls_words() {
        let reason = |error: Error| Reason(&error).to_string();
        assert_eq!(
            reason(Error::AlertReceived(AlertDescription::UnknownCA)),
            "tlsv1 alert unknown ca:SSL alert number 48"
        );
        assert_eq!(
            reason(Error::AlertReceived(AlertDescription::from(200))),
            "unknown alert type:SSL alert number 200"
        );
        let record = RecordError(Error::DecryptError);
        assert_eq!(record.to_string(), "SSL: decryption failed or bad record mac");
        let error = io::Error::new(io::ErrorKind::InvalidData, record);
        assert_eq!(failed_call("recv()", &error), "SSL_read()");
        assert_eq!(failed_call("recv()", &io::ErrorKind::InvalidData.into()), "recv()");
        assert_eq!(reason(PeerIncompatible::Tls12NotOffered.into()), "unsupported protocol");
        // rustls' own, where OpenSSL has none.
        assert_eq!(reason(Error::General("odd".into())), "unexpected error: odd");
    }
}
