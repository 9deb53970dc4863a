//! Variables whose name says what they read: `$arg_x`, `$http_x`, `$cookie_x`, `$sent_http_x`.

use super::Get;
use crate::request::Request;

/// Reads what the rest of the name says.
type Read = fn(&mut Request, &[u8], &mut Vec<u8>) -> bool;

/// The variable of this name, if its prefix is one of these.
pub fn getter(name: &[u8]) -> Option<Get> {
    let families: [(&[u8], Read); 4] = [
        (b"arg_", argument),
        (b"http_", request_header),
        (b"sent_http_", response_header),
        (b"cookie_", cookie),
    ];
    let (rest, get) =
        families.into_iter().find_map(|(prefix, get)| Some((name.strip_prefix(prefix)?, get)))?;
    let rest = rest.to_vec();
    Some(Box::new(move |r, out| get(r, &rest, out)))
}

fn argument(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    match find_argument(&r.args, name) {
        Some(value) => {
            out.extend_from_slice(value);
            true
        }
        None => false,
    }
}

/// The first `name=value` of a query string; names are compared without case, as nginx does.
pub fn find_argument<'a>(args: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    args.split(|b| *b == b'&').find_map(|pair| {
        let (key, value) = pair.split_at_checked(name.len())?;
        if !key.eq_ignore_ascii_case(name) {
            return None;
        }
        value.strip_prefix(b"=")
    })
}

fn request_header(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let separator: &[u8] = if name == b"cookie" { b"; " } else { b", " };
    joined(r.headers().filter(|(n, _)| same_name(n, name)).map(|(_, v)| v), separator, out)
}

fn response_header(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    if r.response.special_header(name, out) {
        return true;
    }
    joined(
        r.response.headers.iter().filter(|(n, _)| same_name(n, name)).map(|(_, v)| v),
        b", ",
        out,
    )
}

/// Joins all values of a header, as a list of one header would be written (RFC 9110 section 5.3).
pub fn joined<'a>(
    values: impl Iterator<Item = &'a [u8]>,
    separator: &[u8],
    out: &mut Vec<u8>,
) -> bool {
    let mut found = false;
    for value in values {
        if found {
            out.extend_from_slice(separator);
        }
        out.extend_from_slice(value);
        found = true;
    }
    found
}

/// Whether a header's name is the one that a variable's name spells with underscores.
pub fn same_name(header: &[u8], variable: &[u8]) -> bool {
    header.len() == variable.len()
        && header.iter().zip(variable).all(|(h, v)| match h {
            b'-' => *v == b'_',
            h => h.to_ascii_lowercase() == *v,
        })
}

fn cookie(r: &mut Request, name: &[u8], out: &mut Vec<u8>) -> bool {
    let value =
        r.headers().filter(|(n, _)| n.eq_ignore_ascii_case(b"cookie")).find_map(|(_, v)| {
            v.split(|b| *b == b';').find_map(|pair| {
                let pair = pair.trim_ascii_start();
                let (key, value) = pair.split_at_checked(name.len())?;
                let value = key.eq_ignore_ascii_case(name).then_some(value)?;
                value.trim_ascii_start().strip_prefix(b"=").map(<[u8]>::trim_ascii)
            })
        });
    match value {
        Some(value) => {
            out.extend_from_slice(value);
            true
        }
        None => false,
    }
}
