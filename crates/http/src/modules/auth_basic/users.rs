//! User files: `name:password[:...]`, one a line, `#` before what is to be passed over.

/// The password that the file keeps for a user.
pub fn find<'a>(file: &'a [u8], user: &[u8]) -> Option<&'a [u8]> {
    let line = file.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(user)?.strip_prefix(b":")?;
        (!matches!(line.first(), Some(b'#' | b'\r'))).then_some(rest)
    })?;
    line.split(|b| matches!(b, b'\r' | b':')).next()
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &[u8] =
        b"#ann:no\n\nann:one\nbob:two:more\r\ncarl:three\r\ndora:\nann:later\nend:last";

    #[test]
    fn the_first_line_counts_up_to_its_end() {
        assert_eq!(find(FILE, b"ann"), Some(&b"one"[..]));
        assert_eq!(find(FILE, b"bob"), Some(&b"two"[..]));
        assert_eq!(find(FILE, b"carl"), Some(&b"three"[..]));
        assert_eq!(find(FILE, b"dora"), Some(&b""[..]));
        assert_eq!(find(FILE, b"end"), Some(&b"last"[..]));
    }

    #[test]
    fn no_other_user_is_there() {
        for user in ["an", "anne", "#ann", "", "b"] {
            assert_eq!(find(FILE, user.as_bytes()), None, "{user}");
        }
    }
}
