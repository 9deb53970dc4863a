//! Distinguished names as text, in the two forms that nginx's variables have.

use std::fmt::Write;

use super::der::{self, DerReader, DerValue};

/// A name in the form of RFC 2253: `CN=www,O=Example`, the last part first, and likewise within a part of several attributes.
pub fn rfc2253(name: &[u8]) -> String {
    let mut parts = Vec::new();
    let sets = DerReader::new(name);
    for set in sets {
        let mut attributes = set.inner();
        let mut texts = Vec::new();
        while let Some((oid, tag, value)) = attributes.next().and_then(|v| attribute(v.inner())) {
            let name = short_name(oid);
            texts.push(match name.filter(|_| !matches!(tag, der::BIT_STRING | der::SEQUENCE)) {
                Some(short) => format!("{short}={}", escaped(&utf8(tag, value))),
                None => {
                    let name = name.map_or_else(|| dotted(oid), str::to_owned);
                    format!("{name}=#{}", hex_value(tag, value))
                }
            });
        }
        texts.reverse();
        parts.push(texts.join("+"));
    }
    parts.reverse();
    parts.join(",")
}

/// A name in OpenSSL's old form of one line: `/O=Example/CN=www+UID=1`. A separator within a value has a backslash before it.
pub fn oneline(name: &[u8]) -> String {
    let mut text = String::new();
    let sets = DerReader::new(name);
    for set in sets {
        let (mut attributes, mut separator) = (set.inner(), '/');
        while let Some(parts) = attributes.next().map(|one| one.inner()) {
            let Some((oid, value)) = oneline_value(parts) else { break };
            let short = short_name(oid).map_or_else(|| dotted(oid), str::to_owned);
            let _ = write!(text, "{separator}{short}=");
            separator = '+';
            for byte in value {
                match byte {
                    b'/' | b'+' => text.extend(['\\', byte as char]),
                    b' '..=b'~' => text.push(byte as char),
                    _ => drop(write!(text, "\\x{byte:02X}")),
                }
            }
        }
    }
    text
}

/// The common names of a subject, in order.
pub fn common_names(name: &[u8]) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let sets = DerReader::new(name);
    for set in sets {
        let mut attributes = set.inner();
        while let Some((oid, tag, value)) = attributes.next().and_then(|v| attribute(v.inner())) {
            if oid == [0x55, 4, 3] {
                found.push(utf8(tag, value));
            }
        }
    }
    found
}

/// Whether a name can be read to its end. Otherwise it would be shown and compared without the
/// rest.
pub fn is_whole(name: &[u8]) -> bool {
    let read = |attribute: DerValue<'_>| {
        let mut parts = attribute.inner();
        parts.require(der::OID)?;
        parts.next()?;
        parts.is_empty().then_some(())
    };
    DerReader::new(name).each(|set| set.inner().each(read)).is_some()
}

/// Whether two names are equal. Types of strings, case and the number of spaces do not count.
/// OpenSSL: X509_NAME_cmp.
pub fn same(a: &[u8], b: &[u8]) -> bool {
    a == b || all_same(DerReader::new(a), DerReader::new(b), |a, b| all_same(a, b, same_attribute))
}

/// Whether a name begins with all parts of another one, compared as in [`same`].
pub fn begins_with(name: &[u8], base: &[u8]) -> bool {
    let (mut name, mut base) = (DerReader::new(name), DerReader::new(base));
    loop {
        match (base.next(), name.next()) {
            (None, _) => return base.is_empty(),
            (Some(one), Some(other)) if all_same(one.inner(), other.inner(), same_attribute) => {}
            _ => return false,
        }
    }
}

/// Whether a name has an `emailAddress`.
pub fn has_mail_address(name: &[u8]) -> bool {
    let mut sets = DerReader::new(name);
    let is_mail = |one: DerValue<'_>| {
        attribute(one.inner()).is_some_and(|(oid, ..)| short_name(oid) == Some("emailAddress"))
    };
    sets.any(|set| set.inner().any(is_mail))
}

