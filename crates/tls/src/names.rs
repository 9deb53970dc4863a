//! OpenSSL's names of protocols, ciphers and curves, and what rustls has for them.

use std::sync::OnceLock;

use rustls::crypto::aws_lc_rs::{self, kx_group};
use rustls::crypto::{CryptoProvider, SupportedKxGroup};
use rustls::{CipherSuite, NamedGroup, ProtocolVersion, SupportedCipherSuite};

use foreign::FOREIGN;

mod foreign;

/// The cryptography of all TLS: AWS-LC.
pub fn provider() -> &'static CryptoProvider {
    PROVIDER.get_or_init(aws_lc_rs::default_provider)
}

static PROVIDER: OnceLock<CryptoProvider> = OnceLock::new();

/// Seeds this thread's source of random numbers, if the configuration uses TLS, for clients or to
/// servers. AWS-LC takes tens of milliseconds for that in each process, also after a fork.
/// Otherwise the first handshake would take them.
///
/// Without TLS the seed is left out: meanwhile, the first worker that is ready would accept alone.
/// So nothing calls `provider` before it needs it.
pub fn seed_random() {
    if PROVIDER.get().is_some() {
        // A source that fails here fails the handshake that needs it.
        let _ = ::aws_lc_rs::rand::fill(&mut [0; 32]);
    }
}

/// Which versions of TLS are spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Versions {
    /// TLS 1.2
    pub tls12: bool,
    /// TLS 1.3
    pub tls13: bool,
}

impl Default for Versions {
    fn default() -> Self {
        Versions { tls12: true, tls13: true }
    }
}

impl Versions {
    /// No version.
    pub const NONE: Versions = Versions { tls12: false, tls13: false };

    /// Adds a version by its name, in any case; false for one that rustls does not speak.
    pub fn add(&mut self, name: &[u8]) -> bool {
        match name.to_ascii_lowercase().as_slice() {
            b"tlsv1.2" => self.tls12 = true,
            b"tlsv1.3" => self.tls13 = true,
            _ => return false,
        }
        true
    }

    pub(crate) fn list(self) -> Vec<&'static rustls::SupportedProtocolVersion> {
        let mut list = Vec::new();
        if self.tls13 {
            list.push(&rustls::version::TLS13);
        }
        if self.tls12 {
            list.push(&rustls::version::TLS12);
        }
        list
    }
}

/// `$ssl_protocol`
pub fn protocol(version: ProtocolVersion) -> &'static str {
    match version {
        ProtocolVersion::TLSv1_3 => "TLSv1.3",
        ProtocolVersion::TLSv1_2 => "TLSv1.2",
        _ => "",
    }
}

/// A cipher suite's name in OpenSSL, and the keywords of a cipher string that select it.
struct Suite {
    id: CipherSuite,
    name: &'static str,
    words: &'static [&'static str],
}

macro_rules! suite {
    ($id:ident, $name:literal $(, $word:literal)*) => {
        Suite { id: CipherSuite::$id, name: $name, words: &[
            $($word,)* "ALL", "DEFAULT", "HIGH", "TLSv1.2", "ECDH", "ECDHE", "EECDH", "kECDHE", "kEECDH", "FIPS",
        ] }
    };
}

/// Suites of TLS 1.2, in OpenSSL's order.
const SUITES: &[Suite] = &[
    suite!(
        TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-ECDSA-AES256-GCM-SHA384",
        "aECDSA",
        "ECDSA",
        "AES",
        "AES256",
        "AESGCM",
        "SHA384"
    ),
    suite!(
        TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384,
        "ECDHE-RSA-AES256-GCM-SHA384",
        "aRSA",
        "AES",
        "AES256",
        "AESGCM",
        "SHA384"
    ),
    suite!(
        TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "aECDSA",
        "ECDSA",
        "CHACHA20",
        "SHA256"
    ),
    suite!(
        TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256,
        "ECDHE-RSA-CHACHA20-POLY1305",
        "aRSA",
        "CHACHA20",
        "SHA256"
    ),
    suite!(
        TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-ECDSA-AES128-GCM-SHA256",
        "aECDSA",
        "ECDSA",
        "AES",
        "AES128",
        "AESGCM",
        "SHA256"
    ),
    suite!(
        TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256,
        "ECDHE-RSA-AES128-GCM-SHA256",
        "aRSA",
        "AES",
        "AES128",
        "AESGCM",
        "SHA256"
    ),
];

/// Suites of TLS 1.3.
const SUITES13: &[(CipherSuite, &str)] = &[
    (CipherSuite::TLS13_AES_256_GCM_SHA384, "TLS_AES_256_GCM_SHA384"),
    (CipherSuite::TLS13_CHACHA20_POLY1305_SHA256, "TLS_CHACHA20_POLY1305_SHA256"),
    (CipherSuite::TLS13_AES_128_GCM_SHA256, "TLS_AES_128_GCM_SHA256"),
];

