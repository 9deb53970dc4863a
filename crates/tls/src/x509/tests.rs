//! Certificates in odd encodings, beside `openssl verify`.

use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::SignatureScheme;
use rustls::sign::SigningKey;

use super::der::{INTEGER, OID, SEQUENCE, SET, write};
use super::{Certificate, KnownList, Purpose, RevocationList, TrustStore, VerifyError, verify};

const CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
const PURPOSES: &[u8] = &[0x55, 0x1d, 37];
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
const UTC: u8 = 0x17;
const GENERALIZED: u8 = 0x18;
const UTF8: u8 = 0x0c;
/// An object identifier with a number of 128 bits (2.25.UUID).
const UUID: &[u8] = &[
    0x69, 0x83, 0xf0, 0x9d, 0xa7, 0xeb, 0xcf, 0xde, 0xe1, 0xc7, 0xa3, 0xb2, 0xc2, 0xf5, 0x8f, 0x0a,
];
/// ecdsa-with-SHA256
const ALGORITHM: &[u8] = &[0x30, 10, 6, 8, 0x2a, 0x86, 0x48, 0xce, 0x3d, 4, 3, 2];

static KEY: LazyLock<std::sync::Arc<dyn SigningKey>> = LazyLock::new(|| {
    let key = crate::key::load(include_bytes!("../../testdata/root.key"), &[]).unwrap();
    crate::names::provider().key_provider.load_private_key(key).unwrap()
});

/// The parts of a self-signed certificate, each in DER.
struct Parts {
    version: Vec<u8>,
    serial: Vec<u8>,
    name: Vec<u8>,
    from: Vec<u8>,
    to: Vec<u8>,
    unique: Vec<u8>,
    extensions: Vec<u8>,
    /// Behind all other parts.
    rest: Vec<u8>,
}

impl Default for Parts {
    fn default() -> Self {
        Parts {
            version: vec![0xa0, 3, 2, 1, 2],
            serial: vec![INTEGER, 1, 7],
            name: name(COMMON_NAME, UTF8, b"odd"),
            from: write(UTC, &[b"250101000000Z"]),
            to: write(UTC, &[b"490101000000Z"]),
            unique: Vec::new(),
            extensions: extensions(&[&extension(CONSTRAINTS, &[1, 1, 0xff], CA)]),
            rest: Vec::new(),
        }
    }
}

/// Constraints of an authority.
const CA: &[u8] = &[0x30, 3, 1, 1, 0xff];

fn name(oid: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
    write(SEQUENCE, &[&write(SET, &[&attribute(oid, tag, text)])])
}

fn attribute(oid: &[u8], tag: u8, text: &[u8]) -> Vec<u8> {
    write(SEQUENCE, &[&write(OID, &[oid]), &write(tag, &[text])])
}

fn extension(oid: &[u8], critical: &[u8], value: &[u8]) -> Vec<u8> {
    write(SEQUENCE, &[&write(OID, &[oid]), critical, &write(4, &[value])])
}

fn extensions(list: &[&[u8]]) -> Vec<u8> {
    write(0xa3, &[&write(SEQUENCE, list)])
}

fn signed(body: &[u8]) -> Vec<u8> {
    let signer = KEY.choose_scheme(&[SignatureScheme::ECDSA_NISTP256_SHA256]).unwrap();
    let signature = write(3, &[&[0], &signer.sign(body).unwrap()]);
    write(SEQUENCE, &[body, ALGORITHM, &signature])
}

impl Parts {
    fn signed(&self) -> Vec<u8> {
        let key = KEY.public_key().unwrap();
        let times = write(SEQUENCE, &[&self.from, &self.to]);
        let body = write(
            SEQUENCE,
            &[
                &self.version,
                &self.serial,
                ALGORITHM,
                &self.name,
                &times,
                &self.name,
                key.as_ref(),
                &self.unique,
                &self.extensions,
            ],
        );
        [signed(&body), self.rest.clone()].concat()
    }
}

