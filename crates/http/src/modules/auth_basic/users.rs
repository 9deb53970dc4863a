//! User files. A line is `name:password[:...]`, or a comment that begins with `#`.

use std::io::{self, BufRead, Read};

/// The length at which a line is cut, in a file that is read line by line.
const LONGEST: u64 = 64 * 1024;

/// The stored password of a user.
pub fn find<'a>(file: &'a [u8], user: &[u8]) -> Option<&'a [u8]> {
    let line = file.split(|b| *b == b'\n').find_map(|line| {
        let rest = line.strip_prefix(user)?.strip_prefix(b":")?;
        (!matches!(line.first(), Some(b'#' | b'\r'))).then_some(rest)
    })?;
    line.split(|b| matches!(b, b'\r' | b':')).next()
}

/// The same for a file that is read line by line.
pub fn search(mut file: impl BufRead, user: &[u8]) -> io::Result<Option<Vec<u8>>> {
    let mut line = Vec::new();
    while file.by_ref().take(LONGEST).read_until(b'\n', &mut line)? > 0 {
        if let Some(password) = find(&line, user) {
            return Ok(Some(password.to_vec()));
        }
        if !line.ends_with(b"\n") {
            file.skip_until(b'\n')?;
        }
        line.clear();
    }
    Ok(None)
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
    fn a_file_that_is_read_line_by_line_has_the_same_users() {
        let long = [&b"x".repeat(LONGEST as usize)[..], b"ann:no\n"].concat();
        let file = [&long, FILE].concat();
        for user in ["ann", "bob", "carl", "dora", "end", "an", "anne", "#ann", "", "b"] {
            let found = find(FILE, user.as_bytes()).map(<[u8]>::to_vec);
            assert_eq!(search(&*file, user.as_bytes()).unwrap(), found, "{user}");
        }
    }

    #[test]
    fn no_other_user_is_there() {
        for user in ["an", "anne", "#ann", "", "b"] {
            assert_eq!(find(FILE, user.as_bytes()), None, "{user}");
        }
    }
}
