//! Reads permission bits.

use weir_conf::{Directive, Error};

/// `user:rw`, `group:r`, `all:r`, combined to the permission bits of a file. nginx:
/// ngx_conf_set_access_slot.
pub fn read(d: &Directive) -> Result<u32, Error> {
    let (mut mode, mut user) = (0, 0o600);
    for word in &d.args {
        let invalid = || d.invalid("value", word);
        let colon = word.bytes.iter().position(|b| *b == b':').ok_or_else(invalid)?;
        let shift = match &word.bytes[..colon] {
            b"user" => {
                user = 0;
                6
            }
            b"group" => 3,
            b"all" => 0,
            _ => return Err(invalid()),
        };
        let right = match &word.bytes[colon + 1..] {
            b"rw" => 6,
            b"r" => 4,
            _ => return Err(invalid()),
        };
        mode |= right << shift;
    }
    Ok(mode | user)
}
