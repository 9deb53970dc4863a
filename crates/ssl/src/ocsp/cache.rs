//! Responders' answers about clients' certificates, shared by all workers (`ssl_ocsp_cache`).

use weir_tls::x509::ocsp::{CertificateStatus, OcspAnswer};
use weir_zone::Zone;

/// The number of values in each record of the zone.
pub const VALUES: usize = 2;

const STATUS: usize = 0;
const UNTIL: usize = 1;

/// How long an answer without an end is cached, in seconds.
const DEFAULT_LIFETIME: i64 = 3600;

/// The cached status of a certificate. `now` is in seconds since 1970.
pub fn find(zone: &Zone, name: &[u8], now: i64) -> Option<CertificateStatus> {
    let mut table = zone.lock();
    let entry = table.find(name)?;
    let good = table.value(entry, UNTIL).cast_signed() > now;
    let status = match table.value(entry, STATUS) {
        0 => CertificateStatus::Good,
        1 => CertificateStatus::Revoked,
        _ => CertificateStatus::Unknown,
    };
    if good {
        table.touch(entry);
        return Some(status);
    }
    table.remove(entry);
    None
}

/// Caches an answer. The least recently used one makes room.
pub fn keep(zone: &Zone, name: &[u8], answer: &OcspAnswer, now: i64) {
    let until = answer.until.unwrap_or(now + DEFAULT_LIFETIME);
    let status = match answer.status {
        CertificateStatus::Good => 0,
        CertificateStatus::Revoked => 1,
        CertificateStatus::Unknown => 2,
    };
    let mut table = zone.lock();
    let entry = loop {
        if let Some(entry) = table.find(name).or_else(|| table.add(name)) {
            break entry;
        }
        match table.oldest() {
            Some(oldest) => table.remove(oldest),
            None => return,
        }
    };
    table.set_values(entry, [status, until.cast_unsigned()]);
}

#[cfg(test)]
mod tests {
    use weir_zone::Use;

    use super::*;

    #[test]
    fn an_answer_is_kept_until_its_time() {
        let purpose = Use::of("trial", VALUES);
        let zone = Zone::new("trial", 4096, purpose).unwrap();
        let revoked = OcspAnswer { status: CertificateStatus::Revoked, until: Some(100) };
        keep(&zone, b"a", &revoked, 0);
        keep(&zone, b"b", &OcspAnswer { status: CertificateStatus::Good, until: None }, 0);
        assert_eq!(find(&zone, b"a", 99), Some(CertificateStatus::Revoked));
        assert_eq!(find(&zone, b"a", 100), None);
        assert_eq!(find(&zone, b"b", 3599), Some(CertificateStatus::Good));
        assert_eq!(find(&zone, b"c", 0), None);
        for n in 0..1000u32 {
            keep(&zone, &n.to_be_bytes(), &revoked, 0);
        }
        assert_eq!(find(&zone, b"b", 0), None);
        assert_eq!(find(&zone, &999u32.to_be_bytes(), 0), Some(CertificateStatus::Revoked));
    }
}