/// The fault of a certificate that is a trusted root itself.
fn fault(der: &[u8]) -> Option<VerifyError> {
    let Some(read) = Certificate::parse(der) else { return Some(VerifyError::REJECTED) };
    let anchors = [read.der.to_vec()];
    let trust = TrustStore { anchors: &anchors, lists: &[], depth: 1, now: 1_800_000_000 };
    verify::path(&[der], &trust, Purpose::Server).err()
}

/// The verdict of `openssl verify`. `None` without OpenSSL 3.
fn openssl_trusts(at: usize, der: &[u8]) -> Option<bool> {
    let version = Command::new("openssl").arg("version").output().ok()?;
    if !String::from_utf8_lossy(&version.stdout).contains("OpenSSL 3") {
        return None;
    }
    let file = std::env::temp_dir().join(format!("weir-odd-{}-{at}.pem", std::process::id()));
    let mut text = Vec::new();
    crate::write_pem("CERTIFICATE", der, &mut text);
    std::fs::write(&file, text).unwrap();
    let said = Command::new("openssl")
        .args(["verify", "-attime", "1800000000", "-CAfile"])
        .args([&file, &file])
        .output();
    let _ = std::fs::remove_file(&file);
    Some(said.unwrap().status.success())
}

#[test]
fn serial_numbers_are_shown_with_their_sign() {
    for (bytes, shown) in [
        (&[7][..], "07"),
        (&[0], "00"),
        (&[0, 0x80], "80"),
        (&[1, 0], "0100"),
        (&[0x80], "-80"),
        (&[0xff], "-01"),
        (&[0xff, 0x7f], "-81"),
        (&[0xff, 0], "-0100"),
    ] {
        let der = Parts { serial: write(INTEGER, &[bytes]), ..Parts::default() }.signed();
        assert_eq!(Certificate::parse(&der).unwrap().serial_hex(), shown);
    }
}

/// Encodings that `openssl verify` accepts. Published DER parsers refuse most of them.
fn taken() -> Vec<(&'static str, Parts)> {
    let plain = Parts::default;
    let called = |tag, text: &[u8]| Parts { name: name(COMMON_NAME, tag, text), ..plain() };
    let serial = |bytes: &[u8]| Parts { serial: bytes.to_vec(), ..plain() };
    let with = |list: &[&[u8]]| Parts { extensions: extensions(list), ..plain() };
    let from = |tag, text: &[u8]| Parts { from: write(tag, &[text]), ..plain() };
    let ca = extension(CONSTRAINTS, &[1, 1, 0xff], CA);
    let two = [attribute(&[0x55, 4, 10], UTF8, b"Z"), attribute(COMMON_NAME, UTF8, b"a")];
    let two = write(SEQUENCE, &[&write(SET, &[&two[0], &two[1]])]);
    let long = [&[0x2b, 6, 1, 4, 1][..], &[0x81; 60], &[1]].concat();
    vec![
        ("as usual", plain()),
        ("a negative serial number", serial(&[INTEGER, 1, 0x80])),
        ("a long serial number", serial(&[&[INTEGER, 30][..], &[0x11; 30]].concat())),
        ("a length in two bytes that needs one", serial(&[INTEGER, 0x81, 1, 7])),
        ("a length in five bytes", serial(&[INTEGER, 0x84, 0, 0, 0, 1, 7])),
        ("a critical flag of 1", with(&[&extension(CONSTRAINTS, &[1, 1, 1], CA)])),
        ("a critical flag that is false", with(&[&extension(CONSTRAINTS, &[1, 1, 0], CA)])),
        (
            "an authority's flag of 1",
            with(&[&extension(CONSTRAINTS, &[1, 1, 0xff], &[0x30, 3, 1, 1, 1])]),
        ),
        ("no version", Parts { version: vec![], extensions: vec![], ..plain() }),
        (
            "version 1 in writing",
            Parts { version: vec![0xa0, 3, 2, 1, 0], extensions: vec![], ..plain() },
        ),
        ("version 4", Parts { version: vec![0xa0, 3, 2, 1, 3], ..plain() }),
        ("an empty name", Parts { name: write(SEQUENCE, &[]), ..plain() }),
        ("an empty text", called(UTF8, b"")),
        ("a TeletexString", called(0x14, b"w\xe9")),
        ("a BMPString", called(0x1e, &[0, 0x77, 0, 0xe9])),
        ("a UniversalString", called(0x1c, &[0, 0, 0, 0x77])),
        ("a PrintableString of other letters", called(0x13, b"a@b_*")),
        ("an IA5String of eight bits", called(0x16, b"w\xe9")),
        ("two attributes out of order", Parts { name: two, ..plain() }),
        ("an attribute by a UUID", Parts { name: name(UUID, UTF8, b"u"), ..plain() }),
        ("an extension by a UUID", with(&[&ca, &extension(UUID, &[], &[5, 0])])),
        ("an extension with a long identifier", with(&[&ca, &extension(&long, &[], &[5, 0])])),
        ("no extension in the list", with(&[])),
        ("unique identifiers", Parts { unique: vec![0x81, 2, 0, 1, 0x82, 2, 0, 2], ..plain() }),
        ("a beginning in 1950", from(UTC, b"500101000000Z")),
        ("a beginning in 1900", from(GENERALIZED, b"19000101000000Z")),
        ("a GeneralizedTime before 2050", from(GENERALIZED, b"20250101000000Z")),
        ("an end in 9999", Parts { to: write(GENERALIZED, &[b"99991231235959Z"]), ..plain() }),
        ("bytes behind", Parts { rest: vec![0x30, 0], ..plain() }),
    ]
}