/// Whether two lists have as many elements, and each pair is the same.
fn all_same<'a>(
    mut a: DerReader<'a>,
    mut b: DerReader<'a>,
    same: impl Fn(DerReader<'a>, DerReader<'a>) -> bool,
) -> bool {
    loop {
        match (a.next(), b.next()) {
            (Some(one), Some(other)) if same(one.inner(), other.inner()) => {}
            (None, None) => return a.is_empty() && b.is_empty(),
            _ => return false,
        }
    }
}

fn same_attribute(a: DerReader<'_>, b: DerReader<'_>) -> bool {
    // UTF8String, PrintableString, TeletexString, IA5String, VisibleString, UniversalString, BMPString
    let is_text = |tag| matches!(tag, 0x0c | 0x13 | 0x14 | 0x16 | 0x1a | 0x1c | 0x1e);
    let (Some(a), Some(b)) = (attribute(a), attribute(b)) else { return false };
    let ((oid, tag, value), (other_oid, other_tag, other)) = (a, b);
    let same_text = || folded(&utf8(tag, value)) == folded(&utf8(other_tag, other));
    oid == other_oid
        && ((tag, value) == (other_tag, other) || is_text(tag) && is_text(other_tag) && same_text())
}

/// In lower case, with single spaces between words and none around them.
fn folded(text: &[u8]) -> Vec<u8> {
    let words = text.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(&b' ').to_ascii_lowercase()
}

fn attribute(mut inner: DerReader<'_>) -> Option<(&[u8], u8, &[u8])> {
    let oid = inner.require(der::OID)?;
    let value = inner.next()?;
    Some((oid.body, value.tag, value.body))
}

/// A type, and the bytes that the old form shows of the value: those of a string, the bits of a bit
/// string, and a sequence as it is encoded.
fn oneline_value(mut inner: DerReader<'_>) -> Option<(&[u8], Vec<u8>)> {
    let oid = inner.require(der::OID)?;
    let value = inner.next()?;
    let bytes = match (value.tag, value.body) {
        (der::SEQUENCE, _) => value.whole.to_vec(),
        (der::BIT_STRING, [unused, bits @ ..]) => {
            let mut bits = bits.to_vec();
            if let Some(last) = bits.last_mut() {
                *last &= 0xff << (unused & 7);
            }
            bits
        }
        (_, body) => body.to_vec(),
    };
    Some((oid.body, bytes))
}

/// A string of any of ASN.1's types as UTF-8.
fn utf8(tag: u8, value: &[u8]) -> Vec<u8> {
    match tag {
        // BMPString: two bytes a letter.
        0x1e => {
            let units = value.as_chunks::<2>().0.iter().map(|pair| u16::from_be_bytes(*pair));
            char::decode_utf16(units).map(|c| c.unwrap_or('\u{fffd}')).collect::<String>().into()
        }
        // UniversalString: four bytes a letter.
        0x1c => {
            let letters = value.as_chunks::<4>().0.iter().map(|four| u32::from_be_bytes(*four));
            let letters = letters.map(|n| char::from_u32(n).unwrap_or('\u{fffd}'));
            letters.collect::<String>().into()
        }
        // NumericString, PrintableString, TeletexString, IA5String and VisibleString: a byte a letter,
        // in practice Latin-1.
        0x12 | 0x13 | 0x14 | 0x16 | 0x1a => {
            value.iter().map(|b| *b as char).collect::<String>().into()
        }
        _ => value.to_vec(),
    }
}

fn escaped(value: &[u8]) -> String {
    let mut text = String::with_capacity(value.len());
    for (i, &byte) in value.iter().enumerate() {
        let edge = i == 0 || i + 1 == value.len();
        match byte {
            b',' | b'+' | b'"' | b'\\' | b'<' | b'>' | b';' => text.extend(['\\', byte as char]),
            b' ' if edge => text.push_str("\\ "),
            b'#' if i == 0 => text.push_str("\\#"),
            b' '..=b'~' => text.push(byte as char),
            _ => drop(write!(text, "\\{byte:02X}")),
        }
    }
    text
}

