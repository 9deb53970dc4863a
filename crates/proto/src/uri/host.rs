//! Hosts in `Host` and in request lines. nginx: ngx_http_validate_host.

/// Not a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadHost;

/// The parts of a host with an optional port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Host {
    /// How many bytes at the beginning are the name: no port, no trailing dot. Brackets of an
    /// IPv6 literal belong to it.
    pub len: usize,
    /// The port, 0 if there is none.
    pub port: u16,
    /// The name has upper-case letters: fold it before comparing.
    pub upper: bool,
}

/// Checks a host and takes it apart.
pub fn host_valid(host: &[u8]) -> Result<Host, BadHost> {
    let literal = host.first() == Some(&b'[');
    let mut len = host.len();
    let mut upper = false;
    let mut last_dot = None;
    for (i, &ch) in host.iter().enumerate() {
        match CLASS[ch as usize] {
            Class::Usual => {}
            Class::Upper => upper = true,
            Class::Dot => {
                if i > 0 && last_dot == Some(i - 1) {
                    return Err(BadHost);
                }
                last_dot = Some(i);
            }
            Class::Colon if literal => {}
            Class::Colon => {
                len = i;
                break;
            }
            Class::Percent if !literal => {}
            Class::Open if i == 0 => {}
            Class::Close if literal => {
                len = i + 1;
                break;
            }
            _ => return Err(BadHost),
        }
    }
    if literal && host.get(len.wrapping_sub(1)) != Some(&b']') {
        return Err(BadHost);
    }
    let port = match host.get(len..).and_then(<[u8]>::split_first) {
        None => 0,
        Some((b':', digits)) => port(digits)?,
        Some(_) => return Err(BadHost),
    };
    if len > 0 && last_dot == Some(len - 1) {
        len -= 1;
    }
    if len == 0 { Err(BadHost) } else { Ok(Host { len, port, upper }) }
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Class {
    /// RFC 3986's `unreserved` and `sub-delims` in lower case.
    Usual,
    Upper,
    Dot,
    Colon,
    /// Of a percent-encoded character; not in a literal.
    Percent,
    Open,
    Close,
    Bad,
}

static CLASS: [Class; 256] = classes();

const fn classes() -> [Class; 256] {
    let mut classes = [Class::Bad; 256];
    let mut ch = 0;
    while ch < 128 {
        if (ch as u8).is_ascii_uppercase() {
            classes[ch] = Class::Upper;
        } else if (ch as u8).is_ascii_alphanumeric() {
            classes[ch] = Class::Usual;
        }
        ch += 1;
    }
    let marks = b"-_~!$&'()*+,;=";
    let mut i = 0;
    while i < marks.len() {
        classes[marks[i] as usize] = Class::Usual;
        i += 1;
    }
    classes[b'.' as usize] = Class::Dot;
    classes[b':' as usize] = Class::Colon;
    classes[b'%' as usize] = Class::Percent;
    classes[b'[' as usize] = Class::Open;
    classes[b']' as usize] = Class::Close;
    classes
}
