//! Values out of queries, cookies and lists.

/// The value of a query argument, by its name in any case (`$arg_name`). nginx: ngx_http_arg.
pub fn arg<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|&ch| ch == b'&').find_map(|pair| {
        let (head, tail) = pair.split_at_checked(name.len())?;
        let (equals, value) = tail.split_first()?;
        (*equals == b'=' && head.eq_ignore_ascii_case(name)).then_some(value)
    })
}

/// The value of `name=value` in a list: `separator` is `;` for `Cookie` (`$cookie_name`) and `,`
/// for most others. nginx: ngx_http_parse_multi_header_lines.
pub fn list_value<'a>(list: &'a [u8], name: &[u8], separator: u8) -> Option<&'a [u8]> {
    let mut rest = list;
    while !rest.is_empty() {
        if let Some(value) = value_of(rest, name) {
            return value.split(|&ch| ch == separator).next();
        }
        // A bare `name` takes the separator behind it along, and so hides the part that follows:
        // nginx reads one byte where it looks for the `=`.
        let bare = match rest.split_at_checked(name.len()) {
            Some((head, tail)) if head.eq_ignore_ascii_case(name) => {
                (rest.len() - trim_start(tail).len() + 1).min(rest.len())
            }
            _ => 0,
        };
        let tail = rest.get(bare..).unwrap_or_default();
        let end = memchr::memchr(separator, tail).map_or(tail.len(), |at| at + 1);
        rest = trim_start(tail.get(end..).unwrap_or_default());
    }
    None
}

/// The value of a `Set-Cookie` header if it sets the cookie `name` (`$upstream_cookie_name`).
pub fn set_cookie_value<'a>(header: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    value_of(header, name)?.split(|&ch| ch == b';').next()
}

fn value_of<'a>(part: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, tail) = part.split_at_checked(name.len())?;
    if !head.eq_ignore_ascii_case(name) {
        return None;
    }
    let (equals, value) = trim_start(tail).split_first()?;
    (*equals == b'=').then(|| trim_start(value))
}

fn trim_start(bytes: &[u8]) -> &[u8] {
    let spaces = bytes.iter().take_while(|&&ch| ch == b' ').count();
    bytes.get(spaces..).unwrap_or_default()
}
