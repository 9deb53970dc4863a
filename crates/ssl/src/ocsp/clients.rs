//! Verifies clients' certificates by OCSP, between handshake and first request (`ssl_ocsp`).

use std::sync::Arc;
use std::time::Instant;

use weir_engine::Handle;
use weir_log::{Level, Log};
use weir_tls::x509::VerifyError;
use weir_tls::x509::ocsp::CertificateStatus;
use weir_tls::{Authorities, Inquiry, SignerTrust};
use weir_zone::ZoneRef;

use super::fetch::OcspFetch;
use super::responder::Responder;
use super::{LookUp, OcspMode, cache};

/// The settings of OCSP for clients' certificates.
#[derive(Debug)]
pub struct ClientOcsp {
    mode: OcspMode,
    /// `ssl_ocsp_responder`. Without it, each certificate names its responder.
    responder: Option<Responder>,
    cache: Option<ZoneRef>,
    look_up: LookUp,
}

/// The connection that waits for the answers.
pub struct WaitingConnection<'a> {
    /// Its loop.
    pub handle: &'a Handle,
    /// The log for failures.
    pub log: &'a Log,
    /// Its number.
    pub number: u64,
    /// The deadline.
    pub until: Instant,
}

impl ClientOcsp {
    /// Puts it together.
    pub fn new(
        mode: OcspMode,
        responder: Option<Responder>,
        cache: Option<ZoneRef>,
        look_up: LookUp,
    ) -> ClientOcsp {
        ClientOcsp { mode, responder, cache, look_up }
    }

    /// Checks a chain from the client's certificate to a root.
    pub async fn check(
        &self,
        path: &[Vec<u8>],
        authorities: &Arc<Authorities>,
        waiting: &WaitingConnection<'_>,
    ) -> Result<(), VerifyError> {
        let most = if self.mode == OcspMode::Leaf { 1 } else { usize::MAX };
        for pair in path.windows(2).take(most) {
            let [certificate, issuer] = pair else { continue };
            let trusted = SignerTrust::Trusted { authorities: authorities.clone(), known: false };
            let inquiry = Inquiry::new(certificate, issuer, path.to_vec(), trusted);
            let status = match inquiry {
                Some(inquiry) => self.status(&inquiry, certificate, waiting).await,
                None => None,
            };
            match status {
                Some(CertificateStatus::Good) => {}
                Some(CertificateStatus::Revoked) => return Err(VerifyError::STATUS_REVOKED),
                Some(CertificateStatus::Unknown) => return Err(VerifyError::STATUS_UNKNOWN),
                None => return Err(VerifyError::STATUS_FAILED),
            }
        }
        Ok(())
    }

    async fn status(
        &self,
        inquiry: &Inquiry,
        certificate: &[u8],
        waiting: &WaitingConnection<'_>,
    ) -> Option<CertificateStatus> {
        let named = match &self.responder {
            Some(_) => None,
            None => Some(named(certificate, waiting)?),
        };
        let responder = self.responder.as_ref().or(named.as_ref())?;
        let (handle, now) = (waiting.handle, waiting.handle.wall().secs);
        let zone = self.cache.as_ref().and_then(ZoneRef::get);
        let name = inquiry.name();
        if let Some(known) = zone.and_then(|zone| cache::find(zone, &name, now)) {
            return Some(known);
        }
        let fetch = OcspFetch {
            responder,
            look_up: &self.look_up,
            until: waiting.until,
            log: waiting.log,
            connection: Some(waiting.number),
            certificate: None,
        };
        let (response, from) = fetch.run(handle, &inquiry.request()).await?;
        match inquiry.answer(&response) {
            Ok(answer) => {
                if let Some(zone) = zone {
                    cache::keep(zone, &name, &answer, now);
                }
                Some(answer.status)
            }
            Err(why) => {
                fetch.log_failure(Level::Error, format_args!("{why}"), Some(&from));
                None
            }
        }
    }
}

/// The responder that a client's certificate names.
fn named(certificate: &[u8], waiting: &WaitingConnection<'_>) -> Option<Responder> {
    let say = |text: std::fmt::Arguments<'_>| {
        waiting.log.write(Level::Error, Some(waiting.number), text);
    };
    let Some(url) = weir_tls::responder(certificate) else {
        say(format_args!("no OCSP responder URL in certificate while SSL handshaking"));
        return None;
    };
    let responder = Responder::new(url, false);
    responder.map_err(|why| say(format_args!("{why} in certificate while SSL handshaking"))).ok()
}
