//! Digests: MD5, SHA-1, HMAC, CRC-32.

use md5::{Digest, Md5};
use sha1::Sha1;

use super::natives::{AnswerKind, Natives};
use crate::escape::hex_text;
use crate::modules::lua::current::NgxError;

/// Adds the functions of this part.
pub fn install(natives: &Natives<'_>) -> mlua::Result<()> {
    natives.direct_text("md5", |text, out| out.extend(hex_text(&Md5::digest(text)).bytes()))?;
    natives.direct_text("md5_bin", |text, out| out.extend(Md5::digest(text)))?;
    natives.direct_text("sha1_bin", |text, out| out.extend(Sha1::digest(text)))?;
    natives.add("hmac_sha1", |lua, (key, text): (mlua::String, mlua::String)| {
        lua.create_string(hmac_sha1(&key.as_bytes(), &text.as_bytes()))
    })?;
    natives.direct("crc32", |passed, answer| {
        answer.number = crc32(passed.first).into();
        Ok::<_, NgxError>(AnswerKind::Number)
    })
}

/// RFC 2104
fn hmac_sha1(key: &[u8], text: &[u8]) -> Vec<u8> {
    /// The block size of SHA-1.
    const BLOCK: usize = 64;
    let mut block = [0u8; BLOCK];
    if key.len() > BLOCK {
        block[..20].copy_from_slice(&Sha1::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let inner = Sha1::new().chain_update(block.map(|b| b ^ 0x36)).chain_update(text).finalize();
    let outer = Sha1::new().chain_update(block.map(|b| b ^ 0x5c)).chain_update(inner);
    outer.finalize().to_vec()
}

/// The CRC of Ethernet and gzip.
fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = flate2::Crc::new();
    crc.update(bytes);
    crc.sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_their_standards() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(hex_text(&Md5::digest(b"abc")), "900150983cd24fb0d6963f7d28e17f72");
        // RFC 2202, test cases 2 and 6.
        let short = hmac_sha1(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex_text(&short), "effcdf6ae5eb2fa2d27416d5f184df9c259a7c79");
        let long =
            hmac_sha1(&[0xaa; 80], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex_text(&long), "aa4ae5e15272d00e95705637ce8a3b55ed402112");
    }
}
