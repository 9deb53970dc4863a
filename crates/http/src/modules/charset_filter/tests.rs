use bytes::Bytes;
use proptest::prelude::*;

use super::recode::{DecodeError, Recode, decode};
use super::*;

/// The tables of a `charset_map koi8-r to { lines }`.
fn maps(to: &str, lines: &str) -> Maps {
    let text = format!("events {{ }} http {{ charset_map koi8-r {to} {{ {lines} }} }}");
    let tree = weir_conf::read_text(std::path::Path::new("trial.conf"), text.as_bytes());
    let http = tree.main.iter().find(|d| d.name.is("http")).unwrap();
    let mut maps = Maps::default();
    maps.read(&http.block()[0]).unwrap();
    maps
}

fn recoded(maps: &Maps, from: &str, to: &str, pieces: &[&[u8]]) -> Vec<u8> {
    let mut recode = Recode::new(maps.table(from.as_bytes(), to.as_bytes()).unwrap());
    let mut out = Vec::new();
    for piece in pieces {
        out.extend_from_slice(&recode.run(Bytes::copy_from_slice(piece)));
    }
    out.extend_from_slice(&recode.end());
    out
}

#[test]
fn bytes_become_others_and_come_back() {
    let maps = maps("windows-1251", "C0 FE; C1 E0;");
    assert_eq!(recoded(&maps, "KOI8-R", "Windows-1251", &[b"a\xc0\xc1\xc2"]), b"a\xfe\xe0?");
    assert_eq!(recoded(&maps, "windows-1251", "koi8-r", &[b"\xfe\xe0"]), b"\xc0\xc1");
}

#[test]
fn utf8_without_a_mapping_becomes_a_reference() {
    let maps = maps("utf-8", "C0 D18E; C1 E282AC;");
    assert_eq!(recoded(&maps, "koi8-r", "utf-8", &[b"a\xc0\xc1\xc2"]), "aю€?".as_bytes());
    let text = "aю€й😀".as_bytes();
    assert_eq!(recoded(&maps, "utf-8", "koi8-r", &[text]), b"a\xc0\xc1&#1081;&#128512;");
    assert_eq!(recoded(&maps, "utf-8", "koi8-r", &[b"\xff\xc0a\xd1"]), b"??a?");
}

#[test]
fn characters_are_read_as_nginx_reads_them() {
    for c in ['\u{80}', '\u{7ff}', '\u{800}', '\u{ffff}', '\u{10000}', '\u{10ffff}'] {
        let text = c.to_string();
        let mut bytes = text.as_bytes();
        assert_eq!(decode(&mut bytes), Ok(u32::from(c)));
        assert!(bytes.is_empty());
    }
    assert_eq!(decode(&mut &b"\xe2\x82"[..]), Err(DecodeError::Incomplete));
    for bad in [b"\x80abc".as_slice(), b"\xc1\xbf", b"\xe0\x80\x80", b"\xf7\xbf\xbf\xbf", b"\xc3a"]
    {
        assert_eq!(decode(&mut &*bad), Err(DecodeError::Invalid), "{bad:?}");
    }
}

#[test]
fn wrong_maps_are_refused() {
    let complaint = |http: &str| crate::trial::site(http).err().unwrap_or_default();
    assert_eq!(
        complaint("charset_map a A { }"),
        "\"charset_map\" between the same charsets \"a\" and \"A\""
    );
    assert_eq!(
        complaint("charset_map utf-8 a { }"),
        "\"charset_map\" with \"utf-8\" charset should be given in the second column"
    );
    assert_eq!(
        complaint("charset_map a b { } charset_map b a { }"),
        "duplicate \"charset_map\" between \"b\" and \"a\""
    );
    assert_eq!(complaint("charset_map a b { 80 100; }"), "invalid value \"100\"");
    assert_eq!(complaint("charset_map a b { 80 81 82; }"), "invalid parameters number");
    assert_eq!(
        complaint("charset b; source_charset a; server { }"),
        "no \"charset_map\" between the charsets \"a\" and \"b\""
    );
    assert_eq!(complaint("charset b; server { source_charset a; } charset_map b a { }"), "");
}

proptest! {
    #[test]
    fn cutting_a_body_changes_nothing(
        body in prop::collection::vec(prop::sample::select(vec![b'a', 0xd1, 0x8e, 0xe2, 0x82, 0xac, 0xf0, 0xff]), 0..30),
        cut in any::<prop::sample::Index>(),
    ) {
        let maps = maps("utf-8", "C0 D18E; C1 E282AC;");
        let (first, second) = body.split_at(cut.index(body.len() + 1));
        prop_assert_eq!(
            recoded(&maps, "utf-8", "koi8-r", &[first, second]),
            recoded(&maps, "utf-8", "koi8-r", &[&body])
        );
    }
}