#[test]
fn odd_encodings_that_openssl_takes_are_taken() {
    for (at, (what, parts)) in taken().into_iter().enumerate() {
        let der = parts.signed();
        assert_eq!(fault(&der), None, "weir refuses {what}");
        assert_ne!(openssl_trusts(at, &der), Some(false), "OpenSSL refuses {what}");
    }
}

/// Extensions limit what a certificate may be used for, so malformed ones refuse it.
#[test]
fn unreadable_extensions_are_not_taken_for_missing_ones() {
    let purposes = extension(PURPOSES, &[], &[0x30, 10, 6, 8, 0x2b, 6, 1, 5, 5, 7, 3, 2]);
    let cut = [&[0x30, 0x7f], &purposes[2..]].concat();
    for (what, extensions) in [
        ("a list that does not end", [&[0xa3, 0x7f, 0x30, 0x10], &purposes[..]].concat()),
        ("an extension that does not end", extensions(&[&cut])),
        (
            "a list of indefinite length",
            [&[0xa3, 0x80, 0x30, 0x80], &purposes[..], &[0; 4]].concat(),
        ),
        ("an extension of a foreign tag", extensions(&[&[0x1f, 0x81, 1, 0]])),
    ] {
        let der = Parts { extensions, ..Parts::default() }.signed();
        assert!(Certificate::parse(&der).is_none(), "{what}");
    }
}

/// OpenSSL reads a certificate with a bad time, and does not trust it.
#[test]
fn bad_times_are_faults_of_a_chain() {
    let bad: [(u8, &[u8]); 6] = [
        (UTC, b"2501010000Z"),
        (UTC, b"250230000000Z"),
        (UTC, b"250101240000Z"),
        (UTC, b"250101000000+0100"),
        (GENERALIZED, b"20250101000000.5Z"),
        (UTC, b"yesterday"),
    ];
    for (at, (tag, text)) in bad.into_iter().enumerate() {
        let time = || write(tag, &[text]);
        let from = Parts { from: time(), ..Parts::default() }.signed();
        let to = Parts { to: time(), ..Parts::default() }.signed();
        let shown = String::from_utf8_lossy(text);
        assert_eq!(fault(&from), Some(VerifyError::BAD_NOT_BEFORE), "{shown}");
        assert_eq!(fault(&to), Some(VerifyError::BAD_NOT_AFTER), "{shown}");
        assert_ne!(openssl_trusts(200 + at, &from), Some(true), "OpenSSL takes {shown}");
    }
}

