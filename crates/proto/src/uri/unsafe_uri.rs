//! URIs that come from an upstream, from SSI or from a `Destination` header, and are to be served
//! from here. nginx: ngx_http_parse_unsafe_uri.

use super::escape::{Unescape, unescape};

/// A URI that must not be followed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UnsafeUri;

/// A URI taken apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SafeUri {
    /// The decoded path.
    pub path: Vec<u8>,
    /// What stands behind the `?`, as sent.
    pub args: Option<Vec<u8>>,
}

/// Refuses a URI that is empty, holds NUL or has a `..` segment, plainly or escaped; otherwise
/// splits off the query and decodes the path.
pub fn is_unsafe(uri: &[u8]) -> Result<SafeUri, UnsafeUri> {
    let question = memchr::memchr(b'?', uri);
    let (path, args) = match question {
        Some(at) => (uri.get(..at).unwrap_or_default(), uri.get(at + 1..)),
        None => (uri, None),
    };
    if path.is_empty() || climbs(path) {
        return Err(UnsafeUri);
    }
    let mut decoded = Vec::new();
    unescape(Unescape::All, path, &mut decoded);
    if climbs(&decoded) {
        return Err(UnsafeUri);
    }
    Ok(SafeUri { path: decoded, args: args.map(<[u8]>::to_vec) })
}

/// Whether a segment is `..`, or a byte is NUL.
fn climbs(path: &[u8]) -> bool {
    memchr::memchr(0, path).is_some() || path.split(|&ch| ch == b'/').any(|part| part == b"..")
}
