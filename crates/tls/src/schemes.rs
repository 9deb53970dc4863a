//! Names of signature schemes. OpenSSL shows those of the IANA registry.

/// `$ssl_sigalg`: the name of a scheme, or its number if it is unknown here.
pub fn scheme(id: u16) -> String {
    let name = NAMES.iter().find(|(known, _)| *known == id);
    name.map_or_else(|| format!("0x{id:04x}"), |(_, name)| (*name).to_owned())
}

const NAMES: &[(u16, &str)] = &[
    (0x0201, "rsa_pkcs1_sha1"),
    (0x0203, "ecdsa_sha1"),
    (0x0401, "rsa_pkcs1_sha256"),
    (0x0403, "ecdsa_secp256r1_sha256"),
    (0x0501, "rsa_pkcs1_sha384"),
    (0x0503, "ecdsa_secp384r1_sha384"),
    (0x0601, "rsa_pkcs1_sha512"),
    (0x0603, "ecdsa_secp521r1_sha512"),
    (0x0804, "rsa_pss_rsae_sha256"),
    (0x0805, "rsa_pss_rsae_sha384"),
    (0x0806, "rsa_pss_rsae_sha512"),
    (0x0807, "ed25519"),
    (0x0808, "ed448"),
    (0x0809, "rsa_pss_pss_sha256"),
    (0x080a, "rsa_pss_pss_sha384"),
    (0x080b, "rsa_pss_pss_sha512"),
    (0x081a, "ecdsa_brainpoolP256r1tls13_sha256"),
    (0x081b, "ecdsa_brainpoolP384r1tls13_sha384"),
    (0x081c, "ecdsa_brainpoolP512r1tls13_sha512"),
    (0x0904, "mldsa44"),
    (0x0905, "mldsa65"),
    (0x0906, "mldsa87"),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_scheme_has_the_registrys_name_or_its_number() {
        assert_eq!(scheme(0x0403), "ecdsa_secp256r1_sha256");
        assert_eq!(scheme(0x0303), "0x0303");
        assert!(NAMES.is_sorted_by_key(|(id, _)| *id));
    }
}
