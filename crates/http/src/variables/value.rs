//! Writes values of variables. A variable without a value writes nothing and returns false.

use weir_values::builtin::write_number;

use crate::request::Request;

/// Reads a variable.
pub type ReadVariable = fn(&mut Request, &mut Vec<u8>) -> bool;

/// Writes a value.
pub fn put(out: &mut Vec<u8>, value: &[u8]) -> bool {
    out.extend_from_slice(value);
    true
}

/// Writes a value, if there is one.
pub fn put_some(out: &mut Vec<u8>, value: Option<&[u8]>) -> bool {
    if let Some(value) = value {
        out.extend_from_slice(value);
    }
    value.is_some()
}

/// Writes a number.
pub fn put_number(out: &mut Vec<u8>, n: u64) -> bool {
    write_number(n, out);
    true
}

/// Joins the values of all lines of a header, as one line would list them (RFC 9110, section 5.3).
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

/// Whether the header's name matches the variable's name, which has underscores instead of hyphens.
pub fn same_name(header: &[u8], variable: &[u8]) -> bool {
    header.len() == variable.len()
        && header.iter().zip(variable).all(|(h, v)| match h {
            b'-' => *v == b'_',
            h => h.to_ascii_lowercase() == *v,
        })
}
