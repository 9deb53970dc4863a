//! Whether a certificate is for a host. OpenSSL: X509_check_host.

use super::Certificate;
use super::name::common_names;

/// True if one of the certificate's DNS names matches the host. Common names count only if there is
/// no DNS name.
pub fn matches(certificate: &Certificate<'_>, host: &[u8]) -> bool {
    let mut names = certificate.dns_names().peekable();
    if names.peek().is_some() {
        return names.any(|name| name_matches(name, host));
    }
    common_names(certificate.subject).iter().any(|name| name_matches(name, host))
}

/// One `*` may stand for a part of the first label, or for all of it, if at least two dots follow.
fn name_matches(pattern: &[u8], host: &[u8]) -> bool {
    if pattern.eq_ignore_ascii_case(host) {
        return !host.is_empty();
    }
    let Some(star) = pattern.iter().position(|b| *b == b'*') else { return false };
    let (before, after) = (&pattern[..star], &pattern[star + 1..]);
    let Some(dot) = after.iter().position(|b| *b == b'.') else { return false };
    let suffix = &after[dot..];
    let label = |text: &[u8]| text.iter().all(|b| b.is_ascii_alphanumeric() || *b == b'-');
    let valid = label(before)
        && label(&after[..dot])
        && suffix.iter().filter(|b| **b == b'.').count() >= 2
        && !before.get(..4).is_some_and(|p| p.eq_ignore_ascii_case(b"xn--"));
    let Some(first) = host.iter().position(|b| *b == b'.').and_then(|at| host.get(..at)) else {
        return false;
    };
    let whole = before.is_empty() && dot == 0;
    if !valid || first.is_empty() || !label(first) {
        return false;
    }
    // A `*` for a part of a label does not match labels of other alphabets (`xn--`).
    if !whole && first.get(..4).is_some_and(|p| p.eq_ignore_ascii_case(b"xn--")) {
        return false;
    }
    let fixed = before.len() + dot;
    host.get(first.len()..).is_some_and(|rest| rest.eq_ignore_ascii_case(suffix))
        && first.len() > fixed.saturating_sub(usize::from(!whole))
        && first.len() >= fixed
        && first[..before.len()].eq_ignore_ascii_case(before)
        && first[first.len() - dot..].eq_ignore_ascii_case(&after[..dot])
}

#[cfg(test)]
mod tests {
    use super::name_matches;

    #[test]
    fn a_star_is_part_of_the_first_label_only() {
        let yes = [
            ("www.example.org", "WWW.example.org"),
            ("*.example.org", "a.example.org"),
            ("w*.example.org", "www.example.org"),
            ("*w.example.org", "www.example.org"),
            ("a*b.example.org", "ab.example.org"),
        ];
        for (pattern, host) in yes {
            assert!(name_matches(pattern.as_bytes(), host.as_bytes()), "{pattern} {host}");
        }
        let no = [
            ("*.example.org", "a.b.example.org"),
            ("*.example.org", "example.org"),
            ("*.example.org", ".example.org"),
            ("*.org", "example.org"),
            ("www.*.org", "www.example.org"),
            ("w*.example.org", "xww.example.org"),
            ("w*.example.org", "xn--www.example.org"),
            ("ab*bc.example.org", "abc.example.org"),
            ("", ""),
        ];
        for (pattern, host) in no {
            assert!(!name_matches(pattern.as_bytes(), host.as_bytes()), "{pattern} {host}");
        }
    }
}