/// Names are shown and compared. A name that cannot be read to its end would lose its end.
#[test]
fn unreadable_names_are_refused() {
    let good = name(COMMON_NAME, UTF8, b"odd");
    let set = &good[2..];
    let two = [&write(OID, &[COMMON_NAME])[..], &[5, 0, 5, 0]].concat();
    for (what, name) in [
        ("a set that does not end", write(SEQUENCE, &[set, &[SET, 0x7f]])),
        ("an attribute that does not end", write(SEQUENCE, &[set, &[SET, 2, SEQUENCE, 0x7f]])),
        ("an attribute without a value", write(SEQUENCE, &[&[SET, 4, SEQUENCE, 2, OID, 0]])),
        (
            "an attribute of two values",
            write(SEQUENCE, &[&write(SET, &[&write(SEQUENCE, &[&two])])]),
        ),
    ] {
        let der = Parts { name, ..Parts::default() }.signed();
        assert!(Certificate::parse(&der).is_none(), "{what}");
        assert_ne!(openssl_trusts(100, &der), Some(true), "OpenSSL takes {what}");
    }
}

/// A list that cannot be read to its end would miss the entries behind.
#[test]
fn unreadable_revocation_lists_are_refused() {
    let entry = |serial| {
        let time = write(UTC, &[b"250101000000Z"]);
        write(SEQUENCE, &[&[INTEGER, 1, serial], &time])
    };
    let list = |entries: &[u8]| {
        let (name, time) = (name(COMMON_NAME, UTF8, b"odd"), write(UTC, &[b"250101000000Z"]));
        let body = write(SEQUENCE, &[&[INTEGER, 1, 1], ALGORITHM, &name, &time, entries]);
        let mut text = Vec::new();
        crate::write_pem("X509 CRL", &signed(&body), &mut text);
        crate::revocation_lists(&text)
    };
    let good = list(&write(SEQUENCE, &[&entry(6), &entry(7)])).unwrap();
    let own = Parts::default().signed();
    let own = Certificate::parse(&own).unwrap();
    assert!(good[0].list().unwrap().revokes(&own));
    let damaged = [entry(6), vec![0x1f, 0x81, 1, 0], entry(7)].concat();
    assert!(list(&write(SEQUENCE, &[&damaged])).is_err(), "an entry");
    assert!(list(&[&[0x30, 0x80], &entry(7)[..], &[0, 0]].concat()).is_err(), "the list");
}

#[test]
fn an_entry_that_was_removed_again_revokes_nothing() {
    const REASON: &[u8] = &[0x55, 0x1d, 21];
    let own = Parts::default().signed();
    let own = Certificate::parse(&own).unwrap();
    let time = write(UTC, &[b"250101000000Z"]);
    let revokes = |extension: &[u8]| {
        let entry = write(SEQUENCE, &[&[INTEGER, 1, 7], &time, &write(SEQUENCE, &[extension])]);
        let (name, entries) = (name(COMMON_NAME, UTF8, b"odd"), write(SEQUENCE, &[&entry]));
        let body = write(SEQUENCE, &[&[INTEGER, 1, 1], ALGORITHM, &name, &time, &entries]);
        RevocationList::parse(&signed(&body)).unwrap().revokes(&own)
    };
    assert!(!revokes(&extension(REASON, &[], &[10, 1, 8])));
    assert!(!revokes(&extension(REASON, &[1, 1, 0], &[10, 1, 8])));
    assert!(revokes(&extension(REASON, &[], &[10, 1, 6])));
    assert!(revokes(&extension(COMMON_NAME, &[], &[10, 1, 8])));
    assert!(revokes(&[0x1f, 0x81, 1, 0]), "what cannot be read removes nothing");
}

