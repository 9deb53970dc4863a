//! Finds the end of a Lua body: the `}` that closes a `..._by_lua_block { }`.

/// The number of bytes before the closing brace, or the error if there is none.
pub(crate) fn body_length(text: &[u8]) -> Result<usize, String> {
    let mut depth = 0usize;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let rest = text.get(at..).unwrap_or_default();
        at += match byte {
            b'{' => {
                depth += 1;
                1
            }
            b'}' if depth == 0 => return Ok(at),
            b'}' => {
                depth -= 1;
                1
            }
            b'"' | b'\'' => string(rest, byte),
            b'-' if rest.starts_with(b"--") => comment(rest)?,
            b'[' => match long_bracket(rest) {
                Some(level) => long_text(rest, level)?,
                None => 1,
            },
            _ => 1,
        };
    }
    Err("unexpected end of file, expecting \"}\"".to_owned())
}

/// The length of a string with its quotes. An unfinished string ends with its line: that is Lua's
/// error to report, and one quote must not swallow the rest of the file.
fn string(text: &[u8], quote: u8) -> usize {
    let mut at = 1;
    while let Some(&byte) = text.get(at) {
        match byte {
            b'\\' => at += 2,
            b'\n' => return at,
            _ if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

fn comment(text: &[u8]) -> Result<usize, String> {
    let inner = text.get(2..).unwrap_or_default();
    match long_bracket(inner) {
        Some(level) => Ok(2 + long_text(inner, level)?),
        None => Ok(text.iter().position(|&b| b == b'\n').unwrap_or(text.len())),
    }
}

/// The number of `=` in an opening long bracket, if `text` begins with one.
fn long_bracket(text: &[u8]) -> Option<usize> {
    let inner = text.strip_prefix(b"[")?;
    let level = inner.iter().take_while(|&&b| b == b'=').count();
    (inner.get(level) == Some(&b'[')).then_some(level)
}

/// The length of a long string or comment with its brackets.
fn long_text(text: &[u8], level: usize) -> Result<usize, String> {
    let mut closing = vec![b'='; level + 2];
    closing[0] = b']';
    closing[level + 1] = b']';
    let found = text.windows(closing.len()).position(|w| w == closing);
    found.map(|at| at + closing.len()).ok_or_else(|| {
        let bracket = String::from_utf8_lossy(&closing);
        let text = format!("Lua code block missing the closing long bracket \"{bracket}\"");
        // OpenResty reads a file in pieces, so it says this as well.
        text + ", the inlined Lua code may be too long"
    })
}

#[cfg(test)]
mod tests {
    use super::body_length;

    fn body(text: &str) -> Option<&str> {
        body_length(text.as_bytes()).ok().and_then(|n| text.get(..n))
    }

    #[test]
    fn braces_nest() {
        assert_eq!(body(" local t = { a = {} } } rest"), Some(" local t = { a = {} } "));
        assert_eq!(body("}"), Some(""));
    }

    #[test]
    fn braces_in_text_do_not_count() {
        for inner in [
            "x = '}'",
            "x = \"}\"",
            "x = \"\\\"}\"",
            "-- }\n",
            "--[[ } \n } ]]",
            "x = [==[ } ]] ]==]",
            "x = t[1] y = {}",
            "-- it's\n",
        ] {
            assert_eq!(body(&format!("{inner}}} tail")), Some(inner), "{inner}");
        }
    }

    #[test]
    fn unfinished_bodies_are_errors() {
        for text in ["", "{", "x = [[ }", "--[[ }", "-- }", "x = '}"] {
            assert!(body_length(text.as_bytes()).is_err(), "{text}");
        }
    }

    #[test]
    fn the_bracket_that_is_missing_is_named() {
        for (text, bracket) in [("x = [[ }", "]]"), ("--[==[ ]] }", "]==]")] {
            let error = body_length(text.as_bytes()).unwrap_err();
            let expected = format!("missing the closing long bracket \"{bracket}\"");
            assert!(error.contains(&expected), "{error}");
        }
    }

    #[test]
    fn an_unfinished_string_ends_with_its_line() {
        assert_eq!(body("x = 'a\n}"), Some("x = 'a\n"));
    }
}