fn dotted(oid: &[u8]) -> String {
    let (mut text, mut number, mut first) = (String::new(), 0u64, true);
    for &byte in oid {
        number = number << 7 | u64::from(byte & 0x7f);
        if byte & 0x80 != 0 {
            continue;
        }
        if std::mem::take(&mut first) {
            let root = (number / 40).min(2);
            let _ = write!(text, "{root}.{}", number - root * 40);
        } else {
            let _ = write!(text, ".{number}");
        }
        number = 0;
    }
    text
}

fn hex_value(tag: u8, value: &[u8]) -> String {
    let mut text = format!("{tag:02X}");
    match value.len() {
        n @ 0..=0x7f => drop(write!(text, "{n:02X}")),
        n @ 0x80..=0xff => drop(write!(text, "81{n:02X}")),
        n => drop(write!(text, "82{n:04X}")),
    }
    for byte in value {
        let _ = write!(text, "{byte:02X}");
    }
    text
}

/// OpenSSL's short name of an attribute's type, for types that names may have.
fn short_name(oid: &[u8]) -> Option<&'static str> {
    let (last, arc) = oid.split_last()?;
    let (_, names) = ARCS.iter().find(|(prefix, _)| *prefix == arc)?;
    names.iter().find(|(number, _)| number == last).map(|(_, name)| *name)
}

/// The numbers of an arc of object identifiers and the short names that OpenSSL has for them.
type Names = &'static [(u8, &'static str)];

/// Arcs with types of attributes, in their encoding.
const ARCS: [(&[u8], Names); 8] = [
    (&[0x55, 4], X520),
    (&[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 9], PKCS9),
    (&[0x09, 0x92, 0x26, 0x89, 0x93, 0xf2, 0x2c, 0x64, 1], COSINE),
    (
        &[0x2b, 6, 1, 4, 1, 0x82, 0x37, 60, 2, 1],
        &[(1, "jurisdictionL"), (2, "jurisdictionST"), (3, "jurisdictionC")],
    ),
    (
        &[0x2b, 6, 1, 5, 5, 7, 9],
        &[
            (1, "id-pda-dateOfBirth"),
            (2, "id-pda-placeOfBirth"),
            (3, "id-pda-gender"),
            (4, "id-pda-countryOfCitizenship"),
            (5, "id-pda-countryOfResidence"),
        ],
    ),
    (&[0x2b, 6, 1, 4, 1, 0x82, 0x37, 20, 2], &[(2, "msSmartcardLogin"), (3, "msUPN")]),
    (&[0x2a, 0x85, 0x03, 100], &[(1, "OGRN"), (3, "SNILS"), (5, "OGRNIP")]),
    (&[0x2a, 0x85, 0x03, 3, 0x81, 3, 1], &[(1, "INN")]),
];

/// 2.5.4, ITU-T X.520.
const X520: Names = &[
    (3, "CN"),
    (4, "SN"),
    (5, "serialNumber"),
    (6, "C"),
    (7, "L"),
    (8, "ST"),
    (9, "street"),
    (10, "O"),
    (11, "OU"),
    (12, "title"),
    (13, "description"),
    (14, "searchGuide"),
    (15, "businessCategory"),
    (16, "postalAddress"),
    (17, "postalCode"),
    (18, "postOfficeBox"),
    (19, "physicalDeliveryOfficeName"),
    (20, "telephoneNumber"),
    (21, "telexNumber"),
    (22, "teletexTerminalIdentifier"),
    (23, "facsimileTelephoneNumber"),
    (24, "x121Address"),
    (25, "internationaliSDNNumber"),
    (26, "registeredAddress"),
    (27, "destinationIndicator"),
    (28, "preferredDeliveryMethod"),
    (29, "presentationAddress"),
    (30, "supportedApplicationContext"),
    (31, "member"),
    (32, "owner"),
    (33, "roleOccupant"),
    (34, "seeAlso"),
    (35, "userPassword"),
    (36, "userCertificate"),
    (37, "cACertificate"),
    (38, "authorityRevocationList"),
    (39, "certificateRevocationList"),
    (40, "crossCertificatePair"),
    (41, "name"),
    (42, "GN"),
    (43, "initials"),
    (44, "generationQualifier"),
    (45, "x500UniqueIdentifier"),
    (46, "dnQualifier"),
    (47, "enhancedSearchGuide"),
    (48, "protocolInformation"),
    (49, "distinguishedName"),
    (50, "uniqueMember"),
    (51, "houseIdentifier"),
    (52, "supportedAlgorithms"),
    (53, "deltaRevocationList"),
    (54, "dmdName"),
    (65, "pseudonym"),
    (72, "role"),
    (97, "organizationIdentifier"),
    (98, "c3"),
    (99, "n3"),
    (100, "dnsName"),
];