/// The cipher suites of a configuration. Those of TLS 1.2 come from a cipher string, those of TLS
/// 1.3 from a list of their own, as in OpenSSL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ciphers {
    tls12: Vec<CipherSuite>,
    tls13: Vec<CipherSuite>,
}

impl Default for Ciphers {
    fn default() -> Self {
        Ciphers {
            tls12: SUITES.iter().map(|s| s.id).collect(),
            tls13: SUITES13.iter().map(|s| s.0).collect(),
        }
    }
}

/// The result of a cipher string.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Chosen {
    /// It selects suites for TLS 1.2.
    Some,
    /// It selects none, but has a keyword of suites that OpenSSL has and rustls lacks. TLS 1.3 and
    /// its suites remain.
    Foreign,
    /// It selects none, and no keyword is known.
    Nothing,
}

impl Ciphers {
    /// Reads a cipher string, such as `HIGH:!aNULL:ECDHE+AESGCM`. For TLS 1.2, rustls only has suites
    /// with forward secrecy and authenticated encryption.
    pub fn set(&mut self, text: &str) -> Chosen {
        let (mut chosen, mut barred) = (Vec::<CipherSuite>::new(), Vec::new());
        let mut foreign = false;
        for word in text.split([':', ',', ';', ' ']).filter(|w| !w.is_empty()) {
            let (sign, words) = match word.split_at_checked(1) {
                Some((sign @ ("!" | "-" | "+"), rest)) => (sign, rest),
                _ => ("", word),
            };
            let hits: Vec<_> = SUITES.iter().filter(|s| s.is(words)).map(|s| s.id).collect();
            match sign {
                "!" => barred.extend(hits),
                "-" => chosen.retain(|id| !hits.contains(id)),
                "+" => {
                    let (moved, kept) = chosen.iter().partition(|id| hits.contains(id));
                    chosen = kept;
                    chosen.extend::<Vec<_>>(moved);
                }
                _ => {
                    foreign |= hits.is_empty() && is_foreign(words);
                    let new = hits.into_iter().filter(|id| !chosen.contains(id));
                    chosen.extend(new.collect::<Vec<_>>());
                }
            }
        }
        chosen.retain(|id| !barred.contains(id));
        self.tls12 = chosen;
        match self.tls12.is_empty() {
            false => Chosen::Some,
            true if foreign => Chosen::Foreign,
            true => Chosen::Nothing,
        }
    }

    /// Reads a list of suites of TLS 1.3 (`ssl_conf_command Ciphersuites`).
    pub fn set_tls13(&mut self, text: &str) -> bool {
        let known = |name: &str| SUITES13.iter().find(|(_, n)| *n == name).map(|(id, _)| *id);
        let list: Option<Vec<_>> = text.split(':').filter(|n| !n.is_empty()).map(known).collect();
        list.map(|list| self.tls13 = list).is_some()
    }

    /// The numbers of the suites that these versions use.
    pub fn numbers(&self, versions: Versions) -> Vec<u16> {
        self.suites(versions).iter().map(|suite| u16::from(suite.suite())).collect()
    }

    pub(crate) fn suites(&self, versions: Versions) -> Vec<SupportedCipherSuite> {
        let all = aws_lc_rs::ALL_CIPHER_SUITES;
        let tls13 = self.tls13.iter().filter(|_| versions.tls13);
        let ids = tls13.chain(self.tls12.iter().filter(|_| versions.tls12));
        ids.filter_map(|id| all.iter().find(|s| s.suite() == *id)).copied().collect()
    }
}

impl Suite {
    /// Whether keywords of a cipher string select this suite. Of keywords joined by `+`, each must.
    fn is(&self, words: &str) -> bool {
        words == self.name || words.split('+').all(|word| self.words.contains(&word))
    }
}

/// `$ssl_cipher`: OpenSSL's name of a suite, or the number of one that is unknown here.
pub fn cipher(id: u16) -> String {
    let tls12 = SUITES.iter().map(|s| (s.id, s.name));
    let own = tls12.chain(SUITES13.iter().copied()).map(|(suite, name)| (u16::from(suite), name));
    let name = own.chain(FOREIGN.iter().copied()).find(|(suite, _)| *suite == id);
    name.map_or_else(|| format!("0x{id:04x}"), |(_, name)| name.to_owned())
}

