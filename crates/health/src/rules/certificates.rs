//! Rules about certificates, and about the authorities that issue them.

use crate::Level::{Red, Yellow};
use crate::judge::{Held, Looks};
use crate::snapshot::{EndingCertificate, FailingOrder};

const DAY: u64 = 24 * 60 * 60 * 1000;
/// How long before its end a certificate is a finding, in milliseconds. Automatic renewal comes earlier.
pub const CERTIFICATE_ENDS: u64 = 14 * DAY;

/// A certificate ends soon, or has ended.
pub(super) fn certificate(looks: Looks<'_>) -> Vec<Held> {
    let at = looks.now.at;
    let all = looks.now.certificates.iter();
    let ending = || all.clone().filter(|one| one.not_after < at.saturating_add(CERTIFICATE_ENDS));
    let Some(first) = ending().min_by_key(|one| one.not_after) else { return Vec::new() };
    let EndingCertificate { file, name, not_after } = first;
    let (level, since) = match not_after.checked_sub(at) {
        Some(_) => (Yellow, not_after.saturating_sub(CERTIFICATE_ENDS)),
        None => (Red, *not_after),
    };
    let when = match (not_after.saturating_sub(at) / DAY, level) {
        (_, Red) => "has ended".to_owned(),
        (0, _) => "ends within a day".to_owned(),
        (days, _) => format!("ends in {days} days"),
    };
    let others = match ending().count() - 1 {
        0 => String::new(),
        n => format!(", and {n} more end within 14 days"),
    };
    let text = format!("the certificate {file} ({name}) {when}{others}");
    vec![Held { level, subject: "certificates".to_owned(), text, since: Some(since) }]
}

/// An authority does not give certificates. Clients notice it once one is missing or has ended.
pub(super) fn acme(looks: Looks<'_>) -> Vec<Held> {
    let (at, all) = (looks.now.at, &looks.now.orders);
    let level = |order: &FailingOrder| if order.not_after > at { Yellow } else { Red };
    let mut found: Vec<Held> = Vec::new();
    for FailingOrder { issuer, .. } in all {
        if found.iter().any(|held| held.subject == *issuer) {
            continue;
        }
        let own = || all.iter().filter(|order| order.issuer == *issuer);
        // The worst of them: without a certificate, or the one that ends first.
        let Some(worst) = own().min_by_key(|order| order.not_after) else { continue };
        let what = match (level(worst), worst.not_after) {
            (Red, 0) => "there is no certificate",
            (Red, _) => "no new certificate comes in place of the ended one",
            _ => "the certificate is not renewed",
        };
        let next = worst.next.as_ref().map_or_else(String::new, |at| format!(", next try {at}"));
        let others = match own().count() - 1 {
            0 => String::new(),
            n => format!(", nor for {n} more"),
        };
        let (names, reason) = (&worst.names, &worst.reason);
        let text = format!("{issuer}: {what} for {names}{others}{next}: {reason}");
        let since = own().map(|order| order.since).min();
        found.push(Held { level: level(worst), subject: issuer.clone(), text, since });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::tests::{NOW, finds};
    use crate::snapshot::Snapshot;

    fn certificate(name: &str, not_after: u64) -> EndingCertificate {
        EndingCertificate { file: format!("/etc/{name}.pem"), name: name.to_owned(), not_after }
    }

    #[test]
    fn a_certificate_is_named_in_its_last_fortnight() {
        let with = |certificates| finds(&Snapshot { at: NOW, certificates, ..Snapshot::default() });
        assert_eq!(with(vec![certificate("a", NOW + 15 * DAY)]), []);
        let found = with(vec![certificate("a", NOW + 14 * DAY - 1)]);
        let text = "the certificate /etc/a.pem (a) ends in 13 days";
        assert_eq!(found, [("certificate".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![certificate("a", NOW + DAY / 2)]);
        assert!(found[0].2.ends_with(" ends within a day"), "{found:?}");
        let found = with(vec![certificate("a", NOW + 9 * DAY), certificate("b", NOW - 1)]);
        let text = "the certificate /etc/b.pem (b) has ended, and 1 more end within 14 days";
        assert_eq!(found, [("certificate".to_owned(), Red, text.to_owned())]);
    }

    #[test]
    fn an_authority_that_gives_no_certificate_is_named_with_its_reason_and_the_next_try() {
        let order = |issuer: &str, names: &str, not_after| FailingOrder {
            issuer: issuer.to_owned(),
            names: names.to_owned(),
            not_after,
            since: NOW - 5000,
            next: Some("at noon".to_owned()),
            reason: "no such zone (dns)".to_owned(),
        };
        let with = |orders| finds(&Snapshot { at: NOW, orders, ..Snapshot::default() });
        assert_eq!(with(vec![]), []);
        let found = with(vec![order("ca", "a.org", NOW + DAY)]);
        let text =
            "ca: the certificate is not renewed for a.org, next try at noon: no such zone (dns)";
        assert_eq!(found, [("acme".to_owned(), Yellow, text.to_owned())]);
        let found = with(vec![
            order("ca", "a.org", NOW + DAY),
            order("other", "c.org", NOW - 1),
            order("ca", "b.org, d.org", 0),
        ]);
        let text = "ca: there is no certificate for b.org, d.org, nor for 1 more, next try at noon: no such zone (dns)";
        assert_eq!(found[0], ("acme".to_owned(), Red, text.to_owned()));
        assert!(found[1].2.starts_with("other: no new certificate comes in place of"), "{found:?}");
        assert_eq!(found.len(), 2);
    }
}