/// RFC 5280, section 5.3. The list then decides nothing for any certificate, whichever entry it is.
#[test]
fn a_list_with_an_unknown_critical_extension_is_unusable() {
    const REASON: &[u8] = &[0x55, 0x1d, 21];
    let time = write(UTC, &[b"250101000000Z"]);
    let is_usable = |extension: &[u8]| {
        let entry = write(SEQUENCE, &[&[INTEGER, 1, 7], &time, &write(SEQUENCE, &[extension])]);
        let plain = write(SEQUENCE, &[&[INTEGER, 1, 8], &time]);
        let (name, entries) = (name(COMMON_NAME, UTF8, b"odd"), write(SEQUENCE, &[&entry, &plain]));
        let body = write(SEQUENCE, &[&[INTEGER, 1, 1], ALGORITHM, &name, &time, &entries]);
        let list = KnownList::new(signed(&body)).unwrap();
        !list.list().unwrap().unknown_critical
    };
    assert!(is_usable(&extension(COMMON_NAME, &[], &[5, 0])));
    assert!(is_usable(&extension(COMMON_NAME, &[1, 1, 0], &[5, 0])));
    assert!(is_usable(&extension(REASON, &[1, 1, 0xff], &[10, 1, 1])));
    assert!(!is_usable(&extension(COMMON_NAME, &[1, 1, 0xff], &[5, 0])));
}

/// The certificates that this machine trusts.
#[test]
fn the_machines_authorities_are_read() {
    let Some(store) = crate::machine_store() else { return println!("not run: no store") };
    let text = std::fs::read(store).unwrap();
    let all = crate::certificates(&text).unwrap();
    for der in &all {
        let read = Certificate::parse(der).unwrap();
        assert!(read.der.len() == der.len() && read.authority().is_some());
        assert!(!read.extensions.invalid && !read.extensions.unknown_critical);
    }
    println!("{} authorities", all.len());
}

#[test]
fn a_certificate_is_out_of_date_before_and_behind_its_time_and_shortly_before_its_end() {
    let text = std::fs::read("testdata/expired.pem").unwrap();
    let chain = crate::certificates(&text).unwrap();
    let certificate = Certificate::parse(&chain[0]).unwrap();
    let (first, last) = (certificate.not_before.unwrap(), certificate.not_after.unwrap());
    let at = |now| certificate.out_of_date(now, Duration::from_secs(3600));
    let [ends, ended] =
        ["ends", "ended"].map(|word| Some(format!("{word} on Jan  1 00:00:00 2021 GMT")));
    assert_eq!(at(first - 1).unwrap(), "is not valid before Jan  1 00:00:00 2020 GMT");
    assert_eq!((at(first), at(last - 3600)), (None, None));
    assert_eq!((at(last - 3599), at(last), at(last + 1)), (ends.clone(), ends, ended));
}

/// A client may send certificates with one name and different keys. To try them all would block the
/// loop.
#[test]
fn only_a_few_authorities_of_one_name_are_tried() {
    let authority = |name: &str| {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params
    };
    let key = || KeyPair::generate().unwrap();
    let (root_key, leaf_key) = (key(), key());
    let anchor = authority("root").self_signed(&root_key).unwrap().der().to_vec();
    let root = Issuer::new(authority("root"), &root_key);
    let keys: Vec<KeyPair> = (0..9).map(|_| key()).collect();
    let certificates = keys.iter().map(|key| authority("one").signed_by(key, &root).unwrap());
    let all: Vec<_> = certificates.map(|certificate| certificate.der().clone()).collect();
    // The issuer of the leaf comes after so many others.
    let fault = |others: usize| {
        let issuer = Issuer::new(authority("one"), &keys[others]);
        let mut leaf = CertificateParams::default();
        leaf.distinguished_name.push(DnType::CommonName, "leaf");
        let leaf = leaf.signed_by(&leaf_key, &issuer).unwrap().der().clone();
        let chain = [&[leaf][..], &all[..=others]].concat();
        let anchors = vec![anchor.clone()];
        let authorities = crate::Authorities { anchors, lists: Vec::new(), depth: 5 };
        authorities.check(&chain, Purpose::Client).err()
    };
    assert_eq!(fault(0), None);
    assert_eq!(fault(7), None);
    assert_eq!(fault(8), Some(VerifyError::SIGNATURE));
}
