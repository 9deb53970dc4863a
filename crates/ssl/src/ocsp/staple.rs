//! Fetches the OCSP responses that are stapled to the server's certificates, before they are
//! needed. One loop of each worker does that: at its start, and again before a response expires.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_conf::Error;
use weir_engine::Handle;
use weir_log::{Level, Log};
use weir_tls::x509::ocsp::{CertificateStatus, OcspAnswer};
use weir_tls::{Authorities, Identity, Inquiry, SignerTrust, Staple};

use super::LookUp;
use super::fetch::OcspFetch;
use super::responder::Responder;
use crate::reader::{NamedFile, SslReader};

/// The deadline of one request.
const TIMEOUT: Duration = Duration::from_secs(60);
/// The most concurrent requests.
const CONCURRENT: usize = 8;
/// An answer is renewed this many seconds before its end, but not more often than this.
const EARLY: i64 = 300;
/// An answer is renewed after this many seconds at the latest.
const LATEST: i64 = 3600;
/// The pause after a failed request. It doubles with each further failure.
const FIRST_RETRY: Duration = Duration::from_millis(250);

/// A response that is to be fetched.
#[derive(Debug)]
pub struct Stapling {
    responder: Responder,
    inquiry: Inquiry,
    look_up: LookUp,
    log: Arc<Log>,
    /// The certificate's file.
    name: String,
    /// The certificates that the response is stapled to. Many servers may use the same certificate.
    staples: Vec<Arc<Staple>>,
}

/// The settings of stapling.
pub struct StapleSettings<'w> {
    /// `ssl_stapling_responder`
    pub responder: Option<&'w NamedFile>,
    /// `ssl_stapling_verify`
    pub verify: bool,
    /// Candidates for the certificate's issuer.
    pub authorities: &'w Arc<Authorities>,
    /// How the responder's name is resolved.
    pub look_up: &'w LookUp,
}

/// Adds the response for a server's certificate to the site's list. `name` is the certificate's
/// file. An error is only a warning, as in nginx.
pub fn add<S>(
    wanted: &StapleSettings<'_>,
    reader: &mut SslReader<'_, '_, S>,
    name: String,
    identity: &mut Identity,
) -> Result<(), Error> {
    let StapleSettings { responder, verify, authorities, look_up } = *wanted;
    let ignored = |why: String| Error::warn(format!("\"ssl_stapling\" ignored, {why}"));
    let among = identity.others().chain(authorities.anchors.iter().map(Vec::as_slice));
    let issuer = weir_tls::issuer(identity.leaf(), among).ok_or_else(|| {
        ignored(format!("issuer certificate not found for certificate \"{name}\""))
    })?;
    let url = responder.map(|named| named.name.as_slice());
    let url = url.or_else(|| weir_tls::responder(identity.leaf()));
    let url =
        url.ok_or_else(|| ignored(format!("no OCSP responder URL in the certificate \"{name}\"")))?;
    let responder = Responder::new(url, look_up.resolver.is_none())
        .map_err(|why| ignored(format!("{why} in the certificate \"{name}\"")))?;
    let trust = match verify {
        false => SignerTrust::Anyone,
        true => SignerTrust::Trusted { authorities: authorities.clone(), known: true },
    };
    let known = identity.others().map(<[u8]>::to_vec).collect();
    let Some(inquiry) = Inquiry::new(identity.leaf(), issuer, known, trust) else {
        return Ok(());
    };
    let staple = identity.staple_later();
    let same = reader.staplings.iter_mut().find(|known| {
        (&known.responder, &known.inquiry, &known.look_up) == (&responder, &inquiry, look_up)
    });
    match same {
        Some(same) => same.staples.push(staple),
        None => reader.staplings.push(Stapling {
            responder,
            inquiry,
            look_up: look_up.clone(),
            log: reader.inputs.error_log.clone(),
            name,
            staples: vec![staple],
        }),
    }
    Ok(())
}

