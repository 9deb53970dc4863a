//! URIs: the path that is meant, escaping, hosts, query arguments.

mod args;
mod escape;
mod host;
mod normalise;
mod unsafe_uri;

pub use args::{arg, list_value, set_cookie_value};
pub use escape::{Escape, Unescape, escape, escape_html, unescape};
pub use host::{BadHost, HostParts, host_valid};
pub use normalise::{BadUri, extension, normalise};
pub use unsafe_uri::{SafeUri, UnsafeUri, is_unsafe};

/// The value of a hexadecimal digit.
#[inline]
fn hex(ch: u8) -> Option<u8> {
    match ch {
        b'0'..=b'9' => Some(ch - b'0'),
        b'a'..=b'f' => Some(ch - b'a' + 10),
        b'A'..=b'F' => Some(ch - b'A' + 10),
        _ => None,
    }
}

#[cfg(test)]
mod tests;