/// Whether OpenSSL 3 has suites by these keywords that rustls lacks.
fn is_foreign(words: &str) -> bool {
    const KINDS: &[&str] = &[
        "aNULL", "ADH", "AECDH", "eNULL", "NULL", "RSA", "kRSA", "DHE", "EDH", "kDHE", "kEDH",
        "aDSS", "DSS", "PSK", "kPSK", "aPSK", "SRP", "kSRP", "aSRP", "CAMELLIA", "ARIA", "SHA",
        "SHA1", "SSLv3", "TLSv1",
    ];
    // A cipher string has no effect on suites of TLS 1.3, and none on values for signalling.
    let mut named = FOREIGN.iter().filter(|(_, name)| !name.starts_with("TLS_"));
    named.any(|(_, name)| *name == words) || words.split('+').any(|w| KINDS.contains(&w))
}

/// A curve with its names. OpenSSL shows the first.
struct Curve {
    id: NamedGroup,
    names: &'static [&'static str],
    group: &'static dyn SupportedKxGroup,
}

const CURVES: &[Curve] = &[
    Curve { id: NamedGroup::X25519, names: &["X25519", "x25519"], group: kx_group::X25519 },
    Curve {
        id: NamedGroup::secp256r1,
        names: &["prime256v1", "P-256", "secp256r1"],
        group: kx_group::SECP256R1,
    },
    Curve { id: NamedGroup::secp384r1, names: &["secp384r1", "P-384"], group: kx_group::SECP384R1 },
    Curve {
        id: NamedGroup::X25519MLKEM768,
        names: &["X25519MLKEM768"],
        group: kx_group::X25519MLKEM768,
    },
    Curve {
        id: NamedGroup::secp256r1MLKEM768,
        names: &["SecP256r1MLKEM768"],
        group: kx_group::SECP256R1MLKEM768,
    },
];

/// Curves that OpenSSL has and rustls lacks: number and names. OpenSSL shows the first name.
const FOREIGN_CURVES: &[(u16, &[&str])] = &[
    (1, &["sect163k1", "K-163"]),
    (2, &["sect163r1"]),
    (3, &["sect163r2", "B-163"]),
    (4, &["sect193r1"]),
    (5, &["sect193r2"]),
    (6, &["sect233k1", "K-233"]),
    (7, &["sect233r1", "B-233"]),
    (8, &["sect239k1"]),
    (9, &["sect283k1", "K-283"]),
    (10, &["sect283r1", "B-283"]),
    (11, &["sect409k1", "K-409"]),
    (12, &["sect409r1", "B-409"]),
    (13, &["sect571k1", "K-571"]),
    (14, &["sect571r1", "B-571"]),
    (15, &["secp160k1"]),
    (16, &["secp160r1"]),
    (17, &["secp160r2"]),
    (18, &["secp192k1"]),
    (19, &["prime192v1", "secp192r1", "P-192"]),
    (20, &["secp224k1"]),
    (21, &["secp224r1", "P-224"]),
    (22, &["secp256k1"]),
    (25, &["secp521r1", "P-521"]),
    (26, &["brainpoolP256r1"]),
    (27, &["brainpoolP384r1"]),
    (28, &["brainpoolP512r1"]),
    (30, &["X448", "x448"]),
    (31, &["brainpoolP256r1tls13"]),
    (32, &["brainpoolP384r1tls13"]),
    (33, &["brainpoolP512r1tls13"]),
    (256, &["ffdhe2048"]),
    (257, &["ffdhe3072"]),
    (258, &["ffdhe4096"]),
    (259, &["ffdhe6144"]),
    (260, &["ffdhe8192"]),
    (512, &["MLKEM512"]),
    (513, &["MLKEM768"]),
    (514, &["MLKEM1024"]),
    (4589, &["SecP384r1MLKEM1024"]),
];

/// The curves (key exchange groups) of a configuration, the preferred first. `None`: the provider's
/// defaults.
#[derive(Debug, Clone, Default)]
pub struct Curves(Option<Vec<&'static dyn SupportedKxGroup>>);

/// What is wrong with a list of curves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BadCurve<'a> {
    /// An unknown curve.
    Unknown(&'a str),
    /// rustls lacks this curve, the last of a list of which none is left.
    Missing(&'a str),
}

impl Curves {
    /// Reads a list such as `X25519:prime256v1`, or `auto`. The names of curves that rustls lacks
    /// are returned, too. They are an error only if no curve is left.
    pub fn parse(text: &str) -> Result<(Curves, Vec<&str>), BadCurve<'_>> {
        if text == "auto" {
            return Ok((Curves::default(), Vec::new()));
        }
        let (mut groups, mut missing) = (Vec::new(), Vec::new());
        for name in text.split(':') {
            match CURVES.iter().find(|c| c.names.contains(&name)) {
                Some(curve) => groups.push(curve.group),
                None if FOREIGN_CURVES.iter().any(|(_, names)| names.contains(&name)) => {
                    missing.push(name);
                }
                None => return Err(BadCurve::Unknown(name)),
            }
        }
        match missing.last() {
            Some(last) if groups.is_empty() => Err(BadCurve::Missing(last)),
            _ => Ok((Curves(Some(groups)), missing)),
        }
    }

    pub(crate) fn groups(&self) -> Vec<&'static dyn SupportedKxGroup> {
        self.0.clone().unwrap_or_else(|| provider().kx_groups.clone())
    }
}

