//! Validators: entity tags and modification times. nginx: ngx_http_not_modified_filter_module.

use crate::date;

/// How `If-Modified-Since` is compared (`if_modified_since`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ModifiedSince {
    /// The header is ignored: everything counts as modified.
    Off,
    /// Only the very time of the response counts as not modified.
    #[default]
    Exact,
    /// A time not earlier than that of the response counts as not modified.
    Before,
}

/// Whether `list`, of an `If-Match` or `If-None-Match`, names the response's `etag`. `weak`: a
/// `W/` of either side does not count, as `If-None-Match` wants it.
pub fn etag_matches(list: &[u8], etag: Option<&[u8]>, weak: bool) -> bool {
    if list == b"*" {
        return true;
    }
    let Some(etag) = etag else { return false };
    let etag = if weak { strip_weak(etag) } else { etag };
    let mut rest = list;
    while !rest.is_empty() {
        let part = if weak { strip_weak(rest) } else { rest };
        if etag.len() > part.len() {
            return false;
        }
        if let Some(behind) = part.strip_prefix(etag) {
            let behind = skip(behind, b" \t");
            if matches!(behind.first(), None | Some(b',')) {
                return true;
            }
            rest = behind;
        } else {
            rest = part;
        }
        let comma = memchr::memchr(b',', rest).unwrap_or(rest.len());
        rest = skip(rest.get(comma..).unwrap_or_default(), b" \t,");
    }
    false
}

/// Whether the response is newer than `If-Modified-Since` says.
pub fn modified(since: &[u8], last_modified: Option<i64>, how: ModifiedSince) -> bool {
    let Some(last) = last_modified else { return true };
    match (how, date::parse(since)) {
        (ModifiedSince::Off, _) | (_, None) => true,
        (_, Some(since)) if since == last => false,
        (ModifiedSince::Exact, _) => true,
        (ModifiedSince::Before, Some(since)) => since < last,
    }
}

/// Whether the response is not newer than `If-Unmodified-Since` says.
pub fn unmodified(since: &[u8], last_modified: Option<i64>) -> bool {
    match (date::parse(since), last_modified) {
        (Some(since), Some(last)) => since >= last,
        _ => false,
    }
}

/// Whether `If-Range` lets a range be served: it names the response's tag, exactly, or its time.
pub fn range_applies(if_range: &[u8], etag: Option<&[u8]>, last_modified: Option<i64>) -> bool {
    if if_range.len() >= 2 && if_range.last() == Some(&b'"') {
        return etag == Some(if_range);
    }
    last_modified.is_some() && date::parse(if_range) == last_modified
}

fn strip_weak(tag: &[u8]) -> &[u8] {
    match tag.strip_prefix(b"W/") {
        Some(strong) if !strong.is_empty() => strong,
        _ => tag,
    }
}

fn skip<'a>(bytes: &'a [u8], set: &[u8]) -> &'a [u8] {
    let len = bytes.iter().take_while(|ch| set.contains(ch)).count();
    bytes.get(len..).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn strong_comparison_takes_tags_as_they_are() {
        assert!(etag_matches(b"\"a\", \"b\"", Some(b"\"b\""), false));
        assert!(etag_matches(b"\"a\" \t,\"b\"", Some(b"\"a\""), false));
        assert!(!etag_matches(b"W/\"b\"", Some(b"\"b\""), false));
        assert!(!etag_matches(b"\"b\"", Some(b"W/\"b\""), false));
        assert!(etag_matches(b"W/\"b\"", Some(b"W/\"b\""), false));
    }

    #[test]
    fn weak_comparison_ignores_the_mark_on_both_sides() {
        assert!(etag_matches(b"\"a\", W/\"b\"", Some(b"\"b\""), true));
        assert!(etag_matches(b"\"b\"", Some(b"W/\"b\""), true));
        assert!(!etag_matches(b"\"bb\"", Some(b"\"b\""), true));
        assert!(!etag_matches(b"\"b\"x", Some(b"\"b\""), true));
    }

    #[test]
    fn star_matches_even_without_a_tag() {
        assert!(etag_matches(b"*", None, false));
        assert!(!etag_matches(b"\"a\"", None, true));
        assert!(!etag_matches(b"*, \"a\"", Some(b"\"b\""), true));
    }

    #[test]
    fn times_decide_as_configured() {
        let since = b"Thu, 01 Jan 1970 00:01:00 GMT";
        assert!(!modified(since, Some(60), ModifiedSince::Exact));
        assert!(modified(since, Some(59), ModifiedSince::Exact));
        assert!(!modified(since, Some(59), ModifiedSince::Before));
        assert!(modified(since, Some(61), ModifiedSince::Before));
        assert!(modified(since, Some(60), ModifiedSince::Off));
        assert!(modified(since, None, ModifiedSince::Before));
        assert!(modified(b"rubbish", Some(60), ModifiedSince::Before));
        assert!(unmodified(since, Some(60)) && !unmodified(since, Some(61)));
        assert!(!unmodified(since, None) && !unmodified(b"rubbish", Some(1)));
    }

    #[test]
    fn if_range_wants_the_very_same() {
        assert!(range_applies(b"\"a\"", Some(b"\"a\""), None));
        assert!(!range_applies(b"\"a\"", Some(b"W/\"a\""), None));
        assert!(!range_applies(b"\"a\"", None, Some(60)));
        assert!(range_applies(b"Thu, 01 Jan 1970 00:01:00 GMT", None, Some(60)));
        assert!(!range_applies(b"Thu, 01 Jan 1970 00:01:00 GMT", None, Some(61)));
        assert!(!range_applies(b"rubbish", None, None));
    }

    proptest::proptest! {
        #[test]
        fn any_list_is_decided(list: Vec<u8>, etag: Vec<u8>, weak: bool) {
            etag_matches(&list, Some(&etag), weak);
            range_applies(&list, Some(&etag), Some(1));
        }
    }
}