/// 1.2.840.113549.1.9, RFC 2985.
const PKCS9: Names = &[
    (1, "emailAddress"),
    (2, "unstructuredName"),
    (3, "contentType"),
    (4, "messageDigest"),
    (5, "signingTime"),
    (6, "countersignature"),
    (7, "challengePassword"),
    (8, "unstructuredAddress"),
    (9, "extendedCertificateAttributes"),
    (14, "extReq"),
    (15, "SMIME-CAPS"),
    (16, "SMIME"),
    (20, "friendlyName"),
    (21, "localKeyID"),
];

/// 0.9.2342.19200300.100.1, RFC 4524.
const COSINE: Names = &[
    (1, "UID"),
    (2, "textEncodedORAddress"),
    (3, "mail"),
    (4, "info"),
    (5, "favouriteDrink"),
    (6, "roomNumber"),
    (7, "photo"),
    (8, "userClass"),
    (9, "host"),
    (10, "manager"),
    (11, "documentIdentifier"),
    (12, "documentTitle"),
    (13, "documentVersion"),
    (14, "documentAuthor"),
    (15, "documentLocation"),
    (20, "homeTelephoneNumber"),
    (21, "secretary"),
    (22, "otherMailbox"),
    (23, "lastModifiedTime"),
    (24, "lastModifiedBy"),
    (25, "DC"),
    (26, "aRecord"),
    (27, "pilotAttributeType27"),
    (28, "mXRecord"),
    (29, "nSRecord"),
    (30, "sOARecord"),
    (31, "cNAMERecord"),
    (37, "associatedDomain"),
    (38, "associatedName"),
    (39, "homePostalAddress"),
    (40, "personalTitle"),
    (41, "mobileTelephoneNumber"),
    (42, "pagerTelephoneNumber"),
    (43, "friendlyCountryName"),
    (44, "uid"),
    (45, "organizationalStatus"),
    (46, "janetMailbox"),
    (47, "mailPreferenceOption"),
    (48, "buildingName"),
    (49, "dSAQuality"),
    (50, "singleLevelQuality"),
    (51, "subtreeMinimumQuality"),
    (52, "subtreeMaximumQuality"),
    (53, "personalSignature"),
    (54, "dITRedirect"),
    (55, "audio"),
    (56, "documentPublisher"),
];

#[cfg(test)]
mod tests {
    use super::*;

    fn part(last: u8, value: &[u8]) -> Vec<u8> {
        let mut inner = vec![der::OID, 3, 0x55, 4, last, 0x0c, value.len() as u8];
        inner.extend_from_slice(value);
        let mut set = vec![der::SET, inner.len() as u8 + 2, der::SEQUENCE, inner.len() as u8];
        set.extend(inner);
        set
    }

    #[test]
    fn the_two_forms_differ_in_order_and_escapes() {
        let name = [part(10, b"A, B"), part(3, "w\u{e9}".as_bytes())].concat();
        assert_eq!(rfc2253(&name), r"CN=w\C3\A9,O=A\, B");
        assert_eq!(oneline(&name), r"/O=A, B/CN=w\xC3\xA9");
        assert_eq!(common_names(&name), ["w\u{e9}".as_bytes()]);
        let name = [part(10, b"A/CN=b+c"), part(3, b"w")].concat();
        assert_eq!(oneline(&name), r"/O=A\/CN=b\+c/CN=w");
    }

