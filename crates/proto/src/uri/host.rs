//! Hosts in `Host` and in request lines. nginx: ngx_http_validate_host.

/// Not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHost;

/// The parts of a host with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HostParts {
    /// How many bytes at the beginning are the name: no port, no trailing dot. Brackets of an
    /// IPv6 literal belong to it.
    pub len: usize,
    /// The port, 0 if there is none.
    pub port: u16,
    /// The name has upper-case letters: fold it before comparing.
    pub upper: bool,
}

/// Checks a host and takes it apart.
pub fn host_valid(host: &[u8]) -> Result<HostParts, BadHost> {
    let (mut len, seen, end) = match host.split_first() {
        Some((b'[', inside)) => {
            let (inside_len, seen) = scan(inside, PERCENT | CLOSE | BAD)?;
            if inside.get(inside_len) != Some(&b']') {
                return Err(BadHost);
            }
            (inside_len + 2, seen, false)
        }
        _ => {
            let (len, seen) = scan(host, COLON | CLOSE | BAD)?;
            (len, seen, host.get(..len).is_some_and(|name| name.ends_with(b".")))
        }
    };
    let port = match host.get(len..).and_then(<[u8]>::split_first) {
        None => 0,
        Some((b':', digits)) => port(digits)?,
        Some(_) => return Err(BadHost),
    };
    len -= usize::from(end);
    if len == 0 { Err(BadHost) } else { Ok(HostParts { len, port, upper: seen & UPPER != 0 }) }
}

/// How many bytes come before one of the classes in `stop`, and which classes they are of. Two
/// dots side by side are no host.
fn scan(bytes: &[u8], stop: u8) -> Result<(usize, u8), BadHost> {
    let (mut seen, mut before, mut len) = (0, 0, 0);
    for &ch in bytes {
        let class = CLASS[ch as usize];
        if class & stop != 0 {
            break;
        }
        if class & before & DOT != 0 {
            return Err(BadHost);
        }
        seen |= class;
        before = class;
        len += 1;
    }
    Ok((len, seen))
}

/// A port number; nothing behind the colon is no port, and no error.
fn port(digits: &[u8]) -> Result<u16, BadHost> {
    let mut port: u16 = 0;
    for &digit in digits {
        if !digit.is_ascii_digit() {
            return Err(BadHost);
        }
        let tens = port.checked_mul(10).ok_or(BadHost)?;
        port = tens.checked_add(u16::from(digit - b'0')).ok_or(BadHost)?;
    }
    Ok(port)
}

const UPPER: u8 = 1;
const DOT: u8 = 2;
const COLON: u8 = 4;
/// Of a percent-encoded character.
const PERCENT: u8 = 8;
const CLOSE: u8 = 16;
const BAD: u8 = 32;

/// Classes of bytes. 0 are RFC 3986's `unreserved` and `sub-delims`, but for what has its own.
static CLASS: [u8; 256] = classes();

const fn classes() -> [u8; 256] {
    let mut classes = [BAD; 256];
    let mut ch = 0;
    while ch < 128 {
        if (ch as u8).is_ascii_uppercase() {
            classes[ch] = UPPER;
        } else if (ch as u8).is_ascii_alphanumeric() {
            classes[ch] = 0;
        }
        ch += 1;
    }
    let marks = b"-_~!$&'()*+,;=";
    let mut i = 0;
    while i < marks.len() {
        classes[marks[i] as usize] = 0;
        i += 1;
    }
    classes[b'.' as usize] = DOT;
    classes[b':' as usize] = COLON;
    classes[b'%' as usize] = PERCENT;
    classes[b']' as usize] = CLOSE;
    classes
}
