//! Escaping and unescaping. nginx: ngx_escape_uri, ngx_unescape_uri, ngx_escape_html.

use super::hex;

/// Which characters are escaped: each kind is for one place that text is put into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Escape {
    /// A whole path.
    Uri,
    /// A query.
    Args,
    /// One component, of which nothing may be taken for a separator.
    UriComponent,
    /// A URI inside an HTML attribute.
    Html,
    /// A URI inside a `Refresh` header or a redirecting page.
    Refresh,
    /// A key of memcached.
    Memcached,
    /// A value for a mail authentication server.
    MailAuth,
    /// `xtext` of ESMTP, which escapes with `+`.
    MailXtext,
}

/// How far [`unescape`] goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unescape {
    /// Everything is decoded.
    All,
    /// Up to the first `?`, plain or decoded.
    Uri,
    /// The same, and only what is printable and above `%` is decoded.
    Redirect,
}

/// Appends `bytes` to `out`, escaped.
pub fn escape(kind: Escape, bytes: &[u8], out: &mut Vec<u8>) {
    let table = &TABLES[kind as usize];
    let prefix = if kind == Escape::MailXtext { b'+' } else { b'%' };
    out.reserve(bytes.len());
    for &ch in bytes {
        if table[ch as usize] {
            out.extend_from_slice(&[prefix, HEX[ch as usize >> 4], HEX[ch as usize & 0xf]]);
        } else {
            out.push(ch);
        }
    }
}

/// Appends `bytes` to `out` with `%XX` decoded; of a broken escape, what is left is what
/// nginx leaves. Returns how many bytes were read: fewer than all if a `?` ended it.
pub fn unescape(kind: Unescape, bytes: &[u8], out: &mut Vec<u8>) -> usize {
    out.reserve(bytes.len());
    let mut pos = 0;
    while let Some(&ch) = bytes.get(pos) {
        pos += 1;
        if ch == b'?' && kind != Unescape::All {
            out.push(ch);
            break;
        }
        if ch != b'%' {
            out.push(ch);
            continue;
        }
        let Some(&high) = bytes.get(pos) else { break };
        pos += 1;
        let Some(high_value) = hex(high) else {
            out.push(high);
            continue;
        };
        let Some(&low) = bytes.get(pos) else { break };
        pos += 1;
        let Some(low_value) = hex(low) else { continue };
        let decoded = high_value << 4 | low_value;
        match kind {
            // only a decoded "?" with a letter as its second digit can be one: 3F
            Unescape::Uri | Unescape::Redirect if decoded == b'?' => {
                out.push(decoded);
                break;
            }
            Unescape::Redirect if decoded <= b'%' || decoded >= 0x7f => {
                out.extend_from_slice(&[b'%', high, low]);
            }
            _ => out.push(decoded),
        }
    }
    pos
}

/// Appends `bytes` to `out` with `<`, `>`, `&` and `"` as entities.
pub fn escape_html(bytes: &[u8], out: &mut Vec<u8>) {
    out.reserve(bytes.len());
    for &ch in bytes {
        match ch {
            b'<' => out.extend_from_slice(b"&lt;"),
            b'>' => out.extend_from_slice(b"&gt;"),
            b'&' => out.extend_from_slice(b"&amp;"),
            b'"' => out.extend_from_slice(b"&quot;"),
            _ => out.push(ch),
        }
    }
}

const HEX: &[u8; 16] = b"0123456789ABCDEF";

/// What RFC 3986 lets stand in no URI, besides control characters and bytes above 0x7e.
const NOT_IN_URIS: &[u8] = b"\"<>\\^`{|}";

/// One table for each [`Escape`], in its order.
static TABLES: [[bool; 256]; 8] = [
    escaped(true, NOT_IN_URIS, b" #%?"),
    escaped(true, NOT_IN_URIS, b" #%&+;?"),
    escaped(true, NOT_IN_URIS, b" !#$%&'()*+,/:;=?@[]"),
    escaped(true, NOT_IN_URIS, b" #%'"),
    // not "}", yet "~": a slip of nginx that clients have seen for years
    escaped(true, b"\"<>\\^`{|~", b" '"),
    escaped(false, b"", b" %"),
    escaped(false, b"", b" %"),
    escaped(true, b"", b" +="),
];

/// Controls always; DEL and what is above it if `high`; and the listed characters.
const fn escaped(high: bool, one: &[u8], two: &[u8]) -> [bool; 256] {
    let mut table = [false; 256];
    let mut ch = 0;
    while ch < 256 {
        table[ch] = ch < 0x20 || (high && ch >= 0x7f);
        ch += 1;
    }
    let mut i = 0;
    while i < one.len() {
        table[one[i] as usize] = true;
        i += 1;
    }
    let mut i = 0;
    while i < two.len() {
        table[two[i] as usize] = true;
        i += 1;
    }
    table
}