/// Starts to fetch on this loop, until the worker retires.
pub fn start(
    handle: &Handle,
    all: &[Arc<Stapling>],
    retiring: impl Fn() -> bool + Clone + 'static,
) {
    for first in 0..CONCURRENT.min(all.len()) {
        let own = all.iter().skip(first).step_by(CONCURRENT).cloned().collect();
        handle.spawn(fetch(handle.clone(), own, retiring.clone()));
    }
}

/// One response, and when it is fetched next.
struct Due {
    stapling: Arc<Stapling>,
    at: Instant,
    failures: u32,
}

/// Fetches the responses as they become due, one after another, until the worker retires.
async fn fetch(handle: Handle, own: Vec<Arc<Stapling>>, retiring: impl Fn() -> bool) {
    let at = handle.now();
    let mut list: Vec<_> =
        own.into_iter().map(|stapling| Due { stapling, at, failures: 0 }).collect();
    while let Some(due) = list.iter_mut().min_by_key(|due| due.at) {
        // The task holds a part of the site. It ends soon after the site is no longer used.
        while handle.now() < due.at {
            handle.sleep_until(due.at.min(handle.now() + LONGEST_SLEEP)).await;
            if retiring() {
                return;
            }
        }
        let pause = match due.stapling.renew(&handle).await {
            Some(pause) => {
                due.failures = 0;
                pause
            }
            None => {
                due.failures += 1;
                retry(due.failures)
            }
        };
        due.at = handle.now() + pause;
    }
}

/// The longest sleep. A task that waits checks this often whether the worker retires.
const LONGEST_SLEEP: Duration = Duration::from_secs(10);

/// The pause after so many failures in a row.
fn retry(failures: u32) -> Duration {
    let most = Duration::from_secs(EARLY.unsigned_abs());
    let pause = 2u32.checked_pow(failures.saturating_sub(1));
    pause.and_then(|times| FIRST_RETRY.checked_mul(times)).unwrap_or(most).min(most)
}

/// The pause before an answer is renewed that is valid until `until`. Both are in seconds since
/// 1970.
fn renewal(now: i64, until: i64) -> Duration {
    let at = until.saturating_sub(EARLY).min(now + LATEST).max(now + EARLY);
    Duration::from_secs(at.saturating_sub(now).unsigned_abs())
}

impl Stapling {
    /// Fetches the response. Returns the pause before the next time, or `None` if the responder has
    /// not answered.
    async fn renew(&self, handle: &Handle) -> Option<Duration> {
        let fetch = OcspFetch {
            responder: &self.responder,
            look_up: &self.look_up,
            until: handle.now() + TIMEOUT,
            log: &self.log,
            connection: None,
            certificate: Some(&self.name),
        };
        let (response, from) = fetch.run(handle, &self.inquiry.request()).await?;
        let now = handle.wall().secs;
        match self.inquiry.answer(&response) {
            Ok(OcspAnswer { status: CertificateStatus::Good, until }) => {
                let until = until.unwrap_or(i64::MAX);
                for staple in &self.staples {
                    staple.put(response.clone(), until);
                }
                return Some(renewal(now, until));
            }
            Ok(OcspAnswer { status, .. }) => {
                let status = status.name();
                let text = format_args!("certificate status \"{status}\" in the OCSP response");
                fetch.log_failure(Level::Error, text, Some(&from));
            }
            Err(why) => fetch.log_failure(Level::Error, format_args!("{why}"), Some(&from)),
        }
        Some(renewal(now, now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_renewed_in_time_but_not_all_the_time() {
        let pause = |left: i64| renewal(1000, 1000 + left).as_secs();
        assert_eq!(pause(86_400), 3600);
        assert_eq!(pause(1000), 700);
        assert_eq!(pause(400), 300);
        assert_eq!(pause(-5), 300);
        assert_eq!(renewal(1000, i64::MAX).as_secs(), 3600);
    }

    #[test]
    fn a_silent_responder_is_asked_less_and_less_often() {
        assert_eq!(retry(1), Duration::from_millis(250));
        assert_eq!(retry(3), Duration::from_secs(1));
        assert_eq!(retry(12), Duration::from_secs(300));
        assert_eq!(retry(u32::MAX), Duration::from_secs(300));
    }
}