    #[test]
    fn attributes_of_one_part_have_the_last_first() {
        let two = [&part(3, b"m")[2..], &part(11, b"u")[2..]].concat();
        let set = [&[der::SET, two.len() as u8][..], &two].concat();
        let name = [part(10, b"A"), set].concat();
        assert_eq!(rfc2253(&name), "OU=u+CN=m,O=A");
        assert_eq!(oneline(&name), "/O=A/CN=m+OU=u");
    }

    #[test]
    fn values_that_are_no_strings_are_shown_as_openssl_does() {
        // A bit string of 12 bits, and a sequence.
        let mut name = part(45, b"\x04\xf0\x0f");
        name[9] = der::BIT_STRING;
        assert_eq!(rfc2253(&name), "x500UniqueIdentifier=#030304F00F");
        assert_eq!(oneline(&name), r"/x500UniqueIdentifier=\xF0\x00");
        name[9] = der::SEQUENCE;
        assert_eq!(rfc2253(&name), "x500UniqueIdentifier=#300304F00F");
        assert_eq!(oneline(&name), r"/x500UniqueIdentifier=0\x03\x04\xF0\x0F");
        // Letters beyond ASCII, although the type has none.
        for tag in [0x12, 0x13, 0x14, 0x16] {
            let mut name = part(3, b"w\xe9");
            name[9] = tag;
            assert_eq!(rfc2253(&name), r"CN=w\C3\A9");
            assert_eq!(oneline(&name), r"/CN=w\xE9");
        }
    }

    #[test]
    fn characters_of_four_bytes_are_read() {
        let mut name = part(3, b"\0\0\0u\0\x01\xf6\0");
        assert_ne!(rfc2253(&name), r"CN=u\F0\9F\98\80");
        name[9] = 0x1c;
        assert_eq!(rfc2253(&name), r"CN=u\F0\9F\98\80");
        assert!(same(&name, &part(3, "U\u{1f600}".as_bytes())));
    }

    #[test]
    fn names_are_compared_as_texts() {
        let name = [part(10, b"A B"), part(3, "w\u{e9}".as_bytes())].concat();
        let mut printable = [part(10, b" a  b "), part(3, "W\u{e9}".as_bytes())].concat();
        printable[9] = 0x13;
        assert!(same(&name, &printable));
        assert!(!same(&name, &part(10, b"A B")));
        assert!(!same(&part(10, b"A B"), &part(10, b"AB")));
        assert!(!same(&part(10, b"A B"), &part(3, b"A B")));
    }

    #[test]
    fn unknown_attributes_are_numbers() {
        assert_eq!(rfc2253(&part(110, b"x")), "2.5.4.110=#0C0178");
        for (len, length) in [(127, "7F"), (128, "8180"), (255, "81FF"), (256, "820100")] {
            let text = hex_value(0x0c, &vec![b'x'; len]);
            assert_eq!(text.strip_suffix(&"78".repeat(len)), Some(&*format!("0C{length}")));
        }
    }

    #[test]
    fn types_of_attributes_have_openssls_names() {
        for (last, name) in
            [(3, "CN"), (45, "x500UniqueIdentifier"), (72, "role"), (97, "organizationIdentifier")]
        {
            assert_eq!(rfc2253(&part(last, b"x")), format!("{name}=x"));
        }
        let numbers = |(prefix, names): &(&[u8], Names)| {
            names.iter().map(|(last, _)| [prefix, &[*last][..]].concat()).collect::<Vec<_>>()
        };
        let all: Vec<_> = ARCS.iter().flat_map(numbers).collect();
        let text = |oid: &Vec<u8>| dotted(oid);
        for expected in [
            "1.2.840.113549.1.9.7",
            "0.9.2342.19200300.100.1.3",
            "1.2.643.100.3",
            "1.2.643.3.131.1.1",
            "1.3.6.1.5.5.7.9.1",
        ] {
            assert!(all.iter().map(text).any(|one| one == expected), "{expected}");
        }
    }
}
