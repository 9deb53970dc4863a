//! Compares secrets.

/// Whether two secrets are equal, in constant time.
pub fn is_same(shown: &[u8], wanted: &[u8]) -> bool {
    aws_lc_rs::constant_time::verify_slices_are_equal(shown, wanted).is_ok()
}

#[cfg(test)]
mod tests {
    use super::is_same;

    #[test]
    fn equality_needs_the_same_length() {
        assert!(is_same(b"ab", b"ab"));
        assert!(!is_same(b"ab", b"ac"));
        assert!(!is_same(b"a", b"ab"));
    }
}