/// `$ssl_curve`: OpenSSL's name of a curve, or the number of one that is unknown here.
pub fn curve(id: u16) -> String {
    let own = CURVES.iter().map(|c| (u16::from(c.id), c.names));
    let known = own.chain(FOREIGN_CURVES.iter().copied()).find(|(number, _)| *number == id);
    let name = known.and_then(|(_, names)| names.first());
    name.map_or_else(|| format!("0x{id:04x}"), |name| (*name).to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(text: &str) -> Vec<String> {
        let mut ciphers = Ciphers::default();
        ciphers.set(text);
        ciphers.tls12.iter().map(|id| cipher(u16::from(*id))).collect()
    }

    #[test]
    fn versions_are_known_by_their_names_in_any_case() {
        let mut versions = Versions::NONE;
        assert!(versions.add(b"TLSV1.2") && !versions.add(b"TLSv1.1"));
        assert_eq!(versions, Versions { tls12: true, tls13: false });
        assert!(versions.add(b"tlsv1.3") && versions == Versions::default());
    }

    #[test]
    fn cipher_strings_choose_and_order() {
        assert_eq!(names("HIGH:!aNULL:!MD5").len(), 6);
        assert_eq!(
            names("ECDHE+AESGCM:!aECDSA"),
            ["ECDHE-RSA-AES256-GCM-SHA384", "ECDHE-RSA-AES128-GCM-SHA256"]
        );
        assert_eq!(
            names("ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:RC4-SHA"),
            ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-RSA-AES256-GCM-SHA384"]
        );
        assert_eq!(names("aRSA:+AES256").last().unwrap(), "ECDHE-RSA-AES256-GCM-SHA384");
        assert_eq!(names("ALL:-CHACHA20:!AES128").len(), 2);
        let set = |text| Ciphers::default().set(text);
        assert_eq!(set("kECDH+AESGCM:ECDH+AESGCM:RSA+AES:"), Chosen::Some);
        assert_eq!(set("RC4-SHA:DES-CBC3-SHA"), Chosen::Nothing);
        assert_eq!(set("aNULL"), Chosen::Foreign);
        assert_eq!(set("AES128-SHA:kRSA+AESGCM"), Chosen::Foreign);
        assert_eq!(set("!aNULL"), Chosen::Nothing);
        assert_eq!(set("DHE-DSS-AES256-SHA:ECDHE-ECDSA-AES256-CCM8"), Chosen::Foreign);
        assert_eq!(set("TLS_AES_128_CCM_SHA256"), Chosen::Nothing);
    }

    #[test]
    fn suites_that_rustls_lacks_have_their_names() {
        let named = [0x1304, 0x00a3, 0xc0ae, 0xc061, 0x00ff, 0x5600, 0xcca8, 0xc02c].map(cipher);
        assert_eq!(
            named,
            [
                "TLS_AES_128_CCM_SHA256",
                "DHE-DSS-AES256-GCM-SHA384",
                "ECDHE-ECDSA-AES128-CCM8",
                "ECDHE-ARIA256-GCM-SHA384",
                "TLS_EMPTY_RENEGOTIATION_INFO_SCSV",
                "TLS_FALLBACK_SCSV",
                "ECDHE-RSA-CHACHA20-POLY1305",
                "ECDHE-ECDSA-AES256-GCM-SHA384",
            ]
        );
        assert_eq!(cipher(0xc031), "0xc031");
        assert!(FOREIGN.is_sorted_by_key(|(number, _)| *number));
    }

    #[test]
    fn curves_that_are_missing_are_told_from_unknown_ones() {
        let (curves, missing) = Curves::parse("secp521r1:prime256v1").unwrap();
        assert_eq!((curves.groups().len(), missing), (1, vec!["secp521r1"]));
        let (curves, missing) = Curves::parse("X25519:X448:secp384r1:secp256k1:P-224").unwrap();
        assert_eq!((curves.groups().len(), missing), (2, vec!["X448", "secp256k1", "P-224"]));
        assert_eq!(Curves::parse("X448").unwrap_err(), BadCurve::Missing("X448"));
        assert_eq!(Curves::parse("x:X25519").unwrap_err(), BadCurve::Unknown("x"));
        let shown = [23, 19, 22, 25, 28, 256].map(curve);
        assert_eq!(
            shown,
            ["prime256v1", "prime192v1", "secp256k1", "secp521r1", "brainpoolP512r1", "ffdhe2048"]
        );
        assert_eq!(curve(0xabcd), "0xabcd");
    }
}
