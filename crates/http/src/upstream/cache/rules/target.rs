//! Other targets that an unsafe request invalidates (RFC 9111, section 4.4).

/// The key of the target of `reference` (`Location` or `Content-Location`), if it has the same
/// origin as the request for `target`. `key` is the key of the request's own answer, which contains
/// its target as sent.
pub fn in_place_of(
    key: &[u8],
    (scheme, host, target): (&[u8], &[u8], &[u8]),
    reference: &[u8],
) -> Option<Vec<u8>> {
    let other = resolve(scheme, host, target, reference)?;
    let at = key.windows(target.len().max(1)).rposition(|part| part == target)?;
    let (before, behind) = (key.get(..at)?, key.get(at + target.len()..)?);
    Some([before, &other, behind].concat())
}

/// The path and query of a reference, if it has the same origin.
fn resolve(scheme: &[u8], host: &[u8], target: &[u8], reference: &[u8]) -> Option<Vec<u8>> {
    let reference = reference.split(|b| *b == b'#').next().unwrap_or_default();
    if let Some(rest) = reference.strip_prefix(b"//") {
        return of_host(host, rest);
    }
    if let Some(at) = reference.windows(3).position(|part| part == b"://") {
        let same = reference.get(..at)?.eq_ignore_ascii_case(scheme);
        return of_host(host, reference.get(at + 3..)?).filter(|_| same);
    }
    let path = target.split(|b| *b == b'?').next().unwrap_or_default();
    match reference.first() {
        None => Some(target.to_vec()),
        Some(b'/') => Some(reference.to_vec()),
        Some(b'?') => Some([path, reference].concat()),
        Some(_) => {
            let end = path.iter().rposition(|b| *b == b'/')? + 1;
            without_dots(&[path.get(..end)?, reference].concat())
        }
    }
}

fn of_host(host: &[u8], rest: &[u8]) -> Option<Vec<u8>> {
    let end = rest.iter().position(|b| matches!(b, b'/' | b'?')).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    if !authority.eq_ignore_ascii_case(host) {
        return None;
    }
    Some(if path.first() == Some(&b'/') { path.to_vec() } else { [b"/", path].concat() })
}

/// RFC 3986, section 5.2.4.
fn without_dots(path: &[u8]) -> Option<Vec<u8>> {
    let (path, query) = match path.iter().position(|b| *b == b'?') {
        Some(at) => path.split_at(at),
        None => (path, &b""[..]),
    };
    let mut segments: Vec<&[u8]> = Vec::new();
    let mut all = path.split(|b| *b == b'/').skip(1).peekable();
    while let Some(segment) = all.next() {
        let last = all.peek().is_none();
        match segment {
            b"." | b".." => {
                if segment == b".." {
                    segments.pop();
                }
                if last {
                    segments.push(b"");
                }
            }
            segment => segments.push(segment),
        }
    }
    let mut out = Vec::with_capacity(path.len() + query.len());
    for segment in segments {
        out.push(b'/');
        out.extend_from_slice(segment);
    }
    out.extend_from_slice(query);
    Some(out)
}
