//! Fetches the responses that are stapled to the server's certificates before they are needed. One
//! loop of each worker asks, from the start on, and again before a response expires.

use std::sync::Arc;
use std::time::{Duration, Instant};

use weir_conf::Error;
use weir_engine::Handle;
use weir_log::{Level, Log};
use weir_tls::x509::ocsp::{CertificateStatus, OcspAnswer};
use weir_tls::{Authorities, Identity, Inquiry, SignerTrust, Staple};

use super::LookUp;
use super::fetch::Errand;
use super::responder::Responder;
use crate::reader::{NamedFile, SslReader};

/// How long a responder may take.
const TIMEOUT: Duration = Duration::from_secs(60);
/// So many responders are asked at a time.
const LANES: usize = 8;
/// An answer is renewed this long before its end, and not more often.
const EARLY: i64 = 300;
/// An answer is renewed after this time in any case.
const LATEST: i64 = 3600;
/// A responder that could not be asked is asked again after this time, then after twice as long, and so on.
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
    /// Where the response goes: one certificate may be served by many servers.
    staples: Vec<Arc<Staple>>,
}

/// How responses are asked for.
pub struct StapleSettings<'w> {
    /// `ssl_stapling_responder`
    pub responder: Option<&'w NamedFile>,
    /// `ssl_stapling_verify`
    pub verify: bool,
    /// The certificate's issuer is found among these.
    pub authorities: &'w Arc<Authorities>,
    /// How the responder's name becomes addresses.
    pub look_up: &'w LookUp,
}

/// Adds what a server's certificate, which is called so, needs to the site's list. What is wrong is no reason to stop:
/// the error is a warning.
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
    let believe = match verify {
        false => SignerTrust::Anyone,
        true => SignerTrust::Trusted { authorities: authorities.clone(), known: true },
    };
    let known = identity.others().map(<[u8]>::to_vec).collect();
    let Some(inquiry) = Inquiry::new(identity.leaf(), issuer, known, believe) else {
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

/// Starts to fetch, on one loop of a worker, until it retires.
pub fn start(
    handle: &Handle,
    all: &[Arc<Stapling>],
    retiring: impl Fn() -> bool + Clone + 'static,
) {
    for lane in 0..LANES.min(all.len()) {
        let own = all.iter().skip(lane).step_by(LANES).cloned().collect();
        handle.spawn(fetch(handle.clone(), own, retiring.clone()));
    }
}

/// One response and when it is to be fetched.
struct Due {
    stapling: Arc<Stapling>,
    at: Instant,
    failures: u32,
}

/// Fetches whichever is due, one after another, until the worker retires.
async fn fetch(handle: Handle, own: Vec<Arc<Stapling>>, retiring: impl Fn() -> bool) {
    let at = handle.now();
    let mut list: Vec<_> =
        own.into_iter().map(|stapling| Due { stapling, at, failures: 0 }).collect();
    while let Some(due) = list.iter_mut().min_by_key(|due| due.at) {
        // The task holds a part of the site, which is not to stay for much longer than it is in use.
        while handle.now() < due.at {
            handle.sleep_until(due.at.min(handle.now() + SLICE)).await;
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

/// So often a task that waits looks whether it is still needed.
const SLICE: Duration = Duration::from_secs(10);

/// When to ask again after so many failures in a row.
fn retry(failures: u32) -> Duration {
    let most = Duration::from_secs(EARLY.unsigned_abs());
    let pause = 2u32.checked_pow(failures.saturating_sub(1));
    pause.and_then(|times| FIRST_RETRY.checked_mul(times)).unwrap_or(most).min(most)
}

/// When to ask again for an answer that holds until then; both in seconds since 1970.
fn renewal(now: i64, until: i64) -> Duration {
    let at = until.saturating_sub(EARLY).min(now + LATEST).max(now + EARLY);
    Duration::from_secs(at.saturating_sub(now).unsigned_abs())
}

impl Stapling {
    /// Fetches the response; how long until the next time. None if the responder has not answered.
    async fn renew(&self, handle: &Handle) -> Option<Duration> {
        let errand = Errand {
            responder: &self.responder,
            look_up: &self.look_up,
            until: handle.now() + TIMEOUT,
            log: &self.log,
            connection: None,
            certificate: Some(&self.name),
        };
        let (response, from) = errand.run(handle, &self.inquiry.request()).await?;
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
                errand.say(Level::Error, text, Some(&from));
            }
            Err(why) => errand.say(Level::Error, format_args!("{why}"), Some(&from)),
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
