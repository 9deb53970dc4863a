//! PEM: the text form of certificates, keys and revocation lists.

use std::fmt;

use weir_proto::base64::{self, Alphabet};

/// One section: the text between a `BEGIN` and an `END` line.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// The words of the `BEGIN` line.
    pub label: String,
    /// Lines such as `Proc-Type: 4,ENCRYPTED`.
    pub headers: Vec<(String, String)>,
    /// The decoded contents.
    pub der: Vec<u8>,
}

/// What is wrong with a PEM text, in OpenSSL's words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PemError {
    /// No section is of the kind that is needed.
    NoStart,
    /// A section does not end.
    NoEnd,
    /// A section is not base64.
    NotBase64,
    /// A section holds no certificate.
    BadCertificate,
    /// A section holds no parameters of Diffie-Hellman.
    BadParameters,
}

impl fmt::Display for PemError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PemError::NoStart => "no start line",
            PemError::NoEnd => "bad end line",
            PemError::NotBase64 => "bad base64 decode",
            PemError::BadCertificate => "bad certificate",
            PemError::BadParameters => "bad parameters",
        })
    }
}

/// Editors write it before a text in UTF-8. As in OpenSSL, it may stand before the first line and
/// after a section, since files are made by concatenation.
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// All sections of a text, in order. The first section that does not end, or is not base64, is an
/// error.
pub fn sections(text: &[u8]) -> Result<Vec<Section>, PemError> {
    let mut found = Vec::new();
    let mut lines = text.split(|b| *b == b'\n').map(<[u8]>::trim_ascii_end);
    let mut may_have_mark = true;
    while let Some(line) = lines.next() {
        let may = std::mem::take(&mut may_have_mark);
        let line = line.strip_prefix(BYTE_ORDER_MARK).filter(|_| may).unwrap_or(line);
        let Some(label) = marker(line, b"-----BEGIN ") else { continue };
        let (mut headers, mut body, mut ended) = (Vec::new(), Vec::new(), false);
        for line in lines.by_ref() {
            if marker(line, b"-----END ").is_some_and(|end| end == label) {
                ended = true;
                break;
            }
            match line.iter().position(|b| *b == b':') {
                Some(at) => headers.push((text_of(&line[..at]), text_of(&line[at + 1..]))),
                None => body.extend_from_slice(line.trim_ascii_start()),
            }
        }
        if !ended {
            return Err(PemError::NoEnd);
        }
        let der = base64::decode(Alphabet::Plain, &body).ok_or(PemError::NotBase64)?;
        found.push(Section { label: text_of(label), headers, der });
        may_have_mark = true;
    }
    Ok(found)
}

fn marker<'a>(line: &'a [u8], begin: &[u8]) -> Option<&'a [u8]> {
    line.strip_prefix(begin)?.strip_suffix(b"-----")
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.trim_ascii()).into_owned()
}

/// Appends bytes as a section with this label.
pub fn write(label: &str, der: &[u8], out: &mut Vec<u8>) {
    let mut text = Vec::with_capacity(der.len() * 4 / 3 + 4);
    base64::encode(Alphabet::Plain, der, &mut text);
    out.extend_from_slice(format!("-----BEGIN {label}-----\n").as_bytes());
    for line in text.chunks(64) {
        out.extend_from_slice(line);
        out.push(b'\n');
    }
    out.extend_from_slice(format!("-----END {label}-----\n").as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn headers_are_no_base64() {
        let text = b"x\n-----BEGIN A KEY-----\nProc-Type: 4,ENCRYPTED\nDEK-Info: AES,00\n\nAAEC\n-----END A KEY-----\n";
        let list = sections(text).unwrap();
        assert_eq!(list[0].label, "A KEY");
        assert_eq!(list[0].headers[1], ("DEK-Info".into(), "AES,00".into()));
        assert_eq!(list[0].der, [0, 1, 2]);
    }

    #[test]
    fn a_section_without_end_is_an_error() {
        assert_eq!(sections(b"-----BEGIN X-----\nAAEC\n"), Err(PemError::NoEnd));
        assert_eq!(sections(b"nothing here").unwrap(), []);
    }

    #[test]
    fn a_byte_order_mark_and_spaces_stand_where_openssl_takes_them() {
        let section = "-----BEGIN X-----  \n\tAAEC\n-----END X-----\n";
        let count = |text: &str| sections(text.as_bytes()).map(|list| list.len());
        for (text, wanted) in [
            (section.repeat(2), Ok(2)),
            (format!("\u{feff}{section}\u{feff}{section}"), Ok(2)),
            (format!("\n\u{feff}{section}{section}"), Ok(1)),
            (format!(" {section}"), Ok(0)),
            (section.replace("-----END", " -----END"), Err(PemError::NoEnd)),
        ] {
            assert_eq!(count(&text), wanted, "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn a_written_section_reads_back(der: Vec<u8>) {
            let mut text = Vec::new();
            write("CERTIFICATE", &der, &mut text);
            prop_assert_eq!(&sections(&text).unwrap()[0].der, &der);
        }

        #[test]
        fn any_text_is_decided(text: Vec<u8>) {
            let _ = sections(&text);
        }
    }
}
