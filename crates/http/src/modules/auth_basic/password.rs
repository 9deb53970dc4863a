//! Compares a password with a stored one, in any format of a user file. nginx: ngx_crypt.c.

use md5::{Digest, Md5};
use sha1::Sha1;
use weir_proto::base64::{self, Alphabet};

use crate::secret::is_same;

/// The digits of crypt(3)'s base 64, by value.
const DIGITS: &[u8; 64] = b"./0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
const APR1: &[u8] = b"$apr1$";
const SHA1_LEN: usize = 20;

/// Whether the password matches the stored one. `None` for an unknown format. May take long.
pub fn matches(password: &[u8], kept: &[u8]) -> Option<bool> {
    // The password ends at a NUL, as a C string does.
    let password = password.split(|b| *b == 0).next().unwrap_or_default();
    let hash = if let Some(rest) = kept.strip_prefix(APR1) {
        apr1(password, rest)
    } else if kept.starts_with(b"{PLAIN}") {
        [b"{PLAIN}", password].concat()
    } else if let Some(rest) = kept.strip_prefix(b"{SSHA}") {
        salted_sha(password, rest)
    } else if kept.starts_with(b"{SHA}") {
        encoded(b"{SHA}", &Sha1::digest(password))
    } else {
        weir_sys::crypt::crypt(password, kept)?
    };
    Some(is_same(&hash, kept))
}

fn encoded(scheme: &[u8], bytes: &[u8]) -> Vec<u8> {
    let mut out = scheme.to_vec();
    base64::encode(Alphabet::Plain, bytes, &mut out);
    out
}

/// The stored form of a salted SHA-1: base64 of the digest and the salt.
fn salted_sha(password: &[u8], kept: &[u8]) -> Vec<u8> {
    let kept = base64::decode(Alphabet::Plain, kept).unwrap_or_default();
    let salt = kept.get(SHA1_LEN..).unwrap_or_default();
    let digest = Sha1::new().chain_update(password).chain_update(salt).finalize();
    encoded(b"{SSHA}", &[digest.as_slice(), salt].concat())
}

/// Apache's variant of the MD5 crypt by Poul-Henning Kamp: 1000 rounds over password and salt.
fn apr1(password: &[u8], rest: &[u8]) -> Vec<u8> {
    let salt = rest.split(|b| *b == b'$').next().unwrap_or_default();
    let salt = &salt[..salt.len().min(8)];
    let inner = Md5::new().chain_update(password).chain_update(salt).chain_update(password);
    let inner = inner.finalize();
    let mut outer = Md5::new().chain_update(password).chain_update(APR1).chain_update(salt);
    for part in password.chunks(inner.len()) {
        outer.update(&inner[..part.len()]);
    }
    let mut bits = password.len();
    while bits > 0 {
        outer.update(if bits & 1 == 1 { &[0] } else { &password[..1] });
        bits >>= 1;
    }
    let mut digest = outer.finalize();
    for round in 0..1000 {
        let mut md5 = Md5::new();
        let odd = round % 2 == 1;
        md5.update(if odd { password } else { &digest[..] });
        if round % 3 != 0 {
            md5.update(salt);
        }
        if round % 7 != 0 {
            md5.update(password);
        }
        md5.update(if odd { &digest[..] } else { password });
        digest = md5.finalize();
    }
    let mut out = [APR1, salt, b"$"].concat();
    for [high, middle, low] in [[0, 6, 12], [1, 7, 13], [2, 8, 14], [3, 9, 15], [4, 10, 5]] {
        let [high, middle, low] = [digest[high], digest[middle], digest[low]].map(u32::from);
        put_digits(high << 16 | middle << 8 | low, 4, &mut out);
    }
    put_digits(u32::from(digest[11]), 2, &mut out);
    out
}

fn put_digits(mut value: u32, count: usize, out: &mut Vec<u8>) {
    for _ in 0..count {
        out.push(DIGITS[value as usize & 63]);
        value >>= 6;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn check(password: &str, kept: &str) -> Option<bool> {
        matches(password.as_bytes(), kept.as_bytes())
    }

    #[test]
    fn forms_of_user_files() {
        for kept in [
            "{PLAIN}secret",
            // openssl passwd -apr1, -6; openssl dgst -sha1 -binary | base64
            "$apr1$salt1234$G61s9lpZAELkzUFCbj/53/",
            "{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=",
            "{SSHA}gVK8WC9YyFT1gMsQHTGCgT3sSv5zYWx0",
            "$6$saltsalt$TVLlQcbpFVof5W3Yz4DTP6gRstiNuHwwTt6GLc1E5n0U0aDehy0S5knV8wiOQSpT0Y77vwPZN.Pq.H91p5hVO1",
            "abNANd1rDfiNc",
        ] {
            assert_eq!(check("secret", kept), Some(true), "{kept}");
            assert_eq!(check("Secret", kept), Some(false), "{kept}");
        }
    }

    #[test]
    fn odd_stored_passwords() {
        assert_ne!(check("secret", "$nothing$"), Some(true));
        assert_ne!(check("secret", "*0"), Some(true));
        assert_eq!(check("secret", "{SSHA}%%"), Some(false));
        assert_eq!(check("", "{PLAIN}"), Some(true));
        assert_eq!(check("", "$apr1$"), Some(false));
    }

    proptest! {
        // Each case hashes 1000 rounds.
        #![proptest_config(ProptestConfig::with_cases(16))]

        #[test]
        fn long_and_odd_ones(password: Vec<u8>, salt in "[a-z]{0,12}") {
            let password: Vec<u8> = password.into_iter().filter(|b| *b != 0).collect();
            let hash = apr1(&password, salt.as_bytes());
            prop_assert_eq!(matches(&password, &hash), Some(true));
            let longer = [&password[..], b"x"].concat();
            prop_assert_eq!(matches(&longer, &hash), Some(false));
        }
    }
}
